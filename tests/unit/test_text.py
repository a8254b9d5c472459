"""Lines out of bytes, and excerpts that harm no terminal."""

from __future__ import annotations

import pytest

from reknit.sense.text import KEPT_OF_LONG_LINE, LONG_LINE, LineSplitter, clean


def test_an_endless_line_is_cut_and_what_follows_is_read() -> None:
    splitter = LineSplitter()
    lines = splitter.feed(b"a" * (LONG_LINE + 1) + b"\nb\n" + b"c" * LONG_LINE + b"\nd")
    assert [len(line) for line in lines] == [KEPT_OF_LONG_LINE, 1, LONG_LINE]
    for _ in range(50):
        assert splitter.feed(b"e" * 65_536) == []
    assert [(len(line), line[:2]) for line in splitter.feed(b"\nf\n")] == [
        (KEPT_OF_LONG_LINE, "de"),
        (1, "f"),
    ]
    assert splitter.finish() == []


def test_a_splitter_replaces_what_is_no_text_and_gives_the_rest() -> None:
    splitter = LineSplitter()
    assert splitter.feed("gr\u00fc".encode()[:3]) == []
    assert splitter.feed("\u00fc".encode()[1:] + b"n\n\xff\x00\n") == ["grün", "\ufffd"]
    splitter.feed(b"rest")
    assert splitter.finish() == ["rest"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10%\r20%\r30%", "30%"),
        ("done\r\n", "done"),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07text", "red text"),
        ("a\x00b\x08c\x7f", "a b c"),
        ("evil \u202etxt.exe\u2066", "evil txt.exe"),
        ("[bold]markup[/bold] stays", "[bold]markup[/bold] stays"),
        ("lone \ud800 surrogate", "lone surrogate"),
    ],
)
def test_an_excerpt_is_fit_to_be_shown(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_an_excerpt_is_cut_where_asked() -> None:
    assert clean("x" * 500) == "x" * 399 + "…"
    assert clean("abcdef", 4) == "abc…"
    assert clean("abcd", 4) == "abcd"
