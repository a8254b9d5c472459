"""The same events give the same commands and the same end, also through a snapshot in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from property.parts import CATALOG
from reknit.engine import Engine
from reknit.model.state import EngineState, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from property.parts import Entry


def replay_is_the_same(log: Sequence[Entry], cut: int | None = None) -> bytes:
    """Handle the events again, and once more with a snapshot before the `cut`-th (the middle one, where None).
    Gives the end state."""
    middle = len(log) // 2 if cut is None else cut
    straight, broken = Engine(CATALOG, log[0].policy), Engine(CATALOG, log[0].policy)
    life = log[0].life
    for i, entry in enumerate(log):
        if entry.life != life:
            life = entry.life
            straight, broken = (_begin_again(engine, entry) for engine in (straight, broken))
        if i == middle:
            broken = Engine(CATALOG, entry.policy, snapshot(broken.state))
        assert straight.handle(entry.now, entry.event) == entry.commands
        assert broken.handle(entry.now, entry.event) == entry.commands
    end = pack(straight.state)
    assert pack(broken.state) == end
    return end


def snapshot(state: EngineState) -> EngineState:
    """Through the journal's form and back; as JSON, for people and other programs, it can be read as well."""
    again = unpack(pack(state))
    assert pack(again) == pack(state)
    text = msgspec.json.encode(state)
    assert msgspec.json.encode(msgspec.json.decode(text, type=EngineState)) == text
    return again


def _begin_again(engine: Engine, entry: Entry) -> Engine:
    """As the controller does after a crash."""
    state = snapshot(engine.state)
    state.announced = 0.0
    return Engine(CATALOG, entry.policy, state)
