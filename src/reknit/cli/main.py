"""`reknit`: the command line. Commands are imported when they are used, so that `reknit --help` is quick."""

from __future__ import annotations

import importlib
from typing import Any

import click

_COMMANDS = {
    "run": ("reknit.cli.run", "run", "Run a gang of processes on this machine and keep it running."),
    "demo": (
        "reknit.demo.command",
        "demo",
        "Watch a real training job break in five ways and recover by itself.",
    ),
    "incidents": ("reknit.cli.incidents", "incidents", "List what went wrong."),
    "show": ("reknit.cli.incidents", "show", "Tell one incident's whole story."),
    "ledger": ("reknit.cli.ledger", "ledger", "Where the time went, and what each incident cost."),
    "release": ("reknit.cli.people", "release", "Give a quarantined node back, or release the brake."),
    "catalog": ("reknit.cli.catalog", "catalog", "What is known about faults: list, explain, check."),
}


class _Lazy(click.Group):
    """A group whose commands are imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, in the order of a first day with them."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, name, _ = _COMMANDS[cmd_name]
        command: Any = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in the help text, without importing a single command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="reknit")
def main() -> None:
    """Reknit gets multi-node GPU training going again after anything breaks."""


if __name__ == "__main__":
    main()
