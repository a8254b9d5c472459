"""Defects that the property tests found in how nodes are taken out of service and given back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.entities import Node
from reknit.model.incidents import NodeState
from reknit.model.policy import Actions, Brake, NodeBudget, Policy
from reknit.model.terms import Trust
from support.held import Held, kernel_record, the_incident
from support.story import ACT, Story


def test_a_quarantine_that_fails_without_a_word_is_tried_again_later_and_not_at_once() -> None:
    story = Held(cmd.Quarantine)
    story.xid(79, "node1")
    (order,) = story.given(cmd.Quarantine)
    story.tell(ev.CommandFailed(order.id, ""))
    assert len(story.given(cmd.Quarantine)) == 1
    story.wait(31)
    assert len(story.given(cmd.Quarantine)) == 2


def test_the_same_node_tried_again_is_not_one_more_for_the_brake() -> None:
    story = Held(cmd.Quarantine, policy=replace(ACT, brake=Brake(count=1, percent=0)))
    story.xid(79, "node1")
    (order,) = story.given(cmd.Quarantine)
    story.tell(ev.CommandFailed(order.id, "try again"))
    story.wait(31)
    assert len(story.given(cmd.Quarantine)) == 2
    assert not story.state.brake.tripped


def test_a_mark_of_which_nothing_was_heard_is_taken_off_and_counts_until_then() -> None:
    story = Held(cmd.Quarantine)
    story.xid(79, "node1")
    story.wait(70)  # no outcome in time, but the mark may be there
    story.xid(48, "node2")
    assert [c.node for c in story.given(cmd.Quarantine)] == ["node1"], "one of five nodes may be marked"
    story.tell(ev.NodeReleaseRequested("node1", by="ann"))
    assert [c.node for c in story.given(cmd.Release)] == ["node1"]


def test_a_node_is_given_back_only_after_its_quarantine_has_come_to_an_end() -> None:
    story = Held(cmd.Quarantine)
    story.xid(79, "node1")
    (order,) = story.given(cmd.Quarantine)
    story.tell(ev.NodeReleaseRequested("node1", by="ann"))
    assert not story.given(cmd.Release), "two orders at once could be carried out in either order"
    story.tell(ev.CommandDone(order.id))
    assert [c.node for c in story.given(cmd.Release)] == ["node1"]
    assert not the_incident(story).open


def test_news_of_a_node_that_is_gone_marks_nothing_and_does_not_stay_open() -> None:
    story = Story()
    story.tell(ev.NodeGone("node4"))
    story.xid(79, "node4")
    assert not story.given(cmd.Quarantine)
    story.wait(700)
    assert not the_incident(story).open


def test_another_senses_word_about_a_node_in_hand_opens_no_incident_without_an_end() -> None:
    story = Story()
    story.xid(79, "node1")
    told = kernel_record(story, "nvidia.xid.48", "node1", job="train", attempt=1)
    story.tell(ev.SignalSeen(replace(told, trust=Trust.DRIVER_API, source="probe")))
    assert [b.state for b in the_incident(story).nodes] == [NodeState.QUARANTINED]
    assert [s.code for s in the_incident(story).signals] == ["nvidia.xid.79", "nvidia.xid.48"]


@pytest.mark.parametrize("released", [True, False])
def test_a_job_may_use_a_node_again_that_a_person_gave_back_or_that_is_another_machine_now(
    released: bool,
) -> None:
    story = Story(spares=0, policy=Policy(mode="act", actions=Actions(quarantine=False)))
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1)
    story.wait(900)  # nothing more was seen of the fault: only the job still keeps off the node
    assert the_incident(story).job.avoid == ("node1",)  # type: ignore[union-attr]
    if released:
        story.tell(ev.NodeReleaseRequested("node1", by="ann"))
    else:
        story.tell(ev.NodeGone("node1"))
        story.tell(ev.NodeSeen(Node("node1", boot_id="boot-9")))
    (restart,) = story.given(cmd.RestartGang)
    assert restart.avoid == ()


def test_many_nodes_may_be_out_of_service_where_the_policy_says_so_and_all_come_back() -> None:
    story = Story(
        nodes=6, spares=4, policy=replace(ACT, nodes=NodeBudget(at_once_percent=30), brake=Brake(count=9))
    )
    for name, number in (("node6", 79), ("node7", 48), ("node8", 95), ("node9", 79)):
        story.xid(number, name)
    assert story.quarantined == {"node6", "node7", "node8"}
    for name in ("node6", "node7", "node8", "node9"):
        story.tell(ev.NodeReleaseRequested(name, by="ann"))
        story.wait(1)
    assert story.quarantined == set()
    assert not story.state.open_ids
