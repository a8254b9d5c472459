"""The critical path: from a gang's failure to its first new step.

Every state waits for something and has a deadline; this module says what happens when it comes, and when it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from reknit.decide.budget import DAY_S
from reknit.decide.ladder import Decision, Situation, allowed, decide
from reknit.diagnose.evidence import Evidence
from reknit.diagnose.verdict import diagnose
from reknit.model.commands import CaptureEvidence, Notify, RestartGang, StopJob
from reknit.model.entities import Entity
from reknit.model.incidents import Incident, JobBranch, JobState, NodeState
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from reknit.recover import intake
from reknit.sense import pace
from reknit.sense.pace import patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reknit.model.diagnosis import Diagnosis
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


def conclude(desk: Desk, id_: str) -> None:
    """The evidence is in: diagnose and decide."""
    incident = desk.state.incidents[id_]
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    diagnosis = diagnose(_evidence(desk, incident, branch, job))
    history = (*incident.history, incident.diagnosis) if incident.diagnosis else incident.history
    desk.change(id_, diagnosis=diagnosis, history=history[-_ROUNDS_KEEP:], title=_title(diagnosis))
    desk.say(
        id_, "diagnosis", f"{diagnosis.failure_class}, {diagnosis.confidence:.0%} sure: {diagnosis.reason}"
    )
    rounds = (*branch.signatures, (diagnosis.signature, _failing_step(job, diagnosis)))
    _avoid(desk, id_, diagnosis, rounds)
    _choose(desk, id_, diagnosis)


def _failing_step(job: JobView, diagnosis: Diagnosis) -> int:
    """The last step before the failure: the blamed rank's own where one is blamed, for ranks need not be in step. An
    attempt that died before its first step stood where it had loaded its checkpoint."""
    blamed = diagnosis.culprit
    named = blamed.id if blamed is not None and blamed.kind == "rank" else ""
    view = next((view for rank, view in job.ranks.items() if str(rank) == named), None)
    if view is not None and view.progress is not None:
        return max(view.progress.step, view.progress.loaded_step)
    return max(job.attempt_high, job.resumed_step)


def report_only(desk: Desk, id_: str, job: JobView, decision: str) -> None:
    """Diagnose something that asks for no action, and say so."""
    incident = desk.state.incidents[id_]
    diagnosis = diagnose(Evidence(incident.signals, desk.catalog, job.placement, job.spec.id, job.spec.ranks))
    desk.change(id_, diagnosis=diagnosis, decision=decision)
    desk.say(
        id_, "diagnosis", f"{diagnosis.failure_class}, {diagnosis.confidence:.0%} sure: {diagnosis.reason}"
    )
    desk.say(id_, "decision", decision)


def reconsider(desk: Desk, id_: str) -> None:
    """A waiting branch looks again."""
    diagnosis = desk.state.incidents[id_].diagnosis
    if diagnosis is not None:
        _choose(desk, id_, diagnosis)


def _avoid(desk: Desk, id_: str, diagnosis: Diagnosis, rounds: tuple[tuple[str, int], ...]) -> None:
    branch = desk.job_branch(id_)
    avoid = tuple(dict.fromkeys((*branch.avoid, *diagnosis.suspects)))
    desk.change(id_, job=replace(branch, avoid=avoid, signatures=rounds[-_ROUNDS_KEEP:]))


def _choose(desk: Desk, id_: str, diagnosis: Diagnosis) -> None:
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    here = _situation(desk, id_, branch, job, diagnosis)
    decision = decide(diagnosis, branch, job, desk.policy, here)
    if decision.reason != desk.state.incidents[id_].decision:
        desk.change(id_, decision=decision.reason)
        desk.say(id_, "decision", decision.reason)
    {"restart": _restart, "wait": _wait, "stop": _stop, "observe": _observe}[decision.rung](
        desk, id_, decision
    )


def _restart(desk: Desk, id_: str, decision: Decision) -> None:
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    times = desk.policy.deadlines
    deadline = desk.now + times.grace_s + times.restart_s
    fresh = branch.next_attempt <= job.attempt
    next_attempt = job.attempt + 1
    reason = f"{decision.reason}: {desk.state.incidents[id_].title}"
    command = desk.issue(
        RestartGang,
        id_,
        reason,
        deadline,
        job=job.spec.id,
        attempt=job.attempt,
        next_attempt=next_attempt,
        avoid=decision.avoid,
        grace_s=times.grace_s,
    )
    if fresh:
        job.restarts = [*(at for at in job.restarts if at > desk.now - DAY_S), desk.now]
        # Some count the checkpoint of a step as the next one: what is saved now must not count as progress later.
        job.reset_step = max(job.high_step, job.saved_step, 0)
    desk.move_job(
        id_,
        JobState.RESTARTING,
        deadline,
        command=command,
        next_attempt=next_attempt,
        restarts=branch.restarts + (1 if fresh else 0),
        moved_off=tuple(dict.fromkeys((*branch.moved_off, *(n for n in job.nodes if n in decision.avoid)))),
        tries=1 if fresh else branch.tries + 1,
        waiting_for="",
    )
    desk.say(id_, "action", f"attempt {next_attempt}: {decision.reason}")


def _wait(desk: Desk, id_: str, decision: Decision) -> None:
    branch = desk.job_branch(id_)
    if branch.waiting_for != decision.waiting_for:
        _tell(desk, id_, decision.reason)
    desk.move_job(id_, JobState.WAITING, decision.until, command="", waiting_for=decision.waiting_for)


def _stop(desk: Desk, id_: str, decision: Decision) -> None:
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    again = branch.state == JobState.STOPPING
    grace = desk.policy.deadlines.grace_s
    deadline = desk.now + grace + desk.policy.deadlines.node_action_s
    command = desk.issue(
        StopJob, id_, decision.reason, deadline, job=job.spec.id, attempt=job.attempt, grace_s=grace
    )
    desk.move_job(id_, JobState.STOPPING, deadline, command=command, tries=1, waiting_for="")
    desk.say(id_, "action", f"stop the job: {decision.reason}")
    if again:
        return
    advice = desk.catalog.get(desk.state.incidents[id_].diagnosis.code).advice  # type: ignore[union-attr]
    _tell(desk, id_, f"{job.spec.id} was stopped: {decision.reason}" + (f" {advice}" if advice else ""))


def _observe(desk: Desk, id_: str, decision: Decision) -> None:
    job = desk.job(desk.job_branch(id_).job)
    job.told_attempt = job.attempt
    _tell(desk, id_, decision.reason)
    desk.move_job(id_, JobState.DISMISSED, desk.now, command="")
    desk.close_if_done(id_)


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
    conclude(desk, id_)


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
    desk.move_job(id_, JobState.RELOADING, desk.now + wait, command="", next_attempt=attempt, waiting_for="")
    desk.say(id_, "outcome", f"attempt {attempt} runs on {', '.join(job.nodes)}")


def stepped(desk: Desk, id_: str, step: int, at: float) -> None:
    """The new attempt made a step: on the way back, or past the point of failure."""
    branch = desk.job_branch(id_)
    job = desk.job(branch.job)
    if step > branch.failed_step:
        if branch.state == JobState.RELOADING and branch.failed_step >= 0:
            desk.say(id_, "outcome", f"first step of attempt {job.attempt}")
        recovered(desk, id_, f"step {step} is new: training advances again", at)
    elif branch.state == JobState.RELOADING:
        stall = desk.now + desk.policy.stall.startup_ceiling_s
        desk.move_job(id_, JobState.RECOMPUTING, stall, at=at)
        desk.say(id_, "outcome", f"steps again from {step}; {branch.failed_step - step} to make up")


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
            _give_up(desk, id_, f"the gang could not be restarted: {detail}")
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
            conclude(desk, id_)
        case JobState.CAPTURING:
            desk.say(id_, "outcome", "the evidence was not there in time; going on without it")
            captured(desk, id_, "")
        case JobState.WAITING:
            reconsider(desk, id_)
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
            _carry_on(desk, id_, Decision("stop", desk.state.incidents[id_].decision))
        case _:
            return


def _ended_unseen(desk: Desk, id_: str, job: JobView) -> None:
    """The attempt that was to heal the job has ended, and nothing was heard of how."""
    if job.ranks and all(view.ok for view in job.ranks.values()):
        recovered(desk, id_, "every rank has ended with status 0", desk.now)
    else:
        suspect(desk, job, vanished(desk, job))


def _carry_on(desk: Desk, id_: str, decision: Decision) -> None:
    """Do what was decided before, if the policy (which may have been changed since) still lets it be done."""
    decision = allowed(decision, desk.policy)
    {"restart": _restart, "stop": _stop, "observe": _observe}[decision.rung](desk, id_, decision)


def _restart_overdue(desk: Desk, id_: str, branch: JobBranch) -> None:
    if branch.tries >= _TRIES:
        _give_up(desk, id_, f"attempt {branch.next_attempt} did not run after {branch.tries} tries")
        return
    desk.say(id_, "outcome", f"attempt {branch.next_attempt} does not run yet: given again")
    avoid = _avoided(branch, *_unavailable(desk))
    _carry_on(desk, id_, Decision("restart", desk.state.incidents[id_].decision, avoid))


def _give_up(desk: Desk, id_: str, why: str) -> None:
    desk.change(id_, decision=why)
    _carry_on(desk, id_, Decision("stop", why))


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
            command=command,
        ),
    )
    intake.collect_recent(desk, id_, job)


def _again(job: JobView, branch: JobBranch) -> dict[str, object]:
    """What a branch must know when the attempt that was to heal it fails, too."""
    return {"attempt": job.attempt, "failed_step": max(branch.failed_step, job.high_step), "tries": 0}


def _evidence(desk: Desk, incident: Incident, branch: JobBranch, job: JobView) -> Evidence:
    nodes = set(job.nodes)
    signals = tuple(
        s
        for s in incident.signals
        if ((s.job, s.attempt) == (job.spec.id, job.attempt) if s.job else s.node in nodes or not s.node)
    )
    return Evidence(signals, desk.catalog, job.placement, job.spec.id, job.spec.ranks, branch.signatures)


def _situation(desk: Desk, id_: str, branch: JobBranch, job: JobView, diagnosis: Diagnosis) -> Situation:
    out, wanted = _unavailable(desk)
    usable = tuple(
        name
        for name, node in desk.state.nodes.items()
        if node.pool == job.spec.pool and name not in out and name not in wanted and name not in branch.avoid
    )
    row = desk.catalog.get(diagnosis.code)
    waited = desk.now - branch.since if branch.state == JobState.WAITING else 0.0
    return Situation(
        now=desk.now,
        incident=id_,
        usable=usable,
        avoid=_avoided(branch, out, wanted),
        waited_s=waited,
        final=row.sense == "process" and row.action.stops_the_job,
    )


def _unavailable(desk: Desk) -> tuple[set[str], set[str]]:
    """Nodes that are out of service by our hand, and nodes that should be."""
    wanted = {b.node for i in desk.state.open_incidents() for b in i.nodes if b.state == NodeState.WANTED}
    return set(desk.state.out_of_service()), wanted


def _avoided(branch: JobBranch, out: set[str], wanted: set[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*branch.avoid, *sorted(out), *sorted(wanted))))


def _tell(desk: Desk, id_: str, text: str) -> None:
    desk.issue(Notify, id_, text, desk.now + desk.policy.deadlines.node_action_s, text=text)


def _title(diagnosis: Diagnosis) -> str:
    return diagnosis.reason.partition(";")[0]
