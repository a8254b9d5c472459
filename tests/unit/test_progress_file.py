"""Reading a progress file: what is whole is told, what is torn is passed over, and nothing makes it raise."""

from __future__ import annotations

import math
from binascii import crc32
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reknit import progress as layout
from reknit.model.progress import RankProgress
from reknit.sense.progress_file import decode

HOT = {"noted": 3, "step": 10, "step_at": 1.7e9 + 10, "loss": 2.5, "has_loss": 1}
COLD = {
    "saved_step": 5,
    "saved_at": 1.7e9,
    "loaded_step": 4,
    "loaded_at": 1.7e9 + 5,
    "phase_at": 1.7e9 + 9,
    "alive_at": 1.7e9 + 1,
    "phases": 1,
    "phase": b"train",
}


def block(sequence: int, **other: float | bytes) -> bytes:
    """One block as the writer would write it, with some values other than the usual."""
    cold = layout.COLD.pack(*(other.get(name, usual) for name, usual in COLD.items()))
    both = cold + layout.HOT.pack(sequence, *(other.get(name, usual) for name, usual in HOT.items()))
    return both + layout.CHECK.pack(crc32(both))


def record(*blocks: bytes, durations: tuple[float, ...] = (0.1, 0.2, 0.3), phase: float = 7.5) -> bytes:
    """A file with these blocks, durations from the first place on, and one phase."""
    data = bytearray(layout.SIZE)
    layout.HEADER.pack_into(data, 0, layout.MAGIC, layout.VERSION, 1)
    for at, packed in zip(layout.BLOCKS_AT, blocks, strict=False):
        data[at : at + len(packed)] = packed
    for place, seconds in enumerate(durations):
        layout.DURATION.pack_into(data, layout.DURATIONS_AT + 8 * place, seconds)
    layout.PHASE.pack_into(data, layout.PHASES_AT, b"train", phase)
    return bytes(data)


WHOLE = record(block(1, step=9, noted=2), block(2))


def test_the_later_block_is_told() -> None:
    """Both blocks are whole: the one with the higher sequence number counts, wherever it lies."""
    assert decode(WHOLE, 0) == (
        RankProgress(
            step=10,
            step_at=1.7e9 + 10,
            loss=2.5,
            durations=(0.1, 0.2, 0.3),
            saved_step=5,
            saved_at=1.7e9,
            loaded_step=4,
            loaded_at=1.7e9 + 5,
            phase="train",
            phase_at=1.7e9 + 9,
            phase_seconds={"train": 7.5},
            alive_at=1.7e9 + 1,
        ),
        3,
    )
    assert decode(record(block(4, step=11), block(3)), 0) is not None


def test_a_torn_block_is_passed_over() -> None:
    """A kill in the middle of a write costs one step, not the record."""
    torn = bytearray(WHOLE)
    torn[layout.BLOCKS_AT[1] + 90] ^= 0xFF
    decoded = decode(bytes(torn), 0)
    assert decoded is not None
    assert (decoded[0].step, decoded[1]) == (9, 2)


def test_two_torn_blocks_are_nothing() -> None:
    """Then there is nothing to be believed."""
    torn = bytearray(WHOLE)
    for at in layout.BLOCKS_AT:
        torn[at + 90] ^= 0xFF
    assert decode(bytes(torn), 0) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(layout.SIZE),
        WHOLE[:-1],
        WHOLE.replace(layout.MAGIC, b"REKNITXX"),
        WHOLE[:8] + b"\x02" + WHOLE[9:],
        record(block(1, step=-2)),
        record(block(1, step=2**60)),
        record(block(1, step_at=math.nan)),
        record(block(1, step_at=-1.0)),
        record(block(1, step_at=math.inf)),
        record(block(1, saved_step=-7)),
        record(block(1, phases=17)),
        record(block(1), durations=(0.1, math.nan, 0.3)),
        record(block(1), durations=(0.1, -0.2, 0.3)),
        record(block(1), durations=(0.1, 1e12, 0.3)),
        record(block(1), phase=math.nan),
    ],
)
def test_what_cannot_be_is_nothing(data: bytes) -> None:
    """Short, foreign, of another version, or with values that no script can have: nothing is told."""
    assert decode(data, 0) is None


def test_an_unwritten_second_block_is_no_harm() -> None:
    """Right after the first write only one block is there."""
    assert decode(record(block(1)), 0) is not None


@pytest.mark.parametrize(("loss", "has_loss"), [(2.5, 0), (math.nan, 1), (math.inf, 1)])
def test_a_loss_is_told_only_where_it_is_a_number(loss: float, has_loss: int) -> None:
    """Not given, or not finite: unknown."""
    decoded = decode(record(block(1, loss=loss, has_loss=has_loss)), 0)
    assert decoded is not None
    assert decoded[0].loss is None


@pytest.mark.parametrize(
    ("seen", "told"),
    [(0, (0.1, 0.2, 0.3)), (2, (0.3,)), (3, ()), (99, (0.1, 0.2, 0.3)), (-5, (0.1, 0.2, 0.3))],
)
def test_only_new_durations_are_told(seen: int, told: tuple[float, ...]) -> None:
    """Each is told once; a count that has fallen means that the file was begun anew."""
    decoded = decode(WHOLE, seen)
    assert decoded is not None
    assert decoded[0].durations == told


def test_the_ring_goes_round() -> None:
    """Of more than 64 new durations the last 64 are told, oldest first."""
    noted = 100
    ring = tuple(float(64 + place if place < noted - 64 else place) for place in range(64))
    decoded = decode(record(block(1, noted=noted), durations=ring), 10)
    assert decoded is not None
    assert decoded[0].durations == tuple(float(number) for number in range(36, 100))
    assert all(later - earlier == 1.0 for earlier, later in pairwise(decoded[0].durations))


@given(st.binary(max_size=2 * layout.SIZE), st.integers())
def test_any_bytes(data: bytes, seen: int) -> None:
    """Rubbish is nothing, and no surprise."""
    assert decode(data, seen) is None


@given(
    st.lists(st.tuples(st.integers(0, layout.SIZE - 1), st.integers(0, 255)), max_size=20),
    st.integers(0, 2 * layout.SIZE),
    st.integers(-(2**70), 2**70),
)
def test_any_damage(changes: list[tuple[int, int]], length: int, seen: int) -> None:
    """Whatever is told of a damaged record is something that a script can have said."""
    data = bytearray(WHOLE)
    for at, value in changes:
        data[at] = value
    decoded = decode(bytes(data[:length]), seen)
    if decoded is not None:
        told, noted = decoded
        assert (told.step, noted) in [(9, 2), (10, 3)]
        assert len(told.durations) <= 64
        assert all(0 <= seconds <= 1e9 for seconds in told.durations)


FIELDS = {
    **dict.fromkeys(("noted", "has_loss", "phases"), st.integers(0, 20) | st.integers(0, 2**64 - 1)),
    **dict.fromkeys(("step", "saved_step", "loaded_step"), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys(("step_at", "saved_at", "loaded_at", "phase_at", "alive_at", "loss"), st.floats()),
    "phase": st.binary(max_size=24),
}


@given(st.fixed_dictionaries({}, optional=FIELDS), st.integers(0, 100))
def test_any_values_with_a_good_checksum(values: dict[str, float | bytes], seen: int) -> None:
    """A writer gone mad: nothing raises, and nothing that is not finite is told."""
    decoded = decode(record(block(7, **values)), seen)
    if decoded is not None:
        told = decoded[0]
        assert -1 <= told.step <= 2**53
        assert 0 <= told.step_at <= 1e11
        assert told.loss is None or math.isfinite(told.loss)
