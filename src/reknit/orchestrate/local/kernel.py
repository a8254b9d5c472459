"""The kernel logs of this machine's nodes, as sources."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from reknit.model.entities import Entity
from reknit.model.events import SignalSeen
from reknit.orchestrate.local.errors import InventoryError
from reknit.orchestrate.local.kmsg import Kmsg
from reknit.orchestrate.local.processes import boot_id
from reknit.orchestrate.local.senses import NodeLogSense
from reknit.orchestrate.local.sources import KmsgSource, LogSource
from reknit.orchestrate.local.tail import Tail, check_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from reknit.model.entities import Node, RankPlacement
    from reknit.model.events import AnyEvent
    from reknit.orchestrate.local.settings import LocalSettings
    from reknit.orchestrate.local.state_dir import StateDir
    from reknit.orchestrate.port import Emit

    RankOfPid = Callable[[int], tuple[int, RankPlacement] | None]
    """The attempt and the rank whose main process this is."""


def check_kernel_logs(settings: LocalSettings, nodes: Sequence[Node]) -> None:
    """Before anything is started. Raises InventoryError for a log of a node that does not exist, SourceError
    for one that cannot be read."""
    logs = settings.kernel_logs
    if logs == "kmsg":
        Kmsg(None, settings.notice).close()
        return
    known = [node.name for node in nodes]
    for name, path in logs.items():
        if name not in known:
            raise InventoryError(
                f"kernel log {path} is given for node {name}, which is none of {', '.join(known)}"
            )
        check_source(path)


class KernelWatch:
    """Reads every kernel log as it grows."""

    def __init__(
        self,
        state: StateDir,
        settings: LocalSettings,
        nodes: Sequence[Node],
        emit: Emit,
        cursors: Mapping[str, int],
        rank_of_pid: RankOfPid,
    ) -> None:
        self._settings = settings
        self._out = emit
        self._rank_of_pid = rank_of_pid
        self._cursors = cursors
        self._task: asyncio.Task[None] | None = None
        self._sources: list[LogSource | KmsgSource] = [
            self._file(f"kernel/{node.name}", state.kernel_log(node.name), node, own=True) for node in nodes
        ]
        if settings.kernel_logs == "kmsg":
            self._sources.append(self._kmsg(nodes))
        else:
            by_name = {node.name: node for node in nodes}
            self._sources += [
                self._file(f"kernel-file/{name}", path, by_name[name], own=False)
                for name, path in settings.kernel_logs.items()
            ]

    def _emit(self, event: AnyEvent | None, cursors: Mapping[str, int] | None = None) -> None:
        """Hand over a fact; a record that names a rank's process is joined to that rank and its node."""
        self._out(self._joined(event) if isinstance(event, SignalSeen) else event, cursors)

    def _joined(self, event: SignalSeen) -> SignalSeen:
        signal = event.signal
        pid = signal.attributes.get("pid", "")
        found = self._rank_of_pid(int(pid)) if pid.isdigit() and signal.joined else None
        if found is None or signal.node not in ("", found[1].node):
            return event
        attempt, place = found
        entity = Entity("node", place.node) if signal.entity.kind == "cluster" else signal.entity
        return SignalSeen(
            msgspec.structs.replace(
                signal,
                entity=entity,
                node=place.node,
                job=self._settings.job.id,
                attempt=attempt,
                rank=place.rank,
            )
        )

    def begin(self) -> None:
        """Look once, and go on looking. Raises SourceError."""
        for source in self._sources:
            source.poll()
        self._task = asyncio.create_task(self._run(), name="watch kernel logs")

    async def close(self) -> None:
        """Stop reading; what was read is reported."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for source in self._sources:
            source.close()

    async def _run(self) -> None:
        more = False
        while True:
            await asyncio.sleep(0 if more else self._settings.log_poll_s)
            more = sum(source.poll() for source in self._sources) > 0  # each gets its turn

    def _file(self, name: str, path: Path, node: Node, *, own: bool) -> LogSource:
        """A file as a node's kernel log. One in the state directory belongs to this run and is read whole; of
        another what stands in it at the first start is history."""
        first = name not in self._cursors
        tail = Tail(
            path,
            self._cursors.get(name, 0),
            self._settings.notice,
            inode=self._cursors.get(f"{name}.inode", 0),
            follow=not own,
        )
        if first and not own:
            tail.skip_to_end()
        source = LogSource(
            name, tail, NodeLogSense(self._settings.catalog, (node,), node.boot_id), self._emit
        )
        if first and not own:
            source.flush()  # where history ends must outlive a crash
        return source

    def _kmsg(self, nodes: Sequence[Node]) -> KmsgSource:
        boot = boot_id()
        name = f"kmsg/{boot}"
        device = Kmsg(self._cursors.get(name), self._settings.notice)
        sense = NodeLogSense(self._settings.catalog, tuple(nodes), boot)
        return KmsgSource(name, device, sense, self._emit, self._settings.notice)
