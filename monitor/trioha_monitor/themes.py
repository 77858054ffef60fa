"""The two themes of the monitor, and the handful of styles that its rows and graphs are drawn with."""

from __future__ import annotations

from attrs import frozen
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.theme import Theme

from trioha_monitor.series import Severity

DARK = Theme(
    name="trioha-dark",
    dark=True,
    primary="#6CB6FF",
    secondary="#8DA4BF",
    accent="#F0A45D",
    success="#5AC88A",
    warning="#E9C46A",
    error="#F47067",
    foreground="#D5DEE8",
    background="#0F151C",
    surface="#141C25",
    panel="#1D2833",
    variables={"border": "#2F3E4E", "border-blurred": "#2F3E4E", "footer-background": "#141C25"},
)
LIGHT = Theme(
    name="trioha-light",
    dark=False,
    primary="#0B63BF",
    secondary="#4A6078",
    accent="#B3500B",
    success="#17803D",
    warning="#8F6200",
    error="#C4232F",
    foreground="#1E2A36",
    background="#F4F6F8",
    surface="#FCFDFE",
    panel="#E6ECF1",
    variables={"border": "#B6C3CF", "border-blurred": "#B6C3CF", "footer-background": "#E6ECF1"},
)


@frozen
class Palette:
    """Styles of the theme in use. A colour never stands alone: a glyph or a word says the same."""

    text: Style
    """Figures."""
    strong: Style
    """Names."""
    muted: Style
    """What is of less interest: labels, zeros, old figures."""
    faint: Style
    """TimeGrid lines."""
    accent: Style
    """Roles and keys."""
    reverse: Style
    """What is chosen."""
    good: Style
    notice: Style
    warn: Style
    bad: Style
    good_body: Style
    """What lies below the edge of a graph; so for the next three."""
    notice_body: Style
    warn_body: Style
    bad_body: Style

    def of(self, severity: Severity) -> Style:
        """The style that stands for a severity."""
        return (self.good, self.notice, self.warn, self.bad)[severity]

    def body(self, severity: Severity) -> Style:
        """The paler style of a graph's body."""
        return (self.good_body, self.notice_body, self.warn_body, self.bad_body)[severity]


def palette_of(app: App[object]) -> Palette:
    """The palette of the theme that `app` shows now, whichever the user chose."""
    variables = app.theme_variables

    def colour(name: str) -> Color:
        return Color.parse(variables[name])

    def style(chosen: Color, *, bold: bool = False) -> Style:
        return Style(color=chosen.rich_color, bold=bold or None)

    mixing: Color | None
    foreground, background = colour("foreground"), colour("background")
    if foreground.ansi is not None or background.ansi is not None:
        # A theme that leaves colours to the terminal: nothing can be mixed with what is not known.
        muted = faint = Style(dim=True)
        mixing = None
    else:
        mixing = background
        muted = style(foreground.blend(background, 0.42))
        faint = style(foreground.blend(background, 0.78))

    def body(name: str) -> Style:
        # The same colour where nothing can be mixed.
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
