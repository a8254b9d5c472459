"""`reknit demo`: a real training job on this machine breaks in five ways and gets going again by itself."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reknit.cli.errors import UsageProblem
from reknit.cli.ledger import print_ledger
from reknit.cli.session import EXIT_STOPPED, Options, Session
from reknit.cli.view import make_view
from reknit.demo.acts import ActFailed, Stage, play, verify
from reknit.model.policy import Deadlines, Policy, Slowness, Stall

if TYPE_CHECKING:
    from collections.abc import Callable

    from reknit.cli.view import View

NODES, RANKS_PER_NODE, SPARES = 4, 2, 1

INVENTORY = "".join(
    f'[[node]]\nname = "node{n}"\n'
    + "".join(
        f'[[node.gpu]]\nindex = {i}\npci = "0000:{0x0A + 16 * n:02x}:0{i}"\n' for i in range(RANKS_PER_NODE)
    )
    for n in range(NODES + SPARES)
)
"""Devices that this machine does not have: only the GPUs are pretended."""

POLICY = Policy(
    mode="act",
    # A demo's minute is short: what takes seconds on a cluster takes tenths here. All else is the default.
    deadlines=Deadlines(settle_s=0.5, grace_s=3.0),
    stall=Stall(step_floor_s=2.0),
    slowness=Slowness(min_steps=10),
)


@click.command()
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.option(
    "--state", type=click.Path(path_type=Path), help="Where the run is kept. [default: a new one in .reknit/]"
)
def demo(*, plain: bool, state: Path | None) -> None:
    """Watch a real training job break in five ways and recover by itself, with the bill. Takes under a minute."""
    if find_spec("numpy") is None:
        raise UsageProblem("the demo's training job needs numpy; install it with `pip install '.[demo]'`")
    view = make_view("reknit demo", plain=plain)
    sys.exit(asyncio.run(perform(state, view, print_ledger)))


async def perform(state: Path | None, view: View, show_bill: Callable[[Path], None]) -> int:
    """Run the whole demo, in a new directory where none is named; gives 0 where all came out as expected, else 1.

    Raises UsageProblem where the directory cannot be used.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reknit-demo-") as work:
        session = await Session.open(_options(state, Path(work)), view)
        stage = Stage(session, Path(work) / "faults.json")
        wrong = await _watch(session, stage, view)
    show_bill(session.orchestrator.root)
    wrong = wrong or verify(stage)
    for text in wrong:
        click.echo(f"not as expected: {text}", err=True)
    took = time.monotonic() - began
    root = session.orchestrator.root
    click.echo(
        f"{len(stage.incidents)} incidents in {took:.0f} s. Look closer: reknit show inc-2 --state {root}"
    )
    return 1 if wrong else 0


async def _watch(session: Session, stage: Stage, view: View) -> list[str]:
    """Run the job and break it; gives what went wrong with the show itself."""
    run = asyncio.create_task(session.run())
    acts = asyncio.create_task(play(stage, view.notice))
    await asyncio.wait({run, acts}, return_when=asyncio.FIRST_COMPLETED)
    if acts.done() and (error := acts.exception()) is not None:
        session.end("the demo did not go as planned")
        await run
        if not isinstance(error, ActFailed):
            raise error
        return [str(error)]
    status = await run
    try:
        await acts
    except ActFailed as error:
        return [str(error)]
    return [] if status == EXIT_STOPPED else [f"the run ended with status {status}, not {EXIT_STOPPED}"]


def _options(state: Path | None, work: Path) -> Options:
    inventory = work / "inventory.toml"
    inventory.write_text(INVENTORY)
    train = (
        "-m",
        "reknit.demo.train",
        "--steps",
        "100000",
        "--checkpoint-every",
        "10",
        "--step-seconds",
        "0.04",
    )
    return Options(
        state=state,
        command=(sys.executable, *train, "--checkpoint-dir", str(work / "checkpoints")),
        policy=POLICY,
        policy_given=True,
        name="demo",
        nodes=NODES,
        ranks_per_node=RANKS_PER_NODE,
        spares=SPARES,
        kernel_logs="none",
        inventory=inventory,
        environment={**os.environ, "REKNIT_DEMO_FAULTS": str(work / "faults.json")},
    )
