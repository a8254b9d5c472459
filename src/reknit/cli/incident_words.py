"""What an incident is in a few words: who is blamed, where it stands, what was done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from reknit.cli.render import NOTHING, counted, duration, gpu_hours, joined, plain
from reknit.model.incidents import JobState, NodeState

if TYPE_CHECKING:
    from reknit.model.diagnosis import Diagnosis
    from reknit.model.entities import Entity
    from reknit.model.incidents import Incident, JobBranch, NodeBranch
    from reknit.model.signals import Signal

_DONE: dict[JobState, str] = {
    JobState.RECOVERED: "recovered",
    JobState.STOPPED: "stopped",
    JobState.DISMISSED: "reported",
}
_OUT: dict[NodeState, str] = {NodeState.QUARANTINED: "out", NodeState.WANTED: "to be taken out"}


def blamed(incident: Incident) -> str:
    """The culprit with its place: `rank 3 on node1`, `GPU 0 of node1`, `nobody`; a dash before that."""
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return NOTHING
    if diagnosis.culprit is None:
        return "nobody"
    return entity_words(diagnosis.culprit, _signal_of(incident, diagnosis, diagnosis.culprit))


def entity_words(entity: Entity, signal: Signal | None) -> str:
    """An entity as a person would say it, placed by a signal that speaks of it."""
    name = plain(entity.id, 80)
    if entity.kind == "node":
        return name
    if entity.kind == "gpu":
        node, _, pci = name.rpartition("/")
        index = plain(signal.attributes.get("gpu_index", ""), 4) if signal else ""
        return f"GPU {index or pci} of {node}" if node else f"GPU {index or pci}"
    where = plain(signal.node, 60) if signal and entity.kind in ("rank", "process", "nic", "link") else ""
    return f"{entity.kind} {name} on {where}" if where else f"{entity.kind} {name}"


def _signal_of(incident: Incident, diagnosis: Diagnosis, entity: Entity) -> Signal | None:
    mine = [signal for signal in incident.signals if signal.entity == entity]
    exact = [signal for signal in mine if signal.code == diagnosis.code]
    return (exact or mine or [None])[-1]


def state_words(incident: Incident) -> str:
    """Where it stands: `recovered`, `restarting`, `recovered, node1 out`, `closed`."""
    words: list[str] = []
    if incident.job is not None:
        words.append(_DONE.get(incident.job.state, incident.job.state.value))
    for branch in incident.nodes:
        if branch.open:
            word = _OUT.get(branch.state, branch.state.value)
            words.append(f"{plain(branch.node, 40)} {word}" if branch.node else word)
    return ", ".join(words) or ("open" if incident.open else "closed")


def action_words(incident: Incident) -> str:
    """What was done, in brief: `moved off node1, node1 quarantined`; the whole sentence is the decision's."""
    job = _job_action(incident, incident.job) if incident.job is not None else ""
    parts = [job, *(_node_action(branch) for branch in incident.nodes)]
    done = ", ".join(dict.fromkeys(part for part in parts if part))
    return done or ("only reported" if incident.diagnosis is not None or not incident.open else NOTHING)


def _job_action(incident: Incident, branch: JobBranch) -> str:
    restarted = _restarted(branch)
    if branch.state == JobState.WAITING:
        return f"waiting for {plain(branch.waiting_for, 60)}"
    if branch.state in (JobState.STOPPING, JobState.STOPPED):
        stopped = "job stopped" if _stopped_by_us(incident) else "job ended by somebody else"
        return f"{restarted}, then {stopped}" if restarted else stopped
    if branch.state == JobState.CAPTURING and not restarted:
        return "taking evidence"
    return restarted


def _restarted(branch: JobBranch) -> str:
    if not branch.restarts:
        return ""
    how = f"moved off {joined(branch.moved_off, 3)}" if branch.moved_off else "restarted in place"
    return f"{how} ({branch.restarts}×)" if branch.restarts > 1 else how


def _node_action(branch: NodeBranch) -> str:
    name = plain(branch.node, 40)
    match branch.state:
        case NodeState.QUARANTINED:
            return f"{name} quarantined"
        case NodeState.QUARANTINING:
            return f"quarantining {name}"
        case NodeState.RELEASED | NodeState.RELEASING:
            return f"{name} released"
        case NodeState.WANTED:
            return f"{name} to be quarantined"
        case _:
            return ""


def _stopped_by_us(incident: Incident) -> bool:
    """The branch does not tell who ended the job; the story does."""
    return any(
        entry.kind == "action" and entry.text.startswith("stop the job") for entry in incident.timeline
    )


def took(incident: Incident, now: float) -> float:
    """Seconds from its opening to its end, or until now."""
    return max(0.0, (incident.closed_at if incident.closed_at is not None else now) - incident.opened_at)


def cost_words(incident: Incident) -> str:
    """What it cost the job: `5.3 s, 0.012 GPU-h`; a dash where nothing stood."""
    bill = incident.bill
    return f"{duration(bill.seconds)}, {gpu_hours(bill.gpu_hours)} GPU-h" if bill.seconds > 0 else NOTHING


def as_json(incident: Incident) -> dict[str, Any]:
    """The incident for a program, with what follows from it."""
    content: dict[str, Any] = msgspec.to_builtins(incident)
    content["open"] = incident.open
    content["seconds"] = incident.bill.seconds
    content["gpu_hours"] = incident.bill.gpu_hours
    content["state"] = state_words(incident)
    content["blamed"] = blamed(incident)
    content["action"] = action_words(incident)
    return content


def redone_words(steps: int) -> str:
    """`12 steps made again`."""
    return f"{counted(steps, 'step')} made again"
