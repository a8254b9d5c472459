"""The engine in a model world that misbehaves in every way that orchestrators, nodes, jobs and persons do.

The default profile draws the same examples every time. Fresh ones, and many of them:
    PROPERTIES=fresh pytest tests/property
    PROPERTIES=thorough pytest --timeout=0 tests/property     (fifty times as many)
"""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from property.parts import POLICIES, Gang, How
from property.profiles import MACHINE
from property.replay import replay_is_the_same
from property.world import World
from reknit.model import events as ev
from reknit.model.terms import Trust

_EXITS = st.one_of(
    st.tuples(st.sampled_from([0, 1, 2, 93, 134, 137, 139, 143, 255, -9]), st.none()),
    st.tuples(st.none(), st.sampled_from([1, 6, 7, 9, 11, 15, 64, 999])),
    st.tuples(st.none(), st.none()),
)
_FATAL = ["nvidia.xid.79", "nvidia.xid.48", "nvidia.xid.95", "kernel.panic", "kernel.soft_lockup"]
_MILD = [
    "nvidia.xid.31",
    "nvidia.xid.13",
    "kernel.oom.host",
    "kernel.nfs.not_responding",
    "kernel.edac.ce",
    "nvidia.xid.1",
]
_WORDS = [
    "python.exception",
    "torch.cuda.launch_failure",
    "nccl.watchdog",
    "numerical.nan",
    "training.xid_text",
    "what.ever",
]
_PROBES = ["rank.stopped", "rank.disk_wait", "rank.no_cpu"]
_HOW: list[How] = ["done", "done", "done", "twice", "fails", "refused", "lost", "outcome lost"]

keep_back = st.booleans()
which = st.integers(min_value=0, max_value=5)


class MisbehavingWorld(RuleBasedStateMachine):
    """Anything may happen at any time; the laws are checked after each event."""

    world: World

    @initialize(
        policy=st.sampled_from(sorted(POLICIES)),
        nodes=st.integers(2, 7),
        jobs=st.integers(1, 3),
        reports=st.booleans(),
    )
    def begin(self, policy: str, nodes: int, jobs: int, reports: bool) -> None:
        self.world = World(POLICIES[policy], nodes=nodes, jobs=jobs, reports=reports or jobs == 1)
        self.fresh_node = 100

    def gang(self, i: int) -> Gang:
        gangs = list(self.world.gangs.values())
        return gangs[i % len(gangs)]

    def node(self, i: int) -> str:
        names = list(self.world.nodes)
        return names[i % len(names)] if names else "node0"

    # time

    @rule(seconds=st.sampled_from([0.0, 0.01, 1.0, 10.0, 100.0, 5000.0]))
    def time_passes_without_ticks(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(times=st.integers(1, 6))
    def ticks_come_when_due(self, times: int) -> None:
        for _ in range(times):
            self.world.tick_when_due()

    @rule(back=st.sampled_from([0.0, 5.0, 5000.0]))
    def a_tick_for_nothing(self, back: float) -> None:
        self.world.tell(ev.Tick(), back=back)

    @rule(blind=st.sampled_from([1.0, 200.0, 8000.0]))
    def nobody_watched_for_a_while(self, blind: float) -> None:
        self.world.now += blind
        self.world.tell(ev.WatchResumed())

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def the_owner_changes_the_policy(self, policy: str) -> None:
        self.world.begin_again(POLICIES[policy])

    # training

    @rule(
        i=which,
        steps=st.integers(1, 25),
        save=st.booleans(),
        slow=which,
        only=st.sampled_from([None, None, 0, 1]),
        keep_back=keep_back,
    )
    def gang_trains(
        self, i: int, steps: int, save: bool, slow: int, only: int | None, keep_back: bool
    ) -> None:
        self.world.train(
            self.gang(i), steps, save=save, slow=self.node(slow), only=only, keep_back=keep_back and steps < 3
        )

    @rule(i=which, phase=st.sampled_from(["checkpoint", "evaluation", "warmup", "communicate"]))
    def gang_names_its_phase(self, i: int, phase: str) -> None:
        self.world.train(self.gang(i), 2, phase=phase)

    @rule(i=which, skew=st.sampled_from([-30.0, 3600.0, 1e9, math.inf, math.nan]))
    def clocks_are_wrong(self, i: int, skew: float) -> None:
        self.world.skew = skew
        self.world.train(self.gang(i), 2, save=True)
        self.world.skew = 0.0

    @rule(i=which, slow=which, windows=st.integers(1, 3))
    def a_node_is_slow(self, i: int, slow: int, windows: int) -> None:
        self.world.train(self.gang(i), 25 * windows, slow=self.node(slow))

    @rule(i=which, by=st.integers(1, 50))
    def steps_go_backwards(self, i: int, by: int) -> None:
        gang = self.gang(i)
        gang.step = max(-1, gang.step - by)
        self.world.train(gang, 1)

    @rule(i=which, ticks=st.integers(1, 8))
    def gang_hangs(self, i: int, ticks: int) -> None:
        self.gang(i).hung = True
        for _ in range(ticks):
            self.world.tick_when_due()

    @rule(i=which)
    def a_hang_ends_by_itself(self, i: int) -> None:
        self.gang(i).hung = False
        self.world.train(self.gang(i), 1)

    @rule(i=which)
    def job_succeeds(self, i: int) -> None:
        gang = self.gang(i)
        if not gang.healthy or gang.gone:
            return
        for place in gang.placement:
            self.world.die(gang, place.rank, 0, None)
        self.world.end(gang, seen=False)
        gang.over = ev.JobSucceeded(gang.spec.id, gang.attempt)
        self.world.tell(gang.over)

    @rule(i=which, keep_back=keep_back)
    def owner_gives_up(self, i: int, keep_back: bool) -> None:
        gang = self.gang(i)
        if gang.gone:
            return
        gang.over = ev.JobAbandoned(gang.spec.id, gang.attempt, "enough")
        self.world.end(gang, seen=False)
        self.world.say([gang.over], keep_back)

    # faults

    @rule(i=which, rank=which, how=_EXITS, keep_back=keep_back)
    def a_rank_dies(self, i: int, rank: int, how: tuple[int | None, int | None], keep_back: bool) -> None:
        self.world.die(self.gang(i), rank, *how, keep_back=keep_back)

    @rule(i=which, seen=st.booleans(), keep_back=keep_back)
    def the_whole_gang_dies(self, i: int, seen: bool, keep_back: bool) -> None:
        self.world.end(self.gang(i), seen=seen, keep_back=keep_back)

    @rule(
        i=which,
        code=st.sampled_from(_FATAL),
        ago=st.sampled_from([0.0, 30.0, -30.0, -90000.0]),
        times=st.integers(1, 3),
    )
    def a_device_fails(self, i: int, code: str, ago: float, times: int) -> None:
        for _ in range(times):
            self.world.tell(self.world.signal(code, self.node(i), ago=ago))

    @rule(i=which, code=st.sampled_from(_MILD))
    def a_kernel_remarks(self, i: int, code: str) -> None:
        self.world.tell(self.world.signal(code, self.node(i)))

    @rule(i=which, code=st.sampled_from(_FATAL), joined=st.booleans())
    def somebody_forges_a_record(self, i: int, code: str, joined: bool) -> None:
        trust = Trust.TRAINING_LOG if joined else Trust.KERNEL_RECORD
        self.world.tell(self.world.signal(code, self.node(i), trust=trust, joined=joined, gang=self.gang(i)))

    @rule(i=which, rank=which, code=st.sampled_from(_WORDS + _PROBES), keep_back=keep_back)
    def a_rank_says_something(self, i: int, rank: int, code: str, keep_back: bool) -> None:
        gang = self.gang(i)
        event = self.world.signal(
            code, self.node(rank), gang=gang, rank=rank, trust=Trust.TRAINING_LOG, signature="x"
        )
        self.world.say([event], keep_back)

    @precondition(lambda self: len(self.world.nodes) > 1)
    @rule(i=which)
    def a_node_disappears(self, i: int) -> None:
        self.world.lose_node(self.node(i))

    @rule()
    def a_node_arrives(self) -> None:
        self.fresh_node += 1
        self.world.add_node(f"node{self.fresh_node}")

    @rule(i=which)
    def a_node_boots(self, i: int) -> None:
        self.world.reboot(self.node(i))

    @rule(
        i=which,
        rank=which,
        how=_EXITS,
        carried_out=st.sampled_from(_HOW),
        steps=st.sampled_from([0, 0, 2, 30]),
        fatal=st.booleans(),
    )
    def a_failure_and_what_is_done_about_it(
        self,
        i: int,
        rank: int,
        how: tuple[int | None, int | None],
        carried_out: How,
        steps: int,
        fatal: bool,
    ) -> None:
        gang = self.gang(i)
        if fatal and gang.placement:
            self.world.tell(self.world.signal("nvidia.xid.79", gang.placement[0].node))
        self.world.die(gang, rank % gang.spec.ranks, *how)
        self.world.answer(gang, carried_out)
        self.world.train(gang, steps, save=steps > 2)

    @rule(i=which, carried_out=st.sampled_from(_HOW), only=st.sampled_from([None, 0]))
    def a_hang_and_what_is_done_about_it(self, i: int, carried_out: How, only: int | None) -> None:
        gang = self.gang(i)
        self.world.train(gang, 2, only=only)
        gang.hung = True
        self.world.answer(gang, carried_out)

    @rule(i=which, carried_out=st.sampled_from(_HOW), soon=st.booleans())
    def a_pause_that_ends_by_itself(self, i: int, carried_out: How, soon: bool) -> None:
        gang = self.gang(i)
        self.world.train(gang, 2)
        self.world.tick_when_due()
        if soon:
            self.world.train(gang, 1)
        self.world.answer(gang, carried_out)
        self.world.train(gang, 2)

    @rule(i=which, rank=which, carried_out=st.sampled_from(_HOW))
    def a_rank_falls_silent_while_others_go_on(self, i: int, rank: int, carried_out: How) -> None:
        gang = self.gang(i)
        self.world.train(gang, 2)
        self.world.train(gang, 8, without=rank, seconds=20.0)
        self.world.answer(gang, carried_out)
        self.world.train(gang, 3, without=rank)

    # persons

    @rule(i=which)
    def a_person_releases_a_node(self, i: int) -> None:
        self.world.tell(ev.NodeReleaseRequested(self.node(i), by="ann"))

    @rule()
    def a_person_releases_the_brake(self) -> None:
        self.world.tell(ev.BrakeReleased(by="ann"))

    @rule(i=which, jump=st.sampled_from([1, 1, 5]), keep_back=keep_back)
    def a_person_restarts_the_gang(self, i: int, jump: int, keep_back: bool) -> None:
        gang = self.gang(i)
        if not gang.gone:
            self.world.end(gang, keep_back=keep_back)
            self.world.start(gang, gang.attempt + jump, (), keep_back=keep_back)

    # the orchestrator

    @rule(i=which, how=st.sampled_from(_HOW))
    def the_orchestrator_works(self, i: int, how: How) -> None:
        if self.world.todo:
            self.world.carry_out(self.world.todo[min(i, len(self.world.todo) - 1) if i % 2 else 0], how)

    @rule()
    def the_orchestrator_works_well(self) -> None:
        self.world.work()

    @rule(i=which, latest=st.booleans())
    def news_arrive_late(self, i: int, latest: bool) -> None:
        if self.world.late:
            self.world.tell(self.world.late.pop(-1 if latest else i % len(self.world.late)))

    @rule(i=st.integers(0, 1000))
    def news_arrive_again(self, i: int) -> None:
        self.world.tell(self.world.log[i % len(self.world.log)][1])

    @invariant()
    def one_attempt(self) -> None:
        for gang in self.world.gangs.values():
            assert gang.running in (0, gang.attempt)

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.become_honest()
        self.world.live_on()
        self.world.be_released()
        replay_is_the_same(self.world.log)


MisbehavingWorld.TestCase.settings = MACHINE
TestMisbehavingWorld = MisbehavingWorld.TestCase
