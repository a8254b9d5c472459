"""Booking. Time is settled in order and only forwards, so the phases of a job always add up to its wall time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from reknit.model.terms import LOST_PHASES, Phase

if TYPE_CHECKING:
    from reknit.model.incidents import Bill
    from reknit.model.state import JobAccount


def settle(account: JobAccount, until: float, phase: Phase | None = None) -> tuple[Phase, float]:
    """Book the time since the last settlement to `phase` (the current one where None). Gives what was booked.

    A time before the last settlement books nothing: late news never moves a booked second.
    """
    into = phase or account.phase
    seconds = max(0.0, until - account.settled_at)
    if account.ended or seconds <= 0.0:
        return into, 0.0
    account.phases = {**account.phases, into: account.phases.get(into, 0.0) + seconds}
    account.settled_at = until
    return into, seconds


def charge(bill: Bill, phase: Phase, seconds: float, gpus: int) -> Bill:
    """Put booked seconds on an incident's bill; productive time costs nothing."""
    if seconds <= 0.0 or phase not in LOST_PHASES:
        return bill
    phases = {**bill.phases, phase: bill.phases.get(phase, 0.0) + seconds}
    return msgspec.structs.replace(bill, phases=phases, gpus=gpus)


def wall_seconds(account: JobAccount) -> float:
    """Wall seconds settled so far."""
    return account.settled_at - account.started_at


def ettr(account: JobAccount) -> float | None:
    """Effective training time ratio: productive seconds / wall seconds (ByteRobust, SOSP'25); None before any time
    has passed."""
    wall = wall_seconds(account)
    return account.phases.get(Phase.PRODUCTIVE, 0.0) / wall if wall > 0 else None
