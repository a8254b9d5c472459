"""Reads a growing file piece by piece, whatever is done to it meanwhile: rotation, truncation, removal."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reknit.orchestrate.local.errors import SourceError, why

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BLOCK = 1 << 20


@dataclass(frozen=True)
class Block:
    """Bytes read at once. `end` is the position behind them; `at` an upper bound of when they were written
    (seconds since the epoch); `fresh` says that they begin a file that took the place of the one read
    before."""

    data: bytes
    end: int
    at: float
    fresh: bool = False


class Tail:
    """One file, read on from a position.

    `inode` is the file that the position belongs to, 0 where unknown. Links are followed only where `follow`
    is set: a file that a job may write must not lead anywhere else. Problems are told once each, by `notice`.
    """

    def __init__(
        self, path: Path, offset: int, notice: Callable[[str], None], *, inode: int = 0, follow: bool = False
    ) -> None:
        self.path = path
        self.offset = offset
        self.inode = inode
        self._notice = notice
        self._follow = follow
        self._handle: int | None = None
        self._told: set[str] = set()
        self._fresh = False

    def read(self) -> Block | None:
        """The next block, None where there is nothing new."""
        try:
            handle = self._open()
            return None if handle is None else self._read(handle)
        except OSError as error:
            self._tell(f"cannot read {self.path}: {why(error)}; it is tried again")
            self.close()
            return None

    def skip_to_end(self) -> None:
        """Leave out what is there now, up to the last whole line."""
        size = self.size()
        try:
            handle = self._open()
            if handle is None:
                return
            begin = max(0, size - BLOCK)
            last = os.pread(handle, size - begin, begin)
            self.offset = begin + last.rfind(b"\n") + 1
        except OSError as error:
            self._tell(f"cannot read {self.path}: {why(error)}; it is tried again")
            self.close()

    def size(self) -> int:
        """How long the file is now; 0 where it cannot be read."""
        try:
            return self.path.stat().st_size if self._handle is None else os.fstat(self._handle).st_size
        except OSError:
            return 0

    def close(self) -> None:
        """Let go of the file; the position is kept."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _open(self) -> int | None:
        """The file's descriptor, opened where that is still to be done; None where there is no such file."""
        if self._handle is not None:
            return self._handle
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if self._follow else os.O_NOFOLLOW)
        try:
            handle = os.open(self.path, flags)
        except FileNotFoundError:
            return None
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            os.close(handle)
            self._tell(f"{self.path} is not a regular file; it is not read")
            return None
        if self.inode and self.inode != found.st_ino:
            self._begin_again("was replaced; the new file is read from its beginning")
        self._handle, self.inode = handle, found.st_ino
        return handle

    def _read(self, handle: int) -> Block | None:
        data = os.pread(handle, BLOCK, self.offset)
        found = os.fstat(handle)
        if not data and found.st_size < self.offset:
            self._begin_again("was cut short; it is read from its beginning")
            data = os.pread(handle, BLOCK, 0)
        if data:
            self.offset += len(data)
            fresh, self._fresh = self._fresh, False
            return Block(data, self.offset, found.st_mtime, fresh)
        if self._was_replaced(found):
            self.close()
            replacement = self._open()
            return None if replacement is None else self._read(replacement)
        return None

    def _was_replaced(self, found: os.stat_result) -> bool:
        try:
            now = self.path.stat()
        except FileNotFoundError:
            return False  # in the middle of a rotation: what is open is read on until a new one is there
        return (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino)

    def _begin_again(self, what: str) -> None:
        self._notice(f"{self.path} {what}")
        self.offset = 0
        self._fresh = True

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)


def check_source(path: Path) -> None:
    """Refuse what cannot be read as a log. One that does not exist yet may come. Raises SourceError."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise SourceError(
                f"kernel log {path} is {_kind(mode)}, not a regular file; name a file, or `kmsg`"
            )
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise SourceError(
                f"kernel log {path}: there is no folder {path.parent}; check the path"
            ) from None
    except OSError as error:
        raise SourceError(f"cannot read kernel log {path}: {why(error)}; check its owner and mode") from error


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((words for test, words in kinds if test(mode)), "something else")
