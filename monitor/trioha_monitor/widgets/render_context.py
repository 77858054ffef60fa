"""How things are written: colours, units of bytes, glyphs, and which stretch of time is drawn. Pure."""

from __future__ import annotations

from enum import Enum

from attrs import frozen
from rich.style import Style

from trioha_monitor.series import Severity
from trioha_monitor.themes import Palette
from trioha_monitor.units import NOTHING, format_bytes, format_duration, format_offset
from trioha_monitor.view import Health, Verdict

Part = tuple[str, Style]
"""A piece of text and how it is drawn."""
Line = tuple[Part, ...]
"""Pieces side by side: a line, or the content of a cell."""

VERDICT_GLYPHS = {
    Verdict.OK: "●",
    Verdict.OBSERVER: "○",
    Verdict.FALL_BEHIND: "▲",
    Verdict.NOT_IN_SYNC: "△",
    Verdict.STALE: "◐",
    Verdict.STALLED: "■",
    Verdict.SILENT: "✗",
    Verdict.GAP: "▼",
    Verdict.DIVERGED: "≠",
}
"""One sign for each verdict, so that no two differ by their colour alone."""
HEALTH_GLYPHS = {Health.UP: "●", Health.LATE: "◐", Health.DOWN: "✗", Health.CONNECTING: "◌"}
SEVERITY_GLYPHS = {Severity.GOOD: "●", Severity.NOTICE: "○", Severity.WARNING: "▲", Severity.BAD: "✗"}


class ByteUnits(Enum):
    """How numbers of bytes are written. The value says it to the user."""

    BINARY = "KiB, MiB, GiB: powers of 1024"
    DECIMAL = "kB, MB, GB: powers of 1000"
    EXACT = "bytes, every digit"

    @property
    def next(self) -> ByteUnits:
        """The one after this, the first again after the last."""
        every = tuple(ByteUnits)
        return every[(every.index(self) + 1) % len(every)]


@frozen
class RenderContext:
    """What rows and graphs need beside what they show."""

    palette: Palette
    units: ByteUnits = ByteUnits.BINARY
    end_ms: int = 0
    """The newest moment that is drawn."""
    span_ms: int = 120_000
    """How much time before it is drawn."""

    def size(self, count: float | None) -> str:
        """A number of bytes."""
        if count is None:
            return NOTHING
        if self.units is ByteUnits.BINARY:
            return format_bytes(count)
        if self.units is ByteUnits.DECIMAL:
            return _decimal(count)
        return f"{count:,.0f} B"

    def rate(self, bytes_per_s: float | None) -> str:
        """Bytes per second."""
        return NOTHING if bytes_per_s is None else f"{self.size(bytes_per_s)}/s"

    def figure(self, text: str, *, is_old: bool = False) -> Line:
        """A figure: pale if nothing is known or it is out of date."""
        return ((text, self.palette.muted if is_old or text == NOTHING else self.palette.text),)

    def offset(self, offset: int | None, *, is_old: bool = False) -> Line:
        """An offset in full."""
        return self.figure(format_offset(offset), is_old=is_old)

    def verdict(self, verdict: Verdict) -> Part:
        """Glyph, word and colour."""
        return (f"{VERDICT_GLYPHS[verdict]} {verdict.value}", self.palette.of(verdict.severity))

    def health(self, health: Health) -> Part:
        """Glyph, word and colour."""
        style = self.palette.muted if health is Health.CONNECTING else self.palette.of(health.severity)
        if health is Health.LATE:
            style = self.palette.warn
        return (f"{HEALTH_GLYPHS[health]} {health.value}", style)


def seconds(duration_s: float | None) -> str:
    """A lag or another short time: `0 s`, `0.2 s`, `4.1 s`, `1m 05s`; bounded in width."""
    if duration_s is None:
        return NOTHING
    if duration_s <= 0:
        return "0 s"
    if duration_s < 0.1:
        return f"{max(1.0, duration_s * 1000):.0f} ms"
    if duration_s < 99.95:
        return f"{duration_s:.1f} s"
    return format_duration(duration_s)


def milliseconds(duration_ms: float) -> str:
    """A latency: `0.21 ms`, `3.4 ms`, `120 ms`, `2.1 s`."""
    if duration_ms < 9.995:
        return f"{duration_ms:.2f} ms"
    if duration_ms < 99.95:
        return f"{duration_ms:.1f} ms"
    return f"{duration_ms:.0f} ms" if duration_ms < 1000 else seconds(duration_ms / 1000)


def count(number: float | None) -> str:
    """A number of things: `0`, `12`, `1,204`."""
    return NOTHING if number is None else f"{number:,.0f}"


def _decimal(number: float) -> str:
    sign, size = ("-", -number) if number < 0 else ("", number)
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            break
        size /= 1000
    if unit == "B":
        return f"{sign}{size:.0f} B"
    digits = 2 if size < 9.995 else 1 if size < 99.95 else 0
    return f"{sign}{size:.{digits}f} {unit}"
