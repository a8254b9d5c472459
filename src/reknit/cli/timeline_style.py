"""The colour of each kind of line in an incident's story, the same in the report and in the live view."""

from __future__ import annotations

from typing import Final

KIND_STYLE: Final = {
    "signal": "yellow",
    "diagnosis": "magenta",
    "decision": "cyan",
    "action": "bold blue",
    "outcome": "green",
    "state": "bold",
}
