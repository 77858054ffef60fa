"""Output of commands: results on stdout, progress and remarks on stderr.

Most of what commands print is from outside: names of peers, their errors, paths, messages. So a string that
is printed, also in a cell or a title of a table, is plain text in one line: no markup, no emoji codes,
control characters escaped (`trioha.outside_text`). A text with several styles or lines is a `rich.text.Text`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from typing import IO, Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from trioha import palette
from trioha.outside_text import escaped, escaped_json, is_safe, one_for_one
from trioha.severity import Severity

SEVERITY_STYLES: Final = {
    Severity.GOOD: palette.GOOD.terminal,
    Severity.NOTICE: palette.NOTICE.terminal,
    Severity.WARNING: palette.WARNING.terminal,
    Severity.CRITICAL: f"bold {palette.BAD.terminal}",
}
PIPE_COLUMNS: Final = 200
"""Width of output that is not on a terminal: a table in a pipe is not cut at 80 columns."""


class PlainConsole(Console):
    """A console for text from outside: see the module's text.

    Control characters in a `Text`, which should not have any, become U+FFFD.
    """

    def __init__(self, *, file: IO[str] | None = None, stderr: bool = False) -> None:
        stream = file or (sys.stderr if stderr else sys.stdout)
        width = None if stream.isatty() else PIPE_COLUMNS
        super().__init__(file=file, stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Rich calls it for each string, to measure and to draw it."""
        return super().render_str(escaped(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Rich calls it for all that is drawn, the console's own control codes included."""
        for segment in super().render(renderable, options):
            if segment.control or is_safe(segment.text):
                yield segment
            else:
                yield Segment(one_for_one(segment.text), segment.style)


@cache
def out() -> Console:
    """The console for results, on stdout."""
    return PlainConsole()


@cache
def err() -> Console:
    """The console for progress and remarks, on stderr."""
    return PlainConsole(stderr=True)


def json_line(value: Any) -> str:
    """`value` as JSON in one line that is safe on a terminal; ASCII if stdout is not UTF-8."""
    return escaped_json(json.dumps(value, ensure_ascii=not is_utf8(getattr(sys.stdout, "encoding", None))))


def is_utf8(encoding: str | None) -> bool:
    """Whether an encoding, by any of its names, is UTF-8."""
    return (encoding or "").lower().replace("_", "-") in {"utf-8", "utf8"}


def print_json(value: Any) -> None:
    """Print `value` as JSON on one line of stdout."""
    print(json_line(value), flush=True)
