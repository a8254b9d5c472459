"""A rank's output to signals: whole blocks are searched, and only lines that hold something are looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reknit.model.entities import Entity
from reknit.model.signals import Signal
from reknit.model.terms import Trust
from reknit.sense.patterns import Fit, pattern_set
from reknit.sense.repeats import Repeats
from reknit.sense.text import LineSplitter, clean, lines_of
from reknit.sense.traceback_lines import TRIGGERS, Raised, Tracebacks, split_prefix

if TYPE_CHECKING:
    from reknit.catalog.row import Catalog
    from reknit.sense.progress_lines import LineProgress

GENERIC = "python.exception"
_EXCEPTION_ROWS = "python."
_NOT_A_FAULT = ("KeyboardInterrupt", "SystemExit", "GeneratorExit")
_LENGTHS = {"signature": 600}
_ADVICE = (
    "CUDA kernel errors might be asynchronously reported",
    "CUDA_LAUNCH_BLOCKING",
    "TORCH_USE_CUDA_DSA",
    "Search for `cuda",
    "To enable traceback see",
)
"""What CUDA and PyTorch advise after an error; never a cause."""


class TrainingLogSense:
    """Reads the output of one rank of one attempt, in pieces of any size.

    `progress`, where given, is shown every line, so that steps are read in the same pass.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        job: str,
        attempt: int,
        rank: int,
        node: str,
        progress: LineProgress | None = None,
    ) -> None:
        rows = catalog.for_sense("training_log")
        lines = tuple(row for row in rows if not row.code.startswith(_EXCEPTION_ROWS))
        self._lines = pattern_set(lines, TRIGGERS)
        self._exceptions = pattern_set(rows)
        self._tracebacks = Tracebacks()
        self._splitter = LineSplitter()
        self._progress = progress
        self._job, self._attempt, self._rank, self._node = job, attempt, rank, node

    def feed(self, data: bytes, at: float) -> list[Signal]:
        """The signals in the lines that this piece completes. `at` is when it was read, in epoch seconds."""
        return self._read(self._splitter.take(data), at).signals()

    def finish(self, at: float) -> list[Signal]:
        """The output has ended: the last line, and tracebacks that were cut off."""
        rest = "".join(line + "\n" for line in self._splitter.finish())
        found = self._read(rest.encode(), at)
        for exception in self._tracebacks.finish():
            self._exception(exception, at, found)
        return found.signals()

    def _read(self, block: bytes, at: float) -> Repeats:
        if self._progress is not None:
            for line in lines_of(block):
                self._progress.feed_line(line, at)
        found = Repeats()
        position = 0
        while position < len(block):
            if not self._tracebacks.waiting:
                hit = self._lines.next_hit(block, position)
                if hit < 0:
                    break
                position = block.rfind(b"\n", position, hit) + 1 or position
            end = block.find(b"\n", position)
            self._line(block[position:end].decode("utf-8", "replace"), at, found)
            position = end + 1
        return found

    def _line(self, line: str, at: float, found: Repeats) -> None:
        step = self._tracebacks.feed(line)
        for exception in step.done:
            self._exception(exception, at, found)
        if step.consumed or any(advice in line for advice in _ADVICE):
            return
        fit = _best(self._lines.match(line))
        if fit is None:
            return
        row, captured = fit
        rank = split_prefix(line)[0]
        self._add(row.code, captured | ({"printed_rank": rank} if rank else {}), line, at, found)

    def _exception(self, exception: Raised, at: float, found: Repeats) -> None:
        if exception.name.rpartition(".")[2] in _NOT_A_FAULT:
            return
        fit = _best(self._exceptions.match(exception.line)) if exception.name else None
        code = fit[0].code if fit else GENERIC
        if exception.chained and code.startswith(_EXCEPTION_ROWS):
            return
        attributes = {
            **(fit[1] if fit else {}),
            "exception": exception.name,
            "message": exception.message,
            "frame": exception.frame,
            "signature": exception.signature,
            "printed_rank": exception.rank,
            "after": exception.chained,
        }
        text = exception.line if exception.name else f"a traceback that was cut off at {exception.frame}"
        self._add(code, {key: value for key, value in attributes.items() if value}, text, at, found)

    def _add(self, code: str, attributes: dict[str, str], text: str, at: float, found: Repeats) -> None:
        found.add(
            Signal(
                code=code,
                entity=Entity("rank", str(self._rank)),
                first_seen=at,
                last_seen=at,
                source="training_log",
                trust=Trust.TRAINING_LOG,
                node=self._node,
                job=self._job,
                attempt=self._attempt,
                rank=self._rank,
                excerpt=clean(text),
                attributes={key: clean(value, _LENGTHS.get(key, 200)) for key, value in attributes.items()},
            )
        )


def _best(fits: list[Fit]) -> Fit | None:
    """The heaviest row, except where a row of weight 0 says that the line only quotes something."""
    if not fits:
        return None
    return fits[-1] if fits[-1][0].weight == 0 else fits[0]
