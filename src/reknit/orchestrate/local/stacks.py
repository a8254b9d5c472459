"""Stacks of a process, taken without disturbing it: Python's by py-spy, the kernel's from /proc."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from pathlib import Path

from reknit.orchestrate.local.errors import why
from reknit.orchestrate.local.processes import PROC

MAX_TEXT = 1 << 20


def find_py_spy() -> str | None:
    """py-spy next to this interpreter or on the path; None where it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


async def python_stack(program: str, pid: int, timeout_s: float) -> tuple[str, str]:
    """The Python threads of a process, and why there are none ("" where there are). Never waits past the
    timeout.

    `--nonblocking`: the process is not paused, so that one which runs is not disturbed and one which is
    stopped or hangs in the kernel is not waited for.
    """
    try:
        running = await asyncio.create_subprocess_exec(
            program,
            "dump",
            "--nonblocking",
            "--pid",
            str(pid),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        return "", f"{program} cannot be run: {why(error)}"
    try:
        out, err = await asyncio.wait_for(running.communicate(), timeout_s)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.wait()
        return "", f"py-spy gave no answer in {timeout_s:.1f} s"
    text = out[:MAX_TEXT].decode(errors="replace")
    if running.returncode:
        lines = err.decode(errors="replace").strip().splitlines() or [f"status {running.returncode}"]
        return text, f"py-spy failed: {lines[0][:300]}"
    return text, ""


def kernel_view(pid: int) -> str:
    """The kernel stack and the system call of a process, with the reason where they may not be read."""
    return "".join(f"{name}:\n{_read(pid, name)}\n" for name in ("stack", "syscall"))


def wchan(pid: int) -> str:
    """The kernel function in which a process waits; "" where it does not wait or may not be looked at."""
    try:
        text = (PROC / str(pid) / "wchan").read_text().strip()
    except OSError:
        return ""
    return "" if text == "0" else text


def involuntary_switches(pid: int) -> int:
    """How often a process was made to give up its CPU; 0 where unknown."""
    with contextlib.suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("nonvoluntary_ctxt_switches:"):
                return int(line.partition(":")[2])
    return 0


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text(errors="replace").rstrip() or "(empty)"
    except OSError as error:
        return f"({why(error)})"
