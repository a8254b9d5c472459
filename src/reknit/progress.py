"""How far a training script has got, told to Reknit: `from reknit import progress; progress.step(n)`.

A training script may import this module, or carry a copy of this one file: it needs the standard library
only. It does nothing at all unless the environment variable REKNIT_PROGRESS names this rank's progress file,
and it never raises whatever is passed to it or happens to the file: a training job must not fail because of
who is watching it.

The file is one small record, mapped into memory and written in place; no system call is made after the first
one. What can be torn by a kill is written twice, in turn, into two blocks with a sequence number and a
checksum: a process that dies in the middle of a write (or a reader that looks then) leaves the other block
whole. One plain counter that is odd while writing would leave a killed rank unreadable for ever. The record's
clock is that of the node.

One process owns a file (an advisory lock says which); the children that it forks, such as data loader
workers, write nothing. A new attempt gets a new file. Whoever reads the file must never truncate it: the
writer would get a SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from binascii import crc32
from operator import index
from time import perf_counter, time
from typing import SupportsFloat, SupportsIndex

try:
    import fcntl
except ImportError:  # not a POSIX system: Reknit does not run there, but this module may well be imported
    fcntl = None

ENVIRONMENT = "REKNIT_PROGRESS"

MAGIC = b"REKNITPG"
VERSION = 1
SIZE = 2048

# All fields are native and 8 bytes wide, so that each is stored in one piece; they share a machine.
HEADER = struct.Struct("@8sQQ")  # magic, version, process id
BLOCKS_AT = (64, 256)
# A block is what seldom changes, what every step changes, and the CRC-32 of both.
# Seldom: saved step and time, loaded step and time, phase since, alive at, number of phases, phase.
COLD = struct.Struct("@qdqdddQ24s")
# Every step: sequence, number of durations so far, step, its time, loss, whether there is a loss.
HOT = struct.Struct("@QQqddQ")
CHECK = struct.Struct("@Q")
DURATION = struct.Struct("@d")
DURATIONS_AT = 512
DURATIONS = 64
PHASE = struct.Struct("@24sd")  # name, seconds so far
PHASES_AT = 1024
PHASES = 16
NAME_BYTES = 24
LARGEST_STEP = 2**53

BLOCK_BYTES = COLD.size + HOT.size + CHECK.size
_EVEN = slice(BLOCKS_AT[0], BLOCKS_AT[0] + BLOCK_BYTES)
_ODD = slice(BLOCKS_AT[1], BLOCKS_AT[1] + BLOCK_BYTES)


def step(n: SupportsIndex, loss: SupportsFloat | None = None) -> None:
    """Training step `n` is complete. Call it every step, or every k steps: the time is shared out.

    `loss` is a plain number where there is one at hand; a tensor would make this wait for its device.
    """
    record = _record or _first_call()
    if record is not None:
        try:
            record.step(index(n), loss)
        except Exception:  # noqa: BLE001 - an argument's own __index__ or __float__ may raise anything
            return


def checkpoint_saved(step: SupportsIndex) -> None:
    """The checkpoint of `step` is complete and durable. May be called from another thread."""
    record = _record or _first_call()
    if record is not None:
        try:
            record.saved(index(step))
        except Exception:  # noqa: BLE001 - see step()
            return


def checkpoint_loaded(step: SupportsIndex) -> None:
    """Training goes on from the checkpoint of `step`."""
    record = _record or _first_call()
    if record is not None:
        try:
            record.loaded(index(step))
        except Exception:  # noqa: BLE001 - see step()
            return


def phase(name: str) -> None:
    """From now on the script does `name`: `warmup`, `checkpoint`, `evaluation`, ..., or "" for none of them.

    Ends the phase before. Names are cut to 24 bytes; time is kept for the first 16 names.
    """
    record = _record or _first_call()
    if record is not None:
        try:
            record.phase(name)
        except Exception:  # noqa: BLE001 - see step()
            return


class _Record:
    """The mapped file and what was last written to it.

    No lock: every block is written by one call that holds the interpreter's lock, and holds the whole state,
    so two threads that write at once can only delay each other's news until the next write.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self.memory = memory
        self.sequence = 0
        self.last_step = -1
        self.step_at = 0.0
        self.loss = 0.0
        self.has_loss = 0
        self.count = 0
        self.mark = 0.0
        self.saved_step, self.saved_at = -1, 0.0
        self.loaded_step, self.loaded_at = -1, 0.0
        self.phase_name, self.phase_at = b"", 0.0
        self.phase_mark, self.phase_place = 0.0, -1
        self.places: dict[bytes, int] = {}
        self.seconds = [0.0] * PHASES
        self.names: dict[str, bytes] = {}
        self.alive_at = time()
        self.cold, self.cold_check = b"", 0
        self.write_all()
        HEADER.pack_into(memory, 0, MAGIC, VERSION, os.getpid())

    def step(self, n: int, loss: SupportsFloat | None) -> None:
        last = self.last_step
        if not 0 <= n <= LARGEST_STEP:
            return
        if loss is None:
            self.has_loss = 0
        else:
            self.loss, self.has_loss = (loss, 1) if type(loss) is float else _number(loss)
        if n != last:
            now = perf_counter()
            if n > last >= 0:
                place = DURATIONS_AT + 8 * (self.count % DURATIONS)
                DURATION.pack_into(self.memory, place, (now - self.mark) / (n - last))
                self.count += 1
            self.mark = now
            self.last_step = n
        self.step_at = time()
        self.write()

    def saved(self, n: int) -> None:
        if 0 <= n <= LARGEST_STEP:
            self.saved_step, self.saved_at = n, time()
            self.write_all()

    def loaded(self, n: int) -> None:
        if 0 <= n <= LARGEST_STEP:
            self.loaded_step, self.loaded_at = n, time()
            self.write_all()

    def phase(self, name: str) -> None:
        encoded = self.names.get(name)
        if encoded is None:
            encoded = self.new_name(name)
        now = perf_counter()
        place = self.phase_place
        if place >= 0:
            self.seconds[place] += now - self.phase_mark
            DURATION.pack_into(self.memory, PHASES_AT + PHASE.size * place + NAME_BYTES, self.seconds[place])
        self.phase_name, self.phase_at = encoded, time()
        self.phase_mark, self.phase_place = now, self.places.get(encoded, -1)
        self.write_all()

    def new_name(self, name: str) -> bytes:
        """The name as it is written, with a place in the table while there is one left."""
        cut = name.replace("\0", " ").encode("utf-8", "replace")[:NAME_BYTES]
        encoded = cut.decode("utf-8", "ignore").encode()
        if encoded and encoded not in self.places and len(self.places) < PHASES:
            place = self.places[encoded] = len(self.places)
            PHASE.pack_into(self.memory, PHASES_AT + PHASE.size * place, encoded, 0.0)
        if len(self.names) < 4 * PHASES:  # a name with a counter in it must not eat memory
            self.names[name] = encoded
        return encoded

    def write_all(self) -> None:
        self.cold = COLD.pack(
            self.saved_step,
            self.saved_at,
            self.loaded_step,
            self.loaded_at,
            self.phase_at,
            self.alive_at,
            len(self.places),
            self.phase_name,
        )
        self.cold_check = crc32(self.cold)
        self.write()

    def write(self) -> None:
        sequence = self.sequence = self.sequence + 1
        hot = HOT.pack(sequence, self.count, self.last_step, self.step_at, self.loss, self.has_loss)
        check = CHECK.pack(crc32(hot, self.cold_check))
        self.memory[_ODD if sequence & 1 else _EVEN] = self.cold + hot + check


_record: _Record | None = None
_decided = False


def _number(loss: SupportsFloat) -> tuple[float, int]:
    try:
        return float(loss), 1
    except Exception:  # noqa: BLE001 - see step(): a strange loss must not cost the step
        return 0.0, 0


def _first_call() -> _Record | None:
    """Find out, once, whether anybody wants to know."""
    global _record, _decided  # noqa: PLW0603 - one record a process is the point of this module
    if _decided:
        return None
    _decided = True
    path = os.environ.get(ENVIRONMENT)
    if path:
        try:
            _record = _open(path)
        except (OSError, ValueError):
            return None
        if _record is not None and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_forget)
    return _record


def _forget() -> None:
    """A forked child's steps are not the rank's."""
    global _record  # noqa: PLW0603 - see _first_call()
    _record = None


def _open(path: str) -> _Record | None:
    """Map the file, made or emptied first. None where it is another file or another process's."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        head = os.read(descriptor, SIZE)
        if not head.startswith(MAGIC) and head.strip(b"\0"):
            return None
        if fcntl is not None and not _locked(descriptor):
            return None
        os.lseek(descriptor, 0, os.SEEK_SET)
        # Written, not just extended: on a full disk this fails, a hole would kill the job later.
        if os.write(descriptor, bytes(SIZE)) != SIZE:
            return None
        return _Record(mmap.mmap(descriptor, SIZE))
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Whether the file is ours; it stays so until the process ends. Some file systems cannot lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[union-attr]
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
