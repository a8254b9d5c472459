"""A story whose orchestrator leaves some orders lying, and short ways to its incident and its kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reknit.model.entities import Entity
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from support.story import Story

if TYPE_CHECKING:
    from reknit.model import commands as cmd
    from reknit.model.incidents import Incident


class Held(Story):
    """A story in which some kinds of commands are not carried out until somebody does."""

    def __init__(self, *kinds: type[cmd.Command], **options: Any) -> None:
        self.kinds = kinds
        super().__init__(**options)

    def carry_out(self, command: cmd.AnyCommand) -> None:
        if not isinstance(command, self.kinds):
            super().carry_out(command)


def the_incident(story: Story) -> Incident:
    """The only incident that there is."""
    (incident,) = story.incidents
    return incident


def kernel_record(story: Story, code: str, node: str, **fields: Any) -> Signal:
    """A record about the first GPU of a node, as the kernel sense makes it."""
    defaults: dict[str, Any] = {"first_seen": story.now, "last_seen": story.now}
    entity = Entity("gpu", f"{node}/0000:00:00")
    return Signal(
        code, entity, source="kernel", trust=Trust.KERNEL_RECORD, node=node, **{**defaults, **fields}
    )
