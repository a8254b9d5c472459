"""Reads the record that `reknit.progress` keeps in a rank's progress file: bytes in, RankProgress out.

A reader copies the whole file (2 KiB) with one read. Whatever a write or a kill in the middle of it has torn
fails the checksum of its block, and the other block, one write older, is taken.
"""

from __future__ import annotations

from binascii import crc32
from math import isfinite
from typing import NamedTuple

from reknit import progress as layout
from reknit.model.progress import RankProgress

_LATEST = 1e11
"""No time of this clock is later: the year 5138."""
_LONGEST = 1e9
"""No step or phase lasts longer: 31 years."""


class _Block(NamedTuple):
    """One block's fields, in the order in which they are packed."""

    saved_step: int
    saved_at: float
    loaded_step: int
    loaded_at: float
    phase_at: float
    alive_at: float
    phases: int
    phase: bytes
    sequence: int
    noted: int
    step: int
    step_at: float
    loss: float
    has_loss: int


def decode(record: bytes, seen: int) -> tuple[RankProgress, int] | None:
    """What a progress file says, and how many step durations its writer has noted so far.

    `seen` is that number as this function gave it last for the same file, 0 before; the durations in the
    answer are those noted since, at most the last 64. A number that has fallen means that another process has
    begun the file anew.

    None where there is nothing to be read: not yet written, short, of another version, torn, or rubbish.
    Never raises. A loss that is not finite is given as None: the journal, which is JSON, could not give it
    back.
    """
    if len(record) < layout.SIZE:
        return None
    magic, version, _process = layout.HEADER.unpack_from(record, 0)
    if magic != layout.MAGIC or version != layout.VERSION:
        return None
    whole = [block for at in layout.BLOCKS_AT if (block := _block(record, at)) is not None]
    if not whole:
        return None
    block = max(whole, key=lambda b: b.sequence)
    durations = _durations(record, block.noted, seen)
    phases = _phases(record, block.phases)
    if durations is None or phases is None:
        return None
    has_loss = block.has_loss == 1 and isfinite(block.loss)
    return (
        RankProgress(
            step=block.step,
            step_at=block.step_at,
            loss=block.loss if has_loss else None,
            durations=durations,
            saved_step=block.saved_step,
            saved_at=block.saved_at,
            loaded_step=block.loaded_step,
            loaded_at=block.loaded_at,
            phase=_name(block.phase),
            phase_at=block.phase_at,
            phase_seconds=phases,
            alive_at=block.alive_at,
        ),
        block.noted,
    )


def _block(record: bytes, at: int) -> _Block | None:
    """The block there, None where its checksum or a value of it is wrong."""
    end = at + layout.COLD.size + layout.HOT.size
    (check,) = layout.CHECK.unpack_from(record, end)
    if crc32(record[at:end]) != check:
        return None
    cold = layout.COLD.unpack_from(record, at)
    block = _Block(*cold, *layout.HOT.unpack_from(record, at + layout.COLD.size))
    times = (block.step_at, block.saved_at, block.loaded_at, block.phase_at, block.alive_at)
    steps = (block.step, block.saved_step, block.loaded_step)
    sound = (
        all(isfinite(time) and 0.0 <= time <= _LATEST for time in times)
        and all(-1 <= step <= layout.LARGEST_STEP for step in steps)
        and block.phases <= layout.PHASES
    )
    return block if sound else None


def _durations(record: bytes, count: int, seen: int) -> tuple[float, ...] | None:
    """The seconds noted since `seen`, oldest first; None where one of them cannot be."""
    begin = seen if 0 <= seen <= count else 0
    found: list[float] = []
    for number in range(max(begin, count - layout.DURATIONS), count):
        at = layout.DURATIONS_AT + layout.DURATION.size * (number % layout.DURATIONS)
        (seconds,) = layout.DURATION.unpack_from(record, at)
        if not 0.0 <= seconds <= _LONGEST:  # false for NaN as well
            return None
        found.append(seconds)
    return tuple(found)


def _phases(record: bytes, count: int) -> dict[str, float] | None:
    """Seconds by phase as of its last end, so without what is going on; None where that cannot be."""
    phases: dict[str, float] = {}
    for place in range(count):
        name, seconds = layout.PHASE.unpack_from(record, layout.PHASES_AT + layout.PHASE.size * place)
        if not 0.0 <= seconds <= _LONGEST:
            return None
        phases[_name(name)] = seconds
    return phases


def _name(packed: bytes) -> str:
    return packed.rstrip(b"\0").decode("utf-8", "replace")
