"""Reads pytest's JUnit report and prints how many tests passed, failed and were skipped, with the reasons.

    python scripts/count_tests.py REPORT.xml

Ends with 1 where a test failed, where none ran, or where there is no report.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def main(path: Path) -> int:
    """Print the counts, the plain line last."""
    if not path.is_file():
        print("no test report: the tests did not get as far as running")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    passed, failed, skipped = 0, 0, 0
    for case in ET.parse(path).iter("testcase"):  # noqa: S314 - pytest wrote it a moment ago
        name = f"{case.get('classname')}::{case.get('name')}"
        if (skip := case.find("skipped")) is not None:
            skipped += 1
            print(f"skipped  {name}: {skip.get('message')}")
        elif case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            print(f"failed   {name}")
        else:
            passed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
