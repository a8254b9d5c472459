"""Everything that a diagnosis may look at, in one frozen struct."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reknit.catalog.row import Catalog, Row
from reknit.model.entities import RankPlacement
from reknit.model.signals import Signal

if TYPE_CHECKING:
    from collections.abc import Iterable


class Candidate(msgspec.Struct, frozen=True):
    """A signal and what the catalogue knows of its code."""

    signal: Signal
    row: Row


class Evidence(msgspec.Struct, frozen=True):
    """The signals of one incident with the gang that they concern.

    Attributes:
        earlier: (signature, step) of the failures that this incident has seen before this one.
        job: the gang's name, "" where the incident concerns no job.
        ranks: the gang's size.
    """

    signals: tuple[Signal, ...]
    catalog: Catalog
    placement: tuple[RankPlacement, ...] = ()
    job: str = ""
    ranks: int = 0
    earlier: tuple[tuple[str, int], ...] = ()

    def candidates(self) -> list[Candidate]:
        """Signals that could be a cause or a symptom: those whose row is more than information."""
        return [
            Candidate(signal, row)
            for signal in self.signals
            if (row := self.catalog.get(signal.code)).severity != "info" and signal.joined
        ]

    def node_of(self, rank: int | None) -> str:
        """The node of a rank, "" where unknown."""
        return next((place.node for place in self.placement if place.rank == rank), "")


def distinct_ranks(candidates: Iterable[Candidate]) -> list[int]:
    """The ranks that these signals speak of, in order."""
    return sorted({c.signal.rank for c in candidates if c.signal.rank is not None})
