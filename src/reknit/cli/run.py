"""`reknit run`: a gang of real processes on virtual nodes of this machine, driven by the engine."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from pathlib import Path
from typing import Literal

import click

from reknit.cli.errors import UsageProblem
from reknit.cli.policy_file import read_policy
from reknit.cli.session import Options, run_session
from reknit.cli.view import make_view


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--nodes",
    "-N",
    type=click.IntRange(1, 4096),
    default=None,
    help="Virtual nodes of the gang. [default: 1]",
)
@click.option(
    "--ranks-per-node",
    "-K",
    type=click.IntRange(1, 4096),
    default=None,
    help="Processes on each node. [default: 1]",
)
@click.option(
    "--spares", "-S", type=click.IntRange(0, 4096), default=None, help="Nodes kept free. [default: 0]"
)
@click.option("--name", default="train", show_default=True, help="The job's name.")
@click.option(
    "--policy", type=click.Path(path_type=Path), help="What may be done, as TOML. See docs/policy.md."
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Where everything is kept. [default: a new one in .reknit/]",
)
@click.option(
    "--kernel-log",
    "kernel_logs",
    multiple=True,
    metavar="NODE=PATH|kmsg|none",
    help="A node's kernel log; may be given again. [default: this machine's /dev/kmsg where it may be read]",
)
@click.option("--inventory", type=click.Path(path_type=Path), help="Nodes and their GPUs, as TOML.")
@click.option("--progress-regex", metavar="RE2", help="How the job prints a step, with a group named `step`.")
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(  # noqa: PLR0913 - one for each option
    *,
    nodes: int | None,
    ranks_per_node: int | None,
    spares: int | None,
    name: str,
    policy: Path | None,
    state: Path | None,
    kernel_logs: tuple[str, ...],
    inventory: Path | None,
    progress_regex: str | None,
    plain: bool,
    command: tuple[str, ...],
) -> None:
    """Run COMMAND as every rank of a gang, with the environment that torchrun sets, and keep it running.

    Started again with the same --state after this process was killed, it takes up what still runs; COMMAND may then be
    left out.

    \b
    Exit status: 0 where the job ended well, 125 where Reknit stopped it, the job's own where Reknit may only look on,
    130 after Ctrl-C; 2 for bad input, before anything is started.
    """  # noqa: D301 - click reads the escape as "leave these lines alone"
    options = Options(
        state=state,
        name=name,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        spares=spares,
        command=command,
        policy=read_policy(policy),
        policy_given=policy is not None,
        kernel_logs=_kernel_logs(kernel_logs),
        inventory=inventory,
        progress_regex=progress_regex,
    )
    _check_command(command)
    sys.exit(asyncio.run(run_session(options, make_view(name, plain=plain))))


def _check_command(command: tuple[str, ...]) -> None:
    if len(command) == 0:
        return
    program = command[0]
    found = shutil.which(program)
    if found is None:
        if Path(program).is_file():
            raise UsageProblem(f"{program} is not executable: chmod +x it, or name its interpreter first")
        hint = (
            "; put the command after --, as in `reknit run -- python train.py`"
            if program.startswith("-")
            else ""
        )
        raise UsageProblem(f"there is no command {shlex.quote(program)}{hint}")


def _kernel_logs(given: tuple[str, ...]) -> dict[str, Path] | Literal["kmsg", "none"] | None:
    """`kmsg`, `none`, files by node, or None where nothing was said."""
    if not given:
        return None
    if "none" in given or "kmsg" in given:
        if len(given) > 1:
            raise UsageProblem(
                "--kernel-log none and --kernel-log kmsg stand alone: they are about all nodes"
            )
        return "none" if "none" in given else "kmsg"
    logs: dict[str, Path] = {}
    for item in given:
        node, equals, path = item.partition("=")
        if not (node and equals and path):
            raise UsageProblem(f"--kernel-log {item!r} is neither NODE=PATH nor kmsg nor none")
        if node in logs:
            raise UsageProblem(f"--kernel-log names {node} twice; a node has one kernel log")
        logs[node] = Path(path)
    return logs
