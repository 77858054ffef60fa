"""Where to go: the small language of the dialogs "jump to" and "as fast as possible until".

| text | meaning |
|---|---|
| `12:03:04`, `12:03:04.250`, `2026-11-21 12:03` | that local time, by default on the day of the begin |
| `+90s`, `-1.5m`, `+2h`, `+250ms` | from here |
| `37%`, `37.5 %` | so much of the whole |
| `begin`, `end` | the ends |
| `event`, `event lost`, `event puts` | the next event, or the next one of a kind |
| `lag > 10MB`, `lag <= 0` | the lag of any replica in bytes crosses that (KB, MB, GB: powers of 1024) |
| `lag > 3s` | the age of the oldest byte that a replica lacks does |
| `... of TEXT` | behind event and lag: only of replicas whose address, or name, contains TEXT |
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Literal

from attrs import frozen

from trioha.errors import TriohaError
from trioha_monitor.view import EventKind

_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_BYTES = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SPAN = re.compile(r"([+-])\s*(\d+(?:\.\d*)?)\s*(ms|s|min|m|h|d)", re.IGNORECASE)
_SHARE = re.compile(r"(\d+(?:\.\d*)?)\s*%")
_CLOCK = re.compile(r"(?:(\d{4}-\d\d-\d\d)[T ]+)?(\d{1,2}):(\d\d)(?::(\d\d)(\.\d{1,9})?)?")
_LAG = re.compile(r"lag\s*(<=|>=|<|>|=)\s*(\d+(?:\.\d*)?)\s*([a-z]*)", re.IGNORECASE)
_OF = re.compile(r"(?:^|\s)of\s+(\S+)\s*$", re.IGNORECASE)
Comparison = Literal["<", "<=", ">", ">=", "="]


class UntilError(TriohaError):
    """A text that names no place; says what it may be."""


@frozen
class AtTime:
    """A moment."""

    at_ns: int


@frozen
class AtEvent:
    """The next event."""

    kind: EventKind | None = None
    """None for any."""
    of: str = ""
    """Part of the replica's address; empty for any."""


@frozen
class AtLag:
    """Where a replica's lag begins to be so."""

    comparison: Comparison
    limit: int
    """Bytes, or nanoseconds."""
    is_time: bool
    of: str = ""

    def holds(self, lag: int) -> bool:
        """Whether a lag is so."""
        match self.comparison:
            case "<":
                return lag < self.limit
            case "<=":
                return lag <= self.limit
            case ">":
                return lag > self.limit
            case ">=":
                return lag >= self.limit
            case _:
                return lag == self.limit


Until = AtTime | AtEvent | AtLag


def parse_until(text: str, *, now_ns: int, start_ns: int, end_ns: int, zone: tzinfo | None = None) -> Until:
    """What `text` means for a replay that stands at `now_ns`; `zone` is that of clock times.

    Raises UntilError.
    """
    text = " ".join(text.split())
    if not text:
        raise UntilError("say where to: a time, +30s, 50%, event lost, lag > 10MB")
    low = text.lower()
    if low in {"begin", "start"}:
        return AtTime(start_ns)
    if low == "end":
        return AtTime(end_ns)
    if span := _SPAN.fullmatch(text):
        sign, amount, unit = span.groups()
        passed_ns = round(float(amount) * _NS[unit.lower()])
        return AtTime(now_ns + (passed_ns if sign == "+" else -passed_ns))
    if share := _SHARE.fullmatch(text):
        percent = float(share[1])
        if percent > 100:
            raise UntilError(f"{percent:g} % is more than there is")
        return AtTime(start_ns + round((end_ns - start_ns) * percent / 100))
    if clock := _CLOCK.fullmatch(text):
        return AtTime(_clock_ns(clock, start_ns, zone))
    of = ""
    if said := _OF.search(text):
        of, text = said[1], text[: said.start()].rstrip()
        low = text.lower()
    if low == "event" or low.startswith("event "):
        return AtEvent(_kind(low.removeprefix("event").strip()), of)
    if lag := _LAG.fullmatch(text):
        return _lag(lag, of)
    if low.startswith("lag"):
        raise UntilError(f"{text!r}: compare lag with bytes or a time, as in lag > 10MB or lag > 3s")
    raise UntilError(f"{text!r} is no place: say a time (12:03:04), +30s, 50%, event lost, lag > 10MB")


def _clock_ns(clock: re.Match[str], start_ns: int, zone: tzinfo | None) -> int:
    date, hour, minute, second, fraction = clock.groups()
    begin = datetime.fromtimestamp(start_ns // 10**9, tz=zone).astimezone(zone)
    try:
        day = datetime.strptime(date, "%Y-%m-%d").date() if date else begin.date()  # noqa: DTZ007 - a date
        wanted = datetime(
            day.year, day.month, day.day, int(hour), int(minute), int(second or 0), tzinfo=begin.tzinfo
        )
    except ValueError as error:
        raise UntilError(f"{clock[0]!r} is no time: {error}") from None
    at_ns = int(wanted.timestamp()) * 10**9 + round(float(fraction or 0) * 1e9)
    if date is None and at_ns < start_ns - start_ns % 10**9:
        # A replay that goes over midnight.
        at_ns = int((wanted + timedelta(days=1)).timestamp()) * 10**9 + round(float(fraction or 0) * 1e9)
    return at_ns


def _kind(name: str) -> EventKind | None:
    if not name:
        return None
    for kind in EventKind:
        if kind.value == name:
            return kind
    raise UntilError(f"no events are of kind {name!r}: use {', '.join(kind.value for kind in EventKind)}")


def _lag(lag: re.Match[str], of: str) -> AtLag:
    comparison, amount, unit = lag.groups()
    sign: Comparison = comparison  # type: ignore[assignment]
    if unit.lower() in _NS and unit != "M":
        return AtLag(sign, round(float(amount) * _NS[unit.lower()]), True, of)
    short = unit.upper().removesuffix("IB").removesuffix("B") if unit.upper() != "B" else "B"
    if short not in _BYTES:
        raise UntilError(f"{unit!r} is no unit: use B, KB, MB, GB, or ms, s, m, h")
    return AtLag(sign, round(float(amount) * _BYTES[short]), False, of)
