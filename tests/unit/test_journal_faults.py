"""What the journal bears: sudden death, readers and rivals, a full disk, files that cannot be used."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from reknit.journal.port import JournalError, JournalFull
from reknit.journal.sqlite import SqliteJournal
from reknit.model.events import NodeGone
from reknit.model.incidents import Incident
from support.journals import quarantine, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


# -- crashes

PRELUDE = """
import os, resource, signal, sys
from reknit.journal.port import JournalFull
from reknit.journal.sqlite import SqliteJournal
from reknit.model.commands import Quarantine
from reknit.model.events import NodeGone, Tick
from reknit.model.incidents import Incident

def taint(n):
    return Quarantine(id=f"c{n}", incident="inc-1", reason="r", deadline=9.0, node=f"node{n}")
"""


def child(script: str, *arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A process of its own that runs a few lines on a journal."""
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    "end", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["_exit", "SIGKILL"]
)
def test_what_was_recorded_survives_a_death_right_after_it(path: Path, end: str) -> None:
    script = f"""
        journal = SqliteJournal(sys.argv[1])
        journal.record(1.0, NodeGone("a"), [taint(1)], [Incident("inc-1", 1.0)], {{"kernel": 42}})
        {end}
    """
    process = child(script, path)
    process.communicate(timeout=60)
    assert process.returncode in (7, -signal.SIGKILL)
    with SqliteJournal(path) as journal:
        assert [record.event for record in journal.load()[1]] == [NodeGone("a")]
        assert [command.id for command in journal.open_commands()] == ["c1"]
        assert journal.incidents() == [Incident("inc-1", 1.0)]
        assert journal.cursors() == {"kernel": 42}
        assert write(journal) == 2


def test_killed_at_any_moment_a_writer_loses_nothing_that_it_reported_and_keeps_no_half(path: Path) -> None:
    script = """
        journal = SqliteJournal(sys.argv[1])
        for n in range(1, 1_000_000):
            journal.record(n, NodeGone(f"node{n}"), [taint(n)] if n % 10 == 0 else [], [], {"kernel": n})
            if n % 100 == 0:
                journal.snapshot(n - 50, str(n - 50).encode())
            print(n, flush=True)
    """
    with child(script, path) as process:
        assert process.stdout is not None
        try:
            said = [int(process.stdout.readline()) for _ in range(137)]
            with SqliteJournal(path, read_only=True) as beside:
                state, events = beside.load()
            assert events[-1].seq >= said[-1]
            assert events[0].seq == int(state or b"0") + 1
        finally:
            process.kill()
        said += [int(line) for line in process.stdout]
    with SqliteJournal(path) as journal:
        state, events = journal.load()
        numbers = [record.seq for record in events]
        assert numbers == list(range(int(state or b"0") + 1, numbers[-1] + 1))
        assert said[-1] <= numbers[-1] <= said[-1] + 1
        assert all(record.event == NodeGone(f"node{record.seq}") for record in events)
        assert journal.cursors() == {"kernel": numbers[-1]}
        assert [c.id for c in journal.open_commands()] == [f"c{n}" for n in range(10, numbers[-1] + 1, 10)]


# -- readers, and other writers


def test_a_reader_sees_what_a_live_writer_has_recorded_and_cannot_write(path: Path) -> None:
    with SqliteJournal(path) as writer:
        write(writer, NodeGone("a"))
        with SqliteJournal(path, read_only=True) as reader:
            assert len(reader.load()[1]) == 1
            write(writer, NodeGone("b"), quarantine(), incidents=[Incident("inc-1", 1.0)])
            assert [record.event for record in reader.load()[1]] == [NodeGone("a"), NodeGone("b")]
            writer.snapshot(2, b"s")
            assert reader.load() == (b"s", [])
            assert reader.incident("1") == Incident("inc-1", 1.0)
            for act in (
                lambda: write(reader),
                lambda: reader.save_cursors({"a": 1}),
                lambda: reader.snapshot(1, b""),
            ):
                with pytest.raises(JournalError, match="opened for reading only"):
                    act()
    with SqliteJournal(path, read_only=True) as after:
        assert after.load() == (b"s", [])


def test_a_finished_run_in_a_folder_where_one_may_only_read() -> None:
    script = """
        if os.getuid() == 0:
            os.setuid(65534)
        with SqliteJournal(sys.argv[1], read_only=True) as journal:
            print([record.event.node for record in journal.load()[1]])
    """
    # not tmp_path: pytest makes that for its own user alone
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal #1?.db")
        with SqliteJournal(path) as journal:
            write(journal, NodeGone("a"))
        Path(folder).chmod(0o555)
        output, _ = child(script, path).communicate(timeout=60)
        Path(folder).chmod(0o755)
        assert output == "['a']\n"
        assert [entry.name for entry in Path(folder).iterdir()] == [path.name]


def test_a_second_writer_is_noticed_before_it_does_harm(path: Path) -> None:
    with SqliteJournal(path) as first, SqliteJournal(path) as second:
        assert write(first, NodeGone("a")) == 1
        with pytest.raises(JournalError, match="event 1 is taken, so another process writes to it"):
            write(second, NodeGone("b"))
        assert [record.event for record in first.load()[1]] == [NodeGone("a")]


# -- no room


def test_a_full_disk_loses_nothing_and_passes(path: Path) -> None:
    with SqliteJournal(path) as journal:
        pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
        journal._db.execute(f"PRAGMA max_page_count = {pages + 3}")
        recorded: list[int] = []

        def fill() -> None:
            for n in range(1000):
                name = f"node{n:04}" * 50
                incident = Incident(f"inc-{n}", 1.0, title=name)
                seq = write(journal, NodeGone(name), quarantine(f"c{n}"), incidents=[incident], kernel=n)
                recorded.append(seq)

        with pytest.raises(
            JournalFull, match=r"journal .*journal\.db cannot be written, no space is left: free"
        ):
            fill()
        with pytest.raises(JournalFull):
            write(journal, NodeGone("x" * 100_000), kernel=999)
        assert [record.seq for record in journal.load()[1]] == recorded
        assert len(journal.open_commands()) == len(journal.incidents()) == len(recorded) > 1
        assert journal.cursors() == {"kernel": len(recorded) - 1}
        journal._db.execute("PRAGMA max_page_count = 1000000")
        assert write(journal, NodeGone("y")) == recorded[-1] + 1
    with SqliteJournal(path) as journal:
        assert journal.load()[1][-1].event == NodeGone("y")


def test_a_write_that_the_kernel_refuses_halfway_is_rolled_back_and_passes(path: Path) -> None:
    """A limit on the size of files stands for a quota: the kernel writes a part and refuses the rest."""
    script = """
        journal = SqliteJournal(sys.argv[1])
        journal.record(1.0, NodeGone("a"), [taint(1)], [], {})
        size = os.stat(sys.argv[1] + "-wal").st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 6000, resource.RLIM_INFINITY))
        for commands in ([], [taint(2)]):
            try:
                journal.record(2.0, NodeGone("b" * 50_000), commands, [], {"kernel": 2})
            except JournalFull as error:
                print(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(journal.record(3.0, NodeGone("c"), [taint(3)], [], {}), flush=True)
        os._exit(0)
    """
    output, _ = child(script, path).communicate(timeout=60)
    first, second, seq = output.splitlines()
    assert first == second
    assert (
        "cannot be written (disk I/O error): the disk is full, over its quota or failing; free some space"
        in first
    )
    assert seq == "2"
    with SqliteJournal(path) as journal:
        assert [record.event for record in journal.load()[1]] == [NodeGone("a"), NodeGone("c")]
        assert [command.id for command in journal.open_commands()] == ["c1", "c3"]
        assert journal.cursors() == {}


# -- files that cannot be used


def refusal(path: Path, *, read_only: bool) -> str:
    with pytest.raises(JournalError) as error:
        SqliteJournal(path, read_only=read_only).load()
    sentence = str(error.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("read_only", [False, True], ids=["writer", "reader"])
class TestRefusals:
    def test_not_a_database(self, path: Path, read_only: bool) -> None:
        path.write_bytes(b"what is this? " * 500)
        assert "is no Reknit journal (file is not a database): move it" in refusal(path, read_only=read_only)
        assert path.read_bytes().startswith(b"what is this?")

    def test_somebody_elses_database(self, path: Path, read_only: bool) -> None:
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE meta (key, value)")
        database.close()
        before = path.read_bytes()
        assert "is a database, but no Reknit journal" in refusal(path, read_only=read_only)
        assert path.read_bytes() == before

    def test_a_journal_of_a_newer_reknit(self, path: Path, read_only: bool) -> None:
        SqliteJournal(path).close()
        database = sqlite3.connect(path)
        database.execute("UPDATE meta SET value = '2'")
        database.commit()
        database.close()
        sentence = refusal(path, read_only=read_only)
        assert "was written by a newer Reknit (schema 2, this one knows 1): use that Reknit" in sentence

    def test_a_damaged_page(self, path: Path, read_only: bool) -> None:
        with SqliteJournal(path) as journal:
            for n in range(50):
                write(journal, NodeGone(f"node{n}" * 100))
        content = bytearray(path.read_bytes())
        for page in range(8, len(content) // 4096):
            content[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
        path.write_bytes(content)
        assert "is damaged" in refusal(path, read_only=read_only)

    def test_an_event_that_nobody_knows(self, path: Path, read_only: bool) -> None:
        with SqliteJournal(path) as journal:
            write(journal)
        database = sqlite3.connect(path)
        database.execute("""UPDATE events SET body = '{"kind":"moon_landed"}'""")
        database.commit()
        database.close()
        sentence = refusal(path, read_only=read_only)
        assert "event 1 cannot be read (Invalid value 'moon_landed'" in sentence

    def test_a_folder_in_its_place(self, path: Path, read_only: bool) -> None:
        path.mkdir()
        expected = "no journal at" if read_only else "cannot be opened (unable to open database file)"
        assert expected in refusal(path, read_only=read_only)


def test_a_folder_that_does_not_exist(path: Path) -> None:
    assert "check that its folder exists" in refusal(path.parent / "none" / "journal.db", read_only=False)
    assert not (path.parent / "none").exists()


def test_nothing_to_read(path: Path) -> None:
    assert "no journal at" in refusal(path, read_only=True)
    assert not path.exists()
    path.touch()
    assert "has written nothing yet" in refusal(path, read_only=True)


def test_an_empty_file_becomes_a_journal(path: Path) -> None:
    path.touch()
    with SqliteJournal(path) as journal:
        assert write(journal) == 1


def test_a_closed_journal_says_so_and_closes_again(path: Path) -> None:
    journal = SqliteJournal(path)
    write(journal)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match=r"cannot be used: Cannot operate on a closed database"):
        write(journal)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
