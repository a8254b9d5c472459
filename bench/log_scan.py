"""How fast a training log is read: MB/s of the training sense, and of Python's `re`, one pattern after
another, as the measure of what a plain script does.

Usage: python bench/log_scan.py [--megabytes N] [--block-kib N]

The log is ordinary: steps, data and memory lines; one line in a thousand says that something failed, among
them whole tracebacks. `re` gets the same rows and a smaller piece of the log, because it takes that long.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from typing import TYPE_CHECKING

from reknit.catalog.load import builtin
from reknit.sense.text import lines_of
from reknit.sense.training_log import TrainingLogSense

if TYPE_CHECKING:
    from collections.abc import Callable

    from reknit.catalog.row import Catalog

_FAILURES = (
    (
        "[rank3]:[E1104 09:12:44.120 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective "
        "operation timeout: WorkNCCL(SeqNum=733, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
        "600031 milliseconds before timing out."
    ),
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB.",
    (
        'Traceback (most recent call last):\n  File "/job/train.py", line 88, in main\n    step(batch)\n'
        '  File "/job/train.py", line 41, in step\n    loss = model(batch)["loss"]\nKeyError: \'loss\''
    ),
    "OSError: [Errno 28] No space left on device: '/checkpoints/step_900.pt'",
)


def ordinary_log(megabytes: int, *, failures: bool) -> bytes:
    """A log of about this size; always the same one."""
    rng = random.Random(20260101)
    lines: list[str] = []
    size = step = 0
    while size < megabytes * 1_000_000:
        step += 1
        line = _ordinary_line(rng, step)
        if failures and rng.random() < 0.001:
            line = rng.choice(_FAILURES)
        lines.append(line)
        size += len(line) + 1
    return ("\n".join(lines) + "\n").encode()


def _ordinary_line(rng: random.Random, step: int) -> str:
    stamp = f"2026-02-03 04:{step // 60 % 60:02d}:{step % 60:02d},{rng.randrange(1000):03d}"
    return rng.choice(
        (
            (
                f"{stamp} INFO trainer: step {step} | loss {rng.random() * 9:.4f} | lr 2.91e-04 | grad norm "
                f"{rng.random():.3f} | tokens/s {rng.randrange(9000, 12000)} | mem 61.2 GiB"
            ),
            f"[rank{rng.randrange(8)}]: {stamp} DEBUG data: shard {rng.randrange(4096)} opened, 1024 left",
            (
                f" iteration {step:8d}/  500000 | consumed samples: {step * 512:12d} | elapsed time per "
                f"iteration (ms): {rng.random() * 9000:.1f} | lm loss: {rng.random() * 9:.6E} | "
                "number of nan iterations:   0 |"
            ),
            f"{stamp} WARNING trainer: retrying the upload of metrics, no error so far",
        )
    )


def training_sense(catalog: Catalog, log: bytes, block: int) -> int:
    """Signals found (repeats counted) by the sense, fed in blocks as a reader of files would."""
    sense = TrainingLogSense(catalog, job="bench", attempt=1, rank=0, node="node-0")
    found = 0
    for start in range(0, len(log), block):
        found += sum(signal.count for signal in sense.feed(log[start : start + block], 0.0))
    return found + sum(signal.count for signal in sense.finish(0.0))


def plain_re(catalog: Catalog, log: bytes) -> int:
    """Lines found by every row's pattern in turn, line by line."""
    patterns = [re.compile(p) for row in catalog.for_sense("training_log") for p in row.patterns]
    return sum(any(pattern.search(line) for pattern in patterns) for line in lines_of(log))


def measure(work: Callable[[], int], size: int) -> tuple[float, int]:
    """MB/s and what was found."""
    start = time.perf_counter()
    found = work()
    return size / (time.perf_counter() - start) / 1e6, found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="How fast a training log is read.")
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--block-kib", type=int, default=1024)
    args = parser.parse_args()
    catalog = builtin()
    patterns = sum(len(row.patterns) for row in catalog.for_sense("training_log"))
    log = ordinary_log(args.megabytes, failures=True)
    quiet = ordinary_log(args.megabytes, failures=False)
    sample = log[: log.rindex(b"\n", 0, min(len(log), 1_000_000)) + 1]
    block = args.block_kib * 1024
    training_sense(catalog, b"", block)  # the patterns are compiled once in a process, not once in a log
    lines = log.count(b"\n")
    print(f"{patterns} patterns, {len(log) / 1e6:.0f} MB, {lines:,} lines, blocks of {args.block_kib} KiB")
    print(f"{'what':44} {'MB/s':>8} {'found':>8}")
    for title, work, size in (
        ("training sense, no failure", lambda: training_sense(catalog, quiet, block), len(quiet)),
        ("training sense, 0.1 % failure lines", lambda: training_sense(catalog, log, block), len(log)),
        ("the same, blocks of 4 KiB", lambda: training_sense(catalog, log, 4096), len(log)),
        (
            f"Python re in turn, {len(sample) / 1e6:.0f} MB of it",
            lambda: plain_re(catalog, sample),
            len(sample),
        ),
    ):
        speed, found = measure(work, size)
        print(f"{title:44} {speed:8.1f} {found:8,}")


if __name__ == "__main__":
    main()
