"""What an orchestrator owes the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reknit.model.commands import AnyCommand
    from reknit.model.events import AnyEvent, CommandDone, CommandFailed


class Emit(Protocol):
    """How an orchestrator reports a fact.

    `cursors` are positions in the sources that the event was read from (bytes of a log, by name): they are written
    down in the same transaction as the event, so that after a crash reading goes on where the last recorded event
    stood. An orchestrator may report positions without an event (`event` None).
    """

    def __call__(self, event: AnyEvent | None, cursors: Mapping[str, int] | None = None) -> None:
        """Hand over one fact. Never blocks; order is kept."""
        ...


class Orchestrator(Protocol):
    """Observes the world and carries out commands. Facts go out by `emit`, never as return values."""

    async def start(self, emit: Emit, cursors: Mapping[str, int]) -> None:
        """Begin to observe: report what exists as levels (nodes, jobs, attempts, ranks that ended meanwhile), adopt
        what still runs, and go on reading each source at its cursor. Returns when the first look is complete."""
        ...

    async def execute(self, command: AnyCommand) -> CommandDone | CommandFailed:
        """Carry out a command, or find that it has been carried out already: the same id twice acts once.

        Looks at the world right before it acts. Raises nothing: what goes wrong is a CommandFailed.
        """
        ...

    async def close(self) -> None:
        """Stop observing. What runs goes on running."""
        ...
