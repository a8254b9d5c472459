"""One picture of a run: how the lines of a terminal are shared out, and what stands in each part."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from reknit.cli.incident_table import state_style
from reknit.cli.incident_words import action_words, blamed, state_words
from reknit.cli.live_nodes import LEGEND, node_rows
from reknit.cli.render import (
    chart,
    class_name,
    clock,
    counted,
    duration,
    gpu_hours,
    number,
    percent,
    plain,
    sparkline,
    step_time,
)
from reknit.cli.timeline_style import KIND_STYLE
from reknit.model.terms import Phase

if TYPE_CHECKING:
    from rich.console import RenderableType

    from reknit.model.incidents import Incident, TimelineEntry
    from reknit.model.state import EngineState, JobView

_FRAME = 2
"""Lines that a panel's border takes."""
_HEAD = 2 + _FRAME
_KIND_WIDTH = 9
_WRAP = 2
"""Lines that one entry of a timeline may take; three where there is plenty of room."""
_PLENTY = 18
_MANY = 60
"""Entries of a story of which at most the end is drawn: no terminal shows more."""
_LOW, _HIGH, _FEW = 3, 10, 8
"""Lines of a curve: fewer say nothing, more say no more. And losses that make one."""


@dataclass
class Scene:
    """What is to be drawn. `now` is the engine's time at the last update; losses are oldest first."""

    title: str
    state: EngineState
    now: float
    spares: int = 0
    losses: deque[float] = field(default_factory=deque[float])
    notice: str = ""


def job_of(state: EngineState) -> JobView | None:
    """The job that a picture is about: the first that has not ended, else the last."""
    jobs = list(state.jobs.values())
    return next((job for job in jobs if job.state != "ended"), jobs[-1] if jobs else None)


def frame(scene: Scene, width: int, height: int, *, ahead: float = 0.0) -> RenderableType:
    """The whole picture in exactly `height` lines. `ahead` is the time since the last update, in seconds."""
    job = job_of(scene.state)
    parts: list[RenderableType] = []
    left = height - (1 if scene.notice else 0)
    parts.append(_head(scene, job, width, scene.now + ahead))
    left -= _HEAD
    incident, others = _chosen(scene.state)
    wanted = max(1, len(node_rows(scene.state, job, width - 4, max(1, left // 3))))
    if left - wanted - _FRAME <= _FRAME:
        parts.append(_nodes(scene, job, width, max(1, left - _FRAME)))
        left = 0
    else:
        parts.append(_nodes(scene, job, width, wanted))
        left -= wanted + _FRAME
    if left:
        earlier = min(len(others), max(2, left // 4))
        if left - earlier - _FRAME < 3 * _FRAME:
            earlier = 0
        left -= earlier + _FRAME if earlier else 0
        left -= _add_curve(parts, scene, width, left - _FRAME - _story_lines(incident, width))
        parts.append(
            _incident(incident, width, max(1, left - _FRAME))
            if incident
            else _calm(job, max(1, left - _FRAME))
        )
        if earlier:
            parts.append(_earlier(others, earlier))
    if scene.notice:
        parts.append(_cut(Text(f" » {plain(scene.notice, 600)}", style="bold"), width))
    return Group(*parts)


def _head(scene: Scene, job: JobView | None, width: int, now: float) -> Panel:
    inner = width - 4
    title = Text(f" {scene.title} ", style="bold")
    if job is None:
        first, second = (
            Text("waiting for the job", style="dim"),
            Text(f"{counted(scene.spares, 'spare node')}", "dim"),
        )
        return Panel(Group(first, second), title=title, title_align="left", box=box.ROUNDED, height=_HEAD)
    first = Text()
    first.append(plain(job.spec.id, 30), style="bold")
    word, style = _job_word(scene.state, job)
    first.append(f"  {word}", style=style)
    for name, value in (
        ("attempt", str(job.attempt)),
        ("step", f"{job.attempt_high:,}" if job.attempt_high >= 0 else "–"),
        ("loss", number(job.loss)),
        ("ETTR", percent(_ettr(job, now))),
    ):
        first.append(f"  {name} ", style="dim")
        first.append(value, style="bold")
    elapsed = clock((job.account.settled_at if job.account.ended else now) - job.account.started_at)
    first.truncate(max(1, inner - len(elapsed) - 1), overflow="ellipsis", pad=True)
    first.append(f" {elapsed}", style="bold cyan")
    return Panel(
        Group(first, _curves(scene, job, inner)),
        title=title,
        title_align="left",
        box=box.ROUNDED,
        height=_HEAD,
    )


def _curves(scene: Scene, job: JobView, width: int) -> Text:
    half = width // 2
    steps = job.pace.steps
    text = Text()
    median = sorted(steps)[len(steps) // 2] if steps else 0.0
    label = f"step time {step_time(median)} " if steps else "step time – "
    text.append(label, style="dim")
    text.append(sparkline(steps, half - len(label) - 2, top=2 * median), style="blue")
    text.truncate(half, pad=True)
    label = "loss "
    text.append(label, style="dim")
    text.append(sparkline(list(scene.losses), width - half - len(label)), style="magenta")
    return _cut(text, width)


def _job_word(state: EngineState, job: JobView) -> tuple[str, str]:
    if job.result:
        return job.result, {"succeeded": "bold green", "stopped": "bold red"}.get(job.result, "bold yellow")
    for incident in state.open_incidents():
        if incident.job is not None and incident.job.open and incident.job.job == job.spec.id:
            return incident.job.state.value, "bold yellow"
    if job.state != "running":
        return job.state, "yellow"
    return ("training", "bold green") if job.attempt_high >= 0 else ("starting", "bold blue")


def _ettr(job: JobView, now: float) -> float | None:
    """With the time that is not booked yet: while training it is most likely productive, else it is lost."""
    account = job.account
    productive = account.phases.get(Phase.PRODUCTIVE, 0.0)
    open_s = 0.0 if account.ended else max(0.0, now - account.settled_at)
    wall = account.settled_at - account.started_at + open_s
    if account.phase == Phase.PRODUCTIVE:
        productive += open_s
    return productive / wall if wall > 0 else None


def _nodes(scene: Scene, job: JobView | None, width: int, rows: int) -> Panel:
    lines = node_rows(scene.state, job, width - 4, rows)
    return Panel(
        Group(*(_cut(line, width - 4) for line in lines)) if lines else Text("no node yet", style="dim"),
        title=Text(" nodes ", style="bold"),
        title_align="left",
        subtitle=LEGEND if len(LEGEND) <= width - 6 else None,
        subtitle_align="right",
        box=box.ROUNDED,
        height=rows + _FRAME,
    )


def _chosen(state: EngineState) -> tuple[Incident | None, list[Incident]]:
    """The incident that matters now (a broken job's, else where something happened last), and the others."""
    incidents = list(state.incidents.values())
    if not incidents:
        return None, []
    broken = [i for i in state.open_incidents() if i.job is not None and i.job.open]
    now = (
        broken[-1]
        if broken
        else max(incidents, key=lambda i: i.timeline[-1].at if i.timeline else i.opened_at)
    )
    return now, [incident for incident in reversed(incidents) if incident is not now]


def _add_curve(parts: list[RenderableType], scene: Scene, width: int, spare: int) -> int:
    """Where nothing else needs the room, let the loss be looked at. Gives the lines taken."""
    rows = min(_HIGH, spare - _FRAME)
    losses = [loss for loss in scene.losses if math.isfinite(loss)]
    if rows < _LOW or len(losses) < _FEW:
        return 0
    lines = [Text(line, style="magenta", no_wrap=True) for line in chart(losses, width - 4, rows)]
    title = Text(" loss ", style="bold")
    title.append(f"{number(max(losses))} … {number(min(losses))} ", style="dim")
    parts.append(Panel(Group(*lines), title=title, title_align="left", box=box.ROUNDED, height=rows + _FRAME))
    return rows + _FRAME


def _calm(job: JobView | None, lines: int) -> Panel:
    text = Text("nothing has gone wrong so far" if job is not None else "", style="dim")
    title = Text(" incidents ", style="bold")
    return Panel(text, title=title, title_align="left", box=box.ROUNDED, height=lines + _FRAME)


def _story_lines(incident: Incident | None, width: int) -> int:
    """The room that the whole story would take, or a few lines of calm."""
    if incident is None:
        return 1
    return sum(len(_entry(entry, 0.0, width - 4, _WRAP)) for entry in incident.timeline[-_MANY:]) + _WRAP


def _incident(incident: Incident, width: int, lines: int) -> Panel:
    inner = width - 4
    title = Text(f" {plain(incident.id, 20)} ", style="bold")
    title.append(plain(incident.title, 200))
    title.append(" ")
    title.truncate(width - 6, overflow="ellipsis")
    facts = (
        [class_name(incident.diagnosis.failure_class), f"blamed: {blamed(incident)}"]
        if incident.diagnosis
        else []
    )
    below = Text(f" {' · '.join((state_words(incident), *facts, action_words(incident)))} ")
    below.truncate(width - 6, overflow="ellipsis")
    style = state_style(incident)
    return Panel(
        Group(*_story(incident, inner, lines)),
        title=title,
        title_align="left",
        subtitle=below,
        subtitle_align="right",
        border_style=style,
        box=box.ROUNDED,
        height=lines + _FRAME,
    )


def _story(incident: Incident, width: int, lines: int) -> list[Text]:
    """The end of the timeline, as much as there is room for."""
    shown: list[Text] = []
    for entry in reversed(incident.timeline[-_MANY:]):
        wrapped = _entry(entry, incident.opened_at, width, _WRAP + (lines >= _PLENTY))
        if len(shown) + len(wrapped) > lines:
            break
        shown = [*wrapped, *shown]
    return shown


def _entry(entry: TimelineEntry, since: float, width: int, most: int) -> list[Text]:
    head = f"{_offset(entry.at - since):>9}  {entry.kind:<{_KIND_WIDTH}}  "
    room = max(10, width - len(head))
    pieces = _wrap(plain(entry.text, 500), room, most)
    result: list[Text] = []
    for index, piece in enumerate(pieces):
        line = Text()
        if index == 0:
            line.append(head[:11], style="dim")
            line.append(head[11:], style=KIND_STYLE[entry.kind])
        else:
            line.append(" " * len(head))
        line.append(piece)
        result.append(_cut(line, width))
    return result


def _offset(seconds: float) -> str:
    return f"+{seconds:.2f} s" if seconds < 1000 else f"+{duration(seconds)}"  # noqa: PLR2004


def _wrap(text: str, room: int, most: int) -> list[str]:
    """At most `most` lines broken at spaces, the last cut with an ellipsis."""
    lines: list[str] = []
    while text and len(lines) < most:
        if len(text) <= room:
            lines.append(text)
            break
        if len(lines) == most - 1:
            lines.append(text[: room - 1] + "…")
            break
        at = text.rfind(" ", room // 2, room + 1)
        at = at if at > 0 else room
        lines.append(text[:at])
        text = text[at:].lstrip()
    return lines or [""]


def _earlier(others: list[Incident], lines: int) -> Panel:
    rows: list[Text] = []
    for incident in others[:lines]:
        row = Text(no_wrap=True, overflow="ellipsis")
        row.append(f"{plain(incident.id, 20):<7}", style="bold")
        row.append(f" {state_words(incident)}", style=state_style(incident))
        if incident.bill.seconds > 0:
            row.append(
                f"  {duration(incident.bill.seconds)}, {gpu_hours(incident.bill.gpu_hours)} GPU-h",
                style="cyan",
            )
        row.append(f"  {plain(incident.title, 120)}")
        row.append(f"  {action_words(incident)}", style="dim")
        rows.append(row)
    title = Text(" earlier ", style="bold")
    if len(others) > lines:
        title.append(f"({lines} of {len(others)}) ", style="dim")
    return Panel(Group(*rows), title=title, title_align="left", box=box.ROUNDED, height=lines + _FRAME)


def _cut(text: Text, width: int) -> Text:
    text.no_wrap = True
    text.overflow = "ellipsis"
    text.truncate(max(1, width), overflow="ellipsis")
    return text
