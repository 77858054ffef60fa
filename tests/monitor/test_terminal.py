"""`trioha demo --watch` on a real terminal (tmux): keys are typed and the screen is read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(240),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: a real terminal cannot be played"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java: the demo does not start without it"),
]


class Terminal:
    """A tmux server of its own with one window of 100 columns and 30 lines."""

    def __init__(self, folder: Path, *command: str) -> None:
        self._server = f"trioha-{uuid4().hex}"
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30", "-c", str(folder), *command
        )

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def read(self) -> str:
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *texts: str, timeout_s: float = 60.0) -> str:
        """The screen, once all `texts` are on it."""
        deadline = time.monotonic() + timeout_s
        while True:
            screen = self.read()
            if all(text in screen for text in texts):
                return screen
            assert time.monotonic() < deadline, f"{texts} did not appear on:\n{screen}"
            time.sleep(0.1)

    def close(self) -> None:
        subprocess.run(["tmux", "-L", self._server, "kill-server"], check=False, capture_output=True)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._server, *arguments],
            check=True, capture_output=True, text=True,
            env={**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"},
        )  # fmt: skip
        return done.stdout


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    demo = (sys.executable, "-m", "trioha", "demo", "--watch", "--keep", str(tmp_path / "kept"))
    played = Terminal(tmp_path, *demo, "--report", str(tmp_path / "report.html"))
    yield played
    # A hang-up ends the demo with all that it started.
    played.close()


def test_the_demo_is_watched_steered_and_left(terminal: Terminal, tmp_path: Path) -> None:
    terminal.wait_for("1 Replicas", "SYNC_MASTER", "TRANSFER", "● OK")
    terminal.press("2")
    terminal.wait_for("Offsets", "appended", "Ack time")
    terminal.press("3")
    terminal.wait_for("Logs", "Holds", "Growth of the log")
    terminal.press("4")
    terminal.wait_for("Events", "connect", "Time")
    terminal.press("/")
    terminal.wait_for("filter: words")
    terminal.press("connect")
    terminal.wait_for("with “connect”")
    terminal.press("Enter")
    terminal.press("1")
    # The demo kills the slave while the monitor looks on, and starts it again.
    terminal.wait_for("SILENT", "DOWN")
    terminal.press("Space")
    terminal.wait_for("PAUSED")
    terminal.press("Space", "?")
    terminal.wait_for("Help: Replicas", "Verdicts")
    terminal.press("Escape")
    terminal.wait_for("2 up, 1 in step")
    terminal.press("r")
    terminal.wait_for("REC")
    terminal.press("r", "s", "q")
    terminal.wait_for("the slave's absence")
    assert list(tmp_path.glob("trioha-monitor-*.svg"))
    assert list(tmp_path.glob("*-monitor"))
