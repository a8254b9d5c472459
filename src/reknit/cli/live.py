"""What `reknit run` and `reknit demo` show while they work: a picture on a terminal, plain lines elsewhere.

A view is a guest of the controller: it is called after each event, so it only remembers then and draws a few
times a second, on the controller's own thread, because the state changes under another's hands. A terminal
that goes away takes the picture with it, never the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Self

from rich.live import Live
from rich.text import Text

from reknit.account.ledger import ettr
from reknit.cli.live_frame import Scene, frame, job_of
from reknit.cli.render import duration, forgive_letters, joined, number, percent, plain, step_time
from reknit.model.state import EngineState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from rich.console import Console

    from reknit.model.incidents import Incident, TimelineEntry
    from reknit.model.state import JobView

_GAP_S = 0.125
"""Between two pictures, where something happens: eight a second are smooth."""
_SHARE = 0.05
"""Of one core that drawing may take: a picture on a large screen takes 15 ms, and comes less often."""
_IDLE_S = 1.0
"""Between two pictures where nothing happens: the clock goes on."""
_NOTICES = 50
_LOSSES = 2000
_PROGRESS_S = 5.0
"""Between two progress lines of the plain view."""


class LiveView:
    """Draws the run on the terminal's other screen, so that what stood there before comes back afterwards.

    `spares` is only shown before nodes are known: a spare node is one that has no rank.
    """

    def __init__(
        self, console: Console, title: str, state: EngineState | None = None, *, spares: int = 0
    ) -> None:
        self.console = console
        self._scene = Scene(
            plain(title, 60), state or EngineState(), 0.0, spares=spares, losses=deque(maxlen=_LOSSES)
        )
        self._told: deque[str] = deque(maxlen=_NOTICES)
        self._live: Live | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._updated = self._drawn = time.monotonic()
        self._gap = _GAP_S
        self._last_step = -1

    def __enter__(self) -> Self:
        """Begin to show."""
        forgive_letters(self.console.file)
        self._live = Live(console=self.console, auto_refresh=False, screen=True, vertical_overflow="crop")
        self._live.start()
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was found, and say once more what a person was told meanwhile."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        live, self._live = self._live, None
        with contextlib.suppress(OSError):
            if live is not None:
                live.stop()
            for text in self._told:
                self.console.print(Text(text), soft_wrap=True)
            job = job_of(self._scene.state)
            if job is not None:
                self.console.print(Text(_job_line(job, self._scene.now)), soft_wrap=True)

    def update(self, state: EngineState, now: float) -> None:
        """Something has changed; `now` is the engine's time."""
        scene = self._scene
        scene.state, scene.now = state, now
        self._updated = time.monotonic()
        job = job_of(state)
        if job is not None and job.attempt_high != self._last_step:
            self._last_step = job.attempt_high
            if job.loss is not None:
                scene.losses.append(job.loss)
        self._wake()

    def notice(self, text: str) -> None:
        """Tell a person one sentence: shown until the next one, and once more at the end."""
        self._scene.notice = plain(text, 600)
        if self._scene.notice not in self._told:
            self._told.append(self._scene.notice)
        self._wake()

    def _wake(self) -> None:
        """Draw now, or soon where the last picture is fresh."""
        if self._live is None:
            return
        due = self._drawn + self._gap
        if time.monotonic() >= due:
            self._draw()
        else:
            self._sleep(due)

    def _sleep(self, until: float) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # nobody would wake us: the next update draws
        delay = max(0.0, until - time.monotonic())
        if self._timer is not None:
            if self._timer.when() <= loop.time() + delay:
                return
            self._timer.cancel()
        self._timer = loop.call_later(delay, self._draw)

    def _draw(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._live is None:
            return
        began = time.monotonic()
        width, height = self.console.size
        ahead = began - self._updated if self._scene.now else 0.0
        try:
            self._live.update(frame(self._scene, width, height, ahead=ahead), refresh=True)
        except OSError:
            self._live = None  # the terminal is gone; the run is not
            return
        self._drawn = time.monotonic()
        self._gap = max(_GAP_S, (self._drawn - began) / _SHARE)
        self._sleep(self._drawn + _IDLE_S)


class PlainView:
    """Prints a line for whatever is new: for logs, pipes and people who prefer it."""

    def __init__(
        self, console: Console, title: str, state: EngineState | None = None, *, spares: int = 0
    ) -> None:
        del state, spares
        self.console = console
        self._title = plain(title, 60)
        self._start: float | None = None
        self._now = 0.0
        self._last_said: dict[str, TimelineEntry] = {}
        self._tracked: set[str] = set()
        self._count = 0
        self._attempt = 0
        self._step = -1
        self._progress_at = float("-inf")
        self._result = ""
        self._broken = False

    def __enter__(self) -> Self:
        """Begin to show."""
        forgive_letters(self.console.file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to put back."""

    def update(self, state: EngineState, now: float) -> None:
        """Print what is new since the last call."""
        self._now = now
        if self._start is None:
            # What stood in the state before this run took it up has been told already: it is older than this.
            self._start = now
        for incident in self._moved(state):
            for entry in self._news(incident):
                self._say(entry.at, f"{plain(incident.id, 40)} {entry.kind}: {plain(entry.text)}")
        job = job_of(state)
        if job is not None:
            self._job(state, job)

    def notice(self, text: str) -> None:
        """Tell a person one sentence."""
        self._say(self._now, f"note: {plain(text, 600)}")

    def _moved(self, state: EngineState) -> list[Incident]:
        """Incidents that may hold something new: open ones, and those that were open or not there before."""
        new = [f"inc-{number}" for number in range(self._count + 1, state.incident_count + 1)]
        ids = dict.fromkeys((*sorted(self._tracked), *new, *state.open_ids))
        self._count = state.incident_count
        self._tracked = set(state.open_ids)
        return [state.incidents[id_] for id_ in ids if id_ in state.incidents]

    def _news(self, incident: Incident) -> Iterator[TimelineEntry]:
        if not incident.timeline:
            return
        last = self._last_said.get(incident.id)
        newest = incident.timeline[-1]
        fresh: list[TimelineEntry] = []
        for entry in reversed(incident.timeline):
            if entry is last or entry == last or entry.at < (self._start or 0.0):
                break
            fresh.append(entry)
        if incident.open:
            self._last_said[incident.id] = newest
        else:
            self._last_said.pop(incident.id, None)
        yield from reversed(fresh)

    def _job(self, state: EngineState, job: JobView) -> None:
        name = plain(job.spec.id, 60)
        if job.attempt > self._attempt:
            self._attempt, self._step = job.attempt, -1
            if not any(
                i.job is not None and i.job.next_attempt == job.attempt for i in state.open_incidents()
            ):
                self._say(self._now, f"{name}: attempt {job.attempt} runs on {joined(job.nodes)}")
        if job.result and job.result != self._result:
            self._result = job.result
            self._say(self._now, _job_line(job, self._now))
        elif job.attempt_high != self._step and self._now >= self._progress_at + _PROGRESS_S:
            self._step, self._progress_at = job.attempt_high, self._now
            self._say(self._now, _job_line(job, self._now))

    def _say(self, at: float, text: str) -> None:
        if self._broken:
            return
        since = max(0.0, at - self._start) if self._start is not None else 0.0
        try:
            print(f"[{since:6.1f}s] {text}", file=self.console.file, flush=True)
        except OSError:
            self._stop_talking()

    def _stop_talking(self) -> None:
        """Whoever read us is gone (`| head`), or the disk behind us is full: the run goes on in silence."""
        self._broken = True
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.console.file.fileno())
            os.close(nowhere)


def _job_line(job: JobView, now: float) -> str:
    """`train: attempt 2, step 1,234, 103 ms a step, loss 0.31, ETTR 93.4 %`."""
    parts = [f"attempt {job.attempt}"]
    if job.attempt_high >= 0:
        parts.append(f"step {job.attempt_high:,}")
    if job.pace.steps:
        parts.append(f"{step_time(sorted(job.pace.steps)[len(job.pace.steps) // 2])} a step")
    if job.loss is not None:
        parts.append(f"loss {number(job.loss)}")
    parts.append(f"ETTR {percent(ettr(job.account))}")
    word = f"{job.result} after {duration(now - job.account.started_at)}; " if job.result else ""
    return f"{plain(job.spec.id, 60)}: {word}{', '.join(parts)}"
