"""Texts on the screen: names of bounded number, and numbers as people read them.

Every text of a number has a bounded width.
"""

from __future__ import annotations

from typing import Final

from trioha.outside_text import clean
from trioha.unit_texts import format_bytes

OTHER: Final = "other"
"""Name that counts all names beyond the maximum."""


class Names:
    """The names that one node uses for one kind of count; names beyond `names_max` become `OTHER`.

    `known` are names that are always kept: those of the protocol.
    """

    def __init__(self, *, known: frozenset[str] = frozenset(), names_max: int = 32) -> None:
        self._known = known
        self._names_max = names_max
        self._seen: set[str] = set()

    def of(self, name: str) -> str:
        """The name under which `name` is counted, safe to show."""
        shown = clean(name)
        if shown in self._known or shown in self._seen:
            return shown
        if len(self._seen) >= self._names_max:
            return OTHER
        self._seen.add(shown)
        return shown


def host_of(address: str) -> str:
    """The host of `host:port`."""
    return address.rpartition(":")[0]


NOTHING = "\N{EN DASH}"
"""Text of a figure that is not known."""


def format_offset(offset: int | None) -> str:
    """An offset in full, its digits in groups: `1,234,567`."""
    return NOTHING if offset is None else f"{offset:,}"


def format_scale(count: int) -> str:
    """A round number of bytes for an axis: `1.5 MiB`, `24 MiB`."""
    number, _, unit = format_bytes(count).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units: `0s`, `42s`, `3m 05s`, `2h 10m`, `4d 01h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def format_age(seconds: float) -> str:
    """A duration in its largest unit, for narrow columns: `42s`, `3m`, `2h`, `4d`."""
    return format_duration(seconds).partition(" ")[0]


def format_seconds(duration_s: float | None) -> str:
    """A lag or another short time, for a column of figures: `0 s`, `20 ms`, `4.1 s`, `1m 05s`."""
    if duration_s is None:
        return NOTHING
    if duration_s <= 0:
        return "0 s"
    if duration_s < 0.1:
        return f"{max(1.0, duration_s * 1000):.0f} ms"
    if duration_s < 99.95:
        return f"{duration_s:.1f} s"
    return format_duration(duration_s)


def format_latency(duration_ms: float) -> str:
    """A latency: `0.21 ms`, `3.4 ms`, `120 ms`, `2.1 s`."""
    if duration_ms < 9.995:
        return f"{duration_ms:.2f} ms"
    if duration_ms < 99.95:
        return f"{duration_ms:.1f} ms"
    return f"{duration_ms:.0f} ms" if duration_ms < 1000 else format_seconds(duration_ms / 1000)


def format_count(number: float | None) -> str:
    """A number of things: `0`, `12`, `1,204`."""
    return NOTHING if number is None else f"{number:,.0f}"


def format_span(seconds: float) -> str:
    """A round span of time: `30 s`, `2 min`."""
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"
