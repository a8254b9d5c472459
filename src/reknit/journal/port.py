"""What a journal owes the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from reknit.model.events import AnyEvent

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reknit.model.commands import AnyCommand
    from reknit.model.incidents import Incident


class JournalError(Exception):
    """The journal cannot be used; the message says what, where and what to do."""


class JournalFull(JournalError):
    """Nothing can be written at the moment (disk full, quota, somebody else holds it). May pass."""


class Recorded(msgspec.Struct, frozen=True):
    """One event as it was written down: when it was handled (seconds since the epoch) and what it was."""

    seq: int
    at: float
    event: AnyEvent


class Journal(Protocol):
    """Append-only memory of one engine. One writer."""

    def record(
        self,
        at: float,
        event: AnyEvent,
        commands: Sequence[AnyCommand],
        incidents: Iterable[Incident],
        cursors: Mapping[str, int],
    ) -> int:
        """Write an event, the commands that it led to, the incidents that it changed and the source positions, in one
        transaction; durable (fsync) before it returns wherever a command has an effect outside. Gives the event's
        number.

        A CommandDone or CommandFailed event closes the intent of its command in the same transaction.
        Raises JournalFull where nothing can be written now.
        """
        ...

    def save_cursors(self, cursors: Mapping[str, int]) -> None:
        """Write source positions that came without an event."""
        ...

    def snapshot(self, seq: int, state: bytes) -> None:
        """Keep the engine's state as it is after event `seq`; events up to it need not be read again."""
        ...

    def load(self) -> tuple[bytes | None, list[Recorded]]:
        """The last snapshot and the events since."""
        ...

    def open_commands(self) -> list[AnyCommand]:
        """Intents without an outcome, oldest first. WaitUntil is never among them."""
        ...

    def cursors(self) -> dict[str, int]:
        """All source positions."""
        ...

    def incidents(self) -> list[Incident]:
        """Every incident ever, oldest first."""
        ...

    def close(self) -> None:
        """Flush and let go."""
        ...
