"""What a training script imports: it tells how far it has got, and never gets in the way."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING

import pytest

import reknit.progress
from reknit.sense.progress_file import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reknit.model.progress import RankProgress

SILLY = """
import sys, threading
class Angry:
    def __index__(self): raise RuntimeError("device lost")
    __float__ = __index__
    def __hash__(self): raise RuntimeError("no hash")
things = [None, "7", b"7", "", 1.5, float("nan"), float("inf"), -1, -(10**40), 10**40, [], {}, (), object(),
          Angry(), sys, "\\ud800", "a\\0b", "x" * 10000, 2**53 + 1]
for thing in things:
    progress.step(thing); progress.step(thing, thing)
    progress.checkpoint_saved(thing); progress.checkpoint_loaded(thing); progress.phase(thing)
for number, thing in enumerate(things):
    progress.step(number, thing)
progress.phase("")
"""


def script_in(tmp_path: Path, body: str) -> list[str]:
    """The command that runs a training script with this body."""
    path = tmp_path / "train.py"
    path.write_text("from reknit import progress\n" + body, encoding="utf-8")
    return [sys.executable, str(path)]


def environment(record: Path | str | None) -> dict[str, str]:
    """The environment of this process, with the progress file or without one."""
    rest = {name: value for name, value in os.environ.items() if name != "REKNIT_PROGRESS"}
    return rest if record is None else rest | {"REKNIT_PROGRESS": str(record)}


def run(tmp_path: Path, body: str, record: Path | str | None) -> subprocess.CompletedProcess[str]:
    """Run a training script to its end."""
    command = script_in(tmp_path, body)
    return subprocess.run(
        command, env=environment(record), capture_output=True, text=True, check=False, timeout=60
    )


def written(record: Path) -> bytes:
    """What is in the file so far; the first step makes it."""
    return record.read_bytes() if record.exists() else b""


def read(record: Path) -> RankProgress:
    """What the file says, which must be readable."""
    decoded = decode(record.read_bytes(), 0)
    assert decoded is not None
    return decoded[0]


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A script that does nothing but make steps, until it is killed."""
    record = tmp_path / "rank0"
    body = "print('go', flush=True)\nn = 0\nwhile True:\n    n += 1\n    progress.step(n, 1.0)\n"
    with subprocess.Popen(
        script_in(tmp_path, body), env=environment(record), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        yield process, record
        process.kill()


def test_a_script_tells_its_whole_story(tmp_path: Path) -> None:
    """Start-up, resume, steps, a checkpoint: everything that was said is in the file afterwards."""
    record = tmp_path / "rank0"
    body = """
progress.phase("warmup")
progress.checkpoint_loaded(100)
progress.phase("train")
for n in range(101, 111):
    progress.step(n, loss=3.0 - n / 100)
progress.phase("checkpoint")
progress.checkpoint_saved(110)
progress.phase("")
"""
    before = time()
    done = run(tmp_path, body, record)
    after = time()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    told = read(record)
    assert (told.step, told.loss, told.saved_step, told.loaded_step) == (110, pytest.approx(1.9), 110, 100)
    assert len(told.durations) == 9
    assert all(0 < seconds < after - before for seconds in told.durations)
    assert told.phase == ""
    assert list(told.phase_seconds) == ["warmup", "train", "checkpoint"]
    assert sum(told.phase_seconds.values()) < after - before
    times = [told.alive_at, told.loaded_at, told.step_at, told.saved_at, told.phase_at]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= after


def test_the_phase_that_is_going_on_is_named(tmp_path: Path) -> None:
    """A rank that is killed in an evaluation is seen to have been in it; names are cut between characters."""
    record = tmp_path / "rank0"
    run(tmp_path, "progress.step(1)\nprogress.phase('évaluation des modèles é')\n", record)
    told = read(record)
    assert told.phase == "évaluation des modèles"
    assert told.phase_at >= told.step_at > 0


def test_a_step_counted_in_tens_is_shared_out(tmp_path: Path) -> None:
    """A script that reports every tenth step is as fast per step as it is."""
    record = tmp_path / "rank0"
    run(tmp_path, "import time\nprogress.step(10)\ntime.sleep(0.2)\nprogress.step(20)\n", record)
    (seconds,) = read(record).durations
    assert 0.02 <= seconds < 0.2


def test_going_back_is_no_step(tmp_path: Path) -> None:
    """After a rollback the step is lower; neither that nor a repeated step has a duration."""
    record = tmp_path / "rank0"
    run(tmp_path, "for n in (5, 6, 6, 3, 4): progress.step(n)\n", record)
    told = read(record)
    assert told.step == 4
    assert len(told.durations) == 2


def test_more_phases_than_the_table_holds(tmp_path: Path) -> None:
    """Time is kept for the first sixteen names; the present one is always known."""
    record = tmp_path / "rank0"
    run(tmp_path, "for n in range(200): progress.phase(f'phase {n}')\n", record)
    told = read(record)
    assert told.phase == "phase 199"
    assert list(told.phase_seconds) == [f"phase {n}" for n in range(16)]


def test_killed_in_the_middle_of_a_tight_loop(endless: tuple[subprocess.Popen[str], Path]) -> None:
    """Wherever SIGKILL hits, the record can still be read, and steps were being made until then."""
    process, record = endless
    seen, last = 0, 0
    until = monotonic() + 30
    while last < 20_000 and monotonic() < until:
        decoded = decode(written(record), seen)
        if decoded is not None:  # None before the first step, and where both blocks changed under the read
            assert decoded[0].step >= last
            last, seen = decoded[0].step, decoded[1]
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    told = read(record)
    assert told.step >= last >= 20_000
    assert len(told.durations) == 64


@pytest.mark.parametrize("attempt", range(5))
def test_killed_at_any_moment(endless: tuple[subprocess.Popen[str], Path], attempt: int) -> None:
    """The first moments too: there is a record, or none yet; never a broken one."""
    process, record = endless
    assert process.stdout is not None
    select.select([process.stdout], [], [], 0.003 * attempt)  # nothing comes: a short wait
    process.kill()
    process.wait()
    data = written(record)
    if data[:8] == reknit.progress.MAGIC:
        assert read(record).alive_at > 0
    else:
        assert data.strip(b"\0") == b""


def test_without_the_variable_nothing_happens(tmp_path: Path) -> None:
    """No file, no output, no delay: where Reknit is not there the module is not there either."""
    done = run(tmp_path, "progress.step(1, 2.0)\nprogress.phase('a')\nprogress.checkpoint_saved(1)\n", None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_importing_it_loads_and_opens_nothing(tmp_path: Path) -> None:
    """The file is made by the first call; nothing outside the standard library is imported."""
    record = tmp_path / "rank0"
    body = """
import sys
print(sorted({name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names) - {"__main__"}))
"""
    done = run(tmp_path, body, record)
    loaded = set(re.findall(r"'([^']+)'", done.stdout))
    assert "reknit" in loaded
    assert not loaded & {"msgspec", "re2", "rich", "click", "numpy"}
    assert not record.exists()


def test_a_copy_of_the_file_is_enough(tmp_path: Path) -> None:
    """A container without Reknit needs this one file."""
    copy = tmp_path / "copied_progress.py"
    copy.write_bytes(Path(reknit.progress.__file__).read_bytes())
    record = tmp_path / "rank0"
    command = [sys.executable, "-S", "-c", "import copied_progress as p; p.step(7, 1.5)"]
    subprocess.run(command, cwd=tmp_path, env=environment(record), check=True, timeout=60)
    assert (read(record).step, read(record).loss) == (7, 1.5)


@pytest.mark.parametrize("place", ["missing/rank0", "folder", "/dev/full", "/proc/version", "pipe", "note"])
def test_a_path_that_cannot_be_used(tmp_path: Path, place: str) -> None:
    """The training script never hears of it, and somebody's other file is left alone."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "note").write_text("dear diary", encoding="utf-8")
    done = run(tmp_path, "progress.step(1)\nprogress.phase('a')\nprint('trained')\n", tmp_path / place)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    assert (tmp_path / "note").read_text(encoding="utf-8") == "dear diary"


def test_a_disk_that_takes_no_more(tmp_path: Path) -> None:
    """Where the file cannot have its 2 KiB the script goes on without it, and is not killed by it."""
    body = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for n in range(100): progress.step(n)
print("trained")
"""
    done = run(tmp_path, body, tmp_path / "rank0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    assert decode((tmp_path / "rank0").read_bytes(), 0) is None


@pytest.mark.parametrize("watched", [True, False])
def test_silly_arguments(tmp_path: Path, watched: bool) -> None:
    """Whatever a script passes: no exception, no output; a good step with a strange loss is still a step."""
    record = tmp_path / "rank0"
    done = run(tmp_path, SILLY, record if watched else None)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    if watched:
        told = read(record)
        assert (told.step, told.loss) == (19, float(2**53 + 1))


def test_a_loss_that_is_no_number_is_unknown(tmp_path: Path) -> None:
    """The step counts; a loss of NaN is not handed on, since the journal could not give it back."""
    record = tmp_path / "rank0"
    run(tmp_path, "progress.step(3, float('nan'))\n", record)
    assert (read(record).step, read(record).loss) == (3, None)


def test_a_forked_worker_does_not_speak_for_the_rank(tmp_path: Path) -> None:
    """What a data loader's worker says changes nothing, nor does its end; the parent goes on."""
    record = tmp_path / "rank0"
    body = """
import os
progress.step(1)
child = os.fork()
if child == 0:
    progress.step(999)
    progress.phase("worker")
    progress.checkpoint_saved(999)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
progress.step(2)
"""
    done = run(tmp_path, body, record)
    assert (done.returncode, done.stderr) == (0, "")
    told = read(record)
    assert (told.step, told.phase, told.saved_step) == (2, "", -1)
    assert len(told.durations) == 1


def test_a_started_worker_does_not_speak_for_the_rank_either(tmp_path: Path) -> None:
    """A worker that is started anew has the variable too, but the file is the rank's while the rank lives."""
    record = tmp_path / "rank0"
    body = """
import subprocess, sys
progress.step(1)
subprocess.run([sys.executable, "-c", "from reknit import progress; progress.step(999)"], check=True)
progress.step(2)
"""
    done = run(tmp_path, body, record)
    assert (done.returncode, done.stderr) == (0, "")
    assert read(record).step == 2


def test_a_successor_begins_the_file_anew(tmp_path: Path) -> None:
    """A script that prepares and then starts the training in another process: the later one counts."""
    record = tmp_path / "rank0"
    run(tmp_path, "for n in range(50): progress.step(n)\nprogress.phase('prepare')\n", record)
    run(tmp_path, "progress.step(3)\n", record)
    told = read(record)
    assert (told.step, told.durations, told.phase, told.phase_seconds) == (3, (), "", {})


def test_a_checkpoint_thread_beside_the_loop(tmp_path: Path) -> None:
    """Checkpoints that another thread finishes while steps go on are not lost."""
    record = tmp_path / "rank0"
    body = """
import sys, threading
sys.setswitchinterval(1e-6)
def save():
    for n in range(2000): progress.checkpoint_saved(n)
thread = threading.Thread(target=save)
thread.start()
for n in range(5000): progress.step(n)
thread.join()
progress.step(5000)
"""
    done = run(tmp_path, body, record)
    assert (done.returncode, done.stderr) == (0, "")
    assert (read(record).step, read(record).saved_step) == (5000, 1999)
