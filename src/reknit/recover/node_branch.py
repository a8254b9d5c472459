"""The background branch: keep new work off a node, and give it back when its fault is cleared.

What should hold is a function of the open incidents, looked at again at every call: a node that could not be
quarantined for want of budget is quarantined when there is budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from reknit.decide import brake as brakes
from reknit.decide.budget import nodes_allowed
from reknit.model.commands import Notify, Quarantine, Release
from reknit.model.incidents import NodeBranch, NodeState
from reknit.model.terms import Grade

if TYPE_CHECKING:
    from reknit.catalog.row import Row
    from reknit.model.incidents import Incident
    from reknit.model.signals import Signal
    from reknit.recover.desk import Desk

_TRIES = 5
WATCH_S = 600.0
"""How long a reported fault that asks for nothing is kept open after it was last seen."""


def concern(desk: Desk, id_: str, signal: Signal, row: Row) -> None:
    """Let an incident take up a fault of a node: quarantine it where the evidence reaches that far, else watch it."""
    strong = row.highest_grade >= Grade.REVERSIBLE
    if strong:
        brakes.note_code(desk.state.brake, signal.code, signal.node, desk.now, desk.policy.brake)
    holder = holder_of(desk, signal.node)
    if holder is not None and holder != id_:
        return
    branch = desk.state.incidents[id_].branch(signal.node)
    reason = f"{row.title}: {signal.entity}"
    if branch is None:
        state = NodeState.WANTED if strong else NodeState.WATCHED
        deadline = desk.now if strong else desk.now + WATCH_S
        desk.set_node(
            id_,
            NodeBranch(
                node=signal.node,
                state=state,
                since=desk.now,
                deadline=deadline,
                reason=reason,
                code=signal.code,
                boot_id=signal.boot_id or _boot(desk, signal.node),
            ),
        )
    elif strong and branch.state == NodeState.WATCHED:
        desk.move_node(id_, signal.node, NodeState.WANTED, desk.now, reason=reason, code=signal.code)


def watch(desk: Desk, id_: str, node: str, code: str, reason: str) -> None:
    """Report something about a node (or, with an empty name, a whole gang) that asks for no action."""
    deadline = desk.now + desk.policy.slowness.report_again_s
    desk.set_node(id_, NodeBranch(node, NodeState.WATCHED, desk.now, deadline, reason=reason, code=code))


def reconcile(desk: Desk) -> None:
    """Quarantine what should be and may be."""
    for incident in desk.state.open_incidents():
        for branch in incident.nodes:
            if branch.state == NodeState.WANTED and (not branch.waiting_for or branch.deadline <= desk.now):
                _try_quarantine(desk, incident, branch)


def _try_quarantine(desk: Desk, incident: Incident, branch: NodeBranch) -> None:
    if branch.node not in desk.state.nodes:
        _not_there(desk, incident, branch)
        return
    if not desk.policy.may("quarantine") and branch.tries:
        release(desk, incident, branch, "the policy does not allow quarantines any more")
        return
    if not desk.policy.may("quarantine"):
        desk.say(
            incident.id,
            "decision",
            f"would quarantine {branch.node} ({branch.reason}), but the policy only observes",
        )
        desk.move_node(incident.id, branch.node, NodeState.WATCHED, desk.now + WATCH_S)
        return
    refusal = _refusal(desk, branch)
    if refusal:
        if branch.waiting_for != refusal:
            desk.say(incident.id, "decision", f"{branch.node} should be quarantined, but {refusal}")
            desk.issue(
                Notify,
                incident.id,
                refusal,
                desk.now + desk.policy.deadlines.node_action_s,
                text=f"{branch.node} should be out of service ({branch.reason}), but {refusal}",
            )
        later = desk.now + desk.policy.deadlines.retry_s
        desk.move_node(incident.id, branch.node, NodeState.WANTED, later, waiting_for=refusal)
        return
    reason = f"keep new work off {branch.node}: {branch.reason}"
    deadline = desk.now + desk.policy.deadlines.node_action_s
    command = desk.issue(Quarantine, incident.id, reason, deadline, node=branch.node)
    if branch.tries == 0:
        brakes.note_quarantine(desk.state.brake, branch.node, desk.now, desk.policy.brake)
    desk.move_node(
        incident.id,
        branch.node,
        NodeState.QUARANTINING,
        deadline,
        command=command,
        waiting_for="",
        tries=branch.tries + 1,
    )
    desk.say(incident.id, "action", reason)


def _not_there(desk: Desk, incident: Incident, branch: NodeBranch) -> None:
    """News of a node may come before the node itself is seen, or after it is gone."""
    if desk.now >= branch.since + WATCH_S:
        dismiss(desk, incident, branch, f"no node {branch.node} was seen")
        return
    later = desk.now + desk.policy.deadlines.retry_s
    desk.move_node(incident.id, branch.node, NodeState.WANTED, later, waiting_for="the node to be seen")


def _refusal(desk: Desk, branch: NodeBranch) -> str:
    node = desk.state.nodes.get(branch.node)
    pool = node.pool if node else "default"
    size = sum(1 for n in desk.state.nodes.values() if n.pool == pool)
    if not desk.state.brake.tripped:
        why = brakes.reason_to_trip(
            desk.state.brake, branch.code, size, desk.now, desk.policy.brake, branch.node
        )
        if why:
            desk.state.brake.tripped_at = desk.now
            desk.state.brake.why = why
    if desk.state.brake.tripped:
        return f"the brake is on until a person releases it: {desk.state.brake.why}"
    # A quarantine that failed, or of which nothing was heard, may have been made all the same.
    unsure = [
        b.node
        for i in desk.state.open_incidents()
        for b in i.nodes
        if b.state == NodeState.WANTED and b.tries and b.node != branch.node
    ]
    held = [name for name in (*desk.state.out_of_service(), *unsure) if _pool(desk, name) == pool]
    allowed = nodes_allowed(size, desk.policy.nodes)
    if len(held) >= allowed:
        return (
            f"{len(held)} of {size} nodes are out of service already ({', '.join(held)}) and {allowed} may be"
        )
    return ""


def done(desk: Desk, incident: Incident, branch: NodeBranch) -> None:
    """The outcome of a node command came back well."""
    if branch.state == NodeState.QUARANTINING and branch.waiting_for:
        _issue_release(desk, incident.id, branch.node, branch.waiting_for)
    elif branch.state == NodeState.QUARANTINING:
        row = desk.catalog.get(branch.code)
        patience = desk.policy.deadlines.remind_s
        desk.move_node(
            incident.id,
            branch.node,
            NodeState.QUARANTINED,
            desk.now + (min(patience, row.clear_after_s) if row.clear == "time" else patience),
            command="",
            tries=0,
        )
        desk.say(incident.id, "outcome", f"{branch.node} takes no new work")
    elif branch.state == NodeState.RELEASING:
        desk.move_node(incident.id, branch.node, NodeState.RELEASED, desk.now, command="")
        desk.say(incident.id, "outcome", f"{branch.node} is back in service")
        desk.close_if_done(incident.id)


def failed(desk: Desk, incident: Incident, branch: NodeBranch, detail: str) -> None:
    """A node command could not be carried out, or no outcome came in time."""
    retry = desk.now + desk.policy.deadlines.retry_s
    desk.say(incident.id, "outcome", f"{branch.node}: {detail}")
    if branch.state == NodeState.QUARANTINING and branch.waiting_for:
        _issue_release(desk, incident.id, branch.node, branch.waiting_for)
    elif branch.state == NodeState.QUARANTINING:
        if branch.tries >= _TRIES:
            retry = desk.now + desk.policy.deadlines.remind_s
        desk.move_node(
            incident.id,
            branch.node,
            NodeState.WANTED,
            retry,
            command="",
            waiting_for=detail or "the next try",
        )
    elif branch.state == NodeState.RELEASING:
        desk.move_node(incident.id, branch.node, NodeState.RELEASING, retry, command="")


def wait_anew(desk: Desk, id_: str, branch: NodeBranch) -> None:
    """Give a branch that waits for an outcome its full time from now on."""
    if branch.state in (NodeState.QUARANTINING, NodeState.RELEASING):
        deadline = max(branch.deadline, desk.now + desk.policy.deadlines.node_action_s)
        desk.set_node(id_, replace(branch, deadline=deadline))


def overdue(desk: Desk, incident: Incident, branch: NodeBranch) -> None:
    """A node branch's deadline has passed."""
    if branch.state == NodeState.WATCHED:
        _watched_long_enough(desk, incident, branch)
    elif branch.state == NodeState.QUARANTINING:
        failed(desk, incident, branch, "no outcome of the quarantine in time")
    elif branch.state == NodeState.RELEASING:
        _issue_release(desk, incident.id, branch.node, "release again: no outcome came in time")
    elif branch.state == NodeState.QUARANTINED:
        row = desk.catalog.get(branch.code)
        if row.clear == "time" and desk.now >= branch.since + row.clear_after_s:
            release(
                desk,
                incident,
                branch,
                f"{row.title}: nothing more was seen for {row.clear_after_s / 60:.0f} min",
            )
            return
        days = (desk.now - branch.since) / 86400.0
        text = f"{branch.node} has been out of service for {days:.1f} days: {branch.reason}"
        desk.issue(Notify, incident.id, text, desk.now + desk.policy.deadlines.node_action_s, text=text)
        remind = desk.now + desk.policy.deadlines.remind_s
        desk.move_node(incident.id, branch.node, NodeState.QUARANTINED, remind)


def _watched_long_enough(desk: Desk, incident: Incident, branch: NodeBranch) -> None:
    if desk.catalog.get(branch.code).sense == "progress":
        text = f"still so after {(desk.now - incident.opened_at) / 60:.0f} min: {branch.reason}"
        desk.issue(Notify, incident.id, text, desk.now + desk.policy.deadlines.node_action_s, text=text)
        again = desk.now + desk.policy.slowness.report_again_s
        desk.move_node(incident.id, branch.node, NodeState.WATCHED, again)
        return
    last = max((s.last_seen for s in incident.signals), default=branch.since)
    if last + WATCH_S > desk.now:
        desk.move_node(incident.id, branch.node, NodeState.WATCHED, last + WATCH_S)
        return
    dismiss(desk, incident, branch, f"nothing more was seen of it for {WATCH_S / 60:.0f} min")


def dismiss(desk: Desk, incident: Incident, branch: NodeBranch, why: str) -> None:
    """End a branch that needs nothing more."""
    desk.move_node(incident.id, branch.node, NodeState.DISMISSED, desk.now, command="")
    desk.say(incident.id, "state", why)
    desk.close_if_done(incident.id)


def release(desk: Desk, incident: Incident, branch: NodeBranch, why: str) -> None:
    """Give a node back; a node that was only wanted or watched is simply let go. No job need avoid it any more."""
    let_jobs_use(desk, branch.node)
    if branch.node in desk.state.nodes:
        desk.state.cleared = {**desk.state.cleared, branch.node: desk.now}
    if branch.state == NodeState.WATCHED or (branch.state == NodeState.WANTED and not branch.tries):
        dismiss(desk, incident, branch, why)
    elif branch.state == NodeState.QUARANTINING:
        # Two orders for one node at once could be carried out in either order: the first one's outcome is awaited.
        desk.move_node(incident.id, branch.node, NodeState.QUARANTINING, branch.deadline, waiting_for=why)
    elif branch.state != NodeState.RELEASING:
        # A quarantine that failed, or of which nothing was heard, may have been made all the same.
        _issue_release(desk, incident.id, branch.node, why)


def let_jobs_use(desk: Desk, node: str) -> None:
    """No job need avoid this node any more: a person said so, or it is another machine now."""
    for incident in desk.state.open_incidents():
        if incident.job is not None and node in incident.job.avoid:
            avoid = tuple(name for name in incident.job.avoid if name != node)
            desk.change(incident.id, job=replace(incident.job, avoid=avoid))


def _issue_release(desk: Desk, id_: str, node: str, why: str) -> None:
    reason = f"give {node} back: {why}"
    deadline = desk.now + desk.policy.deadlines.node_action_s
    command = desk.issue(Release, id_, reason, deadline, node=node)
    desk.move_node(id_, node, NodeState.RELEASING, deadline, command=command, waiting_for="")
    desk.say(id_, "action", reason)


def booted(desk: Desk, node: str, boot_id: str) -> None:
    """A node has booted: whatever a boot clears is over. A device that was reset by it, too."""
    for incident in desk.state.open_incidents():
        branch = incident.branch(node)
        if branch is None or not branch.code or not boot_id or branch.boot_id in ("", boot_id):
            continue
        if desk.catalog.get(branch.code).clear in ("boot", "gpu_reset", "process_exit"):
            release(desk, incident, branch, "the node has booted since, which clears this fault")


def holder_of(desk: Desk, node: str) -> str | None:
    """The incident that already takes care of a node; one that only watches it does not."""
    for incident in desk.state.open_incidents():
        branch = incident.branch(node)
        if branch is not None and branch.state != NodeState.WATCHED:
            return incident.id
    return None


def _boot(desk: Desk, node: str) -> str:
    known = desk.state.nodes.get(node)
    return known.boot_id if known else ""


def _pool(desk: Desk, node: str) -> str:
    known = desk.state.nodes.get(node)
    return known.pool if known else "default"
