"""Reads labelled excerpts of real failures through the senses and the diagnosis, and says how far they get.

    python tests/evidence/read_cases.py FOLDER

FOLDER holds `evidence/cases/*.yaml`. Nothing of it is part of this repository. Ends with 1 where a case raises an error
or where an excerpt in which nothing is wrong leads to a blamed node: the first catalogue need not know every text, but
it must never blame on text that it knows wrongly.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from reknit.catalog.load import builtin
from reknit.diagnose.evidence import Evidence
from reknit.diagnose.verdict import diagnose
from reknit.model.entities import Gpu, Node
from reknit.sense.kernel_log import KernelLogSense
from reknit.sense.training_log import TrainingLogSense

CATALOG = builtin()
_PCI = re.compile(r"\b(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\b")
_AT = 1_790_000_000.0


def read(text: str) -> Evidence:
    """An excerpt as a node's kernel log and as a rank's output; the node has every device that the text names."""
    gpus = tuple(Gpu(i, pci) for i, pci in enumerate(sorted(set(_PCI.findall(text)))))
    kernel = KernelLogSense(CATALOG, (Node("node0", gpus),))
    log = TrainingLogSense(CATALOG, job="job", attempt=1, rank=0, node="node0")
    data = text.encode()
    signals = [*kernel.feed(data, _AT), *kernel.finish(_AT), *log.feed(data, _AT), *log.finish(_AT)]
    return Evidence(tuple(signals), CATALOG, job="job", ranks=1)


def main() -> int:
    """Read all cases and print the figures."""
    if len(sys.argv) != 2 or not (cases := sorted(Path(sys.argv[1]).glob("evidence/cases/*.yaml"))):
        print(f"usage: {sys.argv[0]} FOLDER, where FOLDER/evidence/cases holds *.yaml", file=sys.stderr)
        return 2
    count: Counter[str] = Counter()
    for path in cases:
        case: dict[str, Any] = yaml.safe_load(path.read_text())
        evidence = read(case["evidence"])
        verdict = diagnose(evidence)
        if case["negative"]:
            count["negatives"] += 1
            count["quiet"] += not verdict.code
            count["wrongly suspected"] += bool(verdict.suspects)
            continue
        label = case["expected"]
        count["failures"] += 1
        count["seen"] += bool(verdict.code)
        count["class"] += verdict.failure_class in {label["failure_class"], *label["acceptable_classes"]}
    print(f"{count['failures']} failures: {count['seen']} seen, {count['class']} of an acceptable class")
    print(
        f"{count['negatives']} harmless excerpts: {count['quiet']} quiet, {count['wrongly suspected']} suspect a node"
    )
    return 1 if count["wrongly suspected"] else 0


if __name__ == "__main__":
    sys.exit(main())
