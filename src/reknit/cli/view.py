"""What `reknit run` needs of a view, whether it draws or prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from reknit.model.state import EngineState


class View(Protocol):
    """Shows a run while it goes on."""

    def __enter__(self) -> Self:
        """Begin to show."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the terminal as it was found."""
        ...

    def update(self, state: EngineState, now: float) -> None:
        """Something has changed."""
        ...

    def notice(self, text: str) -> None:
        """Tell a person one sentence."""
        ...


def make_view(title: str, *, plain: bool = False) -> View:
    """The live view on a terminal, plain lines elsewhere."""
    from rich.console import Console  # noqa: PLC0415 - drawing is only loaded where something is drawn

    from reknit.cli.live import LiveView, PlainView  # noqa: PLC0415

    console = Console()
    return PlainView(console, title) if plain or not console.is_terminal else LiveView(console, title)
