"""The HTML page of a report: sections of text, tables and figures in one file that fetches nothing.

Charts are SVG (`trioha_analysis.reports.charts`). Jinja2 escapes all text, pandas the cells of tables.
Colours are of `trioha.palette`: light or dark as the viewer prefers, and light on paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trioha import palette
from trioha.errors import StoreError
from trioha.severity import Severity
from trioha_analysis.reports.charts import PLOT_HEIGHT, TOP
from trioha_analysis.reports.session_summary import Point

ROWS_MAX: Final = 500
"""Rows of a table that are shown."""
_NULLABLE: Final = {
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.string(): pd.StringDtype(),
}
"""Types in which a null does not turn integers into floats."""

_COLORS: Final[Mapping[str, palette.Hue]] = {
    "text": palette.TEXT,
    "muted": palette.MUTED,
    "ground": palette.SURFACE,
    "panel": palette.PANEL,
    "border": palette.BORDER,
    "good": palette.GOOD,
    "notice": palette.NOTICE,
    "warning": palette.WARNING,
    "bad": palette.BAD,
}
"""Of style sheets, by name."""
_LOOKS: Final = {
    Severity.GOOD: ("good", "\N{BLACK CIRCLE}"),
    Severity.NOTICE: ("notice", "\N{WHITE CIRCLE}"),
    Severity.WARNING: ("warning", "\N{BLACK UP-POINTING TRIANGLE}"),
    Severity.CRITICAL: ("bad", "\N{BALLOT X}"),
}
"""Colour and glyph of a point."""


@frozen(eq=False)
class Section:
    """A part of a page: texts, then points, then a table, then figures."""

    heading: str | None = None
    subheading: str | None = None
    """Of a part of the section before it."""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    points: Sequence[Point] = ()
    table: Markup | None = None
    figures: Sequence[Markup] = ()
    """Charts as SVG."""


@frozen(eq=False)
class Page:
    """A report."""

    title: str
    """Of the browser's window."""
    heading: str
    sections: Sequence[Section]

    def html(self) -> str:
        """The page as text."""
        environment = Environment(
            loader=PackageLoader("trioha_analysis", "reports"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        return environment.get_template("page.html.j2").render(
            page=self,
            colors=_COLORS,
            looks=_LOOKS,
            top=TOP,
            plot_height=PLOT_HEIGHT,
        )

    def write(self, path: Path) -> None:
        """Write the page to a file. Raises StoreError."""
        try:
            path.write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"the report cannot be written: {error.strerror or error}", path=path) from error


def to_frame(table: pa.Table) -> pd.DataFrame:
    """A table in pandas, structs as columns `struct.field`."""
    frame: pd.DataFrame = table.flatten().to_pandas(types_mapper=_NULLABLE.get)
    return frame


def table_html(frame: pd.DataFrame, columns: Mapping[tuple[str, str], str], *, text_columns: int) -> Markup:
    """The first `ROWS_MAX` rows of `frame` as an HTML table.

    `columns`: the frame's column by group (empty without one) and heading; the first `text_columns` of them
    are aligned to the left.
    """
    shown = frame.head(ROWS_MAX)
    cells = pd.DataFrame(
        {heading: [_cell(name, value) for value in shown[name].tolist()] for heading, name in columns.items()}
    )
    with pd.option_context("display.max_colwidth", None):
        html = cells.to_html(index=False, border=0, justify="right", classes=f"text-{text_columns}")
    # pandas has escaped the cells.
    return Markup(html)  # noqa: S704


def _cell(name: str, value: Any) -> str:
    if pd.isna(value):
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if "Bytes" in name else f"{value:,.3f}"
    # Connection numbers are names.
    return f"{value:,}" if isinstance(value, int) and not name.lower().endswith("conn") else str(value)
