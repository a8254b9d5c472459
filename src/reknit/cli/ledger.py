"""`reknit ledger`: where each job's wall time went, and what each incident cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from reknit.account.ledger import ettr, wall_seconds
from reknit.cli.incident_words import as_json
from reknit.cli.ledger_data import JobLedger, Ledger, read_ledger
from reknit.cli.render import print_json
from reknit.cli.state_option import state_option

if TYPE_CHECKING:
    from pathlib import Path


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
