"""The report of a what-if: recorded beside predicted."""

from __future__ import annotations

from collections.abc import Sequence

from plotly import graph_objects

from trioha.palette import PERCENTILES, put_status
from trioha_analysis.reports.page import Page, Section, label, new_figure
from trioha_analysis.whatif.answer import Answer
from trioha_analysis.whatif.figures import Figures


def what_if_report(answer: Answer) -> Page:
    """Put latency, lag and put status of each point, beside the recorded ones."""
    title = f"What if: {answer.model.session.path.resolve().name}"
    rows = [
        ("recorded", answer.model.recorded),
        ("model, as recorded", answer.as_recorded),
        *((label(one.point.label), one.figures) for one in answer.predictions),
    ]
    figures = [
        _percentile_bars("Put latency", "ms", [(name, found.latency_ms) for name, found in rows]),
        _percentile_bars("Lag of the worst slave", "s", [(name, found.lag_seconds) for name, found in rows]),
        _status_bars(rows),
    ]
    return Page(f"trioha {title}", title, [Section(figures=figures)])


def _percentile_bars(
    title: str, unit: str, rows: Sequence[tuple[str, dict[str, float] | None]]
) -> graph_objects.Figure:
    figure = new_figure(title, y_title=unit)
    known = [(name, found) for name, found in rows if found is not None]
    for percentile, hue in PERCENTILES.items():
        figure.add_bar(
            x=[name for name, _ in known],
            y=[found[percentile] for _, found in known],
            name=percentile,
            marker_color=hue.fill,
        )
    return figure


def _status_bars(rows: Sequence[tuple[str, Figures]]) -> graph_objects.Figure:
    figure = new_figure("Put status", y_title="% of puts", barmode="stack")
    for status in sorted({status for _, found in rows for status in found.statuses}):
        figure.add_bar(
            x=[name for name, _ in rows],
            y=[
                100 * found.statuses.get(status, 0) / (sum(found.statuses.values()) or 1) for _, found in rows
            ],
            name=status,
            marker_color=put_status(status).fill,
        )
    return figure
