"""Event lists that no sane adapter sends: nothing breaks, no law is broken, and time still moves on."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from property import wild
from property.laws import Laws
from property.parts import CATALOG, POLICIES, Entry
from property.profiles import LISTS
from property.replay import replay_is_the_same
from reknit.model import events as ev
from reknit.model.entities import JobSpec, Node, RankPlacement


@LISTS
@given(wild.lists, st.sampled_from(sorted(POLICIES)), st.booleans(), st.integers(0, 60))
def test_any_events_at_all(
    steps: list[tuple[float, ev.AnyEvent]], policy: str, begun: bool, cut: int
) -> None:
    laws = Laws(CATALOG, POLICIES[policy])
    log: list[Entry] = []
    now = wild.START

    def tell(event: ev.AnyEvent) -> None:
        log.append(Entry(now, event, laws.tell(now, event), laws.policy))

    if begun:
        for i in range(3):
            tell(ev.NodeSeen(Node(f"node{i}", boot_id="x")))
        tell(ev.JobSubmitted(JobSpec("train", 2, 2)))
        tell(ev.AttemptStarted("train", 1, tuple(RankPlacement(r, f"node{r // 2}") for r in range(4))))
    for gap, event in steps:
        now += gap if math.isfinite(gap) else 0.0
        tell(event)
    _ticks_move_on(laws)
    if log:
        replay_is_the_same(log, cut=min(cut, len(log) - 1))


def _ticks_move_on(laws: Laws) -> None:
    """Ticks alone, for as long as anything waits: never a busy loop."""
    began = now = laws.state.now
    for turn in range(60):
        due = laws.engine.next_deadline()
        if due is None:
            return
        now = max(now, due)
        laws.tell(now, ev.Tick())
        waiting = len(laws.state.open_ids) + len(laws.state.jobs)
        assert turn < 12 + 6 * waiting or now > began + 0.5, "ticks that move nothing"
