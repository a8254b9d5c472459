"""How a struct's name becomes the word that marks it in the journal."""

from __future__ import annotations


def snake_case(name: str) -> str:
    """`RankExited` is written `rank_exited`."""
    return "".join(("_" if i and c.isupper() else "") + c.lower() for i, c in enumerate(name))
