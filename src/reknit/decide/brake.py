"""The brake: stops new quarantines when too much is being taken out of service at once.

It stops nothing else. A gang whose ranks have died is still restarted, reports and releases go on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reknit.model.policy import Brake
    from reknit.model.state import BrakeState


def note_code(brake: BrakeState, code: str, node: str, now: float, policy: Brake) -> None:
    """Remember that a node showed a fault that may take nodes out of service."""
    since = now - policy.window_s
    seen = {name: at for name, at in brake.codes.get(code, {}).items() if at > since}
    seen[node] = now
    brake.codes = {**brake.codes, code: seen}


def note_quarantine(brake: BrakeState, node: str, now: float, policy: Brake) -> None:
    """Remember a new quarantine."""
    since = now - policy.window_s
    brake.quarantined = [*((at, name) for at, name in brake.quarantined if at > since), (now, node)]


def reason_to_trip(
    brake: BrakeState, code: str, pool_size: int, now: float, policy: Brake, node: str = ""
) -> str:
    """Why one more quarantine for this code must not happen, "" if it may.

    `node` is the one that is to be quarantined: tried again, it is not one more.
    """
    since = now - policy.window_s
    fresh = len({name for at, name in brake.quarantined if at > since and name != node})
    limit = max(policy.count, math.floor(pool_size * policy.percent / 100.0))
    if fresh >= limit:
        return (
            f"{fresh} nodes were quarantined in the last {policy.window_s / 60:.0f} min, the most that "
            f"a pool of {pool_size} allows"
        )
    alike = sum(1 for at in brake.codes.get(code, {}).values() if at > since)
    same = max(2, math.floor(pool_size * policy.same_code_percent / 100.0))
    if alike > same:
        return (
            f"{alike} of {pool_size} nodes report {code} within {policy.window_s / 60:.0f} min: "
            "that is one common cause, not that many broken nodes"
        )
    return ""
