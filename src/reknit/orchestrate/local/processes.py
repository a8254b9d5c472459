"""Processes as /proc shows them: who they are, whether they live, who descends from whom, and how to signal
one safely.

A pid alone names nobody: the kernel gives it again. A process is known by pid, start time and boot.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
GONE = frozenset("ZX")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says. `cpu_s` is user and system time in seconds; `start` is in clock ticks since
    boot."""

    pid: int
    name: str
    state: str
    parent: int
    cpu_s: float
    threads: int
    start: int


@dataclass(frozen=True)
class Identity:
    """One process for good, on one boot of one machine. pid 0 is nobody."""

    pid: int
    start: int
    boot_id: str

    @property
    def alive(self) -> bool:
        """Whether this very process still runs. A zombie does not."""
        return is_same(self) and (found := stat(self.pid)) is not None and found.state not in GONE

    def pidfd(self) -> int | None:
        """A descriptor that becomes readable when the process ends and by which nobody else can be signalled;
        None where it is gone. Who it is, is checked after opening, so that the pid cannot change hands in
        between."""
        if not is_same(self):
            return None
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return None  # and only then: too many open files do not make a process disappear
        if self.alive:
            return handle
        os.close(handle)
        return None

    def send(self, number: signal.Signals) -> bool:
        """Signal this very process. Returns whether it was still there."""
        handle = self.pidfd()
        if handle is None:
            return False
        try:
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def reap(self) -> None:
        """Collect it where it is a zombie child of ours; nothing otherwise."""
        if is_same(self):
            with contextlib.suppress(ChildProcessError, ProcessLookupError):
                os.waitpid(self.pid, os.WNOHANG)


def is_same(who: Identity) -> bool:
    """Whether the process that now has this pid is the one that is meant, alive or a zombie."""
    if who.pid <= 0 or who.boot_id != boot_id():
        return False
    found = stat(who.pid)
    return found is not None and found.start == who.start


def boot_id() -> str:
    """The boot of this machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Identity | None:
    """Who has this pid now."""
    found = stat(pid)
    return None if found is None else Identity(pid, found.start, boot_id())


def stat(pid: int) -> Stat | None:
    """One process, or None where there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Stat(
        pid=pid,
        name=head.partition("(")[2],
        state=fields[0],
        parent=int(fields[1]),
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        threads=int(fields[17]),
        start=int(fields[19]),
    )


def everybody() -> list[Stat]:
    """Every process that can be seen."""
    pids = [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdigit()]
    return [found for pid in pids if (found := stat(pid)) is not None]


def descendants(root: int, among: list[Stat] | None = None) -> list[Stat]:
    """Everybody below `root`, parents before children, zombies included; `among` is one look at everybody."""
    children: dict[int, list[Stat]] = {}
    for process in everybody() if among is None else among:
        children.setdefault(process.parent, []).append(process)
    found = list(children.get(root, ()))
    for process in found:
        found.extend(children.get(process.pid, ()))
    return found


def marked(mark: bytes) -> dict[Identity, str]:
    """Everybody alive whose environment holds a variable that begins with `mark` (`NAME=value...`), and the
    rest of that variable.

    Other people's processes cannot be read and are left out, and so is this very process. Reading an
    environment waits for the process's memory lock, which one that hangs in the kernel may hold: call this in
    a thread.
    """
    boot = boot_id()
    found: dict[Identity, str] = {}
    needle = b"\0" + mark
    for process in everybody():
        if process.pid == os.getpid() or process.state in GONE:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            text = b"\0" + (PROC / str(process.pid) / "environ").read_bytes()
            _, hit, rest = text.partition(needle)
            if hit:
                found[Identity(process.pid, process.start, boot)] = os.fsdecode(rest.partition(b"\0")[0])
    return found
