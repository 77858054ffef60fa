"""Figures of a session: offsets, lag, latencies and causes.

Curves have at most `2 * CURVE_STEPS` points, and only the busiest connections get one: the size of a report
does not grow with the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray
from plotly.graph_objects import Bar, Figure, Heatmap, Scatter

from trioha.recording.clocks import Link
from trioha.recording.events import PutStatus, code_name
from trioha.recording.histogram import Histogram
from trioha.recording.state_arrays import first_covering, lag_bytes
from trioha.recording.time_series import TimeSeries
from trioha.times import offset_ns
from trioha_analysis.causes import ACK, CAUSES
from trioha_analysis.document import ack_mostly
from trioha_analysis.replay_result import CURVE_STEPS, ConnectionReplay, SessionReplay
from trioha_analysis.reports.page import label, new_figure

QUARTER_NS: Final = 900 * 10**9
"""A zone's offset from UTC is constant within a quarter of an hour."""
HISTOGRAM_BARS: Final = 60
LOG_RANGES: Final = 160
"""Ranges of the log in the figure of their times to ack."""

_BLUE, _GREEN, _RED, _GREY, _YELLOW = "#2f6fde", "#1a9e6b", "#b42318", "#7a869a", "#d9a50f"
_OFFSETS: Final = {
    "max": ("max offset", _GREY),
    "sent": ("sent", _BLUE),
    "ack": ("acknowledged", _GREEN),
    "received": ("received", _BLUE),
    "reported": ("reported", _GREEN),
}
"""Name and colour by time series."""
_CAUSE_COLORS: Final = {
    "nothing": "#b8c1ce",
    "send": _BLUE,
    "ack": _GREEN,
    "flush": _YELLOW,
    "no slave": _RED,
    "unknown": _GREY,
}


def session_figures(
    replay: SessionReplay, connections: Sequence[ConnectionReplay], links: Sequence[Link], zone: tzinfo | None
) -> list[Figure]:
    """The figures that have data; `connections` are those with series, times are those of `zone`."""
    series = _TimeSeries(replay, connections, zone)
    every = [
        series.offsets(),
        series.lag(),
        _latency_figure(connections),
        _waits_figure(replay),
        _causes_figure(replay, links),
        _log_ranges_figure(replay, connections),
    ]
    return [figure for figure in every if figure is not None and figure.data]


@frozen(eq=False)
class _TimeSeries:
    """Curves over time of a session's connections."""

    replay: SessionReplay
    connections: Sequence[ConnectionReplay]
    zone: tzinfo | None

    def offsets(self) -> Figure:
        figure = new_figure("Offsets over time", y_title="bytes", yaxis_rangemode="tozero")
        for connection in self.connections:
            for series, (name, color) in _OFFSETS.items():
                curve = self._risen(connection.figures.series[series])
                self._add(figure, connection, curve, name=f" {name}", color=color)
        return figure

    def lag(self) -> Figure:
        """With the connections' starts and ends."""
        figure = new_figure("Lag over time (maximum of each step)", y_title="bytes", yaxis_rangemode="tozero")
        for connection in self.connections:
            self._add(figure, connection, self._lag(connection.figures.series))
        for connection in self.connections:
            found = connection.figures
            self._mark(figure, found.first_ts_ns, f"conn {found.conn} opened", _BLUE)
            if found.closed_ts_ns is not None:
                self._mark(
                    figure, found.closed_ts_ns, f"conn {found.conn} {found.close_reason or 'closed'}", _RED
                )
        return figure

    def _lag(self, series: Mapping[str, TimeSeries]) -> TimeSeries:
        """The maximum of each step; after it the lag at the step's end, if the next step has no event."""
        worst = self._thinned(series["lag"])
        if not len(worst.steps):
            return worst
        own, ack = (
            curve.values[np.searchsorted(curve.steps, worst.steps, side="right") - 1]
            for curve in (self._risen(series["max"]), self._risen(series["ack"]))
        )
        quiet = np.flatnonzero(np.diff(worst.steps) > 1)
        return worst + TimeSeries(worst.steps[quiet] + 1, lag_bytes(own, ack)[quiet])

    @property
    def _thinning(self) -> int:
        """Steps of the session's grid for each step of a curve."""
        return -(-self.replay.grid.steps // (2 * CURVE_STEPS))

    def _thinned(self, series: TimeSeries) -> TimeSeries:
        return TimeSeries.of(series.steps // self._thinning, series.values)

    def _risen(self, series: TimeSeries) -> TimeSeries:
        """Of an offset, which does not decrease."""
        return self._thinned(TimeSeries(series.steps, np.maximum.accumulate(series.values)))

    def _add(
        self,
        figure: Figure,
        connection: ConnectionReplay,
        curve: TimeSeries,
        *,
        name: str = "",
        color: str | None = None,
    ) -> None:
        if not len(curve.steps):
            return
        grid = self.replay.grid
        figure.add_trace(
            Scatter(
                x=self._times(grid.origin_ns + curve.steps * self._thinning * grid.step_ns),
                y=curve.values.tolist(),
                name=_label(connection) + name,
                legendgroup=_label(connection),
                mode="lines",
                line={"shape": "hv", "width": 1.5, "color": color},
            )
        )

    def _mark(self, figure: Figure, ts_ns: int, text: str, color: str) -> None:
        (time,) = self._times(np.array([ts_ns]))
        line = {"color": color, "dash": "dot", "width": 1}
        figure.add_shape(type="line", x0=time, x1=time, y0=0, y1=1, yref="paper", line=line)
        figure.add_annotation(
            x=time,
            y=1,
            yref="paper",
            text=label(text),
            showarrow=False,
            textangle=-90,
            yanchor="top",
            xanchor="left",
            font={"size": 10, "color": color},
        )

    def _times(self, ts_ns: NDArray[np.int64]) -> list[str]:
        """Times of the monotonic clock as the wall clock of `zone`."""
        session = self.replay.session
        return wall_times(ts_ns - session.monotonic_ns + session.wall_ns, self.zone)


def wall_times(wall_ns: NDArray[np.int64], zone: tzinfo | None) -> list[str]:
    """Times, ns since 1970, on a clock of `zone`, as Plotly reads them."""
    quarters, places = np.unique(wall_ns // QUARTER_NS, return_inverse=True)
    zone_ns = np.array([offset_ns(int(quarter) * QUARTER_NS, zone) for quarter in quarters], np.int64)
    moments = (wall_ns + zone_ns[places]).astype("datetime64[ns]")
    return [str(time) for time in np.datetime_as_string(moments, unit="us")]


def _latency_figure(connections: Sequence[ConnectionReplay]) -> Figure:
    figure = new_figure("Ack latency", x_title="ms, logarithmic", xaxis_type="log", y_title="frames")
    for connection in connections:
        _add_histogram(
            figure, connection.figures.ack_latency_histogram, per_ms=1_000_000, name=_label(connection)
        )
    return figure


def _waits_figure(replay: SessionReplay) -> Figure:
    figure = new_figure(
        "Group-commit wait by put status", x_title="ms, logarithmic", xaxis_type="log", y_title="puts"
    )
    for wait in replay.node.waits:
        color = _GREEN if wait.status == PutStatus.PUT_OK.name else None
        _add_histogram(
            figure, wait.histogram, per_ms=1000, name=f"{wait.status} ({wait.count:,})", color=color
        )
    return figure


def _add_histogram(
    figure: Figure, histogram: Histogram, *, per_ms: float, name: str, color: str | None = None
) -> None:
    """As an outline of bars of equal width on the logarithmic axis: Plotly's bars have linear widths."""
    values = np.maximum(histogram.uppers(), 1).astype(np.float64)
    if not len(values):
        return
    edges = np.geomspace(values.min() * 0.99, values.max() * 1.01, HISTOGRAM_BARS + 1)
    counts, _ = np.histogram(values, bins=edges, weights=histogram.weights)
    figure.add_trace(
        Scatter(
            x=(edges / per_ms).tolist(),
            y=[*counts.astype(np.int64).tolist(), 0],
            name=name,
            mode="lines",
            line={"shape": "hv", "width": 1, "color": color},
            fill="tozeroy",
        )
    )


def _causes_figure(replay: SessionReplay, links: Sequence[Link]) -> Figure:
    """A bar for each put status, divided by cause."""
    mostly = ack_mostly(replay, links)
    labels = {connection.figures.conn: _label(connection) for connection in replay.connections}
    statuses = {status for status, _, _ in replay.causes.waited_us}
    figure = new_figure(
        "What puts waited for", x_title="puts", barmode="stack", height=140 + 70 * len(statuses)
    )
    for (status, cause, conn), waited_us in replay.causes.waited_us.items():
        waited = waited_us.distribution()
        assert waited is not None, "each cause has a wait"
        part = mostly.get(conn) if cause == ACK else None
        name = CAUSES[cause] + (f" ({part})" if part else "")
        if conn in labels:
            name += f", {labels[conn]}"
        figure.add_trace(
            Bar(
                y=[code_name(PutStatus, status)],
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
    return figure


def _log_ranges_figure(replay: SessionReplay, connections: Sequence[ConnectionReplay]) -> Figure | None:
    """Time from append to ack of each range of the log, a row for each connection."""
    acked = [one for one in connections if len(one.figures.series["ack"].steps)]
    if replay.session.is_slave or not acked:
        return None
    own = replay.log_end_series
    begin = min(max(0, one.figures.request_offset or 0) for one in acked)
    end = max(int(one.figures.series["ack"].values.max()) for one in acked)
    edges = np.unique(np.linspace(begin, end, LOG_RANGES + 1).astype(np.int64))
    if len(edges) < 2:
        return None
    ends = edges[1:]
    step_s = replay.grid.step_ns / 1e9
    rows = []
    for one in acked:
        ack = one.figures.series["ack"]
        stored, arrived = first_covering(own.values, ends), first_covering(ack.values, ends)
        # Ranges below the request offset were acknowledged on an earlier connection.
        requested = one.figures.request_offset or 0
        known = (arrived < len(ack.values)) & (stored < len(own.values)) & (ends > requested)
        waited = np.full(len(ends), np.nan)
        waited[known] = (ack.steps[arrived[known]] - own.steps[stored[known]]).clip(min=0) * step_s
        rows.append([None if np.isnan(value) else float(value) for value in waited])
    figure = new_figure(
        f"Time to ack by log range (resolution {step_s:g} s)",
        x_title="offset, bytes",
        height=160 + 32 * len(acked),
        margin_l=190,
        yaxis={"autorange": "reversed", "type": "category"},
    )
    return figure.add_trace(
        Heatmap(
            x=((edges[:-1] + edges[1:]) / 2).tolist(),
            y=[_label(one) for one in acked],
            z=rows,
            colorscale="YlOrRd",
            zmin=0,
            colorbar={"title": "s"},
            hovertemplate="offset %{x:,.0f}<br>%{y}<br>%{z:.3f} s<extra></extra>",
        )
    )


def _label(connection: ConnectionReplay) -> str:
    return label(f"conn {connection.figures.conn} {connection.address or ''}".rstrip())
