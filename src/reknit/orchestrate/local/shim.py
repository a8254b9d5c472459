"""The small parent of one rank: starts it, writes down how it ended, and lets none of its descendants survive
it.

Run as `python -I -S shim.py RANKDIR/spec.json`, in a session of its own, so that it outlives the program that
started it. It imports nothing but the standard library, because it must start in milliseconds and never fail
for want of a package. The rank inherits the shim's environment; argv, working directory and grace period come
from the spec.

The shim is a *subreaper* (prctl 36): a descendant that forks twice or calls setsid to escape becomes the
shim's child instead of init's, and is ended with the rest. Should the shim itself be killed, the kernel kills
the rank's main process (PDEATHSIG). A rank is started at most once: the shim writes `shim.json` before it
forks, and a second shim for the same rank directory finds that file, the lock or `exit.json` and leaves.
"""

# pathlib alone would make the shim start much more slowly.
# ruff: noqa: PTH100, PTH104, PTH110, PTH118, PTH120, PTH123, PTH208

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
ANYONE = ctypes.c_ulong(-1)
NOTHING = ctypes.c_ulong(0)

NOT_EXECUTABLE = 126
NOT_FOUND = 127
KILL_AGAIN_S = 0.02
KILL_AGAIN_MAX_S = 1.0
IDLE_S = 60.0
WRITE_AGAIN_S = 0.5
WRITE_FOR_S = 3600.0
RESERVED_BYTES = 256
LOCK_TRIES = 20
LOCK_PAUSE_S = 0.01

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: ctypes.c_ulong) -> None:
    """Ask the kernel; an option that this kernel lacks is no reason to run nothing."""
    libc.prctl(option, value, NOTHING, NOTHING, NOTHING)


def write_json(path: str, content: dict[str, object]) -> None:
    """Atomically and durably. Raises OSError."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def stat_fields(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third (state) on; empty where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since boot: with the pid, and within a boot, its identity."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else 0


def descendants(root: int) -> list[int]:
    """Every live process below `root`, parents before children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = stat_fields(name)
            if fields and fields[0] not in "ZX":
                children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


class Rank:
    """The rank and what the shim knows about it."""

    def __init__(self, folder: str, spec: dict[str, object]) -> None:
        self.folder = folder
        self.argv = [str(word) for word in spec["argv"]]  # type: ignore[attr-defined]
        self.cwd = str(spec["cwd"])
        self.grace_s = float(spec["grace_s"])  # type: ignore[arg-type]
        self.pid = 0
        self.noted = False
        self.asked = False
        self.over: dict[str, object] | None = None
        self.written = False
        self.write_at = 0.0
        self.kill_at = float("inf")
        self.kill_pause = KILL_AGAIN_S

    def path(self, name: str) -> str:
        """A file of this rank."""
        return os.path.join(self.folder, name)

    def prepare(self) -> None:
        """Write down that the rank is about to be started, and take the room that its exit status will need:
        a disk that is full when the rank ends must not cost the status."""
        self.note_pids()
        with open(self.path("exit.reserved"), "w", encoding="utf-8") as file:
            file.write(" " * RESERVED_BYTES)
            file.flush()
            os.fsync(file.fileno())

    def note_pids(self) -> None:
        """Write who the shim and the rank are."""
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot_id = file.read().strip()
        write_json(
            self.path("shim.json"),
            {
                "shim_pid": os.getpid(),
                "shim_start": start_ticks(os.getpid()),
                "rank_pid": self.pid,
                "rank_start": start_ticks(self.pid) if self.pid else 0,
                "boot_id": boot_id,
                "started_at": time.time(),
            },
        )

    def note_again(self) -> None:
        """Write the pids where that has not succeeded yet."""
        try:
            self.note_pids()
        except OSError as error:
            self.complain("shim.json", error)
        else:
            self.noted = True

    def launch(self, blocked: set[signal.Signals]) -> None:
        """Fork and execute. Where the command cannot be executed, the rank is over with 126 or 127."""
        output = os.open(self.path("output.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        read_end, write_end = os.pipe()
        held_read, held_write = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(held_write)
            os.read(held_read, 1)
            self.become(parent, output, write_end, blocked)
        os.close(held_read)
        os.close(write_end)
        self.note_again()
        os.close(held_write)  # only now may the rank run: whatever it does, its pid is already on disk
        with os.fdopen(read_end, "rb") as pipe:
            failed = pipe.read()
        if failed:
            self.refuse(output, *json.loads(failed))
        os.close(output)

    def become(self, parent: int, output: int, report: int, blocked: set[signal.Signals]) -> None:
        """In the child: turn into the rank. Never returns."""
        stage = "working directory"
        target = self.cwd
        try:
            os.setsid()
            prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
            # Debian and Ubuntu let only ancestors read a process's memory (Yama), and py-spy is none.
            prctl(PR_SET_PTRACER, ANYONE)
            if os.getppid() != parent:
                os._exit(NOT_EXECUTABLE)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self.cwd)
            stage, target = "command", self.argv[0]
            for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
            os.execvp(self.argv[0], self.argv)
        except OSError as error:
            os.write(report, json.dumps([stage, target, error.errno]).encode())
        finally:
            os._exit(NOT_EXECUTABLE)

    def refuse(self, output: int, stage: str, target: str, number: int) -> None:
        """Note in the rank's own log, for people, why it was never started."""
        os.waitpid(self.pid, 0)
        code = NOT_FOUND if number in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
        reason = os.strerror(number)
        text = f"reknit: the {stage} {target!r} cannot be used: {reason}; check its spelling and mode\n"
        try:
            os.write(output, text.encode())
        except OSError:
            say(text.strip())
        self.end(code << 8)

    def end(self, status: int) -> None:
        """The main process has ended with this wait status."""
        code = os.waitstatus_to_exitcode(status)
        self.over = {"code": code if code >= 0 else None, "signal": -code if code < 0 else None}
        self.over.update(at=time.time(), asked=self.asked)
        self.write_at = time.monotonic()
        self.write_status()

    def write_status(self) -> None:
        """Write `exit.json` into the room reserved for it; on failure try again later."""
        reserved = self.path("exit.reserved")
        try:
            file = os.open(reserved, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.write(file, json.dumps(self.over).ljust(RESERVED_BYTES).encode())
                os.fsync(file)
            finally:
                os.close(file)
            os.rename(reserved, self.path("exit.json"))
        except OSError as error:
            self.complain("exit.json", error)
        else:
            self.written = True

    def complain(self, name: str, error: OSError) -> None:
        """Say what could not be written."""
        say(f"cannot write {self.path(name)}: {error.strerror}; tried again every {WRITE_AGAIN_S} s")

    def reap(self) -> bool:
        """Collect whoever has ended. Returns whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.pid and self.over is None:
                self.end(status)

    def ask(self) -> None:
        """Somebody wants the rank to end. Only Reknit asks, and says so in a file beforehand."""
        stopping = os.path.join(os.path.dirname(self.folder), "stopping.json")
        self.asked = self.over is None and os.path.exists(stopping)
        self.terminate(self.grace_now())

    def grace_now(self) -> float:
        """The grace period that goes with this stop; the spec's where none was written."""
        try:
            with open(os.path.join(os.path.dirname(self.folder), "stopping.json"), encoding="utf-8") as file:
                return float(json.load(file)["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.grace_s

    def terminate(self, grace_s: float) -> None:
        """SIGTERM to everybody, once; a stopped process is woken, or it could not react (systemd does the
        same)."""
        first = self.kill_at == float("inf")
        self.kill_at = min(self.kill_at, time.monotonic() + grace_s)
        for pid in descendants(os.getpid()) if first else ():
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to everybody, again and again: somebody may have forked meanwhile."""
        for pid in descendants(os.getpid()):
            send(pid, signal.SIGKILL)
        self.kill_at = time.monotonic() + self.kill_pause
        self.kill_pause = min(2 * self.kill_pause, KILL_AGAIN_MAX_S)

    def patience(self) -> float:
        """Seconds until there is something to do without being woken."""
        wait = IDLE_S if self.kill_at == float("inf") else self.kill_at - time.monotonic()
        if not self.noted or (self.over is not None and not self.written):
            wait = min(wait, WRITE_AGAIN_S)
        return max(wait, 0.0)

    def catch_up(self) -> None:
        """Write what could not be written before."""
        if not self.noted:
            self.note_again()
        if self.over is not None and not self.written:
            self.write_status()


def send(pid: int, number: signal.Signals) -> None:
    """Signal a process that may be gone."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def say(text: str) -> None:
    """One line in the shim's own log."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


def hold(path: str) -> bool:
    """Take the rank's lock until this process ends. Whoever only looks whether it is held holds it for a
    moment."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(LOCK_PAUSE_S)
        else:
            return True
    return False


def attend(rank: Rank, waited_for: set[signal.Signals]) -> None:
    """Stand by until the rank and all of its descendants are gone and the status is written."""
    left = True
    while left or not (rank.written or time.monotonic() - rank.write_at > WRITE_FOR_S):
        woken = signal.sigtimedwait(waited_for, rank.patience())
        left = rank.reap()
        if woken is not None and woken.si_signo == signal.SIGTERM:
            rank.ask()
        rank.catch_up()
        if rank.over is not None and left:
            rank.terminate(rank.grace_s)
        if left and time.monotonic() >= rank.kill_at:
            rank.kill()


def main(spec_path: str) -> int:
    """Be the shim of one rank; returns the shim's own exit status."""
    folder = os.path.dirname(os.path.abspath(spec_path))
    waited_for = {signal.SIGTERM, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not hold(os.path.join(folder, "lock")):
        return 0
    before = ("exit.json", "shim.json", os.path.join("..", "stopping.json"))
    if any(os.path.exists(os.path.join(folder, name)) for name in before):
        return 0
    with open(spec_path, encoding="utf-8") as file:
        rank = Rank(folder, json.load(file))
    prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
    try:
        rank.prepare()
        rank.launch(waited_for)
    except OSError as error:
        say(f"cannot start the rank of {folder}: {error.strerror}")
        return 1
    attend(rank, waited_for)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
