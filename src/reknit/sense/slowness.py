"""Who is slow. In a gang that works in step all ranks take the same time; the slow one is the one that never waits.

So a rank is judged by its own work: the seconds per step outside the phases in which it waits for others. Without
phases only the whole gang's step time is known, and nobody is named. Slowness is reported and never moves anything:
of 3,079 jobs only 1.7 % were slow mainly because of a bad worker (OSDI'25, arXiv 2505.05713).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from statistics import median
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reknit.model.policy import Slowness
    from reknit.model.progress import RankProgress
    from reknit.model.state import JobView, RankView

_WAITING = ("communicat", "wait", "allreduce", "all_reduce", "collective", "sync", "barrier")
"""How a word begins in the name of a phase in which a rank waits for others."""
_WAITS = re.compile(rf"(?<![a-z])(?:{'|'.join(_WAITING)})")


class SlowVerdict(msgspec.Struct, frozen=True):
    """`node` is "" where the whole gang is meant. `ratio` is how many times slower than usual; below the clear ratio,
    `slow` is false: it is over."""

    node: str
    slow: bool
    ratio: float
    seconds: float
    usual: float


def own_seconds(progress: RankProgress) -> float:
    """Seconds so far in phases that are the rank's own work."""
    own = (spent for name, spent in progress.phase_seconds.items() if not _WAITS.search(name.lower()))
    return sum(own, 0.0)


def note(view: RankView, progress: RankProgress) -> None:
    """Take one rank's news into its window."""
    window = view.window
    own = own_seconds(progress)
    if window.mark_step < 0 or progress.step < window.step:
        window.mark_step, window.mark_own = progress.step, own
    window.step, window.own = progress.step, own


def judge(job: JobView, policy: Slowness) -> list[SlowVerdict]:
    """Compare the ranks once every reporting rank has a full window, then begin a new one. Most calls give nothing."""
    views = {rank: view for rank, view in job.ranks.items() if view.progress is not None and not view.exited}
    if len(views) < 2:  # noqa: PLR2004 - one rank alone has nobody to be compared with
        return []
    windows = [view.window for view in views.values()]
    if any(window.step - window.mark_step < policy.min_steps for window in windows):
        return []
    own = {
        rank: (view.window.own - view.window.mark_own) / (view.window.step - view.window.mark_step)
        for rank, view in views.items()
    }
    for window in windows:
        window.mark_step, window.mark_own = window.step, window.own
    waits = any(
        _WAITS.search(name.lower())
        for view in views.values()
        if view.progress
        for name in view.progress.phase_seconds
    )
    return _by_node(job, own, policy) if waits else _gang(job, policy)


def _by_node(job: JobView, own: dict[int, float], policy: Slowness) -> list[SlowVerdict]:
    usual = median(own.values())
    if usual <= 0:
        return []
    by_node: dict[str, list[float]] = {}
    for rank, seconds in own.items():
        by_node.setdefault(job.node_of(rank), []).append(seconds)
    everybody = sorted(own.values())
    verdicts: list[SlowVerdict] = []
    for node in job.nodes:
        mine = by_node.get(node, [])
        if not 0 < len(mine) < len(everybody):
            continue
        others = _median_without(everybody, mine)
        ratio = min(mine) / others if others > 0 else 1.0
        if ratio >= policy.rank_ratio and node not in job.slow:
            verdicts.append(SlowVerdict(node, slow=True, ratio=ratio, seconds=min(mine), usual=others))
        elif ratio < policy.clear_ratio and node in job.slow:
            verdicts.append(SlowVerdict(node, slow=False, ratio=ratio, seconds=min(mine), usual=others))
    return verdicts


def _median_without(everybody: list[float], mine: list[float]) -> float:
    """The median of a sorted list after taking some of it away; sorted once for a gang of thousands, not per node."""
    others = everybody.copy()
    for seconds in mine:
        del others[bisect_left(others, seconds)]
    middle = len(others) // 2
    return others[middle] if len(others) % 2 else (others[middle - 1] + others[middle]) / 2


def _gang(job: JobView, policy: Slowness) -> list[SlowVerdict]:
    pace = job.pace
    if len(pace.steps) < policy.min_steps:
        return []
    present = median(pace.steps)
    if pace.best_median <= 0 or present < pace.best_median:
        pace.best_median = present
        return []
    ratio = present / pace.best_median
    if ratio >= policy.gang_ratio and "" not in job.slow:
        return [SlowVerdict("", slow=True, ratio=ratio, seconds=present, usual=pace.best_median)]
    if ratio < policy.clear_ratio and "" in job.slow:
        return [SlowVerdict("", slow=False, ratio=ratio, seconds=present, usual=pace.best_median)]
    return []
