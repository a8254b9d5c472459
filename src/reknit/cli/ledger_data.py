"""A run's account as it is read from its state directory, one job at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reknit.cli.state_option import open_run
from reknit.model.terms import LOST_PHASES

if TYPE_CHECKING:
    from pathlib import Path

    from reknit.model.incidents import Incident
    from reknit.model.state import JobView


class JobLedger(NamedTuple):
    """One job's account with its incidents, oldest first."""

    job: JobView
    incidents: list[Incident]

    @property
    def lost(self) -> float:
        """Wall seconds in the phases of incidents."""
        return sum(self.job.account.phases.get(phase, 0.0) for phase in LOST_PHASES)

    @property
    def billed(self) -> float:
        """Wall seconds on the bills of the incidents: what was lost and explained."""
        return sum(incident.bill.seconds for incident in self.incidents)

    @property
    def restarts(self) -> int:
        """Attempts after the first."""
        return max(0, self.job.attempt - 1)

    def hours(self, seconds: float) -> float:
        """GPU-hours of this gang in so many seconds."""
        return seconds * self.job.spec.gpus / 3600.0


class Ledger(NamedTuple):
    """All jobs of a run, and the incidents that belong to none of them."""

    jobs: list[JobLedger]
    others: list[Incident]


def read_ledger(state: Path) -> Ledger:
    """The account of a state directory, also of one in use. Raises UsageProblem."""
    from reknit.catalog.load import builtin  # noqa: PLC0415 - heavy

    with open_run(state) as run:
        # In this order: what a live run writes in between is then in the state as well, and nothing is billed
        # that the account does not hold yet.
        every = {incident.id: incident for incident in run.incidents()}
        engine = run.engine_state(builtin())
    every.update(engine.incidents)
    jobs = {id_: JobLedger(job, []) for id_, job in engine.jobs.items()}
    others: list[Incident] = []
    for incident in sorted(every.values(), key=lambda i: i.opened_at):
        owner = jobs.get(_owner(incident))
        (owner.incidents if owner is not None else others).append(incident)
    return Ledger(list(jobs.values()), others)


def _owner(incident: Incident) -> str:
    if incident.job is not None:
        return incident.job.job
    return next((signal.job for signal in incident.signals if signal.job), "")
