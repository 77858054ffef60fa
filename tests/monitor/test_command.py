"""`trioha monitor` up to the point where the screen opens, and on a real terminal."""

import os
import signal
import sys
from pathlib import Path

import pytest

import trioha_monitor
from tests.monitor.builders import MASTER
from tests.ports import free_port
from tests.terminals import read_until, terminal
from trioha.cli import monitor as command_module
from trioha.cli.monitor import monitor
from trioha.errors import ConfigError, TriohaError
from trioha.extras import how_to_install
from trioha.remoting.client import ClientSecurity
from trioha_monitor.config import Thresholds

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


@pytest.mark.usefixtures("_on_a_terminal")
def test_without_an_address_the_name_servers_of_the_environment_are_asked(monkeypatch):
    asked = []

    def run_monitor(addresses, **options):
        asked.append((addresses, options["name_servers"]))
        return 0

    monkeypatch.setattr(trioha_monitor, "run_monitor", run_monitor)
    monkeypatch.setenv("NAMESRV_ADDR", "a:9876;b:9876")
    assert monitor() == 0
    assert asked == [((), ("a:9876", "b:9876"))]


def test_an_invalid_address_is_refused_with_the_reason():
    with pytest.raises(ConfigError) as caught:
        monitor(MASTER, "localhost")
    assert "'localhost' is not an address" in one_line(caught.value)


@pytest.mark.parametrize(
    ("missing", "name"), [("numpy", "NumPy"), ("textual", "Textual"), ("trioha_monitor", "Textual")]
)
def test_a_missing_extra_is_one_line_with_the_package_to_install(missing, name, monkeypatch):
    for module in [one for one in sys.modules if one.partition(".")[0] in {"textual", "trioha_monitor"}]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TriohaError) as caught:
        monitor(MASTER)
    assert one_line(caught.value) == f"monitor: {name} is not installed; {how_to_install('monitor')}"


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
            "thresholds": Thresholds(),
        }
        return 7

    monkeypatch.setattr(trioha_monitor, "run_monitor", run_monitor)
    assert (
        monitor(MASTER, "[::1]:10911", namesrv=("127.0.0.1:9876",), interval=0.5, record_dir=Path("here"))
        == 7
    )


@pytest.mark.usefixtures("_on_a_terminal")
def test_a_configuration_file_has_addresses_unless_the_command_line_has_them(monkeypatch, tmp_path):
    config = tmp_path / "monitor.toml"
    config.write_text(
        f"[monitor]\naddresses = ['{MASTER}']\nnamesrv = ['b:9876']\nthresholds.group-lag-s = 7"
    )
    asked = []

    def run_monitor(addresses, **options):
        asked.append((addresses, options["name_servers"], options["thresholds"].group_lag_s))
        return 0

    monkeypatch.setattr(trioha_monitor, "run_monitor", run_monitor)
    monitor(config=config)
    monitor("a:1", config=config)
    monitor(namesrv=("c:9876",), config=config)
    assert asked == [((MASTER,), ("b:9876",), 7.0), (("a:1",), (), 7.0), ((), ("c:9876",), 7.0)]


@pytest.mark.usefixtures("_on_a_terminal")
def test_a_replay_shows_sessions_and_no_nodes(monkeypatch):
    monkeypatch.setattr(
        trioha_monitor, "run_replay", lambda sessions, **_: 3 if sessions == (Path("a"), Path("b")) else 0
    )
    assert monitor(replay=(Path("a"), Path("b"))) == 3
    with pytest.raises(TriohaError, match="sessions, not nodes"):
        monitor(MASTER, replay=(Path("a"),))


def command_for_nobody(*, before=""):
    """The monitor of an address at which nothing listens; `before` are statements that run first."""
    return [sys.executable, "-c", before + SCRIPT, f"127.0.0.1:{free_port()}"]


LEAVE_SCREEN = b"\x1b[?1049l"


@pytest.mark.full
@pytest.mark.process
def test_sigterm_leaves_the_terminal_as_it_was():
    with terminal(command_for_nobody()) as (process, descriptor):
        read_until(descriptor, b"Connection refused")
        process.send_signal(signal.SIGTERM)
        rest = read_until(descriptor, None)
        assert process.wait(60) == 0
    assert LEAVE_SCREEN in rest


@pytest.mark.process
def test_a_terminal_that_vanishes_without_a_signal_ends_the_monitor():
    with terminal(command_for_nobody()) as (process, descriptor):
        read_until(descriptor, b"Connection refused")
        os.close(descriptor)
        assert process.wait(60) == 0


TAKES_NOTHING = """
import threading
from trioha_monitor import terminal
terminal.END_TIMEOUT_S = 1.0
write = terminal._Output.write
def write_then_hang(output, text):
    write(output, text)
    output.flush()
    if "Connection refused" in text:
        threading.Event().wait()
terminal._Output.write = write_then_hang
"""


@pytest.mark.full
@pytest.mark.process
def test_sigterm_ends_the_monitor_also_if_the_terminal_takes_nothing():
    with terminal(command_for_nobody(before=TAKES_NOTHING)) as (process, descriptor):
        read_until(descriptor, b"Connection refused")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 1
