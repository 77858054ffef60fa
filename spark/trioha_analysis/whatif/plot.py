"""The grid as a picture, recorded beside predicted: one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any, Final

from plotly import graph_objects, offline

from trioha.errors import StoreError
from trioha_analysis.whatif.answer import Answer
from trioha_analysis.whatif.figures import Figures

_STYLE: Final = (
    "body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; margin: 2rem auto; max-width: 1200px; }"
)
_BARS: Final = (("p50", "#2f6fde"), ("p90", "#d9a50f"), ("p99", "#d9480f"))


def write_plot(answer: Answer, path: Path) -> None:
    """Write the picture of `answer` to the file `path`. Raises StoreError if it cannot be written."""
    try:
        path.write_text(plot_html(answer), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror or error}", path=path) from error


def plot_html(answer: Answer) -> str:
    """Put latency and lag of each point, as one HTML page."""
    name = escape(answer.model.session.path.resolve().name)
    rows = [
        ("recorded", answer.model.recorded),
        ("model, as recorded", answer.unchanged),
        *((one.point.label, one.figures) for one in answer.predictions),
    ]
    latency = _bars("Put latency", "ms", [(label, found.latency_ms) for label, found in rows])
    lag = _bars("Lag of the worst slave", "s", [(label, found.lag_seconds) for label, found in rows])
    figures = (latency, lag, _ends(rows))
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f"<title>trioha what-if: {name}</title><style>{_STYLE}</style>",
            f'<script type="text/javascript">{offline.get_plotlyjs()}</script></head><body>',
            f"<h1>What if: {name}</h1>",
            *(figure.to_html(full_html=False, include_plotlyjs=False) for figure in figures),
            "</body></html>\n",
        ]
    )


def _bars(title: str, unit: str, rows: list[tuple[str, dict[str, float] | None]]) -> Any:
    figure = _figure(title, unit)
    for name, color in _BARS:
        known = [(label, found[name]) for label, found in rows if found is not None]
        figure.add_bar(
            x=[label for label, _ in known], y=[value for _, value in known], name=name, marker_color=color
        )
    return figure


def _ends(rows: list[tuple[str, Figures]]) -> Any:
    figure = _figure("How puts end", "% of puts")
    ends = [(label, found.statuses, sum(found.statuses.values()) or 1) for label, found in rows]
    for status in sorted({status for _, statuses, _ in ends for status in statuses}):
        figure.add_bar(
            x=[label for label, _, _ in ends],
            y=[100 * statuses.get(status, 0) / count for _, statuses, count in ends],
            name=status,
        )
    figure.update_layout(barmode="stack")
    return figure


def _figure(title: str, unit: str) -> Any:
    return graph_objects.Figure(
        layout={"title": title, "yaxis": {"title": unit}, "template": "plotly_white", "height": 420}
    )
