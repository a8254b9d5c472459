"""`reknit`, killed with SIGKILL right before or right after one of the journal writes that follow the first fault.

REKNIT_TEST_CRASH is `before:N` or `after:N`, N from 1. REKNIT_TEST_WRITES names a file that the number of writes since
the fault is written to.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from reknit.cli.main import main
from reknit.journal.sqlite import SqliteJournal
from reknit.model.events import RankExited

_when, _, _number = os.environ.get("REKNIT_TEST_CRASH", "never:0").partition(":")
_count = 0
_write = SqliteJournal.record


def _record(self: SqliteJournal, at: float, event: Any, *rest: Any) -> int:
    global _count  # noqa: PLW0603
    if _count or isinstance(event, RankExited):
        _count += 1
        if path := os.environ.get("REKNIT_TEST_WRITES"):
            Path(path).write_text(str(_count))
    if _when == "before" and _count == int(_number):
        os.kill(os.getpid(), signal.SIGKILL)
    seq = _write(self, at, event, *rest)
    if _when == "after" and _count == int(_number):
        os.kill(os.getpid(), signal.SIGKILL)
    return seq


SqliteJournal.record = _record  # type: ignore[method-assign]
main()
