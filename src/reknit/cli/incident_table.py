"""The table of `reknit incidents`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from reknit.cli.incident_words import action_words, blamed, state_words, took
from reknit.cli.render import (
    NOTHING,
    class_name,
    counted,
    duration,
    gpu_hours,
    local_time,
    make_console,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reknit.model.incidents import Incident

_ROOMY = 150
"""Columns from which each fact gets a column of its own; below, an incident takes two lines or more."""


def print_table(incidents: Sequence[Incident], now: float, *, left_out: int = 0) -> None:
    """Draw the list, oldest first."""
    console = make_console()
    draw = _wide if console.width >= _ROOMY else _narrow
    console.print(draw(incidents, now))
    if left_out:
        console.print(Text(f"{counted(left_out, 'older incident')} not shown", style="dim"))


def state_style(incident: Incident) -> str:
    """Green where all is well again, yellow where something is going on, red where a person has to act."""
    if incident.job is not None and incident.job.state == "stopped":
        return "red"
    return "yellow" if incident.open else "green"


def _wide(incidents: Sequence[Incident], now: float) -> Table:
    table = _table("ID", "OPENED", "TOOK", "STATE", "CLASS", "BLAMED", "WHAT", "ACTION")
    table.add_column("LOST", justify="right", no_wrap=True)
    table.add_column("GPU-H", justify="right", no_wrap=True)
    for incident in incidents:
        bill = incident.bill
        table.add_row(
            Text(plain(incident.id, 40), style="bold"),
            Text(local_time(incident.opened_at, now)),
            Text(_took(incident, now)),
            Text(state_words(incident), style=state_style(incident)),
            Text(_class(incident)),
            Text(blamed(incident)),
            Text(plain(incident.title, 160)),
            Text(action_words(incident)),
            Text(duration(bill.seconds) if bill.seconds > 0 else NOTHING),
            Text(gpu_hours(bill.gpu_hours) if bill.seconds > 0 else NOTHING),
        )
    return table


def _narrow(incidents: Sequence[Incident], now: float) -> Table:
    table = _table("ID", "OPENED, TOOK")
    table.add_column("WHAT, BLAMED, ACTION", ratio=1)
    table.add_column("LOST, GPU-H", justify="right", no_wrap=True)
    for incident in incidents:
        bill = incident.bill
        opened = local_time(incident.opened_at, now).split(" ")
        what = Text(plain(incident.title, 160), style="bold")
        what.append(f"\n{_class(incident)}; blamed: {blamed(incident)}", style="not bold dim")
        what.append(f"\n{action_words(incident)}", style="not bold")
        what.append(" — ", style="not bold dim")
        what.append(state_words(incident), style=f"not bold {state_style(incident)}")
        lost = f"{duration(bill.seconds)}\n{gpu_hours(bill.gpu_hours)}" if bill.seconds > 0 else NOTHING
        when = "\n".join((*opened, _took(incident, now)))
        table.add_row(Text(plain(incident.id, 40), style="bold"), Text(when), what, Text(lost))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold dim")
    for name in columns:
        table.add_column(name, no_wrap=name in ("ID", "OPENED", "TOOK"))
    return table


def _took(incident: Incident, now: float) -> str:
    return duration(took(incident, now)) + (" so far" if incident.open else "")


def _class(incident: Incident) -> str:
    return (
        class_name(incident.diagnosis.failure_class)
        if incident.diagnosis is not None
        else "not yet diagnosed"
    )
