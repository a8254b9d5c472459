"""Two launchers of the same real job, for the benchmarks: the bare shell loop and `reknit run`. No benchmark itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parents[1]
NODES, RANKS_PER_NODE = 4, 2
RANKS = NODES * RANKS_PER_NODE
POLICY = """
[deadlines]
settle_s = 0.5
grace_s = 3.0
[stall]
step_floor_s = 2.0
"""
"""The demo's patience; all else is the default."""
_STEP = re.compile(rb"iter (\d+): loss [0-9.]+, time ([0-9.]+)ms")


class Gang:
    """One launched job: its steps are read from what rank 0 prints, the same way for both launchers."""

    name = ""

    def __init__(self, work: Path, *, steps: int, step_seconds: float, every: int = 10) -> None:
        self.work = work
        self.faults = work / "faults.json"
        self.command = [
            *(sys.executable, "-m", "reknit.demo.train", "--steps", str(steps), "--log-every", "1"),
            *("--checkpoint-dir", str(work / "checkpoints"), "--checkpoint-every", str(every)),
            *("--step-seconds", str(step_seconds)),
        ]
        self.environment = {**os.environ, "REKNIT_DEMO_FAULTS": str(self.faults), "PYTHONUNBUFFERED": "1"}
        self.process: subprocess.Popen[bytes]

    def output(self) -> bytes:
        """Everything that rank 0 has printed, attempt after attempt."""
        raise NotImplementedError

    def pid(self, rank: int) -> int:
        """The process of a rank of the newest attempt."""
        raise NotImplementedError

    def furthest(self) -> int:
        """The furthest step so far."""
        return max((int(step) for step, _ in _STEP.findall(self.output())), default=0)

    def step_ms(self) -> list[float]:
        """Every step's milliseconds as the job itself measured them."""
        return [float(ms) for _, ms in _STEP.findall(self.output())]

    def reach(self, step: int, seconds: float = 60.0) -> None:
        """Wait until it has made this step."""
        wait(lambda: self.furthest() >= step, seconds, f"{self.name}: step {step}")

    def recovery_s(self, strike: Callable[[Gang], None], seconds: float = 60.0) -> float:
        """Seconds from a fault to the first step beyond the furthest one before it."""
        began = time.monotonic()
        strike(self)
        time.sleep(0.1)
        before = self.furthest()
        wait(lambda: self.furthest() > before + 1, seconds, f"{self.name}: a new step")
        return time.monotonic() - began

    def close(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class ShellLoop(Gang):
    """The floor."""

    name = "shell loop"

    def __init__(self, work: Path, *, steps: int, step_seconds: float, every: int = 10) -> None:
        super().__init__(work, steps=steps, step_seconds=step_seconds, every=every)
        self._out, self._said = work / "out", work / "said"
        with self._out.open("wb") as out, self._said.open("wb") as said:
            self.process = subprocess.Popen(
                ["bash", str(HERE / "shell_floor.sh"), str(RANKS), *self.command],
                stdout=out,
                stderr=said,
                env=self.environment,
            )

    def output(self) -> bytes:
        """See Gang."""
        return self._out.read_bytes()

    def pid(self, rank: int) -> int:
        """See Gang."""
        lines = re.findall(rb"attempt \d+ port \d+ pids ([\d ]+)", self._said.read_bytes())
        return int(lines[-1].split()[rank])


class ReknitRun(Gang):
    """Ours."""

    name = "reknit run"

    def __init__(self, work: Path, *, steps: int, step_seconds: float, every: int = 10) -> None:
        super().__init__(work, steps=steps, step_seconds=step_seconds, every=every)
        self.state = work / "state"
        inventory = work / "nodes.toml"
        inventory.write_text(
            "".join(
                f'[[node]]\nname = "node{n}"\n[[node.gpu]]\nindex = 0\npci = "0000:{n:02x}:00"\n'
                for n in range(NODES + 1)
            )
        )
        (work / "policy.toml").write_text(POLICY)
        with (work / "reknit.out").open("wb") as out:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "reknit.cli.main", "run", "--plain", "--kernel-log", "none"),
                    *("--nodes", str(NODES), "--ranks-per-node", str(RANKS_PER_NODE), "--spares", "1"),
                    *("--state", str(self.state), "--policy", str(work / "policy.toml")),
                    *("--inventory", str(inventory), "--", *self.command),
                ],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self.environment,
            )

    def attempt(self) -> int:
        """The newest attempt."""
        return max((int(p.name) for p in (self.state / "attempts").glob("[0-9]*")), default=1)

    def output(self) -> bytes:
        """See Gang."""
        logs = sorted((self.state / "attempts").glob("*/rank-0/output.log"), key=lambda p: int(p.parts[-3]))
        return b"".join(log.read_bytes() for log in logs)

    def pid(self, rank: int) -> int:
        """See Gang."""
        path = self.state / "attempts" / str(self.attempt()) / f"rank-{rank}" / "shim.json"
        return int(json.loads(path.read_bytes())["rank_pid"])

    def kernel(self, node: str, text: str) -> None:
        """A kernel record on a node."""
        path = self.state / "nodes" / node / "kernel.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as log:
            log.write(f"4,1,{time.monotonic_ns() // 1000},-;{text}\n")


def wait(ready: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait for something to be true; a benchmark that waits in vain stops."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.01)


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB; 0 where it has gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
    return 0.0
