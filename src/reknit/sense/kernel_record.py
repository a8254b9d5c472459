r"""One line of a kernel log, whatever tool printed it: who wrote it, when, where, and the message itself.

Known: raw records of /dev/kmsg (`prio,seq,usec,flags;text`), `dmesg` plain, -T, --time-format=iso, -x
(decoded) and with `<prio>`, `journalctl` short, short-iso and short-monotonic, and syslog's `kernel:` lines.
Anything else is a message without a stamp.

Only the raw form is safe against forgery. There a record is one line, a user program's record carries a
facility of at least 1, and a line feed inside a record is written `\x0a`. `dmesg` prints that line feed as
it is, so a tenant whose crashing program has one in its file name can begin a line of dmesg's output, even
with a stamp of its own. Read raw records wherever a node may be blamed for what they say; the other forms are
for logs that were handed in.
"""

from __future__ import annotations

import re
from datetime import datetime

import msgspec

_KERNEL = 0
_USER = 1

_RAW = re.compile(r"(\d{1,5}),\d{1,20},(\d{1,20}),[^;]{0,64};")
_PRIORITY = re.compile(r"<(\d{1,5})>")
_DECODED = re.compile(r"([a-z]+[0-7]?) *:[a-z]+ *: ")
_SECONDS = re.compile(r"\[ *(\d{1,12}\.\d{1,9})\] ?(?:\[ *[TC]\d+\] )?")
_CALENDAR = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ?")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)([.,]\d{1,9})?(Z|[+-]\d\d:?\d\d)? ")
_SHORT = re.compile(r"[A-Z][a-z]{2} +\d{1,2} (?:\d{4} )?\d\d:\d\d:\d\d(?:\.\d{1,9})? ")
_WRITER = re.compile(r"(\S{1,255}) ([^\s:\[\]]{1,64})(?:\[\d+\])?: ?")
_KERNEL_WORD = re.compile(r"kernel: ?")
_LINE_FEED = re.compile(r"\\x0a *")
_MICROSECONDS = 1e6


class KernelRecord(msgspec.Struct, frozen=True):
    """One record.

    Attributes:
        message: the text, without stamp, host and leading blanks.
        facility: 0 for the kernel, 1 or more for a user program, None where the format does not tell.
        monotonic: seconds since boot, None where the format does not tell.
        wall: seconds since the epoch, None where the format has no date with a time zone.
        host: the host's name as printed.
        stamped: whether the line began like a record; in a log whose lines do, one that does not is a rest.
    """

    message: str
    facility: int | None = None
    monotonic: float | None = None
    wall: float | None = None
    host: str | None = None
    stamped: bool = False


def parse_record(line: str) -> KernelRecord:
    """Takes any line and never fails."""
    if raw := _RAW.match(line):
        text = _LINE_FEED.sub(" ", line[raw.end() :]).strip()
        return KernelRecord(text, int(raw[1]) >> 3, int(raw[2]) / _MICROSECONDS, stamped=True)
    facility, rest = _facility(line)
    return _stamped(rest, facility) or KernelRecord(
        _without_word(rest.strip()), facility, stamped=facility is not None
    )


def _stamped(text: str, facility: int | None) -> KernelRecord | None:
    if seconds := _SECONDS.match(text):
        host, message = _monotonic_host(text[seconds.end() :])
        return KernelRecord(message, facility, float(seconds[1]), host=host, stamped=True)
    if calendar := _CALENDAR.match(text):
        return KernelRecord(text[calendar.end() :].strip(), facility, stamped=True)
    if iso := _ISO.match(text):
        message, wall = text[iso.end() :], _epoch(iso)
        if facility is not None or (iso[2] or "").startswith(","):
            return KernelRecord(message.strip(), facility, wall=wall, stamped=True)  # dmesg prints no host
        return _with_writer(message, wall)
    if short := _SHORT.match(text):
        return _with_writer(text[short.end() :], None)
    return None


def _facility(line: str) -> tuple[int | None, str]:
    if number := _PRIORITY.match(line):
        return int(number[1]) >> 3, line[number.end() :]
    if (word := _DECODED.match(line)) and (name := word[1]):
        return (_KERNEL if name == "kern" else _USER), line[word.end() :]
    return None, line


def _monotonic_host(text: str) -> tuple[str | None, str]:
    writer = _WRITER.match(text)
    if writer and writer[2] == "kernel":
        return writer[1], text[writer.end() :].strip()
    return None, text.strip()


def _with_writer(text: str, wall: float | None) -> KernelRecord:
    """After a journal's or syslog's stamp comes a host and who wrote it; only `kernel` is the kernel."""
    writer = _WRITER.match(text)
    if writer is None:
        return KernelRecord(_without_word(text.strip()), wall=wall, stamped=True)
    message = text[writer.end() :]
    if writer[2] != "kernel":
        return KernelRecord(message.strip(), _USER, wall=wall, host=writer[1], stamped=True)
    seconds = _SECONDS.match(message)
    if seconds:
        message = message[seconds.end() :]
    monotonic = float(seconds[1]) if seconds else None
    return KernelRecord(message.strip(), None, monotonic, wall, writer[1], stamped=True)


def _without_word(text: str) -> str:
    word = _KERNEL_WORD.match(text)
    return text[word.end() :] if word else text


def _epoch(iso: re.Match[str]) -> float | None:
    if iso[3] is None:
        return None
    fraction = (iso[2] or ".0").replace(",", ".")[:7]
    try:
        return datetime.fromisoformat(f"{iso[1].replace(' ', 'T')}{fraction}{iso[3]}").timestamp()
    except (ValueError, OverflowError):
        return None
