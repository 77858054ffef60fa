"""The report of a what-if: the recording and what the model says of it, then predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

import numpy as np
import pandas as pd
from markupsafe import Markup

from trioha.palette import PERCENTILES, put_status
from trioha_analysis.reports.charts import RIGHT, TOP, WIDTH, Scale, figure_html, legend_item
from trioha_analysis.reports.page import Page, Section, table_html
from trioha_analysis.whatif.answer import percent, rows_of

_Row = tuple[str, Mapping[str, Any]]


def what_if_report(document: Mapping[str, Any]) -> Page:
    """The page of a `document` of `trioha_analysis.whatif.answer`, which decides what is shown."""
    title = f"What if: {document['session']}"
    model, rows = document["model"], rows_of(document)
    warnings = []
    if document["doubt"] is not None:
        more = (
            "the predictions below are not to be relied on"
            if document["points"]
            else "no prediction is shown"
        )
        warnings = [f"{document['doubt']}: {more}."]
    figures = [
        _percentile_bars("Put latency", "ms", "latencyMs", rows),
        _percentile_bars("Lag of the worst slave", "s", "lagSeconds", rows),
        _status_bars(rows),
    ]
    notes = [
        "First what was recorded, and what the model says of it. Ranges: from single parts of the recording.",
        *model["remarks"],
    ]
    table = table_html(pd.DataFrame([_cells(row, model["error"]) for row in rows]), _COLUMNS, text_columns=1)
    return Page(
        f"trioha {title}",
        title,
        [Section(warnings=warnings, notes=notes, table=table), Section(figures=figures)],
    )


_COLUMNS: Final = {
    ("", ""): "name",
    ("", "puts/s"): "puts/s",
    **{("latency, ms", name): f"latency {name}" for name in PERCENTILES},
    **{("range of the parts, ms", name): f"range {name}" for name in PERCENTILES},
    ("lag", "p99, s"): "lag s",
    ("", "not PUT_OK"): "failed",
}
"""The cell of `_cells` by group and heading."""


def _cells(row: _Row, error: Mapping[str, float | None]) -> dict[str, str]:
    name, found = row
    latency, ranges, lag = found["latencyMs"], found.get("latencyRangeMs"), found["lagSeconds"]
    ended = sum(found["statuses"].values())
    cells = {
        "name": name,
        "puts/s": f"{found['putsPerSecond']:,.0f}",
        "lag s": "-" if lag is None else f"{lag['p99']:,.3f}",
        "failed": f"{1 - found['statuses'].get('PUT_OK', 0) / ended:.1%}" if ended else "-",
    }
    for part in PERCENTILES:
        off = error[part] if name == "model, as recorded" else None
        shown = "" if off is None else f" ({percent(off)})"
        cells[f"latency {part}"] = "-" if latency is None else f"{latency[part]:,.2f}{shown}"
        cells[f"range {part}"] = "-" if ranges is None else " to ".join(f"{end:,.2f}" for end in ranges[part])
    return cells


ROWS_MAX: Final = 40
"""Rows of a chart; the table has all."""
_NAME, _BAR, _GAP = 18, 8, 12
"""Heights of a row's name, of a bar, and of the space after a row."""


def _percentile_bars(title: str, unit: str, key: str, rows: Sequence[_Row]) -> Markup:
    """A row for each point, with a bar for each percentile and a line for its range."""
    known = [(name, found) for name, found in rows if found[key] is not None][:ROWS_MAX]
    drawn = [
        (name, percentile, found[key][percentile], _range(found, key, percentile))
        for name, found in known
        for percentile in PERCENTILES
    ]
    scale = Scale.of(np.array([high for *_, (_, high) in drawn]), unit)
    height = len(known) * (_NAME + len(PERCENTILES) * _BAR + _GAP)
    body, y = [_axis(scale, height)], float(TOP)
    for place, (name, percentile, value, (low, high)) in enumerate(drawn):
        if place % len(PERCENTILES) == 0:
            y = TOP + place // len(PERCENTILES) * (_NAME + len(PERCENTILES) * _BAR + _GAP)
            body.append(f'<text x="{_LEFT}" y="{y + 13}">{escape(name)}</text>')
            y += _NAME
        end, low_x, high_x = (_x(scale, one) for one in (value, low, high))
        body.append(_bar(_LEFT, end, y, PERCENTILES[percentile].fill, f"{percentile} {value:,.4g} {unit}"))
        if high > low:
            middle = y + _BAR / 2
            body.append(
                f'<path class="range" style="stroke:var(--text)" d="M{low_x:.1f} {middle}H{high_x:.1f}'
                f'M{low_x:.1f} {y + 1}v{_BAR - 2}M{high_x:.1f} {y + 1}v{_BAR - 2}"/>'
            )
        y += _BAR
    legend = [legend_item(name, f"background:{hue.fill}") for name, hue in PERCENTILES.items()]
    return figure_html(
        f"{title} ({unit})",
        "".join(body),
        height=height,
        legend=legend,
        note=_note(rows, "Lines are ranges." if key == "latencyMs" else ""),
    )


def _range(found: Mapping[str, Any], key: str, percentile: str) -> tuple[float, float]:
    """The range beside a percentile of put latency; no other figure has one."""
    ranges = found.get("latencyRangeMs") if key == "latencyMs" else None
    value = found[key][percentile]
    low, high = (value, value) if ranges is None else ranges[percentile]
    return min(low, value), max(high, value)


def _status_bars(rows: Sequence[_Row]) -> Markup:
    shown = rows[:ROWS_MAX]
    scale = Scale(0.0, 100.0, "%")
    step = _NAME + 2 * _BAR + _GAP
    body = [_axis(scale, len(shown) * step)]
    for place, (name, found) in enumerate(shown):
        y, before, ended = TOP + place * step, 0.0, sum(found["statuses"].values())
        body.append(f'<text x="{_LEFT}" y="{y + 13}">{escape(name)}</text>')
        for status, count in sorted(found["statuses"].items()):
            after = before + 100 * count / ended
            text = f"{status} {count:,} ({count / ended:.1%})"
            hue = put_status(status)
            body.append(_bar(_x(scale, before), _x(scale, after), y + _NAME, hue.fill, text, height=2 * _BAR))
            before = after
    names = sorted({status for _, found in shown for status in found["statuses"]})
    return figure_html(
        "Put status (% of puts)",
        "".join(body),
        height=len(shown) * step,
        legend=[legend_item(name, f"background:{put_status(name).fill}") for name in names],
        note=_note(rows, ""),
    )


_LEFT: Final = 8


def _x(scale: Scale, value: float) -> float:
    return _LEFT + (value - scale.low) / (scale.high - scale.low) * (WIDTH - RIGHT - _LEFT)


def _axis(scale: Scale, height: int) -> str:
    places = [(tick, _x(scale, tick)) for tick in scale.ticks()]
    return "".join(
        f'<path class="grid" d="M{x:.1f} {TOP}v{height}"/>'
        f'<text x="{x:.1f}" y="{TOP + height + 20}" text-anchor="{"start" if x == _LEFT else "middle"}">'
        f"{escape(scale.text(tick))}</text>"
        for tick, x in places
    )


def _bar(begin: float, end: float, y: float, fill: str, text: str, *, height: int = _BAR) -> str:
    width = max(end - begin, 1.0)
    return (
        f'<rect style="fill:{fill}" x="{begin:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height - 1}">'
        f"<title>{escape(text)}</title></rect>"
    )


def _note(rows: Sequence[_Row], text: str) -> str:
    more = f"The first {ROWS_MAX} of {len(rows)} rows." if len(rows) > ROWS_MAX else ""
    return " ".join(filter(None, (text, more)))
