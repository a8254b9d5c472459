"""However often the same thing happens, the state stays small and what is closed stays closed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from property.laws import Laws
from property.parts import CATALOG, POLICIES, START
from property.world import World
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.entities import Entity, Node, RankPlacement
from reknit.model.progress import RankProgress
from reknit.model.signals import Signal
from reknit.model.terms import Trust

if TYPE_CHECKING:
    from collections.abc import Callable

TIMES = 10_000
_PLACES = tuple(RankPlacement(r, f"node{r // 2}", r % 2) for r in range(6))


def _signal(code: str, i: int, *, kernel: bool) -> ev.SignalSeen:
    return ev.SignalSeen(
        Signal(
            code=code,
            entity=Entity("gpu", "node0/0000:00:00") if kernel else Entity("rank", str(i % 6)),
            first_seen=START + i,
            last_seen=START + i,
            source="kernel" if kernel else "training_log",
            trust=Trust.KERNEL_RECORD if kernel else Trust.TRAINING_LOG,
            node="node0",
            job="" if kernel else "job0",
            attempt=0 if kernel else 1 + i % 3,
            attributes={"signature": f"line {i}"},
        )
    )


def _progress(i: int) -> ev.ProgressSeen:
    news = RankProgress(
        step=i % 50, step_at=START + i, durations=(0.5,), alive_at=START + i, saved_step=i % 7
    )
    return ev.ProgressSeen("job0", 1, dict.fromkeys(range(6), news))


FLOODS: dict[str, Callable[[int], ev.AnyEvent]] = {
    "a fault of a device": lambda i: _signal("nvidia.xid.79", i, kernel=True),
    "a remark of the kernel": lambda i: _signal("kernel.nfs.not_responding", i, kernel=True),
    "a word of a rank": lambda i: _signal("python.exception", i, kernel=False),
    "progress": _progress,
    "a rank's end": lambda i: ev.RankExited("job0", 1, i % 6, START + i, code=i % 3),
    "attempts by somebody else": lambda i: (
        ev.AttemptStarted("job0", 2 + i // 2, _PLACES)
        if i % 2
        else ev.RankExited("job0", 1 + i // 2, 0, START + i, code=1)
    ),
    "boots": lambda i: (
        ev.NodeSeen(Node("node0", boot_id=f"boot {i}")) if i % 2 else _signal("nvidia.xid.79", i, kernel=True)
    ),
    "releases by a person": lambda i: (
        ev.NodeReleaseRequested("node0") if i % 2 else _signal("nvidia.xid.79", i, kernel=True)
    ),
    "nodes that come and go": lambda i: (
        ev.NodeGone("node0") if i % 2 else ev.NodeSeen(Node("node0", boot_id="b"))
    ),
    "ticks": lambda i: ev.Tick(),  # noqa: ARG005 - a tick carries nothing
}


@pytest.mark.parametrize("policy", ["tight", "observe"])
@pytest.mark.parametrize("flood", sorted(FLOODS))
def test_ten_thousand_times_the_same(flood: str, policy: str) -> None:
    world = World(POLICIES[policy], jobs=1)
    engine = world.engine
    sizes: list[int] = []
    for i in range(TIMES):
        world.now += 0.7
        commands = engine.handle(world.now, FLOODS[flood](i))
        for command in commands:
            # Half of what is asked for is done at once, the other half fails.
            if not isinstance(command, cmd.WaitUntil):
                done = ev.CommandDone(command.id) if i % 2 else ev.CommandFailed(command.id, "no")
                engine.handle(world.now, done)
        if i in (TIMES // 10, TIMES // 2, TIMES - 1):
            sizes.append(_size_of_one(world.laws))
    early, half, end = sizes
    assert end < 300_000
    assert end < 1.5 * max(early, half, 40_000), (
        "what is kept of one thing does not grow with how often it happens"
    )


def _size_of_one(laws: Laws) -> int:
    """The state's size without the number of incidents, which the policy bounds."""
    state = laws.state
    largest = max((len(msgspec.json.encode(i)) for i in state.incidents.values()), default=0)
    rest = msgspec.structs.replace(state, incidents={})
    closed = len(state.incidents) - len(state.open_ids)
    assert closed <= laws.policy.keep_incidents
    assert len(state.open_ids) <= 10
    return largest + len(msgspec.json.encode(rest))


def test_closed_incidents_are_forgotten_and_the_engine_still_tells_of_their_end() -> None:
    laws = Laws(CATALOG, msgspec.structs.replace(POLICIES["tight"], keep_incidents=3))
    now, closed = START, []
    laws.tell(now, ev.NodeSeen(Node("node0", boot_id="b")))
    for i in range(40):
        now += 10
        laws.tell(now, _signal("kernel.nfs.not_responding", i, kernel=True))
        for _ in range(3):
            now += 700
            laws.tell(now, ev.Tick())
            closed += [incident.id for incident in laws.engine.changed if not incident.open]
    assert closed == [f"inc-{i}" for i in range(1, 41)]
    assert list(laws.state.incidents) == ["inc-38", "inc-39", "inc-40"]
