"""One observation, whatever layer it comes from."""

from __future__ import annotations

from typing import Literal

import msgspec

from reknit.model.entities import Entity
from reknit.model.terms import Trust

SourceKind = Literal["kernel", "training_log", "process", "progress", "probe", "person", "scheduler"]


class Signal(msgspec.Struct, frozen=True):
    """One observation: a catalogue code, the entity that it speaks of, when, from where, and how far to trust it.

    Attributes:
        code: the catalogue row, such as `nvidia.xid.79` or `process.signal.9`.
        entity: what it speaks of. A device that the node does not have is never joined: the signal then speaks of
            no entity that could be blamed (`joined` is false).
        first_seen, last_seen, count: repeats of one code on one entity are one signal.
        node: where it was observed, "" where unknown.
        job, attempt, rank: the part of a gang that it concerns, where known.
        excerpt: the text as a person should see it, cleaned of control codes and cut.
        attributes: what the pattern captured (`pid`, `pci`, `exception`, `frame`, ...).
        boot_id: the node's boot in which it was observed; a clear rule of `boot` compares it.
        joined: whether the entity was found in the inventory.
    """

    code: str
    entity: Entity
    first_seen: float
    last_seen: float
    source: SourceKind
    trust: Trust
    count: int = 1
    node: str = ""
    job: str = ""
    attempt: int = 0
    rank: int | None = None
    excerpt: str = ""
    attributes: dict[str, str] = {}
    boot_id: str = ""
    joined: bool = True

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What makes two observations the same signal."""
        return (self.code, self.entity.kind, self.entity.id, self.attempt)
