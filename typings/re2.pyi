# What Reknit uses of google-re2, which ships no type hints.

from collections.abc import Iterator
from typing import Any, AnyStr, Generic

class error(Exception): ...  # noqa: N801 - the library's spelling

class Options:
    max_mem: int
    never_capture: bool
    never_nl: bool
    dot_nl: bool
    one_line: bool
    posix_syntax: bool
    longest_match: bool
    log_errors: bool
    literal: bool
    case_sensitive: bool
    perl_classes: bool
    word_boundary: bool
    encoding: Any
    def __init__(self) -> None: ...

class _Match(Generic[AnyStr]):
    def group(self, *groups: int | str) -> AnyStr | None: ...
    def groups(self, default: AnyStr | None = None) -> tuple[AnyStr | None, ...]: ...
    def groupdict(self, default: AnyStr | None = None) -> dict[str, AnyStr | None]: ...
    def __getitem__(self, group: int | str) -> AnyStr | None: ...
    def start(self, group: int | str = 0) -> int: ...
    def end(self, group: int | str = 0) -> int: ...
    def span(self, group: int | str = 0) -> tuple[int, int]: ...

class _Regexp:
    pattern: str | bytes
    groups: int
    groupindex: dict[str, int]
    def search(
        self, text: AnyStr, pos: int | None = None, endpos: int | None = None
    ) -> _Match[AnyStr] | None: ...
    def match(
        self, text: AnyStr, pos: int | None = None, endpos: int | None = None
    ) -> _Match[AnyStr] | None: ...
    def fullmatch(
        self, text: AnyStr, pos: int | None = None, endpos: int | None = None
    ) -> _Match[AnyStr] | None: ...
    def finditer(
        self, text: AnyStr, pos: int | None = None, endpos: int | None = None
    ) -> Iterator[_Match[AnyStr]]: ...
    def sub(self, repl: AnyStr, text: AnyStr, count: int = 0) -> AnyStr: ...

class Set:
    @classmethod
    def SearchSet(cls, options: Options | None = None) -> Set: ...  # noqa: N802
    @classmethod
    def MatchSet(cls, options: Options | None = None) -> Set: ...  # noqa: N802
    @classmethod
    def FullMatchSet(cls, options: Options | None = None) -> Set: ...  # noqa: N802
    def Add(self, pattern: str | bytes) -> int: ...  # noqa: N802
    def Compile(self) -> None: ...  # noqa: N802
    def Match(self, text: str | bytes) -> list[int]: ...  # noqa: N802

def compile(pattern: str | bytes, options: Options | None = None) -> _Regexp: ...  # noqa: A001
def escape(pattern: AnyStr) -> AnyStr: ...
