"""The files that were captured for an incident, read with care: a job may have written near them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from reknit.cli.render import plain_lines
from reknit.orchestrate.local.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from reknit.model.incidents import Incident

_MOST_FILES = 64
_READ = 16 << 10
_LINES = 14
_MARK = "Python threads:"
"""Where the stacks begin in the file of a rank; what stands before is about the process."""


class EvidenceFile(NamedTuple):
    """One file: its path relative to the state directory, its size in bytes, and its first telling lines."""

    path: str
    size: int
    lines: list[str]


def evidence_files(root: Path, incident: Incident) -> list[EvidenceFile]:
    """What lies where the incident says that its evidence is, the blamed rank first.

    What is gone or lies elsewhere is left out.
    """
    files: list[EvidenceFile] = []
    culprit = incident.diagnosis.culprit if incident.diagnosis is not None else None
    first = f"rank-{culprit.id}.txt" if culprit is not None and culprit.kind == "rank" else ""
    for relative in incident.evidence:
        folder = (root / relative).resolve()
        if not folder.is_relative_to(root):
            continue
        inside = sorted(folder.iterdir(), key=_natural) if folder.is_dir() else [folder]
        inside.sort(key=lambda path: path.name != first)
        for path in inside[: _MOST_FILES - len(files)]:
            found = _read(root, path)
            if found is not None:
                files.append(found)
    return files


def _read(root: Path, path: Path) -> EvidenceFile | None:
    try:
        handle = open_regular(path)
    except OSError:  # no regular file, a link that leads elsewhere, or not ours to read
        return None
    if handle is None:
        return None
    with os.fdopen(handle, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        text = file.read(_READ).decode("utf-8", "replace") if path.suffix == ".txt" else ""
    telling = text.partition(_MARK)[2].strip("\n") or text
    return EvidenceFile(str(path.relative_to(root)), size, plain_lines(telling, _LINES))


def _natural(path: Path) -> tuple[str, int, str]:
    """`rank-2.txt` before `rank-10.txt`."""
    head, _, tail = path.stem.rpartition("-")
    return (head, int(tail), path.name) if tail.isdecimal() else (path.stem, -1, path.name)
