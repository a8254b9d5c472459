"""Whether rows of a site's own are sound: more than that they can be read."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import re2

from reknit.catalog.load import CatalogError, builtin, merge, parse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reknit.catalog.row import ProgressRow, Row


def problems(name: str, text: bytes) -> tuple[list[str], int]:
    """Sentences about one file, and how many rows it holds (0 where it cannot be read)."""
    try:
        file = parse(name, text)
        merge([(name, file)])
    except CatalogError as error:
        return [str(error)], 0
    known = {row.code for row in (*builtin().rows, *file.row)}
    found = [
        f"catalogue file {name}, row {row.code}: {what}" for row in file.row for what in _row(row, known)
    ]
    found += [
        f"catalogue file {name}, row {row.code}: {what}" for row in file.progress for what in _progress(row)
    ]
    return found, len(file.row) + len(file.progress)


def _row(row: Row, known: set[str]) -> Iterator[str]:
    if row.patterns and not row.examples:
        yield "it has patterns but no example; add a line that must match"
    yield from _lines(row.patterns, row.examples, row.counter_examples)
    if row.clear == "time" and row.clear_after_s <= 0:
        yield "it is cleared by time, but `clear_after_s` does not say after how much"
    for glob in row.explains:
        if not any(fnmatchcase(code, glob) for code in known):
            yield f"it explains {glob!r}, which fits no code that there is"


def _progress(row: ProgressRow) -> Iterator[str]:
    if "step" not in re2.compile(row.pattern).groupindex:
        yield "its pattern has no group named `step`"
    yield from _lines((row.pattern,), row.examples, row.counter_examples)


def _lines(
    patterns: Iterable[str], examples: Iterable[str], counter_examples: Iterable[str]
) -> Iterator[str]:
    compiled = [re2.compile(pattern) for pattern in patterns]
    for line in examples:
        if compiled and not any(pattern.search(line) for pattern in compiled):
            yield f"its example {line!r} fits none of its patterns"
    for line in counter_examples:
        if any(pattern.search(line) for pattern in compiled):
            yield f"its counter-example {line!r} fits one of its patterns"
