"""`reknit ledger`: where each job's wall time went, and what each incident cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from reknit.account.ledger import ettr, wall_seconds
from reknit.cli.incident_words import as_json
from reknit.cli.render import print_json
from reknit.cli.state_option import open_run, state_option
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


@click.command()
@state_option
@click.option("--json", "as_object", is_flag=True, help="For a program.")
def ledger(*, state: Path, as_object: bool) -> None:
    """Show where the time went: every second of each job in one phase, and the bill of each incident."""
    if as_object:
        print_json(as_json_ledger(read_ledger(state)))
        return
    print_ledger(state)


def print_ledger(state: Path) -> None:
    """Draw the ledger of a state directory on standard output. Raises UsageProblem where there is none."""
    found = read_ledger(state)
    if not found.jobs:
        click.echo("no job has been started in this run yet")
        return
    from reknit.cli.ledger_report import print_ledger_report  # noqa: PLC0415 - it draws

    print_ledger_report(found)


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


def as_json_ledger(found: Ledger) -> dict[str, Any]:
    """The ledger for a program: seconds, GPU-hours and shares by phase, and each incident's bill."""
    return {
        "jobs": [_job_json(job) for job in found.jobs],
        "other_incidents": [as_json(i) for i in found.others],
    }


def _job_json(found: JobLedger) -> dict[str, Any]:
    job, account = found.job, found.job.account
    wall = wall_seconds(account)
    return {
        "job": job.spec.id,
        "state": job.state,
        "result": job.result,
        "gpus": job.spec.gpus,
        "attempt": job.attempt,
        "restarts": found.restarts,
        "step": job.high_step,
        "started_at": account.started_at,
        "settled_at": account.settled_at,
        "wall_seconds": wall,
        "lost_seconds": found.lost,
        "billed_seconds": found.billed,
        "lost_gpu_hours": found.hours(found.lost),
        "ettr": ettr(account),
        "phases": {
            phase.value: {
                "seconds": seconds,
                "share": seconds / wall if wall > 0 else 0.0,
                "gpu_hours": found.hours(seconds),
            }
            for phase, seconds in account.phases.items()
        },
        "incidents": [
            {
                **{k: v for k, v in as_json(incident).items() if k not in ("signals", "timeline", "history")},
                "phases": msgspec.to_builtins(incident.bill.phases),
                "steps_redone": incident.bill.steps_redone,
            }
            for incident in found.incidents
        ],
    }
