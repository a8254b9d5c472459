"""The program that started a gang is killed; the next one takes the gang up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from local.bench import PATIENCE_S, Recorder, eventually, run, shell
from reknit.model.commands import RestartGang, StopJob
from reknit.model.events import (
    AttemptEnded,
    AttemptStarted,
    CommandDone,
    JobSucceeded,
    RankExited,
    SignalSeen,
)
from reknit.orchestrate.local import processes
from reknit.orchestrate.local.processes import Identity

if TYPE_CHECKING:
    from pathlib import Path

    from local.bench import Bench

FOREVER = shell("exec sleep 600")
DRIVER = """
import asyncio, json, sys
from pathlib import Path
from reknit.catalog.load import builtin
from reknit.model.entities import JobSpec
from reknit.orchestrate.local.orchestrator import LocalOrchestrator
from reknit.orchestrate.local.settings import LocalSettings

cursors = {}

def emit(event, positions=None):
    cursors.update(positions or {})
    print(json.dumps(cursors), flush=True)

async def main():
    local = LocalOrchestrator.open(LocalSettings(
        state=Path(sys.argv[1]), job=JobSpec(id="job", nodes=2, ranks_per_node=1),
        command=tuple(sys.argv[2:]), catalog=builtin(), log_poll_s=0.02))
    await local.start(emit, {})
    print("STARTED", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def start_and_kill(state: Path, command: tuple[str, ...], seen: str = "STARTED") -> dict[str, int]:
    """Run a gang under another program until a line of its output holds `seen`, and kill that program with
    SIGKILL. Returns the positions that it had reported."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(state), *command], stdout=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        cursors: dict[str, int] = {}
        for line in driver.stdout:
            if line.startswith("{"):
                cursors = json.loads(line)
            if seen in line:
                break
        driver.kill()
    return cursors


def test_ranks_go_on_and_are_adopted_not_started_again(bench: Bench) -> None:
    cursors = start_and_kill(bench.state, FOREVER)
    before = {process.pid for process in bench.alive()}
    assert len(before) == 4  # two shims, two ranks

    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, cursors)
        assert [event.attempt for event in emit.of(AttemptStarted)] == [1]
        assert {process.pid for process in bench.alive()} == before
        os.kill(json.loads((bench.rank(1, 1) / "shim.json").read_text())["rank_pid"], signal.SIGKILL)
        exited = await emit.until(RankExited)
        assert (exited[0].rank, exited[0].signal, exited[0].asked) == (1, signal.SIGKILL, False)
        stop = StopJob("stop-1", "inc-1", "enough", 2e9, job="job", attempt=1, grace_s=5.0)
        assert isinstance(await local.execute(stop), CommandDone)
        assert bench.alive() == []
        await local.close()

    run(story())


def test_ranks_that_ended_meanwhile_are_reported_with_what_they_said(bench: Bench) -> None:
    go = bench.state.parent / "go"
    said = "RuntimeError: CUDA error: out of memory"
    command = shell(f"while [ ! -e {go} ]; do sleep 0.01; done; echo '{said}'; exit $RANK")
    cursors = start_and_kill(bench.state, command)
    go.touch()
    until = time.monotonic() + PATIENCE_S
    while bench.alive():
        assert time.monotonic() < until
        time.sleep(0.01)

    async def story() -> None:
        emit = Recorder()
        local = bench.open(command)
        await local.start(emit, cursors)
        await emit.until(AttemptEnded)
        assert {event.rank: event.code for event in emit.of(RankExited)} == {0: 0, 1: 1}
        assert {event.signal.rank for event in emit.of(SignalSeen)} == {0, 1}
        assert emit.of(JobSucceeded) == []
        await local.close()

    run(story())


def test_a_traceback_that_was_half_read_is_read_again(bench: Bench) -> None:
    """The positions on record stand behind what was made into signals, and not in the middle of a
    traceback."""
    go = bench.state.parent / "go"
    command = shell(
        "echo 'RuntimeError: CUDA error: an illegal memory access was encountered'\n"
        "sleep 0.3\n"
        "printf 'Traceback (most recent call last):\\n  File \"train.py\", line 9, in step\\n    f()\\n'\n"
        f"while [ ! -e {go} ]; do sleep 0.01; done\n"
        "echo 'ZeroDivisionError: division by zero'; exit 1"
    )
    cursors = start_and_kill(bench.state, command, seen='"log/1/0": ')
    go.touch()

    async def story() -> None:
        emit = Recorder()
        local = bench.open(command)
        await local.start(emit, cursors)
        await emit.until(AttemptEnded)
        found = [event.signal for event in emit.of(SignalSeen) if event.signal.rank == 0]
        assert "train.py:9 in step" in {signal.attributes.get("frame") for signal in found}
        await local.close()

    run(story())


def test_an_attempt_of_another_boot_is_over(bench: Bench) -> None:
    start_and_kill(bench.state, FOREVER)
    for rank in range(2):
        path = bench.rank(1, rank) / "shim.json"
        shim = json.loads(path.read_text())
        os.kill(shim["shim_pid"], signal.SIGKILL)
        path.write_text(
            json.dumps(shim | {"boot_id": "the boot before", "shim_pid": os.getpid(), "rank_pid": 1})
        )

    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        await emit.until(AttemptEnded)
        assert {(event.code, event.signal) for event in emit.of(RankExited)} == {(None, None)}
        outcome = await local.execute(RestartGang("r-1", "i", "w", 2e9, job="job", attempt=1, next_attempt=2))
        assert isinstance(outcome, CommandDone)
        await local.close()

    run(story())


def test_processes_of_an_older_attempt_are_ended_before_anything_is_adopted(bench: Bench) -> None:
    start_and_kill(bench.state, FOREVER)
    old = {process.pid for process in bench.alive()}
    plan = json.loads((bench.state / "attempts/1/plan.json").read_text())
    (bench.state / "attempts/2").mkdir()
    (bench.state / "attempts/2/plan.json").write_text(json.dumps(plan | {"attempt": 2}))

    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        assert emit.of(AttemptEnded) == [AttemptEnded("job", 1)]
        assert [event.attempt for event in emit.of(AttemptStarted)] == [2]
        now = {process.pid for process in bench.alive()}
        assert len(now) == 4
        assert not now & old
        await local.close()

    run(story())


def test_a_pid_that_was_given_to_somebody_else_is_neither_trusted_nor_signalled() -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        real = processes.identify(other.pid)
        assert real is not None
        reused = Identity(real.pid, real.start - 1, real.boot_id)
        rebooted = Identity(real.pid, real.start, "the boot before")
        for stranger in (reused, rebooted, Identity(0, 0, real.boot_id)):
            assert not stranger.alive
            assert stranger.pidfd() is None
            assert not stranger.send(signal.SIGKILL)
        assert other.poll() is None
        assert real.alive
        assert real.send(signal.SIGKILL)
    assert not real.alive


def test_a_shim_started_twice_starts_one_rank(bench: Bench) -> None:
    """Whoever was killed right after starting shims starts them again."""

    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER, nodes=1)
        await local.start(emit, {})
        from reknit.orchestrate.local.ranks import SHIM

        spec = bench.rank(1, 0) / "spec.json"
        before = {process.pid for process in bench.alive()}
        second = subprocess.run([sys.executable, "-I", "-S", str(SHIM), str(spec)], check=False, timeout=20)
        assert second.returncode == 0
        assert {process.pid for process in bench.alive()} == before
        os.kill(json.loads((bench.rank(1, 0) / "shim.json").read_text())["rank_pid"], signal.SIGKILL)
        await emit.until(AttemptEnded)
        third = subprocess.run([sys.executable, "-I", "-S", str(SHIM), str(spec)], check=False, timeout=20)
        assert third.returncode == 0
        assert bench.alive() == []
        await eventually(lambda: bool(emit.of(RankExited)), "the end of the rank")
        await local.close()

    run(story())
