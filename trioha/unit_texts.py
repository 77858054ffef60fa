"""Texts of sizes and durations in one unit, of bounded width: for verdicts, events and figures."""

from __future__ import annotations

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_DECIMAL_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_bytes(count: float, *, decimal: bool = False) -> str:
    """A number of bytes in three digits: `0 B`, `1.21 KiB`, `118 MiB`, or `1.24 kB` if `decimal`.

    May be negative. A binary text has 9 characters at most.
    """
    units, step = (_DECIMAL_UNITS, 1000) if decimal else (_BINARY_UNITS, 1024)
    sign, size = ("-", -count) if count < 0 else ("", count)
    unit = 0
    # 999.5 would be rounded to four digits, so it is written in the next unit.
    while size >= 999.5 and unit < len(units) - 1:
        size /= step
        unit += 1
    if unit == 0:
        return f"{sign}{size:.0f} B"
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{sign}{size:.{digits}f} {units[unit]}"


def counted(number: int, word: str) -> str:
    """A number of things: `1 replica`, `2,000 replicas`. `word` is what one of them is called."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def format_elapsed(duration_s: float) -> str:
    """A duration in one unit, for the texts of events and verdicts: `0.4 s`, `12 s`, `3 min`, `2 h`."""
    if duration_s < 9.95:
        return f"{duration_s:.1f} s"
    if duration_s < 120:
        return f"{duration_s:.0f} s"
    return f"{duration_s / 60:.0f} min" if duration_s < 7200 else f"{duration_s / 3600:.0f} h"
