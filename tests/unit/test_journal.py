"""What the journal owes: nothing written down is lost, nothing is half written, and it says what is wrong."""

from __future__ import annotations

import enum
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import types
import typing
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.journal.codec import Codec
from reknit.journal.port import JournalError, JournalFull
from reknit.journal.sqlite import SqliteJournal
from reknit.model.commands import AnyCommand, CaptureEvidence, Notify, Quarantine, RestartGang, WaitUntil
from reknit.model.events import AnyEvent, CommandDone, CommandFailed, NodeGone, ProgressSeen, Tick
from reknit.model.incidents import Incident
from reknit.model.progress import RankProgress

EVENTS = get_args(AnyEvent)
COMMANDS = get_args(AnyCommand)


def anything(type_: Any) -> st.SearchStrategy[Any]:
    """Any value of a type of the model, NaN and infinity included."""
    origin, args = typing.get_origin(type_), get_args(type_)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([anything(arg) for arg in args])
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is dict:
        return st.dictionaries(anything(args[0]), anything(args[1]), max_size=3)
    if origin is list:
        return st.lists(anything(args[0]), max_size=3)
    if origin is tuple:
        many = st.lists(anything(args[0]), max_size=3).map(tuple)
        return many if args[1:] == (Ellipsis,) else st.tuples(*map(anything, args))
    if issubclass(type_, msgspec.Struct):
        fields = msgspec.structs.fields(type_)
        return st.builds(type_, **{field.name: anything(field.type) for field in fields})
    if issubclass(type_, enum.Enum):
        return st.sampled_from(list(type_))
    plain = {
        str: st.text(max_size=20),
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(),
        type(None): st.none(),
    }
    return plain[type_]


def bits(value: Any) -> bytes:
    """What makes two values the same to the last bit; NaN, too, is the same as itself."""
    return msgspec.msgpack.encode(value)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> typing.Iterator[SqliteJournal]:
    """One journal for many hypothesis examples, each of which cleans up behind itself."""
    with SqliteJournal(tmp_path_factory.mktemp("shared") / "journal.db") as journal:
        yield journal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> typing.Iterator[SqliteJournal]:
    with SqliteJournal(path) as journal:
        yield journal


def write(journal: SqliteJournal, event: Any = None, *commands: Any, incidents: Any = (), **cursors: int) -> int:
    return journal.record(1.5, event or Tick(), commands, incidents, cursors)


def quarantine(id_: str = "inc-1.1", node: str = "node0") -> Quarantine:
    return Quarantine(id=id_, incident="inc-1", reason="XID 79 on GPU 0", deadline=99.0, node=node)


# -- what goes in comes out


@pytest.mark.parametrize("type_", EVENTS, ids=lambda type_: type_.__name__)
def test_every_event_comes_back_as_it_was(shared: SqliteJournal, type_: Any) -> None:
    @settings(max_examples=20, deadline=None)
    @given(event=anything(type_), at=st.floats(0, 4e9))
    def story(event: Any, at: float) -> None:
        seq = shared.record(at, event, (), (), {})
        _, (recorded,) = shared.load()
        shared.snapshot(seq, b"")
        assert (recorded.seq, recorded.at) == (seq, at)
        assert bits(recorded.event) == bits(event)

    story()


@pytest.mark.parametrize(
    "type_", [type_ for type_ in COMMANDS if type_ is not WaitUntil], ids=lambda type_: type_.__name__
)
def test_every_command_comes_back_as_it_was(shared: SqliteJournal, type_: Any) -> None:
    @settings(max_examples=20, deadline=None)
    @given(command=anything(type_))
    def story(command: Any) -> None:
        shared.record(1.0, Tick(), [command], (), {})
        (back,) = shared.open_commands()
        seq = shared.record(2.0, CommandDone(command.id), (), (), {})
        assert shared.open_commands() == []
        shared.snapshot(seq, b"")
        assert bits(back) == bits(command)

    story()


@settings(max_examples=60, deadline=None)
@given(incident=anything(Incident))
def test_every_incident_comes_back_as_it_was(incident: Incident) -> None:
    codec = Codec[Incident](Incident)
    assert bits(codec.decode(codec.encode(incident))) == bits(incident)


def test_a_loss_that_is_not_a_number_is_remembered_and_ordinary_rows_are_json(path: Path) -> None:
    with SqliteJournal(path) as journal:
        write(journal, ProgressSeen("train", 1, {0: RankProgress(step=7, loss=float("nan"))}))
        write(journal, ProgressSeen("train", 1, {0: RankProgress(step=8, loss=None)}))
        _, (diverged, silent) = journal.load()
    assert str(diverged.event.ranks[0].loss) == "nan"
    assert silent.event.ranks[0].loss is None
    database = sqlite3.connect(path)
    kinds = database.execute("SELECT kind, typeof(body) FROM events ORDER BY seq").fetchall()
    (readable,) = database.execute("SELECT body FROM events WHERE seq = 2").fetchone()
    database.close()
    assert kinds == [("progress_seen", "blob"), ("progress_seen", "text")]
    assert '"step":8' in readable


# -- intents


def test_an_intent_is_open_until_its_outcome_is_recorded(journal: SqliteJournal) -> None:
    taint, tell = quarantine(), Notify(id="inc-1.2", incident="inc-1", reason="r", deadline=5.0, text="look")
    wait = WaitUntil(id="inc-1.3", incident="inc-1", reason="r", deadline=5.0)
    write(journal, Tick(), taint, tell, wait)
    assert journal.open_commands() == [taint, tell]
    write(journal, CommandDone("inc-1.1", detail="tainted"))
    assert journal.open_commands() == [tell]
    write(journal, CommandFailed("inc-1.2", detail="no route"))
    assert journal.open_commands() == []
    assert journal.commands("inc-1") == [(taint, "done"), (tell, "failed")]
    assert journal.commands("inc-2") == []


def test_a_command_recorded_again_stays_as_it_was(journal: SqliteJournal) -> None:
    write(journal, Tick(), quarantine(node="node0"))
    write(journal, CommandDone("inc-1.1"))
    write(journal, Tick(), quarantine(node="node9"))
    assert journal.open_commands() == []
    assert journal.commands("inc-1") == [(quarantine(node="node0"), "done")]


def test_only_a_transaction_with_an_effect_outside_waits_for_the_disk(journal: SqliteJournal) -> None:
    def synchronous() -> int:
        return journal._db.execute("PRAGMA synchronous").fetchone()[0]

    wait = WaitUntil(id="w", incident="inc-1", reason="r", deadline=5.0)
    look = CaptureEvidence(id="c", incident="inc-1", reason="r", deadline=5.0, job="train", attempt=1, ranks=(0,))
    seen = []
    for command in (wait, quarantine(), wait, look):
        write(journal, Tick(), command)
        seen.append(synchronous())
    normal, full = 1, 2
    assert seen == [normal, full, normal, full]


# -- snapshots


def test_a_snapshot_replaces_the_events_and_keeps_incidents_cursors_and_open_intents(path: Path) -> None:
    incident, later = Incident("inc-1", 10.0, title="first"), Incident("inc-2", 9.0, title="second, opened earlier")
    restart = RestartGang("inc-1.2", "inc-1", "r", 9.0, job="train", attempt=1, next_attempt=2)
    with SqliteJournal(path) as journal:
        write(journal, Tick(), quarantine(), restart, incidents=[incident], kernel=10)
        write(journal, CommandDone("inc-1.1"), incidents=[msgspec.structs.replace(incident, closed_at=20.0), later])
        third = write(journal, NodeGone("node3"))
        journal.save_cursors({"kernel": 30, "rank0": 5})
        journal.snapshot(2, b"state after two")
        state, events = journal.load()
        assert state == b"state after two"
        assert [(record.seq, record.event) for record in events] == [(third, NodeGone("node3"))]
        journal.snapshot(third, b"state after three")
    with SqliteJournal(path) as journal:
        assert journal.load() == (b"state after three", [])
        assert journal.open_commands() == [restart]
        assert journal.commands("inc-1") == [(restart, "intended")]
        assert journal.cursors() == {"kernel": 30, "rank0": 5}
        assert [(i.id, i.closed_at) for i in journal.incidents()] == [("inc-2", None), ("inc-1", 20.0)]
        assert write(journal) == third + 1


def test_a_new_journal_is_empty(journal: SqliteJournal) -> None:
    assert journal.load() == (None, [])
    assert (journal.open_commands(), journal.cursors(), journal.incidents()) == ([], {}, [])


def test_an_incident_is_found_by_what_a_person_types(journal: SqliteJournal) -> None:
    write(journal, incidents=[Incident(f"inc-{n}", float(n)) for n in (1, 10, 11, 2)])
    for text in ("inc-1", "1", " INC-1 "):
        found = journal.incident(text)
        assert found is not None
        assert found.id == "inc-1"
    assert journal.matching("inc-1") == ["inc-1"]
    assert journal.matching("") == journal.matching("inc-") == journal.matching("3") == journal.matching("%") == []
    write(journal, incidents=[Incident("inc-20", 20.0), Incident("inc-300", 30.0), Incident("inc-310", 31.0)])
    assert journal.matching("3") == ["inc-300", "inc-310"]
    assert journal.incident("3") is None
    assert journal.incident("30") == Incident("inc-300", 30.0)
    assert journal.incident("x") is None


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


@pytest.mark.parametrize("end", ["os._exit(7)", "os.kill(os.getpid(), signal.SIGKILL)"], ids=["_exit", "SIGKILL"])
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
            for act in (lambda: write(reader), lambda: reader.save_cursors({"a": 1}), lambda: reader.snapshot(1, b"")):
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
        recorded = []
        with pytest.raises(JournalFull, match=r"journal .*journal\.db cannot be written, no space is left: free some"):
            for n in range(1000):
                name = f"node{n:04}" * 50
                incident = Incident(f"inc-{n}", 1.0, title=name)
                recorded.append(write(journal, NodeGone(name), quarantine(f"c{n}"), incidents=[incident], kernel=n))
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
    assert "cannot be written (disk I/O error): the disk is full, over its quota or failing; free some space" in first
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
