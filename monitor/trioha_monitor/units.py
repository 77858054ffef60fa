"""Numbers as people read them. Every text here has a bounded width."""

from __future__ import annotations

NOTHING = "\N{EN DASH}"
"""What stands where nothing is known."""
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_offset(offset: int | None) -> str:
    """An offset in full, its digits in groups: `1,234,567`."""
    return NOTHING if offset is None else f"{offset:,}"


def format_bytes(count: float) -> str:
    """A number of bytes in binary units and three digits: `0 B`, `1.21 KiB`, `118 MiB`; may be negative."""
    sign, size = ("-", -count) if count < 0 else ("", count)
    unit = 0
    # 999.5 would be written with four digits, so it belongs to the next unit already.
    while size >= 999.5 and unit < len(_BYTE_UNITS) - 1:
        size /= 1024
        unit += 1
    if unit == 0:
        return f"{sign}{size:.0f} B"
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{sign}{size:.{digits}f} {_BYTE_UNITS[unit]}"


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
    """A duration in its largest unit alone, where there is no room for two: `42s`, `3m`, `2h`, `4d`."""
    return format_duration(seconds).partition(" ")[0]


def format_milliseconds(milliseconds: int) -> str:
    """An age: `3 ms`, `1.2 s`, `2m 05s`."""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return format_duration(milliseconds / 1000)


def format_span(seconds: float) -> str:
    """A round stretch of time: `30 s`, `2 min`."""
    return f"{seconds:g} s" if seconds < 60 else f"{seconds / 60:g} min"
