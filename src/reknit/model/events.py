"""What comes into the engine. Every event is a fact about the world; none is an order.

Events are delivered at least once, in any order and late; the engine must end in the same place.
"""

from __future__ import annotations

import msgspec

from reknit.model.entities import JobSpec, Node, RankPlacement
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.tags import snake_case


class Event(msgspec.Struct, frozen=True, tag_field="kind", tag=snake_case):
    """The base of all events; `kind` tells them apart in the journal."""


class NodeSeen(Event, frozen=True):
    """A node exists, with these devices and this boot. Levels: seen again means nothing new unless it changed."""

    node: Node


class NodeGone(Event, frozen=True):
    """A node no longer exists."""

    node: str


class JobSubmitted(Event, frozen=True):
    """A gang exists and wants to run."""

    job: JobSpec


class AttemptStarted(Event, frozen=True):
    """The processes of an attempt were started at these places."""

    job: str
    attempt: int
    placement: tuple[RankPlacement, ...]


class RankExited(Event, frozen=True):
    """A rank's main process ended. One of `code` and `signal` is set; neither where nobody could see it end.

    `asked` is true where Reknit itself had told it to end, so that it is no failure.
    """

    job: str
    attempt: int
    rank: int
    at: float
    code: int | None = None
    signal: int | None = None
    asked: bool = False


class AttemptEnded(Event, frozen=True):
    """No process of the attempt is left, descendants included."""

    job: str
    attempt: int


class JobSucceeded(Event, frozen=True):
    """Every rank ended with status 0."""

    job: str
    attempt: int


class JobAbandoned(Event, frozen=True):
    """The job is over by its owner's hand, or because its launcher gave it up: nothing is to be recovered."""

    job: str
    attempt: int
    why: str = ""


class SignalSeen(Event, frozen=True):
    """A sense has made a signal of some raw evidence."""

    signal: Signal


class ProgressSeen(Event, frozen=True):
    """How far the ranks of an attempt have got; ranks of which nothing is new may be left out."""

    job: str
    attempt: int
    ranks: dict[int, RankProgress]


class CommandDone(Event, frozen=True):
    """A command was carried out. `detail` is one line for people; `path` is where captured evidence lies."""

    command: str
    detail: str = ""
    path: str = ""


class CommandFailed(Event, frozen=True):
    """A command could not be carried out. `retry` says whether the same command may succeed later."""

    command: str
    detail: str
    retry: bool = True


class NodeReleaseRequested(Event, frozen=True):
    """A person wants a node back in service."""

    node: str
    by: str = ""


class BrakeReleased(Event, frozen=True):
    """A person releases a tripped brake."""

    by: str = ""


class WatchResumed(Event, frozen=True):
    """Whoever reports the facts was blind until now (it has just been started): silence before says nothing."""


class Tick(Event, frozen=True):
    """Time has passed; deadlines are looked at."""


AnyEvent = (
    NodeSeen
    | NodeGone
    | JobSubmitted
    | AttemptStarted
    | RankExited
    | AttemptEnded
    | JobSucceeded
    | JobAbandoned
    | SignalSeen
    | ProgressSeen
    | CommandDone
    | CommandFailed
    | NodeReleaseRequested
    | BrakeReleased
    | WatchResumed
    | Tick
)
