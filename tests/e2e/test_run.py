"""`reknit run` with real processes, from the command line, as its users have it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from support.runs import QUICK, REKNIT, Run, steps, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

INVENTORY = """
[[node]]
name = "node0"
[[node.gpu]]
index = 0
pci = "0000:0a:00"
[[node]]
name = "node1"
[[node.gpu]]
index = 0
pci = "0000:1a:00"
[[node]]
name = "node2"
[[node.gpu]]
index = 0
pci = "0000:2a:00"
"""
XID79 = "4,1,2000,-;NVRM: Xid (PCI:{pci}): 79, pid=1, name=python, GPU has fallen off the bus.\n"

Start = "Callable[..., Run]"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def begin(command: list[str] | None = None, **more: object) -> Run:
        run = Run(tmp_path, command or steps(tmp_path), **more)  # type: ignore[arg-type]
        made.append(run)
        run.start()
        return run

    yield begin
    for run in made:
        run.close()


def test_a_job_that_ends_well_gives_its_own_status(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(steps(tmp_path, steps=5))
    assert run.wait() == 0, run.text()
    assert run.incidents() == []
    assert run.leftovers() == []


def test_a_killed_rank_is_restarted_in_place(start: Callable[..., Run]) -> None:
    run = start()
    until("a checkpoint", lambda: run.checkpoint() >= 10)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["diagnosis"]["culprit"] == {"kind": "rank", "id": "1"}
    assert incident["job"]["state"] == "recovered"
    assert incident["nodes"] == []
    assert run.checkpoint() == 60


def test_a_stopped_rank_is_found_named_and_looked_at(start: Callable[..., Run]) -> None:
    run = start()
    until("a checkpoint", lambda: run.checkpoint() >= 10)
    os.kill(run.rank_pid(1), signal.SIGSTOP)
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["diagnosis"]["culprit"] == {"kind": "rank", "id": "1"}
    assert incident["diagnosis"]["code"] == "rank.stopped"
    (evidence,) = incident["evidence"]
    stack = (run.state / evidence / "rank-1.txt").read_text()
    assert "steps.py" in stack


def test_the_xid_line_alone_taints_the_node_and_leaves_the_job_alone(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "nodes.toml").write_text(INVENTORY)
    run = start(steps(tmp_path, steps=60), spares=1, options=("--inventory", str(tmp_path / "nodes.toml")))
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    _kernel(run, "node1", XID79.format(pci="0000:1a:00"))
    until("the taint", (run.state / "nodes" / "node1" / "quarantine.json").exists)
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["job"] is None
    assert incident["nodes"][0]["state"] == "quarantined"
    assert [p.name for p in (run.state / "attempts").iterdir()] == ["1"]


def test_a_kernel_line_for_a_gpu_that_the_node_does_not_have_blames_nobody(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "nodes.toml").write_text(INVENTORY)
    run = start(steps(tmp_path, steps=60), spares=1, options=("--inventory", str(tmp_path / "nodes.toml")))
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    _kernel(run, "node1", XID79.format(pci="0000:ff:00"))
    _kernel(run, "node1", "\x00\x01\xff rubbish " + "x" * 1_000_000 + "\n")
    _kernel(run, "node1", "12,5,1,-;NVRM: Xid (PCI:0000:1a:00): 79, pid=1, name=x, written by a process\n")
    _kernel(
        run,
        "node1",
        "6,9,1,-;python[77]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:1a:00): 79, x[0+1]\n",
    )
    assert run.wait() == 0, run.text()
    assert all(i["nodes"] == [] for i in run.incidents())
    assert not (run.state / "nodes" / "node1" / "quarantine.json").exists()


def test_what_a_job_prints_condemns_no_node_and_spoils_no_terminal(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "nodes.toml").write_text(INVENTORY.replace("0000:1a:00", "0000:b3:00"))
    run = start(
        steps(tmp_path, "--noise", "--exit-at", "30", "--exit-code", "7"),
        spares=1,
        options=("--inventory", str(tmp_path / "nodes.toml")),
    )
    assert run.wait() == 125, run.text()
    assert not (run.state / "nodes" / "node1" / "quarantine.json").exists()
    assert "\x1b[2J" not in run.text()
    assert all(incident["nodes"] == [] for incident in run.incidents())


def test_the_same_failure_at_the_same_step_twice_stops_the_job(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(steps(tmp_path, "--exit-at", "20", "--exit-code", "3", "--exit-rank", "0"))
    assert run.wait() == 125, run.text()
    assert "twice" in run.text()
    (incident,) = run.incidents()
    assert incident["job"]["state"] == "stopped"
    assert sorted(p.name for p in (run.state / "attempts").iterdir()) == ["1", "2"]


def test_a_job_that_prints_nothing_is_still_restarted(start: Callable[..., Run], tmp_path: Path) -> None:
    policy = QUICK.replace("startup_floor_s = 20.0", "startup_floor_s = 1.0")
    run = start(steps(tmp_path, "--silent", steps=80), policy=policy)
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    os.kill(run.rank_pid(0), signal.SIGKILL)
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["job"]["state"] == "recovered"
    assert "no step is known" in str(incident["timeline"])


def test_a_job_that_only_prints_is_watched_by_its_lines(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(steps(tmp_path, "--print-only"))
    until("a checkpoint", lambda: run.checkpoint() >= 10)
    os.kill(run.rank_pid(0), signal.SIGSTOP)
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["diagnosis"]["culprit"] == {"kind": "rank", "id": "0"}


def test_the_launcher_may_die_and_the_ranks_go_on(start: Callable[..., Run]) -> None:
    run = start()
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    run.kill()
    before = run.checkpoint()
    until("the ranks to go on alone", lambda: run.checkpoint() > before + 5)
    run.start()
    assert run.wait() == 0, run.text()
    assert run.incidents() == []
    assert [p.name for p in (run.state / "attempts").iterdir()] == ["1"]


def test_a_run_is_taken_up_by_its_state_directory_alone(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(INVENTORY)
    run = start(steps(tmp_path, steps=100), spares=1, options=("--inventory", str(tmp_path / "nodes.toml")))
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    run.kill()
    run.args = (*REKNIT, "run", "--state", str(run.state), "--plain")
    run.start()
    _kernel(run, "node1", XID79.format(pci="0000:1a:00"))
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["nodes"][0]["node"] == "node1"
    assert run.checkpoint() == 100


def test_a_rank_that_dies_while_nobody_looks_is_restarted_later(start: Callable[..., Run]) -> None:
    run = start()
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    run.kill()
    os.kill(run.rank_pid(1), signal.SIGKILL)
    time.sleep(0.3)
    run.start()
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert incident["diagnosis"]["code"] == "process.signal.9"


def test_a_launcher_that_was_stopped_itself_calls_nothing_a_hang(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(steps(tmp_path, steps=140))
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    assert run.process is not None
    run.process.send_signal(signal.SIGSTOP)
    time.sleep(4)
    run.process.send_signal(signal.SIGCONT)
    assert run.wait() == 0, run.text()
    assert run.incidents() == []


def test_ctrl_c_ends_the_gang_and_leaves_nothing(start: Callable[..., Run]) -> None:
    run = start()
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.text()
    assert run.leftovers() == []
    assert run.incidents() == []
    run.start()
    assert run.wait() == 1, run.text()
    assert "SIGINT" in run.text()


def test_observe_mode_looks_on_and_gives_the_jobs_own_status(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(
        steps(tmp_path, "--exit-at", "10", "--exit-code", "7", "--exit-rank", "1"),
        policy='mode = "observe"\n' + QUICK,
    )
    assert run.wait() == 7, run.text()
    (incident,) = run.incidents()
    assert "would restart" in incident["decision"]
    assert [p.name for p in (run.state / "attempts").iterdir()] == ["1"]


def test_a_finished_run_says_so(start: Callable[..., Run], tmp_path: Path) -> None:
    run = start(steps(tmp_path, steps=5))
    assert run.wait() == 0, run.text()
    run.start()
    assert run.wait() == 0, run.text()
    assert [p.name for p in (run.state / "attempts").iterdir()] == ["1"]


def test_a_person_gives_a_node_back(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(INVENTORY)
    run = start(steps(tmp_path, steps=100), spares=1, options=("--inventory", str(tmp_path / "nodes.toml")))
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    _kernel(run, "node1", XID79.format(pci="0000:1a:00"))
    mark = run.state / "nodes" / "node1" / "quarantine.json"
    until("the taint", mark.exists)
    done = subprocess.run(
        [*REKNIT, "release", "node1", "--state", str(run.state)],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    until("the node to be back", lambda: not mark.exists())
    assert run.wait() == 0, run.text()
    (incident,) = run.incidents()
    assert not incident["open"]


def test_a_full_disk_stops_reknit_from_acting_and_not_the_job(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = start(steps(tmp_path, steps=100), launcher=(sys.executable, "-m", "support.small_journal"))
    until("a checkpoint", lambda: run.checkpoint() >= 10)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.wait() == 0, run.text()
    assert "Nothing is done until it can be written down" in run.text()
    assert "going on" in run.text()
    assert run.checkpoint() == 100
    (incident,) = run.incidents()
    assert incident["job"]["state"] == "recovered"


def test_the_journal_holds_every_event_and_each_command_has_its_outcome(start: Callable[..., Run]) -> None:
    run = start()
    until("a checkpoint", lambda: run.checkpoint() >= 10)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.wait() == 0, run.text()
    with sqlite3.connect(f"file:{run.state / 'journal.sqlite3'}?mode=ro", uri=True) as journal:
        states = {state for (state,) in journal.execute("select state from commands")}
    assert states == {"done"}


def _kernel(run: Run, node: str, text: str) -> None:
    path = run.state / "nodes" / node / "kernel.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as log:
        log.write(text.encode("utf-8", "surrogateescape"))
