"""Restarts: in place, onto a spare, with no room, asked for twice, too late."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

from local.bench import Recorder, eventually, python, run, shell
from reknit.model.commands import Quarantine, Release, RestartGang
from reknit.model.events import (
    AttemptEnded,
    AttemptStarted,
    CommandDone,
    CommandFailed,
    JobSucceeded,
    RankExited,
)
from reknit.orchestrate.local.files import read_json
from reknit.orchestrate.local.state_dir import PlanFile

if TYPE_CHECKING:
    from local.bench import Bench

FOREVER = shell('echo "attempt $REKNIT_ATTEMPT port $MASTER_PORT"; exec sleep 600')


def restart(attempt: int, **changes: Any) -> RestartGang:
    """Replace `attempt` by the next."""
    values = {"attempt": attempt, "next_attempt": attempt + 1, "grace_s": 5.0} | changes
    return RestartGang(f"restart-{attempt}", "inc-1", "rank 1 died", 2e9, job="job", **values)


def nodes_of(started: AttemptStarted) -> list[str]:
    """Where an attempt runs, by group rank."""
    return list(dict.fromkeys(rank.node for rank in started.placement))


def test_a_gang_restarts_in_place_with_a_fresh_port_and_the_old_one_gone(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        os.kill(json.loads((bench.rank(1, 1) / "shim.json").read_text())["rank_pid"], signal.SIGKILL)
        await emit.until(RankExited)
        outcome = await local.execute(restart(1))
        assert outcome == CommandDone("restart-1", "attempt 2 runs on node0, node1")
        ends = {event.rank: (event.signal, event.asked) for event in emit.of(RankExited)}
        assert ends == {0: (signal.SIGTERM, True), 1: (signal.SIGKILL, False)}
        first, second = emit.of(AttemptStarted)
        assert (second.attempt, second.placement) == (2, first.placement)
        assert emit.events.index(AttemptEnded("job", 1)) < emit.events.index(second)
        plans = [read_json(bench.state / "attempts" / n / "plan.json", PlanFile) for n in ("1", "2")]
        first_plan, second_plan = plans
        assert first_plan is not None
        assert second_plan is not None
        assert first_plan.port != second_plan.port
        log = bench.rank(2, 0) / "output.log"
        await eventually(
            lambda: f"attempt 2 port {second_plan.port}" in log.read_text(), "the new rank's output"
        )
        assert {who_has(process.pid) for process in bench.alive()} == {"2"}
        await local.close()

    run(story())


def test_a_gang_moves_away_from_suspects_and_keeps_the_other_ranks_where_they_are(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER, nodes=3, spares=1)
        await local.start(emit, {})
        await local.execute(restart(1, avoid=("node1",)))
        assert nodes_of(emit.of(AttemptStarted)[1]) == ["node0", "node3", "node2"]
        await local.close()

    run(story())


def test_without_room_a_gang_that_still_runs_is_left_alone_and_the_missing_nodes_are_named(
    bench: Bench,
) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        mark = Quarantine("q-1", "inc-1", "XID 79 on node1", 2e9, node="node1")
        assert isinstance(await local.execute(mark), CommandDone)
        before = {process.pid for process in bench.alive()}
        outcome = await local.execute(restart(1))
        assert isinstance(outcome, CommandFailed)
        assert outcome.retry
        assert outcome.detail.startswith("2 nodes needed, 1 missing of 2: node1 is quarantined; ")
        assert {process.pid for process in bench.alive()} == before
        await local.execute(Release("r-1", "inc-1", "repaired", 2e9, node="node1"))
        assert isinstance(await local.execute(restart(1)), CommandDone)
        assert nodes_of(emit.of(AttemptStarted)[1]) == ["node0", "node1"]
        await local.close()

    run(story())


def test_without_room_what_is_left_of_a_broken_gang_is_ended(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell("[ $RANK = 1 ] && exit 1; sleep 600"))
        await local.start(emit, {})
        await emit.until(RankExited)
        outcome = await local.execute(restart(1, avoid=("node0",)))
        assert isinstance(outcome, CommandFailed)
        assert "node0 is under suspicion" in outcome.detail
        assert emit.of(AttemptEnded) == [AttemptEnded("job", 1)]
        assert bench.alive() == []
        await local.close()

    run(story())


def test_the_same_restart_twice_acts_once_and_a_stale_one_not_at_all(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        await asyncio.gather(local.execute(restart(1)), local.execute(restart(1)))
        pids = {process.pid for process in bench.alive()}
        again = await local.execute(restart(1))
        assert again.detail == "attempt 2 runs already"
        assert {process.pid for process in bench.alive()} == pids
        await local.execute(restart(2))
        stale = await local.execute(restart(1))
        assert stale == CommandDone("restart-1", "already superseded by attempt 3")
        assert sorted(path.name for path in (bench.state / "attempts").iterdir()) == ["1", "2", "3"]
        assert {who_has(process.pid) for process in bench.alive()} == {"3"}
        await local.close()

    run(story())


def test_a_gang_that_has_succeeded_meanwhile_is_not_run_again(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell("exit 0"))
        await local.start(emit, {})
        await emit.until(JobSucceeded)
        outcome = await local.execute(restart(1))
        assert outcome.detail == "every rank had ended with status 0; nothing was restarted"
        assert len(emit.of(AttemptStarted)) == 1
        await local.close()

    run(story())


def test_ranks_that_were_never_started_are_started_and_those_that_were_are_not(bench: Bench) -> None:
    """As after a kill in the middle of a restart: the plan is written, one of two ranks runs."""

    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        await local.execute(restart(1))
        folder = bench.rank(2, 1)
        shim = json.loads((folder / "shim.json").read_text())
        kept = json.loads((bench.rank(2, 0) / "shim.json").read_text())["rank_pid"]
        await local.close()
        os.kill(shim["shim_pid"], signal.SIGKILL)
        await eventually(
            lambda: all(who.pid != shim["rank_pid"] for who in bench.alive()), "rank 1 to be gone"
        )
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        second = Recorder()
        local = bench.open(FOREVER)
        await local.start(second, emit.cursors)
        outcome = await local.execute(restart(1))
        assert isinstance(outcome, CommandDone)
        assert json.loads((bench.rank(2, 0) / "shim.json").read_text())["rank_pid"] == kept
        assert json.loads((folder / "shim.json").read_text())["rank_pid"] != shim["rank_pid"]
        assert second.of(RankExited) == []
        await local.close()

    run(story())


def test_a_full_disk_fails_the_command_with_a_sentence_and_may_pass(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER)
        await local.start(emit, {})
        blocker = bench.state / "attempts" / "2"
        blocker.write_text("no folder can be made here")
        outcome = await local.execute(restart(1))
        assert isinstance(outcome, CommandFailed)
        assert outcome.retry
        assert str(blocker) in outcome.detail
        blocker.unlink()
        assert isinstance(await local.execute(restart(1)), CommandDone)
        await local.close()

    run(story())


def test_a_command_for_somebody_elses_job_or_node_is_refused(bench: Bench) -> None:
    async def story() -> None:
        local = bench.open(python("import time; time.sleep(600)"))
        await local.start(Recorder(), {})
        other = await local.execute(RestartGang("r", "i", "w", 2e9, job="other", attempt=1, next_attempt=2))
        assert other == CommandFailed("r", "there is no job other here, only job", retry=False)
        node = await local.execute(Quarantine("q", "i", "w", 2e9, node="node7"))
        assert node == CommandFailed("q", "there is no node node7 here", retry=False)
        await local.close()

    run(story())


def who_has(pid: int) -> str:
    """The attempt that a process belongs to."""
    with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
        words = file.read().split(b"\0")
    return next((word[15:].decode() for word in words if word.startswith(b"REKNIT_ATTEMPT=")), "")
