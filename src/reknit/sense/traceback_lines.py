"""Puts Python tracebacks together from the lines of a training log.

Lines may carry the prefixes of launchers and log collectors (`[rank3]:`, `[default0]:`, `3: `, timestamps);
several ranks may print into one log, so there is one open traceback per prefix. Of chained exceptions the
first is the root: it is reported as soon as it is complete, and those that follow it say that they are
chained. An exception that only wraps another which is printed after it (a data worker's, an exception
group's) is held back for that one.
"""

from __future__ import annotations

import re

import msgspec

HEADER = "Traceback (most recent call last):"
TRIGGERS = (
    r"Traceback \(most recent call last\)",
    r"During handling of the above exception, another exception occurred",
    r"The above exception was the direct cause of the following exception",
)
"""RE2 patterns of the lines that this module must see even where nothing else looks at a block."""

_CHAIN = ("During handling of the above exception", "The above exception was the direct cause of")
_MAX_OPEN = 64
_MAX_BODY = 4000
_MAX_WITHOUT_FRAME = 3
"""Lines after a header without a frame: it was quoted, and what follows has nothing to do with it."""

_MAX_STRAY = 40
"""Lines of others that may come between the lines of a traceback before it is given up."""

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
_PREFIX = re.compile(
    r"\[(?:rank|default|Rank )(?P<rank>\d{1,6})\]:? ?"  # PyTorch, torchrun
    r"|\[\d+,(?P<mpi>\d{1,6})\]<std(?:err|out)>: ?"  # mpirun
    r"|(?P<srun>\d{1,6}): "  # srun -l
    r"|\([\w.]{0,64} ?pid=(?P<pid>\d+)(?:, ip=[\w.:]+)?\) "  # Ray
    rf"|{_STAMP} std(?:err|out) [FP] "  # container runtimes
    r"|\[[IWEF]\d{4} [^\]]{0,120}\] "  # PyTorch's C++ logging
    r"|[IWEF]\d{4} [\d:.]{8,20} +\d+ [^\]]{0,120}\] "  # PyTorch's Python logging
    rf"|\[?{_STAMP}\]?:? "
)
_FRAME = re.compile(r'\s+File "(?P<file>[^"]*)", line (?P<line>\d+)(?:, in (?P<where>.+))?')
_MARGIN = re.compile(r"\s*[|+](?: |-\+?-)")
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]{0,150})(?P<of>\(\w{1,80}\))?(?::\s?(?P<message>.*)|\s*)$")
_KNOWN_ENDING = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Iteration|Failure|Failed|Timeout|Warning|Fault|Abort|Cancelled|Group|Empty|Full)$"
)
_WRAPPER = re.compile(r"Caught [\w.]+ in ")
_BETWEEN = re.compile(r"\s*$|-- Process \d+ terminated|Original $")
_BODY = re.compile(r"\s*$|\s{2,}")
_LAUNCHER = " in launch_agent"
"""The function in which torchrun raises what it has to report about its children."""

_MASKED = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")


class Raised(msgspec.Struct, frozen=True):
    """A finished traceback.

    Attributes:
        name: the exception's type as printed, "" where the log ended before it.
        message: its text on the same line.
        frame: the deepest frame, `file:line in function`, "" where unknown.
        rank: the rank that a prefix names, "" where none does.
        chained: the exception that came first, "" where this one stands alone or is the first.
    """

    name: str
    message: str = ""
    frame: str = ""
    rank: str = ""
    chained: str = ""

    @property
    def line(self) -> str:
        """The exception as Python prints it."""
        return f"{self.name}: {self.message}" if self.message else self.name

    @property
    def signature(self) -> str:
        """What two occurrences of one failure share: type, frame and message without its numbers."""
        return f"{self.name}|{self.frame}|{_MASKED.sub('#', self.message[:200])}"


_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d|^<")
"""Files that are not the program's own: installed packages, the standard library, generated code."""


class _Open(msgspec.Struct):
    """A traceback that is being read. `muted` is one that a launcher repeats in its summary."""

    prefix: str
    rank: str
    muted: bool = False
    chained: str = ""
    frame: str = ""
    own: str = ""
    body: int = 0
    stray: int = 0

    @property
    def counts_cut_off(self) -> bool:
        """Whether it says something without its last line: not where a launcher or a handler speaks."""
        return bool(self.frame) and not self.muted and not self.chained and not self.frame.endswith(_LAUNCHER)

    def as_exception(self, name: str = "", message: str = "") -> Raised:
        """What was raised, at the deepest frame of the program's own: where its author has to look."""
        return Raised(name, message, self.own or self.frame, self.rank, self.chained)


class Step(msgspec.Struct, frozen=True):
    """What one line did: `consumed` says that it belongs to a traceback and means nothing by itself."""

    consumed: bool = False
    done: tuple[Raised, ...] = ()


class Tracebacks:
    """The tracebacks of one log."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._held: dict[str, Raised] = {}
        self._first: dict[str, str] = {}
        self._chain: set[str] = set()

    @property
    def waiting(self) -> bool:
        """Whether the next line matters, whatever it says."""
        return bool(self._open or self._held)

    def feed(self, line: str) -> Step:
        """Take one line, without its end."""
        if HEADER in line:
            return self._begin(line)
        key, text = split_prefix(line)
        text, done = self._release(key, text)
        current = self._open.get(key)
        if current is None:
            if text.startswith(_CHAIN) and key in self._first:
                self._chain.add(key)
            return Step(done=done)
        if current.prefix and line.startswith(current.prefix):
            text = line[len(current.prefix) :]
        step = self._body(key, current, text)
        return Step(step.consumed, (*done, *step.done)) if done else step

    def finish(self) -> tuple[Raised, ...]:
        """The log has ended: what was held back, and tracebacks that were cut off, as far as they came."""
        cut = tuple(one.as_exception() for one in self._open.values() if one.counts_cut_off)
        done = (*self._held.values(), *cut)
        self._open.clear()
        self._held.clear()
        self._chain.clear()
        return done

    def _begin(self, line: str) -> Step:
        before = line[: line.index(HEADER)]
        key, text = split_prefix(before)
        done: tuple[Raised, ...] = ()
        held = self._held.pop(key, None)
        chained = self._first.get(key, "") if key in self._chain else ""
        self._chain.discard(key)
        if held is not None and not (_BETWEEN.match(text) or _is_margin(text)):
            done = (held,)
        if len(self._open) >= _MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        muted = text.strip().startswith("traceback :")
        prefix = "" if muted or not text.strip() or _is_margin(text) or _BETWEEN.match(text) else before
        self._open[key] = _Open(prefix, key, muted=muted, chained=chained)
        return Step(consumed=True, done=done)

    def _body(self, key: str, current: _Open, text: str) -> Step:
        grouped = _MARGIN.match(text)
        inner = text[grouped.end() :] if grouped else text
        if frame := _FRAME.match(inner):
            where = f" in {frame['where'].strip()}" if frame["where"] else ""
            current.frame = f"{frame['file'].rpartition('/')[2]}:{frame['line']}{where}"[:200]
            if not _LIBRARY.search(frame["file"]):
                current.own = current.frame
        elif not _BODY.match(inner):
            return self._outside(key, current, inner)
        current.body += 1
        if current.body > (_MAX_BODY if current.frame or current.muted else _MAX_WITHOUT_FRAME):
            return self._give_up(key, current, consumed=True)
        return Step(consumed=True)

    def _outside(self, key: str, current: _Open, text: str) -> Step:
        """The exception itself, or a line of somebody else in between."""
        if current.muted:
            if text[:1].isspace():
                return Step(consumed=True)
            del self._open[key]
            return Step()
        found = _EXCEPTION.match(text) if current.frame else None
        if found is not None and _looks_like_exception(found["type"], sure=current.stray == 0):
            del self._open[key]
            name = found["type"] + (found["of"] or "")
            return self._complete(key, current.as_exception(name, (found["message"] or "").strip()))
        current.stray += 1
        if not current.frame or current.stray > _MAX_STRAY:
            return self._give_up(key, current, consumed=False)
        return Step()

    def _complete(self, key: str, found: Raised) -> Step:
        if not found.chained:
            if len(self._first) >= _MAX_OPEN:
                self._first.clear()
            self._first[key] = found.line[:200]
        if _only_wraps(found):
            self._held[key] = found
            return Step(consumed=True)
        return Step(consumed=True, done=(found,))

    def _give_up(self, key: str, current: _Open, *, consumed: bool) -> Step:
        del self._open[key]
        if not current.counts_cut_off:
            return Step(consumed=consumed)
        return Step(consumed=consumed, done=(current.as_exception(),))

    def _release(self, key: str, text: str) -> tuple[str, tuple[Raised, ...]]:
        """Lets a held exception go when what comes is not what it wraps; a group's member replaces it."""
        held = self._held.get(key)
        if held is None or _BETWEEN.match(text):
            return text, ()
        if margin := _MARGIN.match(text):
            member = _EXCEPTION.match(text[margin.end() :].lstrip())
            if member is None or not _KNOWN_ENDING.search(member["type"]):
                return text, ()
            inner = Raised(member["type"], (member["message"] or "").strip(), held.frame, held.rank)
            if _only_wraps(inner):
                return text, ()
            held = inner
        del self._held[key]
        return text, (held,)


def split_prefix(line: str) -> tuple[str, str]:
    """The rank (or process) that a line's prefixes name, "" where none does, and the line without them."""
    key, position = "", 0
    while position < len(line) and (prefix := _PREFIX.match(line, position)):
        named = prefix.group("rank", "mpi", "srun", "pid")
        key = key or next((name for name in named if name), "")
        position = prefix.end()
    return key, line[position:] if position else line


def _looks_like_exception(name: str, *, sure: bool) -> bool:
    """`sure`: the line comes right after the last frame, where nearly everything is the exception."""
    last = name.rpartition(".")[2]
    if _KNOWN_ENDING.search(last):
        return True
    if last.isupper() or not last:
        return False
    return "." in name or (sure and not last.islower())


def _only_wraps(found: Raised) -> bool:
    if found.name.endswith("ExceptionGroup"):
        return True
    if _WRAPPER.match(found.message):
        return True
    return found.name.endswith("ProcessRaisedException") and not found.message


def _is_margin(text: str) -> bool:
    return bool(text.strip()) and not text.replace("Exception Group", "").strip(" |+-")
