"""The critical path: from a gang's failure to its first new step.

Every state waits for something and has a deadline; this module says what happens when it comes, and when it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from reknit.decide.ladder import Decision
from reknit.model.commands import CaptureEvidence
from reknit.model.entities import Entity
from reknit.model.incidents import Incident, JobBranch, JobState
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from reknit.recover import intake, job_rungs
from reknit.sense import pace
from reknit.sense.pace import patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reknit.model.state import JobView
    from reknit.recover.desk import Desk

_TRIES = 3
_CAPTURE_RANKS = 64
_ROUNDS_KEEP = 32
"""Diagnoses and signatures that an incident keeps: more than any budget allows."""
_FREE_TO_RETRY = frozenset({JobState.RELOADING, JobState.RECOMPUTING})


def suspect(desk: Desk, job: JobView, signal: Signal) -> str:
    """A rank failed: file it, and wait a moment for the rest of the evidence. Gives the incident."""
    id_ = _incident(desk, job, signal)
    branch = desk.state.incidents[id_].job
    deadline = desk.now + desk.policy.deadlines.settle_s
    if branch is None:
        _begin(desk, id_, job, JobState.SUSPECTED, deadline)
    elif branch.state in _FREE_TO_RETRY or branch.state == JobState.CAPTURING:
        desk.move_job(id_, JobState.SUSPECTED, deadline, **_again(job, branch))
    return id_


def watched(incident: Incident) -> bool:
    """Whether this incident's gang is believed to run, so that its end is news."""
    branch = incident.job
    return branch is not None and (branch.state in _FREE_TO_RETRY or branch.state == JobState.CAPTURING)


def vanished(desk: Desk, job: JobView) -> Signal:
    """A gang that ended without anybody seeing how."""
    return Signal(
        code="process.vanished",
        entity=Entity("job", job.spec.id),
        first_seen=desk.now,
        last_seen=desk.now,
        source="process",
        trust=Trust.NODE_SERVICE,
        job=job.spec.id,
        attempt=job.attempt,
        excerpt="the gang's processes are gone and nobody saw how they ended",
    )


def hang(desk: Desk, job: JobView, signals: Sequence[Signal], ranks: Sequence[int]) -> None:
    """A gang does not get on: look at its ranks while they are still there."""
    id_ = _incident(desk, job, signals[0])
    for signal in signals[1:]:
        intake.attach(desk, id_, signal)
    branch = desk.state.incidents[id_].job
    deadline = desk.now + desk.policy.deadlines.capture_s
    if branch is not None and branch.state not in _FREE_TO_RETRY:
        return
    reason = f"look at {len(ranks)} ranks of {job.spec.id} before anything is ended: {signals[0].excerpt}"
    command = desk.issue(
        CaptureEvidence,
        id_,
        reason,
        deadline,
        job=job.spec.id,
        attempt=job.attempt,
        ranks=tuple(ranks[:_CAPTURE_RANKS]),
    )
    if branch is None:
        _begin(desk, id_, job, JobState.CAPTURING, deadline, command)
    else:
        desk.move_job(id_, JobState.CAPTURING, deadline, command=command, **_again(job, branch))
    desk.say(id_, "action", reason)


def captured(desk: Desk, id_: str, path: str) -> None:
    """The ranks were looked at, or could not be: go on with what there is."""
    incident = desk.state.incidents[id_]
    if path:
        desk.change(id_, evidence=tuple(dict.fromkeys((*incident.evidence, path))))
        desk.say(id_, "outcome", f"evidence kept in {path}")
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    stalls = [s for s in incident.signals if intake.is_stall(s) and s.attempt == job.attempt]
    if pace.went_on(job, stalls):
        desk.move_job(id_, JobState.DISMISSED, desk.now, command="")
        desk.say(id_, "state", "training went on by itself: it was slow, not hung; nothing was done")
        desk.close_if_done(id_)
        return
    for signal in intake.behind(desk, job):
        intake.attach(desk, id_, signal)
    job_rungs.conclude(desk, id_)


def started(desk: Desk, id_: str, attempt: int) -> None:
    """The processes of the next attempt run."""
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    if branch.state == JobState.STOPPING and attempt == branch.next_attempt:
        desk.say(id_, "outcome", f"attempt {attempt} runs after all, too late: the job is being stopped")
        return
    if attempt != branch.next_attempt:
        desk.say(id_, "outcome", f"attempt {attempt} was started by somebody else: adopted")
    known = bool(job.had_progress)
    wait = patience(job.pace, desk.policy.stall, "startup") if known else desk.policy.stall.startup_floor_s
    desk.move_job(
        id_,
        JobState.RELOADING,
        desk.now + wait,
        command="",
        next_attempt=attempt,
        waiting_for="",
        # What the old attempt printed last may have been read after its death.
        failed_step=max(branch.failed_step, job.high_step),
    )
    desk.say(id_, "outcome", f"attempt {attempt} runs on {', '.join(job.nodes)}")


def stepped(desk: Desk, id_: str, step: int, at: float) -> None:
    """The new attempt made a step: on the way back, or past the point of failure.

    It is past it when as many ranks are as made steps before: where ranks do not wait for one another, the one that
    failed may be behind the others.
    """
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    wanted = max(1, min(branch.stepping, len(job.ranks)))
    if step > branch.failed_step and _stepping(job, branch.failed_step) >= wanted:
        if branch.state == JobState.RELOADING and branch.failed_step >= 0:
            desk.say(id_, "outcome", f"first step of attempt {job.attempt}")
        recovered(desk, id_, f"step {step} is new: training advances again", at)
    elif branch.state == JobState.RELOADING:
        stall = desk.now + desk.policy.stall.startup_ceiling_s
        desk.move_job(id_, JobState.RECOMPUTING, stall, at=at)
        to_go = max(0, branch.failed_step - step)
        desk.say(id_, "outcome", f"steps again from {step}; {to_go} to make up")


def recovered(desk: Desk, id_: str, why: str, at: float) -> None:
    """The job branch has done its work."""
    desk.move_job(id_, JobState.RECOVERED, desk.now, at=at, command="")
    desk.say(id_, "state", why)
    desk.close_if_done(id_)


def ended(desk: Desk, id_: str, *, succeeded: bool) -> None:
    """The job is over while its branch was still open."""
    branch = desk.job_branch(id_)
    if succeeded and branch.state in (*_FREE_TO_RETRY, JobState.RESTARTING):
        if branch.state == JobState.RESTARTING:
            desk.move_job(id_, JobState.DISMISSED, desk.now, command="")
            desk.close_if_done(id_)
        else:
            recovered(desk, id_, "the job has finished", desk.now)
    elif succeeded:
        desk.move_job(
            id_, JobState.DISMISSED if branch.state != JobState.STOPPING else JobState.STOPPED, desk.now
        )
        desk.say(id_, "state", "the job has finished by itself")
        desk.close_if_done(id_)
    else:
        desk.move_job(id_, JobState.STOPPED, desk.now, command="")
        desk.say(id_, "outcome", "the job is stopped")
        desk.close_if_done(id_)


def failed(desk: Desk, id_: str, detail: str, *, retry: bool) -> None:
    """A command for the job could not be carried out."""
    branch = desk.job_branch(id_)
    desk.say(id_, "outcome", detail)
    if branch.state == JobState.CAPTURING:
        captured(desk, id_, "")
    elif branch.state == JobState.RESTARTING:
        if not retry or branch.tries >= _TRIES * 40:
            job_rungs.give_up(desk, id_, f"the gang could not be restarted: {detail}")
            return
        later = desk.now + min(desk.policy.deadlines.retry_s, 2.0 ** min(branch.tries, 10))
        desk.move_job(id_, JobState.WAITING, later, command="", waiting_for=detail or "the next try")
    elif branch.state == JobState.STOPPING:
        desk.move_job(id_, JobState.STOPPING, desk.now + desk.policy.deadlines.retry_s, command="")


def wait_anew(desk: Desk, id_: str) -> None:
    """Give a branch that waits for a fact its full time from now on."""
    branch = desk.job_branch(id_)
    times = desk.policy.deadlines
    patience_s = {
        JobState.SUSPECTED: times.settle_s,
        JobState.CAPTURING: times.capture_s,
        JobState.RESTARTING: times.grace_s + times.restart_s,
        JobState.STOPPING: times.grace_s + times.node_action_s,
    }.get(branch.state)
    if patience_s is not None:
        deadline = max(branch.deadline, desk.now + patience_s)
        desk.change(id_, job=replace(branch, deadline=deadline))
        desk.wakes.append(deadline)


def overdue(desk: Desk, id_: str) -> None:
    """The branch's deadline has passed: what happens then, for each state that waits."""
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    match branch.state:
        case JobState.SUSPECTED:
            job_rungs.conclude(desk, id_)
        case JobState.CAPTURING:
            desk.say(id_, "outcome", "the evidence was not there in time; going on without it")
            captured(desk, id_, "")
        case JobState.WAITING:
            job_rungs.reconsider(desk, id_)
        case JobState.RESTARTING:
            _restart_overdue(desk, id_, branch)
        case JobState.RELOADING | JobState.RECOMPUTING if job.state != "running":
            _ended_unseen(desk, id_, job)
        case JobState.RELOADING:
            if not job.ranks.keys().isdisjoint(job.had_progress):
                again = desk.now + patience(job.pace, desk.policy.stall, "startup")
                desk.move_job(id_, JobState.RELOADING, again)
            else:
                seconds = desk.now - branch.since
                text = f"the ranks have run for {seconds:.0f} s; no step is known, so this is all the proof"
                recovered(desk, id_, text, desk.now)
        case JobState.RECOMPUTING:
            # Silence would have been called a hang before: it is only a long way back.
            desk.move_job(id_, JobState.RECOMPUTING, desk.now + desk.policy.stall.startup_ceiling_s)
        case JobState.STOPPING:
            job_rungs.carry_on(desk, id_, Decision("stop", desk.state.incidents[id_].decision))
        case _:
            return


def _ended_unseen(desk: Desk, id_: str, job: JobView) -> None:
    """The attempt that was to heal the job has ended, and nothing was heard of how."""
    if job.ranks and all(view.ok for view in job.ranks.values()):
        recovered(desk, id_, "every rank has ended with status 0", desk.now)
    else:
        suspect(desk, job, vanished(desk, job))


def _restart_overdue(desk: Desk, id_: str, branch: JobBranch) -> None:
    if branch.tries >= _TRIES:
        job_rungs.give_up(desk, id_, f"attempt {branch.next_attempt} did not run after {branch.tries} tries")
        return
    desk.say(id_, "outcome", f"attempt {branch.next_attempt} does not run yet: given again")
    avoid = job_rungs.avoided(branch, *job_rungs.unavailable(desk))
    job_rungs.carry_on(desk, id_, Decision("restart", desk.state.incidents[id_].decision, avoid))


def _incident(desk: Desk, job: JobView, signal: Signal) -> str:
    known = intake.incident_for_job(desk, job, signal.node)
    if known is not None:
        intake.attach(desk, known.id, signal)
        return known.id
    row = desk.catalog.get(signal.code)
    id_ = desk.open(row.title).id
    intake.attach(desk, id_, signal)
    return id_


def _begin(desk: Desk, id_: str, job: JobView, state: JobState, deadline: float, command: str = "") -> None:
    desk.begin_job(
        id_,
        JobBranch(
            job=job.spec.id,
            state=state,
            since=desk.now,
            deadline=deadline,
            attempt=job.attempt,
            failed_step=job.high_step,
            stepping=_stepping(job, -1),
            command=command,
        ),
    )
    intake.collect_recent(desk, id_, job)


def _again(job: JobView, branch: JobBranch) -> dict[str, object]:
    """What a branch must know when the attempt that was to heal it fails, too."""
    return {
        "attempt": job.attempt,
        "failed_step": max(branch.failed_step, job.high_step),
        "stepping": max(branch.stepping, _stepping(job, -1)),
        "tries": 0,
    }


def _stepping(job: JobView, beyond: int) -> int:
    """How many ranks of the present attempt have passed a step."""
    return sum(1 for view in job.ranks.values() if view.progress is not None and view.progress.step > beyond)
