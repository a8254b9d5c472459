"""The nodes of this machine: virtual ones that share its GPUs, or those that an inventory file names."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import msgspec

from reknit.model.entities import Gpu, JobSpec, Node, normalise_pci
from reknit.orchestrate.local.errors import InventoryError, why
from reknit.orchestrate.local.processes import boot_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

QUERY = ("--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader")
SMI_TIMEOUT_S = 20.0
"""nvidia-smi takes seconds where persistence mode is off, and for ever where the driver hangs."""


class InventoryNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One `[[node]]` table."""

    name: str
    pool: str = "default"
    rack: str = ""
    gpu: tuple[Gpu, ...] = ()


class InventoryFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An inventory: `[[node]]` tables with `name`, `pool`, `rack` and `[[node.gpu]]` with `index`, `pci`,
    `uuid`."""

    node: tuple[InventoryNode, ...]


def read_inventory(path: Path, job: JobSpec, spares: int) -> tuple[Node, ...]:
    """The nodes that a file names, all on this machine's boot; those beyond `job.nodes` are spares.

    Raises InventoryError where the file cannot be read, holds unknown fields, names a node or device twice,
    or too few nodes.
    """
    try:
        file = msgspec.toml.decode(path.read_bytes(), type=InventoryFile)
    except OSError as error:
        raise InventoryError(f"cannot read inventory file {path}: {why(error)}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InventoryError(f"inventory file {path}: {error}") from error
    boot = boot_id()
    nodes = tuple(
        Node(
            name=entry.name,
            gpus=tuple(msgspec.structs.replace(gpu, pci=normalise_pci(gpu.pci)) for gpu in entry.gpu),
            boot_id=boot,
            pool=entry.pool,
            rack=entry.rack,
        )
        for entry in file.node
    )
    _check_twice(path, "node", [node.name for node in nodes])
    for node in nodes:
        _check_twice(path, f"PCI address on node {node.name}", [gpu.pci for gpu in node.gpus])
        _check_twice(path, f"GPU index on node {node.name}", [str(gpu.index) for gpu in node.gpus])
    if len(nodes) < job.nodes + spares:
        raise InventoryError(
            f"inventory file {path} names {len(nodes)} nodes, but {job.nodes} and {spares} spares are "
            "asked for; add [[node]] tables or ask for fewer"
        )
    return nodes


def virtual_nodes(
    job: JobSpec, spares: int, env: Mapping[str, str], notice: Callable[[str], None]
) -> tuple[Node, ...]:
    """`node0`, `node1`, ... on this machine, spares last.

    The machine's GPUs are shared out in order, `ranks_per_node x gpus_per_rank` to each node, where there are
    enough for all nodes, spares included; otherwise no node has any and every rank sees what it would see
    without Reknit. A `CUDA_VISIBLE_DEVICES` in `env` limits what is shared out.
    """
    count = job.nodes + spares
    each = job.ranks_per_node * job.gpus_per_rank
    gpus = visible(machine_gpus(notice), env.get("CUDA_VISIBLE_DEVICES"))
    if gpus and len(gpus) < each * count:
        notice(
            f"this machine has {len(gpus)} GPUs, too few for {count} nodes with {each} each; "
            "they are not shared out and every rank sees them all"
        )
        each = 0
    boot = boot_id()
    return tuple(
        Node(name=f"node{number}", gpus=gpus[number * each : (number + 1) * each], boot_id=boot)
        for number in range(count)
    )


def machine_gpus(notice: Callable[[str], None]) -> tuple[Gpu, ...]:
    """The NVIDIA GPUs of this machine, in PCI order; none where nvidia-smi is absent or does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ()
    try:
        asked = subprocess.Popen(
            (program, *QUERY), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        notice(f"nvidia-smi cannot be run: {why(error)}; GPUs are not shared out")
        return ()
    try:
        answer, _ = asked.communicate(timeout=SMI_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        asked.kill()  # and not waited for: behind a driver that hangs it does not die
        notice(
            f"nvidia-smi gave no answer in {SMI_TIMEOUT_S:.0f} s; GPUs are not shared out; look at the driver"
        )
        return ()
    if asked.returncode:
        said = answer.strip().splitlines() or ["nothing"]
        notice(f"nvidia-smi ended with {asked.returncode} ({said[0][:200]}); GPUs are not shared out")
        return ()
    return parse_smi(answer)


def parse_smi(text: str) -> tuple[Gpu, ...]:
    """nvidia-smi's `index, uuid, pci.bus_id` lines; lines of another shape are left out."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 3 and cells[0].isdigit():  # noqa: PLR2004 - the three columns of QUERY
            gpus.append(Gpu(index=int(cells[0]), pci=normalise_pci(cells[2]), uuid=cells[1]))
    return tuple(gpus)


def visible(gpus: tuple[Gpu, ...], limit: str | None) -> tuple[Gpu, ...]:
    """Those that a CUDA_VISIBLE_DEVICES value lets through, in its order.

    As in CUDA, an entry is an index or the beginning of a UUID, and the first that names nothing ends the
    list. MIG instances are not devices of the inventory: where one is named, nothing is shared out.
    """
    if limit is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in limit.split(",")):
        found = [
            gpu for gpu in gpus if str(gpu.index) == entry or (entry.startswith("GPU-") and entry in gpu.uuid)
        ]
        if len(found) != 1:
            break
        chosen += found
    return tuple(chosen)


def _check_twice(path: Path, what: str, values: list[str]) -> None:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise InventoryError(f"inventory file {path}: {what} {twice!r} stands there twice; keep one")
