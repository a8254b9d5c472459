"""The five acts of the demo: what is broken, how it is broken for real, and what Reknit is expected to make of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from reknit.orchestrate.local.files import ShimFile, read_json

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from reknit.cli.session import Session
    from reknit.model.incidents import Incident
    from reknit.model.state import JobView

_POLL_S = 0.05
_STAGE_S = 30.0
"""What an act may take before the demo gives up on it."""
_STOPPED_S, _RUNNING_S = 0.12, 0.05
"""How a slow node is made: its ranks are stopped for most of the time, as a throttled GPU is."""


class ActFailed(Exception):
    """Something did not happen that should have; the message says what."""


class Expected(NamedTuple):
    """What an incident should say: class, blamed entity (None for nobody on the hardware side), what was done."""

    title: str
    failure_class: str
    culprit: str
    action: str
    quarantined: tuple[str, ...] = ()


class Stage:
    """The running job, and the hands that break it."""

    def __init__(self, session: Session, faults: Path) -> None:
        self._session = session
        self._faults = faults
        self.expected: list[Expected] = []

    @property
    def job(self) -> JobView:
        """The job as the engine sees it."""
        job = self._session.job
        if job is None:
            raise ActFailed("the job was never submitted")
        return job

    @property
    def incidents(self) -> list[Incident]:
        """All incidents so far."""
        return list(self._session.controller.engine.state.incidents.values())

    async def until(self, what: str, ready: Callable[[], bool], seconds: float = _STAGE_S) -> None:
        """Wait for something to be true. Raises ActFailed when it takes too long."""
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise ActFailed(f"waited {seconds:.0f} s in vain for {what}")
            await asyncio.sleep(_POLL_S)

    async def trains(self, steps: int = 12) -> None:
        """Wait until the job makes steps that are new, has saved a checkpoint, and no incident is in its way."""
        await self.until("the job to be submitted", lambda: self._session.job is not None)
        job = self.job
        await self.until(
            "the job to train", lambda: job.state == "running" and not self._busy() and job.high_step >= 0
        )
        goal, saved = job.high_step + steps, job.saved_step
        await self.until(
            f"step {goal} and a checkpoint",
            lambda: job.high_step >= goal and job.saved_step > saved and not job.restarts,
        )

    def _busy(self) -> bool:
        return any(i.job is not None and i.job.open for i in self.incidents)

    async def settled(self, count: int) -> None:
        """Wait until this many incidents exist and the job is no longer concerned by any."""
        await self.until(
            f"incident {count} to be over", lambda: len(self.incidents) >= count and not self._busy()
        )

    def pid(self, rank: int) -> int:
        """The rank's process."""
        path = (
            self._session.orchestrator.root
            / "attempts"
            / str(self.job.attempt)
            / f"rank-{rank}"
            / "shim.json"
        )
        shim = read_json(path, ShimFile)
        if shim is None or not shim.rank_pid:
            raise ActFailed(f"rank {rank} has no process")
        return shim.rank_pid

    def send(self, rank: int, number: signal.Signals) -> None:
        """A signal to a rank, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(rank), number)

    def kernel(self, node: str, text: str) -> None:
        """A record in a node's kernel log, as the kernel writes it: priority 4 of facility 0."""
        path = self._session.orchestrator.root / "nodes" / node / "kernel.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            log.write(f"4,1,{time.monotonic_ns() // 1000},-;{text}\n")

    def fault(self, **what: object) -> None:
        """A fault for the training program, which looks at this file once a step."""
        draft = self._faults.with_suffix(".new")
        draft.write_text(json.dumps([what]))
        draft.replace(self._faults)


async def killed_rank(stage: Stage) -> None:
    """A rank is killed with SIGKILL, by nobody knows whom."""
    stage.expected.append(Expected("a rank is killed with SIGKILL", "unknown", "rank 3", "restart in place"))
    stage.send(3, signal.SIGKILL)
    await stage.settled(1)


async def lost_gpu(stage: Stage) -> None:
    """A GPU falls off the bus: the kernel says XID 79, and the rank on it dies of the error that CUDA gives then."""
    stage.expected.append(
        Expected(
            "a GPU falls off the bus", "gpu_hardware", "gpu node1/0000:1a:00", "restart away", ("node1",)
        )
    )
    rank = stage.job.ranks_on("node1")[0]
    stage.kernel(
        "node1",
        f"NVRM: Xid (PCI:0000:1a:00): 79, pid={stage.pid(rank)}, name=python, GPU has fallen off the bus.",
    )
    stage.fault(kind="cuda_error", rank=rank, attempt=stage.job.attempt)
    await stage.settled(2)


async def frozen_rank(stage: Stage) -> None:
    """A rank is frozen: nothing is printed, nothing exits, all others wait for it."""
    stage.expected.append(
        Expected("a rank freezes", "timeout_hang_symptom_only", "rank 5", "restart in place")
    )
    stage.send(5, signal.SIGSTOP)
    await stage.settled(3)


async def slow_node(stage: Stage) -> None:
    """A node becomes slow, and is well again."""
    node = stage.job.nodes[-1]
    stage.expected.append(Expected("a node becomes slow", "degradation", f"node {node}", "reported"))
    ranks = stage.job.ranks_on(node)
    try:
        end = time.monotonic() + _STAGE_S
        while node not in stage.job.slow:
            if time.monotonic() > end:
                raise ActFailed(f"{node} was slow for {_STAGE_S:.0f} s and nobody noticed")
            for number, pause in ((signal.SIGSTOP, _STOPPED_S), (signal.SIGCONT, _RUNNING_S)):
                for rank in ranks:
                    stage.send(rank, number)
                await asyncio.sleep(pause)
    finally:
        for rank in ranks:
            stage.send(rank, signal.SIGCONT)
    await stage.until(f"{node} to be well again", lambda: node not in stage.job.slow)


async def bad_data(stage: Stage) -> None:
    """A sample is broken: the same exception at the same step, however often the job is started."""
    stage.expected.append(Expected("the same exception at the same step twice", "user_code", "", "stopped"))
    stage.fault(kind="bad_sample", step=stage.job.high_step + 8)
    await stage.until("the job to be stopped", lambda: stage.job.result == "stopped")


ACTS: tuple[Callable[[Stage], Awaitable[None]], ...] = (
    killed_rank,
    lost_gpu,
    frozen_rank,
    slow_node,
    bad_data,
)


async def play(stage: Stage, announce: Callable[[str], None]) -> None:
    """All acts, one after another. Raises ActFailed where something expected did not happen."""
    for number, act in enumerate(ACTS, start=1):
        await stage.trains()
        announce(f"Act {number} of {len(ACTS)}: {(act.__doc__ or '').strip()}")
        await act(stage)


def verify(stage: Stage) -> list[str]:
    """What the incidents say that they should not, in sentences; none where all is as expected."""
    wrong: list[str] = []
    found = stage.incidents
    if len(found) != len(stage.expected):
        wrong.append(f"{len(stage.expected)} incidents were expected and {len(found)} were found")
    for expected, incident in zip(stage.expected, found, strict=False):
        wrong += [f"{incident.id} ({expected.title}): {text}" for text in _differences(expected, incident)]
    return wrong


def _differences(expected: Expected, incident: Incident) -> list[str]:
    verdict = incident.diagnosis
    if verdict is None:
        return ["there is no diagnosis"]
    blamed = str(verdict.culprit or "")
    nodes = tuple(b.node for b in incident.nodes if b.holds)
    done = _done(incident)
    checks = (
        ("class", verdict.failure_class.value, expected.failure_class),
        ("blamed", blamed if expected.culprit else "", expected.culprit),
        ("done", done, expected.action),
        ("quarantined", nodes, expected.quarantined),
    )
    return [f"{name} is {was!r}, not {wanted!r}" for name, was, wanted in checks if was != wanted]


def _done(incident: Incident) -> str:
    if incident.job is None:
        return "reported"
    if incident.job.state == "stopped":
        return "stopped"
    return "restart away" if incident.job.moved_off else "restart in place"
