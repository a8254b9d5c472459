"""What training programs print, and what is made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reknit.catalog.load import builtin
from reknit.model.entities import Entity
from reknit.model.terms import Trust
from reknit.sense.patterns import PatternSet
from reknit.sense.text import LONG_LINE
from reknit.sense.traceback_lines import split_prefix
from reknit.sense.training_log import TrainingLogSense

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog
    from reknit.model.signals import Signal

CATALOG = builtin()
TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 88, in <module>
    main()
    ~~~~^^
  File "/job/model/step.py", line 41, in step
    loss = batch["labels"]
KeyError: 'labels'
"""


def sense(catalog: Catalog = CATALOG) -> TrainingLogSense:
    """A sense for rank 5."""
    return TrainingLogSense(catalog, job="llm", attempt=2, rank=5, node="node-1")


def read(text: str | bytes) -> list[Signal]:
    """All signals of a log, given in one piece."""
    one = sense()
    data = text if isinstance(text, bytes) else text.encode()
    return one.feed(data, 7.0) + one.finish(8.0)


def codes(text: str | bytes) -> list[str]:
    """The codes of those signals."""
    return [signal.code for signal in read(text)]


def prefixed(prefix: str, text: str = TRACEBACK) -> str:
    """The text with a prefix before each line."""
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def test_a_traceback_says_what_was_raised_and_where() -> None:
    (signal,) = read("step 3 | loss 2.1\n" + TRACEBACK)
    assert signal.code == "python.exception"
    assert signal.entity == Entity("rank", "5")
    assert (signal.job, signal.attempt, signal.rank, signal.node) == ("llm", 2, 5, "node-1")
    assert (signal.source, signal.trust) == ("training_log", Trust.TRAINING_LOG)
    assert signal.attributes["exception"] == "KeyError"
    assert signal.attributes["message"] == "'labels'"
    assert signal.attributes["frame"] == "step.py:41 in step"
    assert signal.excerpt == "KeyError: 'labels'"


def test_a_signature_forgets_numbers_and_addresses() -> None:
    one = read(TRACEBACK.replace("'labels'", "step 17 at 0x7f10a2b3"))[0].attributes["signature"]
    other = read(TRACEBACK.replace("'labels'", "step 18 at 0x7fee0042"))[0].attributes["signature"]
    elsewhere = read(TRACEBACK.replace("line 41", "line 57"))[0].attributes["signature"]
    assert one == other == "KeyError|step.py:41 in step|step # at #"
    assert elsewhere != one


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", "3"),
        ("[rank3]:", "3"),
        ("[default0]:", "0"),
        ("3: ", "3"),
        ("[1,4]<stderr>:", "4"),
        ("2026-02-03T04:05:06.789012345Z stderr F ", ""),
        ("2026-02-03T04:05:06.789Z stderr F [rank6]: ", "6"),
        ("(RayTrainWorker pid=812, ip=10.1.0.7) ", "812"),
        ("[2026-02-03 04:05:06,789] ", ""),
        ("[2026-02-03 04:05:06,789][trainer][ERROR] - ", ""),
        ("E0203 04:05:06.789000 4117 torch/x.py:88] ", ""),
    ],
)
def test_prefixes_of_launchers_and_collectors_do_not_matter(prefix: str, rank: str) -> None:
    (signal,) = read(prefixed(prefix))
    assert signal.attributes["frame"] == "step.py:41 in step"
    assert signal.attributes["exception"] == "KeyError"
    assert signal.attributes.get("printed_rank", "") == rank


def test_tracebacks_of_two_ranks_in_one_log_do_not_mix() -> None:
    other = TRACEBACK.replace(
        "KeyError: 'labels'", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 MiB."
    )
    lines = zip(prefixed("[rank0]: ").splitlines(), prefixed("[rank1]: ", other).splitlines(), strict=True)
    log = "".join(f"{a}\n{b}\n" for a, b in lines)
    assert {(s.code, s.attributes["printed_rank"]) for s in read(log)} == {
        ("python.exception", "0"),
        ("torch.cuda_oom", "1"),
    }


def test_a_traceback_may_come_in_pieces_of_one_byte() -> None:
    one = sense()
    data = TRACEBACK.encode()
    found = [s for i in range(len(data)) for s in one.feed(data[i : i + 1], float(i))]
    assert [(s.code, s.first_seen) for s in found] == [("python.exception", float(len(data) - 1))]
    assert one.finish(999.0) == []


def test_a_traceback_without_its_end_is_told_when_the_log_ends() -> None:
    one = sense()
    cut = TRACEBACK[: TRACEBACK.index("KeyError")]
    assert one.feed(cut.encode(), 1.0) == []
    (signal,) = one.finish(2.0)
    assert (signal.code, signal.attributes["frame"]) == ("python.exception", "step.py:41 in step")
    assert signal.excerpt == "a traceback that was cut off at step.py:41 in step"


@pytest.mark.parametrize(
    "between",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_of_chained_exceptions_the_first_is_the_root(between: str) -> None:
    second = TRACEBACK.replace("KeyError: 'labels'", "RuntimeError: the step failed")
    (signal,) = read(f"{TRACEBACK}\n{between}\n\n{second}")
    assert (signal.attributes["exception"], signal.count) == ("KeyError", 1)


def test_a_chained_exception_with_a_cause_of_its_own_is_told_too() -> None:
    second = TRACEBACK.replace("KeyError: 'labels'", "OSError: [Errno 28] No space left on device: '/ckpt'")
    log = f"{TRACEBACK}\nDuring handling of the above exception, another exception occurred:\n\n{second}"
    first, then = read(log)
    assert (first.code, then.code) == ("python.exception", "storage.no_space")
    assert then.attributes["after"] == "KeyError: 'labels'"


def test_what_a_data_worker_raised_counts_not_its_wrapper() -> None:
    wrapper = TRACEBACK.replace(
        "KeyError: 'labels'", "RuntimeError: Caught IsADirectoryError in DataLoader worker process 1."
    )
    inner = TRACEBACK.replace("Traceback", "Original Traceback").replace(
        "KeyError: 'labels'", "IsADirectoryError: '/data'"
    )
    assert codes(wrapper + inner) == ["python.file_error"]
    assert codes(wrapper + "epoch 3 starts\n") == ["python.exception"]
    assert codes(wrapper) == ["python.exception"]


def test_of_an_exception_group_the_first_member_counts() -> None:
    group = """  + Exception Group Traceback (most recent call last):
  |   File "/job/train.py", line 9, in main
  |     async with group:
  | ExceptionGroup: two of them (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/load.py", line 4, in load
    |     open(path)
    | FileNotFoundError: [Errno 2] No such file or directory: 'a'
    +---------------- 2 ----------------
    | TypeError: b
    +------------------------------------
"""
    (signal,) = read(group)
    assert (signal.code, signal.attributes["frame"]) == ("python.file_error", "load.py:4 in load")
    bare = (
        group[: group.index("    | Trace")] + "    | MemoryError\n    +------------------------------------\n"
    )
    assert codes(bare) == ["python.memory_error"]


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit: 1"])
def test_an_interruption_is_no_fault(name: str) -> None:
    assert codes(TRACEBACK.replace("KeyError: 'labels'", name)) == []


@pytest.mark.parametrize(
    ("last", "code"),
    [
        (
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "cuda.illegal_memory_access",
        ),
        (
            "torch.distributed.DistBackendError: remote process exited or there was a network error",
            "nccl.remote_error",
        ),
        ("ModuleNotFoundError: No module named 'x'", "python.import_error"),
        ("MemoryError", "python.memory_error"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "python.connection_error"),
        ("requests.exceptions.ConnectionError: no route", "python.download"),
        ("__main__.Diverged: at step 7", "python.exception"),
        ("Preempted", "python.exception"),
        ("ray.exceptions.RayTaskError(ValueError): ray::train()", "python.exception"),
        ("RuntimeError: Error(s) in loading state_dict for GPT:", "checkpoint.incompatible"),
    ],
)
def test_the_most_specific_row_names_an_exception(last: str, code: str) -> None:
    (signal,) = read(TRACEBACK.replace("KeyError: 'labels'", last))
    assert signal.code == code
    assert signal.attributes["frame"] == "step.py:41 in step"


def test_source_lines_inside_a_traceback_are_no_errors() -> None:
    text = TRACEBACK.replace(
        'loss = batch["labels"]', 'raise OOM("CUDA out of memory. Tried to allocate 1 GiB")'
    )
    assert codes(text) == ["python.exception"]


def test_lines_of_others_may_stand_inside_a_traceback() -> None:
    noisy = TRACEBACK.replace("KeyError", "INFO: epoch 3\n iteration 7 | loss 2.0\nKeyError")
    (signal,) = read(noisy)
    assert signal.attributes["exception"] == "KeyError"
    error = "[Errno 28] No space left on device"
    assert codes(TRACEBACK.replace("KeyError", f"WARN {error}\nKeyError")) == [
        "storage.no_space",
        "python.exception",
    ]


def test_a_quoted_header_swallows_nothing() -> None:
    quoted = 'INFO last_error="Traceback (most recent call last):\\n File ..."\n'
    assert codes(
        quoted + " iteration 1\n iteration 2\n iteration 3\nRuntimeError: CUDA error: unknown error\n"
    ) == ["cuda.unknown_error"]


def test_torchruns_summary_makes_no_second_root() -> None:
    launcher = TRACEBACK.replace(
        "KeyError: 'labels'", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    )
    repeated = TRACEBACK.replace("KeyError: 'labels'", "RuntimeError: CUDA error: unknown error")
    repeated = repeated.replace("\n", "\n    ")
    summary = f"""============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  time      : 2026-02-03_04:05:06
  host      : node-1
  rank      : 5 (local_rank: 1)
  exitcode  : 1 (pid: 4117)
  error_file: /tmp/errors/0/error.json
  traceback : {repeated}
============================================================
"""
    signals = read(TRACEBACK + launcher + summary)
    assert [s.code for s in signals] == ["python.exception", "torch.elastic.child_failed"]
    assert CATALOG.get("torch.elastic.child_failed").symptom


def test_torchruns_own_traceback_says_nothing_when_it_is_cut_off() -> None:
    cut = 'Traceback (most recent call last):\n  File "/x/launcher/api.py", line 3, in launch_agent\n    x'
    assert codes(cut) == []
    assert codes(cut.replace("launch_agent", "work")) == ["python.exception"]


def test_advice_never_counts() -> None:
    advice = """RuntimeError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace might be wrong.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
Search for `cudaErrorIllegalAddress' in the documentation, or CUDA error: unknown error.
"""
    assert codes(advice) == ["cuda.device_assert"]
    assert codes(advice.split("\n", 1)[1]) == []


def test_an_xid_line_printed_by_the_job_is_only_a_hint() -> None:
    (signal,) = read("NVRM: Xid (PCI:0000:b3:00): 79, pid=1, name=x, GPU has fallen off the bus.\n")
    assert signal.code == "training.xid_text"
    assert signal.entity.kind == "rank"
    assert CATALOG.get(signal.code).severity == "info"


def test_colours_and_progress_bars_hide_nothing() -> None:
    assert codes("\x1b[31mRuntimeError\x1b[0m: CUDA er\x1b[1mror: unknown error\n") == ["cuda.unknown_error"]
    bar = b"".join(b"\r %3d%%|####      | %d/100" % (i, i) for i in range(20_000))
    assert len(bar) > LONG_LINE
    assert codes(bar + b"\rTraceback" + TRACEBACK.encode()[9:]) == ["python.exception"]
    assert codes(TRACEBACK.replace("\n", "\r\n")) == ["python.exception"]


def test_a_line_that_repeats_is_one_signal_with_a_count() -> None:
    (signal,) = read("step 1 | loss: nan\n" * 300)
    assert (signal.code, signal.count) == ("numerical.nan_loss", 300)


def test_an_ordinary_log_says_nothing() -> None:
    log = """NCCL INFO NET/Plugin: Failed to find ncclNetPlugin symbol, using internal network
[rank0]:[W203 04:05:06 ProcessGroupNCCL.cpp:1496] Warning: destroy_process_group() was not called
step 10 | loss: 2.31 | lr 3e-4 | grad_norm: nan_to_num off | errors: 0
iteration 30/ 500 | lm loss: 9.113E+00 | loss scale: 1.0 | number of nan iterations:   0 |
INFO saved checkpoint, no error; retrying metrics upload
ERROR:root:could not draw the plot, going on
"""
    assert codes(log) == []


def test_every_line_is_shown_to_the_reader_of_progress() -> None:
    class Spy:
        lines: list[tuple[str, float]] = []  # noqa: RUF012

        def feed_line(self, line: str, at: float) -> bool:
            self.lines.append((line, at))
            return False

    spy = Spy()
    one = TrainingLogSense(CATALOG, job="j", attempt=1, rank=0, node="n", progress=spy)  # type: ignore[arg-type]
    one.feed(b"step 1\n\x1b[1mstep 2\x1b[0m\nst", 1.0)
    one.feed(b"ep 3", 2.0)
    one.finish(3.0)
    assert spy.lines == [("step 1", 1.0), ("step 2", 1.0), ("step 3", 3.0)]


def test_a_prefix_is_taken_off_and_names_the_rank() -> None:
    assert split_prefix("[rank12]:   File") == ("12", "  File")
    assert split_prefix("plain text") == ("", "plain text")


_PARTS = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [
                *(line.encode() + b"\n" for line in TRACEBACK.splitlines()),
                b"\n",
                b"\r",
                b"[rank1]: ",
                b"During handling of the above exception, another exception occurred:\n",
                b"RuntimeError: Caught KeyError in DataLoader worker process 0.\n",
                b"Original Traceback (most recent call last):\n",
                b"  + Exception Group Traceback (most recent call last):\n",
                b"  | ExceptionGroup: x (1 sub-exception)\n",
                b"    | ValueError: x\n",
                b"RuntimeError: CUDA error: unknown error\n",
                b"KeyboardInterrupt\n",
                b"CUDA out of mem",
                b"ory\n",
                b"\x1b[31m",
                b"\x1b]",
                b"\xc3",
                b"<LONG>",
            ]
        ),
    ),
    max_size=16,
)


@settings(deadline=None)
@given(_PARTS, st.integers(1, 60))
@example([b"\r", b"\n", TRACEBACK.encode()], 1)
@example([b"\xc3", b"\n", b"CUDA out of mem", b"\xff", b"\n"], 2)
def test_how_a_log_is_cut_into_pieces_changes_nothing(parts: list[bytes], size: int) -> None:
    log = b"".join(parts).replace(b"<LONG>", b"y" * 66_000)
    size = max(size, len(log) // 300)
    whole = sense()
    expected = {(s.code, s.entity) for s in whole.feed(log, 1.0) + whole.finish(1.0)}
    cut = sense()
    found = [s for i in range(0, len(log), size) for s in cut.feed(log[i : i + size], 1.0)] + cut.finish(1.0)
    assert {(s.code, s.entity) for s in found} == expected


@given(
    st.lists(st.sampled_from([*(e for r in CATALOG.for_sense("training_log") for e in r.examples), "step 1"]))
)
def test_a_block_is_never_passed_over_when_a_line_of_it_counts(lines: list[str]) -> None:
    text = "".join(f"{line}\n" for line in lines)
    hits = LINES.hits(text.encode())
    assert hits or not any(LINES.match(line) for line in text.splitlines())


LINES = PatternSet(CATALOG.for_sense("training_log"))
