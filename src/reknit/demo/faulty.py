"""How a fault gets into the training from outside, for demonstrations and tests: a file.

`REKNIT_DEMO_FAULTS` names a JSON file; every rank looks at it once a step, so it may appear, change and go
while the job runs. It holds one fault or a list of them:

    {"kind": "cuda_error", "rank": 3, "attempt": 2}   rank 3 of attempt 2 loses its GPU at its next step
    {"kind": "bad_sample", "step": 150}               the batch of step 150 holds a sample of the wrong shape
    {"kind": "bad_sample", "step": 150, "rank": 3}    only in the shard of rank 3

`rank`, `step` and `attempt` (counted from 1) say when a fault applies; one that is left out always fits. A
lost GPU is tied to an attempt so that it does not come back; a bad sample is a bug in the data and comes up
each time its step is reached. Everything else that can break (a killed, frozen or slow rank) needs no help
from the job.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from reknit.demo.mlp import Floats

_CONDITIONS = ("rank", "step", "attempt")


class Faults:
    """What the file says, read again only when it has changed."""

    def __init__(self, path: str, rank: int, attempt: int) -> None:
        self._path = Path(path) if path else None
        self._here = {"rank": rank, "attempt": attempt}
        self._seen: tuple[int, int, int] | None = None
        self._faults: list[dict[str, Any]] = []

    def kinds(self, step: int) -> set[str]:
        """The kinds of fault that strike this rank at this step. Costs one stat."""
        if self._path is None:
            return set()
        self._look(self._path)
        here = self._here | {"step": step}
        return {
            str(fault.get("kind"))
            for fault in self._faults
            if all(fault.get(name, here[name]) == here[name] for name in _CONDITIONS)
        }

    def _look(self, path: Path) -> None:
        try:
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            content: Any = json.loads(path.read_bytes())
        except FileNotFoundError:
            self._seen, self._faults = None, []
            return
        except ValueError as error:  # half written: it will change
            print(f"faults file {path} is no JSON ({error}); no fault is made", file=sys.stderr, flush=True)
            return
        self._seen = seen
        listed = cast("list[Any]", content) if isinstance(content, list) else [content]
        self._faults = [fault for fault in listed if isinstance(fault, dict)]


def synchronize_device(kinds: set[str]) -> None:
    """Where a training waits for its GPU, and so where it learns that the GPU is gone.

    Raises RuntimeError with the text that PyTorch gives for cudaErrorLaunchFailure, which is what a rank sees
    when its GPU has fallen off the bus (XID 79).
    """
    if "cuda_error" in kinds:
        raise RuntimeError("CUDA error: unspecified launch failure")


def spoil(samples: list[tuple[Floats, int]], kinds: set[str]) -> list[tuple[Floats, int]]:
    """The same samples; where a bad sample is wanted, the last has lost a feature."""
    if "bad_sample" not in kinds:
        return samples
    row, label = samples[-1]
    return [*samples[:-1], (row[:-1], label)]
