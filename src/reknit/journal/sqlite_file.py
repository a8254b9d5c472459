"""Opening a journal's file, and saying in a sentence why one cannot be used."""

from __future__ import annotations

import contextlib
import sqlite3
from importlib import resources
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from reknit.journal.port import JournalError, JournalFull

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA_VERSION: Final = 1
START_ANEW: Final = "move it and the files beside it that begin with its name away to begin a new one"

_PRIMARY: Final = 0xFF
"""The bits of an SQLite result code that name its family."""
_NO_ROOM: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,  # quota, file size limit; a plain full disk is SQLITE_FULL
        sqlite3.SQLITE_IOERR_FSYNC,  # filesystems that allocate late (NFS, thin volumes) notice only here
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_IOERR_TRUNCATE,
    }
)
_CANNOT_OPEN: Final = (
    "journal {path} cannot be opened ({error}): check that its folder exists and whether you may use it"
)
_WRITTEN_BY_ANOTHER: Final = "journal {path} is being written by another process: end that one first"
_SENTENCES: Final = {
    sqlite3.SQLITE_NOTADB: f"{{path}} is no Reknit journal ({{error}}): {START_ANEW}",
    sqlite3.SQLITE_CORRUPT: f"journal {{path}} is damaged ({{error}}): {START_ANEW}",
    sqlite3.SQLITE_IOERR: (
        "journal {path} cannot be used ({error}): look for the disk in the kernel log, then restore the file, or"
        f" {START_ANEW}"
    ),
    sqlite3.SQLITE_CANTOPEN: _CANNOT_OPEN,
    sqlite3.SQLITE_PERM: _CANNOT_OPEN,
    sqlite3.SQLITE_READONLY: _CANNOT_OPEN,
    sqlite3.SQLITE_BUSY: _WRITTEN_BY_ANOTHER,
    sqlite3.SQLITE_LOCKED: _WRITTEN_BY_ANOTHER,
}
_WAIT_FOR_WRITER_S: Final = 5.0


def open_to_write(path: Path) -> sqlite3.Connection:
    """The file as a journal that may be written, made where it does not exist. Raises JournalError."""
    with explained(path), contextlib.ExitStack() as on_error:
        db = _connect(str(path))
        on_error.callback(db.close)
        new = _version(path, db) is None
        mode: str = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise JournalError(
                f"journal {path} cannot use SQLite's write-ahead log on this filesystem: put the state directory on a"
                " local disk"
            )
        if new:
            db.executescript(
                resources.files("reknit.journal").joinpath("schema.sql").read_text(encoding="utf-8")
            )
        problem: str = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise JournalError(f"journal {path} is damaged ({problem.splitlines()[-1]}): {START_ANEW}")
        on_error.pop_all()
        return db


def open_to_read(path: Path) -> sqlite3.Connection:
    """The file as a journal that is only looked at, also while another process writes. Raises JournalError."""
    with explained(path), contextlib.ExitStack() as on_error:
        if not path.is_file():
            raise JournalError(f"no journal at {path}: check the state directory that you named")
        address = f"file:{quote(str(path))}?mode=ro"
        db = _connect(address)
        on_error.callback(db.close)
        try:
            version = _version(path, db)
        except sqlite3.OperationalError as error:
            beside = path.with_name(path.name + "-wal")
            if (
                _code(error) & _PRIMARY not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
                or beside.exists()
            ):
                raise
            # A finished run in a folder where the reader may not make the files that coordinate with a writer.
            db = _connect(f"{address}&immutable=1")
            on_error.callback(db.close)
            version = _version(path, db)
        if version is None:
            raise JournalError(f"journal {path} is empty: the run that made it has written nothing yet")
        on_error.pop_all()
        return db


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """What SQLite raises inside becomes a JournalError: no exception of a foreign library leaves this room."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(path, error) from error


def _connect(address: str) -> sqlite3.Connection:
    """Any thread may use it, one call at a time: a controller may write from a worker thread."""
    return sqlite3.connect(
        address,
        uri=address.startswith("file:"),  # a path that we are given is absolute, so it never does
        timeout=_WAIT_FOR_WRITER_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _version(path: Path, db: sqlite3.Connection) -> int | None:
    """The schema's version, None for a database without any table. Changes nothing in a foreign file."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return None
    row = None
    if {"meta", "events"} <= tables:
        row = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    if row is None or not str(row[0]).isdecimal():
        raise JournalError(f"{path} is a database, but no Reknit journal: name another state directory")
    version = int(row[0])
    if version > SCHEMA_VERSION:
        raise JournalError(
            f"journal {path} was written by a newer Reknit (schema {version}, this one knows {SCHEMA_VERSION}): use"
            " that Reknit, or another state directory"
        )
    return version


def _code(error: sqlite3.Error) -> int:
    """The extended result code; 0 where Python itself raised the error."""
    return int(getattr(error, "sqlite_errorcode", 0))


def _explain(path: Path, error: sqlite3.Error) -> JournalError:
    code = _code(error)
    if code & _PRIMARY == sqlite3.SQLITE_FULL:
        return JournalFull(f"journal {path} cannot be written, no space is left: free some on its filesystem")
    if code in _NO_ROOM:
        return JournalFull(
            f"journal {path} cannot be written ({error}): the disk is full, over its quota or failing; free some space"
            " there, or look for the disk in the kernel log"
        )
    sentence = _SENTENCES.get(code & _PRIMARY, "journal {path} cannot be used: {error}")
    if code & _PRIMARY in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return JournalFull(
            sentence.format(path=path, error=error)
        )  # it may pass: a backup, somebody looking in
    return JournalError(sentence.format(path=path, error=error))
