"""How rows and graphs are drawn: themes and styles, glyphs, units of bytes, and the time that is drawn."""

from __future__ import annotations

from enum import Enum

from attrs import frozen
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.theme import Theme

from trioha import palette
from trioha.replica_verdict import Verdict
from trioha.severity import Severity
from trioha.unit_texts import format_bytes
from trioha_monitor.config import DEFAULT_THRESHOLDS, Thresholds
from trioha_monitor.texts import NOTHING, format_offset
from trioha_monitor.view import Health


def _theme(name: str, *, dark: bool) -> Theme:
    def colour(hue: palette.Hue) -> str:
        return hue.dark if dark else hue.light

    border = colour(palette.BORDER)
    return Theme(
        name=name,
        dark=dark,
        primary=colour(palette.NOTICE),
        secondary=colour(palette.MUTED),
        accent=colour(palette.ACCENT),
        success=colour(palette.GOOD),
        warning=colour(palette.WARNING),
        error=colour(palette.BAD),
        foreground=colour(palette.TEXT),
        background=colour(palette.BACKGROUND),
        surface=colour(palette.SURFACE),
        panel=colour(palette.PANEL),
        variables={
            "border": border,
            "border-blurred": border,
            "footer-background": colour(palette.SURFACE if dark else palette.PANEL),
        },
    )


DARK = _theme("trioha-dark", dark=True)
LIGHT = _theme("trioha-light", dark=False)


@frozen
class Palette:
    """Styles of the theme in use. A colour is never the only sign: a glyph or a word says the same."""

    text: Style
    """Figures."""
    strong: Style
    """Names."""
    muted: Style
    """Less important text: labels, zeros, old figures."""
    faint: Style
    """Grid lines."""
    accent: Style
    """Roles and keys."""
    reverse: Style
    """The chosen item."""
    good: Style
    notice: Style
    warn: Style
    bad: Style
    good_body: Style
    """The area below the edge of a graph; also the next three."""
    notice_body: Style
    warn_body: Style
    bad_body: Style

    def of(self, severity: Severity) -> Style:
        """The style of a severity."""
        return (self.good, self.notice, self.warn, self.bad)[severity]

    def put_status(self, status: str) -> Style:
        """The style of a put's status, of the colour that it has everywhere."""
        hues = {palette.GOOD: self.good, palette.WARNING: self.warn, palette.ACCENT: self.accent}
        return hues.get(palette.put_status(status), self.bad)

    def body(self, severity: Severity) -> Style:
        """The paler style of a graph's body."""
        return (self.good_body, self.notice_body, self.warn_body, self.bad_body)[severity]


def palette_of(app: App[object]) -> Palette:
    """The palette of the theme that `app` shows now."""
    variables = app.theme_variables

    def colour(name: str) -> Color:
        return Color.parse(variables[name])

    def style(chosen: Color, *, bold: bool = False) -> Style:
        return Style(color=chosen.rich_color, bold=bold or None)

    mixing: Color | None
    foreground, background = colour("foreground"), colour("background")
    if foreground.ansi is not None or background.ansi is not None:
        # A theme of the terminal's own colours: their values are not known and cannot be mixed.
        muted = faint = Style(dim=True)
        mixing = None
    else:
        mixing = background
        muted = style(foreground.blend(background, 0.42))
        faint = style(foreground.blend(background, 0.78))

    def body(name: str) -> Style:
        # The edge's own colour if colours cannot be mixed.
        edge = colour(name)
        return style(edge if mixing is None else edge.blend(mixing, 0.55))

    return Palette(
        text=style(foreground),
        strong=style(foreground, bold=True),
        muted=muted,
        faint=faint,
        accent=style(colour("accent")),
        reverse=Style(reverse=True),
        good=style(colour("success")),
        notice=style(colour("primary")),
        warn=style(colour("warning")),
        bad=style(colour("error")),
        good_body=body("success"),
        notice_body=body("primary"),
        warn_body=body("warning"),
        bad_body=body("error"),
    )


StyledText = tuple[str, Style]
"""A text with its style."""
Line = tuple[StyledText, ...]
"""Texts side by side: a line, or the content of a cell."""

VERDICT_GLYPHS = {
    Verdict.OK: "●",
    Verdict.OBSERVER: "○",
    Verdict.FALL_BEHIND: "▲",
    Verdict.NOT_IN_SYNC: "△",
    Verdict.STALE: "◐",
    Verdict.STALLED: "■",
    Verdict.SILENT: "✗",
    Verdict.GAP: "▼",
    Verdict.REFUSED: "⊘",
    Verdict.DIVERGED: "≠",
}
"""One glyph for each verdict: no two verdicts differ by colour alone."""
HEALTH_GLYPHS = {Health.UP: "●", Health.LATE: "◐", Health.DOWN: "✗", Health.CONNECTING: "◌"}
SEVERITY_GLYPHS = {Severity.GOOD: "●", Severity.NOTICE: "○", Severity.WARNING: "▲", Severity.CRITICAL: "✗"}


class ByteUnits(Enum):
    """Units of numbers of bytes; the value is the text for the user."""

    BINARY = "KiB, MiB, GiB: powers of 1024"
    DECIMAL = "kB, MB, GB: powers of 1000"
    EXACT = "bytes, every digit"

    @property
    def next(self) -> ByteUnits:
        """The next unit; after the last one the first."""
        every = tuple(ByteUnits)
        return every[(every.index(self) + 1) % len(every)]


@frozen
class RenderContext:
    """What rows and graphs need beside their figures."""

    palette: Palette
    units: ByteUnits = ByteUnits.BINARY
    end_ms: int = 0
    """Newest moment that is drawn."""
    span_ms: int = 120_000
    """Length of the time that is drawn."""
    thresholds: Thresholds = DEFAULT_THRESHOLDS
    """From when on figures are pointed out."""

    def size(self, count: float | None) -> str:
        """A number of bytes."""
        if count is None:
            return NOTHING
        if self.units is ByteUnits.BINARY:
            return format_bytes(count)
        if self.units is ByteUnits.DECIMAL:
            return format_bytes(count, decimal=True)
        return f"{count:,.0f} B"

    def rate(self, bytes_per_s: float | None) -> str:
        """Bytes per second."""
        return NOTHING if bytes_per_s is None else f"{self.size(bytes_per_s)}/s"

    def figure(self, text: str, *, is_old: bool = False) -> Line:
        """A figure; muted if it is not known or out of date."""
        return ((text, self.palette.muted if is_old or text == NOTHING else self.palette.text),)

    def offset(self, offset: int | None, *, is_old: bool = False) -> Line:
        """An offset in full."""
        return self.figure(format_offset(offset), is_old=is_old)

    def verdict(self, verdict: Verdict) -> StyledText:
        """Glyph, word and colour."""
        return (f"{VERDICT_GLYPHS[verdict]} {verdict.value}", self.palette.of(verdict.severity))

    def health(self, health: Health) -> StyledText:
        """Glyph, word and colour."""
        style = self.palette.muted if health is Health.CONNECTING else self.palette.of(health.severity)
        return (f"{HEALTH_GLYPHS[health]} {health.value}", style)
