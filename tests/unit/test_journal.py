"""What the journal owes: what goes in comes out, intents stay open until their outcome, snapshots replace events."""

from __future__ import annotations

import itertools
import sqlite3
import typing
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.journal.codec import Codec
from reknit.journal.sqlite import SqliteJournal
from reknit.model.commands import AnyCommand, CaptureEvidence, Notify, RestartGang, WaitUntil
from reknit.model.events import AnyEvent, CommandDone, CommandFailed, NodeGone, ProgressSeen, Tick
from reknit.model.incidents import Incident
from reknit.model.progress import RankProgress
from support.anything import anything, bits
from support.journals import quarantine, write

if typing.TYPE_CHECKING:
    from pathlib import Path

EVENTS = get_args(AnyEvent)
COMMANDS = get_args(AnyCommand)
NUMBERS = itertools.count()


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
        # an id is used once, and examples may be repeated
        command = msgspec.structs.replace(command, id=f"{next(NUMBERS)} {command.id}")
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
    look = CaptureEvidence(
        id="c", incident="inc-1", reason="r", deadline=5.0, job="train", attempt=1, ranks=(0,)
    )
    seen = []
    for command in (wait, quarantine(), wait, look):
        write(journal, Tick(), command)
        seen.append(synchronous())
    normal, full = 1, 2
    assert seen == [normal, full, normal, full]


# -- snapshots


def test_a_snapshot_replaces_the_events_and_keeps_incidents_cursors_and_commands(path: Path) -> None:
    incident, later = (
        Incident("inc-1", 10.0, title="first"),
        Incident("inc-2", 9.0, title="second, opened earlier"),
    )
    restart = RestartGang("inc-1.2", "inc-1", "r", 9.0, job="train", attempt=1, next_attempt=2)
    with SqliteJournal(path) as journal:
        write(journal, Tick(), quarantine(), restart, incidents=[incident], kernel=10)
        write(
            journal,
            CommandDone("inc-1.1"),
            incidents=[msgspec.structs.replace(incident, closed_at=20.0), later],
        )
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
        assert journal.commands("inc-1") == [(quarantine(), "done"), (restart, "intended")]
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
    assert (
        journal.matching("")
        == journal.matching("inc-")
        == journal.matching("3")
        == journal.matching("%")
        == []
    )
    write(journal, incidents=[Incident("inc-20", 20.0), Incident("inc-300", 30.0), Incident("inc-310", 31.0)])
    assert journal.matching("3") == ["inc-300", "inc-310"]
    assert journal.incident("3") is None
    assert journal.incident("30") == Incident("inc-300", 30.0)
    assert journal.incident("x") is None
