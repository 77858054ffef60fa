"""The monitor on a real terminal (tmux): keys are typed and the screen is read."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import closing
from uuid import uuid4

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux: a real terminal cannot be played"),
]


class Terminal:
    """A tmux server of its own with one window, 100 columns and 30 lines by default."""

    def __init__(self, folder, *command, size=(100, 30)):
        self._server = f"trioha-{uuid4().hex}"
        columns, lines = map(str, size)
        self._tmux(
            "-f", "/dev/null", "new-session", "-d", "-x", columns, "-y", lines, "-c", str(folder), *command
        )

    def press(self, *keys):
        self._tmux("send-keys", *keys)

    def read(self):
        return self._tmux("capture-pane", "-p")

    def wait_for(self, *texts, timeout_s=120.0):
        """The screen, once all `texts` are on it."""
        deadline = time.monotonic() + timeout_s
        while True:
            screen = self.read()
            if all(text in screen for text in texts):
                return screen
            assert time.monotonic() < deadline, f"{texts} did not appear on:\n{screen}"
            time.sleep(0.1)

    def wait_for_the_end(self):
        """Until what it runs has ended, and the terminal with it."""
        deadline = time.monotonic() + 60
        while (
            subprocess.run(
                ["tmux", "-L", self._server, "has-session"], check=False, capture_output=True
            ).returncode
            == 0
        ):
            assert time.monotonic() < deadline, f"it goes on:\n{self.read()}"
            time.sleep(0.1)

    def close(self):
        subprocess.run(["tmux", "-L", self._server, "kill-server"], check=False, capture_output=True)

    def _tmux(self, *arguments):
        # The environment of the tests may have a terminal's size: only the real one counts.
        environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        done = subprocess.run(
            ["tmux", "-L", self._server, *arguments],
            check=True, capture_output=True, text=True,
            env={**environment, "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"},
        )  # fmt: skip
        return done.stdout


@pytest.fixture
def terminal(tmp_path):
    demo = (sys.executable, "-m", "trioha", "demo", "--watch", "--keep", str(tmp_path / "kept"))
    # The window stays open after the demo: its summary is read from it.
    stays_open = ("sh", "-c", '"$@"; exec sleep 600', "sh")
    played = Terminal(tmp_path, *stays_open, *demo, "--report", str(tmp_path / "report.html"))
    yield played
    # A hang-up ends the demo with all that it started.
    played.close()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java: the demo does not start without it")
def test_the_demo_is_watched_steered_and_left(terminal, tmp_path):
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
    terminal.wait_for("Verdicts", "Scroll help")
    terminal.press("Escape")
    terminal.wait_for("2 up, 1 in step")
    terminal.press("r")
    terminal.wait_for("REC")
    terminal.press("r", "s", "q")
    terminal.wait_for("checks held")
    assert list(tmp_path.glob("trioha-monitor-*.svg"))
    assert list(tmp_path.glob("*-monitor.jsonl.gz"))


def test_a_pair_is_watched_recorded_and_seen_again(tmp_path, start_node):
    records = {"trioha.recordDir": tmp_path / "nodes"}
    master = start_node("m", role="SYNC_MASTER", **records)
    slave = start_node("s", role="SLAVE", ha_master_address=master.ha_address, **records)
    master.wait(connections=1)
    assert master.load(3).statuses == {"PUT_OK": 3}
    monitor = (sys.executable, "-m", "trioha", "monitor")
    nodes = (master.listen_address, slave.listen_address)
    with closing(Terminal(tmp_path, *monitor, *nodes, size=(80, 24))) as terminal:
        terminal.wait_for("interop #0", "interop #1", "● OK", "2 up, 1 in step")
        terminal.press("r")
        terminal.wait_for("REC")
        # All at once, as a terminal sends a pasted text.
        terminal.press("-l", "4/answers")
        terminal.wait_for("with “answers”", "SYNC_MASTER")
        terminal.press("Enter")
        terminal.press("-l", "1ru")
        terminal.wait_for("Recorded; see it again", "2 up, 1 in step")
        terminal.press("q")
        terminal.wait_for_the_end()
    (seen,) = tmp_path.glob("*-monitor.jsonl.gz")
    # The slave's recording ends first, and the master sees it.
    slave.stop()
    master.wait(connections=0)
    master.stop()
    for size, recording, at_end, event in (
        ((120, 40), tmp_path / "nodes", ("✗ SILENT", "its recording ended in order"), "begins"),
        ((80, 24), seen, ("● OK", "in step"), "answers: "),
    ):
        with closing(Terminal(tmp_path, *monitor, "--replay", str(recording), size=size)) as terminal:
            terminal.wait_for("REPLAY", "interop #0", "interop #1")
            # The session's whole length takes no longer than it took: to its end, and back to an event.
            terminal.press("-l", "1gend")
            terminal.press("Enter")
            terminal.wait_for(*at_end)
            terminal.press("N")
            terminal.press("-l", "4")
            terminal.wait_for("Events", event)
            terminal.press("q")
            terminal.wait_for_the_end()
