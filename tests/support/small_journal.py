"""`reknit` on a disk that is full for two seconds from the first fault on: SQLite itself says so, by its own limit on
pages."""

from __future__ import annotations

import time
from typing import Any

from reknit.cli.main import main
from reknit.journal.sqlite import SqliteJournal
from reknit.model.events import RankExited

_FULL_FOR_S = 2.0
_since: list[float] = []
_write = SqliteJournal.record


def _record(self: SqliteJournal, at: float, event: Any, *rest: Any) -> int:
    if isinstance(event, RankExited) and not _since:
        _since.append(time.monotonic())
    limit_pages(self, full=bool(_since) and time.monotonic() < _since[0] + _FULL_FOR_S)
    return _write(self, at, event, *rest)


def limit_pages(journal: SqliteJournal, *, full: bool) -> None:
    """Let the file grow no further, or as it likes."""
    used = journal._db.execute("pragma page_count").fetchone()[0]
    journal._db.execute(f"pragma max_page_count = {used if full else 1 << 30}")


SqliteJournal.record = _record  # type: ignore[method-assign]
main()
