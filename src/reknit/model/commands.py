"""What goes out of the engine. A command is written down before it is carried out, and is idempotent by its id."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from reknit.model.tags import snake_case
from reknit.model.terms import Grade


class Command(msgspec.Struct, frozen=True, tag_field="kind", tag=snake_case):
    """The base of all commands.

    Attributes:
        id: unique and reproducible: the same events give the same ids.
        incident: the open incident on whose behalf it is done.
        reason: the sentence that says why, shown wherever the action is shown.
        deadline: when the engine stops waiting for the outcome (seconds since the epoch).
    """

    grade: ClassVar[Grade] = Grade.FREE

    id: str
    incident: str
    reason: str
    deadline: float


class RestartGang(Command, frozen=True):
    """End attempt `attempt` of the job, whole, and start attempt `next_attempt`.

    `avoid` are nodes that the next attempt must not use; where it is empty the gang restarts in place. `grace_s` is
    the time between SIGTERM and SIGKILL.
    """

    grade: ClassVar[Grade] = Grade.DISTURBING

    job: str
    attempt: int
    next_attempt: int
    avoid: tuple[str, ...] = ()
    grace_s: float = 10.0


class StopJob(Command, frozen=True):
    """End the job for good: a restart would only burn GPU-hours. A person has to act."""

    grade: ClassVar[Grade] = Grade.DISTURBING

    job: str
    attempt: int
    grace_s: float = 10.0


class Quarantine(Command, frozen=True):
    """Keep new work off a node. Running ranks are not touched."""

    grade: ClassVar[Grade] = Grade.REVERSIBLE

    node: str


class Release(Command, frozen=True):
    """Take our own quarantine off a node."""

    node: str


class CaptureEvidence(Command, frozen=True):
    """Look at the ranks while they are still there: process state, CPU time, stacks. Nothing is changed."""

    job: str
    attempt: int
    ranks: tuple[int, ...]


class Notify(Command, frozen=True):
    """Tell a person."""

    text: str


class WaitUntil(Command, frozen=True):
    """Nothing to do before `deadline`: send a Tick then. Has no outcome and leaves nothing behind."""


AnyCommand = RestartGang | StopJob | Quarantine | Release | CaptureEvidence | Notify | WaitUntil
