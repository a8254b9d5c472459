"""How many records a second the journal writes, against bare `sqlite3` inserts of the same bytes in the same run.

    python bench/journal_writes.py [RECORDS] [FOLDER]

NORMAL is an event without consequences (it survives the death of the process), FULL an event with a command that has an
effect outside (it survives the death of the machine: one fsync each, so the disk under FOLDER decides). The bare rows
are one table without an index, written with the same settings and one transaction a row: the floor. Best and median of
five rounds, taken in turn so that a disk that slows down slows all of them.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import msgspec

from reknit.journal.sqlite import SqliteJournal
from reknit.model.commands import Quarantine
from reknit.model.events import ProgressSeen
from reknit.model.incidents import Incident
from reknit.model.progress import RankProgress

ROUNDS = 5
EVENT = ProgressSeen("train", 1, {rank: RankProgress(step=100, step_at=1.7e9, loss=2.5) for rank in range(8)})
INCIDENT = Incident("inc-1", 1.7e9, title="GPU has fallen off the bus")


def journal_rate(folder: Path, records: int, *, durable: bool) -> float:
    """Records a second of the journal; a durable one holds a command and changes an incident."""
    with SqliteJournal(folder / "journal.db") as journal:
        began = perf_counter()
        for n in range(records):
            command = Quarantine(f"inc-1.{n}", "inc-1", "XID 79 on GPU 0", 1.7e9, node="node0")
            journal.record(
                1.7e9, EVENT, [command] if durable else [], [INCIDENT] if durable else [], {"kernel": n}
            )
        return records / (perf_counter() - began)


def bare_rate(folder: Path, records: int, *, durable: bool) -> float:
    """Rows a second of bare inserts, encoding not counted."""
    body = msgspec.json.encode(EVENT).decode()
    database = sqlite3.connect(folder / "bare.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    database.execute("CREATE TABLE rows (body)")
    began = perf_counter()
    for _ in range(records):
        database.execute("INSERT INTO rows VALUES (?)", (body,))
    rate = records / (perf_counter() - began)
    database.close()
    return rate


def main() -> None:
    """Print the table."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    where = sys.argv[2] if len(sys.argv) > 2 else "."
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(ROUNDS):
        for name, measure in (("bare insert", bare_rate), ("journal", journal_rate)):
            for level in ("NORMAL", "FULL"):
                with tempfile.TemporaryDirectory(dir=where, prefix=".bench-") as folder:
                    rate = measure(Path(folder), records, durable=level == "FULL")
                rates.setdefault((level, name), []).append(rate)
    print(
        f"{'synchronous':<14}{'what':<14}{'best /s':>10}{'median /s':>11}{'us a record':>13}   ({records} a round)"
    )
    for (level, name), each in sorted(rates.items(), reverse=True):
        median = statistics.median(each)
        print(f"{level:<14}{name:<14}{max(each):>10.0f}{median:>11.0f}{1e6 / median:>13.1f}")


if __name__ == "__main__":
    main()
