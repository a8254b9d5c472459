"""Where the state of a run lies, and how a run's own directory is named when nobody names one."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from reknit.model.policy import Policy

HOME = Path(".reknit")
"""Below the working directory: one folder a run, and `latest`, a link to the newest."""
DEFAULT_STATE = HOME / "latest"


def journal_path(root: Path) -> Path:
    """The journal of a run."""
    return root / "journal.sqlite3"


def policy_path(root: Path) -> Path:
    """The policy that the journal's last events were decided under."""
    return root / "policy.json"


def fresh_state() -> Path:
    """A path below `.reknit` for a new run; nothing is made yet."""
    name = time.strftime("run-%Y%m%d-%H%M%S")
    path = HOME / name
    number = 1
    while path.exists():
        number += 1
        path = HOME / f"{name}-{number}"
    return path


def point_latest(path: Path) -> None:
    """Let `latest` mean this run. Raises OSError."""
    link = HOME / f".latest-{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        link.unlink()
    link.symlink_to(path.name)
    link.replace(DEFAULT_STATE)


def stored_policy(root: Path) -> Policy | None:
    """The policy that stands in the directory; None where there is none yet or an older version wrote it."""
    try:
        return msgspec.json.decode(policy_path(root).read_bytes(), type=Policy)
    except (OSError, msgspec.MsgspecError):
        return None
