"""Defects that the property tests found in the engine, each as a story with the right ending."""

from __future__ import annotations

import math
import random
from statistics import median

import pytest
from msgspec.structs import replace

from reknit.engine import Engine
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.entities import Entity, JobSpec, RankPlacement
from reknit.model.incidents import JobState
from reknit.model.policy import Actions, Deadlines, Policy, RestartBudget, Slowness, Stall
from reknit.model.progress import RankProgress
from reknit.model.state import JobAccount, JobView, RankView, WorkWindow, pack, unpack
from reknit.model.terms import FailureClass, Phase, Trust
from reknit.sense.slowness import judge
from support.held import Held, kernel_record, the_incident
from support.story import ACT, CATALOG, Story

LAST_S = Stall(step_floor_s=5, startup_floor_s=20, startup_ceiling_s=40, step_ceiling_s=40)
OBSERVE = Policy(stall=LAST_S)


# What is remembered, and who hears of it


def test_an_incident_that_is_forgotten_as_it_closes_is_still_told_of() -> None:
    story = Story(policy=replace(ACT, keep_incidents=0))
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    story.train(1)
    assert story.job.state == "running"
    (closed,) = story.engine.changed
    assert closed.job is not None
    assert closed.job.state == JobState.RECOVERED
    assert closed.bill.phases[Phase.DIAGNOSE] == pytest.approx(2.0, abs=0.05)
    assert story.incidents == []


def test_times_that_are_yet_to_come_hold_nothing_open_and_hide_no_hang() -> None:
    story = Story(policy=replace(ACT, stall=LAST_S))
    later = story.now + 1e6
    story.tell(ev.SignalSeen(kernel_record(story, "kernel.nfs.not_responding", "node0", last_seen=later)))
    story.wait(1300)
    assert not the_incident(story).open, "nothing more was seen of it for ten minutes"
    news = RankProgress(step=7, step_at=later, alive_at=later, durations=(0.1,))
    story.tell(ev.ProgressSeen("train", 1, dict.fromkeys(range(8), news)))
    story.wait(60)
    assert len(story.given(cmd.CaptureEvidence)) == 1


def test_numbers_that_are_none_never_reach_the_state() -> None:
    story = Story()
    bad = RankProgress(
        step=1, step_at=math.nan, durations=(math.inf, 0.5), phase_seconds={"compute": math.nan, "wait": 1.0}
    )
    story.tell(ev.ProgressSeen("train", 1, {0: bad}))
    story.tell(ev.SignalSeen(kernel_record(story, "nvidia.xid.31", "node0", last_seen=math.inf, count=-4)))
    progress = story.job.ranks[0].progress
    assert (progress.step_at, progress.durations, progress.phase_seconds) == (
        story.now,
        (0.5,),
        {"wait": 1.0},
    )
    assert (story.state.recent[-1].last_seen, story.state.recent[-1].count) == (story.now, 1)
    assert pack(unpack(pack(story.state))) == pack(story.state)


def test_attributes_from_elsewhere_are_text_and_may_be_anything() -> None:
    story = Story()
    story.train(100, save=True)
    story.wait(61)
    (capture,) = story.given(cmd.CaptureEvidence)
    story.says(5, "rank.stall", last_sign="yesterday")
    story.tell(ev.SignalSeen(replace(story.probe(5, "rank.stopped"), entity=Entity("rank", "²"))))
    story.tell(ev.CommandDone(capture.id))
    assert len(story.given(cmd.RestartGang)) == 1


def test_the_kernels_word_is_heard_after_a_storm_of_deaths() -> None:
    story = Story(nodes=300)
    story.train(2)
    for rank in range(600):
        story.exit(rank, code=1)
    story.xid(79, "node7")
    story.wait(3)
    incident = the_incident(story)
    assert len(incident.signals) == 513
    assert incident.diagnosis is not None
    assert incident.diagnosis.suspects == ("node7",)
    assert story.given(cmd.RestartGang)[0].avoid == ("node7",)


# Silence


@pytest.mark.parametrize(
    "policy", [OBSERVE, Policy(mode="act", actions=Actions(restart_job=False), stall=LAST_S)]
)
def test_a_silence_that_may_only_be_observed_is_reported_once_and_not_with_every_step_of_the_others(
    policy: Policy,
) -> None:
    story = Held(policy=policy)
    story.train(20, save=True)
    for _ in range(40):
        story.now += 1.0
        story.train(1, ranks=[0, 1, 2, 3, 4, 6, 7])
        story.tell(ev.Tick())
        for capture in story.given(cmd.CaptureEvidence):
            story.tell(ev.CommandDone(capture.id))
    assert len(story.given(cmd.CaptureEvidence)) == 1
    assert len(story.incidents) == 1


def test_an_attempt_that_vanishes_before_its_first_step_is_not_waited_for() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    assert the_incident(story).job.state == JobState.RELOADING  # type: ignore[union-attr]
    story.tell(ev.AttemptEnded("train", 2))
    assert the_incident(story).job.state == JobState.SUSPECTED  # type: ignore[union-attr]
    story.wait(40)
    assert [c.next_attempt for c in story.given(cmd.RestartGang)] == [2, 3]


def test_an_attempt_whose_every_rank_ended_well_is_not_restarted_for_want_of_a_word() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    for rank in range(8):
        story.exit(rank, code=0)
    story.tell(ev.AttemptEnded("train", 2))
    story.wait(4000)
    assert the_incident(story).job.state == JobState.RECOVERED  # type: ignore[union-attr]
    assert len(story.given(cmd.RestartGang)) == 1


def test_an_attempt_of_which_no_rank_was_ever_named_can_end_badly_too() -> None:
    story = Story()
    story.tell(ev.AttemptStarted("train", 2, ()))
    story.tell(ev.AttemptEnded("train", 2))
    assert the_incident(story).job.state == JobState.SUSPECTED  # type: ignore[union-attr]


def test_a_gang_restarted_by_somebody_else_is_watched_at_once_however_far_off_the_next_deadline_is() -> None:
    story = Story(policy=replace(ACT, stall=LAST_S))
    story.train(20, save=True)
    story.xid(79, "node4")  # the spare: quarantined, and a person reminded of it a day later
    story.tell(ev.AttemptStarted("train", 2, story.job.placement))
    due = story.engine.next_deadline()
    assert due is not None
    assert due <= story.now + LAST_S.startup_ceiling_s


# Restarts


def test_a_restart_that_could_not_be_carried_out_is_not_charged_twice() -> None:
    story = Held(cmd.RestartGang, policy=replace(ACT, restarts=RestartBudget(per_hour=1)))
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    (first,) = story.given(cmd.RestartGang)
    story.tell(ev.CommandFailed(first.id, ""))
    assert the_incident(story).job.waiting_for == "the next try"  # type: ignore[union-attr]
    story.wait(31)
    assert [c.next_attempt for c in story.given(cmd.RestartGang)] == [2, 2]
    assert not story.given(cmd.StopJob)


def test_a_checkpoint_numbered_one_beyond_its_step_does_not_clear_the_budget() -> None:
    story = Story(policy=replace(ACT, restarts=RestartBudget(per_hour=2)))

    def step(number: int) -> None:
        story.now += 1
        news = RankProgress(step=number, step_at=story.now, saved_step=number + 1, saved_at=story.now)
        story.tell(ev.ProgressSeen("train", story.attempt, dict.fromkeys(range(8), news)))

    step(10)
    for signal in (9, 11, 7):
        story.exit(0, signal=signal)
        story.wait(100)
        step(10)
    assert len(story.given(cmd.RestartGang)) == 2
    assert len(story.given(cmd.StopJob)) == 1


def test_a_job_that_may_not_be_stopped_is_not_stopped_when_a_restart_is_given_up() -> None:
    policy = Policy(mode="act", actions=Actions(stop_job=False), deadlines=Deadlines(restart_s=20, grace_s=1))
    story = Story(restarts_work=False, policy=policy)
    story.exit(0, signal=9)
    story.wait(200)
    assert len(story.given(cmd.RestartGang)) == 3
    assert not story.given(cmd.StopJob)
    assert the_incident(story).job.state == JobState.DISMISSED  # type: ignore[union-attr]
    assert story.given(cmd.Notify)[-1].text.startswith(
        "would stop the job (attempt 2 did not run after 3 tries)"
    )


@pytest.mark.parametrize("kind", [cmd.RestartGang, cmd.StopJob])
def test_what_was_ordered_is_not_ordered_again_once_the_policy_only_observes(kind: type[cmd.Command]) -> None:
    story = Held(kind)
    story.train(2)
    story.exit(0, code=93 if kind is cmd.StopJob else 1)
    story.wait(3)
    assert len(story.given(kind)) == 1
    story.engine = Engine(CATALOG, Policy(), story.state)
    story.wait(1000)
    assert len(story.given(kind)) == 1
    assert the_incident(story).job.state == JobState.DISMISSED  # type: ignore[union-attr]


def test_a_restart_given_again_keeps_off_the_nodes_that_became_unusable_meanwhile() -> None:
    story = Held(cmd.RestartGang, spares=3, policy=replace(ACT, deadlines=Deadlines(restart_s=20, grace_s=1)))
    story.train(20, save=True)
    story.exit(0, signal=9)
    story.wait(3)
    story.xid(79, "node1")
    story.xid(48, "node2")
    story.wait(25)
    first, again = story.given(cmd.RestartGang)
    assert (first.avoid, again.avoid) == ((), ("node1", "node2"))


def test_our_own_attempt_that_runs_too_late_is_stopped_as_was_decided() -> None:
    policy = replace(ACT, deadlines=Deadlines(restart_s=20, grace_s=1))
    story = Held(cmd.StopJob, restarts_work=False, policy=policy)
    story.train(2)
    story.exit(0, signal=9)
    story.wait(70)
    (stop,) = story.given(cmd.StopJob)
    story.start(2, story.names[:4])
    assert the_incident(story).job.state == JobState.STOPPING  # type: ignore[union-attr]
    story.tell(ev.CommandDone(stop.id))
    assert story.job.result == "stopped"
    assert len(story.given(cmd.RestartGang)) == 3


def test_a_person_is_told_once_that_a_job_is_stopped_however_often_the_order_is_given() -> None:
    story = Held(cmd.StopJob)
    story.exit(0, code=93)
    story.wait(500)
    assert len(story.given(cmd.StopJob)) > 3
    assert len(story.given(cmd.Notify)) == 1


def test_the_words_of_another_job_are_no_evidence_for_thisthe_incident() -> None:
    story = Story()
    story.tell(ev.JobSubmitted(JobSpec("other", 1, 1)))
    story.train(2)
    story.xid(79, "node1")
    story.exit(2, code=1)
    killed = kernel_record(story, "kernel.oom.host", "node1", job="other", attempt=1, rank=0)
    story.tell(ev.SignalSeen(replace(killed, entity=Entity("rank", "0"), trust=Trust.DRIVER_API)))
    story.wait(3)
    diagnosis = the_incident(story).diagnosis
    assert diagnosis is not None
    assert diagnosis.failure_class == FailureClass.GPU_HARDWARE


def test_progress_of_ranks_that_the_gang_does_not_have_is_nobodys() -> None:
    story = Story()
    story.train(5)
    story.tell(ev.ProgressSeen("train", 1, {99: RankProgress(step=10**6, step_at=story.now)}))
    assert (story.job.high_step, story.job.attempt_high) == (4, 4)


# The account


def test_time_in_which_a_job_that_may_not_be_restarted_lies_down_is_lost() -> None:
    story = Story(policy=Policy())
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(10)
    story.tell(ev.AttemptEnded("train", 1))
    story.wait(1000)
    story.step = story.saved = 9
    story.start(2, story.names[:4])
    story.train(15)
    phases = story.job.account.phases
    assert phases[Phase.PRODUCTIVE] == pytest.approx(1.9 + 0.5, abs=0.2)
    assert phases[Phase.DECIDE] == pytest.approx(8.0, abs=0.2)
    assert phases[Phase.REQUEUE] == pytest.approx(1000.0, abs=0.2)
    assert phases[Phase.RECOMPUTE] == pytest.approx(0.9, abs=0.2)


# Large gangs


def test_slow_nodes_are_judged_by_the_same_numbers_in_gangs_of_any_size_and_order() -> None:
    draw = random.Random(7)
    for _ in range(50):
        ranks = draw.sample(range(40), draw.randint(2, 24))
        places = tuple(RankPlacement(rank, f"node{draw.randint(0, 5)}") for rank in ranks)
        own = {rank: draw.choice([1.0, 1.1, 3.0]) for rank in ranks}
        job = JobView(JobSpec("train", 6, 4), JobAccount(0.0, 0.0), placement=places)
        job.ranks = {
            rank: RankView(
                progress=RankProgress(step=20, phase_seconds={"compute": 1.0, "wait": 1.0}),
                window=WorkWindow(mark_step=0, mark_own=0.0, step=20, own=20 * seconds),
            )
            for rank, seconds in own.items()
        }
        expected: dict[str, float] = {}
        for node in job.nodes:
            mine = [own[p.rank] for p in places if p.node == node]
            others = [own[p.rank] for p in places if p.node != node]
            if others and min(mine) / median(others) >= 1.5:
                expected[node] = min(mine) / median(others)
        assert {v.node: v.ratio for v in judge(job, Slowness())} == pytest.approx(expected)
        assert [job.node_of(p.rank) for p in places] == [p.node for p in places]
        assert job.node_of(41) == ""
