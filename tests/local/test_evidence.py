"""What is seen of the ranks before anything is done to them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

from local.bench import Recorder, eventually, run
from reknit.model.commands import CaptureEvidence, StopJob
from reknit.model.entities import Entity
from reknit.model.events import AttemptEnded, CommandDone, SignalSeen
from reknit.model.terms import Trust
from reknit.orchestrate.local.processes import stat
from reknit.sense.probe import ProcessSample, RankSample, probe_signals, top_frame, worker

if TYPE_CHECKING:
    from local.bench import Bench
    from reknit.catalog.row import Catalog

WORK = (
    "import time\n"
    "def wait_for_the_others():\n"
    "    while True:\n"
    "        time.sleep(0.001); sum(range(2000))\n"
    "print('up', flush=True)\n"
    "wait_for_the_others()\n"
)


def capture(number: int = 1, ranks: tuple[int, ...] = (0, 1)) -> CaptureEvidence:
    """As the engine asks for it."""
    return CaptureEvidence(
        f"capture-{number}", "inc/1", "all ranks stall", time.time() + 15, job="job", attempt=1, ranks=ranks
    )


def test_the_rank_that_is_stopped_is_named_and_its_stack_is_kept(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open((sys.executable, "-c", WORK))
        await local.start(emit, {})
        logs = [bench.rank(1, rank) / "output.log" for rank in range(2)]
        await eventually(lambda: all("up" in log.read_text() for log in logs), "both ranks")
        pid = json.loads((bench.rank(1, 1) / "shim.json").read_text())["rank_pid"]
        os.kill(pid, signal.SIGSTOP)
        await eventually(lambda: (found := stat(pid)) is not None and found.state == "T", "rank 1 to stop")
        outcome = await local.execute(capture())
        assert isinstance(outcome, CommandDone), outcome
        assert outcome.path == "evidence/inc_1/attempt-1"
        seen = emit.of(SignalSeen)
        assert [(event.signal.code, event.signal.entity) for event in seen] == [
            ("rank.stopped", Entity("rank", "1"))
        ]
        found = seen[0].signal
        assert (found.trust, found.node, found.attempt, found.rank) == (Trust.NODE_SERVICE, "node1", 1, 1)
        assert found.attributes["state"] == "T"
        assert found.attributes["cpu_s"] == "0.00"
        assert found.attributes["top_frame"].startswith("wait_for_the_others (<string>:")
        folder = bench.state / outcome.path
        assert sorted(path.name for path in folder.iterdir()) == ["rank-0.txt", "rank-1.txt", "samples.json"]
        assert "wait_for_the_others" in (folder / "rank-1.txt").read_text()
        assert "state T" in (folder / "rank-1.txt").read_text()
        state = stat(pid)
        assert state is not None
        assert state.state == "T"  # looking changed nothing

        before = (folder / "samples.json").read_bytes()
        await local.execute(StopJob("stop-1", "inc-1", "enough", 2e9, job="job", attempt=1, grace_s=2.0))
        await emit.until(AttemptEnded)
        again = await local.execute(capture())
        assert again == outcome
        assert (folder / "samples.json").read_bytes() == before
        later = await local.execute(capture(2))
        assert later.detail.startswith("looked at 0 ranks")
        await local.close()

    run(story())


def sample(rank: int, state: str, cpu_s: float, *more: ProcessSample, name: str = "python") -> RankSample:
    """A rank of one process, or with more below it."""
    main = ProcessSample(pid=100 * rank + 1, parent=1, name=name, state=state, cpu_s=cpu_s, wchan="some_wait")
    return RankSample(rank=rank, node=f"node{rank}", main=main.pid, processes=(main, *more))


def probe(first: list[RankSample], second: list[RankSample]) -> list[tuple[int | None, str]]:
    """Ranks and codes."""
    found = probe_signals(first, second, job="job", attempt=2, at=5.0)
    return [(signal.rank, signal.code) for signal in found]


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("T", "T", "rank.stopped"),
        ("t", "t", "rank.traced"),
        ("D", "D", "rank.disk_wait"),
        ("S", "Z", "rank.zombie"),
        ("S", "S", "rank.no_cpu"),
        ("S", "D", "rank.no_cpu"),
    ],
)
def test_a_state_speaks_where_it_lasts(before: str, after: str, code: str) -> None:
    first = [sample(0, before, 1.0), sample(1, "R", 1.0), sample(2, "R", 1.0)]
    second = [sample(0, after, 1.0), sample(1, "R", 1.5), sample(2, "S", 1.9)]
    assert probe(first, second) == [(0, code)]


def test_that_nobody_uses_cpu_blames_nobody() -> None:
    still = [sample(rank, "S", 1.0) for rank in range(4)]
    assert probe(still, still) == []
    one_works = [sample(0, "R", 1.5), *still[1:]]
    assert probe(still, one_works) == []  # three wait for one: most of a gang may wait in sockets
    assert probe([sample(0, "S", 1.0)], [sample(0, "S", 1.0)]) == []  # there is nobody to compare with


def test_a_rank_behind_a_wrapper_is_judged_by_the_process_that_works() -> None:
    child = ProcessSample(pid=150, parent=101, name="python", state="D", cpu_s=40.0)
    behind = sample(1, "S", 0.01, child, name="sh")
    assert worker(behind) == child
    assert probe([sample(0, "R", 1.0), behind], [sample(0, "R", 2.0), behind]) == [(1, "rank.disk_wait")]
    loader = ProcessSample(pid=150, parent=101, name="loader", state="D", cpu_s=4.0)
    trainer = sample(1, "R", 40.0, loader)
    assert worker(trainer) == trainer.processes[0]


def test_a_child_that_ended_between_two_looks_takes_nothing_away() -> None:
    gone = ProcessSample(pid=150, parent=101, name="sh", state="S", cpu_s=9.0)
    first = [sample(0, "R", 1.0), sample(1, "R", 1.0, gone)]
    second = [sample(0, "R", 2.0), sample(1, "R", 1.1)]
    assert probe(first, second) == []


def test_the_top_frame_is_the_main_threads() -> None:
    dump = (
        "Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
        'Thread 9 (idle): "loader"\n    get (queue.py:171)\n    _run (threading.py:975)\n'
        'Thread 7 (active): "MainThread"\n    all_reduce (ring.py:40)\n    <module> (train.py:9)\n'
    )
    assert top_frame(dump) == "all_reduce (ring.py:40)"
    assert top_frame("Thread 7 (idle)\n    f (a.py:1)\n") == "f (a.py:1)"
    assert top_frame("Error: no such process\n") == ""


def test_every_code_that_a_probe_gives_has_a_row(catalog: Catalog) -> None:
    for name in ("stopped", "traced", "disk_wait", "zombie", "no_cpu"):
        assert catalog.by_code[f"rank.{name}"].sense == "probe"
