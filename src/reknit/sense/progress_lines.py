"""Reads how far a rank has got from the lines that it prints anyway, by the catalogue's progress rows.

What is hard is not to take another count for the training's: bars of evaluations, of downloads, of data
preparation. So the row that first gave a step is the training's, and other rows are then ignored, except that

- a bar that shows no loss makes way for any row that does, a `generic.` row for one made for a framework;
- a bar that has reached its total is over, and the next count is the training's;
- a second bar of the same row with another total, while the first is not over, is an evaluation: it is
  reported as the phase `evaluation`, which ends with the next training step.

A step below the last one is believed when the next line counts on from there: then counting has begun again.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import re2

from reknit.catalog.row import ProgressRow
from reknit.model.progress import RankProgress

if TYPE_CHECKING:
    from collections.abc import Iterable

KEPT_DURATIONS = 64
LONGEST_LINE = 4096
"""Characters of a line that are looked at; progress stands at its beginning."""

_COLOURS: Any = re2.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EVALUATION: Any = re2.compile(r"(?i)\b(?:eval|evaluat(?:ion|ing)|val|valid|validat(?:ion|ing)|testing)\b")
_LONGEST_NUMBER = 15
_LONGEST_STEP = 1e6
"""Seconds; a printed duration above this is not one."""


class LineProgress:
    r"""The progress of one rank in one attempt, read from its lines.

    Lines may be cut at "\\n" or at "\\r": whoever reads the log must cut at both, since a bar may not print a
    "\\n" until training is over.
    """

    def __init__(self, rows: Iterable[ProgressRow], user_pattern: str | None = None) -> None:
        """`user_pattern` replaces the rows for steps; those for checkpoints stay.

        It is RE2 with a group named `step`, and where printed `loss`, `seconds` or `milliseconds` of one
        step. Raises ValueError where it is no such pattern.
        """
        self._patterns = _compile(tuple(rows), user_pattern)
        self._now = RankProgress()
        self._changed = False
        self._owner: _Pattern | None = None
        self._total: str | None = None
        self._over = False
        self._fallen: int | None = None
        self._durations: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._before: _Mark | None = None
        self._open: _Mark | None = None

    @property
    def current(self) -> RankProgress:
        """What is known now, with the durations since the last `take()`."""
        open_duration = self._open_duration()
        durations = (*self._durations, *(() if open_duration is None else (open_duration,)))
        return msgspec.structs.replace(self._now, durations=durations[-KEPT_DURATIONS:])

    def take(self) -> RankProgress | None:
        """What is known now, None where nothing has changed since the last call.

        Call it once all lines of a read are fed.
        """
        if not self._changed:
            return None
        self._close_batch()
        taken = self.current
        self._durations.clear()
        self._changed = False
        return taken

    def feed_line(self, line: str, at: float) -> bool:
        """Take one line that was read at `at` (seconds since the epoch). Gives whether it changed anything.

        Lines that arrived in one read share their `at`: the time of a step is then known only for
        all of them together.
        """
        changed = False
        if self._now.alive_at == 0.0:
            changed = self._set(alive_at=at)
        for part in line.split("\r") if "\r" in line else (line,):
            found = self._patterns.first(part[:LONGEST_LINE])
            if found is not None and self._apply(*found, at):
                changed = True
        return changed

    def _apply(self, pattern: _Pattern, text: str, at: float) -> bool:
        match = pattern.regex.search(text)
        if match is None:
            return False
        said: dict[str, str | None] = match.groupdict()
        if not pattern.has_step:
            return self._loss(said.get("loss"))
        step = _step(said)
        if step is None:
            return False
        if pattern.what != "step":
            return self._checkpoint(pattern.what, step, at)
        if pattern.rank == _GENERIC and _EVALUATION.search(text[: match.start()]):
            return self._evaluating(at)
        return self._step(pattern, said, step, at)

    def _step(self, pattern: _Pattern, said: dict[str, str | None], step: int, at: float) -> bool:
        total = said.get("total")
        if not self._owns(pattern, total):
            return pattern is self._owner and self._evaluating(at)
        self._over = total is not None and _whole(said["step"]) == _whole(total)
        loss = said.get("loss")
        if not self._counts(step, at, _seconds(said)):
            return self._loss(loss)
        news: dict[str, Any] = {"step": step, "step_at": at}
        if loss is not None:
            news["loss"] = _number(loss)
        if self._now.phase:
            news["phase"], news["phase_at"] = "", at
        return self._set(**news)

    def _owns(self, pattern: _Pattern, total: str | None) -> bool:
        """Whether this count is the training's; it may become so."""
        owner = self._owner
        if pattern is owner and total == self._total:
            return True
        if owner is not None and not self._over and (pattern is owner or pattern.rank <= owner.rank):
            return False
        self._owner, self._total = pattern, total
        self._forget_count()
        return True

    def _counts(self, step: int, at: float, seconds: float | None) -> bool:
        """Whether this step is new; takes down how long it took."""
        last = self._now.step
        if self._before is None and self._open is None:
            pass  # the first step of this count: nothing to compare it with
        elif step == last:
            return False
        elif step < last:
            if self._fallen is None or step <= self._fallen:
                self._fallen = step
                return False
            self._forget_count()
        self._fallen = None
        mark = _Mark(at, step)
        if seconds is not None:
            self._durations.append(seconds)
            self._before, self._open = mark, None
            return True
        if self._open is not None and self._open.at != at:
            self._close_batch()
        self._open = mark
        return True

    def _open_duration(self) -> float | None:
        """Seconds a step from the last line of the read before to the last line of this one."""
        before, now = self._before, self._open
        if before is None or now is None or now.at <= before.at or now.step <= before.step:
            return None
        return (now.at - before.at) / (now.step - before.step)

    def _close_batch(self) -> None:
        duration = self._open_duration()
        if duration is not None:
            self._durations.append(duration)
        if self._open is not None:
            self._before, self._open = self._open, None

    def _forget_count(self) -> None:
        self._before = self._open = self._fallen = None

    def _checkpoint(self, what: str, step: int, at: float) -> bool:
        if what == "saved":
            return step != self._now.saved_step and self._set(saved_step=step, saved_at=at)
        return step != self._now.loaded_step and self._set(loaded_step=step, loaded_at=at)

    def _evaluating(self, at: float) -> bool:
        return self._set(phase="evaluation", phase_at=at)

    def _loss(self, printed: str | None) -> bool:
        loss = _number(printed)
        return printed is not None and loss != self._now.loss and self._set(loss=loss)

    def _set(self, **fields: Any) -> bool:
        self._now = msgspec.structs.replace(self._now, **fields)
        self._changed = True
        return True


class _Mark(NamedTuple):
    at: float
    step: int


_BARE_BAR, _GENERIC, _MADE_FOR = 0, 1, 2


class _Pattern(NamedTuple):
    """A compiled row. `rank` is how sure it is that this is the training's count."""

    what: str
    regex: Any
    has_step: bool
    rank: int


class _Patterns:
    """All rows, compiled; one pass over a line tells which of them match."""

    def __init__(self, rows: tuple[ProgressRow, ...]) -> None:
        ordered = sorted(rows, key=lambda row: row.code.startswith("generic."))
        self._patterns = [_pattern(row) for row in ordered]
        options = re2.Options()
        options.log_errors = False
        self._set: Any = re2.Set.SearchSet(options)
        for row in ordered:
            self._set.Add(row.pattern)
        self._set.Compile()

    def first(self, text: str) -> tuple[_Pattern, str] | None:
        """The first row that matches, and the text without colours."""
        if "\x1b" in text:
            text = _COLOURS.sub("", text)
        try:
            matched: list[int] | None = self._set.Match(text)
        except UnicodeEncodeError:  # bytes that were no UTF-8, kept as lone surrogates
            text = text.encode("utf-8", "replace").decode()
            matched = self._set.Match(text)
        return (self._patterns[min(matched)], text) if matched else None


@lru_cache(maxsize=16)
def _compile(rows: tuple[ProgressRow, ...], user_pattern: str | None) -> _Patterns:
    """Compiled once for all ranks: the objects are never changed."""
    if user_pattern is None:
        return _Patterns(rows)
    _check_user_pattern(user_pattern)
    mine = ProgressRow(code="user", what="step", pattern=user_pattern, source="the user's own")
    return _Patterns((mine, *(row for row in rows if row.what != "step")))


def _pattern(row: ProgressRow) -> _Pattern:
    regex: Any = re2.compile(row.pattern)
    groups = regex.groupindex
    rank = _GENERIC if row.code.startswith("generic.") else _MADE_FOR
    if "total" in groups and "loss" not in groups:
        rank = _BARE_BAR
    return _Pattern(row.what, regex, "step" in groups, rank)


def _check_user_pattern(pattern: str) -> None:
    options = re2.Options()
    options.log_errors = False
    try:
        regex: Any = re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        said: Any = error.args[0]
        why = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(error)
        msg = f"the progress pattern {pattern!r} is not a regular expression that RE2 accepts: {why}"
        raise ValueError(msg) from error
    if "step" not in regex.groupindex:
        how = "write the step's digits as (?P<step>\\d+)"
        msg = f"the progress pattern {pattern!r} has no group named step; {how}"
        raise ValueError(msg)


def _whole(text: str | None) -> int | None:
    """Digits as a number; None where they are none, or absurdly many."""
    if text is None or len(text) > _LONGEST_NUMBER or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def _step(said: dict[str, str | None]) -> int | None:
    """The step counted from the beginning of training, also where the bar begins anew each epoch."""
    step, total, epoch = _whole(said.get("step")), _whole(said.get("total")), _whole(said.get("epoch"))
    if step is None or total is None or epoch is None:
        return step
    return epoch * total + step


def _number(text: str | None) -> float | None:
    """A finite number, None otherwise: the journal, which is JSON, could not give back another."""
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if isfinite(number) else None


def _seconds(said: dict[str, str | None]) -> float | None:
    """The printed time of one step, None where there is none that can be."""
    seconds, milliseconds = _number(said.get("seconds")), _number(said.get("milliseconds"))
    printed = seconds if milliseconds is None else milliseconds / 1000.0
    return printed if printed is not None and 0.0 < printed <= _LONGEST_STEP else None
