"""The loop that ties the pure rooms together: `handle(now, event) -> commands`.

The engine does no I/O, reads no clock and draws no random number: the same events at the same times give the same
commands, in production, in a replay of a journal, in a simulation and in a property test. Facts come in, orders go
out; an order's outcome comes back as a fact. What is to hold is looked at anew at each call, so that a lost, late or
repeated event changes nothing in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from reknit.account import booking
from reknit.model import events as ev
from reknit.model.commands import WaitUntil
from reknit.model.incidents import JobState, NodeState
from reknit.model.state import EngineState, JobAccount, JobView, RankView
from reknit.model.terms import Phase
from reknit.recover import intake, job_branch, job_rungs, node_branch, progress_watch
from reknit.recover.desk import Desk
from reknit.sense.process import exit_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from reknit.catalog.row import Catalog
    from reknit.model.commands import AnyCommand
    from reknit.model.incidents import Incident
    from reknit.model.policy import Policy


class Engine:
    """One engine for any number of jobs and nodes.

    Attributes:
        state: everything it remembers; give it to a new Engine to go on.
        changed: the incidents that the last call changed.
    """

    def __init__(self, catalog: Catalog, policy: Policy, state: EngineState | None = None) -> None:
        self.catalog = catalog
        self.policy = policy
        self.state = state or EngineState()
        self.changed: tuple[Incident, ...] = ()

    def handle(self, now: float, event: ev.AnyEvent) -> tuple[AnyCommand, ...]:
        """Take in one fact at a time (seconds since the epoch); gives the commands that follow from it, in order."""
        state = self.state
        state.now = max(state.now, now)
        desk = Desk(state, state.now, self.policy, self.catalog)
        _HANDLERS[type(event)](desk, event)
        if isinstance(event, ev.Tick) or (state.announced and state.now >= state.announced):
            _pass_deadlines(desk)
        node_branch.reconcile(desk)
        booking.book_moves(state, desk.moves, desk.change)
        _wake(desk)
        self.changed = tuple(desk.changed.values())
        desk.forget_old()
        return tuple(desk.commands)

    def next_deadline(self) -> float | None:
        """When a Tick is due even if nothing happens before; None where nothing waits.

        Cheap: it is asked for after every event. It may be earlier than needed, never later.
        """
        return self.state.announced or min(_deadlines(self.state, self.policy), default=None)


def _progress(desk: Desk, event: ev.ProgressSeen) -> None:
    progress_watch.progress(desk, event, booking.book_progress)


def _signal(desk: Desk, event: ev.SignalSeen) -> None:
    intake.take(desk, intake.usable(event.signal, desk.now))


def _job_submitted(desk: Desk, event: ev.JobSubmitted) -> None:
    if event.job.id not in desk.state.jobs:
        account = JobAccount(started_at=desk.now, settled_at=desk.now)
        desk.state.jobs[event.job.id] = JobView(spec=event.job, account=account)


def _brake_released(desk: Desk, event: ev.BrakeReleased) -> None:
    del event
    desk.state.brake.tripped_at = 0.0
    desk.state.brake.quarantined = []
    desk.state.brake.codes = {}
    _look_again(desk)


def _watch_resumed(desk: Desk, event: ev.WatchResumed) -> None:
    """Whatever waits for a fact gets its time anew: nobody could have reported it meanwhile."""
    del event
    for job in desk.state.jobs.values():
        job.watching_since = desk.now
    for incident in desk.state.open_incidents():
        if incident.job is not None and incident.job.open:
            job_branch.wait_anew(desk, incident.id)
        for branch in incident.nodes:
            if branch.open:
                node_branch.wait_anew(desk, incident.id, branch)


def _rank_exited(desk: Desk, event: ev.RankExited) -> None:
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt != job.attempt or job.state == "ended":
        return
    view = job.ranks.get(event.rank)
    if view is None or view.exited:
        return
    view.exited, view.ok, view.asked = True, event.code == 0, event.asked
    signal = exit_signal(event, desk.catalog, job.node_of(event.rank))
    if signal is not None and job.told_attempt != job.attempt:
        job_branch.suspect(desk, job, intake.usable(signal, desk.now))


def _attempt_started(desk: Desk, event: ev.AttemptStarted) -> None:
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt <= job.attempt or job.state == "ended":
        return
    job.attempt, job.state, job.placement = event.attempt, "running", event.placement
    job.ranks = {place.rank: RankView() for place in event.placement}
    job.attempt_started_at = desk.now
    job.attempt_high, job.resumed_step = -1, -1
    desk.recount = True
    incident = _open_for(desk, job)
    if incident is not None:
        job_branch.started(desk, incident.id, event.attempt)
    else:
        booking.left_alone(job, desk.now, Phase.START)


def _attempt_ended(desk: Desk, event: ev.AttemptEnded) -> None:
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt != job.attempt or job.state != "running":
        return
    job.state = "down"
    incident = _open_for(desk, job)
    if incident is not None:
        booking.attempt_ended(desk, job, incident)
    explained = bool(job.ranks) and all(view.ok or view.asked for view in job.ranks.values())
    if not explained and (job_branch.watched(incident) if incident else job.told_attempt != job.attempt):
        job_branch.suspect(desk, job, job_branch.vanished(desk, job))
    elif incident is None:
        booking.left_alone(job, desk.now, Phase.REQUEUE)


def _job_succeeded(desk: Desk, event: ev.JobSucceeded) -> None:
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt != job.attempt or job.state == "ended":
        return
    _end_job(desk, job, "succeeded")


def _job_abandoned(desk: Desk, event: ev.JobAbandoned) -> None:
    job = desk.state.jobs.get(event.job)
    if job is None or event.attempt < job.attempt or job.state == "ended":
        return
    _end_job(desk, job, "abandoned")


def _end_job(desk: Desk, job: JobView, result: Literal["succeeded", "stopped", "abandoned"]) -> None:
    incident = _open_for(desk, job)
    if incident is not None:
        job_branch.ended(desk, incident.id, succeeded=result == "succeeded")
    booking.book_moves(desk.state, desk.moves, desk.change)
    desk.moves.clear()
    booking.job_ended(job, desk.now)
    job.state, job.result = "ended", result
    for other in desk.state.open_incidents():
        for branch in other.nodes:
            if branch.open and desk.catalog.get(branch.code).sense == "progress" and _watches(other, job):
                node_branch.dismiss(desk, other, branch, "the job has ended")
    job.slow = []


def _watches(incident: Incident, job: JobView) -> bool:
    return any(signal.job == job.spec.id for signal in incident.signals)


def _outcome(desk: Desk, event: ev.CommandDone | ev.CommandFailed) -> None:
    incident = desk.state.incidents.get(event.command.partition("/")[0])
    if incident is None or not incident.open:
        return
    branch = incident.job
    if branch is not None and branch.open and branch.command == event.command:
        if isinstance(event, ev.CommandFailed):
            job_branch.failed(desk, incident.id, event.detail, retry=event.retry)
        elif branch.state == JobState.CAPTURING:
            job_branch.captured(desk, incident.id, event.path)
        elif branch.state == JobState.STOPPING:
            _end_job(desk, desk.job(branch.job), "stopped")
        return
    for node in incident.nodes:
        if node.open and node.command == event.command:
            if isinstance(event, ev.CommandFailed):
                node_branch.failed(desk, incident, node, event.detail)
            else:
                node_branch.done(desk, incident, node)
                _look_again(desk)


def _node_seen(desk: Desk, event: ev.NodeSeen) -> None:
    known = desk.state.nodes.get(event.node.name)
    if known == event.node:
        return
    desk.state.nodes[event.node.name] = event.node
    if known is not None and known.boot_id != event.node.boot_id:
        node_branch.booted(desk, event.node.name, event.node.boot_id)
    _look_again(desk)


def _node_gone(desk: Desk, event: ev.NodeGone) -> None:
    name = event.node
    desk.state.cleared.pop(event.node, None)
    desk.state.nodes.pop(name, None)
    node_branch.let_jobs_use(desk, name)
    for incident in desk.state.open_incidents():
        branch = incident.branch(name)
        if branch is not None:
            node_branch.dismiss(desk, incident, branch, f"{name} no longer exists")


def _person_releases(desk: Desk, event: ev.NodeReleaseRequested) -> None:
    who = event.by or "a person"
    node_branch.let_jobs_use(desk, event.node)
    for incident in desk.state.open_incidents():
        branch = incident.branch(event.node)
        if branch is not None:
            node_branch.release(desk, incident, branch, f"{who} wants it back in service")
    _look_again(desk)


def _look_again(desk: Desk) -> None:
    """Whoever waits for capacity or budget need not wait for the clock when the world has changed."""
    for incident in desk.state.open_incidents():
        if (
            incident.job is not None
            and incident.job.state == JobState.WAITING
            and "node" in incident.job.waiting_for
        ):
            job_rungs.reconsider(desk, incident.id)
        for branch in incident.nodes:
            if branch.state == NodeState.WANTED and branch.waiting_for:
                desk.move_node(incident.id, branch.node, NodeState.WANTED, desk.now)


def _open_for(desk: Desk, job: JobView) -> Incident | None:
    for incident in desk.state.open_incidents():
        if incident.job is not None and incident.job.open and incident.job.job == job.spec.id:
            return incident
    return None


def _pass_deadlines(desk: Desk) -> None:
    desk.state.announced = 0.0
    for incident in desk.state.open_incidents():
        if incident.job is not None and incident.job.open and incident.job.deadline <= desk.now:
            job_branch.overdue(desk, incident.id)
        for branch in desk.state.incidents[incident.id].nodes:
            if branch.open and branch.deadline <= desk.now and branch.state != NodeState.WANTED:
                node_branch.overdue(desk, desk.state.incidents[incident.id], branch)
    for job in list(desk.state.jobs.values()):
        progress_watch.stalls(desk, job)


def _deadlines(state: EngineState, policy: Policy) -> list[float]:
    times = [
        incident.job.deadline for incident in state.open_incidents() if incident.job and incident.job.open
    ]
    times += [
        branch.deadline for incident in state.open_incidents() for branch in incident.nodes if branch.open
    ]
    for job in state.jobs.values():
        times += progress_watch.stall_deadlines(state, job, policy)
    return times


def _wake(desk: Desk) -> None:
    """Ask for a Tick where something is due sooner than was asked before."""
    state = desk.state
    everything = desk.recount or not state.announced
    due = min(_deadlines(state, desk.policy) if everything else desk.wakes, default=None)
    if due is None:
        return
    due = max(due, desk.now)
    if state.announced and due >= state.announced:
        return
    state.announced = max(due, desk.now + 1e-3)
    reason = "the next deadline"
    desk.commands.append(WaitUntil(id="", incident="", reason=reason, deadline=state.announced))


def _tick(desk: Desk, event: ev.Tick) -> None:
    """Deadlines are looked at after every event anyway."""
    del desk, event


_HANDLERS: dict[type[ev.Event], Callable[[Desk, Any], None]] = {
    ev.NodeSeen: _node_seen,
    ev.NodeGone: _node_gone,
    ev.JobSubmitted: _job_submitted,
    ev.AttemptStarted: _attempt_started,
    ev.RankExited: _rank_exited,
    ev.AttemptEnded: _attempt_ended,
    ev.JobSucceeded: _job_succeeded,
    ev.JobAbandoned: _job_abandoned,
    ev.SignalSeen: _signal,
    ev.ProgressSeen: _progress,
    ev.CommandDone: _outcome,
    ev.CommandFailed: _outcome,
    ev.NodeReleaseRequested: _person_releases,
    ev.BrakeReleased: _brake_released,
    ev.WatchResumed: _watch_resumed,
    ev.Tick: _tick,
}
