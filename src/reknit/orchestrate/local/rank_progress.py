"""How far one rank has got: its progress file first, what it prints second."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from reknit.orchestrate.local.errors import why
from reknit.orchestrate.local.files import open_regular
from reknit.sense.progress_file import decode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from reknit.model.progress import RankProgress
    from reknit.sense.progress_lines import LineProgress

RECORD_BYTES = 1 << 14
"""More than any record has; a job may write anything into the file."""


class RankProgressReader:
    """Reads the progress of one rank. `seen` is how many step durations were reported before."""

    def __init__(self, path: Path, lines: LineProgress, seen: int, notice: Callable[[str], None]) -> None:
        self._path = path
        self._lines = lines
        self._notice = notice
        self._told = False
        self._record = b""
        self._from_file: RankProgress | None = None
        self._from_lines: RankProgress | None = None
        self.seen = seen

    def news(self) -> RankProgress | None:
        """The rank's progress, None where nothing has changed since the last call."""
        file = self._read()
        lines = self._lines.take()
        if file is None and lines is None:
            return None
        merged = merge(file or self._from_file, lines or self._from_lines)
        if file is not None:
            self._from_file = msgspec.structs.replace(file, durations=())
        if lines is not None:
            self._from_lines = msgspec.structs.replace(lines, durations=())
        return merged

    def _read(self) -> RankProgress | None:
        record = self._bytes()
        if not record or record == self._record:
            return None
        found = decode(record, self.seen)
        if found is None:
            return None
        self._record = record
        progress, self.seen = found
        return progress

    def _bytes(self) -> bytes:
        try:
            handle = open_regular(self._path)
            if handle is None:
                return b""
            try:
                return os.pread(handle, RECORD_BYTES, 0)
            finally:
                os.close(handle)
        except OSError as error:
            if not self._told:
                self._told = True
                self._notice(
                    f"cannot read progress file {self._path}: {why(error)}; the rank's log is read instead"
                )
            return b""


def merge(file: RankProgress | None, lines: RankProgress | None) -> RankProgress | None:
    """One progress of two.

    The file wins as soon as it shows a step; a loss and checkpoints that it does not know are taken from the
    lines. Until then steps are the lines', and the file adds what it alone says: phases, checkpoints, the
    sign of life.
    """
    if file is None or lines is None:
        return file or lines
    if file.step >= 0:
        best, other = file, lines
    else:
        best = msgspec.structs.replace(
            lines,
            phase=file.phase or lines.phase,
            phase_at=file.phase_at if file.phase else lines.phase_at,
            phase_seconds=file.phase_seconds or lines.phase_seconds,
        )
        other = file
    saved = max(best, other, key=lambda progress: progress.saved_at)
    loaded = max(best, other, key=lambda progress: progress.loaded_at)
    return msgspec.structs.replace(
        best,
        loss=other.loss if best.loss is None else best.loss,
        saved_step=saved.saved_step,
        saved_at=saved.saved_at,
        loaded_step=loaded.loaded_step,
        loaded_at=loaded.loaded_at,
        alive_at=min((at for at in (file.alive_at, lines.alive_at) if at), default=0.0),
    )
