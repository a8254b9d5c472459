"""The embedded orchestrator: real processes on virtual nodes of this machine, behind the port."""

from __future__ import annotations

import dataclasses
import re
import time
from typing import TYPE_CHECKING

import msgspec

from reknit.model.commands import CaptureEvidence, Notify, Quarantine, Release, RestartGang, StopJob
from reknit.model.events import CommandDone, CommandFailed, JobSubmitted, NodeSeen, SignalSeen
from reknit.orchestrate.local import evidence
from reknit.orchestrate.local.errors import LocalError, why
from reknit.orchestrate.local.files import remove, write_json
from reknit.orchestrate.local.gang import Gang
from reknit.orchestrate.local.inventory import read_inventory, virtual_nodes
from reknit.orchestrate.local.kernel import KernelWatch, check_kernel_logs
from reknit.orchestrate.local.placement import place
from reknit.orchestrate.local.state_dir import QuarantineFile, RunFile, StateDir, StoppedFile, open_state
from reknit.sense.progress_lines import LineProgress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reknit.model.commands import AnyCommand
    from reknit.model.entities import JobSpec, Node
    from reknit.orchestrate.local.settings import LocalSettings
    from reknit.orchestrate.port import Emit

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


class LocalOrchestrator:
    """Implements the port `Orchestrator`. Made by `open`, which refuses bad input before anything is
    started."""

    def __init__(self, state: StateDir, settings: LocalSettings, nodes: tuple[Node, ...]) -> None:
        self._state = state
        self._settings = settings
        self._nodes = {node.name: node for node in nodes}
        self._emit: Emit | None = None
        self._told: set[str] = set()
        self._gang: Gang | None = None
        self._kernel: KernelWatch | None = None

    @classmethod
    def open(cls, settings: LocalSettings) -> LocalOrchestrator:
        """Look at the nodes, check every input, and take the state directory with its lock. Nothing is
        started.

        Raises LocalError: StateInUse, StateMismatch, StateError, InventoryError, SourceError, NoRoom; and
        ValueError for a `log_regex` that cannot be used.
        """
        LineProgress(settings.catalog.progress, settings.log_regex)
        nodes = _nodes(settings)
        if all(node.pool != settings.job.pool for node in nodes):
            # An inventory may call its pool what it likes: the gang runs in the first one.
            settings = dataclasses.replace(
                settings, job=msgspec.structs.replace(settings.job, pool=nodes[0].pool)
            )
        place(settings.job, nodes)
        check_kernel_logs(settings, nodes)
        state = open_state(settings.state, _run_file(settings))
        job = msgspec.structs.replace(settings.job, id=state.run.job)
        return cls(state, dataclasses.replace(settings, state=state.root, job=job), nodes)

    @property
    def job(self) -> JobSpec:
        """The gang, under the id that its state directory knows it by."""
        return self._settings.job

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node, spares last."""
        return tuple(self._nodes.values())

    @property
    def root(self) -> Path:
        """The state directory; evidence paths are relative to it."""
        return self._state.root

    @property
    def stopped(self) -> StoppedFile | None:
        """Why the job was ended for good, None where it was not."""
        return self._state.stopped()

    async def start(self, emit: Emit, cursors: Mapping[str, int]) -> None:
        """See the port. Raises LocalError where the first attempt cannot be started or the newest not be
        adopted."""
        self._emit = emit
        for node in self.nodes:
            emit(NodeSeen(node=node))
        emit(JobSubmitted(job=self.job))
        self._gang = Gang(self._state, self._settings, self._nodes, emit, cursors)
        self._kernel = KernelWatch(
            self._state, self._settings, self.nodes, emit, cursors, self._gang.rank_of_pid
        )
        self._kernel.begin()
        try:
            await self._gang.begin()
        except OSError as error:
            raise LocalError(self._trouble(error)) from error

    async def execute(self, command: AnyCommand) -> CommandDone | CommandFailed:
        """See the port."""
        job = getattr(command, "job", self.job.id)
        if job != self.job.id:
            return CommandFailed(command.id, f"there is no job {job} here, only {self.job.id}", retry=False)
        try:
            return await self._execute(command)
        except LocalError as error:
            return CommandFailed(command.id, str(error), retry=True)
        except OSError as error:
            return CommandFailed(command.id, self._trouble(error), retry=True)

    async def close(self) -> None:
        """Stop observing and let go of the state directory. What runs goes on running."""
        if self._gang is not None:
            await self._gang.close()
        if self._kernel is not None:
            await self._kernel.close()
        self._state.release()

    async def _execute(  # noqa: PLR0911 - one for each command
        self, command: AnyCommand
    ) -> CommandDone | CommandFailed:
        if self._gang is None:
            return CommandFailed(command.id, "the orchestrator has not been started yet", retry=True)
        match command:
            case RestartGang():
                return await self._gang.restart(command)
            case StopJob():
                return await self._gang.stop(command)
            case CaptureEvidence():
                return await self._capture(command, self._gang)
            case Quarantine() | Release():
                return self._mark_node(command)
            case Notify():
                return self._tell(command)
            case _:
                return CommandDone(command.id)

    def _mark_node(self, command: Quarantine | Release) -> CommandDone | CommandFailed:
        if command.node not in self._nodes:
            return CommandFailed(command.id, f"there is no node {command.node} here", retry=False)
        mark = self._state.quarantine(command.node)
        if isinstance(command, Quarantine):
            write_json(mark, QuarantineFile(incident=command.incident, reason=command.reason, at=time.time()))
            return CommandDone(command.id, f"{command.node} takes no new work")
        remove(mark)
        return CommandDone(command.id, f"{command.node} takes work again")

    def _tell(self, command: Notify) -> CommandDone:
        """Once for each id, also when this program was killed before it could say that it was done. A full
        disk keeps it out of the file, but not from whoever watches."""
        path = self._state.notices
        text = _CONTROL.sub(" ", command.text)
        known = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if f" [{command.id}] " not in known:
            if command.id not in self._told:
                self._told.add(command.id)
                self._settings.notice(text)
            when = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime())
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{when} [{command.id}] {text}\n")
        return CommandDone(command.id, path=str(path.relative_to(self.root)))

    async def _capture(self, command: CaptureEvidence, gang: Gang) -> CommandDone | CommandFailed:
        found = gang.attempt(command.attempt)
        if found is None:
            return CommandFailed(command.id, f"there is no attempt {command.attempt}", retry=False)
        attempt, plan = found
        folder = self._state.evidence(command.incident, command.attempt)
        samples = await evidence.capture(attempt, plan, command, folder)
        signals = evidence.signals_of(samples, self.job.id, plan)
        for signal in signals:
            if self._emit is not None:
                self._emit(SignalSeen(signal))
        stacks = len(list(folder.glob("rank-*.txt")))
        detail = f"looked at {len(samples.second)} ranks, {stacks} stacks kept, {len(signals)} stand out"
        return CommandDone(command.id, detail, path=str(folder.relative_to(self.root)))

    def _trouble(self, error: OSError) -> str:
        where = error.filename or self.root
        return f"{where}: {why(error)}; free some space or put right what is wrong there"


def _nodes(settings: LocalSettings) -> tuple[Node, ...]:
    if settings.inventory is not None:
        return read_inventory(settings.inventory, settings.job, settings.spares)
    return virtual_nodes(settings.job, settings.spares, settings.environment, settings.notice)


def _run_file(settings: LocalSettings) -> RunFile:
    return RunFile(
        job=settings.job.id,
        command=settings.command,
        nodes=settings.job.nodes,
        ranks_per_node=settings.job.ranks_per_node,
        cwd=str(settings.cwd.absolute()),
        created_at=time.time(),
        spares=settings.spares,
    )
