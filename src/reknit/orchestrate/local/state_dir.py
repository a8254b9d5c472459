"""The state directory: what stands where, whose it is, and that only one live run uses it.

run.json                      what is run
lock                          held by the live run
stopped.json                  Reknit has stopped the job for good, and why
notices.log                   what people were told
attempts/N/plan.json          where attempt N runs
attempts/N/stopping.json      attempt N is being ended: nothing of it may be started any more
attempts/N/rank-R/            spec.json shim.json exit.json output.log progress lock shim.log
nodes/NODE/kernel.log         read as the node's kernel log where it exists
nodes/NODE/quarantine.json    the node takes no new work, and why
evidence/INCIDENT/            what was captured
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from typing import TYPE_CHECKING

import msgspec

from reknit.model.entities import RankPlacement
from reknit.orchestrate.local.errors import StateError, StateInUse, StateMismatch, why
from reknit.orchestrate.local.files import ExitFile, ShimFile, read_json, write_json

if TYPE_CHECKING:
    from pathlib import Path

UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
OURS_BEFORE_RUN_JSON = frozenset({"lock", "run.json.tmp"})


class RunFile(msgspec.Struct, frozen=True):
    """`run.json`. `cwd` is where the command runs, on every start of the same run."""

    job: str
    command: tuple[str, ...]
    nodes: int
    ranks_per_node: int
    cwd: str
    created_at: float
    spares: int = 0
    version: int = 1


class PlanFile(msgspec.Struct, frozen=True):
    """`plan.json`: an attempt as it was decided, before any process of it existed."""

    attempt: int
    placement: tuple[RankPlacement, ...]
    port: int
    boot_id: str
    created_at: float


class StoppingFile(msgspec.Struct, frozen=True):
    """`stopping.json`: how long the ranks have between SIGTERM and SIGKILL, and since when."""

    grace_s: float
    at: float


class StoppedFile(msgspec.Struct, frozen=True):
    """`stopped.json`: the job was ended for good."""

    incident: str
    reason: str
    attempt: int
    at: float


class QuarantineFile(msgspec.Struct, frozen=True):
    """`quarantine.json`: why a node takes no new work."""

    incident: str
    reason: str
    at: float


def mark_of(folder: Path) -> bytes:
    """How the variable begins that every process which belongs under a folder has in its environment."""
    return b"REKNIT_PROGRESS=" + os.fsencode(folder) + b"/"


class RankDir:
    """One rank of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec = path / "spec.json"
        self.output = path / "output.log"
        self.progress = path / "progress"
        self.lock = path / "lock"
        self.shim_log = path / "shim.log"

    def shim(self) -> ShimFile | None:
        """Who watches the rank; None where it was never started."""
        return read_json(self.path / "shim.json", ShimFile)

    def exit(self) -> ExitFile | None:
        """How it ended; None where that is not known (yet)."""
        return read_json(self.path / "exit.json", ExitFile)

    def watched(self) -> bool:
        """Whether a shim holds the rank's lock."""
        return is_locked(self.lock)


class AttemptDir:
    """One attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = int(path.name)

    def plan(self) -> PlanFile | None:
        """Where it runs; None where it was never planned."""
        return read_json(self.path / "plan.json", PlanFile)

    def write_plan(self, plan: PlanFile) -> None:
        """Before anything is started. Raises OSError."""
        write_json(self.path / "plan.json", plan)

    def stopping(self) -> StoppingFile | None:
        """Whether it is being ended, or was."""
        return read_json(self.path / "stopping.json", StoppingFile)

    def write_stopping(self, grace_s: float) -> None:
        """From now on nothing of it is started. Raises OSError."""
        write_json(self.path / "stopping.json", StoppingFile(grace_s=grace_s, at=time.time()))

    def rank(self, number: int) -> RankDir:
        """One rank's folder."""
        return RankDir(self.path / f"rank-{number}")

    @property
    def mark(self) -> bytes:
        """What the environment of every process of this attempt begins one variable with. It holds the
        absolute path of the state directory, so that it is nobody else's."""
        return mark_of(self.path)


class StateDir:
    """The directory of one run. Made by `open_state`, which takes the lock."""

    def __init__(self, root: Path, run: RunFile, lock: int) -> None:
        self.root = root
        self.run = run
        self._lock: int | None = lock

    def release(self) -> None:
        """Let another run have the directory."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def attempts(self) -> list[int]:
        """Numbers of all attempts that were planned, rising."""
        plans = self._attempts.glob("*/plan.json")
        return sorted(int(plan.parent.name) for plan in plans if plan.parent.name.isdigit())

    def attempt(self, number: int) -> AttemptDir:
        """One attempt's folder."""
        return AttemptDir(self._attempts / str(number))

    @property
    def _attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def attempts_mark(self) -> bytes:
        """The beginning that the marks of all attempts share; the attempt's number follows."""
        return mark_of(self._attempts)

    def node(self, name: str) -> Path:
        """One node's folder."""
        return self.root / "nodes" / UNSAFE.sub("_", name)

    def kernel_log(self, name: str) -> Path:
        """Where a node's kernel log is read by default."""
        return self.node(name) / "kernel.log"

    def quarantine(self, name: str) -> Path:
        """The mark that keeps new work off a node."""
        return self.node(name) / "quarantine.json"

    def evidence(self, incident: str, attempt: int) -> Path:
        """Where an incident's evidence goes."""
        return self.root / "evidence" / UNSAFE.sub("_", incident) / f"attempt-{attempt}"

    @property
    def notices(self) -> Path:
        """What people were told."""
        return self.root / "notices.log"

    @property
    def _stopped(self) -> Path:
        return self.root / "stopped.json"

    def stopped(self) -> StoppedFile | None:
        """Whether the job was ended for good."""
        return read_json(self._stopped, StoppedFile)

    def write_stopped(self, content: StoppedFile) -> None:
        """Raises OSError."""
        write_json(self._stopped, content)


def read_run(root: Path) -> RunFile:
    """What a state directory is about, without using it. Raises StateError where it is none."""
    try:
        run = read_json(root / "run.json", RunFile)
    except OSError as error:
        raise StateError(f"cannot read {root / 'run.json'}: {why(error)}") from error
    if run is None:
        problem = "is damaged" if (root / "run.json").exists() else "does not exist"
        raise StateError(f"{root} is no state directory of reknit: its run.json {problem}; check the path")
    return run


def open_state(root: Path, wanted: RunFile) -> StateDir:
    """Take a new, an empty or this run's own directory and hold its lock.

    The job's id, working directory and creation time of an existing run win over the ones in `wanted`. Raises
    StateInUse, StateMismatch or StateError.
    """
    try:
        root = root.resolve()  # one spelling: the marks of processes hold this path
        root.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in root.iterdir()}
    except NotADirectoryError as error:
        raise StateError(
            f"state directory {root} is not a directory; name another one with --state"
        ) from error
    except FileExistsError as error:
        raise StateError(f"state directory {root} is a file; name another one with --state") from error
    except OSError as error:
        raise StateError(
            f"cannot use state directory {root}: {why(error)}; name another one with --state"
        ) from error
    if "run.json" not in names and names - OURS_BEFORE_RUN_JSON:
        raise StateError(
            f"{root} holds files that are not reknit's and no run.json; "
            "name an empty or new directory with --state"
        )
    lock = take_lock(root)
    try:
        return StateDir(root, settle_run(root, wanted), lock)
    except OSError as error:
        os.close(lock)
        raise StateError(f"cannot write {root / 'run.json'}: {why(error)}; free some space there") from error
    except StateError:
        os.close(lock)
        raise


def settle_run(root: Path, wanted: RunFile) -> RunFile:
    """The run that this directory belongs to, which must be the wanted one. Raises StateError or OSError."""
    if not (root / "run.json").exists():
        write_json(root / "run.json", wanted)
        return wanted
    found = read_run(root)
    for name, say in (("command", "command"), ("nodes", "--nodes"), ("ranks_per_node", "--ranks-per-node")):
        old, new = getattr(found, name), getattr(wanted, name)
        if old != new:
            shown = [" ".join(value) if isinstance(value, tuple) else value for value in (old, new)]
            raise StateMismatch(
                f"{root} belongs to another run: its {say} is {shown[0]}, not {shown[1]}; "
                "give what it was started with, or name a new directory with --state"
            )
    if found.spares != wanted.spares:
        found = msgspec.structs.replace(found, spares=wanted.spares)
        write_json(root / "run.json", found)
    return found


def take_lock(root: Path) -> int:
    """Hold the directory until the descriptor is closed or this process ends. Raises StateInUse or
    StateError."""
    path = root / "lock"
    handle = -1
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
    except BlockingIOError as error:
        text = os.pread(handle, 32, 0)
        os.close(handle)
        pid = int(text) if text.isdigit() else 0
        who = f"process {pid}" if pid else "another process"
        raise StateInUse(
            f"{root} is in use by a live run ({who}); end that one first, "
            "or name another directory with --state",
            pid,
        ) from error
    except OSError as error:
        if handle >= 0:
            os.close(handle)
        raise StateError(f"cannot lock {path}: {why(error)}; name another directory with --state") from error
    return handle


def is_locked(path: Path) -> bool:
    """Whether somebody holds this lock file."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        with contextlib.suppress(OSError):
            os.close(handle)
    return False
