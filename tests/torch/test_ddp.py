"""A real PyTorch job (DistributedDataParallel over gloo) under `reknit run`."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from support.runs import QUICK, ROOT, Run, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS = 240
POLICY = QUICK.replace("step_floor_s = 1.5", "step_floor_s = 3.0").replace(
    "startup_floor_s = 20.0", "startup_floor_s = 60.0"
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    script = ROOT / "tests" / "torch" / "ddp_train.py"
    command = [sys.executable, str(script), "--checkpoint", str(tmp_path / "model.pt")]
    made = Run(tmp_path, [*command, "--steps", str(STEPS), "--every", "20"], nodes=2, policy=POLICY)
    made.start()
    until("a checkpoint of the model", (tmp_path / "model.pt").exists, 90)
    yield made
    made.close()


@pytest.mark.timeout(240)
def test_a_ddp_job_survives_the_sigkill_of_a_rank(run: Run) -> None:
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.wait(150) == 0, run.text()
    (incident,) = run.incidents()
    assert incident["diagnosis"]["code"] == "process.signal.9"
    assert incident["diagnosis"]["culprit"] == {"kind": "rank", "id": "1"}
    assert incident["job"]["state"] == "recovered"
    assert f"iter {STEPS}:" in (run.state / "attempts" / "2" / "rank-0" / "output.log").read_text()


@pytest.mark.timeout(240)
def test_a_ddp_job_survives_the_sigstop_of_a_rank(run: Run) -> None:
    os.kill(run.rank_pid(1), signal.SIGSTOP)
    assert run.wait(150) == 0, run.text()
    (incident,) = run.incidents()
    assert incident["diagnosis"]["code"] == "rank.stopped"
    assert incident["diagnosis"]["culprit"] == {"kind": "rank", "id": "1"}
    assert "ddp_train.py" in (run.state / incident["evidence"][0] / "rank-1.txt").read_text()
    assert incident["job"]["state"] == "recovered"
