"""Where to go: the small language of the dialogs "jump to" and "as fast as possible until".

Moments are those of `trioha.recording.times`, as `trioha replay --at` reads them: a clock time is local
unless a `Z` or an offset is written after it, and spans (`+90s`) count from the present position. Beyond
them:

| text | meaning |
|---|---|
| `event`, `event lost`, `event puts` | the next event, or the next one of a kind |
| `lag > 10MB`, `lag <= 0` | the lag of any replica in bytes crosses that (KB, MB, GB: powers of 1024) |
| `lag > 3s` | the age of the oldest byte that a replica lacks does |
| `... of TEXT` | behind event and lag: only of replicas whose address, or name, contains TEXT |
"""

from __future__ import annotations

import re
from datetime import tzinfo
from typing import Literal

from attrs import frozen

from trioha.errors import TriohaError
from trioha.recording.times import UNITS_NS, parse_moment
from trioha_monitor.view import EventKind

_BYTES = {"": 1, "B": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_LAG = re.compile(r"lag\s*(<=|>=|<|>|=)\s*([0-9]{1,15}(?:\.[0-9]{0,9})?)\s*([a-z]*)", re.IGNORECASE)
_OF = re.compile(r"(?:^|\s)of\s+(\S+)\s*$", re.IGNORECASE)
Comparison = Literal["<", "<=", ">", ">=", "="]


class SeekError(TriohaError):
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


def parse_seek(text: str, *, now_ns: int, start_ns: int, end_ns: int, zone: tzinfo | None = None) -> Until:
    """What `text` means for a replay that stands at `now_ns`; `zone` is that of clock times.

    Raises UntilError, or MomentError for a time that is none.
    """
    text = " ".join(text.split())
    if not text:
        raise SeekError("say where to: a local time, +30s, 50%, event lost, lag > 10MB")
    low = text.lower()
    at_ns = parse_moment(text, start_ns=start_ns, end_ns=end_ns, now_ns=now_ns, zone=zone)
    if at_ns is not None:
        return AtTime(at_ns)
    of = ""
    if said := _OF.search(text):
        of, text = said[1], text[: said.start()].rstrip()
        low = text.lower()
    if low == "event" or low.startswith("event "):
        return AtEvent(_kind(low.removeprefix("event").strip()), of)
    if lag := _LAG.fullmatch(text):
        return _lag(lag, of)
    if low.startswith("lag"):
        raise SeekError(f"{text!r}: compare lag with bytes or a time, as in lag > 10MB or lag > 3s")
    raise SeekError(
        f"{text!r} is no place: say a time (12:03:04, 12:03:04Z), +30s, 50%, event lost, lag > 10MB"
    )


def _kind(name: str) -> EventKind | None:
    if not name:
        return None
    for kind in EventKind:
        if kind.value == name:
            return kind
    raise SeekError(f"no events are of kind {name!r}: use {', '.join(kind.value for kind in EventKind)}")


def _lag(lag: re.Match[str], of: str) -> AtLag:
    comparison, amount, unit = lag.groups()
    sign: Comparison = comparison  # type: ignore[assignment]
    if unit.lower() in UNITS_NS and unit != "M":
        return AtLag(sign, round(float(amount) * UNITS_NS[unit.lower()]), True, of)
    short = unit.upper().removesuffix("IB").removesuffix("B") if unit.upper() != "B" else "B"
    if short not in _BYTES:
        raise SeekError(f"{unit!r} is no unit: use B, KB, MB, GB, or ms, s, m, h")
    return AtLag(sign, round(float(amount) * _BYTES[short]), False, of)
