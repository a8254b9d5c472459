"""The one table of an incident's states. A move that is not in it is refused; every move is written to the timeline."""

from __future__ import annotations

import msgspec

from reknit.model.incidents import JobBranch, JobState, NodeBranch, NodeState

BUSY = frozenset(
    {JobState.SUSPECTED, JobState.CAPTURING, JobState.WAITING, JobState.RESTARTING, JobState.STOPPING}
)
"""States in which a gang is in hand already: its silence is no news."""


class IllegalMove(Exception):
    """A branch was asked to make a move that no real event causes."""


_J = JobState
JOB_MOVES: dict[JobState, frozenset[JobState]] = {
    _J.SUSPECTED: frozenset(
        {
            _J.WAITING,  # back-off, or no room for the gang
            _J.RESTARTING,  # diagnosed, and a restart may help
            _J.STOPPING,  # diagnosed, and a restart cannot help; or the budget is used up
            _J.RELOADING,  # somebody else restarted the gang meanwhile: adopted
            _J.DISMISSED,  # observe mode, or the job ended well after all
            _J.STOPPED,  # the job was ended by somebody else
        }
    ),
    _J.CAPTURING: frozenset(
        {
            _J.SUSPECTED,  # a rank died while we looked: the evidence of its death is awaited
            _J.WAITING,
            _J.RESTARTING,
            _J.STOPPING,
            _J.RELOADING,
            _J.DISMISSED,  # progress went on by itself: it was slow, not hung
            _J.STOPPED,
        }
    ),
    _J.WAITING: frozenset(
        {
            _J.WAITING,  # still no room
            _J.RESTARTING,
            _J.STOPPING,  # waited long enough
            _J.RELOADING,
            _J.DISMISSED,
            _J.STOPPED,
        }
    ),
    _J.RESTARTING: frozenset(
        {
            _J.RESTARTING,  # no outcome in time: given again
            _J.RELOADING,  # the next attempt's processes run
            _J.WAITING,  # the orchestrator could not: no room, or an error that may pass
            _J.STOPPING,  # it could not be restarted
            _J.DISMISSED,
            _J.STOPPED,
        }
    ),
    _J.RELOADING: frozenset(
        {
            _J.RECOMPUTING,  # first step, still short of where it failed
            _J.RECOVERED,  # first step beyond the failure, or it ran long enough where no step is known
            _J.SUSPECTED,  # a rank of the new attempt died
            _J.CAPTURING,  # the new attempt hangs
            _J.RELOADING,  # restarted once more by somebody else
            _J.DISMISSED,
            _J.STOPPED,
        }
    ),
    _J.RECOMPUTING: frozenset(
        {
            _J.RECOVERED,  # passed the step at which it failed
            _J.RECOMPUTING,  # a long way back: watched on
            _J.SUSPECTED,
            _J.CAPTURING,
            _J.RELOADING,
            _J.DISMISSED,
            _J.STOPPED,
        }
    ),
    _J.STOPPING: frozenset(
        {
            _J.STOPPING,  # no outcome in time: given again
            _J.STOPPED,
            _J.DISMISSED,  # the policy has been changed meanwhile and does not allow it any more
            _J.RELOADING,  # somebody restarted it although we stopped it: theirs to decide
        }
    ),
    _J.RECOVERED: frozenset(),
    _J.STOPPED: frozenset(),
    _J.DISMISSED: frozenset(),
}

_N = NodeState
NODE_MOVES: dict[NodeState, frozenset[NodeState]] = {
    _N.WATCHED: frozenset(
        {
            _N.WATCHED,  # reported again
            _N.WANTED,  # stronger evidence arrived
            _N.DISMISSED,  # over
        }
    ),
    _N.WANTED: frozenset(
        {
            _N.WANTED,  # still no budget, or the brake is on
            _N.QUARANTINING,
            _N.WATCHED,  # observe mode: only reported
            _N.RELEASING,  # a quarantine whose outcome is not known is taken back
            _N.DISMISSED,  # the node is gone, or a person says that it is well
        }
    ),
    _N.QUARANTINING: frozenset(
        {
            _N.QUARANTINING,  # a person wants it back: taken back as soon as the outcome is known
            _N.QUARANTINED,
            _N.WANTED,  # it failed: tried again later
            _N.RELEASING,  # a person wants it back before we were done
            _N.DISMISSED,
        }
    ),
    _N.QUARANTINED: frozenset(
        {
            _N.QUARANTINED,  # a reminder was sent
            _N.RELEASING,  # cleared by its rule or by a person
            _N.DISMISSED,  # the node is gone
        }
    ),
    _N.RELEASING: frozenset({_N.RELEASED, _N.RELEASING, _N.DISMISSED}),
    _N.RELEASED: frozenset(),
    _N.DISMISSED: frozenset(),
}


def move_job(branch: JobBranch, to: JobState, now: float, deadline: float, **changes: object) -> JobBranch:
    """The branch in its new state. `since` is kept where the state does not change. Raises IllegalMove."""
    if to not in JOB_MOVES[branch.state]:
        raise IllegalMove(f"the job branch of {branch.job} cannot go from {branch.state} to {to}")
    since = branch.since if to == branch.state else now
    return msgspec.structs.replace(branch, state=to, since=since, deadline=deadline, **changes)


def move_node(
    branch: NodeBranch, to: NodeState, now: float, deadline: float, **changes: object
) -> NodeBranch:
    """The branch in its new state. `since` is kept where the state does not change. Raises IllegalMove."""
    if to not in NODE_MOVES[branch.state]:
        raise IllegalMove(f"the branch of node {branch.node} cannot go from {branch.state} to {to}")
    since = branch.since if to == branch.state else now
    return msgspec.structs.replace(branch, state=to, since=since, deadline=deadline, **changes)
