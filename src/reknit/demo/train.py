"""A small real data-parallel training: `python -m reknit.demo.train`, one process a rank.

Real gradients, a real all-reduce over sockets, real checkpoints; only the GPU is pretended, by sleeping.
Ranks find each other by the environment that torchrun sets. After a restart training goes on from the
newest good checkpoint and gives, step for step, bit for bit, the losses of a run that was never disturbed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    # Before numpy is imported: several ranks share few cores, and one thread gives the same bits every time.
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402

from reknit import progress  # noqa: E402
from reknit.demo import checkpoint, mlp  # noqa: E402
from reknit.demo.allreduce import Group, one_row_each, rendezvous  # noqa: E402
from reknit.demo.faulty import Faults, spoil, synchronize_device  # noqa: E402

SEED = 20260101
LAST_PORT = 65535
KERNELS = 8
"""Into how many pieces the device's work of a step is cut, see `Device`."""


@dataclass(frozen=True)
class Settings:
    """What the command line says. Steps count from 1; `step_seconds` is the device's time for one step."""

    steps: int
    checkpoint_dir: Path | None
    checkpoint_every: int
    step_seconds: float
    log_every: int


@dataclass(frozen=True)
class Place:
    """Where this rank stands in its gang, by the names that torchrun uses; alone where nothing is set."""

    rank: int
    size: int
    host: str
    port: int
    attempt: int

    @classmethod
    def from_environment(cls) -> Place:
        """Raises ValueError with a sentence where a variable makes no sense."""
        place = cls(
            rank=_number("RANK", 0),
            size=_number("WORLD_SIZE", 1),
            host=os.environ.get("MASTER_ADDR", "127.0.0.1"),
            port=_number("MASTER_PORT", 29500),
            attempt=_number("REKNIT_ATTEMPT", _number("TORCHELASTIC_RESTART_COUNT", 0) + 1),
        )
        if place.rank >= place.size:
            raise ValueError(
                f"RANK={place.rank} is not below WORLD_SIZE={place.size}; set both as torchrun does"
            )
        if place.port > LAST_PORT:
            raise ValueError(f"MASTER_PORT={place.port} is no port; give one from 1 to {LAST_PORT}")
        return place


def _number(name: str, usual: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return usual
    if not text.isascii() or not text.isdigit():
        raise ValueError(
            f"{name} is {text!r} in the environment; it must be a whole number, as torchrun sets it"
        )
    return int(text)


class Device:
    """The GPU that this machine does not have: it is busy for `seconds` a step while the CPU sleeps.

    The host starts the work in KERNELS pieces, one after another, as a training loop launches kernels. So a
    host that is stopped or starved in between makes its rank slow, which one long sleep would hide.
    """

    def __init__(self, seconds: float) -> None:
        self._piece = seconds / KERNELS

    def work(self, began: float) -> None:
        """Return when the step that began at `began` (monotonic) has taken its time."""
        if self._piece <= 0:
            return
        ready = began
        for _ in range(KERNELS):
            now = time.monotonic()
            # A piece begins when the one before has ended. One can be queued ahead, by a stopped host none.
            ready = max(ready, now - self._piece) + self._piece
            time.sleep(max(ready - now, 0.0))


class Training:
    """The state of one rank and what happens to it in a step."""

    def __init__(self, group: Group, settings: Settings, faults: Faults) -> None:
        self.group = group
        self.settings = settings
        self.step = 0
        self.weights = mlp.initial(SEED)
        self.momentum = np.zeros_like(self.weights)
        self.shard = mlp.Shard(SEED, group.rank, group.size)
        self._device = Device(settings.step_seconds)
        self._faults = faults

    def resume(self) -> int | None:
        """Load the newest checkpoint that every rank can read. Gives its step, None where there is none."""
        found = self._agreed()
        if found is None:
            return None
        self.step, self.weights, self.momentum = found.step, found.weights, found.momentum
        mlp.rng_restore(self.shard.rng, found.rng[self.group.rank])
        return found.step

    def train_step(self) -> float:
        """Make one step. Gives the mean loss over all ranks before it."""
        step = self.step + 1
        progress.phase("compute")
        began = time.monotonic()
        kinds = self._faults.kinds(step)
        x, labels = mlp.collate(spoil(self.shard.draw(), kinds))
        loss, gradient = mlp.loss_and_gradient(self.weights, x, labels)
        synchronize_device(kinds)
        self._device.work(began)
        progress.phase("communicate")
        mean = self.group.all_reduce(np.append(gradient, loss)) / self.group.size
        self.momentum = mlp.MOMENTUM * self.momentum + mean[:-1]
        self.weights = self.weights - mlp.RATE * self.momentum
        self.step = step
        return float(mean[-1])

    def save(self) -> None:
        """Write a checkpoint; every rank must call it, rank 0 writes."""
        folder = self.settings.checkpoint_dir
        if folder is None:
            return
        rng = one_row_each(self.group, mlp.rng_words(self.shard.rng))
        if self.group.rank == 0:
            progress.phase("checkpoint")
            checkpoint.save(folder, checkpoint.Checkpoint(self.step, self.weights, self.momentum, rng))
            progress.checkpoint_saved(self.step)
            _say(f"saved checkpoint at step {self.step}")

    def _agreed(self) -> checkpoint.Checkpoint | None:
        folder = self.settings.checkpoint_dir
        if folder is None:
            return None
        limit: int | None = None
        while True:
            found = checkpoint.newest(folder, limit, self._unfit, _say)
            mine = found.step if found else 0
            everyone = one_row_each(self.group, np.array([mine], dtype=np.int64))
            if int(everyone.min()) == int(everyone.max()):
                return found
            limit = int(everyone.min())

    def _unfit(self, found: checkpoint.Checkpoint) -> str:
        if len(found.rng) != self.group.size:
            return f"it was written by {len(found.rng)} ranks and this run has {self.group.size}"
        if found.weights.shape != self.weights.shape or found.momentum.shape != self.momentum.shape:
            return f"it has {found.weights.size} parameters and this model has {self.weights.size}"
        return ""


def run(group: Group, settings: Settings, faults: Faults) -> list[float]:
    """Train to the last step. Gives the losses of the steps made here."""
    training = Training(group, settings, faults)
    progress.phase("load")
    loaded = training.resume()
    if loaded is not None:
        progress.checkpoint_loaded(loaded)
    if group.rank == 0:
        _say("no checkpoint, starting at step 0" if loaded is None else f"loaded checkpoint at step {loaded}")
    losses: list[float] = []
    logged_step, logged_at = training.step, time.monotonic()
    while training.step < settings.steps:
        losses.append(training.train_step())
        progress.step(training.step, losses[-1])
        last = training.step == settings.steps
        if group.rank == 0 and (training.step % settings.log_every == 0 or last):
            now = time.monotonic()
            each = (now - logged_at) / (training.step - logged_step) * 1000
            _say(f"iter {training.step}: loss {losses[-1]:.4f}, time {each:.2f}ms")
            logged_step, logged_at = training.step, now
        if training.step % settings.checkpoint_every == 0 or last:
            training.save()
    group.all_reduce(np.zeros(1))  # nobody leaves before the last checkpoint is on the disk
    return losses


def main(arguments: list[str] | None = None) -> int:
    """The process of one rank. Gives its exit status; what breaks in training comes out as a traceback."""
    settings = _settings(arguments)
    progress.phase("start")
    try:
        place = Place.from_environment()
        if settings.checkpoint_dir is not None:
            settings.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            if place.rank == 0:
                checkpoint.clear_drafts(settings.checkpoint_dir)
    except (ValueError, OSError) as error:
        print(f"reknit.demo.train: {error}", file=sys.stderr)
        return 2
    group = rendezvous(place.rank, place.size, place.host, place.port)
    run(group, settings, Faults(os.environ.get("REKNIT_DEMO_FAULTS", ""), place.rank, place.attempt))
    group.close()
    return 0


def _settings(arguments: list[str] | None) -> Settings:
    parser = argparse.ArgumentParser(prog="python -m reknit.demo.train", description=__doc__)
    add = parser.add_argument
    add("--steps", type=int, default=1000, help="the last step (default %(default)s)")
    add("--checkpoint-dir", type=Path, help="where checkpoints are; without it none are written")
    add("--checkpoint-every", type=int, default=50, help="steps between them (default %(default)s)")
    add("--step-seconds", type=float, default=0.04, help="device time of a step (default %(default)s)")
    add("--log-every", type=int, default=10, help="steps between log lines (default %(default)s)")
    values = parser.parse_args(arguments)
    for name in ("steps", "checkpoint_every", "log_every"):
        if getattr(values, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if not 0 <= values.step_seconds < float("inf"):
        parser.error("--step-seconds must be 0 or more")
    return Settings(**vars(values))


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
