"""The picture of `reknit ledger`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from reknit.account.ledger import ettr, wall_seconds
from reknit.cli.incident_words import action_words, blamed, state_words
from reknit.cli.render import (
    bar,
    brief,
    class_name,
    counted,
    duration,
    gpu_hours,
    make_console,
    percent,
    phase_name,
    plain,
)
from reknit.model.terms import LOST_PHASES, Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from reknit.cli.ledger_data import JobLedger, Ledger
    from reknit.model.incidents import Incident

_BAR = 30
_ROOMY = 150
"""Columns from which an incident takes one line; below, its words stand above its numbers."""
_UNEXPLAINED = 0.05
"""Seconds that are worth a line where they are on no incident's bill."""
_COLUMNS = (*(phase_name(phase) for phase in LOST_PHASES), "sum", "redone", "GPU-h")
_ORDER = (Phase.STARTUP, Phase.PRODUCTIVE, *LOST_PHASES)


def print_ledger_report(found: Ledger) -> None:
    """Draw every job's account and incidents."""
    console = make_console()
    for index, job in enumerate(found.jobs):
        if index:
            console.print()
        _heading(console, job)
        console.print(_phases(job))
        _incidents(console, job.incidents)
    if found.others:
        console.print(Text("Incidents of nodes that interrupted no job", style="bold"))
        console.print(_one_line(found.others) if console.width >= _ROOMY else _two_lines(found.others))


def _heading(console: Console, found: JobLedger) -> None:
    job = found.job
    head = Text(plain(job.spec.id, 60), style="bold")
    nodes, ranks = counted(job.spec.nodes, "node"), counted(job.spec.ranks_per_node, "rank")
    head.append(f"  {nodes} × {ranks}, {counted(job.spec.gpus, 'GPU')} · ", style="dim")
    style = {"succeeded": "green", "stopped": "red"}.get(job.result, "yellow")
    head.append(job.result or job.state, style=style)
    head.append(f" · step {job.high_step:,}" if job.high_step >= 0 else " · no step seen", style="dim")
    console.print(head)
    line = Text("wall time ", style="dim")
    line.append(duration(wall_seconds(job.account)), style="bold not dim")
    line.append("   ETTR ")
    line.append(percent(ettr(job.account)), style="bold not dim")
    line.append("   restarts ")
    line.append(str(found.restarts), style="bold not dim")
    line.append("   lost ")
    line.append(f"{duration(found.lost)}, {gpu_hours(found.hours(found.lost))} GPU-h", style="bold not dim")
    console.print(line)


def _phases(found: JobLedger) -> Table:
    account = found.job.account
    wall = wall_seconds(account)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold dim", show_footer=True)
    table.add_column("phase", footer="sum")
    table.add_column("time", justify="right", footer=duration(wall))
    table.add_column("share", justify="right", footer=percent(1.0 if wall > 0 else None))
    table.add_column("GPU-h", justify="right", footer=gpu_hours(found.hours(wall)))
    table.add_column("", style="cyan")
    for phase in _ORDER:
        seconds = account.phases.get(phase, 0.0)
        if seconds <= 0 and phase in (Phase.STARTUP, Phase.PRODUCTIVE):
            continue
        share = seconds / wall if wall > 0 else 0.0
        style = {Phase.PRODUCTIVE: "green", Phase.STARTUP: ""}.get(phase, "" if seconds > 0 else "dim")
        table.add_row(
            Text(phase_name(phase)),
            duration(seconds),
            percent(share),
            gpu_hours(found.hours(seconds)),
            Text(
                bar(share, _BAR),
                style="green" if phase == Phase.PRODUCTIVE else "red" if phase in LOST_PHASES else "",
            ),
            style=style,
        )
    unexplained = found.lost - found.billed
    if unexplained > _UNEXPLAINED:
        table.add_row(Text("on no bill", style="yellow"), duration(unexplained), "", "", "")
    return table


def _incidents(console: Console, incidents: Sequence[Incident]) -> None:
    if not incidents:
        console.print(Text("no incident", style="dim"))
        return
    console.print(Text(f"{counted(len(incidents), 'incident')}; seconds by phase", style="bold"))
    console.print(_one_line(incidents) if console.width >= _ROOMY else _two_lines(incidents))


def _one_line(incidents: Sequence[Incident]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold dim", padding=(0, 1))
    table.add_column("ID", no_wrap=True, style="bold")
    for name in ("cause", "blamed", "action"):
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for incident in incidents:
        table.add_row(
            Text(plain(incident.id, 40)), *(Text(word) for word in _words(incident)), *_numbers(incident)
        )
    return table


def _two_lines(incidents: Sequence[Incident]) -> Text:
    """Fixed columns below a line of words: fits 80 columns whatever the words are."""
    widths = [max(6, len(name)) for name in _COLUMNS]
    text = Text()
    text.append(
        "  " + " ".join(name.rjust(width) for name, width in zip(_COLUMNS, widths, strict=True)) + "\n",
        "bold dim",
    )
    for incident in incidents:
        cause, culprit, action = _words(incident)
        text.append(plain(incident.id, 40), style="bold")
        text.append(f"  {cause}; blamed: {culprit}; {action}\n")
        numbers = zip(_numbers(incident), widths, strict=True)
        text.append("  " + " ".join(value.rjust(width) for value, width in numbers) + "\n", "cyan")
    text.rstrip()
    return text


def _words(incident: Incident) -> tuple[str, str, str]:
    cause = class_name(incident.diagnosis.failure_class) if incident.diagnosis else state_words(incident)
    return cause, blamed(incident), action_words(incident)


def _numbers(incident: Incident) -> list[str]:
    bill = incident.bill
    phases = [brief(bill.phases.get(phase, 0.0)) for phase in LOST_PHASES]
    redone = str(bill.steps_redone) if bill.steps_redone else "·"
    return [*phases, brief(bill.seconds), redone, gpu_hours(bill.gpu_hours)]
