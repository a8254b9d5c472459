"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# Tests run beside each other and beside real processes, so the time of one example says nothing. In CI the examples
# are the same each time: a red run there is a change's doing; new examples are found on developers' machines.
settings.register_profile("everyday", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "everyday")

# Whoever runs the tests under Reknit itself must not have them write into that run.
for name in [name for name in os.environ if name.startswith("REKNIT_") and name != "REKNIT_CI_MARK"]:
    del os.environ[name]
