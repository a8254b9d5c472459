"""What the model world is made of: policies that differ in what they allow, gangs, and what was told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from reknit.catalog.load import builtin
from reknit.model.policy import Actions, Brake, Deadlines, NodeBudget, Policy, RestartBudget, Stall

if TYPE_CHECKING:
    from reknit.model import commands as cmd
    from reknit.model import events as ev
    from reknit.model.entities import JobSpec, RankPlacement

CATALOG = builtin()
START = 1_700_000_000.0

_TIMES = Deadlines(restart_s=60, capacity_s=200, node_action_s=20, retry_s=10, remind_s=4000)
_STALL = Stall(
    step_floor_s=20,
    step_ceiling_s=120,
    startup_floor_s=30,
    startup_ceiling_s=200,
    checkpoint_floor_s=30,
    checkpoint_ceiling_s=200,
    evaluation_floor_s=30,
    evaluation_ceiling_s=200,
)
_TIGHT = Policy(
    mode="act",
    restarts=RestartBudget(per_hour=2, per_day=4, backoff_first_s=5, backoff_max_s=20, reset_after_steps=20),
    brake=Brake(count=1, percent=20, same_code_percent=20, window_s=300),
    stall=_STALL,
    deadlines=_TIMES,
)
POLICIES: dict[str, Policy] = {
    "act": Policy(mode="act"),
    "tight": _TIGHT,
    "generous": msgspec.structs.replace(
        _TIGHT,
        nodes=NodeBudget(at_once_percent=60, at_once_min=3),
        brake=Brake(count=4, percent=80, same_code_percent=90),
        restarts=RestartBudget(per_hour=50, per_day=50, backoff_first_s=1, backoff_max_s=2, same_signature=9),
    ),
    "observe": msgspec.structs.replace(_TIGHT, mode="observe"),
    "no restart": msgspec.structs.replace(_TIGHT, actions=Actions(restart_job=False)),
    "no stop": msgspec.structs.replace(_TIGHT, actions=Actions(stop_job=False)),
    "no quarantine": msgspec.structs.replace(_TIGHT, actions=Actions(quarantine=False)),
    "forgetful": msgspec.structs.replace(_TIGHT, keep_incidents=0),
}


class Entry(NamedTuple):
    """What was told when, what came of it, under which policy, and to how many-th engine."""

    now: float
    event: ev.AnyEvent
    commands: tuple[cmd.AnyCommand, ...]
    policy: Policy
    life: int = 0


How = Literal["done", "twice", "fails", "refused", "lost", "outcome lost"]


class Gang:
    """A job as it really is. `running` is the attempt whose processes exist, 0 where none do."""

    def __init__(self, spec: JobSpec, reports: bool) -> None:
        self.spec = spec
        self.reports = reports
        self.running = 0
        self.attempt = 0
        self.placement: tuple[RankPlacement, ...] = ()
        self.dead: dict[int, ev.RankExited] = {}
        self.hung = False
        self.step = -1
        self.saved = -1
        self.saved_at = 0.0
        self.over: ev.JobSucceeded | ev.JobAbandoned | None = None
        self.stopped = False
        self.spent: dict[int, float] = {}

    @property
    def gone(self) -> bool:
        """Whether it is over for good."""
        return self.stopped or self.over is not None

    @property
    def healthy(self) -> bool:
        """Whether it makes steps if it is let."""
        return bool(self.running) and not self.hung and not self.dead
