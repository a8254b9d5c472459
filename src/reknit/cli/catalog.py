"""`reknit catalog`: what is known about faults, and whether a site's own rows are sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reknit.cli.errors import UsageProblem, tell
from reknit.cli.render import action_name, class_name, counted, joined, make_console, plain, print_json

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog, Row

_MOST_BYTES = 4 << 20
_SIMILAR = 5


@click.group(invoke_without_command=True)
@click.pass_context
def catalog(context: click.Context) -> None:
    """What is known about faults: list, explain, check. Without a word after it: list."""
    if context.invoked_subcommand is None:
        context.invoke(list_rows)


@catalog.command("list")
@click.argument("text", required=False, default="")
@click.option("--json", "as_object", is_flag=True, help="For a program.")
def list_rows(*, text: str = "", as_object: bool = False) -> None:
    """List all rows, or those whose code, title or class contains TEXT."""
    from reknit.catalog.load import builtin  # noqa: PLC0415 - heavy

    wanted = text.lower()
    rows = [
        row
        for row in builtin().rows
        if wanted in f"{row.code} {row.title} {class_name(row.failure_class)}".lower()
    ]
    if as_object:
        print_json({"rows": rows})
        return
    if not rows:
        click.echo(f"no row has {plain(text, 60)!r} in its code, title or class")
        return
    from rich import box  # noqa: PLC0415 - drawing is only loaded where something is drawn
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console = make_console()
    table = Table(
        "CODE", "TITLE", "CLASS", "ACTION", box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold dim"
    )
    for row in rows:
        words = (row.title, class_name(row.failure_class), action_name(row.action))
        table.add_row(Text(row.code, style="bold"), *(Text(word) for word in words))
    console.print(table)
    console.print(Text(counted(len(rows), "row"), style="dim"))


@catalog.command("show")
@click.argument("code")
@click.option("--json", "as_object", is_flag=True, help="For a program.")
def show_row(*, code: str, as_object: bool) -> None:
    """Explain one row: what it means, what is done about it, and where that is known from."""
    from reknit.catalog.load import builtin  # noqa: PLC0415 - heavy

    known = builtin()
    row = known.by_code.get(code.strip())
    if row is None:
        raise UsageProblem(_unknown(code, known))
    if as_object:
        print_json(row)
        return
    from rich.table import Table  # noqa: PLC0415 - drawing is only loaded where something is drawn
    from rich.text import Text  # noqa: PLC0415

    console = make_console()
    head = Text(row.code, style="bold")
    head.append(f"  {row.title}")
    console.print(head)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in _facts(row):
        if value:
            table.add_row(Text(name), Text(value))
    console.print(table, width=min(console.width, 110))


def _facts(row: Row) -> list[tuple[str, str]]:
    again = f"; when it comes back: {action_name(row.repeat_action)}" if row.repeat_action else ""
    clear = f"{row.clear} ({row.clear_after_s:.0f} s)" if row.clear == "time" else row.clear.replace("_", " ")
    return [
        ("class", class_name(row.failure_class)),
        ("severity", row.severity),
        ("seen by", row.sense.replace("_", " ")),
        ("blames", "nobody" if row.scope == "none" else row.scope.replace("_", " ")),
        ("what helps", action_name(row.action) + again),
        ("advice", row.advice),
        ("may alone", f"go as far as a {row.grade} action"),
        ("cleared by", clear),
        ("role", "always a symptom: something else caused it" if row.symptom else "may be the root cause"),
        ("explains", ", ".join(row.explains)),
        ("patterns", "\n".join(row.patterns)),
        ("example", row.examples[0] if row.examples else ""),
        ("source", row.source),
    ]


def _unknown(code: str, known: Catalog) -> str:
    import difflib  # noqa: PLC0415 - only wanted here

    near = [c for c in known.by_code if code.strip().lower() in c.lower()]
    near = near or difflib.get_close_matches(code.strip().lower(), known.by_code, _SIMILAR, 0.5)
    hint = (
        f"did you mean {joined(near, _SIMILAR)}?"
        if near
        else "`reknit catalog list` shows all that there are"
    )
    return f"there is no row {plain(code, 60)!r} in the catalogue: {hint}"


@catalog.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
def lint(*, files: tuple[Path, ...]) -> None:
    """Check files of rows before they are used. Each problem is one line; the status is then 2."""
    from reknit.cli.catalog_lint import problems  # noqa: PLC0415 - heavy

    count = 0
    for path in files:
        found, rows = problems(str(path), _read(path))
        count += len(found)
        for problem in found:
            tell(problem)
        if not found:
            click.echo(f"{plain(str(path), 200)}: {counted(rows, 'row')}, no problem")
    if count:
        raise UsageProblem(
            f"{counted(count, 'problem')} in {counted(len(files), 'file')}; nothing was changed"
        )


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"cannot read catalogue file {path}: {error.strerror}") from error
    if len(text) > _MOST_BYTES:
        raise UsageProblem(f"catalogue file {path} has more than {_MOST_BYTES >> 20} MiB; split it")
    return text
