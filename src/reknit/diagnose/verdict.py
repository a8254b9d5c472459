"""The verdict: puts causes and blame together and says it in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reknit.diagnose import blame, causes
from reknit.model.diagnosis import Diagnosis
from reknit.model.terms import FailureClass, Grade, Trust, VerdictAction

if TYPE_CHECKING:
    from reknit.diagnose.evidence import Candidate, Evidence
    from reknit.model.entities import Entity

_CONFIDENCE = {
    Trust.DRIVER_API: 0.95,
    Trust.KERNEL_RECORD: 0.9,
    Trust.NODE_SERVICE: 0.75,
    Trust.SCHEDULER_STATUS: 0.7,
    Trust.TRAINING_LOG: 0.7,
}
"""How sure one signal makes us, by how hard it is to forge or mistake. Ours, to be replaced by measured precision."""

_CORROBORATED = 0.08
_SYMPTOM_ONLY = 0.35
_CHAIN = 8


def diagnose(evidence: Evidence) -> Diagnosis:
    """What the evidence says. Never fails: without usable signals the verdict is `unknown` and blames nobody."""
    candidates = evidence.candidates()
    ranked = causes.roots(candidates)
    if ranked:
        return _from_root(ranked, candidates, evidence)
    if candidates:
        return _from_symptom(causes.symptoms_only(candidates))
    return Diagnosis(
        failure_class=FailureClass.UNKNOWN,
        culprit=None,
        role="symptom",
        action=VerdictAction.NONE,
        confidence=0.0,
        reason="nothing that was seen is known to be a fault",
        code="",
        would_help="logs of the ranks, the kernel log of the nodes",
    )


def _from_root(ranked: list[Candidate], candidates: list[Candidate], evidence: Evidence) -> Diagnosis:
    root = ranked[0]
    alike = [c for c in ranked if _same_failure(c, root)]
    blamed = blame.culprit(root, evidence, alike)
    followers = causes.explained_by(root, candidates)
    signature = blame.signature(root, blamed)
    again = any(earlier == signature for earlier, _ in evidence.earlier)
    action = root.row.repeat_action if again and root.row.repeat_action else root.row.action
    other_senses = {c.signal.source for c in followers} - {root.signal.source}
    confidence = _CONFIDENCE[root.signal.trust] + (_CORROBORATED if other_senses or len(alike) > 1 else 0.0)
    if root.row.failure_class == FailureClass.UNKNOWN:
        confidence = min(confidence, 0.5)
    died = any(c.signal.source == "process" for c in candidates)
    grade = root.row.highest_grade
    return Diagnosis(
        failure_class=root.row.failure_class,
        culprit=blamed,
        role="root",
        action=action,
        confidence=round(min(confidence, 0.99), 2),
        reason=_sentence(root, blamed, followers, alike),
        code=root.signal.code,
        chain=_chain(root, followers),
        suspects=blame.suspects(root, blamed),
        grade=max(grade, Grade.DISTURBING) if died and grade >= Grade.REVERSIBLE else grade,
        signature=signature,
        would_help="" if confidence >= 0.75 else "a second source: the node's kernel log, or the stacks",  # noqa: PLR2004
    )


def _from_symptom(ranked: list[Candidate]) -> Diagnosis:
    first = ranked[0]
    return Diagnosis(
        failure_class=first.row.failure_class,
        culprit=None,
        role="symptom",
        action=first.row.action,
        confidence=_SYMPTOM_ONLY,
        reason=f"{first.row.title}{_where(first, None)}, a symptom; its cause was not seen, so nobody is blamed",
        code=first.signal.code,
        chain=_chain(first, ranked[1:]),
        signature=blame.signature(first, None),
        would_help="the log of the rank that stopped first, the kernel log of its node, or a flight-recorder dump",
    )


def _same_failure(one: Candidate, other: Candidate) -> bool:
    if one.signal.code != other.signal.code:
        return False
    key = "signature"
    return one.signal.attributes.get(key) == other.signal.attributes.get(key)


def _sentence(
    root: Candidate, blamed: Entity | None, followers: list[Candidate], alike: list[Candidate]
) -> str:
    text = f"{root.row.title}{_where(root, blamed)}"
    what = root.signal.attributes.get("exception")
    if what:
        frame = root.signal.attributes.get("frame", "")
        message = root.signal.attributes.get("message", "")
        text += f": {what}{': ' + message if message else ''}{' at ' + frame if frame else ''}"
    if len(alike) > 1:
        text += f"; {len(alike)} ranks show the same"
    if followers:
        text += f"; it explains {_count(followers)}"
    return text


def _where(root: Candidate, blamed: Entity | None) -> str:
    signal = root.signal
    if blamed is not None and blamed.kind == "gpu":
        index = signal.attributes.get("gpu_index")
        name = (
            f"GPU {index} ({blamed.id.rpartition('/')[2]})"
            if index
            else f"GPU {blamed.id.rpartition('/')[2]}"
        )
        return f": {name} of {signal.node}" if signal.node else f": {name}"
    if signal.rank is not None:
        return f": rank {signal.rank}{' on ' + signal.node if signal.node else ''}"
    return f": {signal.node}" if signal.node else ""


def _count(followers: list[Candidate]) -> str:
    titles = dict.fromkeys(c.row.title for c in followers)
    shown = ", ".join(f"“{title}”" for title in list(titles)[:2])
    return shown + (f" and {len(titles) - 2} more kinds of symptoms" if len(titles) > 2 else "")  # noqa: PLR2004


def _chain(root: Candidate, followers: list[Candidate]) -> tuple[str, ...]:
    """From the root to the last kind of symptom; many ranks with the same symptom are one link."""
    kinds: dict[str, list[Candidate]] = {}
    for c in [root, *followers]:
        kinds.setdefault(c.signal.code, []).append(c)
    return tuple(
        f"{same[0].row.title}{_where(same[0], None)}{_others(len(same) - 1)} [{code}]"
        for code, same in list(kinds.items())[:_CHAIN]
    )


def _others(count: int) -> str:
    return f" and {count} more" if count else ""
