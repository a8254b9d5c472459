"""How many examples are drawn, and whether they are the same every time.

By the variable PROPERTIES:

ci        (the default) the same examples each time, so that the suite is stable
fresh     as many, other ones each time
thorough  fifty times as many, other ones each time (nearly an hour)
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_PROFILE = os.environ.get("PROPERTIES", "ci")
_TIMES = {"ci": 1, "fresh": 1, "thorough": 50}[_PROFILE]


def profile(examples: int, steps: int = 50) -> settings:
    """The settings of one test in the profile that was chosen."""
    return settings(
        max_examples=examples * _TIMES,
        stateful_step_count=steps,
        deadline=None,
        derandomize=_PROFILE == "ci",
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )


MACHINE = profile(300, steps=40)
LISTS = profile(800)
