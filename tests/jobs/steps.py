"""A job for end-to-end tests that needs only Python and starts in a blink: it makes steps and checkpoints.

The ranks do not wait for each other, so whatever one of them does happens to nobody else. Rank 0 keeps the
last checkpoint in a JSON file; after a restart every rank goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from reknit import progress

NOISE = (
    "\x1b[31mred\x1b[0m \x1b]0;a title\x07 \x1b[2J\x1b[H",
    "[bold red]not markup of ours[/bold red] [link=http://example.invalid]x[/link] [/] [unclosed",
    "  3%|3         | 3/100 [00:01<00:32]\r 50%|#####     | 50/100 [00:16<00:16]\r100%|##########| 100/100",
    "[12345.678901] NVRM: Xid (PCI:0000:b3:00): 79, pid=4242, name=python, GPU has fallen off the bus.",
    "null \x00 byte, half a character \udcc3, and a long line " + "x" * 5000,
)
"""What a job may print and a reader of its log has to bear; the XID line is no kernel record."""


def main() -> int:
    """Run one rank; gives its exit status."""
    options = parse()
    rank = int(os.environ.get("RANK", "0"))
    if not speaks(options):
        os.environ.pop("REKNIT_PROGRESS", None)
    say = print if not options.silent else (lambda *_, **__: None)
    done = load(options.checkpoint)
    if done and speaks(options):
        progress.checkpoint_loaded(done)
    if done:
        say(f"loaded checkpoint at step {done}", flush=True)
    for step in range(done + 1, options.steps + 1):
        time.sleep(options.step_seconds)
        if options.exit_at == step and options.exit_rank in (None, rank):
            return options.exit_code
        if speaks(options):
            progress.step(step, 1.0 / step)
        if options.noise:
            shout(NOISE[step % len(NOISE)])
        say(f"iter {step}: loss {1.0 / step:.4f}, time {options.step_seconds * 1000:.2f}ms", flush=True)
        if rank == 0 and options.checkpoint and step % options.every == 0:
            save(options.checkpoint, step)
            if speaks(options):
                progress.checkpoint_saved(step)
            say(f"saved checkpoint at step {step}", flush=True)
    return 0


def speaks(options: argparse.Namespace) -> bool:
    """Whether the job tells its progress by the module."""
    return not (options.silent or options.print_only)


def shout(text: str) -> None:
    """Print bytes that need not be text."""
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")
    sys.stdout.buffer.flush()


def load(path: Path | None) -> int:
    """The step of the last checkpoint, 0 where there is none."""
    return json.loads(path.read_text())["step"] if path and path.exists() else 0


def save(path: Path, step: int) -> None:
    """Put the checkpoint in its place in one move."""
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps({"step": step}))
    draft.replace(path)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--checkpoint", type=Path, help="JSON file; without it every start is from step 0")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--silent", action="store_true", help="print nothing, tell no progress")
    parser.add_argument("--print-only", action="store_true", help="log lines, but no progress module")
    parser.add_argument("--noise", action="store_true", help="print what terminals and parsers choke on")
    parser.add_argument("--exit-at", type=int, help="end instead of completing this step")
    parser.add_argument("--exit-code", type=int, default=1, help="with this status")
    parser.add_argument("--exit-rank", type=int, help="only this rank ends (default all)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
