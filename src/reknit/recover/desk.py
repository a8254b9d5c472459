"""What one call of the engine works on: the state, the time, and a tray for the commands that come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from reknit.model.incidents import Incident, JobBranch, JobState, NodeBranch, TimelineEntry
from reknit.recover.transitions import BUSY, move_job, move_node

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog
    from reknit.model.commands import AnyCommand, Command
    from reknit.model.incidents import NodeState
    from reknit.model.policy import Policy
    from reknit.model.state import EngineState, JobView

_TIMELINE_KEEP = 400
"""Entries that an incident's timeline keeps; what is too much is dropped from its middle."""

_PAST_KEEP = 64
"""Closed node branches that an open incident keeps."""


class Move(NamedTuple):
    """A job branch that changed its state: what the account books by."""

    incident: str
    job: str
    old: JobState | None
    new: JobState
    at: float


class Desk:
    """One event's worth of work. All changes to incidents go through here, so that each is noticed and written down."""

    def __init__(self, state: EngineState, now: float, policy: Policy, catalog: Catalog) -> None:
        self.state = state
        self.now = now
        self.policy = policy
        self.catalog = catalog
        self.commands: list[AnyCommand] = []
        self.changed: dict[str, Incident] = {}
        self.moves: list[Move] = []
        self.wakes: list[float] = []
        self.recount = False
        """Whether silence has become news again, so that all deadlines have to be looked at for the next wake-up."""

    def open(self, title: str) -> Incident:
        """A new incident."""
        self.state.incident_count += 1
        incident = Incident(id=f"inc-{self.state.incident_count}", opened_at=self.now, title=title)
        self.state.open_ids.append(incident.id)
        self.put(incident)
        return incident

    def put(self, incident: Incident) -> None:
        """Store an incident's new form."""
        self.state.incidents[incident.id] = incident
        self.changed[incident.id] = incident

    def change(self, id_: str, **fields: Any) -> Incident:
        """Replace fields of an incident."""
        incident = msgspec.structs.replace(self.state.incidents[id_], **fields)
        self.put(incident)
        return incident

    def say(
        self,
        id_: str,
        kind: Literal["signal", "diagnosis", "decision", "action", "outcome", "state"],
        text: str,
    ) -> None:
        """Add a line to an incident's timeline."""
        timeline = (*self.state.incidents[id_].timeline, TimelineEntry(self.now, text, kind))
        if len(timeline) > _TIMELINE_KEEP:
            half = _TIMELINE_KEEP // 2
            timeline = (*timeline[:half], *timeline[-half:])
        self.change(id_, timeline=timeline)

    def begin_job(self, id_: str, branch: JobBranch) -> None:
        """Give an incident its job branch."""
        self.change(id_, job=branch)
        self.moves.append(Move(id_, branch.job, None, branch.state, self.now))
        self.wakes.append(branch.deadline)

    def move_job(self, id_: str, to: JobState, deadline: float, **fields: Any) -> JobBranch:
        """Move an incident's job branch. `at` among the fields is when it really happened, for the account."""
        at = fields.pop("at", self.now)
        old = self.job_branch(id_)
        new = move_job(old, to, self.now, deadline, **fields)
        self.change(id_, job=new)
        self.moves.append(Move(id_, new.job, old.state, to, at))
        self.wakes.append(deadline)
        self.recount = self.recount or to not in BUSY
        return new

    def set_node(self, id_: str, branch: NodeBranch) -> None:
        """Add or replace the open branch of a node."""
        others = [b for b in self.state.incidents[id_].nodes if b.node != branch.node or not b.open]
        past = [b for b in others if not b.open]
        if len(past) > _PAST_KEEP:
            others.remove(past[0])
        self.change(id_, nodes=(*others, branch))
        self.wakes.append(branch.deadline)

    def move_node(self, id_: str, node: str, to: NodeState, deadline: float, **fields: Any) -> NodeBranch:
        """Move the open branch of a node."""
        branch = self.state.incidents[id_].branch(node)
        if branch is None:
            raise KeyError(f"{id_} has no open branch for node {node}")
        new = move_node(branch, to, self.now, deadline, **fields)
        self.set_node(id_, new)
        return new

    def job_branch(self, id_: str) -> JobBranch:
        """The job branch that this incident is known to have."""
        branch = self.state.incidents[id_].job
        if branch is None:
            raise KeyError(f"{id_} has no job branch")
        return branch

    def job(self, name: str) -> JobView:
        """A job that is known to exist."""
        return self.state.jobs[name]

    def issue(self, kind: type[Command], id_: str, reason: str, deadline: float, **fields: Any) -> str:
        """Put a command on the tray. Gives its id, which the same events give again."""
        incident = self.state.incidents[id_]
        number = incident.commands + 1
        command_id = f"{id_}/{number}"
        self.change(id_, commands=number)
        self.commands.append(kind(id=command_id, incident=id_, reason=reason, deadline=deadline, **fields))  # type: ignore[arg-type]
        return command_id

    def close_if_done(self, id_: str) -> None:
        """Close an incident whose branches all have come to an end."""
        incident = self.state.incidents[id_]
        if not incident.open or (incident.job and incident.job.open) or any(b.open for b in incident.nodes):
            return
        self.change(id_, closed_at=self.now)
        self.state.open_ids.remove(id_)
        self.say(id_, "state", "closed")

    def forget_old(self) -> None:
        """Drop the oldest closed incidents. Last thing in a call, so that nobody holds one that is gone."""
        excess = len(self.state.incidents) - len(self.state.open_ids) - self.policy.keep_incidents
        if excess > 0:
            closed = [i.id for i in self.state.incidents.values() if not i.open]
            for id_ in closed[:excess]:
                del self.state.incidents[id_]
