"""What a person gets for bad input: one sentence that says what, where and what to do, and status 2."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.runs import QUICK, REKNIT, Run, steps, until


def refused(tmp: Path, *args: str) -> str:
    """The one sentence that `reknit run` says when it refuses."""
    done = subprocess.run(
        [*REKNIT, "run", "--plain", *args], check=False, capture_output=True, text=True, timeout=60, cwd=tmp
    )
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr + done.stdout
    assert not list(tmp.glob("**/shim.json")), "nothing was started"
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("[restart]\nper_hour = 3\n", "restart"),
        ("[restarts]\nper_houre = 3\n", "per_houre"),
        ('[restarts]\nper_hour = "three"\n', "restarts.per_hour"),
        ("[restarts]\nper_hour = -1\n", "per_hour"),
        ("[deadlines]\nretry_s = 0\n", "retry_s"),
        ("[stall]\nstep_floor_s = 10\nstep_ceiling_s = 5\n", "stall.step"),
        ('mode = "panic"\n', "panic"),
        ("mode = [\n", "TOML"),
        ("\xff\xfe", "policy.toml"),
    ],
)
def test_a_policy_with_a_mistake_is_refused(tmp_path: Path, policy: str, says: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_bytes(policy.encode("latin-1"))
    sentence = refused(tmp_path, "--policy", str(path), "--", "true")
    assert says in sentence
    assert "policy.toml" in sentence


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    assert "nowhere.toml" in refused(tmp_path, "--policy", "nowhere.toml", "--", "true")


def test_no_command(tmp_path: Path) -> None:
    assert "no command" in refused(tmp_path)


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    assert "no-such-program" in refused(tmp_path, "--", "no-such-program", "--flag")


def test_a_file_that_is_not_executable(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)")
    assert "not executable" in refused(tmp_path, "--", "./train.py")


def test_an_option_behind_the_command_is_the_commands_own(tmp_path: Path) -> None:
    done = subprocess.run(
        [*REKNIT, "run", "--plain", "--kernel-log", "none", "true", "--nodes", "7"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "many", "5000"])
def test_a_number_of_nodes_that_makes_no_sense(tmp_path: Path, value: str) -> None:
    assert "--nodes" in refused(tmp_path, "--nodes", value, "--", "true")


def test_a_state_directory_of_another_run(tmp_path: Path) -> None:
    run = Run(tmp_path, steps(tmp_path, steps=3))
    run.start()
    assert run.wait() == 0
    for path in tmp_path.glob("**/shim.json"):
        path.unlink()
    sentence = refused(tmp_path, "--state", str(run.state), "--nodes", "2", "--", "true")
    assert "another run" in sentence
    assert "--state" in sentence


def test_a_state_directory_in_use_by_a_live_run(tmp_path: Path) -> None:
    run = Run(tmp_path, steps(tmp_path, steps=200))
    run.start()
    try:
        until("the run to begin", lambda: run.checkpoint() >= 0)
        done = subprocess.run(run.args, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 2
        assert "in use by a live run" in done.stderr
        assert str(run.process.pid if run.process else 0) in done.stderr
    finally:
        run.close()


def test_a_directory_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "thesis.tex").write_text("please keep")
    assert "not reknit's" in refused(tmp_path, "--state", "state", "--", "true")
    assert (tmp_path / "state" / "thesis.tex").read_text() == "please keep"


def test_a_state_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    assert "state" in refused(tmp_path, "--state", "state", "--", "true")


def test_a_damaged_journal(tmp_path: Path) -> None:
    run = Run(tmp_path, steps(tmp_path, steps=3))
    run.start()
    assert run.wait() == 0
    for path in tmp_path.glob("**/shim.json"):
        path.unlink()
    for name in ("journal.sqlite3-wal", "journal.sqlite3-shm"):
        (run.state / name).unlink(missing_ok=True)
    (run.state / "journal.sqlite3").write_bytes(b"not a database at all" * 500)
    done = subprocess.run(run.args, check=False, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "journal.sqlite3" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("node0=/no/such/kernel.log", "/no/such/kernel.log"),
        ("node9={file}", "node9"),
        ("{file}", "NODE=PATH"),
        ("node0={folder}", "directory"),
    ],
)
def test_a_kernel_log_that_cannot_be_read(tmp_path: Path, option: str, says: str) -> None:
    (tmp_path / "kernel.log").write_text("")
    given = option.format(file=tmp_path / "kernel.log", folder=tmp_path)
    assert says in refused(tmp_path, "--kernel-log", given, "--", "true")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[node]]\nname = "a"\n', "2"),
        ('[[node]]\nname = "a"\n[[node]]\nname = "a"\n', "twice"),
        ('[[node]]\nname = "a"\ncolour = "red"\n', "colour"),
        ("[[node", "inventory"),
    ],
)
def test_an_inventory_with_a_mistake(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "nodes.toml").write_text(text)
    assert says in refused(tmp_path, "--inventory", "nodes.toml", "--nodes", "2", "--", "true")


@pytest.mark.parametrize("pattern", ["(unclosed", "step no group", r"(?P<step>\d+)(?=x)"])
def test_a_progress_regex_that_cannot_be_used(tmp_path: Path, pattern: str) -> None:
    assert "pattern" in refused(tmp_path, "--progress-regex", pattern, "--", "true").lower()


def test_a_job_that_cannot_start_at_all_is_the_jobs_fault_and_an_incident(tmp_path: Path) -> None:
    script = tmp_path / "train"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    run = Run(tmp_path, [str(script)], policy=QUICK)
    run.start()
    try:
        assert run.wait() == 125, run.text()
        (incident,) = run.incidents()
        assert incident["job"]["state"] == "stopped"
        assert "Traceback" not in run.text()
    finally:
        run.close()


def test_a_read_only_place_for_the_state(tmp_path: Path) -> None:
    assert "/proc" in refused(tmp_path, "--state", "/proc/reknit-state", "--", "true")
    assert not Path("/proc/reknit-state").exists()
