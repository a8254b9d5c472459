"""How a rank ended -> a signal."""

from __future__ import annotations

import signal as _names
from typing import TYPE_CHECKING

from reknit.model.entities import Entity
from reknit.model.signals import Signal
from reknit.model.terms import Trust

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog
    from reknit.model.events import RankExited

_SHELL_SIGNAL_BASE = 128
"""A shell reports a child that died of signal N as status 128 + N (POSIX.1-2017, shell command language 2.8.2)."""


def exit_signal(event: RankExited, catalog: Catalog, node: str) -> Signal | None:
    """The signal of a rank that ended, None where its end is no failure (status 0, or Reknit had asked for it)."""
    if event.asked or event.code == 0:
        return None
    code, words = _code_and_words(event, catalog)
    return Signal(
        code=code,
        entity=Entity("rank", str(event.rank)),
        first_seen=event.at,
        last_seen=event.at,
        source="process",
        trust=Trust.NODE_SERVICE,
        node=node,
        job=event.job,
        attempt=event.attempt,
        rank=event.rank,
        excerpt=f"rank {event.rank} {words}",
        attributes={"status": str(event.code if event.signal is None else -event.signal)},
    )


def _code_and_words(event: RankExited, catalog: Catalog) -> tuple[str, str]:
    if event.signal is not None:
        return _specific(catalog, "process.signal", event.signal), f"was ended by {signal_name(event.signal)}"
    if event.code is None:
        return "process.vanished", "is gone and nobody saw how it ended"
    return _specific(catalog, "process.exit", event.code), f"exited with status {event.code}"


def _specific(catalog: Catalog, prefix: str, number: int) -> str:
    exact = f"{prefix}.{number}"
    return exact if exact in catalog.by_code else prefix


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal N` for a number without a name."""
    try:
        return _names.Signals(number).name
    except ValueError:
        return f"signal {number}"
