"""The manual says what the code does: names, defaults and links are compared with it."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
import re2

from reknit import progress
from reknit.catalog.load import builtin, merge, parse
from reknit.catalog.row import ProgressRow, Row
from reknit.cli.run import run
from reknit.model.incidents import JobState, NodeState
from reknit.model.policy import Policy
from reknit.model.terms import FailureClass, Grade, Phase, Trust, VerdictAction
from reknit.orchestrate.local import environment
from reknit.orchestrate.local.inventory import InventoryFile
from reknit.sense import pace, slowness
from reknit.sense.progress_file import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    import click

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FIELD_ROW = re.compile(r"^\| `(?P<field>\w+)` \| (?P<unit>[^|]*)\| `(?P<default>[^`|]+)` \| (?P<why>.+) \|$")


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [body for name, body in FENCE.findall(text) if name == language]


def anchors(path: Path) -> set[str]:
    """What a link may point at within a page: headings as GitHub spells them."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def policy_fields(section: msgspec.Struct, name: str = "") -> Iterator[tuple[str, str, object]]:
    """(section, field, default) of everything that a policy file may hold."""
    for field in section.__struct_fields__:
        value: object = getattr(section, field)
        if isinstance(value, msgspec.Struct):
            yield from policy_fields(value, field)
        else:
            yield name, field, value


def described_fields() -> dict[tuple[str, str], str]:
    """What docs/policy.md says: (section, field) to the default as it is printed."""
    found: dict[tuple[str, str], str] = {}
    section = ""
    for line in page("policy.md").splitlines():
        if heading := re.match(r"## (?:`\[(\w+)\]`|Top level)", line):
            section = heading[1] or ""
        elif row := FIELD_ROW.match(line):
            found[section, row["field"]] = row["default"]
    return found


def test_every_field_of_the_policy_is_described_with_its_default() -> None:
    expected = {
        (section, field): msgspec.json.encode(default).decode()
        for section, field, default in policy_fields(Policy())
    }
    assert described_fields() == expected


def test_the_example_policy_is_one() -> None:
    (example,) = blocks(page("policy.md"), "toml")
    policy = msgspec.convert(tomllib.loads(example), Policy)
    assert policy.mode == "act"
    assert not policy.actions.quarantine
    assert policy.stall.startup_floor_s == 900
    assert policy.deadlines.grace_s == 60


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert path.is_file()
    broken: list[str] = []
    for target in LINK.findall(FENCE.sub("", path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            broken.append(target)
    assert not broken


def test_every_page_is_listed() -> None:
    index = page("README.md") + page("decisions/README.md")
    missing = [
        path.name for path in DOCS.rglob("*.md") if path.name != "README.md" and path.name not in index
    ]
    assert not missing


@pytest.mark.parametrize("state", [*JobState, *NodeState, *Phase], ids=str)
def test_every_state_and_phase_is_explained(state: str) -> None:
    assert re.search(rf"`{state}`", page("concepts.md"))


def test_grades_and_trust_are_explained() -> None:
    text = page("concepts.md")
    missing = [grade.name for grade in Grade if f"`{grade.name.lower()}`" not in text]
    missing += [trust.name for trust in Trust if f"`{trust.name}`" not in text]
    assert not missing


def test_every_option_of_run_is_described() -> None:
    options = [
        name for item in cast("click.Command", run).params for name in item.opts if name.startswith("--")
    ]
    assert len(options) > 5
    assert not [name for name in options if f"`{name}`" not in page("run.md")]


def test_every_variable_that_a_rank_gets_is_described() -> None:
    source = inspect.getsource(environment.rank_environment)
    names = set(re.findall(r'"([A-Z][A-Z_]+)"(?::|\])', source))
    assert {"RANK", "MASTER_PORT", "REKNIT_PROGRESS", "CUDA_VISIBLE_DEVICES"} <= names
    text = page("run.md")
    assert not [name for name in names if not re.search(rf"`{name}(?:=\w+)?`", text)]


def test_the_example_lines_of_progress_fit_the_catalogue() -> None:
    rows = {row.code: row for row in builtin().progress}
    (lines,) = blocks(page("progress.md"), "text")
    pairs = list(zip(lines.splitlines()[::2], lines.splitlines()[1::2], strict=True))
    assert len(pairs) > 10
    for heading, line in pairs:
        row = rows[heading.removeprefix("# ")]
        regex: Any = re2.compile(row.pattern)
        assert row.what == "step"
        assert regex.search(line), heading


def test_words_in_names_of_phases_are_described() -> None:
    words = [word for _, words in pace._WORDS for word in words]
    words += slowness._WAITING
    assert not [word for word in words if f"`{word}`" not in page("progress.md")]


def test_the_layout_of_the_progress_file_is_as_described() -> None:
    table = re.findall(r"^\| (\d+) \| (\d+) \|", page("progress.md"), re.MULTILINE)
    assert [(int(at), int(size)) for at, size in table] == [
        (0, progress.HEADER.size),
        *((at, progress.BLOCK_BYTES) for at in progress.BLOCKS_AT),
        (progress.DURATIONS_AT, progress.DURATIONS * progress.DURATION.size),
        (progress.PHASES_AT, progress.PHASES * progress.PHASE.size),
    ]
    assert f"{progress.SIZE} bytes" in page("progress.md")


def test_the_example_script_of_progress_tells_its_steps(tmp_path: Path) -> None:
    (example,) = blocks(page("progress.md"), "python")
    (tmp_path / "train.py").write_text(example, encoding="utf-8")
    at_once = "import runpy, time; time.sleep = lambda seconds: None; runpy.run_path('train.py')"
    told = tmp_path / "progress"
    environ = {**os.environ, "REKNIT_PROGRESS": str(told), "RANK": "3"}
    subprocess.run([sys.executable, "-c", at_once], cwd=tmp_path, env=environ, check=True, timeout=60)
    found = decode(told.read_bytes(), 0)
    assert found is not None
    said = found[0]
    assert (said.step, said.saved_step, said.loaded_step) == (300, 300, -1)
    assert set(said.phase_seconds) == {"setup", "compute", "wait for the others", "checkpoint"}
    assert json.loads((tmp_path / "checkpoint-3.json").read_text()) == {"step": 300}


def test_every_field_of_a_row_is_described() -> None:
    text = page("catalog.md")
    for row, where in ((Row, "| `{}` |"), (ProgressRow, "`{}`")):
        missing = [field for field in row.__struct_fields__ if where.format(field) not in text]
        assert not missing
    words = [*FailureClass, *VerdictAction]
    assert not [word for word in words if f"`{word}`" not in text]


def test_the_example_row_is_one() -> None:
    (example,) = blocks(page("catalog.md"), "toml")
    file = parse("catalog.md", example.encode())
    catalog = merge([("catalog.md", file)])
    (row,) = catalog.rows
    regex: Any = re2.compile(row.patterns[0])
    assert regex.search(row.examples[0])
    assert not regex.search(row.counter_examples[0])
    assert row.explains_code("process.exit")


def test_the_example_inventory_is_one() -> None:
    (example,) = blocks(page("run.md"), "toml")
    left, right = msgspec.toml.decode(example, type=InventoryFile).node
    assert (left.name, left.gpu[0].pci) == ("left", "0000:17:00")
    assert (right.name, right.gpu[0].index) == ("right", 1)
