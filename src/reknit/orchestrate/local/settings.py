"""What a run on this machine is told by the person who starts it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reknit.catalog.row import Catalog
    from reknit.model.entities import JobSpec


def ignore(text: str) -> None:
    """Where nobody wants to hear of it."""
    del text


@dataclass(frozen=True)
class LocalSettings:
    """Attributes:
    state: the state directory.
    job: the gang. Where the state directory already has a run, that run's job id is used instead of this one.
    command: argv of every rank.
    catalog: what faults look like.
    spares: virtual nodes beyond the gang's.
    inventory: a TOML file that names the nodes, None for virtual ones.
    kernel_logs: files read as nodes' kernel logs, by node, or "kmsg" for this machine's own kernel; what
        stands in them before the first start is history and not read. `STATE/nodes/NODE/kernel.log` is read
        in any case, whole.
    log_regex: how the job prints its steps, where no built-in pattern fits.
    log_poll_s, progress_poll_s: how often logs and progress files are looked at.
    grace_s: between SIGTERM and SIGKILL where a command does not say.
    environment: what ranks inherit; this process's by default.
    cwd: where the command runs; this process's by default. An existing run keeps its own.
    notice: told one sentence about whatever a person should know and no event says.
    """

    state: Path
    job: JobSpec
    command: tuple[str, ...]
    catalog: Catalog
    spares: int = 0
    inventory: Path | None = None
    kernel_logs: Mapping[str, Path] | Literal["kmsg"] = field(default_factory=dict[str, Path])
    log_regex: str | None = None
    log_poll_s: float = 0.1
    progress_poll_s: float = 0.25
    grace_s: float = 10.0
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path = field(default_factory=Path.cwd)
    notice: Callable[[str], None] = ignore
