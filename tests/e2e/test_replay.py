"""The journal of a real run, read again: the engine arrives at the same state, and the same incidents stand in it."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import msgspec

from reknit.catalog.load import builtin
from reknit.cli.states import journal_path
from reknit.engine import Engine
from reknit.journal.sqlite import SqliteJournal
from reknit.model.commands import WaitUntil
from reknit.model.policy import Policy
from support.runs import QUICK, Run, steps, until

if TYPE_CHECKING:
    from pathlib import Path


def test_handling_the_journals_events_again_gives_the_same_state_incidents_and_commands(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path, steps(tmp_path, steps=400))
    run.start()
    try:
        until("a checkpoint", lambda: run.checkpoint() >= 10)
        os.kill(run.rank_pid(1), signal.SIGKILL)
        until("the recovery", lambda: [i for i in run.incidents() if i["closed_at"]])
        run.kill()
        policy = msgspec.convert({"mode": "act", **msgspec.toml.decode(QUICK)}, Policy)
        journal = SqliteJournal(journal_path(run.state), read_only=True)
        snapshot, records = journal.load()
        assert snapshot is None
        assert len(records) > 10
        states, commands = [], []
        for _ in range(2):
            engine = Engine(builtin(), policy)
            given = [c for r in records for c in engine.handle(r.at, r.event) if not isinstance(c, WaitUntil)]
            states.append(msgspec.json.encode(engine.state))
            commands.append(given)
        assert states[0] == states[1]
        assert commands[0] == commands[1]
        assert list(engine.state.incidents.values()) == journal.incidents()
        written = [c for i in journal.incidents() for c, _ in journal.commands(i.id)]
        assert written == commands[0]
        journal.close()
    finally:
        run.close()
