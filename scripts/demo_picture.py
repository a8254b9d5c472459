"""Draws docs/demo.svg from a real run of the demo: the live view as the gang is back on the spare.

python scripts/demo_picture.py [FILE]
"""

from __future__ import annotations

import asyncio
import copy
import io
import re
import sys
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console

from reknit.cli.live_frame import Scene, frame
from reknit.demo.command import perform

if TYPE_CHECKING:
    from reknit.model.state import EngineState

WIDTH, HEIGHT = 118, 30


class Camera:
    """A view that keeps one moment: the second incident recovered, its node still out of service."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=200)
        self.kept: Scene | None = None
        self._notice = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def notice(self, text: str) -> None:
        """The line below the picture."""
        self._notice = text

    def update(self, state: EngineState, now: float) -> None:
        """Look, and keep the moment when it is there."""
        job = next(iter(state.jobs.values()), None)
        if job is None:
            return
        if job.loss is not None:
            self.losses.append(job.loss)
        second = state.incidents.get("inc-2")
        if (
            second is not None
            and second.job is not None
            and second.job.state in ("recomputing", "recovered")
            and not self.kept
        ):
            self.kept = Scene("reknit demo", copy.deepcopy(state), now, 1, deque(self.losses), self._notice)


async def main() -> int:
    """Run the demo, draw the picture."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "demo.svg"
    camera = Camera()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        status = await perform(state, camera, lambda _: None)
        if status or camera.kept is None:
            print("the demo did not go as planned; no picture", file=sys.stderr)
            return 1
        console = Console(
            record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor"
        )
        console.print(frame(camera.kept, WIDTH, HEIGHT))
        picture = console.export_svg(title="reknit demo")
    # No fonts from elsewhere: the picture shows in whatever monospace there is.
    picture = picture.replace("https://www.textualize.io", "")
    picture = re.sub(r"@font-face\s*\{.*?\}", "", picture, flags=re.DOTALL)
    target.write_text(picture.replace("Fira Code", "monospace"))
    print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
