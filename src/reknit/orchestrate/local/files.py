"""Small JSON files, written so that a crash leaves the old one or the new one, and regular files opened with
care."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")


class ShimFile(msgspec.Struct, frozen=True):
    """`shim.json`: who watches a rank and who it is. Start times are clock ticks since boot. `rank_pid` is 0
    from the moment before the fork until the moment after it."""

    shim_pid: int
    shim_start: int
    rank_pid: int
    rank_start: int
    boot_id: str
    started_at: float


class ExitFile(msgspec.Struct, frozen=True):
    """`exit.json`: how a rank's main process ended, and whether it had been told to."""

    at: float
    code: int | None = None
    signal: int | None = None
    asked: bool = False


def write_json(path: Path, content: object) -> None:
    """Write atomically and durably (file and folder). Raises OSError."""
    temporary = path.with_name(f"{path.name}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=1))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def remove(path: Path) -> None:
    """Remove a file durably; one that is not there is fine. Raises OSError."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path, shape: type[T]) -> T | None:
    """The content, or None where there is no such file or it is not (yet) whole. Raises OSError for other
    reasons."""
    try:
        handle = open_regular(path)
        if handle is None:
            return None
        with os.fdopen(handle, "rb") as file:
            return msgspec.json.decode(file.read(), type=shape)
    except (FileNotFoundError, NotADirectoryError, NotRegular, msgspec.MsgspecError):
        return None


def open_regular(path: Path) -> int | None:
    """A descriptor for reading a regular file; None where there is none.

    A FIFO, a device, a folder or a link planted by a job is not followed and never blocks. Raises OSError,
    with EINVAL's place taken by `NotRegular`.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise NotRegular(path)


class NotRegular(OSError):
    """Something that is not a regular file stands where one was expected."""

    def __init__(self, path: Path) -> None:
        super().__init__(0, "it is not a regular file", str(path))
