"""Reads the kernel's own ring buffer, one record a read (Documentation/ABI/testing/dev-kmsg)."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

from reknit.orchestrate.local.errors import SourceError, why

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = Path("/dev/kmsg")
RECORD = 8192
"""The kernel refuses a smaller buffer than the record with EINVAL; it makes none longer than this."""
AT_ONCE = 4096
_LOST = "some kernel records were overwritten before they could be read; what they said is not known"


class Kmsg:
    """The ring buffer of this boot, read on behind the record with the sequence number `after`.

    With `after` None nothing that was there before is read: it is history.
    """

    def __init__(self, after: int | None, notice: Callable[[str], None], device: Path = DEVICE) -> None:
        self._notice = notice
        self.last = -1 if after is None else after
        try:
            self._handle = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                os.lseek(self._handle, 0, os.SEEK_SET)
            # Read rather than sought past, so that the last record's number is known and can be kept.
            while after is None and self.read():
                pass
        except OSError as error:
            raise SourceError(
                f"cannot read {device}: {why(error)}; run as a user who may, or name a log file instead"
            ) from error

    def read(self) -> bytes:
        """New whole records, each ended by a newline; empty where there are none."""
        records: list[bytes] = []
        while len(records) < AT_ONCE:
            try:
                record = os.read(self._handle, RECORD)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self._notice(_LOST)
                    continue
                raise
            if not record:
                break
            number = sequence(record)
            if number is None or number > self.last:
                self.last = self.last if number is None else number
                records.append(record if record.endswith(b"\n") else record + b"\n")
        return b"".join(records)

    def close(self) -> None:
        """Let go of the device."""
        os.close(self._handle)


def sequence(record: bytes) -> int | None:
    """The number of a record: the second field of `priority,sequence,microseconds,flags;text`."""
    fields = record.partition(b";")[0].split(b",")
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None
