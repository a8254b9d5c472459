"""Starts the processes of an attempt, and ends them so that nothing of it is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from reknit.orchestrate.local import processes
from reknit.orchestrate.local.environment import rank_environment
from reknit.orchestrate.local.errors import StillAlive
from reknit.orchestrate.local.files import write_json
from reknit.orchestrate.local.processes import Identity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from reknit.orchestrate.local.environment import Launch
    from reknit.orchestrate.local.files import ShimFile
    from reknit.orchestrate.local.state_dir import AttemptDir, PlanFile, RankDir

SHIM = Path(__file__).with_name("shim.py")
BEGIN_S = 30.0
"""How long a shim may take to start its rank; a Python interpreter on an overloaded machine takes seconds."""
BEGIN_POLL_S = 0.01
SLACK_S = 2.0
"""After the grace period, for the shims to kill and reap."""
SWEEP_S = 5.0
"""How long a process may take to die of SIGKILL: one that frees hundreds of gigabytes takes seconds."""
SWEEP_POLL_S = 0.02


async def start_gang(attempt: AttemptDir, plan: PlanFile, launch: Launch) -> int:
    """Start every rank of a plan that has never been started, and wait until all have begun or failed to.

    Returns how many were started now. Starts nothing of an attempt that is being ended. Raises OSError.
    """
    if attempt.stopping() is not None:
        return 0
    started: dict[int, Identity | None] = {}
    for place in plan.placement:
        folder = attempt.rank(place.rank)
        if was_started(folder):
            continue
        folder.path.mkdir(parents=True, exist_ok=True)
        write_json(folder.spec, {"argv": launch.command, "cwd": launch.cwd, "grace_s": launch.grace_s})
        env = rank_environment(launch, plan, place, folder)
        started[place.rank] = processes.identify(_spawn(folder, env))
    await _begun(attempt, plan, started)
    return len(started)


def was_started(folder: RankDir) -> bool:
    """Whether this rank was started before, whatever became of it."""
    return folder.shim() is not None or folder.exit() is not None or folder.watched()


def _spawn(folder: RankDir, env: Mapping[str, str]) -> int:
    """Start a shim in a session of its own, so that it outlives this process; returns its pid."""
    log = str(folder.shim_log)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", str(SHIM), str(folder.spec)],
        env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
    )


async def _begun(attempt: AttemptDir, plan: PlanFile, started: Mapping[int, Identity | None]) -> None:
    waiting = [place.rank for place in plan.placement]
    until = time.monotonic() + BEGIN_S
    while time.monotonic() < until:
        waiting = [rank for rank in waiting if not _has_begun(attempt.rank(rank), started.get(rank))]
        if not waiting:
            return
        await asyncio.sleep(BEGIN_POLL_S)


def _has_begun(folder: RankDir, spawned: Identity | None) -> bool:
    shim = folder.shim()
    if shim is not None and shim.rank_pid:
        return True
    if folder.exit() is not None:
        return True
    return not folder.watched() and not (spawned is not None and spawned.alive)


def shim_of(shim: ShimFile) -> Identity:
    """The shim's identity."""
    return Identity(shim.shim_pid, shim.shim_start, shim.boot_id)


def main_of(shim: ShimFile) -> Identity:
    """The identity of the rank's main process."""
    return Identity(shim.rank_pid, shim.rank_start, shim.boot_id)


async def end_gang(attempt: AttemptDir, ranks: Iterable[int], grace_s: float) -> None:
    """End every process of an attempt: SIGTERM, after `grace_s` SIGKILL, then whoever still carries its mark.

    Returns when nothing is left. Raises StillAlive where something does not die.
    """
    with contextlib.suppress(OSError):  # a full disk must not keep anything alive
        attempt.write_stopping(grace_s)
    shims = [shim_of(shim) for rank in ranks if (shim := attempt.rank(rank).shim()) is not None]
    for shim in shims:
        shim.send(signal.SIGTERM)
    if not await all_gone(shims, grace_s + SLACK_S):
        for shim in shims:
            kill_tree(shim)
    await sweep(attempt.mark)


def kill_tree(shim: Identity) -> None:
    """SIGKILL to a shim's descendants, then to the shim: the other way round they would escape to init."""
    if not shim.alive:
        return
    below = [processes.identify(process.pid) for process in processes.descendants(shim.pid)]
    for who in (*below, shim):
        if who is not None:
            who.send(signal.SIGKILL)


async def sweep(mark: bytes) -> None:
    """Kill whoever carries the mark until nobody does. Raises StillAlive, which names who is left."""
    until = time.monotonic() + SWEEP_S
    while left := await asyncio.to_thread(processes.marked, mark):
        if time.monotonic() > until:
            raise StillAlive(_describe(left))
        for who in left:
            who.send(signal.SIGKILL)
        await all_gone(left, SWEEP_POLL_S)


def _describe(left: Mapping[Identity, str]) -> str:
    who, where = next(iter(left.items()))
    found = processes.stat(who.pid)
    state = f"{found.name}, state {found.state}" if found else "gone by now"
    return (
        f"{len(left)} processes do not die of SIGKILL, such as {who.pid} ({state}; {where}); "
        "one in state D waits for a device or a file server: look at that"
    )


async def all_gone(whom: Collection[Identity], timeout_s: float) -> bool:
    """Wait until none of these processes is left, for at most `timeout_s`. Reaps those that are our
    children."""
    gone = [asyncio.ensure_future(_gone(who)) for who in whom]
    if not gone:
        return True
    _, pending = await asyncio.wait(gone, timeout=timeout_s)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return not pending


async def _gone(who: Identity) -> None:
    handle = who.pidfd()
    if handle is not None:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        try:
            loop.add_reader(handle, ended.set)
            await ended.wait()
        finally:
            loop.remove_reader(handle)
            os.close(handle)
    who.reap()
