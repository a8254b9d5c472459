"""The training of the demo is real: its gradients, its all-reduce, its checkpoints, and the way it breaks."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from reknit.demo import checkpoint, mlp, train
from reknit.demo.allreduce import Alone, Group, one_row_each, rendezvous
from reknit.demo.faulty import Faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOST = "127.0.0.1"
FLOOR = Path(__file__).parents[2] / "bench" / "shell_floor.sh"
STEPS_JOB = Path(__file__).parents[1] / "jobs" / "steps.py"
PATIENCE_S = 30.0
"""Long enough for a loaded machine; nothing here takes it where things work."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HOST, 0))
        return int(sock.getsockname()[1])


def together(size: int, work: Callable[[Group], object]) -> list[object]:
    """The results of `work` in a gang of `size` threads, in the order of the ranks."""
    port = free_port()
    results: list[object] = [None] * size

    def rank(number: int) -> None:
        group = rendezvous(number, size, HOST, port, PATIENCE_S)
        results[number] = work(group)
        group.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return results


class Gang:
    """Real processes of `reknit.demo.train`, each with its log."""

    def __init__(
        self, folder: Path, size: int, *arguments: str, attempt: int = 1, faults: Path | None = None
    ) -> None:
        port = free_port()
        self.logs = [folder / f"rank-{rank}.{attempt}.log" for rank in range(size)]
        self.ranks: list[subprocess.Popen[bytes]] = []
        for rank, log in enumerate(self.logs):
            place = {
                "RANK": rank,
                "WORLD_SIZE": size,
                "MASTER_ADDR": HOST,
                "MASTER_PORT": port,
                "REKNIT_ATTEMPT": attempt,
            }
            env = os.environ | {name: str(value) for name, value in place.items()}
            env["REKNIT_DEMO_FAULTS"] = str(faults or "")
            command = [
                sys.executable,
                "-m",
                "reknit.demo.train",
                "--checkpoint-dir",
                str(folder / "checkpoints"),
                *arguments,
            ]
            with log.open("wb") as output:
                self.ranks.append(subprocess.Popen(command, env=env, stdout=output, stderr=output))

    def wait(self) -> list[int]:
        """Exit statuses, once all ranks have ended."""
        return [rank.wait(PATIENCE_S) for rank in self.ranks]

    def text(self, rank: int) -> str:
        return self.logs[rank].read_text()

    def wait_until_still(self) -> str:
        """Until rank 0 has printed nothing for 0.3 s, thirty steps' time; gives all that it has printed."""
        deadline = time.monotonic() + PATIENCE_S
        printed = ""
        while printed != self.text(0):
            assert time.monotonic() < deadline, "rank 0 never stood still"
            printed = self.text(0)
            time.sleep(0.3)
        return printed

    def wait_for(self, text: str) -> None:
        """Until rank 0 has printed it."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.text(0):
            assert time.monotonic() < deadline, f"rank 0 never said {text!r}:\n{self.text(0)}"
            time.sleep(0.005)


@contextlib.contextmanager
def gang(
    folder: Path, size: int, *arguments: str, attempt: int = 1, faults: Path | None = None
) -> Iterator[Gang]:
    """A gang of which nothing is left afterwards."""
    started = Gang(folder, size, *arguments, attempt=attempt, faults=faults)
    try:
        yield started
    finally:
        for rank in started.ranks:
            rank.kill()
            rank.wait()


def settings(folder: Path | None, steps: int) -> train.Settings:
    return train.Settings(steps, folder, checkpoint_every=10, step_seconds=0.0, log_every=10)


def train_alone(folder: Path | None, steps: int, faults: Path | str = "") -> list[float]:
    return train.run(Alone(), settings(folder, steps), Faults(str(faults), rank=0, attempt=1))


def losses_in(log: str) -> dict[int, float]:
    return {
        int(step): float(loss)
        for step, loss in re.findall(r"^iter (\d+): loss ([\d.]+), time", log, re.MULTILINE)
    }


def weights_at(folder: Path, step: int) -> bytes:
    return checkpoint.load(folder / f"step-{step:09d}.ckpt").weights.tobytes()


def test_gradient_is_the_slope_of_the_loss() -> None:
    shard = mlp.Shard(seed=3, rank=0, size=1)
    x, labels = mlp.collate(shard.draw())
    flat = mlp.initial(seed=5)
    _, gradient = mlp.loss_and_gradient(flat, x, labels)
    nudge = 1e-6
    for index in np.random.default_rng(0).choice(mlp.PARAMETERS, 60, replace=False):
        up, down = flat.copy(), flat.copy()
        up[index] += nudge
        down[index] -= nudge
        slope = (mlp.loss_and_gradient(up, x, labels)[0] - mlp.loss_and_gradient(down, x, labels)[0]) / (
            2 * nudge
        )
        assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-8)


def test_all_reduce_gives_every_rank_the_same_sum() -> None:
    vectors = [np.random.default_rng(rank).normal(size=100_000) for rank in range(3)]
    results = together(3, lambda group: group.all_reduce(vectors[group.rank]))
    expected = (vectors[0] + vectors[1]) + vectors[2]
    assert [np.array_equal(result, expected) for result in results] == [True, True, True]


def test_ranks_learn_each_others_rows() -> None:
    results = together(
        3, lambda group: one_row_each(group, np.array([group.rank, 7], dtype=np.int64)).tolist()
    )
    assert results == [[[0, 7], [1, 7], [2, 7]]] * 3


def test_strangers_at_the_port_are_sent_away() -> None:
    port = free_port()
    found: list[Group] = []
    server = threading.Thread(target=lambda: found.append(rendezvous(0, 2, HOST, port, PATIENCE_S)))
    server.start()
    strangers = [b"GET / HTTP/1.1\r\n\r\n", b"reknitar" + bytes([0, 0, 0, 9, 0, 0, 0, 9]), b""]
    for words in strangers:
        with connected(port) as sock:
            sock.sendall(words)
    mine = rendezvous(1, 2, HOST, port, PATIENCE_S)
    server.join(PATIENCE_S)
    found[0].close()
    with pytest.raises(
        ConnectionResetError, match=r"Connection closed by peer \[127\.0\.0\.1\]:\d+ \(rank 0\)"
    ):
        mine.all_reduce(np.ones(3))
    mine.close()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((HOST, port))
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(TimeoutError, match=r"rank 1, 2 of 3 ranks did not come in time"):
        rendezvous(0, 3, HOST, free_port(), timeout=0.1)
    with pytest.raises(TimeoutError, match="rank 1 could not meet rank 0 in time"):
        rendezvous(1, 3, HOST, free_port(), timeout=0.1)


def test_a_bad_sample_breaks_the_same_step_each_time_and_a_restart_changes_no_bit(tmp_path: Path) -> None:
    undisturbed = train_alone(None, 30)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    faults = tmp_path / "faults.json"
    faults.write_text(json.dumps({"kind": "bad_sample", "step": 18}))
    for _ in range(2):
        with pytest.raises(ValueError, match="all input arrays must have the same shape"):
            train_alone(folder, 30, faults)
        assert checkpoint.steps(folder) == [10]
    faults.unlink()
    assert train_alone(folder, 30, faults) == undisturbed[10:]
    assert undisturbed[29] < undisturbed[0]
    assert train_alone(folder, 30) == []  # all is done: nothing is made again


def test_damaged_checkpoints_are_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    undisturbed = train_alone(tmp_path, 40)
    assert checkpoint.steps(tmp_path) == [40, 30, 20]
    half, flipped = tmp_path / "step-000000040.ckpt", tmp_path / "step-000000030.ckpt"
    half.write_bytes(half.read_bytes()[:5000])
    content = bytearray(flipped.read_bytes())
    content[20_000] ^= 1
    flipped.write_bytes(content)
    capsys.readouterr()
    assert train_alone(tmp_path, 40) == undisturbed[20:]
    printed = capsys.readouterr().out
    assert f"skipped checkpoint {half}: its checksum does not fit its 5000 bytes" in printed
    assert f"skipped checkpoint {flipped}: its checksum" in printed
    assert "loaded checkpoint at step 20\n" in printed


def test_a_checkpoint_of_another_gang_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    together(2, lambda group: train.run(group, settings(tmp_path, 10), Faults("", group.rank, 1)))
    assert len(train_alone(tmp_path, 5)) == 5
    assert "it was written by 2 ranks and this run has 1; trying the one before it" in capsys.readouterr().out


def test_ranks_agree_on_the_newest_checkpoint_that_all_can_read(tmp_path: Path) -> None:
    folders = [tmp_path / "disk-of-0", tmp_path / "disk-of-1"]
    folders[0].mkdir()

    def work(group: Group) -> list[float]:
        return train.run(group, settings(folders[group.rank], 30), Faults("", group.rank, 1))

    shutil.copytree(folders[0], folders[1])
    first = together(2, work)[0]
    shutil.copytree(folders[0], folders[1], dirs_exist_ok=True)
    (folders[1] / "step-000000030.ckpt").write_bytes(b"not written in full")
    (folders[0] / "step-000000020.ckpt").write_bytes(b"nor this one")
    assert isinstance(first, list)
    assert together(2, work) == [first[10:], first[10:]]


def test_a_full_disk_leaves_the_checkpoints_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_alone(tmp_path, 20)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        train_alone(tmp_path, 30)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "step-000000010.ckpt",
        "step-000000020.ckpt",
    ]


def test_killed_rank_ends_the_other_and_the_restart_gives_the_same_model(tmp_path: Path) -> None:
    pace = ("--steps", "60", "--checkpoint-every", "20", "--log-every", "1", "--step-seconds", "0.01")
    quiet, broken = tmp_path / "quiet", tmp_path / "broken"
    quiet.mkdir()
    broken.mkdir()
    with gang(quiet, 2, *pace) as undisturbed:
        assert undisturbed.wait() == [0, 0]
    expected = losses_in(undisturbed.text(0))
    assert sorted(expected) == list(range(1, 61))
    assert sum(expected[step] for step in range(51, 61)) < 0.8 * sum(expected[step] for step in range(1, 11))

    with gang(broken, 2, *pace) as first:
        first.wait_for("iter 30: ")
        first.ranks[1].send_signal(signal.SIGKILL)
        killed_at = time.monotonic()
        assert first.wait() == [1, -signal.SIGKILL]
        assert time.monotonic() - killed_at < 5.0
    assert "Traceback (most recent call last)" in first.text(0)
    last = first.text(0).splitlines()[-1]
    assert last.startswith("ConnectionResetError: all-reduce: Connection closed by peer [127.0.0.1]:")
    assert last.endswith("(rank 1)")

    with gang(broken, 2, *pace, attempt=2) as second:
        assert second.wait() == [0, 0]
    assert "loaded checkpoint at step 20\n" in second.text(0)
    assert losses_in(second.text(0)) == {step: loss for step, loss in expected.items() if step > 20}
    assert weights_at(broken / "checkpoints", 60) == weights_at(quiet / "checkpoints", 60)


def test_when_rank_0_dies_the_others_end(tmp_path: Path) -> None:
    with gang(tmp_path, 3, "--log-every", "1", "--step-seconds", "0.005") as three:
        three.wait_for("iter 5: ")
        three.ranks[0].send_signal(signal.SIGKILL)
        assert three.wait() == [-signal.SIGKILL, 1, 1]
    assert "(rank 0)" in three.text(1)
    assert "(rank 0)" in three.text(2)


def test_a_frozen_rank_holds_the_others_up_for_as_long_as_it_is_frozen(tmp_path: Path) -> None:
    with gang(tmp_path, 2, "--steps", "40", "--log-every", "1", "--step-seconds", "0.01") as two:
        two.wait_for("iter 5: ")
        two.ranks[1].send_signal(signal.SIGSTOP)
        printed = two.wait_until_still()
        assert two.ranks[0].poll() is None
        assert max(losses_in(printed)) < 40
        two.ranks[1].send_signal(signal.SIGCONT)
        assert two.wait() == [0, 0]


def test_a_lost_gpu_strikes_its_rank_in_its_attempt_only(tmp_path: Path) -> None:
    faults = tmp_path / "faults.json"
    pace = ("--steps", "30", "--checkpoint-every", "10", "--log-every", "1", "--step-seconds", "0.01")
    with gang(tmp_path, 2, *pace, faults=faults) as first:
        first.wait_for("iter 12: ")
        faults.write_text(json.dumps([{"kind": "cuda_error", "rank": 1, "attempt": 1}]))
        assert first.wait() == [1, 1]
    assert first.text(1).endswith("\nRuntimeError: CUDA error: unspecified launch failure\n")
    assert "CUDA" not in first.text(0)
    with gang(tmp_path, 2, *pace, attempt=2, faults=faults) as second:
        assert second.wait() == [0, 0]
    assert "loaded checkpoint at step " in second.text(0)


def test_a_half_written_faults_file_makes_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "faults.json"
    faults = Faults(str(path), rank=0, attempt=1)
    assert faults.kinds(1) == set()
    path.write_text('[{"kind": "cuda_er')
    assert faults.kinds(2) == set()
    assert f"faults file {path} is no JSON" in capsys.readouterr().err
    path.write_text('[{"kind": "cuda_error"}, {"kind": "bad_sample", "rank": 1}, "what"]')
    assert faults.kinds(3) == {"cuda_error"}
    path.unlink()
    assert faults.kinds(4) == set()


@pytest.mark.parametrize(
    ("environment", "arguments", "sentence"),
    [
        ({"RANK": "two"}, [], "RANK is 'two' in the environment; it must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, [], "RANK=2 is not below WORLD_SIZE=2; set both as torchrun does"),
        ({"MASTER_PORT": "99999"}, [], "MASTER_PORT=99999 is no port; give one from 1 to 65535"),
        ({}, ["--checkpoint-dir", "/dev/null/here"], "Not a directory: '/dev/null/here'"),
    ],
)
def test_bad_input_gets_a_sentence(
    environment: dict[str, str],
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert train.main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_the_floor_starts_the_gang_again_until_it_ends_well(tmp_path: Path) -> None:
    once = '[ $RANK != 1 ] || [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 9; exec "$@"'
    job = [sys.executable, str(STEPS_JOB), "--steps", "5", "--step-seconds", "0.01"]
    job += ["--checkpoint", str(tmp_path / "checkpoint.json")]
    done = subprocess.run(
        [FLOOR, "2", "sh", "-c", once, "sh", *job],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "attempt 1: a rank ended with 9" in done.stderr
    assert "all ranks ended with 0" in done.stderr
    assert done.stdout.count("iter 5: ") == 2
