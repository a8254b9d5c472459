"""What `reknit.progress` costs a training script, against an empty call and a plain write per step.

    python bench/progress_step.py [CALLS]

Prints nanoseconds per call: the best and the median of nine rounds, every variant in its own fresh process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter_ns

ROUNDS = 9
VARIANTS = {
    "empty function call": "floor",
    "step(), REKNIT_PROGRESS not set": "disabled",
    "step(n)": "step",
    "step(n, loss)": "step_loss",
    "phase(), two names in turn": "phase",
    "file.write + flush a step": "write",
}


def empty(_n: int) -> None:
    """The floor: what any call costs."""


def measure(variant: str, calls: int) -> None:  # noqa: C901 - one branch a variant
    """Run one variant in this process and print nanoseconds per call of each round."""
    from reknit import progress  # noqa: PLC0415 - the process that only starts the others does not need it

    steps = iter(range(1, 1 << 60))
    rounds: list[float] = []
    with Path(os.environ["PEER_FILE"]).open("w", encoding="ascii") as peer:
        for _ in range(ROUNDS):
            numbers = [next(steps) for _ in range(calls)]
            began = perf_counter_ns()
            if variant == "floor":
                for n in numbers:
                    empty(n)
            elif variant in ("disabled", "step"):
                for n in numbers:
                    progress.step(n)
            elif variant == "step_loss":
                for n in numbers:
                    progress.step(n, 2.5)
            elif variant == "phase":
                for n in numbers:
                    progress.phase("forward" if n & 1 else "allreduce")
            else:
                for n in numbers:
                    peer.write(f"{n}\n")
                    peer.flush()
            rounds.append((perf_counter_ns() - began) / calls)
    print(" ".join(f"{nanoseconds:.1f}" for nanoseconds in rounds))


def main() -> None:
    """Print the table."""
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    print(f"{'variant':<34}{'best ns':>10}{'median ns':>11}   ({calls} calls a round, {ROUNDS} rounds)")
    with tempfile.TemporaryDirectory() as folder:
        for label, variant in VARIANTS.items():
            environment = {k: v for k, v in os.environ.items() if k != "REKNIT_PROGRESS"}
            environment["PEER_FILE"] = str(Path(folder, "peer.log"))
            if variant in ("step", "step_loss", "phase"):
                environment["REKNIT_PROGRESS"] = str(Path(folder, variant))
            command = [sys.executable, __file__, "--measure", variant, str(calls)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
            rounds = [float(number) for number in done.stdout.split()]
            print(f"{label:<34}{min(rounds):>10.0f}{statistics.median(rounds):>11.0f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]))
    else:
        main()
