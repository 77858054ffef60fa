"""`trioha monitor` up to the point where the screen opens, and on a real terminal."""

import fcntl
import os
import pty
import selectors
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import trioha_monitor
from tests.monitor.builders import MASTER
from tests.ports import free_port
from trioha.cli import monitor as command_module
from trioha.cli.monitor import monitor
from trioha.errors import ConfigError, TriohaError
from trioha.extras import how_to_install
from trioha.remoting.client import ClientSecurity

SCRIPT = "import sys; from trioha.cli.monitor import monitor; sys.exit(monitor(*sys.argv[1:]))"


def one_line(error):
    text = str(error)
    assert "\n" not in text
    return text


@pytest.fixture
def _on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True, raising=False)


def test_without_an_address_the_error_names_the_arguments():
    with pytest.raises(TriohaError) as caught:
        monitor()
    assert one_line(caught.value) == (
        "monitor: no node to watch; name one or more, as in: trioha monitor 127.0.0.1:10911"
    )


def test_an_invalid_address_is_refused_with_the_reason():
    with pytest.raises(ConfigError) as caught:
        monitor(MASTER, "localhost")
    assert "'localhost' is not an address" in one_line(caught.value)


@pytest.mark.parametrize("missing", ["textual", "trioha_monitor"])
def test_a_missing_extra_is_one_line_with_the_package_to_install(missing, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in {"textual", "trioha_monitor"}]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TriohaError) as caught:
        monitor(MASTER)
    assert one_line(caught.value) == f"monitor: Textual is not installed; {how_to_install('monitor')}"


def test_another_missing_module_is_a_bug_and_not_a_missing_extra(monkeypatch):
    def fails(name):
        raise ModuleNotFoundError("No module named 'trioha.gone'", name="trioha.gone")

    monkeypatch.setattr(command_module.importlib, "import_module", fails)
    with pytest.raises(ModuleNotFoundError):
        monitor(MASTER)


@pytest.mark.usefixtures("_on_a_terminal")
@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_missing_terminal_is_one_line(name, monkeypatch):
    monkeypatch.setattr(getattr(sys, name), "isatty", lambda: False, raising=False)
    with pytest.raises(TriohaError) as caught:
        monitor(MASTER)
    assert one_line(caught.value) == f"monitor: {name} is not a terminal; for text or JSON use: trioha status"


@pytest.mark.usefixtures("_on_a_terminal")
def test_the_exit_code_is_that_of_the_monitor(monkeypatch):
    def run_monitor(addresses, **options):
        assert addresses == (MASTER, "[::1]:10911")
        assert options == {
            "name_servers": ("127.0.0.1:9876",),
            "interval_s": 0.5,
            "record_into": Path("here"),
            "security": ClientSecurity(),
        }
        return 7

    monkeypatch.setattr(trioha_monitor, "run_monitor", run_monitor)
    assert (
        monitor(MASTER, "[::1]:10911", namesrv=("127.0.0.1:9876",), interval=0.5, record_dir=Path("here"))
        == 7
    )


@pytest.mark.usefixtures("_on_a_terminal")
def test_a_replay_shows_sessions_and_no_nodes(monkeypatch):
    monkeypatch.setattr(
        trioha_monitor, "run_replay", lambda sessions: 3 if sessions == (Path("a"), Path("b")) else 0
    )
    assert monitor(replay=(Path("a"), Path("b"))) == 3
    with pytest.raises(TriohaError, match="sessions, not nodes"):
        monitor(MASTER, replay=(Path("a"),))


@contextmanager
def terminal(*arguments):
    """The command on a pseudo terminal of 100 columns and 30 lines, which does not control its session."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(60)
        with suppress(OSError):  # a test may have closed it
            os.close(ours)


def read_until(descriptor, wanted, *, timeout_s=20.0):
    """What the terminal got until `wanted` appeared, or until its other end closed if that is None."""
    deadline = time.monotonic() + timeout_s
    seen = b""
    while wanted is None or wanted not in seen:
        # Not select(), which knows no descriptor above 1023.
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            ready = selector.select(max(0.0, deadline - time.monotonic()))
        if not ready:
            raise AssertionError(f"{wanted!r} did not appear in: {seen[-2000:]!r}")
        try:
            data = os.read(descriptor, 65536)
        except OSError:  # Linux: the other end of the terminal is closed
            data = b""
        if not data:
            assert wanted is None, f"ended before {wanted!r}: {seen[-2000:]!r}"
            return seen
        seen += data
    return seen


LEAVE_SCREEN = b"\x1b[?1049l"


@pytest.mark.full
@pytest.mark.process
def test_sigterm_leaves_the_terminal_as_it_was():
    with terminal(f"127.0.0.1:{free_port()}") as (process, descriptor):
        read_until(descriptor, b"Connection refused")
        process.send_signal(signal.SIGTERM)
        rest = read_until(descriptor, None)
        assert process.wait(60) == 0
    assert LEAVE_SCREEN in rest


@pytest.mark.process
def test_a_terminal_that_vanishes_without_a_signal_ends_the_monitor():
    with terminal(f"127.0.0.1:{free_port()}") as (process, descriptor):
        read_until(descriptor, b"Connection refused")
        os.close(descriptor)
        assert process.wait(60) == 0
