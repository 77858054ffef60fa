"""Times as people write and read them: one rule for commands, archives, the monitor and Spark.

A clock time is the viewer's local time, as is every time that is shown, unless a `Z` or an offset from UTC
follows it.

| text | time |
|---|---|
| `03:12`, `03:12:00`, `03:12:00.5` | that local time, the first one in the recording |
| `2026-11-21 03:12:00`, `2026-11-21T03:12` | that local time of that day |
| `2026-11-21` | its start, local time |
| `03:12:00Z`, `2026-11-21T03:12:00Z` | the same in UTC |
| `03:12:00+02:00`, `2026-11-21 03:12+0200` | the same where the clock is so far ahead of UTC |
| `+90`, `+90s`, `-1.5m`, `+2h`, `+250ms` | so long after or before the present position (replay: the start) |
| `37%`, `37.5 %` | that part of the whole |
| `begin`, `start`, `end` | the ends |

`parse_moment` reads all of these, for a position in a recording; `parse_time_ms` those with a date, and
milliseconds since 1970. A time without a date that is not in the recording means the nearest one. Of the hour
that a clock repeats in autumn the first one counts, if the recording covers it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from typing import Final

from trioha.errors import TriohaError
from trioha.numbers import NATURAL64, parse_int

MOMENT_HINT: Final = (
    "03:12:00 or 2026-11-21 03:12:00 (local time, unless Z or an offset as +02:00 follows), "
    "+90s (from the begin), 50%, begin or end"
)
NS_PER_S: Final = 10**9
UNITS_NS: Final = {
    "ms": 10**6,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
}

_NUMBER: Final = r"([0-9]{1,12}(?:\.[0-9]{0,9})?)"
_SPAN: Final = re.compile(rf"([+-])\s*{_NUMBER}\s*(ms|s|min|m|h|d|)", re.IGNORECASE)
_SHARE: Final = re.compile(rf"{_NUMBER}\s*%")
_DATE: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_CLOCK: Final = re.compile(
    rf"(?:({_DATE})[T ]\s*)?([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}})(?:\.([0-9]{{1,9}}))?)?"
    r"\s*(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    re.IGNORECASE,
)
_DAY: Final = re.compile(_DATE)


TIME_HINT: Final = (
    "a time as 2026-01-31T12:00:00 (local time, unless Z or an offset as +02:00 follows), or milliseconds "
    "since 1970"
)


class MomentError(TriohaError):
    """A text that is written like a time but does not name one."""


def parse_moment(
    text: str, *, start_ns: int, end_ns: int, now_ns: int | None = None, zone: tzinfo | None = None
) -> int | None:
    """The time that `text` names in a recording from `start_ns` to `end_ns`, in ns since 1970.

    `now_ns` is the present position, to which spans are added; the start if None. `zone` is the viewer's,
    None for that of the system. The time may lie outside of the recording. None if `text` is not written like
    a time: callers may accept other words. Raises MomentError if it is, but names none (25:00).
    """
    text = " ".join(text.split())
    low = text.lower()
    if low in {"begin", "start"}:
        return start_ns
    if low == "end":
        return end_ns
    if span := _SPAN.fullmatch(text):
        sign, amount, unit = span.groups()
        passed_ns = round(float(amount) * UNITS_NS[unit.lower() or "s"])
        return (start_ns if now_ns is None else now_ns) + (passed_ns if sign == "+" else -passed_ns)
    if share := _SHARE.fullmatch(text):
        if float(share[1]) > 100:
            raise MomentError(f"{share[1]} % is more than there is")
        return start_ns + round((end_ns - start_ns) * float(share[1]) / 100)
    try:
        if _DAY.fullmatch(text):
            return _nearest(_instants(date.fromisoformat(text), time(), zone), start_ns, end_ns)
        if clock := _CLOCK.fullmatch(text):
            return _clock_ns(clock, start_ns=start_ns, end_ns=end_ns, zone=zone)
    except (ValueError, OverflowError, OSError) as error:
        raise MomentError(f"{text!r} is not a time: {error}") from None
    return None


def parse_time_ms(text: str) -> int:
    """A time of any day, in ms since 1970, not below 0: digits are milliseconds. Raises MomentError."""
    text = text.strip()
    try:
        if text.isdecimal():
            return parse_int(text, NATURAL64)
        if _DAY.fullmatch(text) or ((clock := _CLOCK.fullmatch(text)) is not None and clock[1]):
            at_ns = parse_moment(text, start_ns=0, end_ns=0)
            assert at_ns is not None, "it is written like a time"
            return max(0, at_ns // 10**6)
    except (ValueError, MomentError):
        pass
    raise MomentError(f"{text[:80]!r} is not a time")


def time_text(time_ms: int) -> str:
    """A time of day with its date and the local zone's offset; one beyond the calendar in milliseconds."""
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


def clock_text(at_ns: int, zone: tzinfo | None = None) -> str:
    """A time on the viewer's clock, to the ms: `2026-11-21 03:12:00.500`. None is the system's zone."""
    try:
        moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC).astimezone(zone)
    except (ValueError, OverflowError, OSError):
        return f"{at_ns // NS_PER_S} s since 1970"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{at_ns % NS_PER_S // 10**6:03d}"


def zone_text(moments_ns: Iterable[int], zone: tzinfo | None = None) -> str:
    """The zones in which `clock_text` shows these times: `CET (UTC+01:00)`; several if the zone changes."""
    names: dict[str, None] = {}
    for at_ns in moments_ns:
        try:
            moment = datetime.fromtimestamp(at_ns // NS_PER_S, UTC).astimezone(zone)
        except (ValueError, OverflowError, OSError):
            continue
        names[_name_of(moment)] = None
    return ", ".join(names) or "UTC"


def offset_ns(at_ns: int, zone: tzinfo | None = None) -> int:
    """How far the viewer's clock is ahead of UTC at a time, in ns."""
    try:
        ahead = datetime.fromtimestamp(at_ns // NS_PER_S, UTC).astimezone(zone).utcoffset()
    except (ValueError, OverflowError, OSError):
        return 0
    return (ahead or timedelta()) // timedelta(microseconds=1) * 1000


def _name_of(moment: datetime) -> str:
    ahead_s = round((moment.utcoffset() or timedelta()).total_seconds())
    if not ahead_s:
        return "UTC"
    minutes = abs(ahead_s) // 60
    offset = f"UTC{'+' if ahead_s > 0 else '-'}{minutes // 60:02d}:{minutes % 60:02d}"
    name = moment.tzname() or ""
    # Some zones have only a number for a name.
    return f"{name} ({offset})" if name.isalpha() else offset


def _clock_ns(clock: re.Match[str], *, start_ns: int, end_ns: int, zone: tzinfo | None) -> int:
    day, hour, minute, second, fraction, offset = clock.groups()
    of_day = time(int(hour), int(minute), int(second or 0))
    if offset:
        zone = _zone(offset)
    if day:
        days = [date.fromisoformat(day)]
    else:
        around = [
            datetime.fromtimestamp(at_ns // NS_PER_S, UTC).astimezone(zone) for at_ns in (start_ns, end_ns)
        ]
        days = [moment.date() + timedelta(days=more) for moment in around for more in (-1, 0, 1)]
    fraction_ns = int((fraction or "").ljust(9, "0"))
    instants = [at_ns + fraction_ns for each in days for at_ns in _instants(each, of_day, zone)]
    return _nearest(instants, start_ns, end_ns)


def _zone(offset: str) -> timezone:
    if offset in "zZ":
        return UTC
    hours, minutes = int(offset[1:3]), int(offset[3:].lstrip(":") or 0)
    if minutes >= 60:
        raise ValueError(f"{offset} is not an offset from UTC")
    ahead = timedelta(hours=hours, minutes=minutes)
    return timezone(-ahead if offset[0] == "-" else ahead)


def _instants(day: date, of_day: time, zone: tzinfo | None) -> list[int]:
    """When a clock in `zone` shows this time: twice in the hour that it repeats."""
    shown = datetime.combine(day, of_day)
    both = (shown.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    return sorted({round(moment.timestamp()) * NS_PER_S for moment in both})


def _nearest(instants: Iterable[int], start_ns: int, end_ns: int) -> int:
    """The first one in the recording, else the nearest one. The recording's start counts from its second."""
    low_ns = start_ns - start_ns % NS_PER_S
    return min(sorted(instants), key=lambda at_ns: max(low_ns - at_ns, at_ns - end_ns, 0))
