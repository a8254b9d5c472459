"""What signals speak of and actions act on: nodes, GPUs, jobs, ranks, and where each rank runs."""

from __future__ import annotations

from typing import Literal

import msgspec

EntityKind = Literal[
    "cluster", "pool", "rack", "nvlink_domain", "node", "gpu", "nic", "link", "job", "rank", "process", "pod"
]


class Entity(msgspec.Struct, frozen=True):
    """One thing that can be observed or blamed.

    `id` is unique among entities of its kind: a node's name, `NODE/PCI-ADDRESS` for a GPU, the rank number for a
    rank, the job's name for a job.
    """

    kind: EntityKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind} {self.id}"


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as the node's inventory knows it. `pci` is normalised: `dddd:bb:dd`, lower case, no function."""

    index: int
    pci: str
    uuid: str = ""


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node: its name, devices, boot and place in the topology."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    boot_id: str = ""
    pool: str = "default"
    rack: str = ""

    def gpu_at(self, pci: str) -> Gpu | None:
        """The GPU at this PCI address (any spelling), or None where this node has no such device."""
        wanted = normalise_pci(pci)
        return next((gpu for gpu in self.gpus if normalise_pci(gpu.pci) == wanted), None)


class RankPlacement(msgspec.Struct, frozen=True):
    """Where one rank of an attempt runs. `gpus` are indexes on its node; empty where no GPU was given."""

    rank: int
    node: str
    local_rank: int = 0
    gpus: tuple[int, ...] = ()


class JobSpec(msgspec.Struct, frozen=True):
    """A gang: ranks that live and die together. `gpus_per_rank` is what a rank's second costs (1 where unknown)."""

    id: str
    nodes: int
    ranks_per_node: int
    gpus_per_rank: int = 1
    pool: str = "default"

    @property
    def ranks(self) -> int:
        """The gang's size."""
        return self.nodes * self.ranks_per_node

    @property
    def gpus(self) -> int:
        """GPUs that the gang occupies: what one second of its wall time costs, in GPU-seconds."""
        return self.ranks * self.gpus_per_rank


def normalise_pci(address: str) -> str:
    """One spelling for a PCI address: the kernel prints `0000:b3:00`, `0000:b3:00.0`, `b3:00.0`, `00000000:B3:00.0`.

    The function is dropped: a GPU is a device, and Xid lines print it without, other lines with it.
    """
    text = address.strip().lower()
    head, dot, function = text.rpartition(".")
    if dot and len(function) <= 2:  # noqa: PLR2004 - a PCI function is one digit, two in sloppy prints
        text = head
    parts = text.split(":")
    if len(parts) == 2:  # noqa: PLR2004 - bus:device without the domain
        parts.insert(0, "0000")
    if len(parts) != 3:  # noqa: PLR2004 - domain:bus:device
        return text
    domain = parts[0].lstrip("0").rjust(4, "0")
    return ":".join((domain, *parts[1:]))
