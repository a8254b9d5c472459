"""Two looks at the processes of a gang -> signals about the ranks that do not run. Pure.

What a probe can say is cheap and hard to mistake: a stopped process is stopped. It cannot say why. That a
rank uses no CPU means something only against the others: in a gang that waits on a socket nobody uses any,
and where collectives spin, the one that does not spin is the one that is not there.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from reknit.model.entities import Entity
from reknit.model.signals import Signal
from reknit.model.terms import Trust

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAUNCHER_SHARE = 0.1
"""A process that used less than this part of its child's CPU time only waits for it (`sh -c`, `env`, a
wrapper)."""
OTHERS_BUSY = 0.5
"""The part of the other ranks that must use CPU before one that uses none stands out."""
MAX_EXCERPT = 300

_FRAME = re.compile(r"^\s+(?P<function>\S.*?) \((?P<place>[^()]*)\)\s*$")


class ProcessSample(msgspec.Struct, frozen=True):
    """One process at one moment. `state` is the letter of /proc/PID/stat, `cpu_s` user and system time in
    seconds, `switches` involuntary context switches, `wchan` the kernel function in which it waits ("" where
    not readable)."""

    pid: int
    parent: int
    name: str
    state: str
    cpu_s: float
    threads: int = 0
    switches: int = 0
    wchan: str = ""


class RankSample(msgspec.Struct, frozen=True):
    """A rank's process tree at one moment; `main` is the pid of the process that Reknit started."""

    rank: int
    node: str
    main: int
    processes: tuple[ProcessSample, ...]

    def process(self, pid: int) -> ProcessSample | None:
        """One process of the tree."""
        return next((process for process in self.processes if process.pid == pid), None)


def worker(sample: RankSample) -> ProcessSample | None:
    """The process that does the rank's work: the main one, or its child where the main one only waits for
    it."""
    current = sample.process(sample.main)
    while current is not None:
        children = [process for process in sample.processes if process.parent == current.pid]
        busiest = max(children, key=lambda process: process.cpu_s, default=None)
        if busiest is None or current.cpu_s >= LAUNCHER_SHARE * busiest.cpu_s:
            return current
        current = busiest
    return None


def top_frame(dump: str) -> str:
    """The innermost Python frame of the main thread in a `py-spy dump`, as `function (file:line)`; "" where
    none."""
    found = ""
    wanted = False
    for line in dump.splitlines():
        if line.startswith("Thread "):
            wanted = not found or "MainThread" in line
        elif wanted and (frame := _FRAME.match(line)):
            found = f"{frame['function']} ({frame['place']})"
            wanted = False
    return found


def probe_signals(
    first: Sequence[RankSample],
    second: Sequence[RankSample],
    *,
    job: str,
    attempt: int,
    at: float,
    boot_id: str = "",
    frames: Mapping[int, str] | None = None,
) -> list[Signal]:
    """What two samples of the same ranks, taken about a second apart, say; `frames` is each rank's innermost
    frame.

    A rank gets at most one signal, the most telling: stopped, traced, zombie, disk wait, no CPU.
    """
    before = {sample.rank: sample for sample in first}
    spent = {sample.rank: _spent(before[sample.rank], sample) for sample in second if sample.rank in before}
    signals: list[Signal] = []
    for sample in second:
        earlier = before.get(sample.rank)
        if earlier is None:
            continue
        found = _frozen(earlier, sample) or _no_cpu(sample, spent)
        if found is None:
            continue
        code, process = found
        attributes = {
            "state": process.state,
            "pid": str(process.pid),
            "process": process.name,
            "cpu_s": f"{spent[sample.rank]:.2f}",
            "wchan": process.wchan,
            "top_frame": (frames or {}).get(sample.rank, ""),
        }
        signals.append(
            Signal(
                code=code,
                entity=Entity("rank", str(sample.rank)),
                first_seen=at,
                last_seen=at,
                source="probe",
                trust=Trust.NODE_SERVICE,
                node=sample.node,
                job=job,
                attempt=attempt,
                rank=sample.rank,
                excerpt=_excerpt(sample.rank, attributes),
                attributes=attributes,
                boot_id=boot_id,
            )
        )
    return signals


def _spent(earlier: RankSample, later: RankSample) -> float:
    """CPU seconds between two samples; a process that ended in between takes nothing away from the others."""
    old = {process.pid: process.cpu_s for process in earlier.processes}
    return round(sum(process.cpu_s - old.get(process.pid, 0.0) for process in later.processes), 3)


def _frozen(earlier: RankSample, later: RankSample) -> tuple[str, ProcessSample] | None:
    """The state that a process of the rank was in both times, if such a process cannot make progress."""
    still = [process for process in later.processes if _same_state(earlier, process)]
    for code, letter in (("rank.stopped", "T"), ("rank.traced", "t")):
        process = next((process for process in still if process.state == letter), None)
        if process is not None:
            return code, process
    main = later.process(later.main)
    if main is not None and main.state == "Z":
        return "rank.zombie", main
    working = worker(later)
    if working is not None and working.state == "D" and _same_state(earlier, working):
        return "rank.disk_wait", working
    return None


def _same_state(earlier: RankSample, process: ProcessSample) -> bool:
    before = earlier.process(process.pid)
    return before is not None and before.state == process.state


def _no_cpu(sample: RankSample, spent: Mapping[int, float]) -> tuple[str, ProcessSample] | None:
    others = [seconds for rank, seconds in spent.items() if rank != sample.rank]
    busy = sum(1 for seconds in others if seconds > 0)
    working = worker(sample)
    if working is None or spent[sample.rank] > 0 or not others or busy < OTHERS_BUSY * len(others):
        return None
    return "rank.no_cpu", working


def _excerpt(rank: int, attributes: Mapping[str, str]) -> str:
    said = (
        f"rank {rank}: process {attributes['pid']} ({attributes['process']}) in state {attributes['state']}"
    )
    said += f", {attributes['cpu_s']} s of CPU between two looks"
    said += f", waits in {attributes['wchan']}" if attributes["wchan"] else ""
    said += f", at {attributes['top_frame']}" if attributes["top_frame"] else ""
    return said[:MAX_EXCERPT]
