"""Times in options of commands."""

from __future__ import annotations

from trioha.errors import ConfigError
from trioha.times import TIME_HINT, MomentError, parse_time_ms


def time_option_ms(text: str, *, key: str, hint: str = f"write {TIME_HINT}") -> int:
    """As `parse_time_ms`. Raises ConfigError about the option `key`."""
    try:
        return parse_time_ms(text)
    except MomentError as error:
        raise ConfigError(str(error), key=key, hint=hint) from None
