"""Line plots as SVG: a few curves with the range of each point, on linear or logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from attrs import frozen

WIDTH: Final = 560
HEIGHT: Final = 340
LEFT: Final = 74
RIGHT: Final = 18
TOP: Final = 62
BOTTOM: Final = 52
NOTE_LINE: Final = 16
INK: Final = "#24292f"
GRID: Final = "#d8dee4"
COLORS: Final = ("#0969da", "#bc4c00", "#1a7f37", "#8250df")


@frozen
class Point:
    """One point of a curve: a median and the lowest and highest value."""

    x: float
    y: float
    low: float
    high: float
    is_hollow: bool = False


@frozen
class Curve:
    """Points in the order of their x, with the name that the legend has."""

    name: str
    points: Sequence[Point]


@frozen
class Axis:
    """What an axis shows; logarithmic ones have no zero."""

    title: str
    is_log: bool = False
    ticks: Sequence[float] = ()
    """Where labels are; empty: chosen by the values."""


def line_plot(title: str, curves: Sequence[Curve], *, x: Axis, y: Axis, note: str = "") -> str:
    """A whole SVG document. Raises ValueError without any point."""
    points = [point for curve in curves for point in curve.points]
    if not points:
        raise ValueError(f"nothing to draw: {title}")
    x_ticks, to_x = _scale(x, [point.x for point in points], LEFT, WIDTH - RIGHT)
    highs = [bound for point in points for bound in (point.low, point.high)]
    y_ticks, to_y = _scale(y, highs, HEIGHT - BOTTOM, TOP)
    # A line of its own: beside the legend there may be no room.
    height = HEIGHT + NOTE_LINE if note else HEIGHT
    parts = [
        _tag(
            "svg",
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH} {height}",
            width=WIDTH,
            height=height,
            role="img",
            font_family="system-ui, sans-serif",
            font_size=12,
            fill=INK,
        ),
        f"<title>{escape(title)}</title>",
        _tag("rect", is_empty=True, width=WIDTH, height=height, fill="#ffffff"),
        _text(LEFT, 20, title, font_size=14, font_weight=600),
    ]
    for value in y_ticks:
        at = to_y(value)
        parts.append(_path(f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}", GRID))
        parts.append(_text(LEFT - 8, at + 4, number(value), anchor="end"))
    for value in x_ticks:
        at = to_x(value)
        parts.append(_path(f"M{at:.1f} {HEIGHT - BOTTOM}v5", INK))
        parts.append(_text(at, HEIGHT - BOTTOM + 18, number(value), anchor="middle"))
    parts.append(_path(f"M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}", INK))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, x.title, anchor="middle"))
    turned = f"translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)"
    parts.append(_text(0, 0, y.title, anchor="middle", transform=turned))
    at = float(LEFT)
    for index, curve in enumerate(curves):
        color = COLORS[index % len(COLORS)]
        parts.append(_path(f"M{at:.1f} 40h18", color, stroke_width=2.5))
        parts.append(_text(at + 24, 44, curve.name))
        at += 40 + 7 * len(curve.name)
        parts += _curve(curve, color, to_x, to_y)
    if note:
        parts.append(_text(WIDTH - RIGHT, HEIGHT + 6, note, anchor="end", font_size=11))
    parts.append("</svg>\n")
    return "\n".join(parts)


def _curve(
    curve: Curve, color: str, to_x: Callable[[float], float], to_y: Callable[[float], float]
) -> list[str]:
    parts = []
    places = [(to_x(point.x), to_y(point.y)) for point in curve.points]
    if len(places) > 1:
        path = "L".join(f"{left:.1f} {top:.1f}" for left, top in places)
        parts.append(_path(f"M{path}", color, stroke_width=2))
    for point, (left, top) in zip(curve.points, places, strict=True):
        if point.high > point.low:
            range_path = f"M{left:.1f} {to_y(point.low):.1f}V{to_y(point.high):.1f}"
            parts.append(_path(range_path, color, opacity=0.7))
        fill = "#ffffff" if point.is_hollow else color
        at = {"cx": f"{left:.1f}", "cy": f"{top:.1f}"}
        parts.append(_tag("circle", is_empty=True, **at, r=3.5, fill=fill, stroke=color, stroke_width=1.5))
    return parts


def _path(path: str, color: str, **more: object) -> str:
    return _tag("path", is_empty=True, d=path, fill="none", stroke=color, **more)


def _text(left: float, top: float, text: str, *, anchor: str = "start", **more: object) -> str:
    begin = _tag("text", x=f"{left:.1f}", y=f"{top:.1f}", text_anchor=anchor, **more)
    return f"{begin}{escape(text)}</text>"


def _tag(name: str, *, is_empty: bool = False, **attributes: object) -> str:
    said = "".join(f" {key.replace('_', '-')}={quoteattr(str(value))}" for key, value in attributes.items())
    return f"<{name}{said}{'/' if is_empty else ''}>"


def number(value: float) -> str:
    """A tick's label: 0.1, 1,000, 20 k, 1 M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:g} M"
    if value >= 10_000:
        return f"{value / 1000:g} k"
    return f"{value:,g}"


def _scale(
    axis: Axis, values: Sequence[float], begin: float, end: float
) -> tuple[list[float], Callable[[float], float]]:
    """The ticks, and what maps a value to a place between `begin` and `end`."""
    low, high = min(values), max(values)
    if axis.is_log:
        if low <= 0:
            raise ValueError(f"{axis.title}: {low} on a logarithmic axis")
        ticks = list(axis.ticks) or _log_ticks(low, high)
        low, high = math.log10(min(low, *ticks)), math.log10(max(high, *ticks))
        span = high - low or 1.0
        return ticks, lambda value: begin + (math.log10(value) - low) / span * (end - begin)
    ticks = list(axis.ticks) or linear_ticks(high)
    top = max(high, ticks[-1]) or 1.0
    return ticks, lambda value: begin + value / top * (end - begin)


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten around the values; with 2 and 5 between them where that gives few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [10.0**exponent for exponent in range(first, max(last, first + 1) + 1)]
    if len(powers) > 3:
        return powers
    finer = [step * power for power in powers for step in (1, 2, 5)]
    inside = [tick for tick, following in pairwise(finer) if following > low and tick < high]
    return [*inside, next((tick for tick in finer if tick >= high), finer[-1])]


def linear_ticks(high: float) -> list[float]:
    """From 0 to `high` or a little more, in four to six round steps."""
    if high <= 0:
        return [0.0, 1.0]
    power = 10.0 ** math.floor(math.log10(high))
    step = next(part * power for part in (0.2, 0.25, 0.5, 1, 2) if high / (part * power) <= 5)
    return [step * index for index in range(math.ceil(high / step) + 1)]
