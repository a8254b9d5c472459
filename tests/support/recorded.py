"""A story that leaves a state directory behind, and people who ask `reknit` about it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner, Result

from reknit.cli.states import journal_path
from reknit.journal.sqlite import SqliteJournal
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.state import pack
from reknit.orchestrate.local.files import write_json
from reknit.orchestrate.local.state_dir import RunFile
from support.story import ACT, Story

if TYPE_CHECKING:
    from pathlib import Path

    import click

    from reknit.model.policy import Policy

HOSTILE = "bad [bold red]sample\x1b[31m\x1b]0;owned\x07\x9b2J"
STEADY = {"FORCE_COLOR": None, "TTY_COMPATIBLE": None, "NO_COLOR": None, "COLUMNS": None}
"""What a person's environment might do to the output."""


class RecordedStory(Story):
    """A story that writes itself down, as the controller does."""

    def __init__(self, root: Path, *, policy: Policy = ACT) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        write_json(root / "run.json", RunFile("train", ("python", "train.py"), 4, 2, "/", 1000.0, 1))
        self.journal = SqliteJournal(journal_path(root))
        self.seq = 0
        super().__init__(policy=policy)

    def tell(self, event: ev.AnyEvent, after: float = 0.0) -> list[cmd.AnyCommand]:
        self.now += after
        out = [c for c in self.engine.handle(self.now, event) if not isinstance(c, cmd.WaitUntil)]
        self.seq = self.journal.record(self.now, event, out, self.engine.changed, {})
        self.commands += out
        for command in out:
            self.carry_out(command)
        return out

    def snapshot(self) -> None:
        self.journal.snapshot(self.seq, pack(self.engine.state))

    def a_rank_is_killed(self) -> None:
        self.train(20, save=True)
        self.exit(3, signal=9, after=0.05)
        self.wait(3)
        self.train(5, save=True)

    def a_gpu_falls_off_the_bus(self) -> None:
        self.train(20, save=True)
        self.train(4)
        self.xid(79, "node1")
        self.exit(2, code=1, after=0.05)
        self.wait(3)
        self.train(30, save=True)

    def a_rank_hangs(self) -> None:
        self.train(80, save=True)
        self.wait(61)
        capture = self.given(cmd.CaptureEvidence)[-1]
        self.tell(ev.SignalSeen(self.probe(5, "rank.stopped")))
        self.tell(ev.CommandDone(capture.id, path="evidence/inc-1/attempt-1"))
        self.train(2)

    def the_code_is_broken(self) -> None:
        self.train(10, save=True)
        for _ in range(2):
            self.train(4)
            self.says(
                0,
                "python.exception",
                exception="ValueError",
                message=HOSTILE,
                signature="ValueError@data.py:7",
            )
            self.exit(0, code=1, after=0.05)
            self.wait(3)


def ask(command: click.Command, *arguments: str, state: Path | None = None) -> Result:
    where = ["--state", str(state)] if state is not None else []
    return CliRunner(env=STEADY).invoke(command, [*arguments, *where])


def answer(command: click.Command, *arguments: str, state: Path | None = None) -> str:
    result = ask(command, *arguments, state=state)
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    return result.output


def refusal(command: click.Command, *arguments: str, state: Path | None = None) -> str:
    """The one sentence of a command that ends with status 2."""
    result = ask(command, *arguments, state=state)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("reknit: ")
    return line.removeprefix("reknit: ")


def data(command: click.Command, *arguments: str, state: Path) -> Any:
    return json.loads(answer(command, *arguments, "--json", state=state))
