"""How the ranks of a gang end, and what is reported about it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING

from local.bench import Recorder, eventually, python, run, shell
from reknit.model.commands import RestartGang, StopJob
from reknit.model.events import (
    AttemptEnded,
    AttemptStarted,
    CommandDone,
    JobSubmitted,
    JobSucceeded,
    NodeSeen,
    ProgressSeen,
    RankExited,
    SignalSeen,
)

if TYPE_CHECKING:
    from local.bench import Bench

STOP = StopJob("stop-1", "inc-1", "the same failure twice", 2e9, job="job", attempt=1, grace_s=5.0)


def test_a_gang_that_ends_well_is_reported_as_succeeded_after_everything_else(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(python("print('iteration 3 loss 0.5')"), ranks_per_node=2, spares=1)
        await local.start(emit, {})
        await emit.until(JobSucceeded)
        await local.close()
        assert [event.node.name for event in emit.of(NodeSeen)] == ["node0", "node1", "node2"]
        assert emit.of(JobSubmitted)[0].job.ranks == 4
        started = emit.of(AttemptStarted)
        assert [(rank.rank, rank.node, rank.local_rank) for rank in started[0].placement] == [
            (0, "node0", 0),
            (1, "node0", 1),
            (2, "node1", 0),
            (3, "node1", 1),
        ]
        assert {(event.rank, event.code, event.signal, event.asked) for event in emit.of(RankExited)} == {
            (rank, 0, None, False) for rank in range(4)
        }
        assert emit.events[-2:] == [AttemptEnded("job", 1), JobSucceeded("job", 1)]
        assert bench.alive() == []

    run(story())


def test_exit_codes_and_signals_are_told_apart(bench: Bench) -> None:
    script = "case $RANK in 0) exit 3;; 1) kill -SEGV $$;; 2) exit 0;; 3) kill -KILL $$;; esac"

    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell(script), ranks_per_node=2)
        await local.start(emit, {})
        await emit.until(AttemptEnded)
        await local.close()
        ends = {event.rank: (event.code, event.signal) for event in emit.of(RankExited)}
        assert ends == {
            0: (3, None),
            1: (None, signal.SIGSEGV),
            2: (0, None),
            3: (None, signal.SIGKILL),
        }
        assert emit.of(JobSucceeded) == []

    run(story())


def test_a_command_that_cannot_be_executed_says_so_in_the_ranks_own_log(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(("/no/such/program", "x"), nodes=1)
        await local.start(emit, {})
        exited = await emit.until(RankExited)
        await local.close()
        assert (exited[0].code, exited[0].signal) == (127, None)
        assert (
            "'/no/such/program' cannot be used: No such file" in (bench.rank(1, 0) / "output.log").read_text()
        )

    run(story())


def test_a_file_without_the_right_to_execute_gives_126(bench: Bench) -> None:
    async def story() -> None:
        program = bench.state.parent / "program"
        program.write_text("#!/bin/sh\n")
        emit = Recorder()
        local = bench.open((str(program),), nodes=1)
        await local.start(emit, {})
        exited = await emit.until(RankExited)
        await local.close()
        assert exited[0].code == 126

    run(story())


def test_what_a_rank_said_is_reported_before_its_end_even_without_a_last_newline(bench: Bench) -> None:
    code = (
        "import sys; sys.stderr.write('''iteration 7 | loss 0.25 |\nTraceback (most recent call last):\n"
        """  File "train.py", line 9, in step\n    f()\nZeroDivisionError: division by zero"""
        "'''); sys.exit(1)"
    )

    async def story() -> None:
        emit = Recorder()
        local = bench.open(python(code), nodes=1)
        await local.start(emit, {})
        await emit.until(AttemptEnded)
        await local.close()
        kinds = [type(event) for event in emit.events]
        assert kinds.index(SignalSeen) < kinds.index(RankExited) < kinds.index(AttemptEnded)
        signal_seen = emit.of(SignalSeen)[0].signal
        assert signal_seen.attributes["exception"] == "ZeroDivisionError"
        assert (signal_seen.rank, signal_seen.attempt, signal_seen.node) == (0, 1, "node0")
        assert signal_seen.first_seen <= emit.of(RankExited)[0].at + 0.05
        size = (bench.rank(1, 0) / "output.log").stat().st_size
        assert emit.cursors["log/1/0"] == size

    run(story())


def test_progress_comes_from_the_log_until_the_progress_file_shows_a_step(bench: Bench) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from reknit import progress\n"
        "print('iteration 5 | loss: 0.5', flush=True); time.sleep(0.4)\n"
        "progress.step(8); time.sleep(30)"
    )

    async def story() -> None:
        from pathlib import Path

        import reknit

        source = str(Path(reknit.__file__).parent.parent)
        emit = Recorder()
        local = bench.open(
            (*python(code), source), nodes=1, log_regex=r"iteration (?P<step>\d+) \| loss: (?P<loss>[\d.]+)"
        )
        await local.start(emit, {})
        seen: list[int] = []

        def steps() -> list[int]:
            seen[:] = [event.ranks[0].step for event in emit.of(ProgressSeen)]
            return seen

        await eventually(lambda: 8 in steps(), "step 8")
        last = emit.of(ProgressSeen)[-1].ranks[0]
        assert seen[0] == 5
        assert (last.step, last.loss) == (8, 0.5)
        await local.execute(STOP)
        await local.close()

    run(story())


def test_whoever_exits_with_0_because_it_was_told_to_end_has_not_succeeded(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell("trap 'exit 0' TERM; while :; do sleep 0.05; done"))
        await local.start(emit, {})
        outcome = await local.execute(STOP)
        assert isinstance(outcome, CommandDone)
        assert {(event.code, event.asked) for event in emit.of(RankExited)} == {(0, True)}
        assert emit.of(JobSucceeded) == []
        assert emit.events[-1] == AttemptEnded("job", 1)
        await local.close()

    run(story())


def test_a_daemon_that_forked_twice_in_a_session_of_its_own_does_not_survive(bench: Bench) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.environ.clear(); os.execvpe('sleep', ['sleep', '600'], {'PATH': '/usr/bin:/bin'})\n"
        "    os._exit(0)\n"
        "time.sleep(600)"
    )

    async def story() -> None:
        emit = Recorder()
        local = bench.open(python(code), nodes=1)
        await local.start(emit, {})
        shim = json.loads((bench.rank(1, 0) / "shim.json").read_text())["shim_pid"]
        await eventually(lambda: "sleep" in names_below(shim), "the daemon to become the shim's child")
        daemon = [pid for pid, name in below(shim) if name == "sleep"]
        outcome = await local.execute(STOP)
        assert isinstance(outcome, CommandDone), outcome
        assert not any(os.path.exists(f"/proc/{pid}") for pid in daemon)  # noqa: PTH110
        await local.close()

    run(story())


def test_a_rank_that_is_killed_takes_a_grandchild_that_ignores_sigterm_with_it(bench: Bench) -> None:
    script = "(trap '' TERM; echo up; while :; do sleep 0.05; done) & sleep 600"

    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell(script), nodes=1, grace_s=0.3)
        await local.start(emit, {})
        shim = json.loads((bench.rank(1, 0) / "shim.json").read_text())
        await eventually(lambda: "up" in (bench.rank(1, 0) / "output.log").read_text(), "the grandchild")
        os.kill(shim["rank_pid"], signal.SIGKILL)
        exited = await emit.until(RankExited)
        assert (exited[0].signal, exited[0].asked) == (signal.SIGKILL, False)
        assert emit.of(AttemptEnded) == []  # the grandchild still has its grace
        await emit.until(AttemptEnded)
        assert bench.alive() == []
        await local.close()

    run(story())


def test_a_stop_ends_in_sigkill_once_the_grace_period_of_the_command_is_over(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell("trap '' TERM; echo up; while :; do sleep 0.05; done"), grace_s=60.0)
        await local.start(emit, {})
        logs = [bench.rank(1, rank) / "output.log" for rank in range(2)]
        await eventually(lambda: all("up" in log.read_text() for log in logs), "both ranks")
        began = asyncio.get_running_loop().time()
        stop = StopJob("stop-1", "inc-1", "enough", 2e9, job="job", attempt=1, grace_s=0.3)
        await local.execute(stop)
        assert 0.3 <= asyncio.get_running_loop().time() - began < 10
        assert {(event.signal, event.asked) for event in emit.of(RankExited)} == {(signal.SIGKILL, True)}
        await local.close()

    run(story())


def test_a_stopped_rank_is_woken_so_that_it_need_not_be_killed(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(
            shell("trap 'exit 9' TERM; echo up; while :; do sleep 0.05; done"), nodes=1, grace_s=60.0
        )
        await local.start(emit, {})
        await eventually(lambda: "up" in (bench.rank(1, 0) / "output.log").read_text(), "the rank")
        pid = json.loads((bench.rank(1, 0) / "shim.json").read_text())["rank_pid"]
        os.kill(pid, signal.SIGSTOP)
        await local.execute(STOP)
        assert emit.of(RankExited)[0].code == 9
        await local.close()

    run(story())


def test_a_shim_that_is_killed_costs_the_status_but_leaves_nobody_behind(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell("sleep 600 & sleep 600"), nodes=1)
        await local.start(emit, {})
        shim = json.loads((bench.rank(1, 0) / "shim.json").read_text())
        await eventually(lambda: names_below(shim["shim_pid"]).count("sleep") == 2, "both sleeps")
        os.kill(shim["shim_pid"], signal.SIGKILL)
        await emit.until(AttemptEnded)
        exited = emit.of(RankExited)[0]
        assert (exited.code, exited.signal) == (None, None)
        assert bench.alive() == []
        assert any("nobody saw how rank 0 of attempt 1 ended" in notice for notice in bench.notices)
        await local.close()

    run(story())


def test_a_stopped_job_is_not_restarted(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell("sleep 600"))
        await local.start(emit, {})
        await local.execute(STOP)
        assert local.stopped is not None
        assert local.stopped.reason == "the same failure twice"
        restart = RestartGang("restart-1", "inc-1", "try again", 2e9, job="job", attempt=1, next_attempt=2)
        outcome = await local.execute(restart)
        assert outcome.detail == "the job was stopped: the same failure twice"
        again = await local.execute(STOP)
        assert isinstance(again, CommandDone)
        await local.close()

    run(story())


def below(pid: int) -> list[tuple[int, str]]:
    """Living descendants, by pid and name."""
    from reknit.orchestrate.local.processes import GONE, descendants

    return [(process.pid, process.name) for process in descendants(pid) if process.state not in GONE]


def names_below(pid: int) -> list[str]:
    """Names of the living descendants."""
    return [name for _, name in below(pid)]
