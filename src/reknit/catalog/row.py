"""The shape of a catalogue row, and the catalogue as the pure rooms see it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

import msgspec

from reknit.model.terms import FailureClass, Grade, VerdictAction

Sense = Literal["kernel", "training_log", "process", "progress", "probe"]
Scope = Literal["gpu", "nvlink_domain", "nic", "node", "rank", "job", "storage", "none"]
ClearRule = Literal["boot", "gpu_reset", "process_exit", "time", "explicit", "never_raised"]
Severity = Literal["fatal", "error", "warning", "info"]
GradeName = Literal["free", "reversible", "disturbing", "destructive"]

_GRADES: dict[GradeName, Grade] = {
    "free": Grade.FREE,
    "reversible": Grade.REVERSIBLE,
    "disturbing": Grade.DISTURBING,
    "destructive": Grade.DESTRUCTIVE,
}


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of fault.

    Attributes:
        code: unique, dotted, stable: `nvidia.xid.79`, `python.exception`, `process.signal.9`.
        title: a few words for people, no full stop: "GPU has fallen off the bus".
        sense: which sense may raise it. A kernel row never fires on text that a job wrote.
        failure_class, severity: see the model. `info` rows are kept as evidence and open no incident.
        scope: what is blamed when this is the root; "none" blames nobody.
        patterns: RE2 regular expressions, unanchored; named groups become attributes of the signal. Two names mean
            something to every sense: `pci` joins the signal to a GPU of the node, `pid` to a rank.
        examples: real-looking lines that must match (checked by a test); counter_examples must not.
        action, repeat_action: what to do the first time, and when the same thing comes back on the same culprit.
        grade: the highest grade of action that this evidence reaches alone.
        clear: what ends the fault. `clear_after_s` is for `time`.
        explains: codes (globs allowed) that this fault causes within the same job or node; they are then symptoms.
        symptom: true where the row never is a root by itself: something else, perhaps unseen, caused it.
        weight: among roots of equal trust the heaviest decides. 50 is ordinary; specific rows are heavier than generic.
        advice: one sentence for the person who has to act, "" where the action says it all.
        source: where the row comes from, with the date or version.
    """

    code: str
    title: str
    sense: Sense
    failure_class: FailureClass
    severity: Severity
    scope: Scope
    action: VerdictAction
    source: str
    patterns: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()
    repeat_action: VerdictAction | None = None
    grade: GradeName = "free"
    clear: ClearRule = "process_exit"
    clear_after_s: float = 0.0
    explains: tuple[str, ...] = ()
    symptom: bool = False
    weight: int = 50
    advice: str = ""

    @property
    def highest_grade(self) -> Grade:
        """`grade` as the ordered value that budgets compare."""
        return _GRADES[self.grade]

    def explains_code(self, code: str) -> bool:
        """Whether a signal with this code, seen with this fault, is only its symptom."""
        return any(fnmatchcase(code, glob) for glob in self.explains)


class ProgressRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way in which a framework prints its progress.

    `pattern` is RE2 with named groups: `step`, and where printed `loss`, `seconds` or `milliseconds` (of one step).
    `what` says what the line means; the step of `saved` and `loaded` lines is the checkpoint's.
    """

    code: str
    what: Literal["step", "saved", "loaded"]
    pattern: str
    source: str
    examples: tuple[str, ...] = ()
    counter_examples: tuple[str, ...] = ()


class CatalogFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One TOML file: any number of `[[row]]` and `[[progress]]` tables."""

    row: tuple[Row, ...] = ()
    progress: tuple[ProgressRow, ...] = ()


class Catalog(msgspec.Struct, frozen=True, dict=True):
    """All rows, found by code."""

    rows: tuple[Row, ...]
    progress: tuple[ProgressRow, ...] = ()

    @cached_property
    def by_code(self) -> dict[str, Row]:
        """Rows by their code."""
        return {row.code: row for row in self.rows}

    def get(self, code: str) -> Row:
        """The row of a code. An unmapped code is `unknown`: observed, never fatal."""
        return self.by_code.get(code) or Row(
            code=code,
            title=f"unmapped code {code}",
            sense="probe",
            failure_class=FailureClass.UNKNOWN,
            severity="info",
            scope="none",
            action=VerdictAction.NONE,
            source="no catalogue row",
        )

    def for_sense(self, sense: Sense) -> tuple[Row, ...]:
        """The rows that this sense may raise and that have patterns."""
        return tuple(row for row in self.rows if row.sense == sense and row.patterns)
