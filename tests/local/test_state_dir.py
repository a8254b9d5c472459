"""Whose a state directory is, and what is said where it cannot be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from local.bench import Recorder, run, shell
from reknit.model.commands import CaptureEvidence, Notify, WaitUntil
from reknit.model.events import CommandDone
from reknit.orchestrate.local.errors import (
    InventoryError,
    LocalError,
    SourceError,
    StateError,
    StateInUse,
    StateMismatch,
)
from reknit.orchestrate.local.state_dir import RunFile, open_state, read_run

if TYPE_CHECKING:
    from local.bench import Bench

RUN = RunFile(
    job="job", command=("train", "--lr", "1"), nodes=2, ranks_per_node=4, cwd="/here", created_at=1.0
)


def test_a_new_directory_remembers_the_run_and_a_second_start_gets_it_back(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "state"
    open_state(root, RUN).release()
    later = msgspec.structs.replace(RUN, job="another-name", cwd="/there", created_at=2.0)
    again = open_state(root, later)
    again.release()
    assert again.run == RUN
    assert read_run(root) == RUN


def test_a_directory_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from reknit.orchestrate.local.state_dir import *\n"
        "s = open_state(Path(sys.argv[1]), RunFile('job', ('train', '--lr', '1'), 2, 4, '/here', 1.0))\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(
            StateInUse, match=rf"in use by a live run \(process {holder.pid}\); end that one"
        ) as caught:
            open_state(tmp_path / "s", RUN)
        assert caught.value.pid == holder.pid
        holder.kill()
    open_state(tmp_path / "s", RUN).release()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"command": ("train", "--lr", "2")}, "its command is train --lr 1, not train --lr 2"),
        ({"nodes": 3}, "its --nodes is 2, not 3"),
        ({"ranks_per_node": 1}, "its --ranks-per-node is 4, not 1"),
    ],
)
def test_a_directory_of_another_run_is_refused_and_left_free(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    open_state(tmp_path / "s", RUN).release()
    with pytest.raises(StateMismatch, match=said):
        open_state(tmp_path / "s", msgspec.structs.replace(RUN, **change))
    open_state(tmp_path / "s", RUN).release()


def test_more_spares_are_another_wish_not_another_run(tmp_path: Path) -> None:
    open_state(tmp_path / "s", RUN).release()
    open_state(tmp_path / "s", msgspec.structs.replace(RUN, spares=3)).release()
    assert read_run(tmp_path / "s").spares == 3


def test_somebody_elses_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StateError, match=r"holds files that are not reknit's and no run\.json"):
        open_state(tmp_path, RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_a_damaged_run_json_and_a_path_below_a_file_each_give_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match="is a file; name another one with --state"):
        open_state(tmp_path / "file", RUN)
    with pytest.raises(StateError, match="is not a directory; name another one"):
        open_state(tmp_path / "file" / "below", RUN)
    open_state(tmp_path / "s", RUN).release()
    (tmp_path / "s" / "run.json").write_text("{")
    with pytest.raises(StateError, match=r"its run\.json is damaged"):
        open_state(tmp_path / "s", RUN)
    with pytest.raises(StateError, match=r"its run\.json does not exist; check the path"):
        read_run(tmp_path / "nowhere")


def test_bad_input_is_refused_before_a_state_directory_is_made(bench: Bench) -> None:
    folder = bench.state.parent
    (folder / "fifo").mkdir()
    bad_inventory = folder / "nodes.toml"
    bad_inventory.write_text('[[node]]\nname = "a"\ncolour = "red"\n')
    cases: list[tuple[dict[str, object], type[Exception], str]] = [
        (
            {"kernel_logs": {"node9": folder / "k"}},
            InventoryError,
            "node node9, which is none of node0, node1",
        ),
        ({"kernel_logs": {"node0": folder}}, SourceError, "is a directory, not a regular file"),
        ({"kernel_logs": {"node0": Path("/dev/null")}}, SourceError, "is a device, not a regular file"),
        ({"kernel_logs": {"node0": folder / "no" / "k"}}, SourceError, "there is no folder"),
        ({"inventory": bad_inventory}, InventoryError, "unknown field `colour`"),
        ({"log_regex": "step ("}, ValueError, "step"),
    ]
    for changes, kind, said in cases:
        with pytest.raises(kind, match=said):
            bench.open(shell("true"), **changes)
        assert not bench.state.exists()


def test_people_are_told_once_for_each_id_and_in_one_line(bench: Bench) -> None:
    async def story() -> None:
        local = bench.open(shell("exec sleep 600"), nodes=1)
        early = await local.execute(Notify("n-0", "inc-1", "why", 2e9, text="too early"))
        assert early.detail == "the orchestrator has not been started yet"
        await local.start(Recorder(), {})
        command = Notify("n-1", "inc-1", "why", 2e9, text="node1 is out\nof service\x1b[2J")
        assert await local.execute(command) == CommandDone("n-1", path="notices.log")
        await local.execute(command)
        assert bench.notices == ["node1 is out of service [2J"]
        lines = (bench.state / "notices.log").read_text().splitlines()
        assert len(lines) == 1
        assert lines[0].endswith(" [n-1] node1 is out of service [2J")
        assert await local.execute(WaitUntil("w-1", "inc-1", "why", 2e9)) == CommandDone("w-1")
        missing = await local.execute(
            CaptureEvidence("c-1", "inc-1", "why", 2e9, job="job", attempt=7, ranks=(0,))
        )
        assert missing.detail == "there is no attempt 7"
        await local.close()

    run(story())


def test_every_error_for_people_is_one_sentence_of_one_family() -> None:
    assert issubclass(StateInUse, LocalError)
    assert issubclass(SourceError, LocalError)
    assert issubclass(InventoryError, LocalError)
