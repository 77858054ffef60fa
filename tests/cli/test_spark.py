"""Progress of commands on Spark."""

import io
import os
import pty
import sys
from contextlib import suppress

import pytest

from trioha.cli.console import PlainConsole
from trioha.cli.spark import ProgressLines, progress


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *, shown: bool) -> str:
    """Output on a terminal when 3 of 8 tasks are done."""
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as stderr:
            # In the test itself: pytest has set it anew after the fixtures.
            monkeypatch.setattr(sys, "stderr", stderr)
            monkeypatch.setenv("TERM", "xterm-256color")
            with progress("replaying on Spark", shown=shown) as watch:
                watch(3, 8)
        text = b""
        # The other end is closed: what is on its way comes, and then EIO.
        with suppress(OSError):
            while True:
                text += os.read(ours, 1 << 16)
        return text.decode()
    finally:
        os.close(ours)


def test_terminal_shows_how_many_tasks_are_done(monkeypatch):
    text = shown_on_a_terminal(monkeypatch, shown=True)
    assert "starting Spark" in text
    assert "replaying on Spark" in text
    assert "3/8" in text


def test_progress_without_a_terminal_is_a_line_every_five_seconds():
    now_s, said = [100.0], io.StringIO()
    lines = ProgressLines("replaying on Spark", PlainConsole(file=said), clock=lambda: now_s[0])
    for second in range(12):
        now_s[0] = 100.0 + second
        lines.watch(second, 20)
    assert said.getvalue().splitlines() == [
        "replaying on Spark: 5 of 20 tasks after 5 s",
        "replaying on Spark: 10 of 20 tasks after 10 s",
    ]


def test_progress_that_is_short_says_nothing_without_a_terminal(monkeypatch):
    assert shown_on_a_terminal(monkeypatch, shown=False) == ""


def test_progress_is_silent_under_spark_submit(monkeypatch, capsys):
    """It prints the stderr of its program as stdout."""
    monkeypatch.setattr("trioha.cli.spark.LINE_EVERY_S", 0.0)
    for is_submitted, lines in ((False, 1), (True, 0)):
        if is_submitted:
            monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
        with progress("replaying", shown=False) as watch:
            watch(1, 2)
        assert capsys.readouterr().err.count("\n") == lines
