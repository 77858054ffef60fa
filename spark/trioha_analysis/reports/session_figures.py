"""Charts of a session: offsets of the log and of each replica, lag, put statuses and latencies over time.

They have at most `POINTS_MAX` points for each series and `SERIES_MAX` series, so the size of a report does
not grow with the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Final

import numpy as np
from attrs import frozen

from trioha.palette import GOOD, MUTED, PERCENTILES, REPLICAS, put_status
from trioha.recording.events import PutStatus, code_name
from trioha_analysis.replicas import ReplicaReplay
from trioha_analysis.reports.charts import SERIES_MAX, Band, Floats, Ints, Series, TimeAxis, TimeChart
from trioha_analysis.session_replay import SessionReplay
from trioha_analysis.wait_history import period_steps
from trioha_sessions.time_series import TimeSeries

POINTS_MAX: Final = 480
"""Of a series over time."""


def session_charts(replay: SessionReplay, names: Mapping[int, str], zone: tzinfo | None) -> list[TimeChart]:
    """The charts that have data, in times of `zone`; `names` of the replicas by their last connection."""
    first_ns, last_ns = replay.node.first_ts_ns, replay.node.last_ts_ns
    if first_ns is None or last_ns is None:
        return []
    wall_of = replay.session.wall_of
    own = _Charts(replay, names, TimeAxis.over(wall_of(first_ns), wall_of(last_ns), zone))
    every = [own.offsets(), own.lag(), own.statuses(), own.latencies()]
    return [chart for chart in every if chart is not None]


@frozen(eq=False)
class _Charts:
    replay: SessionReplay
    names: Mapping[int, str]
    axis: TimeAxis

    def offsets(self) -> TimeChart | None:
        periods = self._periods(min(self.replay.grid.steps, POINTS_MAX))
        series = [Series("end of the log", MUTED, periods.at_end(self.replay.log_end_series), is_wide=True)]
        if self.replay.session.is_slave:
            title, note = "Offsets of the log, and reported to the master", ""
            reported = (one.figures.series["reported"] for one in self.replay.connections)
            values = periods.at_end(sum(reported, TimeSeries()))
            series.append(Series("reported", GOOD, values))
        else:
            title, note = "Offsets of the log, and acknowledged by each replica", self._note()
            for number, replica in enumerate(self._shown()):
                values = periods.at_end(replica.ack)
                values[self._is_away(replica, periods)] = np.nan
                series.append(Series(self._name(replica), REPLICAS[number], values))
        known = [one for one in series if np.isfinite(one.values).any()]
        return self._chart(title, periods, known, "bytes", from_zero=False, note=note)

    def lag(self) -> TimeChart | None:
        """The worst of each period, and the time of each outage."""
        periods = self._periods(min(self.replay.grid.steps, POINTS_MAX))
        series = [
            Series(self._name(replica), REPLICAS[number], periods.worst(replica.age) / 1e9)
            for number, replica in enumerate(self._shown())
            if len(replica.age.steps)
        ]
        return self._chart("Lag: age of the oldest byte without an ack", periods, series, "s")

    def statuses(self) -> TimeChart | None:
        """Ended puts per second, by status."""
        periods = self._wait_periods()
        waits = self.replay.waits.waited_us
        # Also of the last one, which the recording may not fill: a rate of a few ms would be a spike.
        period_s = period_steps(self.replay.grid) * self.replay.grid.step_ns / 1e9
        totals: dict[int, Floats] = {}
        for (status, period), waited_us in waits.items():
            totals.setdefault(status, np.zeros(len(periods.steps)))[period] = waited_us.total
        # What failed most often keeps its own colour if there are too many of them.
        order = sorted(totals, key=lambda status: (status != PutStatus.PUT_OK, -totals[status].sum()))
        series = [
            Series(name, put_status(name), totals[status] / period_s)
            for status in order[:SERIES_MAX]
            for name in [code_name(PutStatus, status)]
        ]
        return self._chart("Puts by status", periods, series, "puts/s", is_stacked=True)

    def latencies(self) -> TimeChart | None:
        """Percentiles from append to answer of the puts that were PUT_OK."""
        periods = self._wait_periods()
        waits = self.replay.waits.waited_us
        found = {name: np.full(len(periods.steps), np.nan) for name in ("p50", "p99")}
        for (status, period), waited_us in waits.items():
            if status == PutStatus.PUT_OK:
                for name, values in found.items():
                    percentile = waited_us.percentile(float(name[1:]))
                    values[period] = np.nan if percentile is None else max(percentile, 1) / 1000
        series = [
            Series(name, PERCENTILES[name], values)
            for name, values in found.items()
            if np.isfinite(values).any()
        ]
        return self._chart("Put to ack of PUT_OK: percentiles", periods, series, "ms", is_logarithmic=True)

    def _chart(
        self, title: str, periods: _Periods, series: Sequence[Series], unit: str, **kind: bool | str
    ) -> TimeChart | None:
        if not series:
            return None
        return TimeChart(
            title=title,
            axis=self.axis,
            period_ns=periods.begin_ns,
            end_ns=periods.end_ns,
            series=series,
            unit=unit,
            bands=self._bands(),
            **kind,  # type: ignore[arg-type]
        )

    def _shown(self) -> list[ReplicaReplay]:
        """The replicas that are drawn, those with the worst lag if there are too many, in their order."""
        every = [one for one in self.replay.replicas if len(one.ack.steps)]
        worst = sorted(every, key=_worst_age_ns, reverse=True)[: len(REPLICAS)]
        return [one for one in every if one in worst]

    def _note(self) -> str:
        shown, every = self._shown(), self.replay.replicas
        if len(shown) == len(every):
            return ""
        others = max((_worst_age_ns(one) for one in every if one not in shown), default=0) / 1e9
        return (
            f"{len(shown)} of {len(every)} replicas, those with the worst lag; "
            f"the others were at most {others:,.3g} s behind."
        )

    def _name(self, replica: ReplicaReplay) -> str:
        return self.names[replica.conns[-1]]

    def _bands(self) -> list[Band]:
        wall_of = self.replay.session.wall_of
        return [
            Band(wall_of(one.began_ns), wall_of(one.ended_ns), f"{self._name(replica)} away: {one.reason}")
            for replica in self.replay.replicas
            for one in replica.outages
        ]

    def _is_away(self, replica: ReplicaReplay, periods: _Periods) -> Ints:
        """Whether it had no connection in all of a period."""
        ends_ns = np.append(periods.begin_ns[1:], periods.end_ns)
        is_away = np.zeros(len(ends_ns), np.bool_)
        for one in replica.outages:
            began_ns, ended_ns = map(self.replay.session.wall_of, (one.began_ns, one.ended_ns))
            is_away |= (periods.begin_ns >= began_ns) & ((ends_ns <= ended_ns) | (one.next_conn is None))
        return np.flatnonzero(is_away)

    def _periods(self, count: int) -> _Periods:
        return self._periods_from(np.arange(count, dtype=np.int64) * self.replay.grid.steps // count)

    def _wait_periods(self) -> _Periods:
        grid = self.replay.grid
        return self._periods_from(np.arange(0, grid.steps, period_steps(grid)))

    def _periods_from(self, steps: Ints) -> _Periods:
        grid, wall_of = self.replay.grid, self.replay.session.wall_of
        begin_ns = wall_of(grid.origin_ns) + steps * grid.step_ns
        return _Periods(steps, grid.steps, begin_ns, wall_of(grid.origin_ns + grid.steps * grid.step_ns))


@frozen(eq=False)
class _Periods:
    """Periods of a chart, one after the other."""

    steps: Ints
    """First step of each on the session's grid."""
    end_step: int
    begin_ns: Ints
    """Since 1970."""
    end_ns: int

    def at_end(self, series: TimeSeries) -> Floats:
        """The value of a rising series at the end of each; NaN before its first one."""
        values = series.rising_at(np.append(self.steps[1:], self.end_step) - 1).astype(np.float64)
        values[values < 0] = np.nan
        return values

    def worst(self, series: TimeSeries) -> Floats:
        """The largest value in each; NaN without one."""
        values = np.full(len(self.steps), -1, np.int64)
        np.maximum.at(values, np.searchsorted(self.steps, series.steps, side="right") - 1, series.values)
        found: Floats = np.where(values < 0, np.nan, values.astype(np.float64))
        return found


def _worst_age_ns(replica: ReplicaReplay) -> int:
    return int(replica.age.values.max(initial=0))
