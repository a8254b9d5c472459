"""Which signals are roots: those that no other signal of the incident explains.

The catalogue says what explains what; this module only asks whether the two belong together. A cause may be *read*
later than its symptom (a kernel log is polled, a rank's death is seen at once), so time decides only between signals
that explain each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reknit.diagnose.evidence import Candidate

SKEW_S = 30.0
"""How much later than its symptom a cause may be stamped: clock skew between nodes plus the delay of reading."""


def roots(candidates: list[Candidate]) -> list[Candidate]:
    """The signals that could be the cause, best first.

    Ranked by trust, then by how specific the row is, then by time: a kernel record outranks an application's text, a
    named cause outranks a generic one, the first outranks its followers.
    """
    rows = {c.signal.code: c.row for c in candidates}
    # A gang of thousands shows few different codes: what explains what is asked once for each pair of them.
    able = {code: {other for other, row in rows.items() if row.explains_code(code)} for code in rows}

    def explained(symptom: Candidate) -> bool:
        causes = able[symptom.signal.code]
        return any(other.signal.code in causes and explains(other, symptom) for other in candidates)

    return sorted((c for c in candidates if not c.row.symptom and not explained(c)), key=_rank)


def symptoms_only(candidates: list[Candidate]) -> list[Candidate]:
    """What is left where no root was seen: the most specific and earliest symptom first."""
    return sorted(
        candidates, key=lambda c: (-c.row.weight, c.signal.first_seen, c.signal.code, c.signal.entity.id)
    )


def explained_by(root: Candidate, candidates: list[Candidate]) -> list[Candidate]:
    """The symptoms that this root explains, in order of time."""
    return sorted(
        (c for c in candidates if c is not root and explains(root, c)),
        key=lambda c: (c.signal.first_seen, c.signal.code),
    )


def explains(cause: Candidate, symptom: Candidate) -> bool:
    """Whether one signal makes the other a symptom."""
    if cause is symptom or not cause.row.explains_code(symptom.signal.code):
        return False
    if cause.signal.key == symptom.signal.key or not _related(cause, symptom):
        return False
    if cause.signal.first_seen > symptom.signal.first_seen + SKEW_S:
        return False
    mutual = symptom.row.explains_code(cause.signal.code)
    return not mutual or _rank(cause) < _rank(symptom)


def _rank(c: Candidate) -> tuple[float, ...] | tuple[float | str, ...]:
    signal = c.signal
    return (-int(signal.trust), -c.row.weight, signal.first_seen, signal.code, signal.entity.id)


def _related(cause: Candidate, symptom: Candidate) -> bool:
    """A fault of a rank explains what happens to its gang; a fault of a node or device what happens on that node, and
    to the gang that has a rank there (its peers lose it)."""
    one, other = cause.signal, symptom.signal
    if other.source == "kernel" and one.source != "kernel" and one.node and other.node:
        return one.node == other.node
    if one.job and other.job:
        return one.job == other.job
    if one.node and other.node and one.node == other.node:
        return True
    # A kernel record knows no job: the incident has joined it to the gang because a rank of it runs on that node.
    return bool(one.node) != bool(other.node) or not one.job or not other.job
