"""Repeats of one code on one entity are one signal with a count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from reknit.model.signals import Signal


class Repeats:
    """Collects the signals of one feed, the first of each kind in front of its repeats."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str, str, int], Signal] = {}

    def add(self, signal: Signal) -> None:
        """Take one more in: a new one, or one more of the same."""
        known = self._first.get(signal.key)
        if known is None:
            self._first[signal.key] = signal
            return
        self._first[signal.key] = msgspec.structs.replace(
            known,
            count=known.count + signal.count,
            first_seen=min(known.first_seen, signal.first_seen),
            last_seen=max(known.last_seen, signal.last_seen),
        )

    def signals(self) -> list[Signal]:
        """What was collected, in order of first appearance."""
        return list(self._first.values())
