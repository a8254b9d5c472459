"""Which nodes the next attempt runs on. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reknit.model.entities import RankPlacement
from reknit.orchestrate.local.errors import NoRoom

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from reknit.model.entities import JobSpec, Node


def place(
    job: JobSpec,
    nodes: Sequence[Node],
    previous: Sequence[RankPlacement] = (),
    avoid: Collection[str] = (),
    quarantined: Collection[str] = (),
) -> tuple[RankPlacement, ...]:
    """Where every rank of the next attempt runs.

    A node of the previous attempt keeps its place in the gang, so that ranks restart where their files and
    caches are; a place that falls vacant goes to the first other node in inventory order, spares being last
    there. Nodes of another pool and those in `avoid` and `quarantined` are never used. A rank's own GPUs are
    named where its node has enough for all its ranks.

    Raises NoRoom, which names what is missing.
    """
    nodes = [node for node in nodes if node.pool == job.pool]
    shut_out = {*avoid, *quarantined}
    usable = {node.name: node for node in nodes if node.name not in shut_out}
    before: list[str] = list(dict.fromkeys(rank.node for rank in previous))[: job.nodes]
    slots: list[str | None] = [name if name in usable else None for name in before]
    slots += [None] * (job.nodes - len(slots))
    spare = iter([name for name in usable if name not in slots])
    names = [name or next(spare, None) for name in slots]
    missing = names.count(None)
    if missing:
        raise NoRoom(_shortage(job, nodes, missing, set(avoid), set(quarantined)))
    return tuple(
        RankPlacement(
            rank=group * job.ranks_per_node + local,
            node=name,
            local_rank=local,
            gpus=_gpus(job, usable[name], local),
        )
        for group, name in enumerate(name for name in names if name)
        for local in range(job.ranks_per_node)
    )


def _gpus(job: JobSpec, node: Node, local_rank: int) -> tuple[int, ...]:
    each = job.gpus_per_rank
    if len(node.gpus) < each * job.ranks_per_node:
        return ()
    return tuple(gpu.index for gpu in node.gpus[local_rank * each : (local_rank + 1) * each])


def _shortage(
    job: JobSpec, nodes: Sequence[Node], missing: int, avoid: set[str], quarantined: set[str]
) -> str:
    known = [node.name for node in nodes]
    out = [name for name in known if name in quarantined]
    suspects = [name for name in known if name in avoid and name not in quarantined]
    reasons = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in ((out, "quarantined"), (suspects, "under suspicion"))
        if names
    ]
    because = f": {' and '.join(reasons)}" if reasons else ""
    return (
        f"{job.nodes} node{'s' if job.nodes != 1 else ''} needed, {missing} missing of {len(known)}"
        f"{because}; release a node or start with more spares"
    )
