"""What the engine remembers between two events. Plain data: encoded, it is the journal's snapshot."""

from __future__ import annotations

from typing import Literal

import msgspec

from reknit.model.entities import JobSpec, Node, RankPlacement
from reknit.model.incidents import Incident
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.terms import Phase


class Pace(msgspec.Struct):
    """What is usual for a job, learnt from its progress. All in seconds.

    Attributes:
        steps: the last gang step durations (at most 64).
        longest_gap: the longest pause between two signs of life that the job has survived while making steps.
        startup, checkpoint, evaluation: the longest of each so far, 0 where none was seen.
        best_median: the lowest median step that held for a whole window, 0 before.
    """

    steps: list[float] = []
    longest_gap: float = 0.0
    startup: float = 0.0
    checkpoint: float = 0.0
    evaluation: float = 0.0
    best_median: float = 0.0


class WorkWindow(msgspec.Struct):
    """A rank's own work in the window that slowness is judged on: steps, and seconds outside waiting phases.

    `mark_step` and `mark_own` are where the window began.
    """

    mark_step: int = -1
    mark_own: float = 0.0
    step: int = -1
    own: float = 0.0


class RankView(msgspec.Struct):
    """One rank of the current attempt."""

    progress: RankProgress | None = None
    exited: bool = False
    ok: bool = False
    asked: bool = False
    window: WorkWindow = msgspec.field(default_factory=WorkWindow)


class JobAccount(msgspec.Struct):
    """Where a job's wall time went. The sum of `phases` is `settled_at` - `started_at`, always.

    `phase` is where the time after `settled_at` will be booked unless an event says otherwise.
    """

    started_at: float
    settled_at: float
    phase: Phase = Phase.STARTUP
    phases: dict[Phase, float] = {}
    ended: bool = False


class JobView(msgspec.Struct):
    """A gang as the engine knows it.

    Attributes:
        attempt: the highest attempt seen, 0 before the first.
        state: `running` from AttemptStarted until the attempt ends, `down` between attempts, `ended` for good.
        attempt_high: the furthest step of this attempt; `high_step` of all attempts.
        had_progress: ranks of which any attempt has reported a step.
        restarts: times of the restarts that count against the budget.
        reset_step: new steps beyond this one, with a checkpoint, clear the budget; -1 where nothing is to be cleared.
        watching_since: since when its progress is reported without a break: a silence counts only from here.
        told_attempt: the attempt whose failure was only reported, as the policy wants: it is not reported again until
            the attempt makes another step.
        slow: nodes (or "" for the whole gang) now reported as slow.
        recent: the last signals about this job, for whichever incident comes next.
    """

    spec: JobSpec
    account: JobAccount
    attempt: int = 0
    state: Literal["pending", "running", "down", "ended"] = "pending"
    result: Literal["", "succeeded", "stopped", "abandoned"] = ""
    placement: tuple[RankPlacement, ...] = ()
    ranks: dict[int, RankView] = {}
    attempt_started_at: float = 0.0
    attempt_high: int = -1
    resumed_step: int = -1
    high_step: int = -1
    high_at: float = 0.0
    saved_step: int = -1
    saved_at: float = 0.0
    loss: float | None = None
    had_progress: list[int] = []
    pace: Pace = msgspec.field(default_factory=Pace)
    restarts: list[float] = []
    reset_step: int = -1
    watching_since: float = 0.0
    told_attempt: int = 0
    slow: list[str] = []
    recent: list[Signal] = []

    def node_of(self, rank: int) -> str:
        """The node on which a rank of the current attempt runs, "" where unknown."""
        if 0 <= rank < len(self.placement) and self.placement[rank].rank == rank:
            return self.placement[
                rank
            ].node  # in rank order, as nearly always: gangs may have thousands of ranks
        return next((place.node for place in self.placement if place.rank == rank), "")

    def ranks_on(self, node: str) -> list[int]:
        """The ranks of the current attempt on a node."""
        return [place.rank for place in self.placement if place.node == node]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the current attempt, in rank order."""
        return tuple(dict.fromkeys(place.node for place in self.placement))


class BrakeState(msgspec.Struct):
    """Whether quarantines are stopped, and what was counted to find out."""

    tripped_at: float = 0.0
    why: str = ""
    quarantined: list[tuple[float, str]] = []
    """When which node was newly quarantined."""
    codes: dict[str, dict[str, float]] = {}
    """For each fault code, the nodes that showed it and when last."""

    @property
    def tripped(self) -> bool:
        """Whether it is tripped now."""
        return self.tripped_at > 0


class EngineState(msgspec.Struct):
    """Everything. `now` is the latest time seen; a clock that steps back does not turn it back."""

    now: float = 0.0
    nodes: dict[str, Node] = {}
    jobs: dict[str, JobView] = {}
    incidents: dict[str, Incident] = {}
    brake: BrakeState = msgspec.field(default_factory=BrakeState)
    cleared: dict[str, float] = {}
    """When a node was last given back: what was seen before that is no evidence against it any more."""
    recent: list[Signal] = []
    """The last signals about nodes that no incident has taken."""
    incident_count: int = 0
    open_ids: list[str] = []
    announced: float = 0.0
    """The time for which the last WaitUntil asked."""

    def open_incidents(self) -> list[Incident]:
        """The incidents that still have something to do, oldest first."""
        return [self.incidents[id_] for id_ in self.open_ids]

    def out_of_service(self) -> dict[str, str]:
        """Nodes that are, or are about to be, quarantined by us, and the incident that holds each."""
        return {
            branch.node: incident.id
            for incident in self.open_incidents()
            for branch in incident.nodes
            if branch.holds
        }


def pack(state: EngineState) -> bytes:
    """The state as a journal's snapshot keeps it. MessagePack, because JSON has no word for an infinite number."""
    return msgspec.msgpack.encode(state)


def unpack(snapshot: bytes) -> EngineState:
    """The state of a snapshot. Raises msgspec.MsgspecError where it is none, or another version's."""
    return msgspec.msgpack.decode(snapshot, type=EngineState)
