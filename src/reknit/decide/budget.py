"""What is still allowed: restarts of a job, nodes out of service."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reknit.model.policy import NodeBudget, RestartBudget
    from reknit.model.state import JobView

HOUR_S = 3600.0
DAY_S = 86400.0


def restart_refusal(job: JobView, budget: RestartBudget, now: float) -> str:
    """Why one more restart is not allowed, "" if it is."""
    hour = sum(1 for at in job.restarts if at > now - HOUR_S)
    day = sum(1 for at in job.restarts if at > now - DAY_S)
    if hour >= budget.per_hour:
        return f"{hour} restarts without lasting progress in an hour use up the budget of {budget.per_hour} an hour"
    if day >= budget.per_day:
        return f"{day} restarts without lasting progress in the last day use up the budget of {budget.per_day} a day"
    return ""


def backoff_s(restarts: int, budget: RestartBudget, salt: str) -> float:
    """Seconds to wait before the next restart of an incident that has had `restarts`: none, then doubling to the
    ceiling, spread by up to a tenth so that gangs which failed together do not return together. The spread is a hash
    of the incident, so the same events give the same wait."""
    if restarts <= 0:
        return 0.0
    base = min(budget.backoff_first_s * 2.0 ** (restarts - 1), budget.backoff_max_s)
    return base * (1.0 + 0.1 * _unit(f"{salt}/{restarts}"))


def nodes_allowed(pool_size: int, budget: NodeBudget) -> int:
    """How many nodes of a pool may be out of service by our hand at once; never less than the floor."""
    return max(budget.at_once_min, math.floor(pool_size * budget.at_once_percent / 100.0))


def _unit(text: str) -> float:
    """A number in [0, 1) that only depends on the text (FNV-1a; `hash` differs between processes)."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return (value >> 11) / float(1 << 53)
