"""What `reknit run` costs an undisturbed job: step time, memory, processor time, against the bare shell loop.

    python bench/overhead.py [STEPS] [ROUNDS]

Two jobs: paced (a step is 40 ms of pretended device time, as in training on GPUs, where the processor mostly waits) and
bound (nothing but numpy on all cores, the worst case). The launchers take turns; the step times are the job's own.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from lib.gangs import RANKS, Gang, ReknitRun, ShellLoop, resident_mb

WARM_UP = 20
"""Steps left out: first allocations, ranks that are still starting."""


def measure(kind: type[Gang], steps: int, step_seconds: float) -> tuple[float, float, float]:
    """Mean step in ms; the launcher's resident memory in MB; its processor seconds a second.

    The benchmark itself sleeps while the job runs: on few cores, watching would be what is measured.
    """
    with tempfile.TemporaryDirectory() as work:
        gang = kind(Path(work), steps=steps, step_seconds=step_seconds, every=max(steps, 1))
        began, memory, used = time.monotonic(), 0.0, 0.0
        try:
            while gang.process.poll() is None:
                time.sleep(0.5)
                memory = max(memory, resident_mb(gang.process.pid))
                used = max(used, processor_s(gang.process.pid))
            took = time.monotonic() - began
            if gang.process.returncode:
                raise SystemExit(f"{gang.name} ended with {gang.process.returncode}")
            return statistics.fmean(gang.step_ms()[WARM_UP:]), memory, used / took
        finally:
            gang.close()


def processor_s(pid: int) -> float:
    """Processor seconds that a process has used; 0 where it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 150
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    print(f"{RANKS} ranks, {steps} steps, {rounds} rounds in turn")
    print(
        f"{'job':8}{'launcher':14}{'mean step ms, median (range)':>32}{'launcher MB':>14}{'launcher CPU':>14}"
    )
    for name, seconds in (("paced", 0.04), ("bound", 0.0)):
        medians: dict[type[Gang], float] = {}
        found: dict[type[Gang], list[tuple[float, float, float]]] = {ShellLoop: [], ReknitRun: []}
        for _ in range(rounds):
            for kind, results in found.items():
                results.append(measure(kind, steps, seconds))
        for kind, results in found.items():
            means = [mean for mean, _, _ in results]
            medians[kind] = statistics.median(means)
            spread = f"{medians[kind]:.2f} ({min(means):.2f} … {max(means):.2f})"
            memory, share = (statistics.median(r[i] for r in results) for i in (1, 2))
            print(f"{name:8}{kind.name:14}{spread:>32}{memory:>14.1f}{share:>13.1%}", flush=True)
        more = medians[ReknitRun] / medians[ShellLoop] - 1
        print(f"{name:8}reknit run against the shell loop: {more:+.2%} step time", flush=True)


if __name__ == "__main__":
    main()
