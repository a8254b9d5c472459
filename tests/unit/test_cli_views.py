"""What a person sees who asks about a run: the commands, over journals that real stories have written."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from reknit.cli import incident_table, ledger_report, render
from reknit.cli.inbox import Request
from reknit.cli.incidents import incidents, show
from reknit.cli.ledger import ledger
from reknit.cli.ledger_data import read_ledger
from reknit.cli.people import release
from reknit.cli.states import journal_path, policy_path
from reknit.model import commands as cmd
from reknit.model import events as ev
from reknit.model.policy import Policy
from reknit.model.terms import LOST_PHASES, Phase
from reknit.orchestrate.local.files import write_json
from reknit.orchestrate.local.state_dir import RunFile, take_lock
from support.recorded import RecordedStory, answer, data, refusal
from support.story import CATALOG

if TYPE_CHECKING:
    from pathlib import Path

    import click


@pytest.fixture
def story(tmp_path: Path) -> RecordedStory:
    return RecordedStory(tmp_path / "state")


# -- incidents


def test_the_list_says_what_broke_who_is_blamed_and_what_was_done(story: RecordedStory) -> None:
    story.a_rank_is_killed()
    story.a_gpu_falls_off_the_bus()
    lines = answer(incidents, state=story.root).splitlines()
    first, second = [line for line in lines if line.lstrip().startswith("inc-")]
    for word in ("inc-1", "recovered", "unknown", "rank 3 on node1", "restarted in place"):
        assert word in first
    for word in (
        "inc-2",
        "recovered, node1 out",
        "so far",
        "GPU hardware",
        "GPU 0 of node1",
        "moved off node1",
    ):
        assert word in second


def test_a_run_without_incidents_says_so(story: RecordedStory) -> None:
    story.train(5)
    assert answer(incidents, state=story.root) == "no incident: nothing has gone wrong in this run\n"
    assert answer(incidents, "--open", state=story.root) == "no open incident\n"
    assert data(incidents, state=story.root) == {"incidents": []}


def test_only_open_ones_and_only_the_newest(story: RecordedStory) -> None:
    story.a_rank_is_killed()
    story.a_gpu_falls_off_the_bus()
    assert [i["id"] for i in data(incidents, "--open", state=story.root)["incidents"]] == ["inc-2"]
    assert [i["id"] for i in data(incidents, "--limit", "1", state=story.root)["incidents"]] == ["inc-2"]
    assert "1 older incident not shown" in answer(incidents, "--limit", "1", state=story.root)


def test_json_holds_the_incident_and_what_follows_from_it(story: RecordedStory) -> None:
    story.a_gpu_falls_off_the_bus()
    (incident,) = data(incidents, state=story.root)["incidents"]
    bill = story.incidents[0].bill
    assert incident["open"] is True
    assert incident["seconds"] == pytest.approx(sum(incident["bill"]["phases"].values()))
    assert incident["gpu_hours"] == pytest.approx(bill.seconds * 8 / 3600)
    assert incident["diagnosis"]["failure_class"] == "gpu_hardware"
    assert incident["blamed"] == "GPU 0 of node1"


def test_a_narrow_terminal_gets_two_lines_and_never_a_wide_one(
    story: RecordedStory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story.a_gpu_falls_off_the_bus()
    monkeypatch.setattr(incident_table, "make_console", lambda: Console(width=80, markup=False))
    incident_table.print_table(story.incidents, story.now)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "GPU hardware; blamed: GPU 0 of node1" in shown


# -- show


def test_the_report_reads_from_the_verdict_to_the_bill(story: RecordedStory) -> None:
    story.a_gpu_falls_off_the_bus()
    report = answer(show, "1", state=story.root)
    positions = [
        report.index(f"\n{title}\n")
        for title in ("Verdict", "Causal chain", "Decision", "Actions", "Nodes", "Timeline", "Bill")
    ]
    assert positions == sorted(positions)
    for words in (
        "recovered, node1 out · opened",
        "class       GPU hardware",
        "what helps  reboot node",
        "A GPU that is off the bus needs a cold reboot",
        "└─ a rank ended with an error: rank 2 on node1",
        "restart the gang away from node1 from the checkpoint of step 19",
        "quarantine node1",
        "restart as attempt 2",
        "quarantined since",
        "+0.00 s  signal",
        "state      step 24 is new",
        "8 GPUs stood; 4 steps made again",
    ):
        assert " ".join(words.split()) in " ".join(report.split()), words


def test_the_report_for_a_program_has_commands_advice_and_files(story: RecordedStory) -> None:
    story.a_gpu_falls_off_the_bus()
    report = data(show, "inc-1", state=story.root)
    assert [(c["kind"], c["state"]) for c in report["commands"]] == [
        ("quarantine", "done"),
        ("restart_gang", "done"),
    ]
    assert report["advice"] == CATALOG.get("nvidia.xid.79").advice
    assert report["evidence_files"] == []


def test_what_is_under_way_and_what_failed_can_be_told_from_what_was_done(story: RecordedStory) -> None:
    story.restarts_work = False
    story.train(20, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    restart = story.given(cmd.RestartGang)[-1]
    assert "restart as attempt 2  under way  restart the gang in place" in answer(
        show, "inc-1", state=story.root
    )
    story.tell(ev.CommandFailed(restart.id, "no free port"))
    story.snapshot()
    report = answer(show, "inc-1", state=story.root)
    assert "restart as attempt 2  failed" in report
    assert "outcome    no free port" in report


def test_stacks_that_were_kept_are_shown_and_what_a_job_plants_beside_them_is_not(
    story: RecordedStory,
) -> None:
    story.a_rank_hangs()
    folder = story.root / "evidence/inc-1/attempt-1"
    folder.mkdir(parents=True)
    stack = "rank 5 on node2\nPython threads:\nThread 0x7f (idle)\n    all_reduce (\x1b[31mdist.py:3)\n"
    (folder / "rank-5.txt").write_text(stack)
    waiting = "Python threads:\nThread 0x7f (idle)\n    recv (dist.py:9)\n"
    (folder / "rank-2.txt").write_text(waiting)
    (folder / "rank-3.txt").write_text(waiting)
    (story.root.parent / "secret.txt").write_text("the owner's secret")
    (folder / "rank-9.txt").symlink_to(story.root.parent / "secret.txt")
    os.mkfifo(folder / "rank-10.txt")
    report = answer(show, "inc-1", state=story.root)
    assert f"evidence/inc-1/attempt-1/rank-5.txt  {len(stack)} bytes" in report
    lines = [line.rstrip() for line in report.splitlines()]
    at = lines.index("      Thread 0x7f (idle)")
    assert lines[at + 1] == "          all_reduce (dist.py:3)"
    assert report.index("rank-5.txt") < report.index("rank-2.txt"), "the blamed one first"
    assert f"rank-3.txt  {len(waiting)} bytes, the same stack as in rank-2.txt" in report
    assert report.count("recv (dist.py:9)") == 1
    assert "secret" not in report


def test_evidence_that_is_gone_or_lies_elsewhere_is_said_to_be_gone(story: RecordedStory) -> None:
    story.a_rank_hangs()
    assert "evidence/inc-1/attempt-1: no longer there" in answer(show, "inc-1", state=story.root)


def test_foreign_text_is_shown_as_it_is_and_steers_nothing(story: RecordedStory) -> None:
    story.the_code_is_broken()
    for output in (
        answer(show, "inc-1", state=story.root),
        answer(incidents, state=story.root),
        answer(ledger, state=story.root),
    ):
        assert "\x9b" not in output
        assert "owned" not in output
    assert "ValueError: bad [bold red]sample" in " ".join(answer(show, "inc-1", state=story.root).split())
    assert "[bold red]sample" in answer(incidents, state=story.root)
    raw = answer(show, "inc-1", "--json", state=story.root)
    assert raw.isascii()
    assert json.loads(raw)["incident"]["job"]["state"] == "stopped"


def test_an_incident_that_is_not_there_and_one_that_may_be_several(story: RecordedStory) -> None:
    assert "nothing has gone wrong" in refusal(show, "inc-1", state=story.root)
    story.a_rank_is_killed()
    assert refusal(show, "\x1b[31m77", state=story.root).endswith("there are inc-1")
    for _ in range(11):
        story.xid(79, "node2")
        story.tell(ev.NodeSeen(msgspec.structs.replace(story.state.nodes["node2"], boot_id=f"b{story.seq}")))
    assert len(story.incidents) == 12
    assert "inc-1\n" not in answer(show, "inc-1", state=story.root).splitlines()[0]
    assert "inc-10  " in answer(show, "10", state=story.root)


# -- ledger


def test_every_second_of_the_ledger_is_in_one_phase_and_every_lost_one_on_a_bill(
    story: RecordedStory,
) -> None:
    story.a_rank_is_killed()
    story.a_gpu_falls_off_the_bus()
    story.the_code_is_broken()
    (job,) = data(ledger, state=story.root)["jobs"]
    account = story.job.account
    phases = {name: phase["seconds"] for name, phase in job["phases"].items()}
    assert phases == {phase.value: seconds for phase, seconds in account.phases.items()}
    assert sum(phases.values()) == pytest.approx(job["wall_seconds"])
    assert job["wall_seconds"] == pytest.approx(account.settled_at - account.started_at)
    assert sum(phase["share"] for phase in job["phases"].values()) == pytest.approx(1.0)
    lost = sum(phases.get(phase.value, 0.0) for phase in LOST_PHASES)
    assert job["lost_seconds"] == pytest.approx(lost)
    assert job["billed_seconds"] == pytest.approx(lost)
    assert sum(i["seconds"] for i in job["incidents"]) == pytest.approx(lost)
    for phase in LOST_PHASES:
        billed = sum(i["bill"]["phases"].get(phase.value, 0.0) for i in job["incidents"])
        assert billed == pytest.approx(phases.get(phase.value, 0.0)), phase
    assert job["ettr"] == pytest.approx(account.phases[Phase.PRODUCTIVE] / job["wall_seconds"])
    assert sum(i["gpu_hours"] for i in job["incidents"]) == pytest.approx(job["lost_gpu_hours"])
    assert (job["restarts"], job["result"]) == (3, "stopped")


def test_the_ledger_is_the_same_after_a_snapshot(story: RecordedStory) -> None:
    story.a_rank_is_killed()
    story.snapshot()
    story.a_gpu_falls_off_the_bus()
    before = data(ledger, state=story.root)
    story.snapshot()
    assert data(ledger, state=story.root) == before
    assert before["jobs"][0]["wall_seconds"] == pytest.approx(story.job.account.settled_at - 1000.0)


def test_the_ledger_is_replayed_under_the_policy_of_the_run(tmp_path: Path) -> None:
    observe = Policy()
    story = RecordedStory(tmp_path / "state", policy=observe)
    policy_path(story.root).write_bytes(msgspec.json.encode(observe))
    story.train(10, save=True)
    story.exit(3, signal=9)
    story.wait(3)
    (job,) = data(ledger, state=story.root)["jobs"]
    assert job["incidents"][0]["action"] == "only reported"
    assert job["restarts"] == 0


def test_the_drawn_ledger_shows_phases_incidents_and_the_same_sums(story: RecordedStory) -> None:
    story.a_rank_is_killed()
    story.a_gpu_falls_off_the_bus()
    text = answer(ledger, state=story.root)
    found = read_ledger(story.root).jobs[0]
    assert "train  4 nodes × 2 ranks, 8 GPUs · running · step 74" in text
    assert f"lost {render.duration(found.lost)}, {render.gpu_hours(found.hours(found.lost))} GPU-h" in text
    for phase in (Phase.PRODUCTIVE, *LOST_PHASES):
        line = next(line for line in text.splitlines() if line.split()[:1] == [phase.value])
        assert render.duration(found.job.account.phases.get(phase, 0.0)) in line
    row = next(line for line in text.splitlines() if line.strip().startswith("inc-2"))
    assert "GPU hardware" in row
    bill = story.incidents[1].bill
    assert row.split()[-3:] == [render.brief(bill.seconds), "4", render.gpu_hours(bill.gpu_hours)]
    assert "on no bill" not in text


def test_the_drawn_ledger_fits_eighty_columns(
    story: RecordedStory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    story.a_gpu_falls_off_the_bus()
    monkeypatch.setattr(ledger_report, "make_console", lambda: Console(width=88, markup=False))
    ledger_report.print_ledger_report(read_ledger(story.root))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 88
    assert "inc-1  GPU hardware; blamed: GPU 0 of node1; moved off node1, node1 quarantined" in shown


def test_a_node_that_breaks_alone_is_in_the_ledger_too(story: RecordedStory) -> None:
    story.train(10)
    story.xid(79, "node4")
    text = answer(ledger, state=story.root)
    assert "Incidents of nodes that interrupted no job" in text
    assert data(ledger, state=story.root)["other_incidents"][0]["id"] == "inc-1"


# -- release


def test_a_release_is_put_where_the_live_run_looks(story: RecordedStory) -> None:
    story.a_gpu_falls_off_the_bus()
    said = answer(release, "node1", state=story.root)
    assert "release of node1 requested; no run is live here" in said
    (file,) = (story.root / "inbox").iterdir()
    request = msgspec.json.decode(file.read_bytes(), type=Request)
    assert isinstance(request, ev.NodeReleaseRequested)
    assert request.node == "node1"
    assert request.by
    lock = take_lock(story.root)
    try:
        assert "the live run does it now" in answer(release, "node1", state=story.root)
    finally:
        os.close(lock)
    story.tell(request)
    assert story.quarantined == set()
    assert "node1 is in service" in answer(release, "node1", state=story.root)


def test_a_release_of_a_node_that_is_not_there_names_those_that_are(story: RecordedStory) -> None:
    sentence = refusal(release, "[red]node77", state=story.root)
    assert (
        sentence == "there is no node '[red]node77' in this run: there are node0, node1, node2, node3, node4"
    )
    assert not (story.root / "inbox").exists()
    assert "name the node" in refusal(release, state=story.root)


def test_the_brake_is_released_by_a_person_only_where_it_is_on(story: RecordedStory) -> None:
    assert "the brake is not on" in answer(release, "--brake", state=story.root)
    story.train(5)
    for node in ("node0", "node1", "node2"):
        story.xid(79, node)
    assert story.state.brake.tripped
    assert "release of the brake requested" in answer(release, "--brake", state=story.root)
    (file,) = (story.root / "inbox").iterdir()
    story.tell(msgspec.json.decode(file.read_bytes(), type=Request))
    assert not story.state.brake.tripped


# -- what is not there, or is not ours


@pytest.mark.parametrize("command", [incidents, ledger])
def test_a_state_directory_that_is_none_gets_a_sentence(command: click.Command, tmp_path: Path) -> None:
    assert "No such file or directory; check the path" in refusal(command, state=tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    assert "is not a directory" in refusal(command, state=tmp_path / "file")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    assert "is no state directory of reknit" in refusal(command, state=foreign)
    write_json(foreign / "run.json", RunFile("train", ("x",), 1, 1, "/", 1.0))
    assert "no journal" in refusal(command, state=foreign)
    journal_path(foreign).write_bytes(b"\x00rubbish" * 1000)
    assert "is no Reknit journal" in refusal(command, state=foreign)


def test_without_a_run_in_this_directory_the_way_to_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "there is no run here" in refusal(incidents)


def test_the_folder_of_all_runs_means_the_newest_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    story = RecordedStory(tmp_path / ".reknit" / "run-1")
    story.a_rank_is_killed()
    (tmp_path / ".reknit" / "latest").symlink_to("run-1")
    assert "inc-1" in answer(incidents)
    assert "inc-1" in answer(incidents, state=tmp_path / ".reknit")
