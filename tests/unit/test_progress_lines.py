"""Progress read from what a script prints: every framework's lines, and nothing that only looks like them."""

from __future__ import annotations

import random
import string
from time import perf_counter
from typing import TYPE_CHECKING

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from reknit.catalog.load import builtin
from reknit.model.progress import RankProgress
from reknit.sense.progress_lines import LineProgress

if TYPE_CHECKING:
    from reknit.catalog.row import ProgressRow

ROWS = builtin().progress
EXAMPLES = [(row, example) for row in ROWS for example in row.examples]
COUNTER_EXAMPLES = [(row, example) for row in ROWS for example in row.counter_examples]

ORDINARY = [
    "",
    "step 3: install",
    "Epoch 3 done",
    "Step 3/10 : RUN pip install torch==2.8",
    "[step 3/5] Installing packages",
    "[3/10] Linking CXX executable bin/train",
    "Downloading shards: 100%|██████████| 4/4 [00:10<00:00,  2.61s/it]",
    "Loading checkpoint shards:  50%|█████     | 2/4 [00:05<00:05,  2.61s/it]",
    "Map (num_proc=8): 100%|██████████| 1000/1000 [00:01<00:00, 812.40 examples/s]",
    "Training will take 500 steps, loss is logged every 10",
    "total training steps: 500",
    "Num examples = 10,000",
    "node7:412:501 [3] NCCL INFO Channel 00/16 : 3[3] -> 4[4] via P2P/CUMEM",
    '  File "/app/train.py", line 120, in step',
    "{'eval_loss': 2.2017, 'eval_runtime': 3.1, 'epoch': 1.0}",
    "Saving model checkpoint to /out/run7",
    "the last step was 7 minutes long",
]


def named(rows: list[tuple[ProgressRow, str]]) -> list[str]:
    """Test names: the row's code and which of its lines."""
    return [
        f"{row.code}-{row.examples.index(line) if line in row.examples else line[:20]}" for row, line in rows
    ]


def fed(*lines: tuple[str, float], user: str | None = None) -> LineProgress:
    """A reader that has been given these lines at these times."""
    reader = LineProgress(ROWS, user)
    for line, at in lines:
        reader.feed_line(line, at)
    return reader


@pytest.mark.parametrize(("row", "line"), EXAMPLES, ids=named(EXAMPLES))
def test_every_example_is_read(row: ProgressRow, line: str) -> None:
    """The whole catalogue reads each example as its own row does, also in colour and before a return."""
    match = re2.compile(row.pattern).search(line)
    said = match.groupdict()
    for text in (line, f"\x1b[31m{line}\x1b[0m", f"{line}\r"):
        reader = LineProgress(ROWS)
        assert reader.feed_line(text, 5.0)
        now = reader.current
        if "step" in said:
            count = int(said["step"]) + int(said.get("epoch") or 0) * int(said.get("total") or 0)
            field = {"step": "step", "saved": "saved_step", "loaded": "loaded_step"}[row.what]
            assert getattr(now, field) == count
            assert getattr(now, f"{field}_at" if row.what == "step" else f"{row.what}_at") == 5.0
        if said.get("loss") not in (None, "nan"):
            assert now.loss == float(said["loss"])
        printed = float(said.get("seconds") or 0) or float(said.get("milliseconds") or 0) / 1000
        assert now.durations == ((pytest.approx(printed),) if printed > 0 else ())


@pytest.mark.parametrize(("row", "line"), COUNTER_EXAMPLES, ids=named(COUNTER_EXAMPLES))
def test_no_counter_example_matches_its_row(row: ProgressRow, line: str) -> None:
    """What looks like it and is not."""
    assert re2.compile(row.pattern).search(line) is None


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_lines_are_no_progress(line: str) -> None:
    """Only the sign of life is taken from them."""
    reader = LineProgress(ROWS)
    assert reader.feed_line(line, 3.0)
    assert reader.current == RankProgress(alive_at=3.0)
    assert not reader.feed_line(line, 4.0)


def test_every_row_is_complete() -> None:
    """Each names its source and shows what it means."""
    for row in ROWS:
        groups = set(re2.compile(row.pattern).groupindex)
        assert row.source
        assert 1 <= len(row.examples) <= 6
        assert row.counter_examples
        assert groups <= {"step", "loss", "seconds", "milliseconds", "total", "epoch"}
        assert groups & {"step", "loss"}
    frameworks = {row.code.partition(".")[0] for row in ROWS}
    wanted = "megatron nemo1 nemo2 lightning huggingface deepspeed nanogpt maxtext torchtitan generic"
    assert frameworks >= set(wanted.split())


def test_a_megatron_run() -> None:
    """Loaded, two lines of ten steps each, saved: as the incident's account needs it."""
    line = " iteration {:8d}/    5000 | elapsed time per iteration (ms): {:.1f} | lm loss: {:E} |"
    reader = fed(
        ("  successfully loaded checkpoint from /ckpt [ t 1/8, p 1/4 ] at iteration 100", 10.0),
        (line.format(110, 2000.0, 2.5), 31.0),
        (line.format(120, 2100.0, 2.4), 52.0),
        ("  successfully saved checkpoint from iteration     120 to /ckpt [ t 1/8, p 1/4 ]", 60.0),
    )
    assert reader.take() == RankProgress(
        step=120,
        step_at=52.0,
        loss=2.4,
        durations=(2.0, 2.1),
        saved_step=120,
        saved_at=60.0,
        loaded_step=100,
        loaded_at=10.0,
        alive_at=10.0,
    )
    assert reader.take() is None


def test_a_hugging_face_run_with_an_evaluation() -> None:
    """The evaluation's bar has no name either, but another total: it is a phase, and the step stays."""
    reader = fed(("Loading checkpoint shards: 100%|██| 4/4 [00:05<00:00,  1.31s/it]", 1.0))
    reader.feed_line("  0%|          | 0/100 [00:00<?, ?it/s]", 2.0)
    reader.feed_line(
        "  9%|▉         | 9/100 [00:18<03:09,  2.11s/it]\r 10%|█         | 10/100 [00:21<03:09]", 22.0
    )
    reader.feed_line("{'loss': 2.31, 'grad_norm': 1.07, 'learning_rate': 4.5e-05, 'epoch': 0.1}", 22.0)
    now = reader.take()
    assert now is not None
    assert (now.step, now.loss, now.phase, now.durations) == (10, 2.31, "", (2.0,))

    reader.feed_line("  0%|          | 0/8 [00:00<?, ?it/s]", 23.0)
    reader.feed_line(" 50%|█████     | 4/8 [00:04<00:04,  1.01s/it]", 27.0)
    now = reader.take()
    assert now is not None
    assert (now.step, now.step_at, now.phase, now.phase_at) == (10, 22.0, "evaluation", 27.0)

    reader.feed_line("Saving model checkpoint to /out/run7/checkpoint-10", 32.0)
    reader.feed_line(" 11%|█         | 11/100 [00:33<03:09,  2.11s/it]", 34.0)
    now = reader.take()
    assert now is not None
    assert (now.step, now.saved_step, now.phase, now.phase_at) == (11, 10, "", 34.0)


def test_a_bar_that_was_over_before_training() -> None:
    """Data preparation with a bar without a name: when it is full, the next count is the training's."""
    reader = fed(
        ("100%|██████████| 1000/1000 [00:10<00:00, 99.1it/s]", 1.0),
        ("  1%|          | 1/50 [00:02<01:38,  2.01s/it]", 5.0),
    )
    assert reader.current.step == 1


@pytest.mark.parametrize(
    ("first", "then", "step"),
    [
        (" 40%|████      | 4/10 [00:01<00:02,  4.1it/s]", "iter 1: loss 3.1, time 120.00ms, mfu 1.00%", 1),
        (" 40%|████      | 4/10 [00:01<00:02,  4.1it/s]", "step 1 loss=3.1", 1),
        ("step 0: train loss 4.1, val loss 4.2", "iter 0: loss 4.1, time 120.00ms, mfu 1.00%", 0),
        ("iter 7: loss 3.1, time 120.00ms, mfu 1.00%", "step 900 loss=3.1", 7),
        ("step 7 loss=3.1", " 40%|████      | 4/10 [00:01<00:02,  4.1it/s]", 7),
        ("completed step: 7, seconds: 0.9, loss: 9.1", "iter 9: loss 3.1, time 120.00ms, mfu 1.00%", 7),
    ],
)
def test_who_makes_way_for_whom(first: str, then: str, step: int) -> None:
    """A bar without a loss for any row with one, a generic row for a framework's; else the first stays."""
    assert fed((first, 1.0), (then, 2.0)).current.step == step


def test_an_evaluation_by_its_name() -> None:
    """A home-made loop that says that it evaluates has not gone back to step 1."""
    reader = fed(("step 500 loss=2.1", 1.0), ("eval step 1 loss=2.2", 2.0), ("eval step 2 loss=2.2", 3.0))
    assert (reader.current.step, reader.current.loss, reader.current.phase) == (500, 2.1, "evaluation")


def test_epochs_are_counted_on() -> None:
    """A Lightning bar begins anew each epoch; the step does not."""
    bar = "Epoch {}:  45%|████▌     | {}/100 [00:10<00:12,  4.31it/s, v_num=0]"
    reader = fed((bar.format(0, 100), 1.0), (bar.format(1, 0), 2.0), (bar.format(1, 5), 3.0))
    assert reader.current.step == 105


def test_lines_of_one_read_share_their_time() -> None:
    """Seven steps between two reads 2.1 s apart: that is their time, however many lines came at once."""
    reader = fed(*((f"step {n} loss=2.1", 10.0) for n in range(1, 4)))
    first = reader.take()
    assert first is not None
    assert (first.step, first.durations) == (3, ())
    for n in range(4, 11):
        reader.feed_line(f"step {n} loss=2.1", 12.1)
    second = reader.take()
    assert second is not None
    assert second.durations == (pytest.approx(0.3),)
    assert reader.current.durations == ()
    reader.feed_line("step 11 loss=2.1", 12.1)
    third = reader.take()
    assert third is not None
    assert third.durations == ()


def test_at_most_64_durations() -> None:
    """A reader that nobody asks does not grow."""
    reader = fed(*((f"iter {n}: loss 2.1, time {n}.00ms, mfu 1.00%", float(n)) for n in range(1, 200)))
    assert reader.current.durations == tuple(pytest.approx(n / 1000) for n in range(136, 200))


def test_counting_that_begins_again() -> None:
    """A rollback in place: one lower line could be anything, a second one is believed."""
    reader = fed(("step 500 loss=2.1", 1.0), ("step 400 loss=2.2", 2.0))
    assert reader.current.step == 500
    reader.feed_line("step 401 loss=2.2", 3.0)
    assert (reader.current.step, reader.current.step_at) == (401, 3.0)
    reader.feed_line("step 402 loss=2.2", 5.0)
    assert reader.current.durations[-1] == 2.0


def test_a_single_lower_line_is_not_believed() -> None:
    """A late line of another process in between changes nothing, and spoils no step time."""
    reader = fed(("step 500 loss=2.1", 1.0), ("step 3 loss=2.2", 2.0), ("step 501 loss=2.2", 4.0))
    assert (reader.current.step, reader.current.durations) == (501, (3.0,))


def test_a_loss_that_is_no_number_is_unknown() -> None:
    """The step counts; the loss from before is not shown as if it still held."""
    reader = fed(
        ("iter 1: loss 2.5, time 9.00ms, mfu 1.00%", 1.0), ("iter 2: loss nan, time 9.00ms, mfu 1%", 2.0)
    )
    assert (reader.current.step, reader.current.loss) == (2, None)


def test_the_users_own_pattern() -> None:
    """It replaces the rows for steps; checkpoints are still seen."""
    mine = r"^UPDATE (?P<step>\d+) took (?P<milliseconds>\d+) (?:L=(?P<loss>\S+))?"
    reader = fed(
        ("step 900 loss=7.1", 1.0),
        ("UPDATE 12 took 250 L=1.5", 2.0),
        ("Saved a checkpoint at step 12.", 3.0),
        user=mine,
    )
    now = reader.current
    assert (now.step, now.loss, now.durations, now.saved_step) == (12, 1.5, (0.25,), 12)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"step (\d+)", "has no group named step"),
        (r"step (?P<step>\d+", "not a regular expression that RE2 accepts: missing \\)"),
        (r"(?<=x)(?P<step>\d+)", "not a regular expression that RE2 accepts"),
        ("\udc80(?P<step>x)", "not a regular expression that RE2 accepts"),
    ],
)
def test_a_users_pattern_that_cannot_be_used(
    pattern: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """One sentence that says what is wrong with it, and nothing printed beside it."""
    with pytest.raises(ValueError, match=said):
        LineProgress(ROWS, pattern)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("step", ["9" * 15, "9" * 16, "9" * 400, "٣", ""])
def test_steps_that_cannot_be(step: str) -> None:
    """Fifteen digits are a number; more are not looked at, and other scripts' digits are not digits here."""
    reader = fed(("x", 0.5), (f"completed step: {step}, seconds: 0.9, loss: 9.1", 1.0))
    assert reader.current.step == (int(step) if len(step) == 15 else -1)


@given(st.lists(st.tuples(st.text(), st.floats(0, 1e10)), max_size=20))
def test_any_text(lines: list[tuple[str, float]]) -> None:
    """Nothing that a script prints makes the reader raise."""
    fed(*lines).take()


@given(st.lists(st.tuples(st.sampled_from(EXAMPLES), st.integers(0, 40), st.floats(0, 1e10)), max_size=40))
def test_any_mixture_of_real_lines(lines: list[tuple[tuple[ProgressRow, str], int, float]]) -> None:
    """Frameworks mixed at random, cut anywhere, times in any order: durations stay durations."""
    reader = LineProgress(ROWS)
    for (_, line), cut, at in lines:
        changed = reader.feed_line(line[cut:], at)
        assert not changed or reader.current.alive_at >= 0
    now = reader.take()
    assert now is None or all(seconds > 0 for seconds in now.durations)


def test_bytes_that_were_no_text() -> None:
    """Lone surrogates, as a tolerant decoder leaves them, control codes, a line of a megabyte."""
    reader = LineProgress(ROWS)
    for line in ("\udcff\udc80 iter", "\x00\x1b[2J\x1b[", "x" * 1_000_000, "\r" * 100_000):
        reader.feed_line(line, 1.0)
    assert reader.feed_line("\udcffstep 7 loss=2.5\udcff", 2.0)
    assert reader.current.step == 7


def test_ordinary_lines_cost_little() -> None:
    """A rank that prints a lot is not slowed down: 20,000 lines that mean nothing within a second."""
    dice = random.Random(7)
    lines = ["".join(dice.choices(string.ascii_letters + "    .:/[]", k=120)) for _ in range(20_000)]
    reader = fed(("x", 0.0))
    best = 60.0
    for _ in range(3):
        began = perf_counter()
        for line in lines:
            reader.feed_line(line, 1.0)
        best = min(best, perf_counter() - began)
    assert best < 1.0
