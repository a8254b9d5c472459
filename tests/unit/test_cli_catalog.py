"""The catalogue on the command line, and how numbers and names look everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from reknit.cli import render
from reknit.cli.catalog import catalog
from reknit.model.terms import FailureClass, VerdictAction
from support.recorded import answer, ask, refusal
from support.story import CATALOG

if TYPE_CHECKING:
    from pathlib import Path


def test_the_catalogue_lists_finds_and_explains() -> None:
    assert "nvidia.xid.79" in answer(catalog)
    assert len(json.loads(answer(catalog, "list", "xid 79", "--json"))["rows"]) <= len(CATALOG.rows)
    found = answer(catalog, "list", "fallen off")
    assert "nvidia.xid.79" in found
    assert "process.signal.9" not in found
    row = answer(catalog, "show", "nvidia.xid.79")
    assert "what helps  reboot node" in row
    assert f"source      {CATALOG.get('nvidia.xid.79').source[:40]}" in row
    assert json.loads(answer(catalog, "show", "nvidia.xid.79", "--json"))["code"] == "nvidia.xid.79"
    assert "did you mean nvidia.xid.79" in refusal(catalog, "show", "xid.79")


def test_a_sites_own_rows_are_checked_before_they_are_used(tmp_path: Path) -> None:
    row = (
        '[[row]]\ncode = "site.fan"\ntitle = "a fan stands"\nsense = "kernel"\nsource = "ours"\n'
        'failure_class = "thermal_power"\nseverity = "error"\nscope = "node"\naction = "replace_node"\n'
        'patterns = ["fan \\\\d+ stopped"]\n'
    )
    good = tmp_path / "good.toml"
    good.write_text(row + 'examples = ["bmc: fan 3 stopped"]\nexplains = ["nvidia.xid.*"]\n')
    assert "good.toml: 1 row, no problem" in answer(catalog, "lint", str(good))
    bad = tmp_path / "bad.toml"
    bad.write_text(
        row
        + 'examples = ["bmc: fan stopped"]\ncounter_examples = ["fan 1 stopped"]\nexplains = ["no.such"]\n'
    )
    result = ask(catalog, "lint", str(bad), str(good))
    assert result.exit_code == 2
    problems = result.stderr.splitlines()
    assert len(problems) == 4
    assert "row site.fan: its example 'bmc: fan stopped' fits none of its patterns" in problems[0]
    assert "counter-example" in problems[1]
    assert "explains 'no.such', which fits no code" in problems[2]
    assert problems[3] == "reknit: 3 problems in 2 files; nothing was changed"
    bad.write_text(row.replace("fan \\\\d+", "fan (?=x)"))
    assert "is not RE2" in ask(catalog, "lint", str(bad)).stderr
    bad.write_text("not = [toml")
    assert ask(catalog, "lint", str(bad)).exit_code == 2
    assert "cannot read catalogue file" in refusal(catalog, "lint", str(tmp_path / "none.toml"))


# -- small things


def test_numbers_look_as_people_write_them() -> None:
    assert [render.duration(s) for s in (0, 0.04, 3.21, 9.96, 45, 59.7, 250, 3600, 8280, 2.5 * 86400)] == [
        "0 s", "0.04 s", "3.2 s", "10 s", "45 s", "1 min", "4 min 10 s", "1.0 h", "2.3 h", "2.5 d",
    ]  # fmt: skip
    assert [render.gpu_hours(h) for h in (0, 0.00001, 0.0071, 0.0123, 3.44, 1250)] == [
        "0", "<0.0001", "0.0071", "0.012", "3.4", "1,250",
    ]  # fmt: skip
    assert [render.brief(s) for s in (0, 2.314, 12.44, 340, 20000)] == ["·", "2.31", "12.4", "340", "5.6h"]
    assert [render.bar(f, 4) for f in (0, 0.001, 0.5, 1, 7, float("nan"))] == [
        "",
        "▏",
        "██",
        "████",
        "████",
        "",
    ]
    assert render.sparkline([1, 2, float("nan"), 3], 10) == "▁▅█"
    assert render.sparkline([5] * 40, 10, top=10) == "▅" * 10
    assert render.chart([0, 1, 2, 3], 4, 2) == ["  ▃█", "▁▆██"]
    assert render.class_name(FailureClass.GPU_MEMORY_ECC) == "GPU memory ECC"
    assert render.action_name(VerdictAction.FIX_USER_CODE) == "fix user code, do not restart"
    assert render.local_time(float("inf")) == "–"


def test_commands_load_nothing_that_draws_before_something_is_drawn() -> None:
    names = ("incidents", "ledger", "catalog", "people", "render", "errors", "state_option", "main")
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module('reknit.cli.' + name)\n"
        "print([m for m in ('rich', 'asyncio', 're2', 'sqlite3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
