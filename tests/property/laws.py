"""What must hold after every single event, whatever the event was. Computed from outside, not by the engine's helpers
where that can be avoided, so that a defect cannot hide itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reknit.decide.budget import nodes_allowed
from reknit.engine import Engine
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.incidents import JobState, NodeState
from reknit.model.state import pack, unpack
from reknit.model.terms import LOST_PHASES, Grade, Phase, Trust

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog
    from reknit.model.incidents import Incident
    from reknit.model.policy import Policy
    from reknit.model.state import EngineState, JobView

_DISTURBING = (cmd.RestartGang, cmd.StopJob, cmd.Quarantine)
_SWITCH = {cmd.RestartGang: "restart_job", cmd.StopJob: "stop_job", cmd.Quarantine: "quarantine"}
_KEEP = {"timeline": 402, "signals": 1024, "history": 64, "nodes": 256, "evidence": 256}
_RECENT = 256


class Laws:
    """Wraps an engine: hands it events and looks at everything that it did."""

    def __init__(self, catalog: Catalog, policy: Policy) -> None:
        self.engine = Engine(catalog, policy)
        self.catalog = catalog
        self.policy = policy
        self.ids: set[str] = set()
        self.proven: set[str] = set()
        self.highest: dict[str, int] = {}
        self.restarts: dict[str, dict[int, float]] = {}
        self.counted: set[tuple[str, int]] = set()
        self.mark: dict[str, int] = {}
        self.quarantines: list[tuple[float, str]] = []
        self.closed: dict[str, Incident] = {}
        self.ran: dict[str, float] = {}

    def begin_again(self, policy: Policy) -> None:
        """A new engine under another policy goes on from the state that the old one wrote down."""
        state = unpack(pack(self.state))
        state.announced = 0.0
        self.policy = policy
        self.engine = Engine(self.catalog, policy, state)
        self.closed = {id_: i for id_, i in state.incidents.items() if not i.open}

    @property
    def state(self) -> EngineState:
        return self.engine.state

    def tell(self, now: float, event: ev.AnyEvent) -> tuple[cmd.AnyCommand, ...]:
        """One event through the engine. Raises AssertionError where a law is broken."""
        state = self.state
        before = dict(state.incidents)
        was_open = set(state.open_ids)
        ended = {name for name, job in state.jobs.items() if job.state == "ended"}
        phases = {name: job.account.phases for name, job in state.jobs.items()}
        braked = state.brake.tripped
        known = set(state.jobs)
        passed = max(0.0, now - state.now)
        for name, job in state.jobs.items():
            self.ran[name] = self.ran.get(name, 0.0) + (passed if job.state == "running" else 0.0)
        commands = self.engine.handle(now, event)
        self._witness(event, known, ended)
        may = was_open | (set(state.incidents) - set(before))
        for command in commands:
            self._command(command, may, ended)
        self._brake(event, braked, commands)
        self._incidents(before)
        self._deadlines()
        for name, job in state.jobs.items():
            self._account(job, phases.get(name, {}))
        self._bills()
        self._bounded()
        return commands

    def _witness(self, event: ev.AnyEvent, known: set[str], ended: set[str]) -> None:
        """Note what the events themselves prove."""
        if isinstance(event, ev.AttemptStarted) and event.job in known - ended:
            self.highest[event.job] = max(self.highest.get(event.job, 0), event.attempt)
        if isinstance(event, ev.SignalSeen):
            s = event.signal
            row = self.catalog.get(s.code)
            if s.trust >= Trust.KERNEL_RECORD and s.joined and row.highest_grade >= Grade.REVERSIBLE:
                self.proven.add(s.node)
        if isinstance(event, ev.BrakeReleased):
            self.quarantines = []
        if isinstance(event, ev.ProgressSeen) and event.job in self.mark:
            self._lasting_progress(self.state.jobs[event.job])

    def _lasting_progress(self, job: JobView) -> None:
        name, mark = job.spec.id, self.mark[job.spec.id]
        if job.saved_step > mark or job.high_step >= mark + self.policy.restarts.reset_after_steps:
            self.restarts.pop(name, None)
            self.mark.pop(name)

    def _command(self, command: cmd.AnyCommand, may: set[str], ended: set[str]) -> None:
        now = self.state.now
        if isinstance(command, cmd.WaitUntil):
            assert now < command.deadline < math.inf
            return
        assert command.id not in self.ids, "a command's id is unique"
        self.ids.add(command.id)
        assert command.incident in may, "a command belongs to an incident that was open"
        assert command.reason, "a command says why"
        assert now <= command.deadline < math.inf
        if isinstance(command, _DISTURBING):
            assert self.policy.mode == "act"
            assert getattr(self.policy.actions, _SWITCH[type(command)])
        if isinstance(command, cmd.RestartGang):
            assert command.job not in ended
            self._restart(command)
        elif isinstance(command, cmd.StopJob):
            assert command.job not in ended
        elif isinstance(command, cmd.Quarantine):
            self._quarantine(command)

    def _restart(self, command: cmd.RestartGang) -> None:
        now, budget = self.state.now, self.policy.restarts
        job = self.state.jobs[command.job]
        assert command.next_attempt > self.highest.get(command.job, 0)
        assert command.next_attempt > command.attempt
        assert set(command.avoid) <= self.proven, (
            "a node is avoided only on evidence that no tenant can write"
        )
        made = self.restarts.setdefault(command.job, {})
        if (command.job, command.next_attempt) in self.counted:
            return  # the same restart, given again because no outcome came
        self.counted.add((command.job, command.next_attempt))
        made[command.next_attempt] = now
        self.mark[command.job] = max(job.high_step, job.saved_step, 0)
        assert sum(at > now - 3600 for at in made.values()) <= budget.per_hour
        assert sum(at > now - 86400 for at in made.values()) <= budget.per_day

    def _quarantine(self, command: cmd.Quarantine) -> None:
        state, name = self.state, command.node
        assert name in self.proven, "a node is quarantined only on an authentic record"
        assert name in state.nodes, "a node that does not exist is not quarantined"
        pool = state.nodes[name].pool
        peers = [n for n, node in state.nodes.items() if node.pool == pool]
        held = [n for n in state.out_of_service() if n in peers]
        assert len(held) <= nodes_allowed(len(peers), self.policy.nodes)
        branch = state.incidents[command.incident].branch(name)
        if branch is not None and branch.tries > 1:
            return
        brake = self.policy.brake
        self.quarantines.append((state.now, name))
        fresh = {n for at, n in self.quarantines if at > state.now - brake.window_s}
        assert len(fresh) <= max(brake.count, math.floor(len(peers) * brake.percent / 100))

    def _brake(self, event: ev.AnyEvent, braked: bool, commands: tuple[cmd.AnyCommand, ...]) -> None:
        new = [c for c in commands if isinstance(c, cmd.Quarantine)]
        assert not (braked and new and not isinstance(event, ev.BrakeReleased)), (
            "no quarantine while the brake is on"
        )
        if self.state.brake.tripped and not braked:
            assert self.state.brake.why

    def _incidents(self, before: dict[str, Incident]) -> None:
        state = self.state
        told = {incident.id: incident for incident in self.engine.changed}
        for id_, incident in state.incidents.items():
            if before.get(id_) is not incident:
                assert told.get(id_) is incident, "whoever writes incidents down hears of every change"
            if id_ in self.closed:
                assert incident is self.closed[id_], "a closed incident stays as it is"
            elif incident.closed_at is not None:
                self.closed[id_] = incident
            assert incident.open == (id_ in state.open_ids)
        for id_ in before.keys() - state.incidents.keys():
            assert not told.get(id_, before[id_]).open, "only closed incidents are forgotten"
        assert len(set(state.open_ids)) == len(state.open_ids)
        jobs = [i.job.job for i in state.open_incidents() if i.job is not None and i.job.open]
        assert len(jobs) == len(set(jobs)), "one open branch a job, so one restart at a time"
        held = [b.node for i in state.open_incidents() for b in i.nodes if b.holds]
        assert len(held) == len(set(held)), "one incident holds a node"

    def _deadlines(self) -> None:
        state = self.state
        due: list[float] = []
        for incident in state.open_incidents():
            mine = [b.deadline for b in incident.nodes if b.open]
            if incident.job is not None and incident.job.open:
                mine.append(incident.job.deadline)
                waits = incident.job.state in (JobState.RESTARTING, JobState.CAPTURING)
                assert not waits or incident.job.command, "who waits for an outcome knows for which"
            assert mine, "an open incident has an open branch"
            assert all(math.isfinite(at) for at in mine)
            due += mine
        if due:
            next_ = self.engine.next_deadline()
            assert next_ is not None
            assert next_ <= max(min(due), state.now + 1.1e-3), "a Tick comes when a branch's deadline passes"
            assert state.announced, "and somebody was asked for it"

    def _account(self, job: JobView, before: dict[object, float]) -> None:
        account = job.account
        wall = account.settled_at - account.started_at
        assert math.isclose(sum(account.phases.values()), wall, rel_tol=1e-9, abs_tol=1e-5)
        assert account.settled_at <= self.state.now
        productive = account.phases.get(Phase.PRODUCTIVE, 0.0)
        assert productive <= self.ran.get(job.spec.id, 0.0) + 1e-5, "a job that does not run makes nothing"
        for phase, seconds in before.items():
            assert account.phases[phase] >= seconds, "a booked second stays booked"  # type: ignore[index]

    def _bills(self) -> None:
        sums: dict[str, dict[object, float]] = {}
        for incident in self.state.incidents.values():
            if incident.job is None:
                assert not incident.bill.phases, "what no job lost costs nothing"
                continue
            mine = sums.setdefault(incident.job.job, {})
            for phase, seconds in incident.bill.phases.items():
                assert phase in LOST_PHASES
                assert seconds > 0
                mine[phase] = mine.get(phase, 0.0) + seconds
        for name, mine in sums.items():
            lost = self.state.jobs[name].account.phases
            for phase, seconds in mine.items():
                assert seconds <= lost.get(phase, 0.0) + 1e-5, "bills never exceed what the job lost"  # type: ignore[call-overload]

    def _bounded(self) -> None:
        state = self.state
        assert len(state.recent) <= _RECENT
        assert len(state.incidents) - len(state.open_ids) <= self.policy.keep_incidents
        for incident in self.engine.changed:
            for field, most in _KEEP.items():
                assert len(getattr(incident, field)) <= most, f"{field} is bounded"
            assert incident.job is None or len(incident.job.signatures) <= _KEEP["history"]
            assert all(b.state != NodeState.QUARANTINING or b.command for b in incident.nodes)
        for job in state.jobs.values():
            assert len(job.recent) <= _RECENT
            assert len(job.pace.steps) <= 64
            assert len(job.had_progress) == len(set(job.had_progress))
