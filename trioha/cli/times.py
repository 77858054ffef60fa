"""Times on the command line: as a calendar shows them, or as milliseconds since 1970."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from trioha.errors import ConfigError
from trioha.numbers import NATURAL64, parse_int

TIME_HINT: Final = "a time as 2026-01-31T12:00:00 (local, or with Z or an offset), or milliseconds since 1970"


def parse_time_ms(text: str, *, key: str, hint: str = f"write {TIME_HINT}") -> int:
    """Milliseconds since 1970, not below 0; a time without a zone is local.

    Raises ConfigError about the option `key`.
    """
    try:
        if text.isdecimal():
            return parse_int(text, NATURAL64)
        return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"{text[:80]!r} is not a time", key=key, hint=hint) from None


def time_text(time_ms: int) -> str:
    """A time of day with its date and the local zone's offset; one beyond the calendar in milliseconds."""
    try:
        return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
