"""Events a second through the engine, against the floor in the same run: decoding the same events from JSON (as a
replay of the journal must) and handing them to a function that does nothing.

    python bench/engine_events.py [SCALE]

SCALE multiplies the number of events (1 takes about half a minute). Best of three rounds, of the long replay one; `us`
is one event's share.
`handle` is handle() and next_deadline(), which the controller asks for after each event. `grows` is the time of one
event late in the run over the time of one early in it: what is quadratic in the number of events shows here.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import msgspec

from reknit.catalog.load import builtin
from reknit.engine import Engine
from reknit.model import events as ev
from reknit.model.entities import Entity, Gpu, JobSpec, Node, RankPlacement
from reknit.model.policy import Policy
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.state import EngineState
from reknit.model.terms import Trust

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS, LONG = 3, 50_000
START = 1_700_000_000.0
CATALOG = builtin()
POLICY = Policy(mode="act")

Timed = tuple[float, ev.AnyEvent]
DECODER = msgspec.json.Decoder(tuple[float, ev.AnyEvent])


@dataclass
class Result:
    """Seconds of one scenario: the floor, the engine, and the engine's first and last tenth of the events."""

    events: int
    floor: float
    handle: float
    early: float
    late: float


def gang(ranks: int, per_node: int = 8) -> Iterator[Timed]:
    """Nodes, a job and its first attempt."""
    nodes = max(1, ranks // per_node)
    for i in range(nodes + 2):
        gpus = tuple(Gpu(k, f"0000:{k:02x}:00") for k in range(per_node))
        yield START, ev.NodeSeen(Node(f"node{i}", gpus, boot_id="boot"))
    yield START, ev.JobSubmitted(JobSpec("train", nodes, min(ranks, per_node)))
    places = tuple(
        RankPlacement(r, f"node{r // per_node}", r % per_node, (r % per_node,)) for r in range(ranks)
    )
    yield START, ev.AttemptStarted("train", 1, places)


def progress(ranks: int, count: int) -> Iterator[Timed]:
    """Every rank reports each step of a second; a checkpoint every hundredth."""
    for step in range(count):
        at = START + 1.0 + step
        spent = {"compute": 0.6 * step, "communicate": 0.4 * step}
        saved = step - step % 100
        news = RankProgress(
            step=step, step_at=at, loss=2.5, durations=(1.0,), saved_step=saved, saved_at=at,
            phase_seconds=spent, alive_at=START,
        )  # fmt: skip
        yield at, ev.ProgressSeen("train", 1, dict.fromkeys(range(ranks), news))


def repeats(count: int) -> Iterator[Timed]:
    """A kernel that says the same thing again and again, and a rank that does."""
    for i in range(count):
        at = START + 1.0 + i * 0.01
        if i % 2:
            gpu = Entity("gpu", f"node{i % 7}/0000:00:00")
            signal = Signal("nvidia.xid.79", gpu, at, at, "kernel", Trust.KERNEL_RECORD, node=f"node{i % 7}")
        else:
            rank = Entity("rank", str(i % 64))
            signal = Signal(
                "nccl.watchdog",
                rank,
                at,
                at,
                "training_log",
                Trust.TRAINING_LOG,
                job="train",
                attempt=1,
                rank=i % 64,
            )
        yield at, ev.SignalSeen(signal)


def storm(ranks: int) -> Iterator[Timed]:
    """Every rank of a gang dies within two seconds and says why; then the gang is diagnosed."""
    for rank in range(ranks):
        at = START + 100.0 + 2.0 * rank / ranks
        words = Signal(
            "python.exception", Entity("rank", str(rank)), at, at, "training_log", Trust.TRAINING_LOG,
            node=f"node{rank // 8}", job="train", attempt=1, rank=rank, attributes={"signature": "x"},
        )  # fmt: skip
        yield at, ev.SignalSeen(words)
        yield at, ev.RankExited("train", 1, rank, at, code=1)
    yield START + 110.0, ev.Tick()


def days(count: int) -> Iterator[Timed]:
    """The journal of a long run: progress of 8 ranks, a failure now and then, faults of nodes, ticks."""
    attempt, at, step = 1, START, -1
    places = tuple(RankPlacement(r, f"node{r // 8}", r % 8) for r in range(64))
    for i in range(count):
        at += 1.0
        kind = i % 1000
        if kind == 990:
            yield at, ev.RankExited("train", attempt, i % 64, at, signal=9)
        elif kind == 992:
            yield at, ev.AttemptEnded("train", attempt)
        elif kind == 994:
            attempt += 1
            yield at, ev.AttemptStarted("train", attempt, places)
        elif kind == 500:
            gpu = Entity("gpu", f"node{i % 7}/0000:00:00")
            yield (
                at,
                ev.SignalSeen(
                    Signal("nvidia.xid.31", gpu, at, at, "kernel", Trust.KERNEL_RECORD, node=f"node{i % 7}")
                ),
            )
        elif i % 10 == 3:
            yield at, ev.Tick()
        else:
            step += 1
            news = RankProgress(
                step=step, step_at=at, durations=(1.0,), saved_step=step - step % 50, saved_at=at, alive_at=at
            )
            first = 8 * (i % 8)
            yield at, ev.ProgressSeen("train", attempt, dict.fromkeys(range(first, first + 8), news))


def measure(setup: list[Timed], events: list[Timed], rounds: int) -> Result:
    """Both variants over the same bytes. Best of the rounds."""
    lines = [msgspec.json.encode(event) for event in events]
    tenth = max(1, len(lines) // 10)
    best = Result(len(lines), *[float("inf")] * 4)
    for _ in range(rounds):
        gc.collect()
        began = perf_counter()
        for line in lines:
            nothing(*DECODER.decode(line))
        best.floor = min(best.floor, perf_counter() - began)

        engine = Engine(CATALOG, POLICY, EngineState())
        for at, event in setup:
            engine.handle(at, event)
        decoded = [DECODER.decode(line) for line in lines]
        marks = [perf_counter()]
        for at, event in decoded:
            engine.handle(at, event)
            engine.next_deadline()
            marks.append(perf_counter())
        best.handle = min(best.handle, marks[-1] - marks[0])
        best.early = min(best.early, (marks[tenth] - marks[0]) / tenth)
        best.late = min(best.late, (marks[-1] - marks[-1 - tenth]) / tenth)
        assert engine.state.jobs["train"].attempt >= 1
    return best


def nothing(_now: float, _event: ev.AnyEvent) -> tuple[()]:
    """The empty handler."""
    return ()


def main() -> None:
    """Print the table."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0

    def many(count: int) -> int:
        return max(10, int(count * scale))

    scenarios = {
        "progress, 8 ranks": (list(gang(8)), list(progress(8, many(5_000)))),
        "progress, 512 ranks": (list(gang(512)), list(progress(512, many(200)))),
        "progress, 4,096 ranks": (list(gang(4096)), list(progress(4096, many(40)))),
        "the same signals again and again": (list(gang(64)), list(repeats(many(20_000)))),
        "512 ranks die and say why": (list(gang(512)), list(storm(512))),
        "4,096 ranks die and say why": (list(gang(4096)), list(storm(4096))),
        "replay of a long run": (list(gang(64)), list(days(many(100_000)))),
    }
    print(
        f"{'scenario':<34}{'events':>8}{'floor /s':>11}{'handle /s':>11}{'floor us':>10}{'handle us':>11}{'grows':>7}"
    )
    for name, (setup, events) in scenarios.items():
        found = measure(setup, events, ROUNDS if len(events) < LONG else 1)
        print(
            f"{name:<34}{found.events:>8}{found.events / found.floor:>11,.0f}{found.events / found.handle:>11,.0f}"
            f"{1e6 * found.floor / found.events:>10.1f}{1e6 * found.handle / found.events:>11.1f}"
            f"{found.late / found.early:>7.1f}"
        )


if __name__ == "__main__":
    main()
