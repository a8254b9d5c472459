"""Small things to write into a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reknit.model.commands import Quarantine
from reknit.model.events import Tick

if TYPE_CHECKING:
    from reknit.journal.sqlite import SqliteJournal


def write(
    journal: SqliteJournal, event: Any = None, *commands: Any, incidents: Any = (), **cursors: int
) -> int:
    return journal.record(1.5, event or Tick(), commands, incidents, cursors)


def quarantine(id_: str = "inc-1.1", node: str = "node0") -> Quarantine:
    return Quarantine(id=id_, incident="inc-1", reason="XID 79 on GPU 0", deadline=99.0, node=node)
