"""The HTML page of a report: sections of text, tables and figures in one file that fetches nothing.

The file contains plotly.js (4 to 5 MB). Jinja2 escapes all text, pandas the cells of tables; texts inside of
figures, where Plotly knows some tags, are escaped by `label`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from attrs import frozen
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly import graph_objects, offline

from trioha.errors import StoreError

ROWS_MAX: Final = 500
"""Rows of a table that are shown."""
_NULLABLE: Final = {
    pa.int64(): pd.Int64Dtype(),
    pa.float64(): pd.Float64Dtype(),
    pa.string(): pd.StringDtype(),
}
"""Types in which a null does not turn integers into floats."""


@frozen(eq=False)
class Section:
    """A part of a page: texts, then a table, then figures."""

    heading: str | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    table: Markup | None = None
    figures: Sequence[graph_objects.Figure] = ()


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
        environment.filters["figure_html"] = _figure_html
        return environment.get_template("page.html.j2").render(
            page=self,
            # Code of the library, not text of a recording.
            plotly_js=Markup(offline.get_plotlyjs()),  # noqa: S704
        )

    def write(self, path: Path) -> None:
        """Write the page to a file. Raises StoreError."""
        try:
            path.write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"the report cannot be written: {error.strerror or error}", path=path) from error


def _figure_html(figure: graph_objects.Figure) -> Markup:
    # Plotly writes its JSON without < and >.
    html = figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})
    return Markup(html)  # noqa: S704


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


def label(text: str) -> str:
    """Text of a figure, in which Plotly interprets no tags."""
    return escape(text)


def new_figure(title: str, *, x_title: str = "", y_title: str = "", **layout: Any) -> graph_objects.Figure:
    """An empty figure in the reports' style."""
    figure = graph_objects.Figure(
        layout={
            "title": title,
            "template": "plotly_white",
            "height": 420,
            "xaxis": {"title": x_title},
            "yaxis": {"title": y_title},
            "margin": {"l": 70, "r": 20, "t": 50, "b": 50},
            "legend": {"orientation": "h", "y": -0.2},
        }
    )
    return figure.update_layout(layout)
