"""What is done about a failure: from the evidence to a verdict, to a rung of the ladder, to a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from reknit.decide.budget import DAY_S
from reknit.decide.ladder import Decision, Situation, allowed, decide
from reknit.diagnose.evidence import Evidence
from reknit.diagnose.verdict import diagnose
from reknit.model.commands import Notify, RestartGang, StopJob
from reknit.model.incidents import Incident, JobBranch, JobState, NodeState

if TYPE_CHECKING:
    from reknit.model.diagnosis import Diagnosis
    from reknit.model.state import JobView
    from reknit.recover.desk import Desk

_ROUNDS_KEEP = 32


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


def carry_on(desk: Desk, id_: str, decision: Decision) -> None:
    """Do what was decided before, if the policy (which may have been changed since) still lets it be done."""
    decision = allowed(decision, desk.policy)
    {"restart": _restart, "stop": _stop, "observe": _observe}[decision.rung](desk, id_, decision)


def give_up(desk: Desk, id_: str, why: str) -> None:
    """Stop the job because it could not be helped."""
    desk.change(id_, decision=why)
    carry_on(desk, id_, Decision("stop", why))


def unavailable(desk: Desk) -> tuple[set[str], set[str]]:
    """Nodes that are out of service by our hand, and nodes that should be."""
    wanted = {b.node for i in desk.state.open_incidents() for b in i.nodes if b.state == NodeState.WANTED}
    return set(desk.state.out_of_service()), wanted


def avoided(branch: JobBranch, out: set[str], wanted: set[str]) -> tuple[str, ...]:
    """The nodes that the next attempt must not use: the incident's suspects and whatever is out of service."""
    return tuple(dict.fromkeys((*branch.avoid, *sorted(out), *sorted(wanted))))


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


def _failing_step(job: JobView, diagnosis: Diagnosis) -> int:
    """The last step before the failure: the blamed rank's own where one is blamed, for ranks need not be in step. An
    attempt that died before its first step stood where it had loaded its checkpoint."""
    blamed = diagnosis.culprit
    named = blamed.id if blamed is not None and blamed.kind == "rank" else ""
    view = next((view for rank, view in job.ranks.items() if str(rank) == named), None)
    if view is not None and view.progress is not None:
        return max(view.progress.step, view.progress.loaded_step)
    if view is not None:
        return job.resumed_step
    return max(job.attempt_high, job.resumed_step)


def _avoid(desk: Desk, id_: str, diagnosis: Diagnosis, rounds: tuple[tuple[str, int], ...]) -> None:
    branch = desk.job_branch(id_)
    avoid = tuple(dict.fromkeys((*branch.avoid, *diagnosis.suspects)))
    desk.change(id_, job=replace(branch, avoid=avoid, signatures=rounds[-_ROUNDS_KEEP:]))


def _evidence(desk: Desk, incident: Incident, branch: JobBranch, job: JobView) -> Evidence:
    nodes = set(job.nodes)
    signals = tuple(
        s
        for s in incident.signals
        if ((s.job, s.attempt) == (job.spec.id, job.attempt) if s.job else s.node in nodes or not s.node)
    )
    return Evidence(signals, desk.catalog, job.placement, job.spec.id, job.spec.ranks, branch.signatures)


def _situation(desk: Desk, id_: str, branch: JobBranch, job: JobView, diagnosis: Diagnosis) -> Situation:
    out, wanted = unavailable(desk)
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
        avoid=avoided(branch, out, wanted),
        waited_s=waited,
        final=row.sense == "process" and row.action.stops_the_job,
    )


def _tell(desk: Desk, id_: str, text: str) -> None:
    desk.issue(Notify, id_, text, desk.now + desk.policy.deadlines.node_action_s, text=text)


def _title(diagnosis: Diagnosis) -> str:
    return diagnosis.reason.partition(";")[0]
