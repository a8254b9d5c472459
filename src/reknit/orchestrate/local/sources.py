"""Logs and what is made of them: signals, and positions up to which everything has been made of them.

A position that is reported never passes text that is still inside a sense (half a line, a traceback whose end
has not come): after a crash that text is read again. Reading a few lines twice is harmless, losing one is
not.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from reknit.model.events import SignalSeen
from reknit.orchestrate.local.errors import why

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reknit.model.signals import Signal
    from reknit.orchestrate.local.kmsg import Kmsg
    from reknit.orchestrate.local.tail import Tail
    from reknit.orchestrate.port import Emit

BLOCKS_AT_ONCE = 8
"""Of one log before the others get their turn."""
POSITION_EVERY_S = 5.0
"""How often a position is reported that no event carried."""


class Sense(Protocol):
    """What turns a log's bytes into signals."""

    @property
    def unfinished(self) -> bool:
        """Whether whole lines are still inside, because their meaning hangs on those to come."""
        ...

    def feed(self, data: bytes, at: float) -> list[Signal]:
        """Take the next bytes, read at `at`."""
        ...

    def finish(self, at: float) -> list[Signal]:
        """The text is complete: give what is still inside. What is fed afterwards is another text."""
        ...


class Positions:
    """Reports positions of one source, with its events or now and then alone."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._reported: dict[str, int] = {}
        self._reported_at = time.monotonic()

    def report(self, signals: list[Signal], positions: Mapping[str, int]) -> None:
        """Hand over signals; the last one carries the positions, because only then all of them are on
        record."""
        for signal in signals[:-1]:
            self._emit(SignalSeen(signal))
        if signals:
            self._emit(SignalSeen(signals[-1]), positions)
            self._note(positions)
        elif time.monotonic() - self._reported_at >= POSITION_EVERY_S:
            self.flush(positions)

    def flush(self, positions: Mapping[str, int]) -> None:
        """Report positions now, where they are news."""
        if positions != self._reported:
            self._emit(None, positions)
        self._note(positions)

    def _note(self, positions: Mapping[str, int]) -> None:
        self._reported = dict(positions)
        self._reported_at = time.monotonic()


class LogSource:
    """One log file and its sense."""

    def __init__(self, name: str, tail: Tail, sense: Sense, emit: Emit) -> None:
        self.name = name
        self._tail = tail
        self._sense = sense
        self._positions = Positions(emit)
        self._begun_at = tail.offset
        self._read_at = 0.0

    def positions(self) -> dict[str, int]:
        """Where reading would have to begin again, and in which file."""
        return {self.name: self._begun_at, f"{self.name}.inode": self._tail.inode}

    def poll(self) -> bool:
        """Read what is new, within reason. Returns whether there may be more."""
        return all(self._step() for _ in range(BLOCKS_AT_ONCE))

    def drain(self) -> None:
        """Read to the end as it is now, and take the log's text as complete: half a line is a line then."""
        until = self._tail.size()
        while self._step() and self._tail.offset < until:
            pass
        self._positions.report(self._sense.finish(self._read_at or time.time()), self._settled())
        self._positions.flush(self._settled())

    def flush(self) -> None:
        """Report where reading stands."""
        self._positions.flush(self.positions())

    def close(self) -> None:
        """Report where reading stands and let go of the file."""
        self._positions.flush(self.positions())
        self._tail.close()

    def _step(self) -> bool:
        block = self._tail.read()
        if block is None:
            self._positions.report([], self.positions())
            return False
        signals: list[Signal] = []
        if block.fresh:
            signals += self._sense.finish(block.at)
            self._begun_at = 0
        self._read_at = min(block.at, time.time())
        signals += self._sense.feed(block.data, self._read_at)
        line_end = max(block.data.rfind(b"\n"), block.data.rfind(b"\r")) + 1
        if line_end and not self._sense.unfinished:
            self._begun_at = block.end - len(block.data) + line_end
        self._positions.report(signals, self.positions())
        return True

    def _settled(self) -> dict[str, int]:
        self._begun_at = self._tail.offset
        return self.positions()


class KmsgSource:
    """The kernel's ring buffer and its sense. The position is the last record's sequence number in this
    boot."""

    def __init__(
        self, name: str, device: Kmsg, sense: Sense, emit: Emit, notice: Callable[[str], None]
    ) -> None:
        self.name = name
        self._device: Kmsg | None = device
        self._sense = sense
        self._notice = notice
        self._positions = Positions(emit)
        self._last = device.last
        self._positions.flush(self.positions())

    def positions(self) -> dict[str, int]:
        """The last record made into signals; nothing before the first."""
        return {self.name: self._last} if self._last >= 0 else {}

    def poll(self) -> bool:
        """Read what is new."""
        if self._device is None:
            return False
        try:
            data = self._device.read()
        except OSError as error:
            self._notice(
                f"cannot read the kernel's messages any more: {why(error)}; kernel faults are not seen now"
            )
            self.close()
            return False
        signals = self._sense.feed(data, time.time()) if data else []
        self._last = self._device.last
        self._positions.report(signals, self.positions())
        return False

    def close(self) -> None:
        """Report where reading stands and let go of the device."""
        if self._device is not None:
            self._positions.flush(self.positions())
            self._device.close()
            self._device = None
