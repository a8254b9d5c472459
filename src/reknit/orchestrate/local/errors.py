"""What can go wrong with a run on this machine, as sentences for people."""

from __future__ import annotations


class LocalError(Exception):
    """The base: one sentence that says what, where and what to do."""


class StateError(LocalError):
    """The state directory cannot be used."""


class StateInUse(StateError):
    """Another live run holds the state directory. `pid` is that run's, 0 where it is not known."""

    def __init__(self, message: str, pid: int) -> None:
        super().__init__(message)
        self.pid = pid


class StateMismatch(StateError):
    """The state directory belongs to another run."""


class InventoryError(LocalError):
    """The inventory file, or what it says about the nodes, cannot be used."""


class SourceError(LocalError):
    """A log that was asked for cannot be read."""


class NoRoom(LocalError):
    """Too few nodes for an attempt. May pass: a node may be released."""


class StillAlive(LocalError):
    """Processes of an attempt do not go away, not even by SIGKILL. May pass."""


def why(error: OSError) -> str:
    """The operating system's reason, lower case at the start, to end a sentence with."""
    text = error.strerror or str(error) or type(error).__name__
    return text[:1].lower() + text[1:]
