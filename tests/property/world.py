"""A model world: nodes, gangs, persons, and an orchestrator that may delay, fail, lose, or do twice what it is told.

Time is a number. What happens is told to the engine at once, or kept back and told late; the world itself always knows
the truth, so that at the end an honest orchestrator can report it as levels, as the real ones do when they start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from property.laws import Laws
from property.parts import CATALOG, START, Entry, Gang, How
from reknit.decide.budget import nodes_allowed
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.entities import Entity, Gpu, JobSpec, Node, RankPlacement
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.terms import Trust

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reknit.model.policy import Policy


class World:
    """Everything that exists, and the engine that is told about it."""

    def __init__(
        self, policy: Policy, *, nodes: int = 4, jobs: int = 1, ranks_per_node: int = 2, reports: bool = True
    ) -> None:
        self.laws = Laws(CATALOG, policy)
        self.now = START
        self.log: list[Entry] = []
        self.lives = 0
        self.skew = 0.0
        self.todo: list[cmd.AnyCommand] = []
        self.late: list[ev.AnyEvent] = []
        self.nodes: dict[str, Node] = {}
        self.gangs: dict[str, Gang] = {}
        self.tainted: set[str] = set()
        self.boots = 0
        for i in range(nodes):
            self.add_node(f"node{i}")
        size = max(1, (nodes - 1) // jobs)
        for i in range(jobs):
            spec = JobSpec(f"job{i}", nodes=size, ranks_per_node=ranks_per_node)
            self.gangs[spec.id] = Gang(spec, reports)
            self.tell(ev.JobSubmitted(spec))
            self.start(self.gangs[spec.id], 1, ())

    @property
    def engine(self):  # noqa: ANN201 - the engine under test
        return self.laws.engine

    # telling -----------------------------------------------------------------------------------------------------

    def tell(self, event: ev.AnyEvent, *, back: float = 0.0) -> None:
        """The engine hears of it now; `back` is by how much the clock is wrong meanwhile."""
        now = self.now - back
        commands = self.laws.tell(now, event)
        self.log.append(Entry(now, event, commands, self.laws.policy, self.lives))
        self.todo += [c for c in commands if not isinstance(c, cmd.WaitUntil)]
        if any(isinstance(c, cmd.Quarantine) for c in commands):
            marked = self.tainted | self.laws.state.out_of_service().keys()
            allowed = nodes_allowed(len(self.laws.state.nodes), self.laws.policy.nodes)
            assert len(marked & self.laws.state.nodes.keys()) <= allowed, (
                "marks that really are there count, too"
            )

    def say(self, events: Iterable[ev.AnyEvent], keep_back: bool = False) -> None:
        """Tell, or keep back for later."""
        for event in events:
            if keep_back:
                self.late.append(event)
            else:
                self.tell(event)

    # the world moves ---------------------------------------------------------------------------------------------

    def add_node(self, name: str) -> None:
        """A machine appears."""
        number = len(self.nodes)
        self.boots += 1
        gpus = tuple(Gpu(k, f"0000:{number:02x}:{k:02x}") for k in range(2))
        self.nodes[name] = Node(name, gpus, boot_id=f"boot-{self.boots}")
        self.tell(ev.NodeSeen(self.nodes[name]))

    def free_nodes(self, avoid: Iterable[str]) -> list[str]:
        """Where a gang may be put: present, not tainted, not avoided."""
        return [n for n in self.nodes if n not in avoid and n not in self.tainted]

    def start(self, gang: Gang, attempt: int, avoid: Iterable[str], *, keep_back: bool = False) -> bool:
        """Start an attempt where there is room. There never are two at once."""
        free = self.free_nodes(avoid)
        if len(free) < gang.spec.nodes or gang.gone:
            return False
        assert not gang.running, "two attempts of one job must never run at once"
        k = gang.spec.ranks_per_node
        places = [(i, node) for i, node in enumerate(free[: gang.spec.nodes])]
        gang.placement = tuple(
            RankPlacement(k * i + r, node, r, (r,)) for i, node in places for r in range(k)
        )
        gang.running = gang.attempt = attempt
        gang.dead, gang.hung, gang.spent = {}, False, {}
        gang.step = gang.saved
        self.say([ev.AttemptStarted(gang.spec.id, attempt, gang.placement)], keep_back)
        return True

    def die(
        self,
        gang: Gang,
        rank: int,
        code: int | None,
        signal: int | None,
        *,
        asked: bool = False,
        keep_back: bool = False,
    ) -> None:
        """A rank's process ends."""
        if not gang.running or rank in gang.dead or all(p.rank != rank for p in gang.placement):
            return
        gang.dead[rank] = ev.RankExited(gang.spec.id, gang.running, rank, self.now, code, signal, asked)
        self.say([gang.dead[rank]], keep_back)

    def end(self, gang: Gang, *, seen: bool = True, asked: bool = False, keep_back: bool = False) -> None:
        """Every process of the running attempt ends; `seen` says whether anybody saw how."""
        if not gang.running:
            return
        if seen:
            for place in gang.placement:
                self.die(gang, place.rank, None, 15, asked=asked, keep_back=keep_back)
        attempt, gang.running = gang.running, 0
        self.say([ev.AttemptEnded(gang.spec.id, attempt)], keep_back)

    def train(
        self,
        gang: Gang,
        steps: int,
        *,
        save: bool = False,
        slow: str = "",
        only: int | None = None,
        without: int | None = None,
        seconds: float = 0.5,
        phase: str = "",
        keep_back: bool = False,
    ) -> None:
        """The gang makes steps and the ranks (or one only, or all but one) report them."""
        for _ in range(steps):
            if not gang.healthy:
                return
            self.now += seconds
            gang.step += 1
            if save:
                gang.saved, gang.saved_at = gang.step, self.now
            if not gang.reports:
                continue
            news = {
                p.rank: self._news(gang, p, slow, phase)
                for p in gang.placement
                if only in (None, p.rank) and p.rank != without
            }
            self.say([ev.ProgressSeen(gang.spec.id, gang.running, news)], keep_back)

    def _news(self, gang: Gang, place: RankPlacement, slow: str, phase: str) -> RankProgress:
        own = 0.45 if place.node == slow else 0.2
        gang.spent[place.rank] = gang.spent.get(place.rank, 0.0) + own
        return RankProgress(
            step=gang.step,
            step_at=self.now + self.skew,
            loss=2.0 + self.skew,
            durations=(0.5,),
            saved_step=gang.saved,
            saved_at=gang.saved_at,
            loaded_step=gang.saved if gang.attempt > 1 else -1,
            loaded_at=self.now if gang.attempt > 1 else 0.0,
            phase=phase,
            phase_at=self.now if phase else 0.0,
            phase_seconds={"compute": gang.spent[place.rank], "communicate": 0.5 * gang.step},
            alive_at=self.now,
        )

    def signal(
        self,
        code: str,
        node: str,
        *,
        gang: Gang | None = None,
        rank: int | None = None,
        trust: Trust = Trust.KERNEL_RECORD,
        joined: bool = True,
        ago: float = 0.0,
        **attributes: str,
    ) -> ev.SignalSeen:
        """What a sense would make of a line."""
        known = self.nodes.get(node)
        kernel = trust >= Trust.KERNEL_RECORD
        entity = Entity("gpu", f"{node}/0000:00:00") if rank is None else Entity("rank", str(rank))
        at = self.now - ago
        return ev.SignalSeen(
            Signal(
                code=code,
                entity=entity,
                first_seen=at,
                last_seen=at,
                source="kernel" if kernel else "training_log",
                trust=trust,
                node=node,
                job=gang.spec.id if gang else "",
                attempt=gang.attempt if gang else 0,
                rank=rank,
                attributes=attributes,
                boot_id=known.boot_id if known else "",
                joined=joined,
            )
        )

    def reboot(self, name: str) -> None:
        """A machine boots: what ran there is gone and nobody saw it end."""
        for gang in self.gangs.values():
            for place in gang.placement:
                if gang.running and place.node == name:
                    self.die(gang, place.rank, None, None)
        self.boots += 1
        self.nodes[name] = msgspec.structs.replace(self.nodes[name], boot_id=f"boot-{self.boots}")
        self.tell(ev.NodeSeen(self.nodes[name]))

    def lose_node(self, name: str) -> None:
        """A machine is taken away."""
        for gang in self.gangs.values():
            for place in gang.placement:
                if gang.running and place.node == name:
                    self.die(gang, place.rank, None, None)
        del self.nodes[name]
        self.tainted.discard(name)
        self.tell(ev.NodeGone(name))

    # the orchestrator --------------------------------------------------------------------------------------------

    def carry_out(self, command: cmd.AnyCommand, how: How) -> None:
        """Do what one command asks, in one of the ways in which orchestrators do it."""
        self.todo.remove(command)
        if how == "lost":
            return
        if how in ("fails", "refused"):
            detail = "" if how == "fails" else f"node said no to {command.id}"
            self.tell(ev.CommandFailed(command.id, detail, retry=how == "fails"))
            return
        outcome = self._do(command)
        if how == "outcome lost":
            return
        self.tell(outcome)
        if how == "twice":
            self.tell(self._do(command))
            self.tell(outcome)

    def _do(self, command: cmd.AnyCommand) -> ev.AnyEvent:
        match command:
            case cmd.RestartGang():
                return self._restart(command)
            case cmd.StopJob():
                gang = self.gangs[command.job]
                if not gang.gone:
                    gang.stopped = True
                    self.end(gang, asked=True)
            case cmd.Quarantine():
                if command.node not in self.nodes:
                    return ev.CommandFailed(command.id, f"there is no {command.node}")
                if self.now > command.deadline:
                    return ev.CommandFailed(command.id, "too late: nobody waits for it any more")
                self.tainted.add(command.node)
            case cmd.Release():
                self.tainted.discard(command.node)
            case cmd.CaptureEvidence():
                return ev.CommandDone(command.id, path=f"evidence/{command.id}")
            case _:
                pass
        return ev.CommandDone(command.id)

    def _restart(self, command: cmd.RestartGang) -> ev.AnyEvent:
        gang = self.gangs[command.job]
        if gang.gone:
            return ev.CommandFailed(command.id, f"{command.job} is over", retry=False)
        if gang.attempt >= command.next_attempt:
            return ev.CommandDone(command.id, "another attempt has been started already")
        if len(self.free_nodes(command.avoid)) < gang.spec.nodes:
            return ev.CommandFailed(command.id, "no room")
        self.end(gang, asked=True)
        assert self.start(gang, command.next_attempt, command.avoid)
        return ev.CommandDone(command.id)

    def begin_again(self, policy: Policy) -> None:
        """The controller is killed and begins again under another policy, as it does: from what was written down."""
        self.laws.begin_again(policy)
        self.lives += 1
        self.tell(ev.WatchResumed())
        for command in list(self.todo):
            if isinstance(command, cmd.Notify | cmd.CaptureEvidence):
                self.carry_out(command, "done")

    def answer(self, gang: Gang, how: How) -> None:
        """Let time pass until something is to be done for this gang, and do it in this way."""
        for _ in range(6):
            for command in list(self.todo):
                if isinstance(command, cmd.Notify):
                    self.carry_out(command, "done")
                elif isinstance(command, cmd.CaptureEvidence) and command.job == gang.spec.id:
                    self.carry_out(command, how)
            mine = [
                c for c in self.todo if isinstance(c, cmd.RestartGang | cmd.StopJob) and c.job == gang.spec.id
            ]
            if mine:
                self.carry_out(mine[-1], how)
                return
            self.tick_when_due()

    # the end -----------------------------------------------------------------------------------------------------

    def tick_when_due(self) -> None:
        """Time jumps to the next deadline."""
        due = self.engine.next_deadline()
        if due is not None:
            self.now = max(self.now, due)
        self.tell(ev.Tick())

    def become_honest(self) -> None:
        """Tell what was kept back, then what is, as levels; carry out what is still to be done."""
        late, self.late = self.late, []
        self.say(late)
        for node in self.nodes.values():
            self.tell(ev.NodeSeen(node))
        for gang in self.gangs.values():
            self.tell(ev.JobSubmitted(gang.spec))
            if gang.attempt:
                self.tell(ev.AttemptStarted(gang.spec.id, gang.attempt, gang.placement))
            for exit_ in gang.dead.values():
                self.tell(exit_)
            if gang.attempt and not gang.running:
                self.tell(ev.AttemptEnded(gang.spec.id, gang.attempt))
            if gang.over is not None:
                self.tell(gang.over)
        self.work()

    def work(self) -> None:
        """Carry out everything, at once and well."""
        while self.todo:
            self.carry_out(self.todo[0], "done")

    def branches(self) -> list[str]:
        """Jobs that an incident still has in hand."""
        return [
            f"{i.job.job}: {i.job.state}"
            for i in self.laws.state.open_incidents()
            if i.job is not None and i.job.open
        ]

    def live_on(self, turns: int = 1500) -> None:
        """The honest world goes on until every job branch has come to its end. Raises AssertionError if it does not."""
        quiet_since, ticks = self.now, 0
        for _ in range(turns):
            if not self.branches():
                return
            running = [g for g in self.gangs.values() if g.healthy]
            due = self.engine.next_deadline()
            assert due is not None
            if running and due > self.now + 2.0:
                self.now = due - 1.0
                for gang in running:
                    self.train(gang, 2, save=True)
                quiet_since, ticks = self.now, 0
            else:
                self.tick_when_due()
                ticks += 1
                if ticks > 12 + 6 * len(self.laws.state.open_ids) + 2 * len(self.gangs):
                    assert self.now > quiet_since + 0.5, f"ticks that move nothing: {self.branches()}"
                    quiet_since, ticks = self.now, 0
            self.work()
        raise AssertionError(f"never comes to an end: {self.branches()}")

    def be_released(self) -> None:
        """A person gives everything back: no mark of ours may be left anywhere."""
        self.tell(ev.BrakeReleased())
        self.work()
        for _ in range(3):
            for name in list(self.nodes):
                self.tell(ev.NodeReleaseRequested(name, by="ann"))
                self.work()
        for _ in range(20):
            if not self.laws.state.out_of_service():
                break
            self.tick_when_due()
            self.work()
        assert not self.laws.state.out_of_service()
        assert not self.tainted, "a mark that nobody knows of stays for ever"
