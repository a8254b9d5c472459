"""What to do for the job: the smallest safe rung that gets training going again.

wait -> restart the gang in place -> restart it away from the suspects -> stop the job and tell a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from reknit.decide.budget import backoff_s, restart_refusal
from reknit.model.terms import FailureClass

if TYPE_CHECKING:
    from collections.abc import Collection

    from reknit.model.diagnosis import Diagnosis
    from reknit.model.incidents import JobBranch
    from reknit.model.policy import Policy
    from reknit.model.state import JobView

Rung = Literal["restart", "wait", "stop", "observe"]

_NOT_THE_JOBS_FAULT = (FailureClass.SCHEDULER_PREEMPTION, FailureClass.KUBERNETES_INFRA)
"""Failures that another party caused on purpose: they never count as the same failure again."""


class Decision(msgspec.Struct, frozen=True):
    """One rung and why.

    Attributes:
        avoid: nodes that the next attempt must not use.
        until: for `wait`, when to decide again.
        waiting_for: for `wait`, what for, in words.
        by_design: for `stop`, whether the failure itself demands it (as opposed to a budget that ran out).
    """

    rung: Rung
    reason: str
    avoid: tuple[str, ...] = ()
    until: float = 0.0
    waiting_for: str = ""


class Situation(msgspec.Struct, frozen=True):
    """The world as it is now, as far as a job's restart depends on it.

    `usable` are the nodes on which the gang could run: present, in its pool, not out of service, not avoided.
    `waited_s` is how long the branch has been waiting for capacity already.
    """

    now: float
    incident: str
    usable: tuple[str, ...]
    avoid: tuple[str, ...]
    waited_s: float = 0.0
    final: bool = False


def decide(
    diagnosis: Diagnosis, branch: JobBranch, job: JobView, policy: Policy, here: Situation
) -> Decision:
    """The rung for this failure of this job, now."""
    stop = _reason_to_stop(diagnosis, branch, job, policy, here)
    if stop:
        return allowed(Decision("stop", stop), policy)
    wait = backoff_s(branch.restarts, policy.restarts, here.incident)
    ready_at = branch.since + wait
    if wait > 0 and branch.state != "waiting":
        text = f"{branch.restarts} restarts of this incident have not helped yet: waiting {wait:.0f} s before the next"
        return allowed(Decision("wait", text, here.avoid, ready_at, "the back-off to pass"), policy)
    if len(here.usable) < job.spec.nodes:
        return allowed(_no_room(job, policy, here), policy)
    return allowed(Decision("restart", _restart_sentence(job, here), here.avoid), policy)


def _reason_to_stop(
    diagnosis: Diagnosis, branch: JobBranch, job: JobView, policy: Policy, here: Situation
) -> str:
    if here.final:
        return f"{diagnosis.reason}; this status asks not to be restarted"
    rounds = branch.signatures
    if rounds and diagnosis.failure_class not in _NOT_THE_JOBS_FAULT:
        signature, step = rounds[-1]
        same = [s for s in rounds if s[0] == signature and abs(s[1] - step) <= 1]
        if len(same) >= policy.restarts.same_signature:
            at = f"at step {step + 1}" if step >= 0 else "before the first step"
            return (
                f"the same failure came {_times(len(same))} {at}: {diagnosis.reason}. "
                "Another restart would fail there again"
            )
    if branch.next_attempt > job.attempt:
        return ""  # this restart has been counted already; it is only tried again
    refusal = restart_refusal(job, policy.restarts, here.now)
    return f"{refusal}; the last failure: {diagnosis.reason}" if refusal else ""


def _no_room(job: JobView, policy: Policy, here: Situation) -> Decision:
    missing = job.spec.nodes - len(here.usable)
    text = (
        f"the gang needs {job.spec.nodes} nodes and {len(here.usable)} are usable"
        f"{_without(here.avoid)}: waiting for {missing} more"
    )
    if here.waited_s >= policy.deadlines.capacity_s:
        return Decision(
            "stop",
            f"{missing} nodes were missing for {here.waited_s / 60:.0f} min; nobody brought them",
            here.avoid,
        )
    return Decision(
        "wait", text, here.avoid, here.now + policy.deadlines.retry_s, f"{missing} more usable nodes"
    )


def _restart_sentence(job: JobView, here: Situation) -> str:
    leaving = [node for node in job.nodes if node in here.avoid]
    resume = f" from the checkpoint of step {job.saved_step}" if job.saved_step >= 0 else ""
    if leaving:
        return f"restart the gang away from {', '.join(leaving)}{resume}"
    return f"restart the gang in place{resume}"


def allowed(decision: Decision, policy: Policy) -> Decision:
    """What the policy lets through; what it does not is reported as what would have been done."""
    action = "stop_job" if decision.rung == "stop" else "restart_job"
    if policy.may(action):
        return decision
    why = "the mode is observe" if policy.mode == "observe" else f"the policy switches {action} off"
    return msgspec.structs.replace(decision, rung="observe", reason=f"would {_plain(decision)}, but {why}")


def _plain(decision: Decision) -> str:
    if decision.rung == "stop":
        return f"stop the job ({decision.reason})"
    return decision.reason


def _without(avoid: Collection[str]) -> str:
    return f" without {', '.join(avoid)}" if avoid else ""


def _times(count: int) -> str:
    return {2: "twice", 3: "three times"}.get(count, f"{count} times")
