"""The report of `reknit show`: one incident, from its heading to its bill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reknit.cli.incident_table import state_style
from reknit.cli.incident_words import action_words, blamed, redone_words, state_words, took
from reknit.cli.render import (
    action_name,
    bar,
    class_name,
    duration,
    gpu_hours,
    joined,
    local_time,
    make_console,
    phase_name,
    plain,
)
from reknit.cli.timeline_style import KIND_STYLE
from reknit.model.commands import CaptureEvidence, Notify, Quarantine, Release, RestartGang
from reknit.model.terms import LOST_PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, RenderableType

    from reknit.catalog.row import Row
    from reknit.cli.evidence_files import EvidenceFile
    from reknit.journal.sqlite import CommandState
    from reknit.model.commands import AnyCommand
    from reknit.model.diagnosis import Diagnosis
    from reknit.model.incidents import Incident

_LINE = 110
"""Columns of running text: longer lines are hard to read."""
_SENTENCE = 1000
_BAR = 24
_STACKS = 6
"""Files of which the first lines are shown."""
_OUTCOME_STYLE = {"done": "green", "failed": "red", "intended": "yellow"}


def print_report(
    incident: Incident,
    commands: Sequence[tuple[AnyCommand, CommandState]],
    row: Row | None,
    files: Sequence[EvidenceFile],
    now: float,
) -> None:
    """Draw it."""
    console = make_console()
    _heading(console, incident, now)
    if incident.diagnosis is not None:
        _section(console, "Verdict", _verdict(incident, incident.diagnosis, row))
        _section(console, "Causal chain", _chain(incident.diagnosis))
    if incident.decision:
        _section(console, "Decision", Text(plain(incident.decision, _SENTENCE)))
    _section(console, "Actions", _actions(incident, commands))
    if incident.nodes:
        _section(console, "Nodes", _nodes(incident))
    _section(console, "Timeline", _timeline(incident))
    if incident.evidence:
        _section(console, "Evidence", _evidence(incident, files))
    _section(console, "Bill", _bill(incident))


def _heading(console: Console, incident: Incident, now: float) -> None:
    head = Text(plain(incident.id, 40), style="bold")
    head.append("  ")
    head.append(plain(incident.title, _SENTENCE))
    console.print(head, width=_width(console))
    line = Text(state_words(incident), style=state_style(incident))
    line.append(f" · opened {local_time(incident.opened_at)}", style="dim")
    if incident.closed_at is not None:
        line.append(f", closed {local_time(incident.closed_at)}", style="dim")
    line.append(f" · {duration(took(incident, now))}{' so far' if incident.open else ''}", style="dim")
    if incident.job is not None:
        line.append(f" · job {plain(incident.job.job, 60)}, attempt {incident.job.attempt}", style="dim")
    console.print(line, width=_width(console))


def _section(console: Console, title: str, body: RenderableType) -> None:
    console.print()
    console.print(Text(title, style="bold underline"))
    console.print(Padding(body, (0, 0, 0, 2), expand=False), width=_width(console))


def _width(console: Console) -> int:
    return min(console.width, _LINE)


def _facts(pairs: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in pairs:
        if value:
            table.add_row(Text(name), Text(plain(value, _SENTENCE)))
    return table


def _verdict(incident: Incident, diagnosis: Diagnosis, row: Row | None) -> Table:
    culprit = blamed(incident)
    if diagnosis.role == "symptom":
        culprit += "; only symptoms of it were seen"
    return _facts(
        [
            ("class", class_name(diagnosis.failure_class)),
            ("blamed", culprit),
            ("confidence", f"{diagnosis.confidence:.0%}"),
            ("why", diagnosis.reason),
            ("what helps", action_name(diagnosis.action)),
            ("advice", row.advice if row else ""),
            ("suspects", joined(diagnosis.suspects, 12)),
            ("surer with", diagnosis.would_help),
            (
                "known as",
                f"{diagnosis.code} (reknit catalog show {diagnosis.code})" if diagnosis.code else "",
            ),
            (
                "before that",
                "; ".join(f"{class_name(d.failure_class)}: {d.reason}" for d in incident.history[-3:]),
            ),
        ]
    )


def _chain(diagnosis: Diagnosis) -> RenderableType:
    text = Text()
    for depth, line in enumerate(diagnosis.chain):
        text.append(f"{'   ' * (depth - 1)}└─ " if depth else "", style="dim")
        text.append(plain(line, _SENTENCE))
        text.append("\n" if depth + 1 < len(diagnosis.chain) else "")
    return text if diagnosis.chain else Text("not known", style="dim")


def _actions(incident: Incident, commands: Sequence[tuple[AnyCommand, CommandState]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column()
    for command, state in commands:
        table.add_row(
            Text(plain(command.id, 40), style="dim"),
            Text(_verb(command)),
            Text(state if state != "intended" else "under way", style=_OUTCOME_STYLE[state]),
            Text(plain(command.reason, _SENTENCE)),
        )
    return table if table.row_count else Text(action_words(incident), style="dim")


def _verb(command: AnyCommand) -> str:
    match command:
        case RestartGang():
            return f"restart as attempt {command.next_attempt}"
        case Quarantine() | Release():
            return f"{type(command).__name__.lower()} {plain(command.node, 40)}"
        case CaptureEvidence():
            return "capture evidence"
        case Notify():
            return "tell a person"
        case _:
            return "stop the job"


def _nodes(incident: Incident) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for branch in incident.nodes:
        words = plain(branch.reason, _SENTENCE)
        if branch.waiting_for and branch.open:
            words += f"; waits: {plain(branch.waiting_for, _SENTENCE)}"
        since = f"{branch.state.value} since {local_time(branch.since)}"
        table.add_row(Text(plain(branch.node, 60) or "the gang"), Text(since), Text(words))
    return table


def _timeline(incident: Incident) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for entry in incident.timeline:
        table.add_row(
            Text(f"{entry.at - incident.opened_at:+.2f} s"),
            Text(entry.kind, style=KIND_STYLE[entry.kind]),
            Text(plain(entry.text, _SENTENCE)),
        )
    return table


def _evidence(incident: Incident, files: Sequence[EvidenceFile]) -> RenderableType:
    if not files:
        return Text(f"{joined(incident.evidence)}: no longer there", style="dim")
    text = Text(no_wrap=True, overflow="ellipsis")
    shown: dict[tuple[str, ...], str] = {}
    for file in files:
        text.append(f"{plain(file.path, 200)}", style="bold")
        text.append(f"  {file.size:,} bytes", style="dim")
        frames = tuple(line for line in file.lines if line.startswith(" "))
        twin = shown.get(frames) if frames else None
        if twin:
            text.append(f", the same stack as in {twin}", style="dim")
        text.append("\n")
        if file.lines and not twin and len(shown) < _STACKS:
            shown[frames] = plain(file.path, 200).rpartition("/")[2]
            text.append("".join(f"    {line}\n" for line in file.lines))
    text.rstrip()
    return text


def _bill(incident: Incident) -> RenderableType:
    bill = incident.bill
    if bill.seconds <= 0:
        return Text("the job lost no time", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(style="cyan")
    for phase in LOST_PHASES:
        seconds = bill.phases.get(phase, 0.0)
        if seconds > 0:
            hours = f"{gpu_hours(seconds * bill.gpus / 3600)} GPU-h"
            table.add_row(phase_name(phase), duration(seconds), hours, bar(seconds / bill.seconds, _BAR))
    total = Text(f"{gpu_hours(bill.gpu_hours)} GPU-h", style="bold")
    notes = [f"{bill.gpus} GPUs stood", redone_words(bill.steps_redone) if bill.steps_redone else ""]
    if bill.checkpoint_downtime_s > 0:
        notes.append(f"{duration(bill.checkpoint_downtime_s)} from the last checkpoint to it loaded again")
    table.add_row(Text("sum", style="bold"), Text(duration(bill.seconds), style="bold"), total)
    grid = Table.grid()
    grid.add_row(table)
    grid.add_row(Text("; ".join(note for note in notes if note), style="dim"))
    return grid
