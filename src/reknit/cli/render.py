"""How numbers and names look to a person. Nothing here draws, and only `make_console` knows of a terminal."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reknit.sense.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from reknit.model.terms import FailureClass, Phase, VerdictAction

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_HOURS_UNTIL = 48 * _HOUR
_WIDE = 200
"""Columns where nobody looks at a terminal: a table in a pipe is for grep, and is not folded."""
_SHADES = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SPELLINGS = {
    "gpu": "GPU",
    "ecc": "ECC",
    "oom": "OOM",
    "pcie": "PCIe",
    "nvlink": "NVLink",
    "nvswitch": "NVSwitch",
    "kubernetes": "Kubernetes",
}
NOTHING = "–"


def plain(text: str, limit: int = 400) -> str:
    """Foreign text as one harmless line of at most `limit` characters: no escapes, no control codes.

    Markup of rich (`[bold]`) is left as it is, because it is shown as text: give the result to
    `rich.text.Text`, never to something that parses markup.
    """
    return clean(" ".join(text.splitlines()), limit)


def plain_lines(text: str, lines: int, width: int = 200) -> list[str]:
    """The first lines of foreign text, each harmless and at most `width` long, with its indentation."""
    shown: list[str] = []
    for line in text.splitlines()[:lines]:
        body = clean(line.expandtabs(4), width)
        indent = len(line.expandtabs(4)) - len(line.expandtabs(4).lstrip(" "))
        shown.append(" " * min(indent, 16) + body if body else "")
    return shown


def duration(seconds: float) -> str:
    """`0.32 s`, `3.2 s`, `45 s`, `4 min 10 s`, `2.3 h`, `3.1 d`."""
    seconds = max(0.0, seconds)
    if seconds < 0.995:  # noqa: PLR2004 - what would be rounded to 1.00
        return f"{seconds:.2f} s" if seconds >= 0.005 else "0 s"  # noqa: PLR2004
    if seconds < 9.95:  # noqa: PLR2004 - what would be rounded to 10.0
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        minutes, rest = divmod(whole, _MINUTE)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{whole / _HOUR:.1f} h" if whole < _HOURS_UNTIL else f"{whole / _DAY:.1f} d"


def brief(seconds: float) -> str:
    """Seconds for a narrow column: `0.05`, `2.31`, `12.4`, `340`, `2.3h`; a dot where there are none."""
    if seconds < 0.005:  # noqa: PLR2004 - what would be rounded to 0.00
        return "·"
    if seconds < 9.995:  # noqa: PLR2004
        return f"{seconds:.2f}"
    if seconds < 99.95:  # noqa: PLR2004
        return f"{seconds:.1f}"
    return f"{seconds:.0f}" if seconds < 3 * _HOUR else f"{seconds / _HOUR:.1f}h"


def clock(seconds: float) -> str:
    """Elapsed time as a clock shows it: `0:07`, `12:34`, `3:02:01`."""
    minutes, rest = divmod(max(0, int(seconds)), _MINUTE)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def local_time(at: float, now: float | None = None) -> str:
    """A moment in the reader's time zone, to the second; without the date where it is the day of `now`."""
    try:
        moment = time.localtime(at)
    except (OverflowError, ValueError, OSError):
        return NOTHING
    if now is not None and time.localtime(now)[:3] == moment[:3]:
        return time.strftime("%H:%M:%S", moment)
    return time.strftime("%Y-%m-%d %H:%M:%S", moment)


def gpu_hours(hours: float) -> str:
    """GPU-hours with as many digits as mean something: `0.012`, `3.4`, `1,250`."""
    if hours <= 0:
        return "0"
    if hours < 0.01:  # noqa: PLR2004 - 36 GPU-seconds
        return f"{hours:.4f}" if hours >= 0.0001 else "<0.0001"  # noqa: PLR2004
    if hours < 1:
        return f"{hours:.3f}"
    return f"{hours:.1f}" if hours < 1000 else f"{hours:,.0f}"  # noqa: PLR2004


def percent(part: float | None) -> str:
    """`93.4 %` for 0.934; a dash where it is not known."""
    return NOTHING if part is None else f"{100 * part:.1f} %"


def number(value: float | None) -> str:
    """A loss or the like with four significant digits."""
    if value is None:
        return NOTHING
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def step_time(seconds: float) -> str:
    """Seconds of one step: `42 ms`, `1.32 s`."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def bar(fraction: float, width: int) -> str:
    """A bar of at most `width` characters, in eighths of one; what is there at all can be seen."""
    if not math.isfinite(fraction) or fraction <= 0 or width <= 0:
        return ""
    eighths = max(1, round(min(1.0, fraction) * width * 8))
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def sparkline(values: Sequence[float], width: int, *, top: float | None = None) -> str:
    """The values as little columns; where there are more than `width`, neighbours are averaged.

    What is no finite number is left out. With `top` a column's height is the value's share of it, else
    differences are stretched to the whole height.
    """
    return "".join(_SHADES[min(7, level)] for level in _levels(values, width, 8, top))


def chart(values: Sequence[float], width: int, rows: int) -> list[str]:
    """The same in `rows` lines, the highest first; empty where there is nothing to be seen."""
    levels = _levels(values, width, 8 * rows, None)
    if not levels or rows <= 0:
        return []
    lines: list[str] = []
    for row in reversed(range(rows)):
        heights = (level + 1 - 8 * row for level in levels)
        lines.append("".join(" " if height <= 0 else _SHADES[min(8, height) - 1] for height in heights))
    return lines


def _levels(values: Sequence[float], width: int, steps: int, top: float | None) -> list[int]:
    """For each column a whole number from 0 to `steps` - 1."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width <= 0:
        return []
    points = _averaged(finite, width)
    low = min(points) if top is None else 0.0
    span = (max(points) if top is None else top) - low
    if span <= 0:
        return [steps // 2 - 1] * len(points)
    return [min(steps - 1, max(0, int((point - low) / span * steps))) for point in points]


def _averaged(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    edges = [round(i * len(values) / width) for i in range(width + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def class_name(failure_class: FailureClass) -> str:
    """A failure class as words: `GPU memory ECC`, `timeout hang symptom only`."""
    return _words(failure_class.value)


def action_name(action: VerdictAction) -> str:
    """A verdict's action as words: `reboot node`, `fix user code, do not restart`."""
    return _words(action.value.replace("_do_not", ",_do_not"))


def phase_name(phase: Phase) -> str:
    """A phase of the ledger as a word."""
    return phase.value


def _words(value: str) -> str:
    return " ".join(_SPELLINGS.get(word, word) for word in value.split("_"))


def joined(names: Iterable[str], most: int = 6) -> str:
    """`node0, node1, node2 and 14 more`."""
    every = list(names)
    shown = ", ".join(plain(name, 60) for name in every[:most])
    return shown if len(every) <= most else f"{shown} and {len(every) - most} more"


def counted(count: int, one: str, many: str = "") -> str:
    """`1 incident`, `3 incidents`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def print_json(content: Any) -> None:
    """Structs, lists and dicts as JSON for a program; all but ASCII is escaped, so a terminal is safe."""
    import json  # noqa: PLC0415 - only one command in ten wants it

    import click  # noqa: PLC0415
    import msgspec  # noqa: PLC0415

    click.echo(json.dumps(msgspec.to_builtins(content), indent=2, ensure_ascii=True))


def make_console() -> Console:
    """The standard output to draw on. Nothing is parsed as markup or highlighted by guess."""
    import sys  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415 - drawing is only loaded where something is drawn

    forgive_letters(sys.stdout)
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=_WIDE)
    return console


def forgive_letters(stream: object) -> None:
    """Let a terminal that has no such letter show "?" instead of ending the command."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
