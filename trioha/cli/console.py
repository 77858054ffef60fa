"""Output of commands: results on stdout, progress and remarks on stderr; the extras that commands need."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any, Final

from rich.console import Console

PIPE_COLUMNS: Final = 200
"""Width of output that is not on a terminal: a table in a pipe is not cut at 80 columns."""


@cache
def out() -> Console:
    """The console for results, on stdout."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


@cache
def err() -> Console:
    """The console for progress and remarks, on stderr."""
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PIPE_COLUMNS)


def print_json(value: Any) -> None:
    """Print `value` as JSON on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False), flush=True)
