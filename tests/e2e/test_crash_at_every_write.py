"""The launcher dies at every journal write of a recovery in turn; started again, it ends as if nothing had been."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from support.runs import Run, steps, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WRITES = 24
"""More than a recovery has; the undisturbed run checks that."""
CRASHING = (sys.executable, "-m", "support.crashing")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path, steps(tmp_path, steps=40, seconds=0.05), nodes=2, spares=1, launcher=CRASHING)
    yield made
    made.close()


def _recover(run: Run, crash: str) -> int:
    """A rank is killed, the launcher is killed, the launcher is started again. Gives the exit status of the end."""
    run.start(REKNIT_TEST_CRASH=crash, REKNIT_TEST_WRITES=str(run.tmp / "writes"))
    until("a checkpoint", lambda: run.checkpoint() >= 5)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    status = run.wait()
    if status == -signal.SIGKILL:
        run.start(REKNIT_TEST_CRASH="never:0")
        status = run.wait()
    return status


def _check_the_end(run: Run, status: int) -> None:
    assert status == 0, run.text()[-3000:]
    assert run.checkpoint() == 40
    (incident,) = run.incidents()
    assert incident["job"]["state"] in ("recovered", "dismissed"), incident["timeline"]
    assert not incident["open"]
    assert incident["diagnosis"]["code"] == "process.signal.9"
    assert sorted(int(p.name) for p in (run.state / "attempts").iterdir()) == [1, 2]
    restarts = [
        c for c in run.ask("show", incident["id"], "--json")["commands"] if c["kind"] == "restart_gang"
    ]
    assert [c["next_attempt"] for c in restarts] == [2]
    assert run.leftovers() == []


def test_an_undisturbed_recovery_has_fewer_writes_than_are_tried(run: Run) -> None:
    _check_the_end(run, _recover(run, "never:0"))
    assert int((run.tmp / "writes").read_text()) > 5


@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_a_write_of_a_recovery(run: Run, when: str, number: int) -> None:
    _check_the_end(run, _recover(run, f"{when}:{number}"))
