"""A PyTorch job as people write it: gloo on CPU, DistributedDataParallel, a checkpoint to go on from.

Not a test: a test starts it, one process a rank, with the environment of torchrun.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel

import torch
from reknit import progress
from torch import distributed, nn

FEATURES, HIDDEN, BATCH = 16, 64, 32


def main() -> int:
    """Run one rank; gives its exit status."""
    options = parse()
    progress.phase("start")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(7)
    teacher = torch.randn(FEATURES, 1)
    layers = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    progress.phase("load")
    done = load(options.checkpoint, model, optimizer)
    if done:
        progress.checkpoint_loaded(done)
    if done and rank == 0:
        print(f"loaded checkpoint at step {done}", flush=True)
    for step in range(done + 1, options.steps + 1):
        began = time.monotonic()
        loss = train_step(model, optimizer, teacher, seed=step * distributed.get_world_size() + rank)
        time.sleep(max(began + options.step_seconds - time.monotonic(), 0.0))
        progress.step(step, loss)
        if rank == 0:
            print(f"iter {step}: loss {loss:.4f}, time {(time.monotonic() - began) * 1000:.2f}ms", flush=True)
        if step % options.every == 0 or step == options.steps:
            save(options.checkpoint, step, model, optimizer, rank)
    distributed.destroy_process_group()
    return 0


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, teacher: torch.Tensor, seed: int) -> float:
    """One step on a batch that follows from the seed alone; gives this rank's loss before it."""
    progress.phase("train")
    x = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(seed))
    loss = nn.functional.mse_loss(model(x), torch.tanh(x @ teacher))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Rank 0 writes, in one move; nobody goes on before it is there."""
    progress.phase("checkpoint")
    if rank == 0:
        draft = path.with_suffix(".tmp")
        with draft.open("wb") as file:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        progress.checkpoint_saved(step)
        print(f"saved checkpoint at step {step}", flush=True)
    distributed.barrier()


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Put model and optimizer where the checkpoint left them; gives its step, 0 where there is none."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint", type=Path, required=True, help="the file to save to and go on from")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.02, help="a step takes at least this long")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
