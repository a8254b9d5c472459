"""Who is to blame for a root. Blame needs evidence: a rank's own words never condemn its node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reknit.diagnose.evidence import Candidate, Evidence, distinct_ranks
from reknit.model.entities import Entity
from reknit.model.terms import Grade, Trust

if TYPE_CHECKING:
    from collections.abc import Sequence


def culprit(root: Candidate, evidence: Evidence, alike: Sequence[Candidate]) -> Entity | None:
    """The entity that the root's row blames.

    `alike` are the roots with the same signature: the same failure on most ranks is the job's, not a rank's.
    """
    signal, scope = root.signal, root.row.scope
    if scope == "none":
        return None
    ranks = distinct_ranks(alike)
    if scope == "rank" and evidence.ranks > 1 and len(ranks) > evidence.ranks / 2:
        scope = "job"
    if scope == "job":
        return Entity("job", signal.job or evidence.job) if (signal.job or evidence.job) else None
    if scope == "rank":
        return Entity("rank", str(signal.rank)) if signal.rank is not None else signal.entity
    if scope == "node":
        return Entity("node", signal.node) if signal.node else signal.entity
    return signal.entity


def suspects(root: Candidate, blamed: Entity | None) -> tuple[str, ...]:
    """Nodes on which the job should not run again before somebody has looked: only on evidence that no tenant can
    write, and only where the row says that this evidence may take a node out of service."""
    signal = root.signal
    if blamed is None or blamed.kind not in ("gpu", "node", "nic", "link", "nvlink_domain"):
        return ()
    if signal.trust < Trust.KERNEL_RECORD or not signal.joined or not signal.node:
        return ()
    return (signal.node,) if root.row.highest_grade >= Grade.REVERSIBLE else ()


def signature(root: Candidate, blamed: Entity | None) -> str:
    """What makes two failures the same one: the code, the exception and frame, and who is blamed."""
    what = root.signal.attributes.get("signature") or root.signal.attributes.get("status", "")
    return "|".join((root.signal.code, what, str(blamed) if blamed else ""))
