"""Which phase a moment belongs to: the states of an incident's job branch, translated into the ledger's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from reknit.account.ledger import charge, settle
from reknit.model.incidents import JobState
from reknit.model.terms import LOST_PHASES, Phase
from reknit.recover import job_branch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from reknit.model.incidents import Incident
    from reknit.model.progress import RankProgress
    from reknit.model.state import EngineState, JobView
    from reknit.recover.desk import Desk, Move

_BEFORE: dict[JobState, Phase] = {JobState.SUSPECTED: Phase.DETECT, JobState.CAPTURING: Phase.DETECT}
"""What the time before a first sign of trouble was, whatever it was taken for until then."""

_AFTER: dict[JobState, Phase] = {
    JobState.SUSPECTED: Phase.DIAGNOSE,
    JobState.CAPTURING: Phase.DIAGNOSE,
    JobState.WAITING: Phase.DECIDE,
    JobState.RESTARTING: Phase.STOP,
    JobState.STOPPING: Phase.STOP,
    JobState.RELOADING: Phase.START,
    JobState.RECOMPUTING: Phase.RECOMPUTE,
    JobState.RECOVERED: Phase.PRODUCTIVE,
    JobState.STOPPED: Phase.ENDED,
}
"""What the time from then on is, until something else happens."""

_WORKING = frozenset({JobState.RELOADING, JobState.RECOMPUTING})


def book_moves(state: EngineState, moves: Iterable[Move], change: Callable[..., Any]) -> None:
    """Settle the accounts of the jobs whose branches have moved."""
    for move in moves:
        job = state.jobs[move.job]
        first = move.old is None or move.old in _WORKING
        phase = _BEFORE.get(move.new) if first else None
        _book(state, job, move.incident, move.at, phase, change)
        if move.new == JobState.DISMISSED:
            job.account.phase = _after_dismissal(job)
        elif not (move.old == move.new or (move.new == JobState.RESTARTING and job.state == "down")):
            job.account.phase = _AFTER[move.new]
        elif move.new == JobState.RESTARTING:
            job.account.phase = Phase.REQUEUE


def _after_dismissal(job: JobView) -> Phase:
    """Nothing was done: either nothing had to be, or nothing may be and the job goes on losing time."""
    if job.told_attempt == job.attempt:
        return Phase.DECIDE
    return Phase.RECOMPUTE if job.attempt_high < job.high_step else Phase.PRODUCTIVE


def left_alone(job: JobView, now: float, phase: Phase) -> None:
    """An attempt ended or began without an incident: the job is somebody else's to restart, and its time is lost."""
    settle(job.account, now)
    if job.account.phase != Phase.STARTUP:
        job.account.phase = phase


def attempt_ended(desk: Desk, job: JobView, incident: Incident) -> None:
    """Nothing of the failed attempt is left: from now on the gang waits for its next placement."""
    book_moves(desk.state, desk.moves, desk.change)
    desk.moves.clear()
    if job.account.phase == Phase.STOP:
        _book(desk.state, job, incident.id, desk.now, None, desk.change)
        job.account.phase = Phase.REQUEUE


def job_ended(job: JobView, now: float) -> None:
    """The job is over: nothing is booked any more."""
    settle(job.account, now)
    job.account.ended = True


def book_progress(desk: Desk, job: JobView, ranks: Collection[RankProgress]) -> None:
    """Book up to the latest step, and move the incident that waits for it."""
    book_moves(desk.state, desk.moves, desk.change)
    desk.moves.clear()
    news = list(ranks)
    incident = _open_incident(desk.state, job)
    if incident is not None and job.account.phase in (Phase.START, Phase.RELOAD):
        _book_reload(desk, job, incident, news)
    step, at = max(((n.step, n.step_at) for n in news), default=(-1, 0.0))
    returning = incident is not None and incident.job is not None and incident.job.state in _WORKING
    if step < 0 or (step <= job.attempt_high and not returning):
        return
    if job.attempt_high < 0 and job.resumed_step < 0:
        loaded = max((n.loaded_step for n in news), default=-1)
        job.resumed_step = loaded if loaded >= 0 else step - 1
    job.attempt_high = max(job.attempt_high, step)
    _book_step(desk, job, incident, step, min(max(at, job.account.settled_at), desk.now))
    if job.told_attempt and not any(view.exited and not view.ok for view in job.ranks.values()):
        job.told_attempt = 0


def _open_incident(state: EngineState, job: JobView) -> Incident | None:
    """The incident that has this job in hand."""
    for incident in state.open_incidents():
        if incident.job is not None and incident.job.open and incident.job.job == job.spec.id:
            return incident
    return None


def _book_step(desk: Desk, job: JobView, incident: Incident | None, step: int, at: float) -> None:
    """The furthest step of this attempt was made at `at`: productive where no attempt was there before."""
    branch = incident.job if incident is not None else None
    new_ground = step > job.high_step
    if incident is not None and branch is not None and branch.state in _WORKING:
        job_branch.stepped(desk, incident.id, step, at)
        book_moves(desk.state, desk.moves, desk.change)
        desk.moves.clear()
        healed = desk.state.incidents[incident.id].job
        if healed is not None and healed.state == JobState.RECOVERED:
            _finish_bill(desk, job, incident.id, branch.failed_step)
    elif new_ground and (branch is None or branch.state == JobState.CAPTURING):
        settle(job.account, at)
        if branch is None:
            job.account.phase = Phase.PRODUCTIVE
    elif branch is None and job.account.phase in LOST_PHASES:
        settle(job.account, at)
        job.account.phase = Phase.RECOMPUTE
    if new_ground:
        job.high_step, job.high_at = step, at


def _book_reload(desk: Desk, job: JobView, incident: Incident, news: list[RankProgress]) -> None:
    alive = [n.alive_at for n in news if n.alive_at > 0]
    if job.account.phase == Phase.START and alive:
        _book(desk.state, job, incident.id, min(*alive, desk.now), None, desk.change)
        job.account.phase = Phase.RELOAD
    loaded = [(n.loaded_at, n.loaded_step) for n in news if n.loaded_step >= 0]
    if job.account.phase == Phase.RELOAD and loaded and job.resumed_step < 0:
        at, job.resumed_step = max(loaded)
        _book(desk.state, job, incident.id, min(at, desk.now), None, desk.change)
        job.account.phase = Phase.RECOMPUTE
        if job.resumed_step == job.saved_step and job.saved_at:
            bill = desk.state.incidents[incident.id].bill
            desk.change(incident.id, bill=replace(bill, checkpoint_downtime_s=max(0.0, at - job.saved_at)))


def _finish_bill(desk: Desk, job: JobView, id_: str, failed_step: int) -> None:
    redone = max(0, failed_step - max(job.resumed_step, -1)) if failed_step >= 0 else 0
    bill = desk.state.incidents[id_].bill
    desk.change(id_, bill=replace(bill, steps_redone=bill.steps_redone + redone))


def _book(
    state: EngineState, job: JobView, id_: str, until: float, phase: Phase | None, change: Callable[..., Any]
) -> None:
    into, seconds = settle(job.account, until, phase)
    incident = state.incidents.get(id_)
    if incident is not None and seconds > 0:
        bill = charge(incident.bill, into, seconds, job.spec.gpus)
        if bill is not incident.bill:
            change(id_, bill=bill)
