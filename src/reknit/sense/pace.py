"""What is usual for a job, and when silence becomes a hang.

The deadline is learnt, never one fixed number: a step that takes 40 ms and one that takes 90 s need different patience,
and so do a first compilation, a checkpoint and an evaluation.
"""

from __future__ import annotations

import re
from statistics import median
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reknit.model.policy import Stall
    from reknit.model.progress import RankProgress
    from reknit.model.signals import Signal
    from reknit.model.state import JobView, Pace

Activity = Literal["startup", "step", "checkpoint", "evaluation"]

KEEP_STEPS = 64
"""Enough for a median that one odd step does not move, few enough to follow a change within a minute of training."""

_WORDS: tuple[tuple[Activity, tuple[str, ...]], ...] = (
    ("evaluation", ("eval", "valid", "test")),
    ("checkpoint", ("checkpoint", "ckpt", "save", "saving")),
    ("startup", ("start", "warm", "init", "compil", "restor", "setup")),
)
"""What a phase is, by how one of its words begins; before the first step every phase is part of starting up."""
_WORD = re.compile(r"[a-z]+")


def activity(progress: RankProgress | None) -> Activity:
    """What a rank is doing, from the name of its phase; before the first step it is starting up."""
    if progress is None:
        return "startup"
    if progress.step < 0:
        return "startup"
    words = _WORD.findall(progress.phase.lower())
    for kind, beginnings in _WORDS:
        if any(word.startswith(beginnings) for word in words):
            return kind
    return "step"


def last_sign(progress: RankProgress | None, attempt_started_at: float) -> float:
    """When a rank last showed that it is getting on."""
    if progress is None:
        return attempt_started_at
    return max(
        attempt_started_at,
        progress.step_at,
        progress.phase_at,
        progress.alive_at,
        progress.saved_at,
        progress.loaded_at,
    )


def patience(pace: Pace, policy: Stall, what: Activity) -> float:
    """How many seconds of silence are still usual for this activity."""
    if what == "step":
        if not pace.steps:
            return policy.step_ceiling_s
        usual = policy.multiple * median(pace.steps)
        bounded = min(max(usual, policy.step_floor_s), policy.step_ceiling_s)
        return max(bounded, policy.gap_multiple * pace.longest_gap)
    longest, floor, ceiling = {
        "startup": (pace.startup, policy.startup_floor_s, policy.startup_ceiling_s),
        "checkpoint": (pace.checkpoint, policy.checkpoint_floor_s, policy.checkpoint_ceiling_s),
        "evaluation": (pace.evaluation, policy.evaluation_floor_s, policy.evaluation_ceiling_s),
    }[what]
    if longest <= 0:
        return ceiling
    return min(max(policy.multiple * longest, floor), ceiling)


def stall_deadline(job: JobView, rank: int, policy: Stall) -> float | None:
    """When this rank's silence becomes a hang; None where nothing is known of its progress, or it has ended."""
    view = job.ranks.get(rank)
    if view is None or view.exited:
        return None
    if rank not in job.had_progress and (view.progress is None or job.high_step >= 0):
        return None  # a rank that never told a step is not silent where others do: it may only be one that prints none
    what = activity(view.progress)
    if what == "step" and view.progress is not None and view.progress.step < 0:
        what = "startup"
    since = max(last_sign(view.progress, job.attempt_started_at), job.watching_since)
    return since + patience(job.pace, policy, what)


def went_on(job: JobView, stalls: Sequence[Signal]) -> bool:
    """Whether every rank that was silent has shown a sign since; for a whole gang, whether any has."""
    for stall in stalls:
        before = float(stall.attributes["last_sign"]) + 1e-5
        ranks = [stall.rank] if stall.rank is not None else list(job.ranks)
        signs = (last_sign(v.progress, 0.0) for r in ranks if (v := job.ranks.get(r)) is not None)
        if max(signs, default=0.0) <= before:
            return False
    return bool(stalls)


def learn(job: JobView, before: RankProgress | None, after: RankProgress) -> None:
    """Take one rank's news into what is usual for its job."""
    pace = job.pace
    pace.steps = [*pace.steps, *(d for d in after.durations if d > 0)][-KEEP_STEPS:]
    if before is None or before.step < 0:
        if after.step >= 0 and after.step_at > 0:
            pace.startup = max(pace.startup, after.step_at - job.attempt_started_at)
        return
    gap = last_sign(after, 0.0) - last_sign(before, 0.0)
    what = activity(before)
    if what == "step":
        if after.step > before.step:
            steps = after.step - before.step
            longest = max(max(after.durations, default=0.0), gap / steps)
            pace.longest_gap = max(pace.longest_gap, min(longest, gap))
    elif after.phase != before.phase and before.phase_at > 0:
        spent = max(0.0, after.phase_at - before.phase_at)
        if what == "checkpoint":
            pace.checkpoint = max(pace.checkpoint, spent)
        elif what == "evaluation":
            pace.evaluation = max(pace.evaluation, spent)
