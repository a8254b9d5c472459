"""One `reknit run` from its first line to its exit status: sets the parts up, lets the controller work, and ends well
whatever comes in between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from reknit.catalog.load import builtin
from reknit.cli.errors import UsageProblem
from reknit.cli.inbox import watch_inbox
from reknit.cli.remembered import Remembered, remember, remembered
from reknit.cli.states import fresh_state, journal_path, point_latest, policy_path, stored_policy
from reknit.controller import Controller
from reknit.journal.port import JournalError
from reknit.journal.sqlite import SqliteJournal
from reknit.model.commands import StopJob
from reknit.model.entities import JobSpec
from reknit.model.events import CommandFailed, JobAbandoned
from reknit.orchestrate.local.errors import LocalError
from reknit.orchestrate.local.orchestrator import LocalOrchestrator
from reknit.orchestrate.local.settings import LocalSettings
from reknit.orchestrate.local.state_dir import read_run

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog
    from reknit.cli.view import View
    from reknit.model.policy import Policy
    from reknit.model.state import EngineState, JobView

EXIT_STOPPED = 125
"""Reknit stopped the job: as `timeout` and `docker run` use 125 for what is not the command's own status."""
_SIGNAL_BASE = 128
_MOST_FILES = 1 << 16
_KMSG = Path("/dev/kmsg")


@dataclass(frozen=True)
class Options:
    """What the person asked for. None where nothing was said: an existing run then keeps its own."""

    state: Path | None
    command: tuple[str, ...]
    policy: Policy
    policy_given: bool = False
    name: str = "train"
    nodes: int | None = None
    ranks_per_node: int | None = None
    spares: int | None = None
    kernel_logs: dict[str, Path] | Literal["kmsg", "none"] | None = None
    inventory: Path | None = None
    progress_regex: str | None = None
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))


async def run_session(options: Options, view: View) -> int:
    """Run to the end; gives the exit status. Raises UsageProblem before anything is started."""
    session = await Session.open(options, view)
    return await session.run()


class Session:
    """One run of the controller over one state directory."""

    def __init__(
        self, controller: Controller, orchestrator: LocalOrchestrator, journal: SqliteJournal, view: View
    ) -> None:
        self.controller = controller
        self.orchestrator = orchestrator
        self.failed_status = 1
        self._journal = journal
        self._view = view
        self._ending: asyncio.Task[None] | None = None
        self._interrupted = 0

    @classmethod
    async def open(cls, options: Options, view: View) -> Session:
        """Check every input and take the state directory. Raises UsageProblem."""
        catalog = builtin()
        root = options.state or fresh_state()
        settings = local_settings(options, root, catalog, view)
        try:
            orchestrator = LocalOrchestrator.open(settings)
        except (LocalError, ValueError) as error:
            raise UsageProblem(str(error)) from error
        try:
            return cls._over(orchestrator, options, settings, view)
        except (JournalError, OSError) as error:
            await orchestrator.close()
            raise UsageProblem(f"cannot use state directory {orchestrator.root}: {error}") from error

    @classmethod
    def _over(
        cls, orchestrator: LocalOrchestrator, options: Options, settings: LocalSettings, view: View
    ) -> Session:
        root = orchestrator.root
        journal = SqliteJournal(journal_path(root))
        then = stored_policy(root)
        policy = policy_now(options, root)
        session: Session

        def changed(state: EngineState, now: float) -> None:
            session.changed(state, now)

        controller = Controller(
            settings.catalog, policy, journal, orchestrator, notice=view.notice, changed=changed
        )
        session = cls(controller, orchestrator, journal, view)
        controller.recover(then)
        policy_path(root).write_bytes(msgspec.json.encode(policy))
        remember(root, settings)
        if options.state is None:
            point_latest(root)
        return session

    @property
    def job(self) -> JobView | None:
        """The job as the engine knows it; None before it was submitted."""
        return self.controller.engine.state.jobs.get(self.orchestrator.job.id)

    async def run(self) -> int:
        """Work until the job has ended; gives the exit status."""
        _open_many_files()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, number)
        inbox = asyncio.create_task(
            watch_inbox(self.orchestrator.root, self.controller.emit, self._view.notice), name="inbox"
        )
        try:
            with self._view:
                self._view.notice(f"state: {self.orchestrator.root}")
                self._abandoned_before()
                await self.controller.run(self._over_now)
        finally:
            inbox.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await inbox
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
            self._journal.close()
        return self.status()

    def status(self) -> int:
        """The exit status that belongs to how the job ended."""
        job = self.job
        if job is None or job.result == "succeeded":
            return 0
        if job.result == "stopped":
            return EXIT_STOPPED
        return _SIGNAL_BASE + self._interrupted if self._interrupted else self.failed_status

    def changed(self, state: EngineState, now: float) -> None:
        """After each event: show it, and end what nobody will restart."""
        self._view.update(state, now)
        job = self.job
        if job is None or job.result or self._ending is not None:
            return
        if job.told_attempt == job.attempt and any(
            v.exited and not v.ok and not v.asked for v in job.ranks.values()
        ):
            # The policy only lets us look on: do as torchrun would without us, and end what is left of the gang.
            self._remember_status(job)
            self.end("a rank failed, and the policy does not let Reknit restart the job")

    def _over_now(self, state: EngineState) -> bool:
        del state
        job = self.job
        return job is not None and job.result != "" and (self._ending is None or self._ending.done())

    def _abandoned_before(self) -> None:
        """The job was ended by hand, and the run was killed before the engine heard of it."""
        stopped = self.orchestrator.stopped
        job = self.job
        if stopped is not None and not stopped.incident and (job is None or not job.result):
            self.end(stopped.reason)

    def _interrupt(self, number: int) -> None:
        if self._interrupted:
            return
        self._interrupted = number
        name = signal.Signals(number).name
        self._view.notice(f"{name}: the job is ended; it will not be restarted")
        self.end(f"{name} was sent to reknit")

    def end(self, why: str) -> None:
        """End the job by hand: it is not restarted."""
        self._ending = asyncio.create_task(self._abandon(why), name="end the job")

    async def _abandon(self, why: str) -> None:
        job = self.job
        while job is None:
            await asyncio.sleep(0.05)
            job = self.job
        attempt = 1 << 30
        grace = self.controller.engine.policy.deadlines.grace_s
        stop = StopJob("", "", why, time.time() + grace, job=job.spec.id, attempt=attempt, grace_s=grace)
        told = False
        while isinstance(outcome := await self.orchestrator.execute(stop), CommandFailed):
            # Nobody may be left behind: it is said to be over when it is over.
            if not told:
                self._view.notice(f"the job could not be ended yet: {outcome.detail}; trying again")
                told = True
            await asyncio.sleep(1.0)
        self.controller.emit(JobAbandoned(job.spec.id, attempt, why))

    def _remember_status(self, job: JobView) -> None:
        exits = [
            s
            for i in self.controller.engine.state.incidents.values()
            for s in i.signals
            if s.source == "process"
        ]
        first = min((s for s in exits if s.job == job.spec.id), key=lambda s: s.first_seen, default=None)
        status = int(first.attributes.get("status", "1")) if first is not None else 1
        self.failed_status = status if status > 0 else _SIGNAL_BASE - status


def _open_many_files() -> None:
    """Each rank takes three descriptors: as many as this process may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def policy_now(options: Options, root: Path) -> Policy:
    """The policy of this start: the given one, else the one that the run had before, else the default."""
    then = None if options.policy_given else stored_policy(root)
    return then or options.policy


def local_settings(options: Options, root: Path, catalog: Catalog, view: View) -> LocalSettings:
    """What the orchestrator is told. An existing run's shape is kept where nothing else was asked for.

    Raises UsageProblem.
    """
    known, before = None, Remembered()
    if (root / "run.json").exists():
        try:
            known = read_run(root)
        except LocalError as error:
            raise UsageProblem(str(error)) from error
        before = remembered(root)
    command = options.command or (known.command if known else ())
    if not command:
        raise UsageProblem(
            "there is no command to run; put it after --, as in `reknit run -- python train.py`"
        )

    def asked(value: int | None, before: int | None, default: int) -> int:
        return value if value is not None else before if before is not None else default

    job = JobSpec(
        options.name,
        nodes=asked(options.nodes, known.nodes if known else None, 1),
        ranks_per_node=asked(options.ranks_per_node, known.ranks_per_node if known else None, 1),
    )
    return LocalSettings(
        state=root,
        job=job,
        command=command,
        catalog=catalog,
        spares=asked(options.spares, known.spares if known else None, 0),
        inventory=(options.inventory or _path(before.inventory)),
        kernel_logs=_kernel_logs(options.kernel_logs if options.kernel_logs is not None else before.logs()),
        log_regex=options.progress_regex or before.progress_regex or None,
        grace_s=policy_now(options, root).deadlines.grace_s,
        environment=options.environment,
        notice=view.notice,
    )


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _kernel_logs(given: dict[str, Path] | str | None) -> dict[str, Path] | Literal["kmsg"]:
    if given == "kmsg" or (given is None and os.access(_KMSG, os.R_OK)):
        return "kmsg"
    return given if isinstance(given, dict) else {}
