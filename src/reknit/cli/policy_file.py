"""Reads a policy file, and says in a sentence what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reknit.cli.errors import UsageProblem
from reknit.model.policy import Policy

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 1 << 20


def read_policy(path: Path | None) -> Policy:
    """The policy for `reknit run`: acting unless the file says otherwise, for nobody else owns these processes.

    Raises UsageProblem where the file cannot be read, is no TOML, holds a field that is not known or a value that
    makes no sense.
    """
    if path is None:
        return Policy(mode="act")
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError as error:
        raise UsageProblem(f"cannot read policy {path}: {error.strerror}") from error
    try:
        raw = msgspec.toml.decode(text)
        if isinstance(raw, dict):
            raw.setdefault("mode", "act")
        return msgspec.convert(raw, Policy)
    except msgspec.ValidationError as error:
        raise UsageProblem(f"policy {path}: {_plain(str(error))}") from error
    except msgspec.DecodeError as error:
        raise UsageProblem(f"policy {path} is not TOML: {_plain(str(error))}") from error
    except ValueError as error:
        raise UsageProblem(f"policy {path} is not TOML: {error}") from error


def _plain(message: str) -> str:
    """Msgspec's words with the place as a person would write it: `restarts.per_hour`, not `$.restarts.per_hour`."""
    text = message.replace(" - at `$.", ", in `").replace(" - at `$`", "")
    if "unknown field" in text:
        text += "; see docs/policy.md for the fields that there are"
    return text
