"""The same events give the same commands and the same end, also through a snapshot in the middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from property.world import CATALOG

from reknit.engine import Engine
from reknit.model.state import EngineState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reknit.model import commands as cmd
    from reknit.model import events as ev
    from reknit.model.policy import Policy

Log = "Sequence[tuple[float, ev.AnyEvent, tuple[cmd.AnyCommand, ...]]]"


def replay_is_the_same(
    policy: Policy, log: Sequence[tuple[float, ev.AnyEvent, tuple[cmd.AnyCommand, ...]]], cut: int | None = None
) -> bytes:
    """Handle the events again. With a snapshot after `cut` of them (the middle, where None). Gives the end state."""
    middle = len(log) // 2 if cut is None else cut
    straight, broken = Engine(CATALOG, policy), Engine(CATALOG, policy)
    for i, (now, event, commands) in enumerate(log):
        if i == middle:
            text = msgspec.json.encode(broken.state)
            state = msgspec.json.decode(text, type=EngineState)
            assert msgspec.json.encode(state) == text
            broken = Engine(CATALOG, policy, state)
        assert straight.handle(now, event) == commands
        assert broken.handle(now, event) == commands
    end = msgspec.json.encode(straight.state)
    assert msgspec.json.encode(broken.state) == end
    return end
