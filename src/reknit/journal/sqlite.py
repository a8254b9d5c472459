"""The journal in one SQLite file: the default wherever there is no Kubernetes.

Write-ahead logging lets people read (`reknit incidents`) while a run writes, and makes a transaction that only has to
survive the death of the process as cheap as a write to memory. A transaction that holds a command with an effect
outside has to survive the death of the machine as well: it is fsynced before `record` returns, and everything before it
with it, because the log has one order.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import msgspec

from reknit.journal.codec import Codec
from reknit.journal.port import JournalError, Recorded
from reknit.journal.sqlite_file import START_ANEW, explained, open_to_read, open_to_write
from reknit.model.commands import AnyCommand, WaitUntil
from reknit.model.events import AnyEvent, CommandDone, CommandFailed
from reknit.model.incidents import Incident

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

CommandState = Literal["intended", "done", "failed"]
T = TypeVar("T")


class SqliteJournal:
    """A `Journal` in the file `path`, made where it does not exist. For one caller at a time.

    `read_only` opens it for looking, also while another process writes; it is never made, and writing raises
    JournalError. Every method raises JournalError where the file cannot be used: the message says why and what to do.
    """

    def __init__(self, path: str | Path, *, read_only: bool = False) -> None:
        self.path = Path(path).absolute()
        self.read_only = read_only
        self._events = Codec[AnyEvent](AnyEvent)
        self._commands = Codec[AnyCommand](AnyCommand)
        self._incidents = Codec[Incident](Incident)
        self._synchronous = ""
        self._db = open_to_read(self.path) if read_only else open_to_write(self.path)
        with explained(self.path):
            row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetchone()
            self._last_seq: int = row[0] if row else 0

    # -- writing

    def record(
        self,
        at: float,
        event: AnyEvent,
        commands: Sequence[AnyCommand],
        incidents: Iterable[Incident],
        cursors: Mapping[str, int],
    ) -> int:
        """See `Journal.record`. A command id that was recorded before is left as it stands."""
        body = self._events.encode(event)
        lasting = [command for command in commands if not isinstance(command, WaitUntil)]
        intents = [(command, self._commands.encode(command)) for command in lasting]
        changed = [(i.id, i.opened_at, i.closed_at, self._incidents.encode(i)) for i in incidents]
        with self._transaction(durable=bool(lasting)) as db:
            seq = self._insert_event(db, at, event, body)
            db.executemany(
                "INSERT INTO commands (id, seq, at, kind, incident, body) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (id) DO NOTHING",
                [(command.id, seq, at, _kind(command), command.incident, text) for command, text in intents],
            )
            if isinstance(event, CommandDone | CommandFailed):
                state: CommandState = "done" if isinstance(event, CommandDone) else "failed"
                db.execute(
                    "UPDATE commands SET state = ?, outcome = ? WHERE id = ?",
                    (state, event.detail, event.command),
                )
            db.executemany(
                "INSERT INTO incidents (id, opened_at, closed_at, body) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE"
                " SET opened_at = excluded.opened_at, closed_at = excluded.closed_at, body = excluded.body",
                changed,
            )
            self._put_cursors(db, cursors)
        self._last_seq = seq
        return seq

    def save_cursors(self, cursors: Mapping[str, int]) -> None:
        """See `Journal.save_cursors`."""
        with self._transaction(durable=False) as db:
            self._put_cursors(db, cursors)

    def snapshot(self, seq: int, state: bytes) -> None:
        """See `Journal.snapshot`. Forgets the events up to `seq`; commands stay, as part of their incidents' story."""
        with self._transaction(durable=False) as db:
            db.execute("INSERT OR REPLACE INTO snapshot (only, seq, state) VALUES (1, ?, ?)", (seq, state))
            db.execute("DELETE FROM events WHERE seq <= ?", (seq,))

    def close(self) -> None:
        """Flush and let go. Closing twice does nothing."""
        with contextlib.suppress(sqlite3.Error):
            # A log that cannot be folded into the file now (full disk) is complete and read the next time.
            if not self.read_only:
                self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading

    def load(self) -> tuple[bytes | None, list[Recorded]]:
        """See `Journal.load`."""
        with explained(self.path):
            # One transaction: a writer may make a snapshot between the two readings.
            self._db.execute("BEGIN")
            try:
                kept = self._db.execute("SELECT seq, state FROM snapshot").fetchone()
                after = kept[0] if kept else 0
                rows = self._db.execute(
                    "SELECT seq, at, body FROM events WHERE seq > ? ORDER BY seq", (after,)
                ).fetchall()
            finally:
                self._roll_back()
        events = [
            Recorded(seq, at, self._decode(self._events, body, f"event {seq}")) for seq, at, body in rows
        ]
        return (kept[1] if kept else None), events

    def open_commands(self) -> list[AnyCommand]:
        """See `Journal.open_commands`."""
        rows = self._rows("SELECT id, body FROM commands WHERE state = 'intended' ORDER BY seq, rowid")
        return [self._decode(self._commands, body, f"command {id_}") for id_, body in rows]

    def commands(self, incident: str) -> list[tuple[AnyCommand, CommandState]]:
        """All commands that were given for an incident and how each ended, oldest first."""
        rows = self._rows(
            "SELECT id, body, state FROM commands WHERE incident = ? ORDER BY seq, rowid", (incident,)
        )
        return [(self._decode(self._commands, body, f"command {id_}"), state) for id_, body, state in rows]

    def cursors(self) -> dict[str, int]:
        """See `Journal.cursors`."""
        return dict(self._rows("SELECT source, position FROM cursors"))

    def incidents(self) -> list[Incident]:
        """See `Journal.incidents`."""
        rows = self._rows("SELECT id, body FROM incidents ORDER BY opened_at, rowid")
        return [self._decode(self._incidents, body, f"incident {id_}") for id_, body in rows]

    def matching(self, text: str) -> list[str]:
        """Ids of the incidents that a person may mean by `text`: an id, its beginning, or either without `inc-`.

        Upper and lower case are the same. An id in full means only itself, so that `inc-1` is not also `inc-10`.
        """
        wanted = text.strip().lower().removeprefix("inc-")
        if not wanted:
            return []
        ids = [id_ for (id_,) in self._rows("SELECT id FROM incidents ORDER BY opened_at, rowid")]
        exact = [id_ for id_ in ids if id_.lower().removeprefix("inc-") == wanted]
        return exact or [id_ for id_ in ids if id_.lower().removeprefix("inc-").startswith(wanted)]

    def incident(self, text: str) -> Incident | None:
        """The incident that `text` means (see `matching`); None where it means none, or several."""
        ids = self.matching(text)
        if len(ids) != 1:
            return None
        ((body,),) = self._rows("SELECT body FROM incidents WHERE id = ?", (ids[0],))
        return self._decode(self._incidents, body, f"incident {ids[0]}")

    # -- the rest

    @contextlib.contextmanager
    def _transaction(self, *, durable: bool) -> Iterator[sqlite3.Connection]:
        with explained(self.path):
            if self.read_only:
                raise JournalError(f"journal {self.path} was opened for reading only")
            wanted = "FULL" if durable else "NORMAL"
            if wanted != self._synchronous:  # has no effect inside a transaction, so it comes before
                self._db.execute(f"PRAGMA synchronous = {wanted}")
                self._synchronous = wanted
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        """End a transaction that was not committed; SQLite may have done it already."""
        with contextlib.suppress(sqlite3.Error):  # what went wrong before is what people must hear of
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def _insert_event(self, db: sqlite3.Connection, at: float, event: AnyEvent, body: str | bytes) -> int:
        insert = "INSERT INTO events (at, kind, body) VALUES (?, ?, ?)"
        seq = db.execute(insert, (at, _kind(event), body)).lastrowid
        if seq is None or seq != self._last_seq + 1:
            raise JournalError(
                f"journal {self.path}: event {self._last_seq + 1} is taken, so another process writes to it as well:"
                " end that one; a journal has one writer"
            )
        return seq

    def _put_cursors(self, db: sqlite3.Connection, cursors: Mapping[str, int]) -> None:
        db.executemany(
            "INSERT INTO cursors (source, position) VALUES (?, ?)"
            " ON CONFLICT (source) DO UPDATE SET position = excluded.position",
            list(cursors.items()),
        )

    def _rows(self, query: str, values: tuple[str, ...] = ()) -> list[Any]:
        with explained(self.path):
            return self._db.execute(query, values).fetchall()

    def _decode(self, codec: Codec[T], body: str | bytes, what: str) -> T:
        try:
            return codec.decode(body)
        except msgspec.MsgspecError as error:
            raise JournalError(
                f"journal {self.path}: {what} cannot be read ({error}): read it with the Reknit that wrote it, or"
                f" {START_ANEW}"
            ) from error


def _kind(struct: msgspec.Struct) -> str:
    return str(struct.__struct_config__.tag)
