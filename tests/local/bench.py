"""Real gangs of tiny processes, and what tests ask about them."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any, TypeVar

from reknit.model.entities import JobSpec
from reknit.orchestrate.local import processes
from reknit.orchestrate.local.orchestrator import LocalOrchestrator
from reknit.orchestrate.local.settings import LocalSettings
from reknit.orchestrate.local.state_dir import mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from reknit.catalog.row import Catalog
    from reknit.model.events import AnyEvent

E = TypeVar("E")
PATIENCE_S = 20.0


class Recorder:
    """An `emit` that remembers: events in order, and the position of each source as it was last reported."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.cursors: dict[str, int] = {}

    def __call__(self, event: AnyEvent | None, cursors: Mapping[str, int] | None = None) -> None:
        if event is not None:
            self.events.append(event)
        self.cursors.update(cursors or {})

    def of(self, kind: type[E]) -> list[E]:
        """Events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait for so many of one kind."""
        await eventually(lambda: len(self.of(kind)) >= count, f"{count} {kind.__name__}, got {self.events}")
        return self.of(kind)


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, f"waited in vain for {what}"
        await asyncio.sleep(0.01)


def python(code: str) -> tuple[str, ...]:
    """A command that runs a few lines of Python quickly."""
    return (sys.executable, "-I", "-S", "-c", code)


def shell(script: str) -> tuple[str, ...]:
    """A command that runs a few lines of shell."""
    return ("sh", "-c", script)


class Bench:
    """Makes orchestrators that share one state directory."""

    def __init__(self, state: Path, catalog: Catalog) -> None:
        self.state = state
        self.notices: list[str] = []
        self._catalog = catalog

    def settings(self, command: tuple[str, ...], **changes: Any) -> LocalSettings:
        """Two nodes with one rank each, unless said otherwise."""
        nodes = changes.pop("nodes", 2)
        ranks_per_node = changes.pop("ranks_per_node", 1)
        values: dict[str, Any] = {
            "state": self.state,
            "job": JobSpec(id="job", nodes=nodes, ranks_per_node=ranks_per_node),
            "command": command,
            "catalog": self._catalog,
            "log_poll_s": 0.02,
            "progress_poll_s": 0.05,
            "grace_s": 5.0,
            "notice": self.notices.append,
        }
        return LocalSettings(**(values | changes))

    def open(self, command: tuple[str, ...], **changes: Any) -> LocalOrchestrator:
        """An orchestrator that has not been started."""
        return LocalOrchestrator.open(self.settings(command, **changes))

    def rank(self, attempt: int, rank: int) -> Path:
        """A rank's folder."""
        return self.state / "attempts" / str(attempt) / f"rank-{rank}"

    def alive(self) -> list[processes.Stat]:
        """Every living process that belongs to this state directory, shims included."""
        found = processes.marked(mark_of(self.state.resolve()))
        return [stat for who in found if (stat := processes.stat(who.pid)) is not None]


def run(story: Any) -> None:
    """Run a coroutine, with a limit far beyond what it needs."""

    async def limited() -> None:
        await asyncio.wait_for(story, 60)

    asyncio.run(limited())
