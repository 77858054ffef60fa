"""Charts over time as SVG, drawn here: a page needs no script and no library to be read, printed or mailed.

A chart has a fixed size in its own units and scales with the page; its legend is text of the page, so it
neither shrinks the chart nor covers it. Colours are of `trioha.palette`, light and dark; paper is light. The
page's script adds the values under the pointer, from the numbers that each chart carries.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import tzinfo
from html import escape
from math import ceil, floor, log10
from typing import Final

import numpy as np
from attrs import frozen
from markupsafe import Markup
from numpy.typing import NDArray

from trioha.palette import BAD, Hue
from trioha.times import offset_ns

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTH: Final = 1120
LEFT, RIGHT, TOP, BOTTOM = 104, 16, 10, 46
PLOT_HEIGHT: Final = 230
SERIES_MAX: Final = 8
"""Series of a chart: more cannot be told apart."""
TICKS_MAX: Final = 7
_LABEL_WIDTH: Final = 92
"""Of a time below its tick, and of a value beside the axis, at most."""
_LABEL_CHARS: Final = 12
"""A longer value is drawn narrower."""
_STEPS_NS: Final = (
    *(10**6 * factor for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(10**9 * factor for factor in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)),
    *(3600 * 10**9 * factor for factor in (1, 2, 3, 6, 12, 24, 48, 168, 720, 8760)),
)
_DAY_NS: Final = 86_400 * 10**9


@frozen
class TimeAxis:
    """The time that the charts of a session show, on a clock of `zone`."""

    begin_ns: int
    """Since 1970."""
    end_ns: int
    zone: tzinfo | None

    @classmethod
    def over(cls, begin_ns: int, end_ns: int, zone: tzinfo | None) -> TimeAxis:
        """From `begin_ns` to `end_ns`; around a single moment 10 ms of time."""
        if end_ns - begin_ns >= 10**7:
            return cls(begin_ns, end_ns, zone)
        return cls(begin_ns - 5 * 10**6, end_ns + 5 * 10**6, zone)

    def x(self, at_ns: Ints) -> Floats:
        """Places of times, which are moved to the ends if they are outside."""
        passed = (np.asarray(at_ns) - self.begin_ns) / (self.end_ns - self.begin_ns)
        places: Floats = LEFT + np.clip(passed, 0, 1) * (WIDTH - LEFT - RIGHT)
        return places

    def clock_ns(self, at_ns: int) -> int:
        """What the clock shows, as ns since 1970 on it."""
        return at_ns + offset_ns(at_ns, self.zone)

    def svg(self, *, height: int) -> str:
        """Grid lines over `height`, and below them the times, with a date where it changes."""
        step_ns = next(
            (step for step in _STEPS_NS if (self.end_ns - self.begin_ns) / step <= TICKS_MAX), _STEPS_NS[-1]
        )
        parts, day = [], ""
        ahead_ns = self.clock_ns(self.begin_ns) - self.begin_ns
        first_ns = -(-(self.begin_ns + ahead_ns) // step_ns) * step_ns - ahead_ns
        bottom = TOP + height
        for at_ns in range(first_ns, self.end_ns + 1, step_ns):
            (x,) = self.x(np.array([at_ns]))
            clock = str(np.datetime64(self.clock_ns(at_ns), "ns"))
            date, time = clock[:10], clock[11:]
            shown = time[:12] if step_ns < 10**9 else time[:8] if step_ns < 60 * 10**9 else time[:5]
            parts.append(f'<path class="grid" d="M{x:.1f} {TOP}v{height}"/>')
            anchor = "end" if x > WIDTH - _LABEL_WIDTH / 2 else "middle"
            if step_ns < _DAY_NS:
                parts.append(f'<text x="{x:.1f}" y="{bottom + 20}" text-anchor="{anchor}">{shown}</text>')
            if date != day:
                lower = 20 if step_ns >= _DAY_NS else 36
                parts.append(f'<text x="{x:.1f}" y="{bottom + lower}" text-anchor="{anchor}">{date}</text>')
                day = date
        return "".join(parts)


@frozen
class Scale:
    """A vertical axis from `low` to `high` (above it) in `unit`: `bytes`, or a unit that follows numbers."""

    low: float
    high: float
    unit: str
    is_logarithmic: bool = False

    @classmethod
    def of(cls, values: Floats, unit: str, *, from_zero: bool = True, is_logarithmic: bool = False) -> Scale:
        """An axis on which all `values` are; with `is_logarithmic` those above 0."""
        known = values[np.isfinite(values) & ((values > 0) | (not is_logarithmic))]
        low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
        if is_logarithmic:
            low, high = (low, high) if len(known) else (1.0, 10.0)
            return cls(
                10.0 ** floor(log10(low)), 10.0 ** max(ceil(log10(high)), floor(log10(low)) + 1), unit, True
            )
        if from_zero:
            low = min(0.0, low)
        if high <= low:
            low, high = min(low, 0.0), max(high, 1.0)
        return cls(low, high + 0.04 * (high - low), unit)

    def y(self, values: Floats, height: int) -> Floats:
        """Places of values; those outside are moved to the ends."""
        if self.is_logarithmic:
            low, high = log10(self.low), log10(self.high)
            part = (np.log10(np.maximum(values, self.low)) - low) / (high - low)
        else:
            part = (values - self.low) / (self.high - self.low)
        places: Floats = TOP + height * (1 - np.clip(part, 0, 1))
        return places

    def ticks(self) -> list[float]:
        """Round values."""
        if self.is_logarithmic:
            first, last = round(log10(self.low)), round(log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        unit = self._byte_unit[0]
        wanted = (self.high - self.low) / unit / 4
        magnitude = 10.0 ** floor(log10(wanted))
        step = unit * magnitude * next(factor for factor in (1, 2, 5, 10) if factor * magnitude >= wanted)
        if self.unit == "bytes":
            step = max(step, 1.0)
        first, last = ceil(self.low / step), floor(self.high / step)
        return [number * step for number in range(first, last + 1)]

    @property
    def _byte_unit(self) -> tuple[int, str]:
        """The unit in which steps of bytes are round numbers."""
        power = 0
        while self.unit == "bytes" and power < 5 and self.high - self.low >= 2048 * 1024**power:
            power += 1
        return 1024**power, ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]

    def text(self, value: float) -> str:
        """A value; bytes with their unit, which the title does not name."""
        if self.unit == "bytes":
            unit, name = self._byte_unit
            return f"{value / unit:,.12g} {name}"
        return f"{value:,.10g}"

    def svg(self, *, height: int) -> str:
        """Grid lines and values."""
        ticks = np.array(self.ticks())
        parts = []
        for value, y in zip(ticks.tolist(), self.y(ticks, height).tolist(), strict=True):
            text = self.text(value)
            narrow = (
                f' textLength="{_LABEL_WIDTH}" lengthAdjust="spacingAndGlyphs"'
                if len(text) > _LABEL_CHARS
                else ""
            )
            parts.append(
                f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end"{narrow}>{escape(text)}</text>'
            )
        return "".join(parts)


@frozen
class Band:
    """A time that is shaded in all charts of a session: an outage."""

    begin_ns: int
    """Since 1970."""
    end_ns: int
    text: str


@frozen(eq=False)
class Series:
    """Values over the periods of a chart."""

    name: str
    hue: Hue
    values: Floats
    """Of each period; NaN for a gap."""
    is_wide: bool = False
    """A wide, pale line, below the others: what they are compared with."""


@frozen(eq=False)
class TimeChart:
    """Series over time as lines, or stacked as areas. Every period lasts until the next one begins."""

    title: str
    axis: TimeAxis
    period_ns: Ints
    """When each period begins, since 1970."""
    end_ns: int
    """When the last one ends."""
    series: Sequence[Series]
    unit: str
    bands: Sequence[Band] = ()
    note: str = ""
    from_zero: bool = True
    is_logarithmic: bool = False
    is_stacked: bool = False

    def __attrs_post_init__(self) -> None:
        assert 0 < len(self.series) <= SERIES_MAX, "a chart has so many series"

    def html(self) -> Markup:
        """The chart with its title and legend."""
        values = np.array([one.values for one in self.series])
        tops = np.cumsum(np.nan_to_num(values), axis=0) if self.is_stacked else values
        scale = Scale.of(
            tops.ravel(), self.unit, from_zero=self.from_zero, is_logarithmic=self.is_logarithmic
        )
        edges = self.axis.x(np.append(self.period_ns, self.end_ns))
        body = [self.axis.svg(height=PLOT_HEIGHT), scale.svg(height=PLOT_HEIGHT), self._bands()]
        if self.is_stacked:
            bottoms = np.vstack([np.zeros(len(self.period_ns)), tops[:-1]])
            for one, bottom, top in zip(self.series, bottoms, tops, strict=True):
                path = _area(edges, scale.y(bottom, PLOT_HEIGHT), scale.y(top, PLOT_HEIGHT))
                body.append(f'<path class="area" style="fill:{one.hue.fill}" d="{path}"/>')
        else:
            for one in self.series:
                kind = "wide" if one.is_wide else "line"
                path = _line(edges, scale.y(one.values, PLOT_HEIGHT))
                body.append(f'<path class="{kind}" style="{style_of(one.hue)}" d="{path}"/>')
        legend = [
            legend_item(one.name, f"background:{one.hue.fill}")
            if self.is_stacked
            else legend_item(one.name, style_of(one.hue), kind="broad" if one.is_wide else "stroke")
            for one in self.series
        ]
        if self.bands:
            legend.append(legend_item("replica away", f"background:{BAD.fill}", kind="shade"))
        return figure_html(
            self.title if self.unit == "bytes" else f"{self.title} ({self.unit})",
            "".join(body),
            height=PLOT_HEIGHT,
            legend=legend,
            note=self.note,
            data=self._data(),
        )

    def _bands(self) -> str:
        parts = []
        for band in self.bands:
            begin, end = self.axis.x(np.array([band.begin_ns, band.end_ns])).tolist()
            parts.append(
                f'<rect class="band" style="fill:{BAD.fill}" x="{begin:.1f}" y="{TOP}" '
                f'width="{max(end - begin, 1.5):.1f}" height="{PLOT_HEIGHT}">'
                f"<title>{escape(band.text)}</title></rect>"
            )
        return "".join(parts)

    def _data(self) -> str:
        """What the script shows: for each period its place, clock time in ms, and values."""
        first_ms = self.axis.clock_ns(int(self.period_ns[0])) // 10**6
        digits = 0 if self.unit == "bytes" else 6
        return json.dumps(
            {
                "unit": self.unit,
                "names": [one.name for one in self.series],
                "x": np.round(self.axis.x(self.period_ns), 1).tolist(),
                "first": first_ms,
                "ms": [self.axis.clock_ns(at_ns) // 10**6 - first_ms for at_ns in self.period_ns.tolist()],
                "values": [
                    [None if np.isnan(value) else _short(value, digits) for value in one.values.tolist()]
                    for one in self.series
                ],
            },
            separators=(",", ":"),
        )


def _short(value: float, digits: int) -> float | int:
    rounded = float(f"{value:.6g}") if digits else round(value)
    return int(rounded) if rounded == int(rounded) else rounded


def figure_html(
    title: str, body: str, *, height: int, legend: Sequence[str], note: str = "", data: str = ""
) -> Markup:
    """A chart of SVG elements, `height` without the times below; `legend` and `body` are escaped."""
    # In a script element only </ has to be written otherwise.
    script = (
        f'<script type="application/json">{data.replace("<", chr(92) + "u003c")}</script>' if data else ""
    )
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return Markup(  # noqa: S704
        f"<figure><figcaption>{escape(title)}</figcaption><ul>{''.join(legend)}</ul>"
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {height + TOP + BOTTOM}" role="img" '
        f'aria-label="{escape(title)}">{body}</svg></div>{below}{script}</figure>'
    )


def legend_item(name: str, style: str, *, kind: str = "fill", glyph: str = "") -> str:
    """An entry of a legend, with a sample of a line or area, or a glyph."""
    return f'<li><i class="{"glyph" if glyph else kind}" style="{style}">{glyph}</i>{escape(name)}</li>'


def style_of(hue: Hue) -> str:
    """The colour for style sheets, which choose the light or the dark one."""
    return f"--light:{hue.light};--dark:{hue.dark}"


def _line(edges: Floats, y: Floats) -> str:
    """Steps, with gaps where `y` is not known."""
    parts: list[str] = []
    last: str | None = None
    for begin, end, place in zip(edges[:-1].tolist(), edges[1:].tolist(), y.tolist(), strict=True):
        if np.isnan(place):
            last = None
            continue
        here = f"{place:.1f}"
        if last is None:
            parts.append(f"M{begin:.1f} {here}")
        elif here != last:
            parts.append(f"V{here}")
        elif parts[-1].startswith("H"):
            # The line goes on at its height.
            parts.pop()
        parts.append(f"H{end:.1f}")
        last = here
    return "".join(parts)


def _area(edges: Floats, bottoms: Floats, tops: Floats) -> str:
    """Bars side by side; nothing where a bar has no height."""
    parts: list[str] = []
    for begin, end, bottom, top in zip(
        edges[:-1].tolist(), edges[1:].tolist(), bottoms.tolist(), tops.tolist(), strict=True
    ):
        if bottom - top >= 0.05:
            parts.append(f"M{begin:.1f} {bottom:.1f}V{top:.1f}H{end:.1f}V{bottom:.1f}Z")
    return "".join(parts)
