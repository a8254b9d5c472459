"""Kernel log lines to signals, joined to the devices of known nodes.

What a tenant can do about a kernel log, and what is done against it here:

- write to /dev/kmsg: such a record carries a facility of at least 1; it becomes a hint that nobody acts on;
- crash a program named like an NVIDIA message: the kernel then prints that name in a genuine record. Patterns
  are compared with the start of the message, and a crash record can be nothing but a crash record;
- name a device that does not exist: a record about a device of none of these nodes blames nobody;
- put a line feed into a file name: harmless in raw records. In `dmesg` output it begins a new line; such a
  line counts as the rest of the record before, unless it brings a stamp of its own, which cannot be told from
  a real one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from reknit.model.entities import Entity, Gpu, Node, normalise_pci
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from reknit.sense.kernel_record import KernelRecord, parse_record
from reknit.sense.patterns import Fit, pattern_set
from reknit.sense.repeats import Repeats
from reknit.sense.text import LineSplitter, clean

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog, Row

FOREIGN_DEVICE = "kernel.foreign_device"
NOT_FROM_KERNEL = "kernel.not_from_kernel"
_CRASH = "kernel.segfault"

_CRASH_TEXT = re.compile(r"traps: |.{1,64}?\]?: segfault at ")
_WRAPPED = "NVRM: The NVIDIA GPU "
_WRAPPED_LINES = 3
_WRAPPED_WAIT = 8
"""How many other records may come between the lines of a wrapped one."""


class _Wrapped(msgspec.Struct):
    """A message that the driver prints over several lines, as far as it has come."""

    record: KernelRecord
    text: str
    lines: int = 1
    waited: int = 0


class KernelLogSense:
    """Reads one kernel log, in pieces of any size. One per log: it remembers what a piece left unfinished.

    `nodes` are the nodes that this log may speak of (one, on a cluster; several where virtual nodes share a
    machine). `boot_id` is the boot that the log belongs to, for nodes that do not know theirs.
    """

    def __init__(self, catalog: Catalog, nodes: tuple[Node, ...], boot_id: str = "") -> None:
        self._patterns = pattern_set(catalog.for_sense("kernel"))
        self._nodes = nodes
        self._boot_id = boot_id
        self._splitter = LineSplitter()
        self._stamped = False
        self._wrapped: _Wrapped | None = None

    def feed(self, data: bytes, at: float) -> list[Signal]:
        """The signals in the lines that this piece completes. `at` is when it was read (seconds since the
        epoch): the time of a signal, unless the line itself carries a date with a time zone that is not in
        the future."""
        return self._read(self._splitter.feed(data), at)

    def finish(self, at: float) -> list[Signal]:
        """The same for a last line that has no end."""
        return self._read(self._splitter.finish(), at)

    def _read(self, lines: list[str], at: float) -> list[Signal]:
        found = Repeats()
        for line in lines:
            signal = self._line(line, at)
            if signal is not None:
                found.add(signal)
        return found.signals()

    def _line(self, line: str, at: float) -> Signal | None:
        record = parse_record(line)
        if not record.message:
            return None
        self._stamped = self._stamped or record.stamped
        rest = self._stamped and not record.stamped
        fit = None if rest else self._fit(record.message)
        if fit is None:
            record, fit = self._unwrap(record, rest=rest)
        if fit is None:
            return None
        row, captured = fit
        if record.facility:
            return self._forged(row, record, at)
        return self._signal(row, captured, record, at)

    def _fit(self, message: str) -> Fit | None:
        fits = self._patterns.match(message)
        if _CRASH_TEXT.match(message):
            fits = [fit for fit in fits if fit[0].code == _CRASH]
        return fits[0] if fits else None

    def _unwrap(self, record: KernelRecord, *, rest: bool) -> tuple[KernelRecord, Fit | None]:
        """Joins the lines of a wrapped message; gives its first record and what fits once it is complete."""
        if record.message.startswith(_WRAPPED) and not rest:
            self._wrapped = _Wrapped(record, record.message)
            return record, None
        open_one = self._wrapped
        if open_one is None:
            return record, None
        open_one.waited += 1
        if record.message.startswith("NVRM: ") and (record.facility or 0) == (open_one.record.facility or 0):
            open_one.text += " " + record.message
            open_one.lines += 1
        fit = self._fit(open_one.text)
        if fit is not None or open_one.lines >= _WRAPPED_LINES or open_one.waited >= _WRAPPED_WAIT:
            self._wrapped = None
        return msgspec.structs.replace(open_one.record, message=open_one.text), fit

    def _signal(self, row: Row, captured: dict[str, str], record: KernelRecord, at: float) -> Signal:
        attributes = dict(captured)
        if "pci" not in captured:
            return self._observed(row.code, self._node_of(record), record, at, attributes)
        attributes["pci"] = normalise_pci(captured["pci"])
        holders = self._holders(attributes["pci"], record.host)
        if len(holders) != 1:
            attributes |= {"code": row.code, "holders": ", ".join(node.name for node, _ in holders)}
            signal = self._observed(FOREIGN_DEVICE, self._node_of(record), record, at, attributes)
            return msgspec.structs.replace(signal, joined=False)
        node, gpu = holders[0]
        attributes["gpu_index"] = str(gpu.index)
        gpu_entity = Entity("gpu", f"{node.name}/{normalise_pci(gpu.pci)}")
        signal = self._observed(row.code, node, record, at, attributes)
        return msgspec.structs.replace(signal, entity=gpu_entity)

    def _forged(self, row: Row, record: KernelRecord, at: float) -> Signal:
        signal = self._observed(NOT_FROM_KERNEL, self._node_of(record), record, at, {"code": row.code})
        return msgspec.structs.replace(signal, trust=Trust.TRAINING_LOG, joined=False)

    def _observed(
        self, code: str, node: Node | None, record: KernelRecord, at: float, attributes: dict[str, str]
    ) -> Signal:
        when = min(record.wall, at) if record.wall is not None else at
        name = node.name if node is not None else ""
        if record.monotonic is not None:
            attributes["monotonic"] = f"{record.monotonic:.6f}"
        return Signal(
            code=code,
            entity=Entity("node", name) if name else Entity("cluster", "cluster"),
            first_seen=when,
            last_seen=when,
            source="kernel",
            trust=Trust.KERNEL_RECORD,
            node=name,
            excerpt=clean(record.message),
            attributes={key: clean(value, 80) for key, value in attributes.items()},
            boot_id=(node.boot_id if node is not None else "") or self._boot_id,
        )

    def _node_of(self, record: KernelRecord) -> Node | None:
        """The only node there is, or the one whose name the line carries."""
        if len(self._nodes) == 1:
            return self._nodes[0]
        return self._named(record.host)

    def _named(self, host: str | None) -> Node | None:
        if not host:
            return None
        short = host.partition(".")[0]
        return next((node for node in self._nodes if node.name in (host, short)), None)

    def _holders(self, pci: str, host: str | None) -> list[tuple[Node, Gpu]]:
        """The nodes with this device; more than one where they share addresses and the line names none."""
        named = self._named(host)
        nodes = (named,) if named is not None else self._nodes
        return [(node, gpu) for node in nodes if (gpu := node.gpu_at(pci)) is not None]
