"""What is seen of a run while it goes on: the picture on a terminal, and the lines where there is none."""

from __future__ import annotations

import asyncio
import io
import os
import time

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from reknit.cli.live import LiveView, PlainView
from reknit.cli.live_frame import Scene, frame
from reknit.engine import Engine
from reknit.model import events as ev
from reknit.model.entities import Entity, JobSpec, Node, RankPlacement
from reknit.model.signals import Signal
from reknit.model.state import EngineState
from reknit.model.terms import Trust
from support.story import CATALOG, Story


def picture(
    state: EngineState, width: int = 80, height: int = 24, *, now: float = 0.0, notice: str = ""
) -> list[str]:
    """The lines of one picture, without colour."""
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, force_terminal=True)
    scene = Scene("reknit", state, now or state.now, notice=notice)
    scene.losses.extend(2.0 / (1 + step) for step in range(50))
    with console.capture() as capture:
        console.print(frame(scene, width, height))
    return capture.get().splitlines()


def nodes_of(lines: list[str]) -> str:
    """What stands in the panel of the nodes."""
    start = next(i for i, line in enumerate(lines) if " nodes " in line)
    end = next(i for i, line in enumerate(lines) if i > start and line.startswith("╰"))
    return " ".join(" ".join(line.strip("│ ") for line in lines[start + 1 : end]).split())


def test_a_calm_run_shows_the_job_its_nodes_and_its_loss() -> None:
    story = Story()
    story.train(20, save=True)
    lines = picture(story.state)
    assert len(lines) == 24
    assert "train  training  attempt 1  step 19" in lines[1]
    assert "ETTR 90.5 %" in lines[1]
    assert lines[1].endswith("0:02 │")
    assert "step time 100 ms ▅▅▅▅" in lines[2]
    assert nodes_of(lines) == "node0 ●● node1 ●● node2 ●● node3 ●● node4 spare"
    assert any("nothing has gone wrong so far" in line for line in lines)
    assert any("loss 2 … 0.04" in line for line in lines)


def test_signs_tell_dead_stopped_starting_and_taken_out_apart_without_colour() -> None:
    story = Story(restarts_work=False)
    assert nodes_of(picture(story.state)).startswith("node0 ◌◌ node1 ◌◌")
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1)
    assert "node1 ✕● quarantined" in nodes_of(picture(story.state))
    story.tell(ev.AttemptEnded("train", 1))
    assert "node0 ··" in nodes_of(picture(story.state))

    story = Story()
    story.train(80, save=True)
    story.wait(61)
    story.tell(ev.SignalSeen(story.probe(5, "rank.stopped")))
    assert "node2 ●‖" in nodes_of(picture(story.state))


def test_the_picture_of_an_incident_has_its_story_and_the_one_before_below_it() -> None:
    story = Story()
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    story.train(20, save=True)
    story.xid(79, "node1")
    story.exit(2, code=1)
    story.wait(3)
    lines = picture(story.state)
    assert len(lines) == 24
    text = "\n".join(lines)
    assert "inc-2 GPU has fallen off the bus" in text
    assert "reloading, node1 out · GPU hardware · blamed: GPU 0 of node1" in text
    assert "decision   restart the gang away from node1" in text
    assert "inc-1   recovered" in text.partition(" earlier ")[2]


@pytest.mark.parametrize("width", [8, 20, 40, 80, 140, 300])
@pytest.mark.parametrize("height", [3, 10, 16, 24, 40, 80])
def test_the_picture_fits_every_terminal(width: int, height: int) -> None:
    story = Story()
    story.train(20, save=True)
    for _ in range(2):
        story.says(
            0, "python.exception", exception="ValueError", message="long " * 60 + "火" * 80, signature="v"
        )
        story.exit(0, code=1)
        story.wait(3)
        lines = picture(story.state, width, height, notice="someone says " * 20)
        assert len(lines) == max(height, 8), (
            "head and one line of nodes are the least; the screen cuts the rest"
        )
        assert max(map(cell_len, lines)) <= width
        story.train(4)


def test_a_large_gang_is_drawn_with_its_troubled_nodes_first() -> None:
    engine = Engine(CATALOG, Story().engine.policy)
    names = [f"n{i:03d}" for i in range(400)]
    for name in names:
        engine.handle(1.0, ev.NodeSeen(Node(name, boot_id="b")))
    engine.handle(1.0, ev.JobSubmitted(JobSpec("big", 400, 8)))
    placement = tuple(RankPlacement(8 * i + k, name, k) for i, name in enumerate(names) for k in range(8))
    engine.handle(1.0, ev.AttemptStarted("big", 1, placement))
    engine.handle(2.0, ev.RankExited("big", 1, 8 * 377, 2.0, 1))
    lines = picture(engine.state, 100, 30)
    assert len(lines) == 30
    assert nodes_of(lines).startswith("n377 ✕◌◌◌◌◌◌◌ n000 ◌◌◌◌◌◌◌◌")
    assert "more" in nodes_of(lines)


def test_foreign_text_steers_neither_the_picture_nor_the_lines() -> None:
    story = Story()
    story.train(5)
    nasty = "[bold red]x[/bold red] \x1b[2J\x1b]0;owned\x07 \u202e[link=http://x]y[/link]"
    story.tell(ev.NodeSeen(Node("[red]evil\x1b[31m", boot_id="b")))
    signal = Signal(
        code="nvidia.xid.79",
        entity=Entity("node", "[red]evil\x1b[31m"),
        first_seen=story.now,
        last_seen=story.now,
        source="kernel",
        trust=Trust.KERNEL_RECORD,
        node="[red]evil\x1b[31m",
        excerpt=nasty,
    )
    story.tell(ev.SignalSeen(signal))
    text = "\n".join(picture(story.state, 140, 40, notice=nasty))
    assert "[red]evil quarantined" in text
    assert "[bold red]x[/bold red]" in text
    file = io.StringIO()
    plain = PlainView(Console(file=file), "reknit")
    plain.update(story.state, story.now)
    plain.notice(nasty)
    assert "note: [bold red]x[/bold red] [link=http://x]y[/link]" in file.getvalue()
    for shown in (text, file.getvalue()):
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)


# -- on a terminal


def terminal() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=True, width=80, height=24, color_system="truecolor"), file


def test_the_terminal_is_left_as_it_was_found_and_people_are_told_once_more() -> None:
    story = Story()
    console, file = terminal()
    with LiveView(console, "reknit", spares=1) as view:
        view.update(story.state, story.now)
        view.notice("act 1: a rank [is] killed")
        story.train(3)
        story.tell(ev.JobSucceeded("train", 1))
        view.update(story.state, story.now)
    shown = file.getvalue()
    assert shown.startswith("\x1b[?1049h"), "the other screen"
    before, _, after = shown.rpartition("\x1b[?1049l")
    assert "\x1b[?25h" in shown[len(before) - 20 :], "the cursor is back"
    assert "act 1: a rank [is] killed\n" in after
    assert "train: succeeded after 0.40 s; attempt 1, step 2, 100 ms a step" in after


def test_a_thousand_events_are_a_few_pictures_and_the_last_of_them_is_drawn() -> None:
    story = Story()
    console, file = terminal()

    async def run() -> None:
        with LiveView(console, "reknit") as view:
            began = time.monotonic()
            for _ in range(1000):
                view.update(story.state, story.now)
            assert time.monotonic() - began < 1.0
            story.train(1)
            for _ in range(7):
                story.train(1)
                view.update(story.state, story.now)
            await asyncio.sleep(0.5)

    asyncio.run(run())
    drawn = file.getvalue().partition("\x1b[?1049l")[0]
    assert drawn.count(" nodes ") < 10
    assert "7" in drawn.rpartition(" step ")[2][:20], "drawn although no event followed it"


class _Gone(io.StringIO):
    """A terminal whose other end has hung up."""

    lost = False

    def write(self, text: str) -> int:
        if self.lost:
            raise OSError(5, "Input/output error")
        return super().write(text)


def test_a_terminal_that_hangs_up_does_not_take_the_run_with_it() -> None:
    story = Story()
    file = _Gone()
    with LiveView(Console(file=file, force_terminal=True, width=80, height=24), "reknit") as view:
        file.lost = True
        for _ in range(3):
            view.notice("still here")
            view.update(story.state, story.now)
            time.sleep(0.13)
    assert file.lost


# -- plain lines


def said(file: io.StringIO) -> list[str]:
    return file.getvalue().splitlines()


def test_every_line_of_a_story_is_said_once_and_in_order() -> None:
    file = io.StringIO()
    view = PlainView(Console(file=file), "reknit")
    story = Story()
    heard = story.engine.handle

    def handle(now: float, event: ev.AnyEvent) -> object:
        commands = heard(now, event)
        view.update(story.engine.state, now)
        return commands

    story.engine.handle = handle  # type: ignore[method-assign,assignment]
    with view:
        story.train(20, save=True)
        story.exit(3, signal=9)
        story.wait(3)
        story.train(100, save=True)
        story.xid(79, "node1")
        story.tell(ev.NodeGone("node1"))
    told = [line.partition("] ")[2] for line in said(file)]
    timeline = [f"{i.id} {entry.kind}: {entry.text}" for i in story.incidents for entry in i.timeline]
    assert [line for line in told if line.startswith("inc-")] == timeline
    assert not story.incidents[1].open, "opened and closed, and still told in full"
    assert told[0] == "train: attempt 1 runs on node0, node1, node2, node3"
    progress = [line for line in told if line.startswith("train: attempt 2, step")]
    assert 1 <= len(progress) <= 4, "every five seconds"
    assert said(file)[0].startswith("[   0.")


def test_what_was_told_before_a_restart_of_reknit_is_not_told_again() -> None:
    story = Story()
    story.train(20, save=True)
    story.xid(79, "node1")
    state = msgspec.json.decode(msgspec.json.encode(story.state), type=EngineState)
    file = io.StringIO()
    view = PlainView(Console(file=file), "reknit")
    view.update(state, story.now + 10)
    assert not [line for line in said(file) if "inc-1" in line]
    again = Engine(CATALOG, story.engine.policy, state)
    again.handle(story.now + 11, ev.NodeReleaseRequested("node1", by="Ada"))
    view.update(state, story.now + 11)
    assert [line for line in said(file) if "inc-1" in line] == [
        "[   1.0s] inc-1 action: give node1 back: Ada wants it back in service"
    ]


def test_the_end_of_the_job_is_said() -> None:
    story = Story()
    story.train(3)
    file = io.StringIO()
    view = PlainView(Console(file=file), "reknit")
    view.update(story.state, story.now)
    story.tell(ev.JobSucceeded("train", 1))
    view.update(story.state, story.now)
    view.update(story.state, story.now)
    assert said(file)[-1].endswith(
        "train: succeeded after 0.40 s; attempt 1, step 2, 100 ms a step, ETTR 50.0 %"
    )


def test_a_reader_that_goes_away_does_not_take_the_run_with_it() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        view = PlainView(Console(file=file), "reknit")
        view.notice("somebody listens")
        os.close(read)
        for _ in range(3):
            view.notice("nobody listens")
        file.write("and closing is no error either")
