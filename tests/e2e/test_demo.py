"""`reknit demo` as a newcomer runs it."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from support.runs import REKNIT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(120)
def test_the_demo_breaks_in_five_ways_recovers_and_shows_the_bill(tmp_path: Path) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [*REKNIT, "demo", "--plain"], check=False, capture_output=True, text=True, timeout=110, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert time.monotonic() - began < 100
    assert "ETTR" in done.stdout
    listed = subprocess.run(
        [*REKNIT, "incidents", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )
    incidents = json.loads(listed.stdout)["incidents"]
    verdicts = [
        (i["diagnosis"]["failure_class"], (i["diagnosis"]["culprit"] or {}).get("id")) for i in incidents
    ]
    assert verdicts[0] == ("unknown", "3")
    assert verdicts[1] == ("gpu_hardware", "node1/0000:1a:00")
    assert verdicts[2] == ("timeout_hang_symptom_only", "5")
    assert verdicts[3][0] == "degradation"
    assert verdicts[4] == ("user_code", "demo")
    quarantined = [b["node"] for i in incidents for b in i["nodes"] if b["state"] == "quarantined"]
    assert quarantined == ["node1"]
    assert incidents[4]["job"]["state"] == "stopped"
