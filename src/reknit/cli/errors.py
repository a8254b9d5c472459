"""What a person is told when a request cannot be carried out: one sentence, no traceback."""

from __future__ import annotations

from typing import IO, Any

import click

from reknit.cli.render import plain

_LONGEST = 2000


class UsageProblem(click.ClickException):
    """Bad input, or something that was asked for is not there. The message says what, where and what to do.

    The process ends with status 2, which is kept for what happened before anything was started.
    """

    exit_code = 2

    def format_message(self) -> str:
        """The sentence on one line; it may quote foreign text, which is made harmless."""
        return plain(self.message, _LONGEST)

    def show(self, file: IO[Any] | None = None) -> None:
        """Say it on stderr."""
        tell(self.format_message(), file)


def tell(sentence: str, file: IO[Any] | None = None) -> None:
    """One sentence on stderr, with the program's name before it, as Unix tools do."""
    click.echo(f"reknit: {plain(sentence, _LONGEST)}", file=file, err=file is None)
