"""`reknit release`: what a person decides. The request is a file in the state directory, for the run."""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from typing import TYPE_CHECKING

import click

from reknit.cli.errors import UsageProblem
from reknit.cli.render import joined, plain
from reknit.cli.state_option import open_run, state_option
from reknit.model.events import BrakeReleased, NodeReleaseRequested

if TYPE_CHECKING:
    from pathlib import Path

    from reknit.model.state import EngineState


@click.command()
@click.argument("node", required=False, default="")
@click.option("--brake", is_flag=True, help="Release the brake: nodes may be quarantined again.")
@state_option
def release(*, node: str, brake: bool, state: Path) -> None:
    """Give a quarantined NODE back to work, or release the brake.

    A live run does it at once. Where none is live, it is done when the run is started again.
    """
    if not node and not brake:
        raise UsageProblem("name the node to be released, or give --brake")
    from reknit.catalog.load import builtin  # noqa: PLC0415 - heavy

    with open_run(state) as run:
        root, engine = run.root, run.engine_state(builtin())
    if node:
        _release_node(root, engine, node)
    if brake:
        _release_brake(root, engine)


def _release_node(root: Path, engine: EngineState, node: str) -> None:
    held = {branch.node for incident in engine.open_incidents() for branch in incident.nodes if branch.open}
    known = {*engine.nodes, *held} - {""}
    if node not in known:
        there = f"there are {joined(sorted(known), 20)}" if known else "no node has been seen yet"
        raise UsageProblem(f"there is no node {plain(node, 60)!r} in this run: {there}")
    if node not in held:
        click.echo(f"{plain(node, 60)} is in service; there is nothing to release")
        return
    _ask(root, NodeReleaseRequested(node, by=_who()))
    click.echo(f"release of {plain(node, 60)} requested; {_when(root)}")


def _release_brake(root: Path, engine: EngineState) -> None:
    if not engine.brake.tripped:
        click.echo("the brake is not on; there is nothing to release")
        return
    _ask(root, BrakeReleased(by=_who()))
    click.echo(f"release of the brake requested ({plain(engine.brake.why, 200)}); {_when(root)}")


def _ask(root: Path, request: NodeReleaseRequested | BrakeReleased) -> None:
    from reknit.cli.inbox import FOLDER  # noqa: PLC0415 - brings asyncio
    from reknit.orchestrate.local.files import write_json  # noqa: PLC0415

    path = root / FOLDER / f"{time.time_ns()}-{os.getpid()}.json"
    try:
        write_json(path, request)
    except OSError as error:
        raise UsageProblem(
            f"cannot write the request to {path}: {error.strerror}; ask the owner of the run to release it"
        ) from error


def _when(root: Path) -> str:
    from reknit.orchestrate.local.state_dir import is_locked  # noqa: PLC0415

    live = True
    with contextlib.suppress(OSError):  # somebody else's run: most likely a live one
        live = is_locked(root / "lock")
    if live:
        return "the live run does it now: watch `reknit incidents --open`"
    return "no run is live here, so it is done when this one is started again"


def _who() -> str:
    """The person's name; a container may have a number and no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"user {os.getuid()}"
