"""Watches the ranks of one attempt: reads what they write, and reports how each one ends.

Order matters to whoever diagnoses: what a rank said is reported before its end, its end before the attempt's,
and the attempt's end only when no process of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

from reknit.model.events import AttemptEnded, JobSucceeded, ProgressSeen, RankExited
from reknit.orchestrate.local.errors import StillAlive, why
from reknit.orchestrate.local.files import ExitFile
from reknit.orchestrate.local.rank_progress import RankProgressReader
from reknit.orchestrate.local.ranks import main_of, shim_of, sweep
from reknit.orchestrate.local.senses import RankLogSense
from reknit.orchestrate.local.sources import LogSource
from reknit.orchestrate.local.tail import Tail
from reknit.sense.progress_lines import LineProgress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reknit.model.entities import RankPlacement
    from reknit.orchestrate.local.processes import Identity
    from reknit.orchestrate.local.settings import LocalSettings
    from reknit.orchestrate.local.state_dir import AttemptDir, PlanFile
    from reknit.orchestrate.port import Emit

SOON_S = 0.005
"""How often to look for the exit status of a rank that has just ended."""
STATUS_S = 3.0
"""How long its shim may take to write it. A disk may be full."""
STILL_ALIVE_AGAIN_S = 2.0
SHIM_LOG_BYTES = 1000


class RankWatch:
    """One rank."""

    def __init__(
        self,
        attempt: AttemptDir,
        place: RankPlacement,
        settings: LocalSettings,
        emit: Emit,
        cursors: Mapping[str, int],
    ) -> None:
        self.place = place
        self.folder = attempt.rank(place.rank)
        self.exit: ExitFile | None = None
        self.shim: Identity | None = None
        self.pidfds: dict[int, str] = {}
        self.main_gone_at = 0.0
        lines = LineProgress(settings.catalog.progress, settings.log_regex)
        log = f"log/{attempt.number}/{place.rank}"
        self.log = LogSource(
            log,
            Tail(
                self.folder.output,
                cursors.get(log, 0),
                settings.notice,
                inode=cursors.get(f"{log}.inode", 0),
            ),
            RankLogSense(
                settings.catalog,
                job=settings.job.id,
                attempt=attempt.number,
                rank=place.rank,
                node=place.node,
                progress=lines,
            ),
            emit,
        )
        self.progress_name = f"progress/{attempt.number}/{place.rank}"
        seen = cursors.get(self.progress_name, 0)
        self.progress = RankProgressReader(self.folder.progress, lines, seen, settings.notice)

    @property
    def shim_gone(self) -> bool:
        """Whether nobody watches over the rank's descendants any more."""
        return not self.folder.watched() if self.shim is None else not self.shim.alive

    def outcome(self) -> ExitFile | None:
        """How the main process ended; None while it runs, or while its status may still come."""
        gone = self.shim_gone  # asked first: a shim writes the status before it goes
        found = self.folder.exit()
        if found is not None:
            return found
        late = self.main_gone_at > 0.0 and time.monotonic() - self.main_gone_at > STATUS_S
        return ExitFile(at=time.time()) if gone or late else None


class AttemptWatch:
    """One attempt, from its start or its adoption until nothing of it is left."""

    def __init__(
        self,
        attempt: AttemptDir,
        plan: PlanFile,
        settings: LocalSettings,
        emit: Emit,
        cursors: Mapping[str, int],
    ) -> None:
        self.attempt = attempt
        self.plan = plan
        self._settings = settings
        self._emit = emit
        self._wake = asyncio.Event()
        self._progress_at = 0.0
        self._told = ""
        self.ranks = [RankWatch(attempt, place, settings, emit, cursors) for place in plan.placement]
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look once, and go on looking."""
        self._look()
        self._task = asyncio.create_task(self._run(), name=f"watch attempt {self.attempt.number}")

    @property
    def all_running(self) -> bool:
        """Whether no rank has ended yet."""
        return all(rank.exit is None for rank in self.ranks)

    @property
    def all_exited(self) -> bool:
        """Whether every rank's main process has ended."""
        return all(rank.exit is not None for rank in self.ranks)

    @property
    def succeeded(self) -> bool:
        """Whether all ranks ended with 0 of their own accord: some catch SIGTERM and then exit with 0."""
        return all(
            rank.exit is not None and rank.exit.code == 0 and not rank.exit.asked for rank in self.ranks
        )

    async def ended(self, timeout_s: float) -> bool:
        """Wait until the attempt's end was reported; False where that takes longer than `timeout_s`."""
        if self._task is None:
            return True
        done, _ = await asyncio.wait([self._task], timeout=timeout_s)
        return bool(done)

    async def close(self) -> None:
        """Stop watching. What runs goes on running."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        loop = asyncio.get_running_loop()
        for rank in self.ranks:
            for handle in rank.pidfds:
                loop.remove_reader(handle)
                os.close(handle)
            rank.pidfds.clear()
            rank.log.close()

    async def _run(self) -> None:
        more = False
        while not (self.all_exited and all(rank.shim_gone for rank in self.ranks)):
            await self._pause(0.0 if more else self._patience())
            more = self._look()
        for rank in self.ranks:
            rank.log.drain()
        await self._nothing_left()
        for rank in self.ranks:
            if rank.shim is not None:
                rank.shim.reap()
        job, number = self._settings.job.id, self.attempt.number
        self._emit(AttemptEnded(job=job, attempt=number))
        if self.succeeded:
            self._emit(JobSucceeded(job=job, attempt=number))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)
        self._wake.clear()

    def _patience(self) -> float:
        status_due = any(rank.exit is None and rank.main_gone_at for rank in self.ranks)
        return SOON_S if status_due else self._settings.log_poll_s

    def _look(self) -> bool:
        """Read what is new and report it. Returns whether there may be more."""
        try:
            return self._look_once()
        except OSError as error:
            self._tell(f"cannot look at attempt {self.attempt.number}: {why(error)}; it is tried again")
            return False

    def _look_once(self) -> bool:
        more = False
        for rank in self.ranks:
            self._arm(rank)
            more |= rank.log.poll()
        if time.monotonic() - self._progress_at >= self._settings.progress_poll_s:
            self._progress_at = time.monotonic()
            self._report_progress(self.ranks)
        for rank in self.ranks:
            if rank.exit is None and not (rank.pidfds and not rank.main_gone_at):
                self._settle(rank)
        return more

    def _arm(self, rank: RankWatch) -> None:
        """Be woken when the shim or the main process ends."""
        if rank.shim is not None or rank.exit is not None:
            return
        found = rank.folder.shim()
        if found is None or not found.rank_pid:
            return
        rank.shim = shim_of(found)
        loop = asyncio.get_running_loop()
        for what, who in (("shim", rank.shim), ("main", main_of(found))):
            handle = who.pidfd()
            if handle is None:
                self._note_gone(rank)
            else:
                rank.pidfds[handle] = what
                loop.add_reader(handle, self._fired, rank, handle)

    def _fired(self, rank: RankWatch, handle: int) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        del rank.pidfds[handle]
        self._note_gone(rank)
        self._wake.set()

    def _note_gone(self, rank: RankWatch) -> None:
        rank.main_gone_at = rank.main_gone_at or time.monotonic()

    def _settle(self, rank: RankWatch) -> None:
        """Report a rank's end, once it is known, after everything that it wrote."""
        found = rank.outcome()
        if found is None:
            return
        rank.exit = found
        rank.log.drain()
        self._report_progress([rank])
        if found.code is None and found.signal is None:
            self._say_lost(rank)
        self._emit(
            RankExited(
                job=self._settings.job.id,
                attempt=self.attempt.number,
                rank=rank.place.rank,
                at=found.at,
                code=found.code,
                signal=found.signal,
                asked=found.asked,
            ),
            rank.log.positions(),
        )

    def _report_progress(self, ranks: list[RankWatch]) -> None:
        news = {rank.place.rank: found for rank in ranks if (found := rank.progress.news()) is not None}
        if news:
            seen = {rank.progress_name: rank.progress.seen for rank in ranks if rank.place.rank in news}
            self._emit(ProgressSeen(job=self._settings.job.id, attempt=self.attempt.number, ranks=news), seen)

    def _say_lost(self, rank: RankWatch) -> None:
        said = ""
        with contextlib.suppress(OSError):
            said = rank.folder.shim_log.read_text(errors="replace")[-SHIM_LOG_BYTES:].strip()
        self._settings.notice(
            f"nobody saw how rank {rank.place.rank} of attempt {self.attempt.number} ended"
            + (f"; its shim said: {said}" if said else "")
        )

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._settings.notice(text)

    async def _nothing_left(self) -> None:
        while True:
            try:
                await sweep(self.attempt.mark)
            except StillAlive as error:
                self._tell(str(error))
                await asyncio.sleep(STILL_ALIVE_AGAIN_S)
            else:
                return
