"""How far a rank has got."""

from __future__ import annotations

import msgspec


class RankProgress(msgspec.Struct, frozen=True):
    """One rank's progress as last read, from its progress file or from its log.

    Attributes:
        step: the last step completed, -1 before the first.
        step_at: when that step was completed (seconds since the epoch, the node's clock).
        loss: the last loss printed, None where unknown.
        durations: seconds of the steps completed since the last report, oldest first (at most 64).
        saved_step, saved_at: the last checkpoint saved, -1 where none.
        loaded_step, loaded_at: the checkpoint that this attempt loaded, -1 where none.
        phase, phase_at: what the script says that it is doing now (`warmup`, `checkpoint`, `evaluation`, ...), "" if
            it does not say, and since when.
        phase_seconds: seconds spent in each named phase so far in this attempt.
        alive_at: when the program first showed a sign of life, 0 if it has not.
    """

    step: int = -1
    step_at: float = 0.0
    loss: float | None = None
    durations: tuple[float, ...] = ()
    saved_step: int = -1
    saved_at: float = 0.0
    loaded_step: int = -1
    loaded_at: float = 0.0
    phase: str = ""
    phase_at: float = 0.0
    phase_seconds: dict[str, float] = {}
    alive_at: float = 0.0
