"""What a person asks of a live run: small files in the state directory, each one event."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from reknit.model.events import BrakeReleased, NodeReleaseRequested

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Request = NodeReleaseRequested | BrakeReleased
FOLDER = "inbox"
_POLL_S = 0.3
_MOST_BYTES = 1 << 16


async def watch_inbox(root: Path, emit: Callable[[Request], None], notice: Callable[[str], None]) -> None:
    """Hand over what is put into the inbox, oldest first, until cancelled. What cannot be read is told and removed."""
    folder = root / FOLDER
    while True:
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            request = _read(path, notice)
            with contextlib.suppress(OSError):
                path.unlink()
            if request is not None:
                emit(request)
        await asyncio.sleep(_POLL_S)


def _read(path: Path, notice: Callable[[str], None]) -> Request | None:
    try:
        if not path.is_file():
            return None  # a folder or a pipe is no request
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=Request)
    except OSError as error:
        notice(f"cannot read request {path.name}: {error.strerror}")
    except msgspec.MsgspecError as error:
        notice(f"request {path.name} makes no sense and is dropped: {error}")
    return None
