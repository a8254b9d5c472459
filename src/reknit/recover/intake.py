"""Which incident a signal belongs to, and whether it opens one.

A burst from one failure is one incident: what happens to a gang joins the incident that has that gang in hand, what
happens on a node joins the incident of that node or of the gang that runs there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from reknit.diagnose.evidence import Evidence
from reknit.diagnose.verdict import diagnose
from reknit.model.entities import Entity
from reknit.model.incidents import JobState
from reknit.model.signals import Signal
from reknit.model.terms import Grade, Trust
from reknit.recover import node_branch

if TYPE_CHECKING:
    from reknit.catalog.row import Row
    from reknit.model.incidents import Incident
    from reknit.model.state import JobView
    from reknit.recover.desk import Desk

LOOK_BACK_S = 120.0
"""How far before a failure a job's own words may count as its cause; what it printed and survived before is history."""
NODE_LOOK_BACK_S = 600.0
"""The same for what a node's kernel said."""
KEEP_RECENT = 256
_STALLS = ("job.stall", "rank.stall")
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
_KEEP_SIGNALS = 512
_MOST = 1_000_000_000
"""Repeats that one signal may claim: a sum of such counts is still a number that the journal can hold."""
_TELL_ALIKE = 3


def take(desk: Desk, signal: Signal) -> str | None:
    """File a signal: into the incident that it belongs to, a new one, or the recent ones. Gives the incident."""
    row = desk.catalog.get(signal.code)
    incident = _belongs_to(desk, signal, row)
    if incident is None and _opens_for_node(desk, signal, row):
        holder = node_branch.holder_of(desk, signal.node)
        incident = desk.state.incidents[holder] if holder else desk.open(_title(signal, row))
    if incident is None:
        remember(desk, signal)
        return None
    attach(desk, incident.id, signal)
    if _opens_for_node(desk, signal, row):
        node_branch.concern(desk, incident.id, signal, row)
        _judge_node(desk, incident.id)
    return incident.id


def usable(signal: Signal, now: float) -> Signal:
    """The signal with times that can be: a clock that runs ahead or a broken number must not keep anything open."""
    count = min(max(1, signal.count), _MOST)
    if 0.0 <= signal.first_seen <= signal.last_seen <= now and count == signal.count:
        return signal
    last = possible(signal.last_seen, now)
    return msgspec.structs.replace(
        signal, first_seen=possible(signal.first_seen, last), last_seen=last, count=count
    )


def is_stall(signal: Signal) -> bool:
    """Whether this is the engine's own remark that a rank or gang is silent, with the last sign that it showed."""
    return signal.code in _STALLS and _NUMBER.fullmatch(signal.attributes.get("last_sign", "")) is not None


def possible(at: float, now: float) -> float:
    """A time that is not later than now and no NaN."""
    return at if 0.0 <= at <= now else (0.0 if at < 0.0 else now)


def _judge_node(desk: Desk, id_: str) -> None:
    """An incident without a job is diagnosed as its evidence comes: nothing waits for the verdict."""
    incident = desk.state.incidents[id_]
    if incident.job is not None:
        return
    verdict = diagnose(Evidence(incident.signals, desk.catalog))
    if incident.diagnosis is None or incident.diagnosis.reason != verdict.reason:
        desk.change(id_, diagnosis=verdict)
        desk.say(
            id_, "diagnosis", f"{verdict.failure_class}, {verdict.confidence:.0%} sure: {verdict.reason}"
        )


def attach(desk: Desk, id_: str, signal: Signal) -> None:
    """Add a signal to an incident; a repeat only counts up."""
    signals = desk.state.incidents[id_].signals
    alike = 0
    for index, known in enumerate(signals):
        if known.code != signal.code or known.attempt != signal.attempt:
            continue
        alike += 1
        if known.entity == signal.entity:
            merged = msgspec.structs.replace(
                known,
                first_seen=min(known.first_seen, signal.first_seen),
                last_seen=max(known.last_seen, signal.last_seen),
                count=known.count + signal.count,
            )
            desk.change(id_, signals=(*signals[:index], merged, *signals[index + 1 :]))
            return
    # A gang of thousands must not, by dying, crowd out the kernel's word of why, which is read a moment later.
    if len(signals) >= (2 * _KEEP_SIGNALS if signal.trust >= Trust.KERNEL_RECORD else _KEEP_SIGNALS):
        return
    desk.change(id_, signals=(*signals, signal))
    row = desk.catalog.get(signal.code)
    if alike == _TELL_ALIKE:
        desk.say(id_, "signal", f"{row.title}: more of the same")
    elif alike < _TELL_ALIKE:
        where = f"{signal.entity}" + (
            f" on {signal.node}" if signal.node and signal.entity.kind == "rank" else ""
        )
        desk.say(id_, "signal", f"{row.title}: {where}" + (f" — {signal.excerpt}" if signal.excerpt else ""))


def remember(desk: Desk, signal: Signal) -> None:
    """Keep a signal for whichever incident comes next."""
    job = desk.state.jobs.get(signal.job)
    if job is not None:
        job.recent = [*job.recent[-KEEP_RECENT + 1 :], signal]
    elif signal.node:
        desk.state.recent = [*desk.state.recent[-KEEP_RECENT + 1 :], signal]


def collect_recent(desk: Desk, id_: str, job: JobView) -> None:
    """Bring what was seen shortly before into an incident that has just got a job branch."""
    since = min(desk.now - LOOK_BACK_S, job.high_at - LOOK_BACK_S / 2 if job.high_at else desk.now)
    nodes = set(job.nodes)

    def mine(s: Signal) -> bool:
        return s.attempt in (0, job.attempt) and s.last_seen >= since

    def near(s: Signal) -> bool:
        return s.node in nodes and s.last_seen >= desk.now - NODE_LOOK_BACK_S

    found = [*filter(mine, job.recent), *filter(near, desk.state.recent)]
    # A silence that was looked at must be remembered for as long as it lasts.
    job.recent = [s for s in job.recent if is_stall(s) or not mine(s)]
    desk.state.recent = [s for s in desk.state.recent if not near(s)]
    for signal in sorted(found, key=lambda s: s.first_seen):
        attach(desk, id_, signal)


def behind(desk: Desk, job: JobView) -> list[Signal]:
    """Signals for the ranks that have made fewer steps than the others, where they are the smaller part of the gang."""
    steps = {r: v.progress.step for r, v in job.ranks.items() if v.progress is not None and not v.exited}
    furthest = max(steps.values(), default=-1)
    late = {rank: step for rank, step in steps.items() if step < furthest}
    if not late or len(late) * 2 > len(steps):
        return []
    return [
        Signal(
            code="rank.behind",
            entity=Entity("rank", str(rank)),
            first_seen=desk.now,
            last_seen=desk.now,
            source="progress",
            trust=Trust.NODE_SERVICE,
            node=job.node_of(rank),
            job=job.spec.id,
            attempt=job.attempt,
            rank=rank,
            excerpt=f"rank {rank} is at step {step}, the others at {furthest}",
            attributes={"step": str(step)},
        )
        for rank, step in late.items()
    ]


def incident_for_job(desk: Desk, job: JobView, node: str) -> Incident | None:
    """The open incident in which a failure of this job has its place: its own, or that of a node of its gang whose
    fault was seen before the job showed anything."""
    for incident in desk.state.open_incidents():
        if incident.job is not None and incident.job.open and incident.job.job == job.spec.id:
            return incident
    nodes = set(job.nodes) if not node else {node, *job.nodes}
    for incident in desk.state.open_incidents():
        if (
            incident.job is None
            and any(b.open and b.node in nodes for b in incident.nodes)
            and _may_explain(desk, incident)
        ):
            return incident
    return None


def _may_explain(desk: Desk, incident: Incident) -> bool:
    """A node's fault that is serious enough to end a job, or that has just been seen."""
    kernel = [s for s in incident.signals if s.source == "kernel"]
    if not kernel:
        return False
    serious = any(desk.catalog.get(s.code).highest_grade >= Grade.REVERSIBLE for s in kernel)
    return serious or max(s.last_seen for s in kernel) > desk.now - LOOK_BACK_S


def _belongs_to(desk: Desk, signal: Signal, row: Row) -> Incident | None:
    for incident in desk.state.open_incidents():
        branch = incident.job
        if branch is not None and branch.open:
            if signal.job and signal.job == branch.job:
                return incident
            if not signal.job and signal.node and _gang_is_on(desk, branch.job, signal.node, branch.state):
                return incident
    if signal.job and signal.source != "kernel":
        return None
    for incident in desk.state.open_incidents():
        if signal.node and any(b.node == signal.node and b.open and b.code for b in incident.nodes):
            held = next(b for b in incident.nodes if b.node == signal.node and b.open)
            if desk.catalog.get(held.code).sense == row.sense:
                return incident
    return None


def _gang_is_on(desk: Desk, job: str, node: str, state: JobState) -> bool:
    return state != JobState.STOPPING and node in desk.job(job).nodes


def _opens_for_node(desk: Desk, signal: Signal, row: Row) -> bool:
    """A record that no tenant can write, about a device that exists, that is more than a remark, and newer than the
    word of whoever gave the node back: the same evidence does not condemn it twice."""
    return (
        signal.trust >= Trust.KERNEL_RECORD
        and signal.joined
        and bool(signal.node)
        and signal.last_seen > desk.state.cleared.get(signal.node, 0.0)
        and row.severity in ("fatal", "error")
        and row.scope in ("gpu", "nvlink_domain", "nic", "node", "storage")
    )


def _title(signal: Signal, row: Row) -> str:
    index = signal.attributes.get("gpu_index")
    return f"{row.title}: {'GPU ' + index + ' of ' if index else ''}{signal.node or signal.entity}"
