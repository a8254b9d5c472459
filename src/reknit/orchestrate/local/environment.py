"""What a rank finds in its environment: what torchrun sets, and where Reknit is."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reknit.model.entities import JobSpec, Node, RankPlacement
    from reknit.orchestrate.local.state_dir import PlanFile, RankDir

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS = range(20000, 61000)
TRIES = 200


@dataclass(frozen=True)
class Launch:
    """What every rank of every attempt of a run shares.

    `base` is what ranks inherit of Reknit's own environment, `cwd` where the command runs, `grace_s` what
    they get between SIGTERM and SIGKILL where nobody says otherwise.
    """

    job: JobSpec
    command: tuple[str, ...]
    cwd: str
    nodes: Mapping[str, Node]
    base: Mapping[str, str]
    grace_s: float


def rank_environment(launch: Launch, plan: PlanFile, place: RankPlacement, folder: RankDir) -> dict[str, str]:
    """The whole environment of one rank: the inherited one and on top of it what torchrun (PyTorch 2.x,
    elastic agent) sets.

    `CUDA_VISIBLE_DEVICES` holds all GPUs of the rank's node, not only the rank's own: scripts written for
    torchrun choose `cuda:LOCAL_RANK` themselves. It is left alone where the node's GPUs are not known. Three
    variables are defaults only, so that whoever sets them keeps them: OMP_NUM_THREADS, PYTHONUNBUFFERED (a
    rank that is killed must not take its last lines with it) and TORCH_NCCL_ASYNC_ERROR_HANDLING.
    """
    job = launch.job
    node = launch.nodes.get(place.node)
    group = place.rank // job.ranks_per_node
    env = {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **launch.base,
    }
    env |= {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks_per_node),
        "GROUP_RANK": str(group),
        "GROUP_WORLD_SIZE": str(job.nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(job.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(plan.port),
        "TORCHELASTIC_RESTART_COUNT": str(plan.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(max(plan.attempt - 1, MAX_RESTARTS)),
        "TORCHELASTIC_RUN_ID": job.id,
        # Rank 0 makes the rendezvous store itself: no agent of ours keeps one for it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(folder.path / "error.json"),
        "REKNIT_JOB": job.id,
        "REKNIT_ATTEMPT": str(plan.attempt),
        "REKNIT_NODE": place.node,
        "REKNIT_PROGRESS": str(folder.progress),
    }
    if node is not None and place.gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpu.uuid or str(gpu.index) for gpu in node.gpus)
    return env


MAX_RESTARTS = 10
"""What scripts are told; the policy's restarts per day by default. Nothing in PyTorch acts on it."""


def free_port(avoid: int = 0) -> int:
    """A TCP port that nobody listens on now, for rank 0.

    It is taken outside the range from which the kernel serves outgoing connections, or one of those could
    hold it by the time rank 0 listens. `avoid` is the last attempt's, which may still have connections that
    are closing.
    """
    low, high = _ephemeral()
    outside = [port for port in PORTS if not low <= port <= high and port != avoid]
    for port in random.sample(outside, min(TRIES, len(outside))):
        if _is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _ephemeral() -> tuple[int, int]:
    try:
        low, high = EPHEMERAL.read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32768, 60999  # Linux's default


def _is_free(port: int) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
        except OSError as error:
            if family == socket.AF_INET6 and error.errno in NO_IPV6:
                continue
            return False
    return True


NO_IPV6 = frozenset({97, 99})
"""EAFNOSUPPORT and EADDRNOTAVAIL: a machine without IPv6."""
