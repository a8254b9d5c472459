"""The senses of logs, with what a reader of growing files has to know besides: whether something is still
inside."""

from __future__ import annotations

from reknit.sense.kernel_log import KernelLogSense
from reknit.sense.training_log import TrainingLogSense


class RankLogSense(TrainingLogSense):
    """A rank's output."""

    @property
    def unfinished(self) -> bool:
        """Whether a traceback has begun whose end has not come."""
        return self._tracebacks.waiting


class NodeLogSense(KernelLogSense):
    """A kernel log."""

    @property
    def unfinished(self) -> bool:
        """Whether a message has begun that the driver prints over several lines."""
        return self._wrapped is not None
