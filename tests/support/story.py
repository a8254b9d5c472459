"""A small world for stories about the engine: real time is a number, the orchestrator does as it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reknit.catalog.load import builtin
from reknit.engine import Engine
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.entities import Entity, Gpu, JobSpec, Node, RankPlacement
from reknit.model.policy import Policy
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.terms import Trust

if TYPE_CHECKING:
    from reknit.model.incidents import Incident

CATALOG = builtin()
ACT = Policy(mode="act")


class Story:
    """A gang of `nodes` x 2 ranks with `spares`, that makes a step each 0.1 s until something is done to it."""

    def __init__(
        self, *, nodes: int = 4, spares: int = 1, policy: Policy = ACT, restarts_work: bool = True
    ) -> None:
        self.engine = Engine(CATALOG, policy)
        self.now = 1000.0
        self.commands: list[cmd.AnyCommand] = []
        self.spec = JobSpec("train", nodes=nodes, ranks_per_node=2)
        self.names = [f"node{i}" for i in range(nodes + spares)]
        self.restarts_work = restarts_work
        self.attempt = 0
        self.step = -1
        self.saved = -1
        self.quarantined: set[str] = set()
        for i, name in enumerate(self.names):
            gpus = (Gpu(0, f"0000:{i:02x}:00"), Gpu(1, f"0000:{i:02x}:01"))
            self.tell(ev.NodeSeen(Node(name, gpus, boot_id="boot-1")))
        self.tell(ev.JobSubmitted(self.spec))
        self.start(1, self.names[:nodes])

    @property
    def state(self) -> Any:
        return self.engine.state

    @property
    def job(self) -> Any:
        return self.engine.state.jobs["train"]

    @property
    def incidents(self) -> list[Incident]:
        return list(self.engine.state.incidents.values())

    def tell(self, event: ev.AnyEvent, after: float = 0.0) -> list[cmd.AnyCommand]:
        """An event `after` seconds from now; gives the commands, WaitUntil left out."""
        self.now += after
        out = [c for c in self.engine.handle(self.now, event) if not isinstance(c, cmd.WaitUntil)]
        self.commands += out
        for command in out:
            self.carry_out(command)
        return out

    def carry_out(self, command: cmd.AnyCommand) -> None:
        """The orchestrator's part."""
        match command:
            case cmd.RestartGang() if self.restarts_work:
                self.tell(ev.AttemptEnded("train", command.attempt), after=0.2)
                free = [n for n in self.names if n not in command.avoid and n not in self.quarantined]
                self.start(command.next_attempt, free[: self.spec.nodes])
                self.tell(ev.CommandDone(command.id))
            case cmd.Quarantine():
                self.quarantined.add(command.node)
                self.tell(ev.CommandDone(command.id), after=0.01)
            case cmd.Release():
                self.quarantined.discard(command.node)
                self.tell(ev.CommandDone(command.id), after=0.01)
            case cmd.StopJob():
                self.tell(ev.AttemptEnded("train", command.attempt), after=0.2)
                self.tell(ev.CommandDone(command.id))
            case cmd.Notify():
                self.tell(ev.CommandDone(command.id))
            case _:
                pass

    def start(self, attempt: int, nodes: list[str]) -> None:
        self.attempt = attempt
        placement = tuple(
            RankPlacement(2 * i + k, node, k, (k,)) for i, node in enumerate(nodes) for k in range(2)
        )
        self.tell(ev.AttemptStarted("train", attempt, placement), after=0.1)
        self.step = self.saved

    def train(self, steps: int, *, ranks: list[int] | None = None, save: bool = False) -> None:
        """The gang makes steps."""
        for _ in range(steps):
            self.now += 0.1
            self.step += 1
            if save:
                self.saved = self.step
            news = RankProgress(
                step=self.step,
                step_at=self.now,
                durations=(0.1,),
                saved_step=self.saved,
                saved_at=self.now if self.saved >= 0 else 0.0,
                alive_at=self.now,
            )
            self.tell(
                ev.ProgressSeen("train", self.attempt, dict.fromkeys(ranks or range(self.spec.ranks), news))
            )

    def exit(
        self, rank: int, *, code: int | None = None, signal: int | None = None, after: float = 0.0
    ) -> None:
        self.now += after
        self.tell(ev.RankExited("train", self.attempt, rank, self.now, code, signal))

    def wait(self, seconds: float) -> None:
        """Time passes; ticks come when they are due."""
        end = self.now + seconds
        while (due := self.engine.next_deadline()) is not None and due <= end:
            self.now = max(self.now, due)
            self.tell(ev.Tick())
        self.now = max(self.now, end)
        self.tell(ev.Tick())

    def xid(self, number: int, node: str, gpu: int = 0, *, code: str | None = None) -> None:
        """A kernel record of an XID on a GPU that the node has."""
        pci = f"0000:{self.names.index(node):02x}:{gpu:02x}"
        self.tell(
            ev.SignalSeen(
                Signal(
                    code=code or f"nvidia.xid.{number}",
                    entity=Entity("gpu", f"{node}/{pci}"),
                    first_seen=self.now,
                    last_seen=self.now,
                    source="kernel",
                    trust=Trust.KERNEL_RECORD,
                    node=node,
                    excerpt=f"NVRM: Xid (PCI:{pci}): {number}",
                    attributes={"pci": pci, "gpu_index": str(gpu)},
                    boot_id="boot-1",
                )
            )
        )

    def says(self, rank: int, code: str, **attributes: str) -> None:
        """A rank's log holds a line that the catalogue knows."""
        self.tell(
            ev.SignalSeen(
                Signal(
                    code=code,
                    entity=Entity("rank", str(rank)),
                    first_seen=self.now,
                    last_seen=self.now,
                    source="training_log",
                    trust=Trust.TRAINING_LOG,
                    node=self.job.node_of(rank),
                    job="train",
                    attempt=self.attempt,
                    rank=rank,
                    attributes=attributes,
                )
            )
        )

    def probe(self, rank: int, code: str) -> Signal:
        """What a look at a rank's process showed."""
        return Signal(
            code=code,
            entity=Entity("rank", str(rank)),
            first_seen=self.now,
            last_seen=self.now,
            source="probe",
            trust=Trust.NODE_SERVICE,
            node=self.job.node_of(rank),
            job="train",
            attempt=self.attempt,
            rank=rank,
        )

    def given(self, kind: type) -> list[Any]:
        """The commands of a kind that were given so far."""
        return [command for command in self.commands if isinstance(command, kind)]
