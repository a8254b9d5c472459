"""What progress means for the incidents: a step proves recovery, silence is a hang, a slow node is reported."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from msgspec.structs import replace

from reknit.model.commands import Notify
from reknit.model.entities import Entity
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from reknit.recover import intake, job_branch, job_rungs, node_branch
from reknit.recover.transitions import BUSY
from reknit.sense import pace, slowness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reknit.model.events import ProgressSeen
    from reknit.model.policy import Policy, Stall
    from reknit.model.progress import RankProgress
    from reknit.model.state import EngineState, JobView
    from reknit.recover.desk import Desk

_LONGEST_S = 3.2e9
"""No step and no phase lasts a century."""
_ROUNDED = 1e-5
"""A sign's time is kept as text of microseconds."""
_NEARLY = 0.1
"""Ranks whose patience ends within this part of it stalled together: they wait for one another."""


def progress(desk: Desk, event: ProgressSeen, book: Callable[..., None]) -> None:
    """Take in how far the ranks of a running attempt have got. `book` settles the job's account at a time."""
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt != job.attempt or job.state != "running":
        return
    known = set(job.had_progress)
    ranks = {rank: _possible(news, desk.now) for rank, news in event.ranks.items() if rank in job.ranks}
    for rank, news in ranks.items():
        _note_rank(job, rank, known, news)
    desk.wakes += _due(job, desk.policy.stall, _longest_silent(job, ranks)).values()
    book(desk, job, ranks.values())
    _forgive(desk, job)
    for verdict in slowness.judge(job, desk.policy.slowness):
        _slow(desk, job, verdict)


def _possible(news: RankProgress, now: float) -> RankProgress:
    """The news without times that are yet to come and without numbers that are none: they would be waited for."""
    times = (news.step_at, news.saved_at, news.loaded_at, news.phase_at, news.alive_at)
    seconds = sum(news.durations) + sum(news.phase_seconds.values())
    if min(times) >= 0.0 and max(times) <= now and isfinite(sum(times) + seconds):
        return news
    return replace(
        news,
        step_at=intake.possible(news.step_at, now),
        saved_at=intake.possible(news.saved_at, now),
        loaded_at=intake.possible(news.loaded_at, now),
        phase_at=intake.possible(news.phase_at, now),
        alive_at=intake.possible(news.alive_at, now),
        durations=tuple(d for d in news.durations if 0.0 < d < _LONGEST_S),
        phase_seconds={name: s for name, s in news.phase_seconds.items() if 0.0 <= s < _LONGEST_S},
    )


def _note_rank(job: JobView, rank: int, known: set[int], news: RankProgress) -> None:
    view = job.ranks[rank]
    before = view.progress
    if before is not None and news.step < before.step:
        return
    pace.learn(job, before, news)
    view.progress = news
    slowness.note(view, news)
    if news.step >= 0 and rank not in known:
        known.add(rank)
        job.had_progress.append(rank)
    if news.saved_step > job.saved_step:
        job.saved_step, job.saved_at = news.saved_step, news.saved_at
    if news.loss is not None:
        job.loss = news.loss


def _forgive(desk: Desk, job: JobView) -> None:
    """Lasting progress clears the restart budget."""
    if job.reset_step < 0 or not job.restarts:
        return
    saved = job.saved_step > job.reset_step
    if saved or job.high_step >= job.reset_step + desk.policy.restarts.reset_after_steps:
        job.restarts, job.reset_step = [], -1


def stall_deadlines(state: EngineState, job: JobView, policy: Policy) -> list[float]:
    """When each rank's silence becomes a hang, where that would be news."""
    if job.state != "running" or job.told_attempt == job.attempt or _in_hand(state, job):
        return []
    return list(_due(job, policy.stall, _longest_silent(job, job.ranks)).values())


def _due(job: JobView, policy: Stall, ranks: Iterable[int]) -> dict[int, float]:
    """When the silence of each of these ranks becomes a hang."""
    return {rank: at for rank in ranks if (at := pace.stall_deadline(job, rank, policy)) is not None}


def _expected(job: JobView, ranks: Iterable[int]) -> dict[int, float]:
    """Of these ranks the ones whose silence would be news, with the last sign that each has shown: those that run,
    have ever reported a step (or, where no rank has, any sign), and whose present silence was not looked at yet."""
    quiet: dict[int | None, float] = {}
    for signal in job.recent:
        if signal.attempt == job.attempt and intake.is_stall(signal):
            at = float(signal.attributes["last_sign"]) + _ROUNDED
            quiet[signal.rank] = max(at, quiet.get(signal.rank, -1.0))
    known = set(job.had_progress)
    signs: dict[int, float] = {}
    for rank in ranks:
        view = job.ranks[rank]
        told = rank in known or (view.progress is not None and job.high_step < 0)
        if not view.exited and told:
            sign = pace.last_sign(view.progress, job.attempt_started_at)
            if not quiet or sign > max(quiet.get(None, -1.0), quiet.get(rank, -1.0)):
                signs[rank] = sign
    return signs


def _longest_silent(job: JobView, ranks: Iterable[int]) -> list[int]:
    """For each thing that ranks may be doing, the rank that shows no sign for longest: its patience ends first."""
    first: dict[pace.Activity, tuple[float, int]] = {}
    for rank, sign in _expected(job, ranks).items():
        news = job.ranks[rank].progress
        what = "startup" if news is None or news.step < 0 else "step"
        if news is not None and news.phase:
            what = pace.activity(news)
        if what not in first or sign < first[what][0]:
            first[what] = (sign, rank)
    return [rank for _, rank in first.values()]


def stalls(desk: Desk, job: JobView) -> None:
    """Look for ranks that have been silent for too long."""
    if job.state != "running" or job.told_attempt == job.attempt or _in_hand(desk.state, job):
        return
    policy = desk.policy.stall
    first = _due(job, policy, _longest_silent(job, job.ranks))
    if not first or min(first.values()) > desk.now:
        return
    due = _due(job, policy, _expected(job, job.ranks))
    slack = _NEARLY * pace.patience(job.pace, policy, "step")
    late = [rank for rank, at in due.items() if at <= desk.now + slack]
    live = [rank for rank, view in job.ranks.items() if not view.exited]
    signals = _stall_signals(desk, job, late, len(due))
    job_branch.hang(desk, job, signals, _least_first(job, live))
    for signal in signals:
        intake.remember(desk, signal)


def _in_hand(state: EngineState, job: JobView) -> bool:
    return any(
        incident.job is not None and incident.job.job == job.spec.id and incident.job.state in BUSY
        for incident in state.open_incidents()
    )


def _least_first(job: JobView, ranks: list[int]) -> list[int]:
    def step(rank: int) -> tuple[int, int]:
        news = job.ranks[rank].progress
        return (news.step if news is not None else -1, rank)

    return sorted(ranks, key=step)


def _stall_signals(desk: Desk, job: JobView, late: list[int], known: int) -> list[Signal]:
    if len(late) == known:
        silent = desk.now - max(job.high_at, job.attempt_started_at)
        text = f"no rank of {job.spec.id} has made a step for {silent:.1f} s; the last was {job.attempt_high}"
        signs = (pace.last_sign(job.ranks[rank].progress, job.attempt_started_at) for rank in late)
        return [_stall(desk, job, None, text, max(signs))]
    signals: list[Signal] = []
    for rank in _least_first(job, late)[:16]:
        news = job.ranks[rank].progress
        step = news.step if news is not None else -1
        text = f"rank {rank} has shown no progress since step {step} while others go on"
        sign = pace.last_sign(news, job.attempt_started_at)
        signals.append(_stall(desk, job, rank, text, sign))
    return signals


def _stall(desk: Desk, job: JobView, rank: int | None, text: str, sign: float) -> Signal:
    """The silence of one rank, or of the whole gang where `rank` is None."""
    return Signal(
        code="job.stall" if rank is None else "rank.stall",
        entity=Entity("job", job.spec.id) if rank is None else Entity("rank", str(rank)),
        first_seen=desk.now,
        last_seen=desk.now,
        source="progress",
        trust=Trust.NODE_SERVICE,
        node=job.node_of(rank) if rank is not None else "",
        job=job.spec.id,
        attempt=job.attempt,
        rank=rank,
        excerpt=text,
        attributes={"last_sign": f"{sign:.6f}"},
    )


def _slow(desk: Desk, job: JobView, verdict: slowness.SlowVerdict) -> None:
    code = "node.slow" if verdict.node else "job.slow"
    where = verdict.node or f"the gang {job.spec.id}"
    if not verdict.slow:
        job.slow = [node for node in job.slow if node != verdict.node]
        _no_longer_slow(desk, job, code, verdict)
        return
    job.slow = [*job.slow, verdict.node]
    text = (
        f"{where} takes {1000 * verdict.seconds:.0f} ms a step where {1000 * verdict.usual:.0f} ms are usual "
        f"({verdict.ratio:.1f}×)"
    )
    entity = Entity("node", verdict.node) if verdict.node else Entity("job", job.spec.id)
    signal = Signal(
        code=code,
        entity=entity,
        first_seen=desk.now,
        last_seen=desk.now,
        source="progress",
        trust=Trust.NODE_SERVICE,
        node=verdict.node,
        job=job.spec.id,
        attempt=job.attempt,
        excerpt=text,
        attributes={"ratio": f"{verdict.ratio:.2f}"},
    )
    id_ = desk.open(text).id
    intake.attach(desk, id_, signal)
    node_branch.watch(desk, id_, verdict.node, code, text)
    job_rungs.report_only(desk, id_, job, "reported, not moved: slowness alone never evicts")
    desk.issue(Notify, id_, text, desk.now + desk.policy.deadlines.node_action_s, text=text)


def _no_longer_slow(desk: Desk, job: JobView, code: str, verdict: slowness.SlowVerdict) -> None:
    for incident in desk.state.open_incidents():
        mine = any(
            s.code == code and s.job == job.spec.id and s.node == verdict.node for s in incident.signals
        )
        branch = incident.branch(verdict.node) if mine else None
        if branch is not None:
            node_branch.dismiss(desk, incident, branch, f"over: {1000 * verdict.seconds:.0f} ms a step again")
