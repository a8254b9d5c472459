"""The nodes of a picture: one cell each, with a sign for every rank that needs no colour to be told apart."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from reknit.cli.render import plain

if TYPE_CHECKING:
    from reknit.model.state import EngineState, JobView

TRAINING, STARTING, DEAD, STOPPED, SLOW, DONE, ENDED = "●", "◌", "✕", "‖", "◐", "✓", "·"
_STYLE = {
    TRAINING: "green",
    STARTING: "blue",
    DEAD: "bold red",
    STOPPED: "bold yellow",
    SLOW: "yellow",
    DONE: "green",
    ENDED: "dim",
}
LEGEND = Text(" ● training ◌ starting ✕ dead ‖ stopped ◐ slow ", style="dim")
_FROZEN = frozenset({"rank.stopped", "rank.traced", "rank.disk_wait", "rank.no_cpu", "rank.stall"})
"""Codes that speak of a rank that has stopped while its process is there."""
_SIGNS = 16
"""Ranks of a node that are drawn one by one; more are counted."""
_GAP = 2
_SPARE = "spare"


class _Cell(NamedTuple):
    """A node, and how much it deserves a look: cells in trouble come first where there is no room for all."""

    text: Text
    quiet: bool


def node_rows(state: EngineState, job: JobView | None, width: int, most: int) -> list[Text]:
    """The grid in at most `most` lines of `width` columns."""
    cells = _cells(state, job)
    if not cells or width <= 0:
        return []
    wide = max(cell.text.cell_len for cell in cells)
    across = max(1, (width + _GAP) // (wide + _GAP))
    room = across * max(1, most)
    if len(cells) > room:
        loud = [cell for cell in cells if not cell.quiet]
        shown = [*loud, *(cell for cell in cells if cell.quiet)][: room - 1]
        rest = Text(f"+{len(cells) - len(shown)} more", style="dim")
        cells = [*shown, _Cell(rest, quiet=True)]
    rows: list[Text] = []
    for start in range(0, len(cells), across):
        row = Text(no_wrap=True)
        for cell in cells[start : start + across]:
            text = cell.text.copy()
            text.pad_right(wide - text.cell_len + _GAP)
            row.append_text(text)
        rows.append(row)
    return rows


def _cells(state: EngineState, job: JobView | None) -> list[_Cell]:
    out = state.out_of_service()
    suspects = _suspects(state)
    frozen = _frozen(state, job)
    used = job.nodes if job is not None else ()
    names = list(dict.fromkeys((*used, *sorted(state.nodes))))
    width = max((len(plain(name, 24)) for name in names), default=0)
    return [
        _cell(plain(name, 24).ljust(width), name, _status(name, out, suspects, job), job, frozen)
        for name in names
    ]


def _status(name: str, out: dict[str, str], suspects: set[str], job: JobView | None) -> str:
    if name in out:
        return "quarantined"
    if name in suspects:
        return "suspect"
    if job is not None and name in job.slow:
        return "slow"
    return "" if job is not None and name in job.nodes else _SPARE


def _cell(label: str, name: str, status: str, job: JobView | None, frozen: set[int]) -> _Cell:
    style = {"quarantined": "bold red", "suspect": "bold yellow", "slow": "yellow", _SPARE: "dim cyan"}.get(
        status, "bold"
    )
    text = Text(label, style=style)
    signs = [_sign(job, rank, status, frozen) for rank in job.ranks_on(name)] if job is not None else []
    if signs:
        text.append(" ")
    for sign, group in groupby(signs):
        count = len(list(group))
        text.append(
            sign * count if len(signs) <= _SIGNS else f"{sign}×{count} ", style=f"not bold {_STYLE[sign]}"
        )
    if status:
        text.append(f" {status}", style=f"not bold {style}")
    return _Cell(text, quiet=status in ("", _SPARE) and not {DEAD, STOPPED} & set(signs))


def _sign(job: JobView | None, rank: int, status: str, frozen: set[int]) -> str:
    view = job.ranks.get(rank) if job is not None else None
    if job is None or view is None:
        return ENDED
    if view.exited:
        return DONE if view.ok else ENDED if view.asked else DEAD
    if job.state != "running":
        return ENDED
    if rank in frozen:
        return STOPPED
    if view.progress is None or view.progress.step < 0:
        return STARTING
    return SLOW if status == "slow" else TRAINING


def _suspects(state: EngineState) -> set[str]:
    """Nodes that an open incident would rather not use, or would quarantine if it might."""
    nodes: set[str] = set()
    for incident in state.open_incidents():
        if incident.job is not None and incident.job.open:
            nodes.update(incident.job.avoid)
        nodes.update(branch.node for branch in incident.nodes if branch.state == "wanted")
    return nodes


def _frozen(state: EngineState, job: JobView | None) -> set[int]:
    if job is None:
        return set()
    return {
        signal.rank
        for incident in state.open_incidents()
        if incident.job is not None and incident.job.open
        for signal in incident.signals
        if signal.rank is not None and signal.attempt == job.attempt and signal.code in _FROZEN
    }
