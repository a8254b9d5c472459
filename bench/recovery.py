"""Fault -> first new step, for each act of the demo, against the bare floor: the same job restarted by a shell loop.

    python bench/recovery.py [ROUNDS]

Both launchers run the same 8 ranks with a checkpoint each 10 steps, in turn, on the same machine. The shell loop knows
nothing and waits for nothing: what Reknit needs more is its settling time (0.5 s here, for the rest of the evidence to
arrive) and, for a hang, the 2 s of silence that its policy calls one and 1 s for looking at the ranks. A frozen rank is
never noticed by the loop. Median and range.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from lib.gangs import Gang, ReknitRun, ShellLoop

if TYPE_CHECKING:
    from collections.abc import Callable


def killed(gang: Gang) -> None:
    """A rank is killed."""
    os.kill(gang.pid(3), signal.SIGKILL)


def lost_gpu(gang: Gang) -> None:
    """A rank dies of a lost GPU; its node's kernel says so, where somebody reads it."""
    attempt = gang.attempt() if isinstance(gang, ReknitRun) else None
    if isinstance(gang, ReknitRun):
        gang.kernel(
            "node1", "NVRM: Xid (PCI:0000:01:00): 79, pid=1, name=python, GPU has fallen off the bus."
        )
    gang.faults.write_text(json.dumps([{"kind": "cuda_error", "rank": 2, "attempt": attempt or 1}]))


def frozen(gang: Gang) -> None:
    """A rank is stopped."""
    os.kill(gang.pid(5), signal.SIGSTOP)


ACTS: dict[str, Callable[[Gang], None]] = {
    "rank killed, restart in place": killed,
    "GPU lost, restart on the spare": lost_gpu,
    "rank frozen, found and restarted": frozen,
}


def measure(kind: type[Gang], strike: Callable[[Gang], None]) -> float:
    """One recovery, seconds."""
    with tempfile.TemporaryDirectory() as work:
        gang = kind(Path(work), steps=100_000, step_seconds=0.04)
        try:
            gang.reach(25)
            return gang.recovery_s(strike)
        finally:
            gang.close()


def main() -> None:
    """Measure and print."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print(f"seconds from the fault to the first new step, {rounds} rounds: median (least … most)")
    print(f"{'act':36}{'shell loop':>24}{'reknit run':>24}")
    for name, strike in ACTS.items():
        cells: list[str] = []
        for kind in (ShellLoop, ReknitRun):
            if kind is ShellLoop and strike is frozen:
                cells.append("never")
                continue
            took = [measure(kind, strike) for _ in range(rounds)]
            cells.append(f"{statistics.median(took):.2f} ({min(took):.2f} … {max(took):.2f})")
        print(f"{name:36}{cells[0]:>24}{cells[1]:>24}", flush=True)


if __name__ == "__main__":
    main()
