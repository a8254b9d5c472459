"""What progress means for the incidents: a step proves recovery, silence is a hang, a slow node is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reknit.model.commands import Notify
from reknit.model.entities import Entity
from reknit.model.incidents import JobState
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from reknit.recover import intake, job_branch, node_branch
from reknit.sense import pace, slowness

if TYPE_CHECKING:
    from collections.abc import Callable

    from reknit.model.events import ProgressSeen
    from reknit.model.policy import Policy
    from reknit.model.progress import RankProgress
    from reknit.model.state import EngineState, JobView
    from reknit.recover.desk import Desk

_BUSY = frozenset({JobState.SUSPECTED, JobState.CAPTURING, JobState.WAITING, JobState.RESTARTING, JobState.STOPPING})
"""States in which a gang's silence is no news."""
_NEARLY = 0.1
"""Ranks whose patience ends within this part of it stalled together: they wait for one another."""


def progress(desk: Desk, event: ProgressSeen, book: Callable[..., None]) -> None:
    """Take in how far the ranks of a running attempt have got. `book` settles the job's account at a time."""
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt != job.attempt or job.state != "running":
        return
    for rank, news in event.ranks.items():
        view = job.ranks.get(rank)
        if view is not None:
            _note_rank(desk, job, rank, view.progress, news)
    book(desk, job, event)
    _forgive(desk, job)
    for verdict in slowness.judge(job, desk.policy.slowness):
        _slow(desk, job, verdict)


def _note_rank(desk: Desk, job: JobView, rank: int, before: RankProgress | None, news: RankProgress) -> None:
    view = job.ranks[rank]
    if before is not None and news.step < before.step:
        return
    pace.learn(job, before, news)
    view.progress = news
    slowness.note(view, news)
    if rank not in job.had_progress:
        job.had_progress = [*job.had_progress, rank]
    if news.saved_step > job.saved_step:
        job.saved_step, job.saved_at = news.saved_step, news.saved_at
    if news.loss is not None:
        job.loss = news.loss
    due = pace.stall_deadline(job, rank, desk.policy.stall)
    if due is not None:
        desk.wakes.append(due)


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
    due = (pace.stall_deadline(job, rank, policy.stall) for rank in job.ranks)
    return [at for at in due if at is not None]


def stalls(desk: Desk, job: JobView) -> None:
    """Look for ranks that have been silent for too long."""
    if job.state != "running" or job.told_attempt == job.attempt or _in_hand(desk.state, job):
        return
    policy = desk.policy.stall
    due = {r: at for r in job.ranks if (at := pace.stall_deadline(job, r, policy)) is not None}
    if not due or min(due.values()) > desk.now:
        return
    slack = _NEARLY * pace.patience(job.pace, policy, "step")
    late = [rank for rank, at in due.items() if at <= desk.now + slack]
    live = [rank for rank, view in job.ranks.items() if not view.exited]
    job_branch.hang(desk, job, _stall_signals(desk, job, late, len(due)), _least_first(job, live))


def _in_hand(state: EngineState, job: JobView) -> bool:
    return any(
        incident.job is not None and incident.job.job == job.spec.id and incident.job.state in _BUSY
        for incident in state.open_incidents()
    )


def _least_first(job: JobView, ranks: list[int]) -> list[int]:
    def step(rank: int) -> tuple[int, int]:
        news = job.ranks[rank].progress
        return (news.step if news is not None else -1, rank)

    return sorted(ranks, key=step)


def _stall_signals(desk: Desk, job: JobView, late: list[int], known: int) -> list[Signal]:
    if len(late) * 2 >= known:
        silent = desk.now - max(job.high_at, job.attempt_started_at)
        text = f"no rank of {job.spec.id} has made a step for {silent:.1f} s; the last was {job.attempt_high}"
        entity = Entity("job", job.spec.id)
        return [_stall(desk, job, "job.stall", entity, None, text, job.attempt_high)]
    signals: list[Signal] = []
    for rank in _least_first(job, late)[:16]:
        news = job.ranks[rank].progress
        step = news.step if news is not None else -1
        text = f"rank {rank} has shown no progress since step {step} while others go on"
        signals.append(_stall(desk, job, "rank.stall", Entity("rank", str(rank)), rank, text, step))
    return signals


def _stall(
    desk: Desk, job: JobView, code: str, entity: Entity, rank: int | None, text: str, step: int
) -> Signal:
    return Signal(
        code=code,
        entity=entity,
        first_seen=desk.now,
        last_seen=desk.now,
        source="progress",
        trust=Trust.NODE_SERVICE,
        node=job.node_of(rank) if rank is not None else "",
        job=job.spec.id,
        attempt=job.attempt,
        rank=rank,
        excerpt=text,
        attributes={"step": str(step)},
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
    job_branch.report_only(desk, id_, job, "reported, not moved: slowness alone never evicts")
    desk.issue(Notify, id_, text, desk.now + desk.policy.deadlines.node_action_s, text=text)


def _no_longer_slow(desk: Desk, job: JobView, code: str, verdict: slowness.SlowVerdict) -> None:
    for incident in desk.state.open_incidents():
        mine = any(s.code == code and s.job == job.spec.id and s.node == verdict.node for s in incident.signals)
        branch = incident.branch(verdict.node) if mine else None
        if branch is not None:
            node_branch.dismiss(desk, incident, branch, f"over: {1000 * verdict.seconds:.0f} ms a step again")
