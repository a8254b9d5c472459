"""Reads catalogue text into rows and says in a sentence what is wrong with it. Text comes in as bytes: no I/O here
except the files that ship with the package."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import msgspec
import re2

from reknit.catalog.row import Catalog, CatalogFile

if TYPE_CHECKING:
    from collections.abc import Iterable


class CatalogError(ValueError):
    """A catalogue file that cannot be used. The message names the file, the row and what to do."""


def parse(name: str, text: bytes) -> CatalogFile:
    """One file's rows. Raises CatalogError where the text is no TOML, a field is unknown or a pattern is not RE2."""
    try:
        file = msgspec.toml.decode(text, type=CatalogFile)
    except msgspec.MsgspecError as error:
        raise CatalogError(f"catalogue file {name}: {error}") from error
    for row in file.row:
        for pattern in row.patterns:
            _check_pattern(name, row.code, pattern)
    for line in file.progress:
        _check_pattern(name, line.code, line.pattern)
    return file


def merge(files: Iterable[tuple[str, CatalogFile]]) -> Catalog:
    """One catalogue of several files; a later file's row replaces an earlier one with the same code.

    Raises CatalogError where one file holds the same code twice.
    """
    rows: dict[str, object] = {}
    progress: dict[str, object] = {}
    for name, file in files:
        for store, items in ((rows, file.row), (progress, file.progress)):
            codes = [item.code for item in items]
            twice = next((code for code in codes if codes.count(code) > 1), None)
            if twice:
                raise CatalogError(f"catalogue file {name}: code {twice!r} stands there twice; keep one row")
            store.update({item.code: item for item in items})
    return Catalog(rows=tuple(rows.values()), progress=tuple(progress.values()))  # type: ignore[arg-type]


def builtin() -> Catalog:
    """The catalogue that ships with Reknit."""
    folder = resources.files("reknit.catalog")
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return merge((name, parse(name, folder.joinpath(name).read_bytes())) for name in names)


def _check_pattern(file: str, code: str, pattern: str) -> None:
    try:
        re2.compile(pattern)
    except re2.error as error:
        raise CatalogError(
            f"catalogue file {file}, row {code}: pattern {pattern!r} is not RE2: {error}"
        ) from error
