"""`reknit incidents` and `reknit show`: what went wrong, as a list and one by one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click
import msgspec

from reknit.cli.incident_words import as_json
from reknit.cli.render import print_json
from reknit.cli.state_option import open_run, state_option

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@state_option
@click.option(
    "--open/--all", "only_open", default=False, help="Only those that are not done with. [default: all]"
)
@click.option("--limit", "-n", type=click.IntRange(1), metavar="N", help="Only the newest N.")
@click.option("--json", "as_object", is_flag=True, help="For a program.")
def incidents(*, state: Path, only_open: bool, limit: int | None, as_object: bool) -> None:
    """List what went wrong, oldest first: when, where, what was done about it and what it cost."""
    with open_run(state) as run:
        found = [incident for incident in run.incidents() if incident.open or not only_open]
        shown = found[-limit:] if limit else found
        if as_object:
            print_json({"incidents": [as_json(incident) for incident in shown]})
            return
        if not shown:
            click.echo("no open incident" if only_open else "no incident: nothing has gone wrong in this run")
            return
        from reknit.cli.incident_table import print_table  # noqa: PLC0415 - it draws

        print_table(shown, time.time(), left_out=len(found) - len(shown))


@click.command()
@click.argument("incident")
@state_option
@click.option("--json", "as_object", is_flag=True, help="For a program.")
def show(*, incident: str, state: Path, as_object: bool) -> None:
    """Tell one incident's whole story: verdict, evidence, decision, actions, timeline and bill.

    INCIDENT is an id such as inc-2, or its beginning, or just its number.
    """
    from reknit.catalog.load import builtin  # noqa: PLC0415 - takes longer than the list does
    from reknit.cli.evidence_files import evidence_files  # noqa: PLC0415

    with open_run(state) as run:
        found = run.incident(incident)
        commands = run.commands(found.id)
        files = evidence_files(run.root, found)
        row = builtin().get(found.diagnosis.code) if found.diagnosis and found.diagnosis.code else None
        if as_object:
            content: dict[str, Any] = {"incident": as_json(found)}
            content["commands"] = [
                {**msgspec.to_builtins(command), "state": how} for command, how in commands
            ]
            content["advice"] = row.advice if row else ""
            content["evidence_files"] = [{"path": file.path, "bytes": file.size} for file in files]
            print_json(content)
            return
        from reknit.cli.incident_report import print_report  # noqa: PLC0415 - it draws

        print_report(found, commands, row, files, time.time())
