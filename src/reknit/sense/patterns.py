"""Many patterns against one text in one pass, in time linear in the text whatever it is (RE2)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, cast

import re2

from reknit.catalog.row import Row

if TYPE_CHECKING:
    from collections.abc import Iterable

Fit = tuple[Row, dict[str, str]]
"""A row that fits a text, and what its pattern captured there."""

_re2 = cast("Any", re2)  # the library has no type hints; the protocols below say what is used of it

_MEMORY = 64 << 20
"""Bytes that an automaton may grow to: a ceiling, not what is used."""

_GROUP_NAME = re.compile(r"(?<!\\)\(\?P?<\w+>")
_TEXT_START = re.compile(r"(?<!\\)\\A")
_TEXT_END = re.compile(r"(?<!\\)\\z")


class _Found(Protocol):
    def start(self) -> int: ...
    def groupdict(self) -> dict[str, str | None]: ...


class _Regex(Protocol):
    def search(self, text: str | bytes, pos: int = 0) -> _Found | None: ...


class _Set(Protocol):
    def Add(self, pattern: str) -> int: ...  # noqa: N802 - the library's spelling
    def Compile(self) -> None: ...  # noqa: N802
    def Match(self, text: str) -> list[int] | None: ...  # noqa: N802


@lru_cache(maxsize=16)
def pattern_set(rows: tuple[Row, ...], also: tuple[str, ...] = ()) -> PatternSet:
    """The set of these rows, compiled once however many logs are read: that takes a tenth of a second."""
    return PatternSet(rows, also)


class PatternSet:
    """The patterns of some catalogue rows, ready to be compared with blocks and lines.

    A block is many lines of valid UTF-8, each ended by LF; the answer about a block may be a false yes, never
    a false no. `also` are patterns without a row that make a block worth a look.
    """

    def __init__(self, rows: Iterable[Row], also: Iterable[str] = ()) -> None:
        self._entries: list[tuple[Row, _Regex]] = []
        patterns: list[str] = []
        for row in rows:
            for pattern in row.patterns:
                patterns.append(pattern)
                self._entries.append((row, _compile(pattern)))
        self._set = _compile_set(patterns) if patterns else None
        everything = [*patterns, *also]
        union = "|".join(f"(?:{_anywhere(pattern)})" for pattern in everything)
        self._union = _compile(f"(?m){union}", captures=False) if everything else None

    def hits(self, block: bytes) -> bool:
        """Whether any line of the block is worth a look."""
        return self.next_hit(block) >= 0

    def next_hit(self, block: bytes, start: int = 0) -> int:
        """Where the first text from `start` on begins that some pattern matches, -1 where there is none."""
        found = self._union.search(block, start) if self._union is not None else None
        return found.start() if found is not None else -1

    def match(self, line: str) -> list[Fit]:
        """The rows that fit this line, each with what its pattern captured: the heaviest first, among equally
        heavy ones in the catalogue's order."""
        if self._set is None:
            return []
        fits: dict[str, Fit] = {}
        for index in sorted(self._set.Match(line) or ()):
            row, regex = self._entries[index]
            if row.code not in fits and (found := regex.search(line)) is not None:
                captured = {name: text for name, text in found.groupdict().items() if text}
                fits[row.code] = (row, captured)
        return sorted(fits.values(), key=lambda fit: -fit[0].weight)


def _anywhere(pattern: str) -> str:
    """The pattern of a line as it finds that line within a block: names of groups would clash there."""
    return _TEXT_END.sub("$", _TEXT_START.sub("^", _GROUP_NAME.sub("(?:", pattern)))


def _options(*, captures: bool = True) -> Any:
    options = _re2.Options()
    options.max_mem = _MEMORY
    options.never_capture = not captures
    return options


def _compile(pattern: str, *, captures: bool = True) -> _Regex:
    return cast("_Regex", _re2.compile(pattern, _options(captures=captures)))


def _compile_set(patterns: list[str]) -> _Set:
    compiled = cast("_Set", _re2.Set.SearchSet(_options()))
    for pattern in patterns:
        compiled.Add(pattern)
    compiled.Compile()
    return compiled
