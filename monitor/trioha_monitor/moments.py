"""Moments of a replay as people type and read them. Pure."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from trioha.errors import TriohaError

HINT = "12:03:05 wall clock · +90s, -5m from here · 0:03:05 from the start · 25%"
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}):(\d{2})(?:\.(\d{1,3}))?")
_RELATIVE = re.compile(r"([+-])(\d+(?:\.\d+)?)(ms|s|m|h)?")
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class MomentError(TriohaError):
    """What was typed names no moment."""


def parse_moment(text: str, *, now_ms: int, start_ms: int, end_ms: int) -> int:
    """The moment that `text` names, on the axis of the three others (milliseconds since 1970).

    `+90s`, `-5m`, `+200ms`, `+2h`: from `now_ms`. `25%`: of the way from start to end. `12:03:05.5`: that
    time of day, on the day of the session, where the session holds it; else so long after the start. Raises
    MomentError.
    """
    text = text.strip()
    if match := _RELATIVE.fullmatch(text):
        sign, number, unit = match.groups()
        distance_ms = round(float(number) * _UNIT_MS[unit or "s"])
        return now_ms + (distance_ms if sign == "+" else -distance_ms)
    if match := _PERCENT.fullmatch(text):
        return start_ms + round((end_ms - start_ms) * min(100.0, float(match[1])) / 100)
    if match := _CLOCK.fullmatch(text):
        hours, minutes, seconds = (int(part) for part in match.groups()[:3])
        fraction_ms = int((match[4] or "0").ljust(3, "0"))
        since_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms
        day = (
            datetime.fromtimestamp(start_ms / 1000)
            .astimezone()
            .replace(hour=0, minute=0, second=0, microsecond=0)
        )
        for days in range(2):
            at_ms = round((day + timedelta(days=days)).timestamp() * 1000) + since_ms
            if start_ms - 1000 <= at_ms <= end_ms + 1000:
                return at_ms
        if since_ms <= end_ms - start_ms:
            return start_ms + since_ms
        raise MomentError(f"{text} is not in the session")
    raise MomentError(f"{text or 'nothing'} names no moment: {HINT}")
