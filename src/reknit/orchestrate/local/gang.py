"""Keeps the gang: at most one attempt of it at a time, whatever is asked and whenever this program was
killed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from reknit.model.events import AttemptEnded, AttemptStarted, CommandDone, CommandFailed
from reknit.orchestrate.local import processes
from reknit.orchestrate.local.environment import Launch, free_port
from reknit.orchestrate.local.errors import NoRoom, StateError, StillAlive, why
from reknit.orchestrate.local.placement import place
from reknit.orchestrate.local.ranks import SWEEP_S, end_gang, start_gang, sweep
from reknit.orchestrate.local.state_dir import PlanFile, StoppedFile
from reknit.orchestrate.local.watch import AttemptWatch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from reknit.model.commands import RestartGang, StopJob
    from reknit.model.entities import Node, RankPlacement
    from reknit.orchestrate.local.settings import LocalSettings
    from reknit.orchestrate.local.state_dir import AttemptDir, StateDir
    from reknit.orchestrate.port import Emit

REPORT_S = SWEEP_S + 5.0
"""How long the watch of an attempt whose processes are gone may take to read their last words."""


class Gang:
    """The job's attempts on this machine. `settings.job` is the run's own."""

    def __init__(
        self,
        state: StateDir,
        settings: LocalSettings,
        nodes: Mapping[str, Node],
        emit: Emit,
        cursors: Mapping[str, int],
    ) -> None:
        self._state = state
        self._settings = settings
        self._job = settings.job
        self._nodes = nodes
        self._shared = Launch(
            job=settings.job,
            command=state.run.command,
            cwd=state.run.cwd,
            nodes=nodes,
            base=settings.environment,
            grace_s=settings.grace_s,
        )
        self._emit = emit
        self._cursors = cursors
        self._busy = asyncio.Lock()
        self._watch: AttemptWatch | None = None

    async def begin(self) -> None:
        """Adopt the newest attempt, or start the first one where there is none. Raises LocalError or
        OSError."""
        async with self._busy:
            numbers = self._state.attempts()
            await self._end_older(numbers[-1] if numbers else 0)
            if not numbers:
                if self._state.stopped() is None:
                    await self._start(1, self._place((), ()))
                return
            newest = self._state.attempt(numbers[-1])
            plan = self._plan_of(newest)
            self._announce(plan)
            if plan.boot_id == processes.boot_id() and self._state.stopped() is None:
                await self._launch(newest, plan)
            self._begin_watch(newest, plan)

    async def close(self) -> None:
        """Stop watching. What runs goes on running."""
        if self._watch is not None:
            await self._watch.close()

    def rank_of_pid(self, pid: int) -> tuple[int, RankPlacement] | None:
        """The attempt and the rank whose main process this is, or was, in the newest attempt."""
        found = self.attempt(max(self._state.attempts(), default=0))
        if found is None:
            return None
        attempt, plan = found
        for place_ in plan.placement:
            shim = attempt.rank(place_.rank).shim()
            if shim is not None and shim.rank_pid == pid:
                return attempt.number, place_
        return None

    def attempt(self, number: int) -> tuple[AttemptDir, PlanFile] | None:
        """An attempt that was planned."""
        found = self._state.attempt(number)
        plan = found.plan()
        return None if plan is None else (found, plan)

    async def restart(self, command: RestartGang) -> CommandDone | CommandFailed:
        """End the newest attempt and start the next, or find that this was done. Raises LocalError or
        OSError."""
        async with self._busy:
            stopped = self._state.stopped()
            if stopped is not None:
                return CommandFailed(command.id, f"the job was stopped: {stopped.reason}", retry=False)
            newest = max(self._state.attempts(), default=0)
            if newest > command.next_attempt:
                return CommandDone(command.id, f"already superseded by attempt {newest}")
            if newest == command.next_attempt:
                return await self._finish_start(command)
            watch = self._watch
            if watch is not None and watch.succeeded:
                return CommandDone(command.id, "every rank had ended with status 0; nothing was restarted")
            placement = await self._make_room(command, newest)
            await self._start(command.next_attempt, placement)
            where = ", ".join(dict.fromkeys(rank.node for rank in placement))
            return CommandDone(command.id, f"attempt {command.next_attempt} runs on {where}")

    async def stop(self, command: StopJob) -> CommandDone | CommandFailed:
        """End the job for good. Raises LocalError or OSError."""
        async with self._busy:
            newest = max(self._state.attempts(), default=0)
            if newest > command.attempt and self._state.stopped() is None:
                return CommandDone(command.id, f"already superseded by attempt {newest}")
            if self._state.stopped() is None:
                self._state.write_stopped(
                    StoppedFile(
                        incident=command.incident, reason=command.reason, attempt=newest, at=time.time()
                    )
                )
            await self._end(newest, command.grace_s)
            return CommandDone(command.id, f"attempt {newest} was ended and no other is started")

    async def _finish_start(self, command: RestartGang) -> CommandDone:
        """The next attempt exists: whoever started it was perhaps killed before all ranks were, or before
        saying so."""
        attempt = self._state.attempt(command.next_attempt)
        plan = self._plan_of(attempt)
        self._emit(AttemptEnded(job=self._job.id, attempt=command.attempt))
        self._announce(plan)
        started = await self._launch(attempt, plan) if plan.boot_id == processes.boot_id() else 0
        if self._watch is None or self._watch.attempt.number != attempt.number:
            if self._watch is not None:
                await self._watch.close()
            self._begin_watch(attempt, plan)
        more = f"; {started} ranks of it were still missing" if started else ""
        return CommandDone(command.id, f"attempt {attempt.number} runs already{more}")

    async def _make_room(self, command: RestartGang, newest: int) -> tuple[RankPlacement, ...]:
        """End the newest attempt and find places for the next.

        Where there are none, a gang of which every rank still runs is left alone: it may yet be of use. What
        is left of a broken one is ended all the same. Raises NoRoom.
        """
        before = self.attempt(newest)
        previous = before[1].placement if before else ()
        try:
            placement = self._place(previous, command.avoid)
        except NoRoom:
            if self._watch is None or not self._watch.all_running:
                await self._end(newest, command.grace_s)
            raise
        await self._end(newest, command.grace_s)
        return placement

    def _place(
        self, previous: Collection[RankPlacement], avoid: Collection[str]
    ) -> tuple[RankPlacement, ...]:
        nodes = tuple(self._nodes.values())
        quarantined = {node.name for node in nodes if self._state.quarantine(node.name).exists()}
        return place(self._job, nodes, tuple(previous), avoid, quarantined)

    async def _start(self, number: int, placement: tuple[RankPlacement, ...]) -> None:
        """Write the plan, then start what it says."""
        attempt = self._state.attempt(number)
        last = self.attempt(number - 1)
        plan = PlanFile(
            attempt=number,
            placement=placement,
            port=free_port(avoid=last[1].port if last else 0),
            boot_id=processes.boot_id(),
            created_at=time.time(),
        )
        await self._end_older(number)
        attempt.write_plan(plan)
        self._announce(plan)
        await self._launch(attempt, plan)
        if self._watch is not None:
            await self._watch.close()
        self._begin_watch(attempt, plan)

    async def _launch(self, attempt: AttemptDir, plan: PlanFile) -> int:
        return await start_gang(attempt, plan, self._shared)

    def _announce(self, plan: PlanFile) -> None:
        """Said when the places are settled, before the processes come up: from here on the time is the
        start's."""
        self._emit(AttemptStarted(job=self._job.id, attempt=plan.attempt, placement=plan.placement))

    def _begin_watch(self, attempt: AttemptDir, plan: PlanFile) -> None:
        self._watch = AttemptWatch(attempt, plan, self._settings, self._emit, self._cursors)
        self._watch.begin()

    async def _end(self, number: int, grace_s: float) -> None:
        """End an attempt and see its end reported. Raises StillAlive."""
        found = self.attempt(number)
        if found is None:
            return
        attempt, plan = found
        await end_gang(attempt, [rank.rank for rank in plan.placement], grace_s)
        watch = self._watch
        if watch is None or watch.attempt.number != number:
            self._emit(AttemptEnded(job=self._job.id, attempt=number))
        elif not await watch.ended(REPORT_S):
            raise StillAlive(
                f"attempt {number} has ended, but its last output could not be read in {REPORT_S:.0f} s"
            )

    async def _end_older(self, newest: int) -> None:
        """No attempt but the newest may have a living process. Raises StillAlive."""
        mark = self._state.attempts_mark
        left = await asyncio.to_thread(processes.marked, mark)
        numbers = {int(head) for rest in left.values() if (head := rest.partition("/")[0]).isdigit()}
        for number in sorted(numbers - {newest}):
            self._settings.notice(f"processes of attempt {number} were still alive; they are ended")
            await self._end(number, self._settings.grace_s)
            await sweep(self._state.attempt(number).mark)  # also where its files were removed

    def _plan_of(self, attempt: AttemptDir) -> PlanFile:
        try:
            plan = attempt.plan()
        except OSError as error:
            raise StateError(f"cannot read {attempt.path / 'plan.json'}: {why(error)}") from error
        if plan is None:
            raise StateError(
                f"{attempt.path / 'plan.json'} is damaged; move {attempt.path} away and start again, "
                "after ending the processes that it may have left"
            )
        return plan
