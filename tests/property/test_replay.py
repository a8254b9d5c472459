"""What was written down and is handled again ends in the same place, wherever the writing was interrupted."""

from __future__ import annotations

import msgspec
import pytest

from property.parts import POLICIES, Entry
from property.replay import replay_is_the_same
from property.world import World
from reknit.model import commands as cmd
from reknit.model import events as ev


def _eventful(policy: str) -> World:
    """A day with a bit of everything, always the same."""
    world = World(POLICIES[policy], nodes=6, jobs=2)
    one, two = world.gangs.values()
    world.train(one, 30, save=True)
    world.train(two, 60, slow=two.placement[0].node)
    world.tell(world.signal("nvidia.xid.79", one.placement[0].node))
    world.die(one, 0, 1, None)
    world.answer(one, "fails")
    world.answer(one, "twice")
    world.train(one, 5)
    world.tell(world.log[-1].event, back=3.0)
    two.hung = True
    world.answer(two, "done")
    world.train(two, 40, save=True)
    world.reboot(two.placement[0].node)
    world.begin_again(POLICIES[policy])
    for gang in (one, two):
        world.answer(gang, "outcome lost")
    world.become_honest()
    world.live_on()
    world.be_released()
    return world


@pytest.mark.parametrize("policy", ["act", "generous", "observe", "forgetful"])
def test_a_snapshot_at_any_moment_changes_nothing(policy: str) -> None:
    log = _eventful(policy).log
    assert len(log) > 150
    kinds = {type(command) for entry in log for command in entry.commands}
    assert cmd.CaptureEvidence in kinds
    assert policy == "observe" or {cmd.RestartGang, cmd.Quarantine} <= kinds
    ends = {replay_is_the_same(log, cut) for cut in [*range(0, len(log), 7), len(log) - 1]}
    assert len(ends) == 1


@pytest.mark.parametrize("form", [msgspec.json, msgspec.msgpack])
def test_events_that_were_written_down_and_read_again_do_the_same(form: type[msgspec.json]) -> None:
    log = _eventful("act").log
    again = [
        Entry(e.now, form.decode(form.encode(e.event), type=ev.AnyEvent), e.commands, e.policy, e.life)
        for e in log
    ]
    assert replay_is_the_same(again) == replay_is_the_same(log)


def test_the_same_day_twice_gives_the_same_commands_with_the_same_ids() -> None:
    one, two = _eventful("act"), _eventful("act")
    assert [entry.commands for entry in one.log] == [entry.commands for entry in two.log]
    ids = [c.id for entry in one.log for c in entry.commands if not isinstance(c, cmd.WaitUntil)]
    assert len(ids) == len(set(ids))
