"""An incident: everything from the first signal to the closed account."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

import msgspec

from reknit.model.diagnosis import Diagnosis
from reknit.model.signals import Signal
from reknit.model.terms import Phase


class JobState(StrEnum):
    """Where the job branch of an incident stands."""

    SUSPECTED = "suspected"
    CAPTURING = "capturing"
    WAITING = "waiting"
    RESTARTING = "restarting"
    RELOADING = "reloading"
    RECOMPUTING = "recomputing"
    STOPPING = "stopping"
    RECOVERED = "recovered"
    STOPPED = "stopped"
    DISMISSED = "dismissed"


class NodeState(StrEnum):
    """Where a node branch of an incident stands."""

    WATCHED = "watched"
    WANTED = "wanted"
    QUARANTINING = "quarantining"
    QUARANTINED = "quarantined"
    RELEASING = "releasing"
    RELEASED = "released"
    DISMISSED = "dismissed"


class TimelineEntry(msgspec.Struct, frozen=True):
    """One line of an incident's story."""

    at: float
    text: str
    kind: Literal["signal", "diagnosis", "decision", "action", "outcome", "state"] = "state"


class JobBranch(msgspec.Struct, frozen=True):
    """The critical path: get the job training again.

    Attributes:
        attempt: the attempt that failed last; `next_attempt` the one that is to replace it, 0 where none is planned.
        failed_step: the furthest step completed before the failure, -1 where unknown: recovery means passing it.
        deadline: when the present state has lasted too long.
        stepping: how many ranks were making steps when it failed: so many have to pass `failed_step`.
        command: the id of the command whose outcome is awaited, "" where none.
        avoid: nodes that the next attempt must not use.
        moved_off: nodes that a restart of this incident has left, whatever has become of them since.
        restarts: restarts made for this incident so far.
        signatures: the failure of each round as (signature, step), newest last: what tells a loop from bad luck.
        tries: how often the present command was given.
        waiting_for: what a waiting branch waits for, in words.
    """

    job: str
    state: JobState
    since: float
    deadline: float
    attempt: int
    next_attempt: int = 0
    failed_step: int = -1
    stepping: int = 1
    command: str = ""
    avoid: tuple[str, ...] = ()
    moved_off: tuple[str, ...] = ()
    restarts: int = 0
    signatures: tuple[tuple[str, int], ...] = ()
    tries: int = 0
    waiting_for: str = ""

    @property
    def open(self) -> bool:
        """Whether this branch still has something to do."""
        return self.state not in (JobState.RECOVERED, JobState.STOPPED, JobState.DISMISSED)


class NodeBranch(msgspec.Struct, frozen=True):
    """The background: keep work off a node until it is repaired or cleared."""

    node: str
    state: NodeState
    since: float
    deadline: float
    command: str = ""
    reason: str = ""
    code: str = ""
    boot_id: str = ""
    tries: int = 0
    waiting_for: str = ""

    @property
    def open(self) -> bool:
        """Whether this branch still has something to do."""
        return self.state not in (NodeState.RELEASED, NodeState.DISMISSED)

    @property
    def holds(self) -> bool:
        """Whether the node is, or is about to be, out of service by our hand."""
        return self.state in (NodeState.QUARANTINING, NodeState.QUARANTINED, NodeState.RELEASING)


class Bill(msgspec.Struct, frozen=True):
    """What an incident cost the job: seconds a phase, GPUs that stood or repeated work meanwhile, steps made again."""

    phases: dict[Phase, float] = {}
    gpus: int = 0
    steps_redone: int = 0
    checkpoint_downtime_s: float = 0.0
    """From the last checkpoint saved before the failure to that checkpoint loaded again; 0 where either is unknown."""

    @property
    def seconds(self) -> float:
        """Wall seconds lost."""
        return sum(self.phases.values())

    @property
    def gpu_hours(self) -> float:
        """GPU-hours lost."""
        return self.seconds * self.gpus / 3600.0


class Incident(msgspec.Struct, frozen=True):
    """One thing that went wrong, with everything that was seen, thought and done about it.

    `title` is one line for lists. `evidence` are paths of captured artefacts, relative to the state directory.
    """

    id: str
    opened_at: float
    title: str = ""
    signals: tuple[Signal, ...] = ()
    diagnosis: Diagnosis | None = None
    history: tuple[Diagnosis, ...] = ()
    job: JobBranch | None = None
    nodes: tuple[NodeBranch, ...] = ()
    timeline: tuple[TimelineEntry, ...] = ()
    evidence: tuple[str, ...] = ()
    bill: Bill = Bill()
    decision: str = ""
    """The last decision's sentence."""
    commands: int = 0
    """How many commands were given for this incident: the next one's number."""
    closed_at: float | None = None

    @property
    def open(self) -> bool:
        """Whether any branch still has something to do."""
        return self.closed_at is None

    def branch(self, node: str) -> NodeBranch | None:
        """The open branch of a node, if there is one."""
        return next((branch for branch in self.nodes if branch.node == node and branch.open), None)
