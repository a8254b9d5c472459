"""Looks at the ranks of an attempt while they are still there, and keeps what was seen. Changes nothing."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec

from reknit.orchestrate.local import processes, stacks
from reknit.orchestrate.local.files import read_json, write_json
from reknit.orchestrate.local.ranks import main_of, shim_of
from reknit.sense.probe import ProcessSample, RankSample, probe_signals, top_frame, worker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from reknit.model.commands import CaptureEvidence
    from reknit.model.signals import Signal
    from reknit.orchestrate.local.state_dir import AttemptDir, PlanFile

GAP_S = 1.0
"""Between the two looks. CPU time is counted in ticks of 10 ms."""
SHORT_GAP_S = 0.2
"""Where the deadline is near."""
STACK_S = 5.0
"""For one py-spy; it starts in 0.1 s and takes some more for a process with many threads."""
AT_ONCE = 4
"""py-spy processes at a time: the machine has other work."""
RESERVE_S = 0.5
"""Kept free before the deadline for writing down what was seen."""


class SamplesFile(msgspec.Struct, frozen=True):
    """`samples.json`: two looks at every rank, with the innermost Python frame where one was found, and the
    id of the command that asked."""

    command: str
    at: float
    first: tuple[RankSample, ...]
    second: tuple[RankSample, ...]
    frames: dict[int, str] = {}


async def capture(attempt: AttemptDir, plan: PlanFile, command: CaptureEvidence, folder: Path) -> SamplesFile:
    """Sample every rank of the attempt twice, take stacks of the command's ranks, and write it all into
    `folder`.

    What was captured for the same command before is returned as it is: the ranks may be gone by now. Raises
    OSError where nothing can be written.
    """
    known = read_json(folder / "samples.json", SamplesFile)
    if known is not None and known.command == command.id:
        return known
    left = command.deadline - time.time()
    first = sample_gang(attempt, plan)
    taken_at = time.monotonic()
    texts, frames = await _stacks(first, command.ranks, max(0.1, min(STACK_S, left - RESERVE_S)))
    gap = GAP_S if left > GAP_S + RESERVE_S else SHORT_GAP_S
    await asyncio.sleep(max(0.0, taken_at + gap - time.monotonic()))
    second = sample_gang(attempt, plan)
    samples = SamplesFile(
        command=command.id, at=time.time(), first=tuple(first), second=tuple(second), frames=frames
    )
    _keep(folder, samples, texts)
    return samples


def _keep(folder: Path, samples: SamplesFile, texts: Mapping[int, str]) -> None:
    """The samples last: where they are, everything is."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, text in texts.items():
        (folder / f"rank-{rank}.txt").write_text(text, encoding="utf-8", errors="replace")
    write_json(folder / "samples.json", samples)


def signals_of(samples: SamplesFile, job: str, plan: PlanFile) -> list[Signal]:
    """What the samples say."""
    return probe_signals(
        samples.first,
        samples.second,
        job=job,
        attempt=plan.attempt,
        at=samples.at,
        boot_id=plan.boot_id,
        frames=samples.frames,
    )


def sample_gang(attempt: AttemptDir, plan: PlanFile) -> list[RankSample]:
    """Every rank that still has processes, as it is now."""
    found: list[RankSample] = []
    everybody = processes.everybody()
    for place in plan.placement:
        shim = attempt.rank(place.rank).shim()
        if shim is None or not shim_of(shim).alive:
            continue
        main = main_of(shim).pid
        tree = tuple(_sample(process) for process in processes.descendants(shim.shim_pid, everybody))
        if tree:
            found.append(RankSample(rank=place.rank, node=place.node, main=main, processes=tree))
    return found


def _sample(process: processes.Stat) -> ProcessSample:
    return ProcessSample(
        pid=process.pid,
        parent=process.parent,
        name=process.name,
        state=process.state,
        cpu_s=process.cpu_s,
        threads=process.threads,
        switches=stacks.involuntary_switches(process.pid),
        wchan=stacks.wchan(process.pid),
    )


async def _stacks(
    samples: Iterable[RankSample], ranks: Collection[int], timeout_s: float
) -> tuple[dict[int, str], dict[int, str]]:
    """For each wanted rank the text of its file, and its innermost Python frame where there is one."""
    program = stacks.find_py_spy()
    wanted = [sample for sample in samples if sample.rank in ranks]
    turns = asyncio.Semaphore(AT_ONCE)
    until = time.monotonic() + timeout_s

    async def look(sample: RankSample) -> tuple[int, str, str]:
        async with turns:
            text, frame = await _look(sample, program, until)
            return sample.rank, text, frame

    seen = await asyncio.gather(*(look(sample) for sample in wanted))
    return {rank: text for rank, text, _ in seen}, {rank: frame for rank, _, frame in seen if frame}


async def _look(sample: RankSample, program: str | None, until: float) -> tuple[str, str]:
    working = worker(sample)
    parts = [f"rank {sample.rank} on {sample.node}\n"]
    frame = ""
    for process in sample.processes:
        parts.append(
            f"\nprocess {process.pid} ({process.name}), parent {process.parent}, state {process.state}, "
            f"{process.cpu_s:.2f} s of CPU, {process.threads} threads, {process.switches} involuntary "
            f"switches, waits in {process.wchan or '-'}\n"
        )
        parts.append(stacks.kernel_view(process.pid))
        if working is not None and process.pid == working.pid:
            dump, problem = await _python(program, process.pid, until)
            frame = top_frame(dump)
            parts.append(f"Python threads:\n{dump}{problem}\n")
    return "".join(parts), frame


async def _python(program: str | None, pid: int, until: float) -> tuple[str, str]:
    left = until - time.monotonic()
    if program is None:
        return "", "py-spy is not installed; `pip install reknit[stacks]` brings it"
    if left <= 0:
        return "", "no time was left"
    return await stacks.python_stack(program, pid, left)
