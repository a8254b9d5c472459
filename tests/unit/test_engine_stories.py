"""Incidents as an SRE would tell them, through the pure engine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reknit.account.ledger import ettr
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.entities import Node
from reknit.model.incidents import JobState, NodeState
from reknit.model.policy import Actions, Deadlines, NodeBudget, Policy, RestartBudget
from reknit.model.terms import FailureClass, Phase, VerdictAction
from support.story import ACT, Story


def test_a_rank_killed_from_outside_is_restarted_in_place_and_nobody_is_blamed() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9, after=0.05)
    story.exit(4, code=1, after=0.01)
    story.wait(3)
    (restart,) = story.given(cmd.RestartGang)
    assert restart.avoid == ()
    assert restart.next_attempt == 2
    assert not story.given(cmd.Quarantine)
    (incident,) = story.incidents
    assert incident.diagnosis is not None
    assert incident.diagnosis.failure_class == FailureClass.UNKNOWN
    assert str(incident.diagnosis.culprit) == "rank 3"
    assert incident.diagnosis.suspects == ()
    story.train(3)
    assert story.incidents[0].job.state == JobState.RECOVERED
    assert not story.incidents[0].open
    assert list(dict.fromkeys(place.node for place in story.job.placement)) == [
        "node0",
        "node1",
        "node2",
        "node3",
    ]


def test_xid_79_and_the_death_of_its_rank_move_the_gang_to_the_spare_and_quarantine_the_node() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(79, "node1")
    story.says(2, "torch.cuda.launch_failure")
    story.exit(2, code=1, after=0.05)
    story.wait(3)
    (incident,) = story.incidents
    assert incident.diagnosis.failure_class == FailureClass.GPU_HARDWARE
    assert str(incident.diagnosis.culprit) == "gpu node1/0000:01:00"
    assert incident.diagnosis.action == VerdictAction.REBOOT_NODE
    (restart,) = story.given(cmd.RestartGang)
    assert restart.avoid == ("node1",)
    assert story.quarantined == {"node1"}
    assert [b.state for b in incident.nodes] == [NodeState.QUARANTINED]
    story.train(3)
    assert story.incidents[0].job.state == JobState.RECOVERED
    assert story.incidents[0].open, "the node is still out of service: the incident stays open for it"
    assert "node4" in story.job.nodes
    assert "node1" not in story.job.nodes


def test_xid_79_alone_taints_the_node_and_leaves_a_training_job_alone() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(79, "node1")
    story.train(50)
    story.wait(1)
    assert story.quarantined == {"node1"}
    assert not story.given(cmd.RestartGang)
    assert story.attempt == 1


def test_an_application_xid_never_takes_a_node_out_of_service() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(31, "node1")
    story.exit(2, code=1, after=0.05)
    story.wait(3)
    assert story.quarantined == set()
    (restart,) = story.given(cmd.RestartGang)
    assert restart.avoid == ()


def test_a_frozen_rank_is_found_named_looked_at_and_the_gang_restarted() -> None:
    story = Story(restarts_work=True)
    story.train(100, save=True)
    story.wait(61)
    (capture,) = story.given(cmd.CaptureEvidence)
    assert set(capture.ranks) == set(range(8))
    assert not story.given(cmd.RestartGang), "nothing is ended before it was looked at"
    story.tell(ev.SignalSeen(story.probe(5, "rank.stopped")))
    story.tell(ev.CommandDone(capture.id, path="evidence/inc-1"))
    (restart,) = story.given(cmd.RestartGang)
    assert restart.avoid == ()
    (incident,) = story.incidents
    assert str(incident.diagnosis.culprit) == "rank 5"
    assert incident.evidence == ("evidence/inc-1",)
    story.train(2)
    assert story.incidents[0].job.state == JobState.RECOVERED


def test_a_pause_that_ends_by_itself_is_no_hang() -> None:
    story = Story()
    story.train(100, save=True)
    story.wait(61)
    (capture,) = story.given(cmd.CaptureEvidence)
    story.train(1)
    story.tell(ev.CommandDone(capture.id))
    assert not story.given(cmd.RestartGang)
    assert story.incidents[0].job.state == JobState.DISMISSED
    story.train(5)
    story.wait(100)
    assert len(story.incidents) == 1, "a pause of 61 s was survived: twice as long is waited from now on"


def test_the_same_exception_at_the_same_step_twice_stops_the_job() -> None:
    story = Story()
    story.train(20, save=True)
    story.train(5)
    for _ in range(2):
        story.says(
            0,
            "python.exception",
            exception="ValueError",
            message="bad sample",
            signature="ValueError@data.py:7",
        )
        story.exit(0, code=1, after=0.05)
        story.wait(3)
        story.train(5)
    assert len(story.given(cmd.RestartGang)) == 1
    (stop,) = story.given(cmd.StopJob)
    assert "twice" in stop.reason
    assert "ValueError" in stop.reason
    (incident,) = story.incidents
    assert incident.diagnosis.failure_class == FailureClass.USER_CODE
    assert incident.diagnosis.action == VerdictAction.FIX_USER_CODE
    assert story.job.result == "stopped"
    assert any("stopped" in n.text for n in story.given(cmd.Notify))


def test_the_same_exception_at_another_step_is_tried_again() -> None:
    story = Story()
    story.train(20, save=True)
    story.says(0, "python.exception", exception="ValueError", signature="v")
    story.exit(0, code=1)
    story.wait(3)
    story.train(10, save=True)
    story.says(0, "python.exception", exception="ValueError", signature="v")
    story.exit(0, code=1)
    story.wait(3)
    assert len(story.given(cmd.RestartGang)) == 2
    assert not story.given(cmd.StopJob)


def test_exit_93_is_final() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(0, code=93)
    story.wait(3)
    assert not story.given(cmd.RestartGang)
    assert len(story.given(cmd.StopJob)) == 1


def test_restarts_that_do_not_help_are_spaced_out_and_end_with_a_person() -> None:
    story = Story(policy=replace(ACT, restarts=RestartBudget(per_hour=3)))
    story.train(20, save=True)
    gaps: list[float] = []
    for i in range(4):
        began, before = story.now, len(story.commands)
        story.exit(0, code=40 + i)
        while not any(isinstance(c, cmd.RestartGang | cmd.StopJob) for c in story.commands[before:]):
            story.wait(1)
        gaps.append(story.now - began)
    assert len(story.given(cmd.RestartGang)) == 3
    assert gaps[0] < 4
    assert 30 < gaps[1] < 40
    assert 60 < gaps[2] < 72
    (stop,) = story.given(cmd.StopJob)
    assert "budget of 3 an hour" in stop.reason


def test_lasting_progress_clears_the_restart_budget() -> None:
    story = Story(policy=replace(ACT, restarts=RestartBudget(per_hour=2)))
    for i in range(6):
        story.train(20, save=True)
        story.exit(i, signal=9)
        story.wait(3)
    assert len(story.given(cmd.RestartGang)) == 6
    assert not story.given(cmd.StopJob)


def test_without_a_spare_the_gang_waits_says_for_what_and_goes_on_when_a_node_comes() -> None:
    story = Story(spares=0)
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1, after=0.05)
    story.wait(10)
    assert not story.given(cmd.RestartGang)
    (incident,) = story.incidents
    assert incident.job.state == JobState.WAITING
    assert "1 more usable node" in incident.job.waiting_for
    story.names.append("node9")
    story.tell(ev.NodeSeen(Node("node9", boot_id="boot-1")))
    assert len(story.given(cmd.RestartGang)) == 1
    assert "node9" in story.job.nodes


def test_a_released_node_ends_the_wait() -> None:
    story = Story(spares=0)
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1)
    story.wait(10)
    story.tell(ev.NodeReleaseRequested("node1", by="ann"))
    story.wait(60)
    assert story.quarantined == set()
    assert len(story.given(cmd.Release)) == 1
    assert len(story.given(cmd.RestartGang)) == 1


def test_a_reboot_clears_what_a_reboot_clears() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(79, "node1")
    story.wait(1)
    assert story.quarantined == {"node1"}
    node = story.state.nodes["node1"]
    story.tell(ev.NodeSeen(replace(node, boot_id="boot-2")))
    assert story.quarantined == set()
    assert not story.incidents[0].open


def test_only_one_of_five_nodes_may_be_out_of_service_and_the_second_waits_its_turn() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(79, "node1")
    story.xid(48, "node2")
    story.wait(5)
    assert story.quarantined == {"node1"}
    second = next(i for i in story.incidents if i.branch("node2"))
    assert "1 may be" in second.branch("node2").waiting_for
    story.tell(ev.NodeReleaseRequested("node1", by="ann"))
    story.wait(1)
    assert story.quarantined == {"node2"}


def test_the_same_fault_on_many_nodes_trips_the_brake_and_gangs_are_still_restarted() -> None:
    story = Story(nodes=8, spares=2, policy=replace(ACT, nodes=NodeBudget(at_once_min=8)))
    story.train(20, save=True)
    for i in range(6):
        story.xid(79, f"node{i}")
    story.wait(1)
    assert len(story.quarantined) <= 3
    assert story.state.brake.tripped
    assert any("brake" in n.text for n in story.given(cmd.Notify))
    story.exit(15, signal=9)
    story.wait(5)
    held = len(story.quarantined)
    story.tell(ev.BrakeReleased(by="ann"))
    assert not story.state.brake.tripped or held


def test_observe_mode_touches_nothing_and_says_what_it_would_have_done() -> None:
    story = Story(policy=Policy())
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1)
    story.wait(5)
    assert not story.given(cmd.RestartGang)
    assert not story.given(cmd.Quarantine)
    assert any(n.text.startswith("would restart") for n in story.given(cmd.Notify))


def test_a_switched_off_action_is_not_taken() -> None:
    story = Story(policy=Policy(mode="act", actions=Actions(quarantine=False)))
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1)
    story.wait(5)
    assert not story.given(cmd.Quarantine)
    (restart,) = story.given(cmd.RestartGang)
    assert restart.avoid == ("node1",), "the job keeps off the suspect even where the node may not be marked"


def test_a_restart_that_never_comes_up_is_given_again_and_then_given_up() -> None:
    story = Story(restarts_work=False, policy=replace(ACT, deadlines=Deadlines(restart_s=20, grace_s=1)))
    story.train(20, save=True)
    story.exit(0, signal=9)
    story.wait(200)
    assert len({c.next_attempt for c in story.given(cmd.RestartGang)}) == 1
    assert len(story.given(cmd.RestartGang)) == 3
    assert len(story.given(cmd.StopJob)) == 1


def test_the_bill_adds_up_and_names_every_phase() -> None:
    story = Story()
    story.train(20, save=True)
    story.train(5)
    started = story.job.account.started_at
    story.exit(3, signal=9, after=0.05)
    story.wait(2.5)
    story.train(7)
    account = story.job.account
    assert sum(account.phases.values()) == pytest.approx(account.settled_at - started)
    bill = story.incidents[0].bill
    assert bill.steps_redone == 5
    assert bill.phases[Phase.DETECT] == pytest.approx(0.05, abs=0.01)
    assert bill.phases[Phase.DIAGNOSE] == pytest.approx(2.0, abs=0.05)
    assert bill.phases[Phase.STOP] == pytest.approx(0.2, abs=0.01)
    assert bill.phases[Phase.RECOMPUTE] > 0.3
    assert bill.gpus == 8
    assert bill.gpu_hours == pytest.approx(bill.seconds * 8 / 3600)
    assert 0 < ettr(account) < 1


def test_a_slow_node_is_reported_and_never_moved() -> None:
    story = Story()
    story.train(20, save=True)
    for _ in range(3):
        _work(story, slow={4, 5}, seconds=0.2)
    assert story.job.slow == ["node2"]
    (incident,) = story.incidents
    assert incident.diagnosis.failure_class == FailureClass.DEGRADATION
    assert str(incident.diagnosis.culprit) == "node node2"
    assert not story.given(cmd.RestartGang)
    assert not story.given(cmd.Quarantine)
    for _ in range(3):
        _work(story, slow=set(), seconds=0.1)
    assert not story.incidents[0].open


def test_a_late_event_of_an_earlier_attempt_changes_nothing() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    story.train(3)
    story.tell(ev.RankExited("train", 1, 5, story.now, signal=9))
    story.tell(ev.AttemptEnded("train", 1))
    story.wait(10)
    assert len(story.given(cmd.RestartGang)) == 1
    assert len(story.incidents) == 1


def test_a_finished_job_closes_what_is_still_open_for_it() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    story.train(1)
    story.tell(ev.AttemptEnded("train", 2))
    story.tell(ev.JobSucceeded("train", 2))
    assert story.job.result == "succeeded"
    assert not story.incidents[0].open


def _work(story: Story, *, slow: set[int], seconds: float, steps: int = 25) -> None:
    """A window of steps in which some ranks compute longer and the others wait for them."""
    from reknit.model.progress import RankProgress

    totals = {r: dict(v.progress.phase_seconds) if v.progress else {} for r, v in story.job.ranks.items()}
    for _ in range(steps):
        story.now += seconds
        story.step += 1
        news = {}
        for rank, spent in totals.items():
            own = seconds if rank in slow else 0.08
            spent["compute"] = spent.get("compute", 0.0) + own
            spent["communicate"] = spent.get("communicate", 0.0) + seconds - own
            news[rank] = RankProgress(
                step=story.step,
                step_at=story.now,
                durations=(seconds,),
                phase_seconds=dict(spent),
                alive_at=1.0,
            )
        story.tell(ev.ProgressSeen("train", story.attempt, news))


def test_what_is_only_observed_is_reported_once() -> None:
    story = Story(policy=Policy())
    story.train(100, save=True)
    story.wait(70)
    for capture in story.given(cmd.CaptureEvidence):
        story.tell(ev.CommandDone(capture.id))
    story.wait(600)
    assert len(story.incidents) == 1
    story.train(1)
    story.exit(1, signal=9)
    story.wait(5)
    assert len(story.incidents) == 2, "it went on in between: this is something new"
    story.exit(2, code=1, after=30)
    story.wait(60)
    assert len(story.incidents) == 2


def test_silence_while_nobody_watched_is_no_hang() -> None:
    story = Story()
    story.train(100, save=True)
    story.now += 3600
    story.tell(ev.WatchResumed())
    story.wait(50)
    assert story.incidents == []
    story.wait(20)
    assert len(story.given(cmd.CaptureEvidence)) == 1


def test_ranks_that_do_not_wait_for_each_other_have_all_to_pass_the_point_of_failure() -> None:
    story = Story()
    story.train(20, save=True)
    for _ in range(2):
        story.exit(0, code=3)
        story.wait(3)
        story.train(4, ranks=[1, 2, 3, 4, 5, 6, 7])
    assert len(story.incidents) == 1, "rank 0 failed again before it had passed the step"
    assert len(story.given(cmd.StopJob)) == 1


def test_the_same_evidence_does_not_condemn_a_node_again_after_a_person_gave_it_back() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(79, "node1")
    old = story.incidents[0].signals[0]
    story.wait(1)
    assert story.quarantined == {"node1"}
    story.tell(ev.NodeReleaseRequested("node1", by="ann"))
    story.wait(5)
    story.tell(ev.SignalSeen(old))
    story.wait(5)
    assert story.quarantined == set(), "a log that is read again is no news"
    story.xid(79, "node1")
    story.wait(5)
    assert story.quarantined == {"node1"}, "a new record is"


def test_a_rank_that_never_tells_a_step_is_not_hung_while_the_others_go_on() -> None:
    from reknit.model.progress import RankProgress

    story = Story()
    story.train(50, ranks=[0], save=True)
    loaded = RankProgress(loaded_step=40, loaded_at=story.now, alive_at=story.now)
    story.tell(ev.ProgressSeen("train", 1, {1: loaded}))
    for _ in range(40):
        story.train(100, ranks=[0], save=True)
        story.wait(0.1)
    assert not story.given(cmd.CaptureEvidence)
    assert story.incidents == []


def test_a_step_that_is_read_after_the_death_was_still_made_before_it() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.train(1)
    story.wait(3)
    story.step = 19
    story.train(1)
    assert story.incidents[0].job.state == JobState.RECOMPUTING, (
        "step 20 was made before, by the attempt that died"
    )
    story.train(1)
    assert story.incidents[0].job.state == JobState.RECOVERED
