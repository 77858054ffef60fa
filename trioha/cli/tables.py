"""Tables of commands, as lists of their columns: title with unit, value of a row, alignment.

A value that is not known is `UNKNOWN`. Numbers are aligned right. A cell that is wider than its column is
folded: offsets and addresses are never cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from attrs import frozen
from rich.table import Table

from trioha.palette import BAD

UNKNOWN: Final = "-"

Row = TypeVar("Row")


@frozen
class Column(Generic[Row]):
    """A column of a table of `Row`s."""

    title: str
    """With the unit, if the values have one."""
    cell: Callable[[Row], str]
    """The text of a row's value."""
    is_number: bool = False
    """Whether it is aligned right."""


def text(title: str, value: Callable[[Row], str | None]) -> Column[Row]:
    """A column of texts; an empty one is not known."""
    return Column(title, lambda row: value(row) or UNKNOWN)


def number(title: str, value: Callable[[Row], int | None]) -> Column[Row]:
    """A column of whole numbers, with commas between thousands."""

    def cell(row: Row) -> str:
        found = value(row)
        return UNKNOWN if found is None else f"{found:,}"

    return Column(title, cell, is_number=True)


def seconds(title: str, value_ms: Callable[[Row], int | None]) -> Column[Row]:
    """A column of times in seconds, of values in milliseconds; the unit is added to the title."""

    def cell(row: Row) -> str:
        found_ms = value_ms(row)
        return UNKNOWN if found_ms is None else f"{found_ms / 1000:.1f}"

    return Column(f"{title} s", cell, is_number=True)


def yes_no(title: str, value: Callable[[Row], bool]) -> Column[Row]:
    """A column of `yes`, and of `NO` where something is wrong."""
    return Column(title, lambda row: "yes" if value(row) else "NO")


def table(
    title: str,
    columns: Sequence[Column[Row]],
    rows: Iterable[Row],
    *,
    is_bad: Callable[[Row], object] = lambda _row: False,
) -> Table:
    """A table with a line for each of `rows`, in red where `is_bad`."""
    drawn = Table(title=title, title_justify="left")
    for column in columns:
        drawn.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        drawn.add_row(*(column.cell(row) for column in columns), style=BAD.terminal if is_bad(row) else None)
    return drawn
