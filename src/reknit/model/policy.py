"""What may be done, to how many, how often. Every number has the unit in its name; the defaults are safe alone.

The defaults are proposals drawn from what other remediation systems ship and what their users complain about:
restart budget 3/h and 10/d, back-off 30 s to 10 min, at most 10 % of a pool out of service with a floor of one node, a
brake at more than max(3, 20 %) of the pool newly quarantined in 10 min or one fault on more than 30 % of its nodes,
released by a person.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["observe", "act"]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the policy: unknown fields are refused, and no number is negative."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if isinstance(value, (int, float)) and not 0 <= value < float("inf"):
                raise ValueError(f"`{name}` is {value}, but must be a number of 0 or more")


class Actions(_Section, frozen=True, forbid_unknown_fields=True):
    """Which actions are switched on where the mode is `act`."""

    restart_job: bool = True
    stop_job: bool = True
    quarantine: bool = True


class RestartBudget(_Section, frozen=True, forbid_unknown_fields=True):
    """How often a job may be restarted before a person is asked.

    Restarts stop counting once training has advanced past the point of failure and a checkpoint has been saved there
    (or `reset_after_steps` new steps were made, where no checkpoint is known).
    """

    per_hour: int = 3
    per_day: int = 10
    reset_after_steps: int = 100
    same_signature: int = 2
    """The same failure at the same step this many times stops the job."""
    backoff_first_s: float = 30.0
    """Wait before the second restart without progress in between; the first is immediate."""
    backoff_max_s: float = 600.0


class NodeBudget(_Section, frozen=True, forbid_unknown_fields=True):
    """How many nodes may be out of service by our hand at once: max(`at_once_min`, `at_once_percent` of the pool)."""

    at_once_percent: float = 10.0
    at_once_min: int = 1


class Brake(_Section, frozen=True, forbid_unknown_fields=True):
    """When to stop quarantining altogether until a person has looked.

    Trips at more than max(`count`, `percent` of the pool) nodes newly quarantined within `window_s`, or one fault code
    on more than max(2, `same_code_percent` of the pool) nodes within it. Never stops a restart of a gang whose ranks
    have died, nor a release, nor a report.
    """

    count: int = 3
    percent: float = 20.0
    same_code_percent: float = 30.0
    window_s: float = 600.0


class Stall(_Section, frozen=True, forbid_unknown_fields=True):
    """When silence becomes a hang. Learnt per job and phase: `multiple` of what is usual, between floor and ceiling.

    The usual is the median step for steps, and the longest so far for start-up, checkpoint and evaluation. Before
    anything is known, the ceiling of the phase holds. `gap_multiple` of the longest pause that the job has survived is
    never called a hang.
    """

    multiple: float = 10.0
    gap_multiple: float = 2.0
    step_floor_s: float = 60.0
    step_ceiling_s: float = 1800.0
    startup_floor_s: float = 120.0
    startup_ceiling_s: float = 3600.0
    checkpoint_floor_s: float = 300.0
    checkpoint_ceiling_s: float = 3600.0
    evaluation_floor_s: float = 600.0
    evaluation_ceiling_s: float = 7200.0


class Slowness(_Section, frozen=True, forbid_unknown_fields=True):
    """When a rank or a gang is reported as slow. Slowness alone never moves anything.

    A rank is slow when its own work per step (time outside phases in which it waits for others) exceeds `rank_ratio`
    times the gang's median for `min_steps` steps; the gang is slow when its median step exceeds `gang_ratio` times the
    best median that it held before. It is over when the ratio falls below `clear_ratio` for `min_steps` steps.
    """

    rank_ratio: float = 1.5
    gang_ratio: float = 1.5
    clear_ratio: float = 1.2
    min_steps: int = 20
    report_again_s: float = 3600.0


class Deadlines(_Section, frozen=True, forbid_unknown_fields=True):
    """How long each waiting state may last, in seconds, before the engine does what the state's row says."""

    settle_s: float = 2.0
    """After the first sign, for the rest of the evidence to arrive."""
    capture_s: float = 15.0
    grace_s: float = 10.0
    """Between SIGTERM and SIGKILL."""
    restart_s: float = 300.0
    """From the intent to restart until every rank of the next attempt runs, the grace period not counted."""
    capacity_s: float = 3600.0
    """How long a gang may wait for nodes before the job is stopped."""
    node_action_s: float = 60.0
    retry_s: float = 30.0
    """Between two tries of a command that failed."""
    remind_s: float = 86400.0
    """How often a person is told that a node is still out of service."""


class Policy(_Section, frozen=True, forbid_unknown_fields=True):
    """Everything that an owner may decide. An empty file is a valid policy."""

    mode: Mode = "observe"
    actions: Actions = Actions()
    restarts: RestartBudget = RestartBudget()
    nodes: NodeBudget = NodeBudget()
    brake: Brake = Brake()
    stall: Stall = Stall()
    slowness: Slowness = Slowness()
    deadlines: Deadlines = Deadlines()
    keep_incidents: int = 1000
    """Closed incidents that the engine keeps in memory; the journal keeps them all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs = (
            (self.stall.step_floor_s, self.stall.step_ceiling_s, "stall.step"),
            (self.stall.startup_floor_s, self.stall.startup_ceiling_s, "stall.startup"),
            (self.stall.checkpoint_floor_s, self.stall.checkpoint_ceiling_s, "stall.checkpoint"),
            (self.stall.evaluation_floor_s, self.stall.evaluation_ceiling_s, "stall.evaluation"),
            (self.restarts.backoff_first_s, self.restarts.backoff_max_s, "restarts.backoff: first and max"),
            (self.slowness.clear_ratio, self.slowness.rank_ratio, "slowness: clear_ratio and rank_ratio"),
        )
        for name in ("retry_s", "node_action_s", "restart_s", "capture_s", "remind_s"):
            if getattr(self.deadlines, name) <= 0:
                raise ValueError(
                    f"deadlines: `{name}` is 0, but something has to be waited for: more than 0 seconds"
                )
        for low, high, name in pairs:
            if low > high:
                raise ValueError(f"{name}: the lower value {low} is above the higher one {high}")

    def may(self, action: Literal["restart_job", "stop_job", "quarantine"]) -> bool:
        """Whether this action is switched on and the mode lets it be taken."""
        return self.mode == "act" and getattr(self.actions, action)
