"""The asynchronous shell around the engine: feeds events in, writes down what follows, carries commands out.

The order is what makes a crash harmless. An event is handled, then written down together with the commands that it
led to, and only then are those carried out. Killed before the writing, the event is observed again, because sources
are read on from the position that was written down with the last event. Killed after it, the commands are found as
intents without an outcome and given again; they are idempotent.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from reknit.engine import Engine
from reknit.journal.port import JournalError, JournalFull
from reknit.model.commands import WaitUntil
from reknit.model.events import CommandFailed, Tick, WatchResumed
from reknit.model.state import EngineState, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reknit.catalog.row import Catalog
    from reknit.journal.port import Journal
    from reknit.model.commands import AnyCommand
    from reknit.model.events import AnyEvent
    from reknit.model.policy import Policy
    from reknit.orchestrate.port import Orchestrator

SNAPSHOT_EVERY = 5000
"""Events between two snapshots: a few seconds of replay at most."""
_FULL_RETRY_S = 1.0
_LATE_S = 1.0


def _ignore(*_: object) -> None:
    """Where nobody wants to hear of it."""


class _Item(NamedTuple):
    event: AnyEvent | None
    cursors: Mapping[str, int]


class Controller:
    """Runs one engine over one journal and one orchestrator until it is told that it is done.

    Attributes:
        engine: the engine, whose state may be looked at between two events.
        now: the clock; wall time, so that times mean the same after a restart.
    """

    def __init__(
        self,
        catalog: Catalog,
        policy: Policy,
        journal: Journal,
        orchestrator: Orchestrator,
        *,
        notice: Callable[[str], None] = _ignore,
        changed: Callable[[EngineState, float], None] = _ignore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.engine = Engine(catalog, policy)
        self._journal = journal
        self._orchestrator = orchestrator
        self._notice = notice
        self._changed = changed
        self.now = clock
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._running: set[asyncio.Task[None]] = set()
        self._seq = 0
        self._since_snapshot = 0

    def recover(self, policy_then: Policy | None = None) -> None:
        """Bring the engine to where the journal ends. `policy_then` is the policy under which it was written; what
        follows is decided under the present one. Raises JournalError where it cannot be read."""
        snapshot, records = self._journal.load()
        try:
            state = unpack(snapshot) if snapshot else EngineState()
        except msgspec.MsgspecError as error:
            raise JournalError(
                f"the snapshot in the journal is another version's ({error}); go on with that version, "
                "or name a new directory with --state"
            ) from error
        engine = Engine(self.engine.catalog, policy_then or self.engine.policy, state)
        for record in records:
            engine.handle(record.at, record.event)
            self._seq = record.seq
        self.engine.state = engine.state
        # Nobody will send the Tick that was asked for before the crash.
        self.engine.state.announced = 0.0
        if records:
            self._snapshot()

    async def run(self, done: Callable[[EngineState], bool]) -> None:
        """Work until `done`, and every command has its outcome. Cancel it to stop at once; nothing is lost."""
        try:
            self.emit(WatchResumed())
            await self._orchestrator.start(self.emit, self._journal.cursors())
            for command in self._journal.open_commands():
                self._start(command)
            self.emit(Tick())
            while not (done(self.engine.state) and not self._running and self._queue.empty()):
                await self._one()
            self._snapshot()
        finally:
            for task in self._running:
                task.cancel()
            await self._orchestrator.close()

    def emit(self, event: AnyEvent | None, cursors: Mapping[str, int] | None = None) -> None:
        """Hand over a fact (or only how far a source has been read)."""
        self._queue.put_nowait(_Item(event, cursors or {}))

    async def _one(self) -> None:
        item = await self._next()
        if item.event is None:
            if item.cursors:
                await self._write(lambda: self._journal.save_cursors(item.cursors))
            return
        await self._handle(item.event, item.cursors)

    async def _next(self) -> _Item:
        """The next fact, or a Tick when one is due before anything happens."""
        due = self.engine.next_deadline()
        if not self._queue.empty():
            return self._queue.get_nowait()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self.now())):
                return await self._queue.get()
        except TimeoutError:
            # Woken much too late, this process was stopped or the machine slept: it was blind, the job not silent.
            late = due is not None and self.now() - due > _LATE_S
            return _Item(WatchResumed() if late else Tick(), {})

    async def _handle(self, event: AnyEvent, cursors: Mapping[str, int]) -> None:
        now = self.now()
        commands = self.engine.handle(now, event)
        lasting = [command for command in commands if not isinstance(command, WaitUntil)]

        def record() -> None:
            self._seq = self._journal.record(now, event, lasting, self.engine.changed, cursors)

        paused = await self._write(record)
        for command in lasting:
            self._start(command)
        self._since_snapshot += 1
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self._snapshot()
        self._changed(self.engine.state, now)
        if paused:  # what was reported meanwhile waits in the queue: nobody was silent, we did not listen
            await self._handle(WatchResumed(), {})

    async def _write(self, write: Callable[[], None]) -> bool:
        """Write, however long it takes: what is not written down is not acted upon. Gives whether it had to wait."""
        told = False
        while True:
            try:
                write()
            except JournalFull as error:
                if not told:
                    self._notice(f"{error}. Nothing is done until it can be written down; the job goes on")
                    told = True
                await asyncio.sleep(_FULL_RETRY_S)
            else:
                if told:
                    self._notice("the journal can be written again: going on")
                return told

    def _start(self, command: AnyCommand) -> None:
        task = asyncio.create_task(self._carry_out(command), name=command.id)
        self._running.add(task)
        task.add_done_callback(self._finished)

    async def _carry_out(self, command: AnyCommand) -> None:
        self.emit(await self._orchestrator.execute(command))

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self.emit(None)  # whoever waits for the last command to be done looks again
        if not task.cancelled() and (error := task.exception()) is not None:
            # An orchestrator raises nothing by contract: this is a defect of ours, and the engine must hear of it.
            detail = f"{type(error).__name__}: {error}"
            self._notice(f"defect in carrying out {task.get_name()}: {detail}")
            self.emit(CommandFailed(task.get_name(), detail, retry=True))

    def _snapshot(self) -> None:
        self._since_snapshot = 0
        try:
            self._journal.snapshot(self._seq, pack(self.engine.state))
        except JournalFull as error:
            self._notice(f"{error}. The journal keeps growing until it can be tidied up")
