"""The one reader of numbers that come from outside: header fields, JSON values, settings, command lines.

Python's `int` accepts more than any protocol means: underscores, blanks, a plus sign, digits of other
alphabets, and texts of any length. `parse_int` accepts ASCII digits with at most one minus sign before them,
in a range that its caller names, and raises `ValueError` and nothing else.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DIGITS_MAX: Final = 20
"""No number of 64 bits has more."""
_DIGITS: Final = re.compile(rf"-?[0-9]{{1,{DIGITS_MAX}}}")
_SHOWN_MAX: Final = 40


class Range(NamedTuple):
    """Whole numbers from `low` to `high`, both included."""

    low: int
    high: int


I32: Final = Range(-(2**31), 2**31 - 1)
"""Java's `int`."""
I64: Final = Range(-(2**63), 2**63 - 1)
"""Java's `long`."""
NATURAL32: Final = Range(0, I32.high)
NATURAL64: Final = Range(0, I64.high)
PORT: Final = Range(0, 65535)


def parse_int(value: object, within: Range) -> int:
    """`value` as a whole number: an `int` (no `bool`), or a `str` of ASCII digits with an optional minus.

    Raises ValueError, with a short form of the value and the range, for everything else.
    """
    # Most are a few digits; to match them with the expression costs as much as all the rest.
    if type(value) is str and (
        (value.isdigit() and value.isascii() and len(value) <= DIGITS_MAX) or _DIGITS.fullmatch(value)
    ):
        number = int(value)
    elif type(value) is int:
        number = value
    else:
        raise ValueError(f"{_shown(value)} is not a whole number")
    if not within.low <= number <= within.high:
        raise ValueError(f"{_shown(value)} is not within {within.low} to {within.high}")
    return number


def _shown(value: object) -> str:
    """A bounded form of a value of any size: an int of a million digits must not be printed."""
    if isinstance(value, str):
        return repr(value[:_SHOWN_MAX])
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    return type(value).__name__
