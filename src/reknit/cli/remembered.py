"""What a run was started with, so that it can be taken up again by naming its state directory and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from reknit.orchestrate.local.settings import LocalSettings

_NAME = "options.json"


class Remembered(msgspec.Struct, frozen=True):
    """`options.json`. Paths are absolute; "" and None where nothing was asked for."""

    inventory: str = ""
    kernel_logs: dict[str, str] | Literal["kmsg"] | None = None
    progress_regex: str = ""

    def logs(self) -> dict[str, Path] | Literal["kmsg"] | None:
        """The kernel logs as the orchestrator takes them."""
        if isinstance(self.kernel_logs, dict):
            return {node: Path(path) for node, path in self.kernel_logs.items()}
        return self.kernel_logs


def remember(root: Path, settings: LocalSettings) -> None:
    """Write it down. Raises OSError."""
    logs = settings.kernel_logs
    kept = Remembered(
        inventory=str(settings.inventory.absolute()) if settings.inventory else "",
        kernel_logs="kmsg" if logs == "kmsg" else {node: str(path.absolute()) for node, path in logs.items()},
        progress_regex=settings.log_regex or "",
    )
    (root / _NAME).write_bytes(msgspec.json.encode(kept))


def remembered(root: Path) -> Remembered:
    """What was written down; nothing where it cannot be read: whoever starts the run can say it again."""
    try:
        return msgspec.json.decode((root / _NAME).read_bytes(), type=Remembered)
    except (OSError, msgspec.MsgspecError):
        return Remembered()
