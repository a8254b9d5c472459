"""Kernel logs, as kernels, tools and attackers write them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.catalog.load import builtin
from reknit.model.entities import Entity, Gpu, Node
from reknit.model.terms import Trust
from reknit.sense.kernel_log import KernelLogSense
from reknit.sense.kernel_record import parse_record

if TYPE_CHECKING:
    from reknit.model.signals import Signal

CATALOG = builtin()
ONE = Node("node-1", gpus=(Gpu(0, "0000:1b:00"), Gpu(3, "0000:b3:00")), boot_id="boot-a")
TWO = Node("node-2", gpus=(Gpu(0, "0000:1b:00"), Gpu(1, "0000:c4:00")))
XID79 = "NVRM: Xid (PCI:0000:b3:00): 79, pid=4117, name=python3, GPU has fallen off the bus."


def read(*lines: str, nodes: tuple[Node, ...] = (ONE,), at: float = 1_000_000_000.0) -> list[Signal]:
    """All signals of a log, given in one piece."""
    sense = KernelLogSense(CATALOG, nodes)
    return sense.feed("".join(f"{line}\n" for line in lines).encode(), at) + sense.finish(at)


def codes(*lines: str, nodes: tuple[Node, ...] = (ONE,)) -> list[str]:
    """The codes of those signals."""
    return [signal.code for signal in read(*lines, nodes=nodes)]


def test_an_xid_is_joined_to_the_gpu_of_its_node() -> None:
    (signal,) = read(f"[ 1843.308145] {XID79}", at=50.0)
    assert signal.code == "nvidia.xid.79"
    assert signal.entity == Entity("gpu", "node-1/0000:b3:00")
    assert (signal.attributes["gpu_index"], signal.attributes["pid"]) == ("3", "4117")
    assert (signal.node, signal.boot_id, signal.trust) == ("node-1", "boot-a", Trust.KERNEL_RECORD)
    assert signal.first_seen == signal.last_seen == 50.0
    assert signal.excerpt == XID79
    assert signal.joined


@pytest.mark.parametrize("address", ["0000:b3:00", "0000:B3:00.0", "00000000:b3:00.0", "b3:00.0"])
def test_every_spelling_of_an_address_is_the_same_gpu(address: str) -> None:
    (signal,) = read(f"NVRM: Xid (PCI:{address}): 48, pid='<unknown>', name=<unknown>, double bit error")
    assert signal.entity.id == "node-1/0000:b3:00"
    assert "pid" not in signal.attributes


def test_a_device_that_the_node_does_not_have_blames_nobody() -> None:
    (signal,) = read(XID79.replace("b3", "99"))
    assert signal.code == "kernel.foreign_device"
    assert signal.entity == Entity("node", "node-1")
    assert not signal.joined
    assert (signal.attributes["pci"], signal.attributes["code"]) == ("0000:99:00", "nvidia.xid.79")
    assert CATALOG.get(signal.code).severity == "info"


def test_of_two_nodes_the_one_that_has_the_device_is_meant() -> None:
    (signal,) = read(XID79.replace("b3", "c4"), nodes=(ONE, TWO))
    assert (signal.entity.id, signal.node) == ("node-2/0000:c4:00", "node-2")


def test_an_address_that_two_nodes_share_needs_the_hosts_name() -> None:
    shared = XID79.replace("b3", "1b")
    assert codes(shared, nodes=(ONE, TWO)) == ["kernel.foreign_device"]
    (named,) = read(f"Jan 14 22:32:39 node-2.cluster.local kernel: {shared}", nodes=(ONE, TWO))
    assert named.entity.id == "node-2/0000:1b:00"


def test_a_fault_of_the_host_needs_one_node_or_its_name() -> None:
    line = "watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python3:77]"
    assert read(line)[0].entity == Entity("node", "node-1")
    assert read(line, nodes=(ONE, TWO))[0].entity == Entity("cluster", "cluster")
    named = read(f"2026-02-03T04:05:06.7+00:00 node-2 kernel: {line}", nodes=(ONE, TWO), at=2e9)
    assert named[0].entity == Entity("node", "node-2")


def test_an_oom_kill_names_the_process() -> None:
    line = "Memory cgroup out of memory: Killed process 40117 (python3) total-vm:9kB, anon-rss:8kB"
    (signal,) = read(f"[12.5] {line}")
    assert (signal.code, signal.attributes["pid"]) == ("kernel.oom.cgroup", "40117")


def test_a_program_cannot_choose_whose_pid_an_oom_line_shows() -> None:
    line = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=x,pid=1,uid=0,pid=40117,uid=1000"
    assert read(line)[0].attributes["pid"] == "40117"


def test_a_message_that_the_driver_wraps_is_put_together() -> None:
    wrapped = ("NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: (PCI ID: 10de:2330) installed in this system has")
    end = "NVRM: fallen off the bus and is not responding to commands."
    assert codes(*(f"[ 1.5] {line}" for line in (*wrapped, end))) == ["nvidia.fallen_off_bus"]
    assert codes(f"[ 1.5] {wrapped[0]}", *(f"         {line}" for line in (wrapped[1], end))) == [
        "nvidia.fallen_off_bus"
    ]
    assert codes("3,77,99,-;" + "\\x0a".join((*wrapped, end))) == ["nvidia.fallen_off_bus"]
    assert codes(*(f"[ 1.5] {line}" for line in (wrapped[0], "usb 1-1: new device", wrapped[1], end))) == [
        "nvidia.fallen_off_bus"
    ]


def test_a_wrapped_message_that_never_ends_is_forgotten() -> None:
    noise = [f"[ 2.{i}] usb 1-{i}: new device" for i in range(20)]
    end = "[ 3.0] NVRM: fallen off the bus and is not responding to commands."
    assert codes("[ 1.0] NVRM: The NVIDIA GPU 0000:b3:00.0", *noise, end) == []


def test_repeats_are_one_signal_with_a_count() -> None:
    signals = read(*[f"[ {i}.0] {XID79}" for i in range(40)], f"[ 41.0] {XID79.replace('b3', '1b')}")
    assert [(s.entity.id, s.count) for s in signals] == [("node-1/0000:b3:00", 40), ("node-1/0000:1b:00", 1)]


def test_a_users_record_in_the_kernel_log_is_a_hint_at_most() -> None:
    for line in (f"12,900,5000,-;{XID79}", f"<12>[ 5.0] {XID79}", f"user  :warn  : [ 5.0] {XID79}"):
        (signal,) = read(line)
        assert signal.code == "kernel.not_from_kernel", line
        assert (signal.trust, signal.joined) == (Trust.TRAINING_LOG, False)
        assert signal.attributes["code"] == "nvidia.xid.79"
    assert codes(f"Jan 14 22:32:39 node-1 python3[4117]: {XID79}") == ["kernel.not_from_kernel"]
    assert codes(f"4,900,5000,-;{XID79}") == ["nvidia.xid.79"]


def test_a_crashing_program_cannot_speak_in_the_drivers_name() -> None:
    name = "NVRM: Xid (PCI:0000:b3:00): 79, pid=7, GPU has fallen off the bus."
    tail = f": segfault at 0 ip 0000559411 sp 00007ffd10 error 4 in {name}[559411000+1000]"
    for comm in ("NVRM: Xid (PCI:", "train", "traps: NVRM: Xi"):
        found = codes(f"[ 9.5] {comm}[4242]{tail}")
        assert [code for code in found if code != "kernel.segfault"] == [], comm
    gsp = f"[ 9.5] NVRM: [4242]{tail.replace(name, '_kgspLogRpcTimeout: * GSP Timeout')}"
    assert [code for code in codes(gsp) if code != "kernel.segfault"] == []
    assert codes(
        f"[ 9.5] traps: NVRM: Xid (PCI:[4242] trap invalid opcode ip:1 sp:2 error:0 in {name}[1+1]"
    ) == ["kernel.segfault"]


def test_a_line_feed_in_a_file_name_does_not_make_a_record() -> None:
    crash = "train[4242]: segfault at 0 ip 0000559411 sp 00007ffd10 error 4 in x"
    assert codes(f"[ 9.5] {crash}", f"{XID79}[559411000+1000]") == ["kernel.segfault"]
    assert codes(f"6,12,9500000,-;{crash}\\x0a{XID79}[559411000+1000]") == ["kernel.segfault"]


def test_a_program_name_inside_an_xid_line_changes_nothing() -> None:
    forged = (
        "NVRM: Xid (PCI:0000:b3:00): 145, pid=7, name=a, X Fatal XC0, RLW_REMAP Nonfatal XC1 i0 Link 16 (0x1)"
    )
    assert codes(forged) == ["nvidia.xid.145.nonfatal"]


def test_rubbish_and_endless_lines_hide_nothing() -> None:
    sense = KernelLogSense(CATALOG, (ONE,))
    rubbish = bytes(range(256)) * 64
    signals = sense.feed(rubbish + b"\n" + b"x" * 1_000_000 + b"\n" + XID79.encode() + b"\n", 1.0)
    assert [s.code for s in signals] == ["nvidia.xid.79"]


def test_a_half_line_waits_for_its_other_half() -> None:
    sense = KernelLogSense(CATALOG, (ONE,))
    assert sense.feed(f"[ 1.0] {XID79}"[:40].encode(), 1.0) == []
    assert [s.first_seen for s in sense.feed((f"[ 1.0] {XID79}"[40:] + "\n").encode(), 2.0)] == [2.0]
    assert sense.feed(XID79.encode(), 3.0) == []


def test_the_last_line_counts_without_its_end() -> None:
    sense = KernelLogSense(CATALOG, (ONE,))
    assert sense.feed(XID79.encode(), 1.0) == []
    assert [s.code for s in sense.finish(2.0)] == ["nvidia.xid.79"]
    assert sense.finish(3.0) == []


def test_lines_out_of_order_are_all_read() -> None:
    assert set(
        codes(f"[ 90.0] {XID79}", "[ 10.0] NVRM: Xid (PCI:0000:1b:00): 63, text", f"[ 50.0] {XID79}")
    ) == {
        "nvidia.xid.79",
        "nvidia.xid.63",
    }


def test_a_date_with_its_zone_is_believed_unless_it_lies_ahead() -> None:
    line = f"2026-02-03T04:05:06.250000+01:00 node-1 kernel: {XID79}"
    assert read(line, at=1_800_000_000.0)[0].first_seen == 1_770_087_906.25
    assert read(line, at=1_000.0)[0].first_seen == 1_000.0


def test_control_codes_do_not_reach_the_excerpt() -> None:
    (signal,) = read(f"[ 1.0] {XID79}\x1b[2J\x07\u202eevil")
    assert signal.excerpt == f"{XID79} evil"


@pytest.mark.parametrize(
    ("line", "facility", "host", "message"),
    [
        ("6,339,5140900,-,caller=T1;nvme nvme0: up", 0, None, "nvme nvme0: up"),
        ("30,339,5140900,c;systemd[1]: up", 3, None, "systemd[1]: up"),
        ("[    0.000000] [    T0] Linux version 6", None, None, "Linux version 6"),
        ("[Thu Oct 10 03:06:53 2024] EDAC MC0: 1 UE", None, None, "EDAC MC0: 1 UE"),
        ("kern  :err   : [   12.5] EDAC MC0: 1 UE", 0, None, "EDAC MC0: 1 UE"),
        ("2026-02-03T04:05:06,123456+00:00 EDAC MC0: 1 UE", None, None, "EDAC MC0: 1 UE"),
        ("Feb  3 04:05:06 n7 kernel: [  12.5] up", None, "n7", "up"),
        ("2026-02-03T04:05:06+0000 n7 kernel: up", None, "n7", "up"),
        ("[   12.500000] n7 kernel: up", None, "n7", "up"),
        ("kernel: up", None, None, "up"),
        ("  up", None, None, "up"),
        ("", None, None, ""),
    ],
)
def test_the_usual_tools_are_understood(
    line: str, facility: int | None, host: str | None, message: str
) -> None:
    record = parse_record(line)
    assert (record.facility, record.host, record.message) == (facility, host, message)


_PIECES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [
                b"\n",
                b"\r",
                b"\r\n",
                b"[ 1.0] ",
                b"4,1,2,-;",
                b"12,1,2,-;",
                b"Jan  4 01:02:03 node-1 kernel: ",
                XID79.encode(),
                b"NVRM: The NVIDIA GPU 0000:b3:00.0\n",
                b"NVRM: (PCI ID: 10de:2330) installed in this system has\n",
                b"NVRM: fallen off the bus and is not responding to commands.\n",
                b"Out of memory: Killed process 77 (x) total-vm:1kB\n",
                b"\x1b[31m",
                b"<LONG>",
            ]
        ),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(_PIECES, st.integers(1, 50))
def test_how_a_log_is_cut_into_pieces_changes_nothing(pieces: list[bytes], size: int) -> None:
    log = b"".join(pieces).replace(b"<LONG>", b"x" * 70_000)
    size = max(size, len(log) // 300)
    whole = KernelLogSense(CATALOG_SMALL, (ONE,))
    expected = {(s.code, s.entity) for s in whole.feed(log, 1.0) + whole.finish(1.0)}
    cut = KernelLogSense(CATALOG_SMALL, (ONE,))
    found = [s for i in range(0, len(log), size) for s in cut.feed(log[i : i + size], 1.0)] + cut.finish(1.0)
    assert {(s.code, s.entity) for s in found} == expected


CATALOG_SMALL = CATALOG.__class__(
    rows=tuple(r for r in CATALOG.rows if r.code.startswith(("nvidia.xid.79", "nvidia.f", "kernel.oom")))
)
