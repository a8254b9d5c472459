"""Runs the real `reknit` as a person would, and waits for what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).parents[2]
STEPS = ROOT / "tests" / "jobs" / "steps.py"
REKNIT = (sys.executable, "-m", "reknit.cli.main")

QUICK = """
[deadlines]
settle_s = 0.3
grace_s = 2.0
retry_s = 1.0
[stall]
step_floor_s = 1.5
startup_floor_s = 20.0
[restarts]
backoff_first_s = 0.5
backoff_max_s = 1.0
"""
"""A policy for tests: the same rules, with the patience of a test."""


class Run:
    """One `reknit run` over a state directory; started again after it was killed, it is the same run."""

    def __init__(
        self,
        tmp: Path,
        command: Sequence[str],
        *,
        nodes: int = 2,
        ranks: int = 1,
        spares: int = 0,
        policy: str = QUICK,
        options: Sequence[str] = (),
        launcher: Sequence[str] = REKNIT,
    ) -> None:
        self.tmp = tmp
        self.state = tmp / "state"
        self.policy = tmp / "policy.toml"
        self.policy.write_text(policy)
        self.args = (
            *launcher,
            "run",
            *("--nodes", str(nodes), "--ranks-per-node", str(ranks), "--spares", str(spares)),
            *("--policy", str(self.policy), "--state", str(self.state), "--plain", "--kernel-log", "none"),
            *options,
            "--",
            *command,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.output = tmp / "reknit.out"

    def start(self, **environment: str) -> None:
        """Start it (again)."""
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                self.args,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), **environment},
                cwd=self.tmp,
            )

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit status."""
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.text()[-3000:]}") from None

    def kill(self) -> None:
        """SIGKILL to reknit itself; the ranks go on."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End whatever is left, ranks included."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in self.leftovers():
            os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[int]:
        """Processes of this run that live."""
        mark = os.fsencode(self.state)
        found: list[int] = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes() or mark in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return [
            pid for pid in found if pid != os.getpid() and (self.process is None or pid != self.process.pid)
        ]

    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def rank_pid(self, rank: int, attempt: int = 1) -> int:
        """The process of a rank, once it runs."""
        path = self.state / "attempts" / str(attempt) / f"rank-{rank}" / "shim.json"
        until(
            f"rank {rank} of attempt {attempt} to run",
            lambda: path.exists() and json.loads(path.read_text())["rank_pid"],
        )
        return int(json.loads(path.read_text())["rank_pid"])

    def checkpoint(self) -> int:
        """The step in the job's checkpoint; -1 where there is none."""
        path = self.tmp / "checkpoint.json"
        try:
            return int(json.loads(path.read_text())["step"])
        except (OSError, ValueError, KeyError):
            return -1

    def incidents(self) -> list[dict[str, Any]]:
        """What `reknit incidents --json` says."""
        return list(self.ask("incidents", "--json")["incidents"])

    def ask(self, *args: str) -> Any:
        """A reading command's JSON."""
        done = subprocess.run(
            [*REKNIT, *args, "--state", str(self.state)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def until(what: str, ready: Callable[[], Any], seconds: float = 30.0) -> None:
    """Wait for something to be true."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.02)


def steps(tmp: Path, *options: str, steps: int = 60, seconds: float = 0.05, every: int = 5) -> list[str]:
    """The command of the small test job."""
    return [
        sys.executable,
        str(STEPS),
        *("--steps", str(steps), "--step-seconds", str(seconds)),
        *("--checkpoint", str(tmp / "checkpoint.json"), "--every", str(every)),
        *options,
    ]
