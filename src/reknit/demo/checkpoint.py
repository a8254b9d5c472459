"""Checkpoints on disk: whole or not there at all, and checked before they are believed."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

KEEP = 3
"""How many checkpoints are kept: the newest, and two to fall back to."""

_NAME = re.compile(r"step-(\d{9})\.ckpt")
_DIGEST_BYTES = 65  # SHA-256 in hexadecimal and a line feed


class CheckpointError(ValueError):
    """A file that is no whole checkpoint of this training. The message says what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training needs to go on as if nothing had happened.

    Attributes:
        step: the last step that it contains.
        weights, momentum: flat vectors of all parameters.
        rng: one row a rank, the state of its data generator after that step.
    """

    step: int
    weights: NDArray[np.float64]
    momentum: NDArray[np.float64]
    rng: NDArray[np.uint64]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint and drop the oldest beyond KEEP. It is on the disk when this returns.

    Raises OSError where it cannot be written (disk full); the checkpoints before it are untouched then.
    """
    path = folder / f"step-{checkpoint.step:09d}.ckpt"
    draft = path.with_suffix(".tmp")
    buffer = io.BytesIO()
    np.savez(
        buffer,
        step=np.int64(checkpoint.step),
        weights=checkpoint.weights,
        momentum=checkpoint.momentum,
        rng=checkpoint.rng,
    )
    body = buffer.getvalue()
    try:
        with draft.open("wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n")
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    for step in steps(folder)[KEEP:]:
        (folder / f"step-{step:09d}.ckpt").unlink(missing_ok=True)
    return path


def load(path: Path) -> Checkpoint:
    """Read one file.

    Raises CheckpointError where it is half, damaged or of another training, OSError where it cannot be read.
    """
    content = path.read_bytes()
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != digest:
        raise CheckpointError(
            f"its checksum does not fit its {len(content)} bytes: it is half written or damaged"
        )
    try:
        with np.load(io.BytesIO(body), allow_pickle=False) as parts:
            fields: dict[str, Any] = {name: parts[name] for name in ("step", "weights", "momentum", "rng")}
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"it is no checkpoint of this training: {error}") from error
    return Checkpoint(int(fields["step"]), fields["weights"], fields["momentum"], fields["rng"])


def steps(folder: Path) -> list[int]:
    """The steps of the files that look like checkpoints, newest first."""
    names = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted((int(name[1]) for name in names if name), reverse=True)


def newest(
    folder: Path, up_to: int | None, unfit: Callable[[Checkpoint], str], say: Callable[[str], None]
) -> Checkpoint | None:
    """The newest good checkpoint, of step `up_to` or before; None where there is none.

    `unfit` names what makes a whole checkpoint useless for this run, "" if nothing. Whatever is passed
    over is told to `say` in a sentence.
    """
    for step in steps(folder):
        if up_to is not None and step > up_to:
            continue
        path = folder / f"step-{step:09d}.ckpt"
        try:
            checkpoint = load(path)
        except (CheckpointError, OSError) as error:
            say(f"skipped checkpoint {path}: {error}; trying the one before it")
            continue
        wrong = unfit(checkpoint)
        if not wrong:
            return checkpoint
        say(f"skipped checkpoint {path}: {wrong}; trying the one before it")
    return None


def clear_drafts(folder: Path) -> None:
    """Remove what a writer that was killed has left half done."""
    for draft in folder.glob("step-*.tmp"):
        draft.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable: it is the folder that holds the name."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
