"""The report of a replay: one HTML file that needs nothing else, to be looked at in a browser.

The file carries plotly.js itself (4 to 5 MB) and fetches nothing. Curves have at most `CURVE_STEPS` points
and only the busiest connections get one (`CONNECTIONS_MAX`): its size does not grow with the recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from plotly import graph_objects, offline

from trioha.errors import StoreError
from trioha.recording.clocks import Link
from trioha.recording.events import PutStatus, code_name
from trioha.recording.histogram import Histogram
from trioha.recording.probes import probes_line
from trioha.recording.state_arrays import first_covering, lag_bytes
from trioha.recording.time_series import TimeSeries
from trioha.recording.times import offset_ns, zone_text
from trioha_analysis.causes import ACK, CAUSES
from trioha_analysis.document import ack_mostly
from trioha_analysis.replay_result import CURVE_STEPS, ConnectionReplay, ReplayResult, SessionReplay
from trioha_analysis.report_tables import connections_html, gaps_html, links_html, verdict_html

CONNECTIONS_MAX: Final = 12
"""Connections of a session that get curves: those that moved the most bytes."""
QUARTER_NS: Final = 900 * 10**9
"""A clock's offset from UTC is the same for a quarter of an hour."""
HISTOGRAM_BARS: Final = 60
HEAT_PIECES: Final = 160
"""Pieces that the log is cut into for its strip."""

_COLORS: Final = {
    "max": "#7a869a",
    "sent": "#2f6fde",
    "ack": "#1a9e6b",
    "received": "#2f6fde",
    "reported": "#1a9e6b",
    "lag": "#d9480f",
}
_CAUSE_COLORS: Final = {
    "nothing": "#b8c1ce",
    "send": "#2f6fde",
    "ack": "#1a9e6b",
    "flush": "#d9a50f",
    "no slave": "#b42318",
    "unknown": "#7a869a",
}
_STATUS_COLORS: Final = {"PUT_OK": "#1a9e6b"}
_NAMES: Final = {
    "max": "max offset",
    "sent": "sent",
    "ack": "acknowledged",
    "received": "received",
    "reported": "reported",
}
_STYLE: Final = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2430; }
body { margin: 2rem auto; max-width: 1200px; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { margin-top: 2.5rem; border-top: 1px solid #d8dee8; padding-top: 1.5rem; }
p.note { color: #5b6676; max-width: 75ch; } .bad { color: #b42318; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #e6eaf0; white-space: nowrap; }
th { color: #5b6676; font-weight: 600; } td.text, th.text { text-align: left; }
"""


def write_report(
    result: ReplayResult, path: Path, links: Sequence[Link] = (), *, zone: tzinfo | None = None
) -> None:
    """Write the report of `result` to the file `path`, with times of `zone` (None: the system's).

    Raises StoreError if it cannot be written.
    """
    try:
        path.write_text(report_html(result, links, zone=zone), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"the report cannot be written: {error.strerror or error}", path=path) from error


def report_html(result: ReplayResult, links: Sequence[Link] = (), *, zone: tzinfo | None = None) -> str:
    """The report as one HTML page; `links` as `trioha.recording.clocks.links` finds them, times of `zone`."""
    names = ", ".join(replay.name for replay in result.sessions)
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>trioha replay: {escape(names)}</title><style>{_STYLE}</style>",
            f'<script type="text/javascript">{offline.get_plotlyjs()}</script></head><body>',
            "<h1>Replay of recorded sessions</h1>",
            '<p class="note">Lag is the master&#8217;s max offset minus the slave&#8217;s ack, ',
            "weighted by time; ",
            "while a slave is behind, the time until its next event counts with the lag just before that. ",
            "Ack latency is the time from a frame&#8217;s transfer to the first ack at or beyond its end. ",
            f"Times are {escape(_zone_text(result, zone))}.</p>",
            verdict_html(result, zone),
            connections_html(result),
            gaps_html(result, zone),
            links_html(links),
            *(_session(replay, links, zone) for replay in result.sessions),
            "</body></html>\n",
        ]
    )


def _zone_text(result: ReplayResult, zone: tzinfo | None) -> str:
    return zone_text(
        (
            replay.session.wall_of(ts_ns)
            for replay in result.sessions
            for ts_ns in (replay.node.first_ts_ns, replay.node.last_ts_ns)
            if ts_ns is not None
        ),
        zone,
    )


def _session(replay: SessionReplay, links: Sequence[Link], zone: tzinfo | None) -> str:
    identity, node = replay.session.identity, replay.node
    shown = sorted(replay.connections, key=_moved_bytes, reverse=True)[:CONNECTIONS_MAX]
    shown.sort(key=lambda connection: connection.figures.conn)
    parts = [
        f"<h2>{escape(identity.broker_name)} {identity.broker_id}, {escape(identity.role)}</h2>",
        f'<p class="note">Session {escape(replay.name)}: {node.events:,} events, {node.puts:,} puts, ',
        f"{len(replay.connections)} connections, {replay.reconnects} reconnects.</p>",
    ]
    if replay.probes:
        parts.append(f'<p class="note">{escape(probes_line(replay.probes))}.</p>')
    if node.dropped:
        parts.append(f'<p class="bad">{node.dropped:,} events were dropped while recording.</p>')
    parts.extend(
        f'<p class="bad">Damage: {escape(damage.path)} at byte {damage.position}: {escape(damage.reason)}</p>'
        for damage in replay.damage[:20]
    )
    if len(shown) < len(replay.connections):
        parts.append(f'<p class="note">Curves of the {len(shown)} busiest connections.</p>')
    figures = [
        _offsets_figure(replay, shown, zone),
        _lag_figure(replay, shown, zone),
        _latency_figure(shown),
        _waits_figure(replay),
        _causes_figure(replay, links),
        _heat_figure(replay, shown),
    ]
    parts.extend(_html(figure) for figure in figures if figure is not None)
    return "".join(parts)


def _moved_bytes(connection: ConnectionReplay) -> int:
    return connection.figures.body_bytes


def _offsets_figure(replay: SessionReplay, shown: Sequence[ConnectionReplay], zone: tzinfo | None) -> Any:
    figure = _figure("Offsets over time", "bytes")
    for connection in shown:
        for name, label in _NAMES.items():
            series = connection.figures.series[name]
            if len(series.steps):
                _add_curve(
                    figure,
                    _times(replay, _step_times(replay, _risen(replay, series)), zone),
                    _risen(replay, series),
                    name=f"{_label(connection)} {label}",
                    color=_COLORS[name],
                    group=_label(connection),
                )
    return figure if figure.data else None


def _lag_figure(replay: SessionReplay, shown: Sequence[ConnectionReplay], zone: tzinfo | None) -> Any:
    figure = _figure("Lag over time (the worst in each step)", "bytes")
    for connection in shown:
        series = _lag_curve(replay, connection)
        if len(series.steps):
            times = _times(replay, _step_times(replay, series), zone)
            _add_curve(figure, times, series, name=_label(connection), color=None, group=_label(connection))
    for connection in shown:
        figures = connection.figures
        (opened,) = _times(replay, np.array([figures.first_ts_ns]), zone)
        _mark(figure, opened, f"conn {figures.conn} opened", "#2f6fde")
        if figures.closed_ts_ns is not None:
            (closed,) = _times(replay, np.array([figures.closed_ts_ns]), zone)
            _mark(figure, closed, f"conn {figures.conn} {figures.close_reason or 'closed'}", "#b42318")
    return figure if figure.data else None


def _lag_curve(replay: SessionReplay, connection: ConnectionReplay) -> TimeSeries:
    """The worst lag in each step, and behind it the one at the step's end if nothing happens in the next."""
    series = connection.figures.series
    worst = _thinned(replay, series["lag"])
    if not len(worst.steps):
        return worst
    at_end = [
        series.values[np.searchsorted(series.steps, worst.steps, side="right") - 1]
        for series in (_risen(replay, series["max"]), _risen(replay, series["ack"]))
    ]
    left = lag_bytes(at_end[0], at_end[1])
    quiet = np.flatnonzero(np.diff(worst.steps) > 1)
    return worst + TimeSeries(worst.steps[quiet] + 1, left[quiet])


def _latency_figure(shown: Sequence[ConnectionReplay]) -> Any:
    figure = _figure("Ack latency", "frames", x_title="ms, logarithmic")
    figure.update_xaxes(type="log")
    for connection in shown:
        _add_bars(figure, connection.figures.ack_latency_histogram, per_ms=1e6, name=_label(connection))
    return figure if figure.data else None


def _waits_figure(replay: SessionReplay) -> Any:
    figure = _figure("Group commit: waiting time by put status", "puts", x_title="ms, logarithmic")
    figure.update_xaxes(type="log")
    for wait in replay.node.waits:
        _add_bars(
            figure,
            wait.histogram,
            per_ms=1e3,
            name=f"{wait.status} ({wait.count:,})",
            color=_STATUS_COLORS.get(wait.status),
        )
    return figure if figure.data else None


def _causes_figure(replay: SessionReplay, links: Sequence[Link]) -> Any:
    """A bar for each put status, cut by what its puts waited for."""
    mostly = ack_mostly(replay, links)
    figure = _figure("What puts waited for", "", x_title="puts")
    addresses = {connection.figures.conn: connection for connection in replay.connections}
    statuses = sorted({status for status, _, _ in replay.causes.waited_us})
    for (status, cause, conn), waited_us in replay.causes.waited_us.items():
        waited = waited_us.distribution()
        assert waited is not None, "a cause is there because a wait had it"
        peer = addresses.get(conn)
        part = mostly.get(conn) if cause == ACK else None
        name = CAUSES[cause] + (f" ({part})" if part else "") + (f", {_label(peer)}" if peer else "")
        figure.add_trace(
            graph_objects.Bar(
                y=[_status(status)],
                x=[waited_us.total],
                name=name,
                orientation="h",
                text=name,
                hovertext=f"{name}: {waited_us.total:,} puts, ms p50 {waited.p50 / 1000:,.3f}, "
                f"p99 {waited.p99 / 1000:,.3f}, max {waited.largest / 1000:,.3f}",
                hoverinfo="text",
                marker={"color": _CAUSE_COLORS[CAUSES[cause]], "line": {"color": "white", "width": 1}},
                showlegend=False,
            )
        )
    figure.update_layout(barmode="stack", height=140 + 70 * len(statuses))
    figure.update_yaxes(rangemode=None)
    return figure if figure.data else None


def _heat_figure(replay: SessionReplay, shown: Sequence[ConnectionReplay]) -> Any:
    """A strip for each connection: how long each piece of the log waited for its ack."""
    acked = [one for one in shown if len(one.figures.series["ack"].steps)]
    if replay.session.is_slave or not acked:
        return None
    own = sum((one.figures.series["max"] for one in replay.connections), TimeSeries())
    begin = min(max(0, one.figures.request_offset or 0) for one in acked)
    end = max(int(one.figures.series["ack"].values.max()) for one in acked)
    pieces = np.unique(np.linspace(begin, end, HEAT_PIECES + 1).astype(np.int64))
    if len(pieces) < 2:
        return None
    ends = pieces[1:]
    step_s = replay.grid.step_ns / 1e9
    rows = []
    for one in acked:
        ack = one.figures.series["ack"]
        stored, arrived = first_covering(own.values, ends), first_covering(ack.values, ends)
        # What the slave had when it came was acknowledged before.
        known = (
            (arrived < len(ack.values))
            & (stored < len(own.values))
            & (ends > (one.figures.request_offset or 0))
        )
        waited = np.full(len(ends), np.nan)
        waited[known] = (ack.steps[arrived[known]] - own.steps[stored[known]]).clip(min=0) * step_s
        rows.append([None if np.isnan(value) else float(value) for value in waited])
    figure = _figure(f"How long pieces of the log waited for their ack (to {step_s:g} s)", "")
    figure.add_trace(
        graph_objects.Heatmap(
            x=((pieces[:-1] + pieces[1:]) / 2).tolist(),
            y=[_label(one) for one in acked],
            z=rows,
            colorscale="YlOrRd",
            zmin=0,
            colorbar={"title": "s"},
            hovertemplate="offset %{x:,.0f}<br>%{y}<br>%{z:.3f} s<extra></extra>",
        )
    )
    figure.update_layout(height=160 + 32 * len(acked), margin={"l": 190})
    figure.update_xaxes(title="offset, bytes")
    figure.update_yaxes(rangemode=None, autorange="reversed", type="category")
    return figure


def _status(code: int) -> str:
    return code_name(PutStatus, code)


def _add_bars(
    figure: Any, histogram: Histogram, *, per_ms: float, name: str, color: str | None = None
) -> None:
    edges, counts = _bars(histogram)
    if len(counts):
        figure.add_trace(
            graph_objects.Scatter(
                # As an outline: the widths of real bars are linear, the axis is not.
                x=(edges / per_ms).tolist(),
                y=[*counts.tolist(), 0],
                name=name,
                mode="lines",
                line={"shape": "hv", "width": 1, "color": color},
                fill="tozeroy",
            )
        )


def _bars(histogram: Histogram) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A histogram in bars of equal width on a logarithmic axis: n + 1 edges and n counts."""
    values = np.maximum(histogram.uppers(), 1).astype(np.float64)
    if not len(values):
        return np.zeros(0), np.zeros(0, np.int64)
    edges = np.geomspace(values.min() * 0.99, values.max() * 1.01, HISTOGRAM_BARS + 1)
    counts, _ = np.histogram(values, bins=edges, weights=histogram.weights)
    return edges, counts.astype(np.int64)


def _figure(title: str, y_title: str, *, x_title: str | None = None) -> Any:
    return graph_objects.Figure(
        layout={
            "title": title,
            "template": "plotly_white",
            "height": 420,
            "xaxis": {"title": x_title},
            "yaxis": {"title": y_title, "rangemode": "tozero"},
            "margin": {"l": 70, "r": 20, "t": 50, "b": 50},
            "legend": {"orientation": "h", "y": -0.2},
        }
    )


def _every(replay: SessionReplay) -> int:
    """So many steps are one: the curve of a long session has more points than a screen has."""
    return -(-replay.grid.steps // (2 * CURVE_STEPS))


def _thinned(replay: SessionReplay, series: TimeSeries) -> TimeSeries:
    return TimeSeries.of(series.steps // _every(replay), series.values)


def _risen(replay: SessionReplay, series: TimeSeries) -> TimeSeries:
    """An offset, which does not go back, thinned out."""
    return _thinned(replay, TimeSeries(series.steps, np.maximum.accumulate(series.values)))


def _step_times(replay: SessionReplay, series: TimeSeries) -> NDArray[np.int64]:
    """Monotonic time of each point of a curve that is thinned out."""
    ts_ns: NDArray[np.int64] = replay.grid.origin_ns + series.steps * _every(replay) * replay.grid.step_ns
    return ts_ns


def _add_curve(
    figure: Any, times: list[str], series: TimeSeries, *, name: str, color: str | None, group: str
) -> None:
    figure.add_trace(
        graph_objects.Scatter(
            x=times,
            y=series.values.tolist(),
            name=name,
            legendgroup=group,
            mode="lines",
            line={"shape": "hv", "width": 1.5, "color": color},
        )
    )


def _mark(figure: Any, time: str, text: str, color: str) -> None:
    figure.add_shape(
        type="line",
        x0=time,
        x1=time,
        y0=0,
        y1=1,
        yref="paper",
        line={"color": color, "dash": "dot", "width": 1},
    )
    figure.add_annotation(
        x=time,
        y=1,
        yref="paper",
        text=escape(text),
        showarrow=False,
        textangle=-90,
        yanchor="top",
        xanchor="left",
        font={"size": 10, "color": color},
    )


def _times(replay: SessionReplay, ts_ns: NDArray[np.int64], zone: tzinfo | None) -> list[str]:
    """Moments as the clock of `zone` shows them."""
    wall_ns = ts_ns - replay.session.monotonic_ns + replay.session.wall_ns
    quarters, places = np.unique(wall_ns // QUARTER_NS, return_inverse=True)
    ahead_ns = np.array([offset_ns(int(quarter) * QUARTER_NS, zone) for quarter in quarters], np.int64)
    wall_ns = wall_ns + ahead_ns[places]
    return [str(time) for time in np.datetime_as_string(wall_ns.astype("datetime64[ns]"), unit="us")]


def _label(connection: ConnectionReplay) -> str:
    return escape(f"conn {connection.figures.conn} {connection.address or ''}".rstrip())


def _html(figure: Any) -> str:
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False}))
