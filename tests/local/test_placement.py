"""Where ranks go, what they find in their environment, and which GPUs they are given."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from reknit.model.entities import Gpu, JobSpec, Node
from reknit.orchestrate.local.environment import Launch, free_port, rank_environment
from reknit.orchestrate.local.errors import InventoryError, NoRoom
from reknit.orchestrate.local.inventory import parse_smi, read_inventory, visible
from reknit.orchestrate.local.placement import place
from reknit.orchestrate.local.state_dir import PlanFile, RankDir

if TYPE_CHECKING:
    from pathlib import Path

JOB = JobSpec(id="job", nodes=2, ranks_per_node=2)
GPUS = tuple(Gpu(index=number, pci=f"0000:{number:02x}:00", uuid=f"GPU-{number}") for number in range(4))
NODES = tuple(Node(name=name) for name in ("a", "b", "c", "d"))


def names(placement: tuple[object, ...]) -> list[str]:
    return [rank.node for rank in placement]  # type: ignore[attr-defined]


def test_a_first_attempt_takes_the_first_nodes_and_numbers_ranks_by_node() -> None:
    placement = place(JOB, NODES)
    assert [(rank.rank, rank.node, rank.local_rank) for rank in placement] == [
        (0, "a", 0),
        (1, "a", 1),
        (2, "b", 0),
        (3, "b", 1),
    ]


def test_a_vacant_place_is_taken_by_the_first_spare_and_the_rest_stays() -> None:
    first = place(JOB, NODES)
    assert names(place(JOB, NODES, first)) == ["a", "a", "b", "b"]
    moved = place(JOB, NODES, first, avoid={"a"})
    assert names(moved) == ["c", "c", "b", "b"]
    again = place(JOB, NODES, moved, avoid={"b"}, quarantined={"a"})
    assert names(again) == ["c", "c", "d", "d"]


def test_a_node_that_is_gone_or_in_nobodys_inventory_is_replaced() -> None:
    first = place(JOB, NODES)
    assert names(place(JOB, NODES[1:], first)) == ["c", "c", "b", "b"]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(NoRoom) as caught:
        place(JOB, NODES[:3], avoid={"b"}, quarantined={"a"})
    assert str(caught.value) == (
        "2 nodes needed, 1 missing of 3: a is quarantined and b is under suspicion; "
        "release a node or start with more spares"
    )


def test_a_rank_is_told_its_own_gpus_where_the_node_has_enough_for_all() -> None:
    job = JobSpec(id="job", nodes=1, ranks_per_node=2, gpus_per_rank=2)
    assert [rank.gpus for rank in place(job, (Node(name="a", gpus=GPUS),))] == [(0, 1), (2, 3)]
    assert [rank.gpus for rank in place(job, (Node(name="a", gpus=GPUS[:3]),))] == [(), ()]


def test_the_environment_is_torchruns_and_the_users_own_choices_stay(tmp_path: Path) -> None:
    node = Node(name="b", gpus=GPUS[:2])
    placement = place(JOB, (Node(name="a", gpus=GPUS[2:]), node))
    plan = PlanFile(attempt=3, placement=placement, port=29511, boot_id="boot", created_at=1.0)
    shared = Launch(JOB, ("train",), "/", {"b": node}, {"HOME": "/h", "OMP_NUM_THREADS": "8"}, 5.0)
    env = rank_environment(shared, plan, placement[3], RankDir(tmp_path))
    assert env == {
        "HOME": "/h",
        "OMP_NUM_THREADS": "8",
        "PYTHONUNBUFFERED": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "10",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": f"{tmp_path}/error.json",
        "REKNIT_JOB": "job",
        "REKNIT_ATTEMPT": "3",
        "REKNIT_NODE": "b",
        "REKNIT_PROGRESS": f"{tmp_path}/progress",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1",
    }


def test_without_known_gpus_cuda_visible_devices_is_left_alone(tmp_path: Path) -> None:
    placement = place(JOB, NODES)
    plan = PlanFile(attempt=1, placement=placement, port=1, boot_id="boot", created_at=1.0)
    shared = Launch(JOB, ("train",), "/", {"a": NODES[0]}, {"CUDA_VISIBLE_DEVICES": "5"}, 5.0)
    env = rank_environment(shared, plan, placement[0], RankDir(tmp_path))
    assert env["CUDA_VISIBLE_DEVICES"] == "5"


def test_a_port_is_free_and_not_the_last_one() -> None:
    ports = {free_port() for _ in range(5)}
    assert all(1024 < port < 65536 for port in ports)
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))


def test_nvidia_smi_lines_become_gpus_and_anything_else_none() -> None:
    text = (
        "0, GPU-aaaa-1, 00000000:19:00.0\n"
        "1, GPU-bbbb-2, 00000000:B3:00.0\n"
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    )
    assert parse_smi(text) == (
        Gpu(index=0, pci="0000:19:00", uuid="GPU-aaaa-1"),
        Gpu(index=1, pci="0000:b3:00", uuid="GPU-bbbb-2"),
    )


@pytest.mark.parametrize(
    ("limit", "indexes"),
    [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), ("GPU-3", [3]), ("", []), ("1,9,2", [1]), ("MIG-1", [])],
)
def test_cuda_visible_devices_limits_what_is_shared_out(limit: str | None, indexes: list[int]) -> None:
    assert [gpu.index for gpu in visible(GPUS, limit)] == indexes


def test_an_inventory_file_names_nodes_racks_and_devices(tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(
        '[[node]]\nname = "gpu-a"\npool = "h100"\nrack = "r1"\n'
        '[[node.gpu]]\nindex = 0\npci = "00000000:3B:00.0"\nuuid = "GPU-x"\n'
        '[[node]]\nname = "gpu-b"\n'
    )
    nodes = read_inventory(path, JOB, 0)
    assert [(node.name, node.pool, node.rack) for node in nodes] == [
        ("gpu-a", "h100", "r1"),
        ("gpu-b", "default", ""),
    ]
    assert nodes[0].gpus == (Gpu(index=0, pci="0000:3b:00", uuid="GPU-x"),)
    assert nodes[0].boot_id


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes = 3", "unknown field `nodes`"),
        ("[[node", "nodes.toml"),
        ('[[node]]\nname = "a"\n', "names 1 nodes, but 2 and 1 spares are asked for"),
        ('[[node]]\nname = "a"\n[[node]]\nname = "a"\n', "node 'a' stands there twice"),
        (
            (
                '[[node]]\nname = "a"\n[[node.gpu]]\nindex = 0\npci = "3b:00.0"\n'
                '[[node.gpu]]\nindex = 1\npci = "0000:3B:00.0"\n'
            ),
            "PCI address on node a '0000:3b:00' stands there twice",
        ),
    ],
)
def test_a_bad_inventory_file_gives_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "nodes.toml"
    path.write_text(text)
    with pytest.raises(InventoryError, match=said):
        read_inventory(path, JOB, 1)


def test_an_inventory_file_that_is_not_there_gives_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"cannot read inventory file .*none\.toml: no such file"):
        read_inventory(tmp_path / "none.toml", JOB, 0)
