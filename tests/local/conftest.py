"""A guard that no process outlives its test."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from local.bench import Bench
from reknit.catalog.load import builtin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reknit.catalog.row import Catalog


@pytest.fixture(scope="session")
def catalog() -> Catalog:
    """The one that ships."""
    return builtin()


@pytest.fixture
def bench(tmp_path: Path, catalog: Catalog) -> Iterator[Bench]:
    """Kills, at the end, whatever a failed test has left."""
    made = Bench(tmp_path / "state", catalog)
    yield made
    for process in made.alive():
        os.kill(process.pid, signal.SIGKILL)
