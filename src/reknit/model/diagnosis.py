"""What the evidence says, and what is to be done about it."""

from __future__ import annotations

from typing import Literal

import msgspec

from reknit.model.entities import Entity
from reknit.model.terms import FailureClass, Grade, VerdictAction


class Diagnosis(msgspec.Struct, frozen=True):
    """A verdict on one incident.

    Attributes:
        failure_class: what kind of thing broke.
        culprit: what is blamed, None where the evidence blames nobody.
        role: whether the culprit's signal is the root of the chain or only a symptom whose root was not seen.
        action: what a person would be told to do.
        confidence: 0 to 1.
        reason: one sentence that says why.
        code: the catalogue row of the deciding signal.
        chain: from the root to the last symptom, one line each.
        suspects: nodes on which the job should not run again before somebody has looked.
        grade: the highest grade of action that this evidence allows on those nodes.
        signature: what makes two failures the same one (class, code, rank or device, frame), without the step.
        would_help: what evidence would raise the confidence, "" if none.
    """

    failure_class: FailureClass
    culprit: Entity | None
    role: Literal["root", "symptom"]
    action: VerdictAction
    confidence: float
    reason: str
    code: str
    chain: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    grade: Grade = Grade.FREE
    signature: str = ""
    would_help: str = ""
