"""The catalogue that ships: every row is tried through the sense that will use it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import pytest

from reknit.catalog.load import CatalogError, builtin, merge, parse
from reknit.model.entities import Gpu, Node
from reknit.model.terms import FailureClass, Grade, VerdictAction
from reknit.sense.kernel_log import KernelLogSense
from reknit.sense.training_log import TrainingLogSense

if TYPE_CHECKING:
    from reknit.catalog.row import Row

CATALOG = builtin()
NODE = Node("node-1", gpus=(Gpu(3, "0000:b3:00"),))
MATCHED = [row for row in CATALOG.rows if row.sense in ("kernel", "training_log") and row.patterns]

FATAL_XIDS = (
    46,
    48,
    62,
    64,
    74,
    79,
    95,
    109,
    110,
    119,
    120,
    136,
    140,
    143,
    144,
    145,
    146,
    149,
    150,
    151,
    155,
)
FATAL_XIDS_LATER = (156, 158, 167, 169, 173)
APP_XIDS = (
    8,
    11,
    13,
    25,
    31,
    32,
    39,
    40,
    41,
    43,
    45,
    60,
    68,
    69,
    70,
    71,
    72,
    75,
    76,
    77,
    80,
    82,
    83,
    84,
    85,
    86,
)
APP_XIDS_LATER = (88, 89, 94, *range(96, 106), *range(126, 136), 139)
NOTED_XIDS = (
    61,
    63,
    92,
    121,
    122,
    123,
    124,
    125,
    137,
    147,
    148,
    154,
    157,
    162,
    163,
    164,
    165,
    166,
    168,
    170,
    171,
    172,
)


def seen(row: Row, text: str) -> list[str]:
    """The codes that the row's own sense makes of a text."""
    if row.sense == "kernel":
        kernel = KernelLogSense(CATALOG, (NODE,))
        return [s.code for s in kernel.feed(f"{text}\n".encode(), 1.0) + kernel.finish(1.0)]
    if row.code.startswith("python."):
        text = (
            f'Traceback (most recent call last):\n  File "/job/train.py", line 3, in main\n    run()\n{text}'
        )
    log = TrainingLogSense(CATALOG, job="job", attempt=1, rank=0, node="node-1")
    return [s.code for s in log.feed(f"{text}\n".encode(), 1.0) + log.finish(1.0)]


@pytest.mark.parametrize("row", MATCHED, ids=lambda row: row.code)
def test_a_row_finds_its_examples_and_nothing_else_does(row: Row) -> None:
    assert row.examples, f"{row.code} has patterns but no example"
    for example in row.examples:
        assert seen(row, example) == [row.code], example


@pytest.mark.parametrize("row", [row for row in MATCHED if row.counter_examples], ids=lambda row: row.code)
def test_a_row_leaves_its_counter_examples_alone(row: Row) -> None:
    for example in row.counter_examples:
        assert row.code not in seen(row, example), example


def test_every_xid_that_matters_has_a_row_of_its_own() -> None:
    wanted = (*FATAL_XIDS, *FATAL_XIDS_LATER, *APP_XIDS, *APP_XIDS_LATER, *NOTED_XIDS)
    assert [n for n in wanted if f"nvidia.xid.{n}" not in CATALOG.by_code] == []


def test_a_number_finds_its_own_row_and_no_longer_one() -> None:
    row = CATALOG.get("nvidia.xid.79")
    for code in (code for code in CATALOG.by_code if code.startswith("nvidia.xid.")):
        number = code.split(".")[2]
        if number.isdigit() and code.count(".") == 2:
            found = seen(row, f"NVRM: Xid (PCI:0000:b3:00): {number}, pid=7, name=python3, text")
            assert found in ([code], [f"{code}.nonfatal"]), code
    assert seen(row, "NVRM: Xid (PCI:0000:b3:00): 790, pid=7, name=python3, text") == ["nvidia.xid.unknown"]


def test_what_is_explained_exists() -> None:
    codes = list(CATALOG.by_code)
    dead = [(row.code, glob) for row in CATALOG.rows for glob in row.explains if not _any(codes, glob)]
    assert dead == []


def _any(codes: list[str], glob: str) -> bool:
    return any(fnmatchcase(code, glob) for code in codes)


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 94])
def test_what_a_program_can_provoke_reaches_no_node_by_itself(xid: int) -> None:
    assert CATALOG.get(f"nvidia.xid.{xid}").highest_grade == Grade.FREE


@pytest.mark.parametrize("xid", [48, 64, 74, 79, 95, 119, 120])
def test_a_fault_of_the_device_may_keep_work_off_the_node(xid: int) -> None:
    row = CATALOG.get(f"nvidia.xid.{xid}")
    assert row.highest_grade == Grade.REVERSIBLE
    assert row.action.touches_hardware
    assert row.severity == "fatal"


def test_what_a_job_says_never_reaches_beyond_the_job() -> None:
    assert {row.grade for row in CATALOG.rows if row.sense == "training_log"} == {"free"}


def test_no_row_alone_resets_anything() -> None:
    assert [row.code for row in CATALOG.rows if row.highest_grade > Grade.REVERSIBLE] == []


def test_information_blames_nobody_and_asks_for_nothing() -> None:
    loud = [row.code for row in CATALOG.rows if row.severity == "info" and row.action != VerdictAction.NONE]
    assert loud == []


def test_a_gpu_off_the_bus_explains_what_a_job_then_shows() -> None:
    row = CATALOG.get("nvidia.xid.79")
    for code in (
        "cuda.unknown_error",
        "nvidia.xid.45",
        "nccl.watchdog_timeout",
        "process.signal.6",
        "process.exit",
    ):
        assert row.explains_code(code), code
    assert not row.explains_code("process.exit.93"), "a launcher that says no is no symptom"


@pytest.mark.parametrize("code", ["kernel.oom.cgroup", "kernel.oom.host"])
def test_an_oom_kill_explains_the_deaths_that_it_causes(code: str) -> None:
    row = CATALOG.get(code)
    assert row.failure_class == FailureClass.HOST_MEMORY_OOM
    for symptom in (
        "process.signal.9",
        "process.exit.137",
        "data.worker_killed",
        "gloo.connection_closed",
        "job.stall",
    ):
        assert row.explains_code(symptom), symptom


def test_every_root_explains_the_stall_of_its_gang() -> None:
    fatal = [row for row in CATALOG.rows if row.severity == "fatal"]
    assert [row.code for row in fatal if not row.explains_code("job.stall")] == []


def test_the_more_a_row_says_the_more_it_weighs() -> None:
    chain = ("cuda.ecc_uncorrectable", "cuda.error", "python.exception", "process.signal.11", "process.exit")
    weights = [CATALOG.get(code).weight for code in chain]
    assert weights == sorted(weights, reverse=True)
    assert len(set(weights)) == len(weights)


def test_reports_about_others_are_symptoms() -> None:
    for code in (
        "nccl.watchdog_timeout",
        "nccl.remote_error",
        "gloo.connection_closed",
        "torch.store_lost",
        "job.stall",
    ):
        assert CATALOG.get(code).symptom, code


def test_a_code_twice_in_one_file_is_refused_and_in_a_later_file_replaces() -> None:
    text = b"""[[row]]
code = "site.fan"
title = "fan"
sense = "kernel"
failure_class = "thermal_power"
severity = "info"
scope = "none"
action = "none"
source = "site"
"""
    file = parse("site.toml", text)
    with pytest.raises(CatalogError, match=r"site\.toml: code 'site\.fan' stands there twice"):
        merge([("site.toml", parse("site.toml", text + text))])
    later = parse("later.toml", text.replace(b'"fan"', b'"loud fan"'))
    assert merge([("site.toml", file), ("later.toml", later)]).get("site.fan").title == "loud fan"


def test_a_pattern_that_is_no_re2_is_refused_with_its_place() -> None:
    text = b"""[[row]]
code = "site.bad"
title = "bad"
sense = "kernel"
failure_class = "unknown"
severity = "info"
scope = "none"
action = "none"
source = "site"
patterns = ['a(?=b)']
"""
    with pytest.raises(CatalogError, match=r"site\.toml, row site\.bad: pattern .* is not RE2"):
        parse("site.toml", text)
