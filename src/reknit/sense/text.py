"""Text that strangers wrote, made safe to look at: whole lines out of bytes, excerpts that harm no terminal.

Everything here takes bounded memory and time linear in its input, whatever the input is.
"""

from __future__ import annotations

import re

LONG_LINE = 64 * 1024
"""A line of more bytes than this is cut; nobody prints one on purpose."""

KEPT_OF_LONG_LINE = 16 * 1024
"""What is kept of a line that was cut, in bytes."""

# CSI (colours, cursor), then strings with a terminator (titles, links), then every other escape.
_ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)|[ -/]*[0-~]?)"
_ESCAPE_TEXT = re.compile(_ESCAPE)
_ESCAPE_BYTES = re.compile(_ESCAPE.encode())
# C0 and C1 controls, zero-width and direction marks (they reorder what a person reads), lone surrogates.
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
_ELLIPSIS = "…"


def clean(text: str, limit: int = 400) -> str:
    """One line, fit to be shown: no escapes or control codes, of a progress bar the last state, runs of
    blanks as one, at most `limit` characters, the last of them "…" where something was cut.

    Markup of a view (rich, HTML) is the view's to escape: this function does not know where the text will be
    shown.
    """
    text = text.rstrip("\r\n").rpartition("\r")[2]
    text = _ESCAPE_TEXT.sub("", text)
    text = " ".join(_UNSEEN.sub(" ", text).split())
    return text if len(text) <= limit else text[: max(0, limit - 1)].rstrip() + _ELLIPSIS


class LineSplitter:
    """Turns a stream of bytes into whole lines; how the stream is cut into pieces changes nothing.

    A line ends with LF, CR LF or CR: each state of a progress bar is a line, so that a bar that never prints
    LF neither grows nor hides what follows it. Escapes and NULs are taken out, what is not UTF-8 is replaced.
    Of a line longer than LONG_LINE bytes the first KEPT_OF_LONG_LINE are kept.
    """

    def __init__(self) -> None:
        self._half = bytearray()
        self._skipping = False
        self._after_cr = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that this piece completes."""
        return lines_of(self.take(data))

    def take(self, data: bytes) -> bytes:
        """The same lines as one block of valid UTF-8 in which each ends with LF: for scanning it whole."""
        if not data:
            return b""
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]
        if not data:
            self._after_cr = False
            return b""
        self._after_cr = data.endswith(b"\r")
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._keep(data)
            return b""
        head = data[:end]
        if self._skipping:
            head = head[head.find(b"\n") :]
        block = bytes(self._half) + head if self._half else head
        self._half.clear()
        self._skipping = False
        self._keep(data[end:])
        return _plain(_cut_long_lines(block))

    def finish(self) -> list[str]:
        """The last line, where it did not end; afterwards the splitter is as new."""
        rest = bytes(self._half)
        self._half.clear()
        self._skipping = self._after_cr = False
        return lines_of(_plain(rest + b"\n")) if rest else []

    def _keep(self, data: bytes) -> None:
        if self._skipping:
            return
        self._half += data
        if len(self._half) > LONG_LINE:
            del self._half[KEPT_OF_LONG_LINE:]
            self._skipping = True


def lines_of(block: bytes) -> list[str]:
    """The lines of a block in which each ends with LF."""
    lines = block.decode("utf-8", "replace").split("\n")
    lines.pop()
    return lines


def _plain(block: bytes) -> bytes:
    if b"\x1b" in block:
        block = _ESCAPE_BYTES.sub(b"", block)
    if b"\x00" in block:
        block = block.replace(b"\x00", b"")
    return block if block.isascii() else block.decode("utf-8", "replace").encode()


def _cut_long_lines(block: bytes) -> bytes:
    """Hops from line end to line end as far as a line may be long, so that few bytes are looked at."""
    parts: list[bytes] = []
    done = position = 0
    while len(block) - position > LONG_LINE:
        end = block.rfind(b"\n", position, position + LONG_LINE + 1)
        if end < 0:
            end = block.find(b"\n", position)
            parts += (block[done:position], block[position : position + KEPT_OF_LONG_LINE])
            done = end
        position = end + 1
    return b"".join((*parts, block[done:])) if parts else block
