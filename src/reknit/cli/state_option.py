"""`--state`: which run a command is about, opened for reading."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from reknit.cli.errors import UsageProblem
from reknit.cli.render import joined, plain
from reknit.cli.states import DEFAULT_STATE, journal_path, stored_policy
from reknit.journal.port import JournalError
from reknit.model.state import EngineState, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from reknit.catalog.row import Catalog
    from reknit.journal.sqlite import CommandState, SqliteJournal
    from reknit.model.commands import AnyCommand
    from reknit.model.incidents import Incident


def state_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--state DIR`, by default the newest run of this directory."""
    option = click.option(
        "--state",
        type=click.Path(path_type=Path),
        default=DEFAULT_STATE,
        show_default=True,
        metavar="DIR",
        help="The state directory of the run.",
    )
    return option(command)


class Run:
    """A run's state directory, open for reading; another process may be writing. Made by `open_run`."""

    def __init__(self, root: Path, journal: SqliteJournal) -> None:
        self.root = root
        self._journal = journal

    def incidents(self) -> list[Incident]:
        """Every incident, oldest first."""
        return self._journal.incidents()

    def incident(self, text: str) -> Incident:
        """The incident that a person means. Raises UsageProblem where it is none or several."""
        found = self._journal.incident(text)
        if found is not None:
            return found
        several = self._journal.matching(text)
        if several:
            raise UsageProblem(f"{plain(text, 60)!r} may mean {joined(several)}; write one of them in full")
        known = [incident.id for incident in self._journal.incidents()]
        there = f"there are {joined(known, 12)}" if known else "nothing has gone wrong in this run yet"
        raise UsageProblem(f"there is no incident {plain(text, 60)!r} in {self.root}: {there}")

    def commands(self, incident: str) -> list[tuple[AnyCommand, CommandState]]:
        """The commands of an incident and how each ended, oldest first."""
        return self._journal.commands(incident)

    def engine_state(self, catalog: Catalog) -> EngineState:
        """The engine's memory as it was after the last event, made again from snapshot and events."""
        from reknit.engine import Engine  # noqa: PLC0415 - most commands need no engine
        from reknit.model.policy import Policy  # noqa: PLC0415

        snapshot, records = self._journal.load()
        try:
            state = unpack(snapshot) if snapshot else EngineState()
        except msgspec.MsgspecError as error:
            raise UsageProblem(
                f"the snapshot in {journal_path(self.root)} cannot be read ({error}): "
                "use the Reknit that wrote it"
            ) from error
        engine = Engine(catalog, stored_policy(self.root) or Policy(mode="act"), state)
        for record in records:
            engine.handle(record.at, record.event)
        return engine.state


@contextlib.contextmanager
def open_run(state: Path) -> Generator[Run]:
    """The run of a state directory. Whatever is wrong with it, then or later, is a UsageProblem."""
    from reknit.journal.sqlite import SqliteJournal  # noqa: PLC0415
    from reknit.orchestrate.local.errors import LocalError  # noqa: PLC0415
    from reknit.orchestrate.local.state_dir import read_run  # noqa: PLC0415

    root = _existing(state)
    try:
        read_run(root)
        with SqliteJournal(journal_path(root), read_only=True) as journal:
            yield Run(root, journal)
    except (LocalError, JournalError) as error:
        raise UsageProblem(str(error)) from error
    except OSError as error:
        raise UsageProblem(f"cannot read state directory {root}: {error.strerror or error}") from error


def _existing(state: Path) -> Path:
    try:
        root = state.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        if state == DEFAULT_STATE:
            raise UsageProblem(
                f"there is no run here: {DEFAULT_STATE} does not exist; start one with "
                "`reknit run -- COMMAND`, or name the state directory of one with --state"
            ) from error
        why = getattr(error, "strerror", None) or str(error)
        raise UsageProblem(
            f"cannot use state directory {state}: {why}; check the path given with --state"
        ) from error
    if not root.is_dir():
        raise UsageProblem(f"state directory {state} is not a directory; check the path given with --state")
    newest = root / DEFAULT_STATE.name
    # `--state .reknit` means the newest run in it.
    return newest.resolve() if not (root / "run.json").exists() and newest.is_dir() else root
