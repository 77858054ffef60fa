"""The progress bar of commands on Spark."""

import os
import pty
import sys
from contextlib import suppress

import pytest

from trioha.cli.spark import progress


def shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, *, shown: bool) -> str:
    """Output on a terminal when 3 of 8 tasks are done."""
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as stderr:
            # In the test itself: pytest has set it anew after the fixtures.
            monkeypatch.setattr(sys, "stderr", stderr)
            monkeypatch.setenv("TERM", "xterm-256color")
            with progress("replaying on Spark", shown=shown) as watch:
                assert (watch is not None) == shown
                if watch is not None:
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


def test_nothing_is_shown_without_a_terminal(monkeypatch):
    assert shown_on_a_terminal(monkeypatch, shown=False) == ""
