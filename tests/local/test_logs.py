"""Logs that grow, rotate, shrink, hold rubbish; and positions that lose nothing."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from local.bench import Recorder, eventually, run, shell
from reknit.model.entities import Entity
from reknit.model.events import SignalSeen
from reknit.model.progress import RankProgress
from reknit.orchestrate.local.kmsg import Kmsg, sequence
from reknit.orchestrate.local.rank_progress import merge
from reknit.orchestrate.local.sources import LogSource
from reknit.orchestrate.local.tail import Tail

if TYPE_CHECKING:
    from pathlib import Path

    from local.bench import Bench
    from reknit.model.signals import Signal

INVENTORY = '[[node]]\nname = "a"\n[[node.gpu]]\nindex = 0\npci = "0000:3b:00"\n[[node]]\nname = "b"\n'
FOREVER = shell("exec sleep 600")


def xid(number: int, pci: str = "0000:3b:00") -> str:
    """A raw kernel record."""
    what = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    return f"3,{number},{number}000000,-;NVRM: Xid (PCI:{pci}): {what}\n"


class Lines:
    """A sense that remembers whole lines and holds back everything after `open` until `close`."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._half = b""
        self.unfinished = False

    def feed(self, data: bytes, at: float) -> list[Signal]:
        del at
        *lines, self._half = (self._half + data).split(b"\n")
        for line in lines:
            self.seen.append(line)
            self.unfinished = line == b"open" or (self.unfinished and line != b"close")
        return []

    def finish(self, at: float) -> list[Signal]:
        del at
        self.seen += [self._half] if self._half else []
        self._half = b""
        return []


def source(path: Path, notices: list[str], offset: int = 0, inode: int = 0) -> tuple[LogSource, Lines]:
    """A log and its sense."""
    sense = Lines()
    return LogSource("log", Tail(path, offset, notices.append, inode=inode), sense, Recorder()), sense


def test_a_position_never_stands_in_half_a_line_or_in_something_unfinished(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log, sense = source(path, [])
    log.poll()
    assert log.positions() == {"log": 0, "log.inode": 0}
    steps = [(b"one\ntw", 4), (b"o\n", 8), (b"open\nthree\n", 8), (b"close\nfo", 25), (b"ur", 25)]
    for data, position in steps:
        with path.open("ab") as file:
            file.write(data)
        log.poll()
        assert log.positions()["log"] == position
    assert sense.seen == [b"one", b"two", b"open", b"three", b"close"]
    log.drain()
    assert sense.seen[-1] == b"four"
    assert log.positions()["log"] == path.stat().st_size
    log.close()


def test_a_log_is_read_in_blocks_that_may_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"%d " % number + b"x" * 1000 for number in range(5000)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    log, sense = source(path, [])
    while log.poll():
        pass
    assert sense.seen == lines
    log.close()


def test_a_log_that_is_moved_away_is_read_to_its_end_and_then_the_new_one(tmp_path: Path) -> None:
    path, notices = tmp_path / "log", list[str]()
    path.write_bytes(b"one\n")
    log, sense = source(path, notices)
    log.poll()
    with path.open("ab") as file:
        file.write(b"two\n")
    path.rename(tmp_path / "log.1")
    log.poll()
    path.write_bytes(b"three\n")
    log.poll()
    assert sense.seen == [b"one", b"two", b"three"]
    assert log.positions() == {"log": 6, "log.inode": path.stat().st_ino}
    assert notices == [f"{path} was replaced; the new file is read from its beginning"]
    log.close()


def test_a_log_that_was_cut_short_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, notices = tmp_path / "log", list[str]()
    path.write_bytes(b"one\ntwo\n")
    log, sense = source(path, notices)
    log.poll()
    path.write_bytes(b"three\n")
    log.poll()
    assert sense.seen == [b"one", b"two", b"three"]
    assert notices == [f"{path} was cut short; it is read from its beginning"]
    log.close()


def test_a_log_that_was_replaced_while_nobody_looked_is_not_read_from_the_old_position(
    tmp_path: Path,
) -> None:
    path, old, notices = tmp_path / "log", tmp_path / "log.1", list[str]()
    old.write_bytes(b"one\n")
    path.write_bytes(b"two\nthree\n")
    log, sense = source(path, notices, offset=4, inode=old.stat().st_ino)
    log.poll()
    assert sense.seen == [b"two", b"three"]
    log.close()


@pytest.mark.parametrize("kind", ["fifo", "directory", "link"])
def test_what_is_no_regular_file_is_refused_once_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    path, notices = tmp_path / "log", list[str]()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/etc/passwd")
    log, sense = source(path, notices)
    for _ in range(3):
        log.poll()
    assert sense.seen == []
    assert len(notices) == 1
    assert notices[0].startswith((f"{path} is not a regular file", f"cannot read {path}: "))
    log.close()


def test_kernel_records_have_numbers_and_are_read_on_behind_the_last_one(tmp_path: Path) -> None:
    device = tmp_path / "kmsg"  # a file gives all of it at once: good enough to see what is left out
    device.write_text(xid(7))
    first = Kmsg(None, [].append, device)
    assert first.last == 7
    assert first.read() == b""
    first.close()
    again = Kmsg(6, [].append, device)
    assert again.read() == xid(7).encode()
    assert again.last == 7
    again.close()
    assert sequence(b"6,1234,99,-;text, with, commas\n") == 1234
    assert sequence(b" SUBSYSTEM=pci\n") is None


def test_a_kernel_line_is_joined_to_its_gpu_and_reported_while_the_job_runs(bench: Bench) -> None:
    inventory = bench.state.parent / "nodes.toml"
    inventory.write_text(INVENTORY)
    given = bench.state.parent / "kern.log"
    given.write_text(xid(1))  # history: it was there before the first start

    async def story() -> None:
        emit = Recorder()
        local = bench.open(FOREVER, inventory=inventory, kernel_logs={"a": given})
        await local.start(emit, {})
        with given.open("a") as file:
            file.write(xid(2))
        await emit.until(SignalSeen)
        own = bench.state / "nodes" / "b" / "kernel.log"
        own.parent.mkdir(parents=True)
        own.write_bytes(b"\xff\x00rubbish\n" + xid(3).encode() + b"x" * 1_000_000 + b"\n")
        await emit.until(SignalSeen, 2)
        first, second = (event.signal for event in emit.of(SignalSeen))
        assert (first.code, first.entity, first.joined) == (
            "nvidia.xid.79",
            Entity("gpu", "a/0000:3b:00"),
            True,
        )
        assert (second.node, second.joined) == ("b", False)  # node b has no such device
        await local.close()

    run(story())


def test_what_a_kernel_log_said_while_nobody_looked_is_read_exactly_once(bench: Bench) -> None:
    inventory = bench.state.parent / "nodes.toml"
    inventory.write_text(INVENTORY)
    log = bench.state.parent / "kern.log"
    log.write_text(xid(1))

    async def story() -> None:
        numbers: list[str] = []
        cursors: dict[str, int] = {}
        for turn in range(3):
            emit = Recorder()
            local = bench.open(FOREVER, inventory=inventory, kernel_logs={"a": log})
            await local.start(emit, cursors)
            with log.open("a") as file:
                file.write(xid(10 * turn + 10))
                file.write(xid(10 * turn + 11)[:40])  # half a line
            await emit.until(SignalSeen, 1 if turn == 0 else 2)
            await local.close()
            with log.open("a") as file:
                file.write(xid(10 * turn + 11)[40:])
            numbers += [
                str(int(float(event.signal.attributes["monotonic"]))) for event in emit.of(SignalSeen)
            ]
            cursors |= emit.cursors
        assert numbers == ["10", "11", "20", "21", "30"]

    run(story())


def test_the_xid_line_that_a_job_prints_itself_is_no_kernel_record(bench: Bench) -> None:
    async def story() -> None:
        emit = Recorder()
        local = bench.open(shell(f"echo {json.dumps(xid(1).strip())}; exec sleep 600"), nodes=1)
        await local.start(emit, {})
        log = bench.rank(1, 0) / "output.log"
        await eventually(lambda: "Xid" in log.read_text(), "the line")
        await local.close()
        assert [event.signal for event in emit.of(SignalSeen) if event.signal.source == "kernel"] == []

    run(story())


def test_the_progress_file_wins_once_it_shows_a_step_and_lines_fill_in_what_it_does_not_know() -> None:
    lines = RankProgress(step=40, step_at=9.0, loss=0.5, saved_step=30, saved_at=8.0, alive_at=2.0)
    silent = RankProgress(step=-1, phase="warmup", phase_at=3.0, loaded_step=20, loaded_at=3.5, alive_at=1.0)
    assert merge(silent, lines) == RankProgress(
        step=40,
        step_at=9.0,
        loss=0.5,
        saved_step=30,
        saved_at=8.0,
        loaded_step=20,
        loaded_at=3.5,
        phase="warmup",
        phase_at=3.0,
        alive_at=1.0,
    )
    stepping = RankProgress(step=41, step_at=10.0, durations=(0.1,), alive_at=1.0)
    assert merge(stepping, lines) == RankProgress(
        step=41, step_at=10.0, durations=(0.1,), loss=0.5, saved_step=30, saved_at=8.0, alive_at=1.0
    )
    assert merge(None, lines) == lines
    assert merge(stepping, None) == stepping
