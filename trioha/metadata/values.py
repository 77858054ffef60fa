"""Reading JSON values of metadata: one reader for each type, ValueError for every other value."""

# ruff: noqa: TRY004 - a value of another type is a bad value of the file, not a caller's mistake

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from trioha.numbers import I64, NATURAL64, Range, parse_int

T = TypeVar("T")


def members(value: object, what: str) -> dict[str, object]:
    """`value` as an object with text keys."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} is not an object")
    return value


def text(value: object, what: str) -> str:
    """`value` as a text."""
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a text")
    return value


def flag(value: object, what: str) -> bool:
    """`value` as true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} is neither true nor false")
    return value


def number(within: Range = NATURAL64) -> Callable[[object, str], int]:
    """A reader of whole numbers in a range."""

    def read(value: object, what: str) -> int:
        try:
            return parse_int(value, within)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from None

    return read


natural = number()
signed = number(I64)


def pop_value(fields: dict[str, object], name: str, read: Callable[[object, str], T], default: T) -> T:
    """Remove a member and return its value; `default` if it is missing or null."""
    value = fields.pop(name, None)
    return default if value is None else read(value, name)


def int_map(value: object, what: str) -> dict[int, int]:
    """`value` as a map from natural numbers to whole ones; its keys may be texts."""
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not an object")
    return {natural(key, what): signed(member, what) for key, member in value.items()}


def sorted_members(fields: Mapping[str, object]) -> dict[str, object]:
    """The members of a bean in the order in which fastjson writes them."""
    return dict(sorted(fields.items()))
