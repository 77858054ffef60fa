"""Colours by meaning: the one table of the monitor, the reports and the command line.

A colour is never the only sign: a word or a glyph says the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen


@frozen
class Hue:
    """The colour of one meaning."""

    light: str
    """Of text and lines on a light ground, `#rrggbb`."""
    dark: str
    """Of text and lines on a dark ground."""
    fill: str
    """Of areas, on either ground."""
    terminal: str
    """Name of the colour among those of a terminal."""


GOOD: Final = Hue("#17803D", "#5AC88A", "#35A266", "green")
"""As it should be."""
NOTICE: Final = Hue("#0B63BF", "#6CB6FF", "#3B86D8", "cyan")
"""Worth knowing; nothing to do."""
WARNING: Final = Hue("#8F6200", "#E9C46A", "#E0A526", "yellow")
"""Not normal; may pass by itself."""
BAD: Final = Hue("#C4232F", "#F47067", "#D84C4F", "red")
"""An operator has to act."""
ACCENT: Final = Hue("#B3500B", "#F0A45D", "#DD7A2B", "magenta")
"""Roles and keys; in a report the second kind of timeout."""
MUTED: Final = Hue("#4A6078", "#8DA4BF", "#8496AB", "bright_black")
"""Labels, and what is not known."""

TEXT: Final = Hue("#1E2A36", "#D5DEE8", "#1E2A36", "default")
BACKGROUND: Final = Hue("#F4F6F8", "#0F151C", "#F4F6F8", "default")
SURFACE: Final = Hue("#FCFDFE", "#141C25", "#FCFDFE", "default")
PANEL: Final = Hue("#E6ECF1", "#1D2833", "#E6ECF1", "default")
BORDER: Final = Hue("#B6C3CF", "#2F3E4E", "#B6C3CF", "default")

_VIOLET: Final = Hue("#7A3FB5", "#B892E8", "#8E5BC4", "magenta")
_PLUM: Final = Hue("#8E1B5A", "#E487B8", "#A33A75", "magenta")

PUT_STATUSES: Final[Mapping[str, Hue]] = {
    "PUT_OK": GOOD,
    "FLUSH_SLAVE_TIMEOUT": WARNING,
    "FLUSH_DISK_TIMEOUT": ACCENT,
    "SLAVE_NOT_AVAILABLE": BAD,
    "IN_SYNC_REPLICAS_NOT_ENOUGH": _PLUM,
    "SERVICE_NOT_AVAILABLE": BAD,
    "OS_PAGE_CACHE_BUSY": _VIOLET,
}
"""By `PutStatus`; the others are `put_status`'s."""

ROLES: Final[Mapping[str, Hue]] = {"MASTER": GOOD, "SLAVE": NOTICE, "NONE": WARNING}
"""Of a broker under controllers, by `GroupRole`."""

REPLICAS: Final = (
    NOTICE,
    _VIOLET,
    Hue("#0B7C86", "#4FC3CF", "#2A9BA6", "cyan"),
    ACCENT,
    _PLUM,
    Hue("#5B6B12", "#B9CC5A", "#8A9A34", "green"),
    Hue("#7A5340", "#CFA68F", "#A57B66", "yellow"),
)
"""Of replicas side by side, which have no meaning of their own: neither green nor red."""

PERCENTILES: Final[Mapping[str, Hue]] = {"p50": NOTICE, "p90": _VIOLET, "p99": ACCENT}


def put_status(status: str) -> Hue:
    """The colour of a put's status: green is stored as promised, amber a timeout, red not available."""
    return PUT_STATUSES.get(status, MUTED)
