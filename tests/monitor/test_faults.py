"""The monitor's log: where faults of its own are written."""

import structlog

from trioha.net.error_boundary import ErrorBoundary
from trioha_monitor.faults import LOG_BYTES_MAX, UNWRITTEN_MAX, FaultLog, log_path


def test_the_log_is_in_the_users_state_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert log_path() == tmp_path / "trioha" / "monitor.log"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert log_path() == tmp_path / ".local" / "state" / "trioha" / "monitor.log"


def test_a_fault_at_the_border_is_written_with_its_traceback(tmp_path):
    log = FaultLog(tmp_path / "monitor.log")
    before = structlog.get_config()
    log.capture_logs()
    try:
        with ErrorBoundary("monitor feed").around("10.0.0.1:10911"):
            raise ZeroDivisionError("boom")
    finally:
        structlog.configure(**before)
    text = log.path.read_text()
    assert "monitor feed closed by a fault of this program" in text
    assert "10.0.0.1:10911" in text
    assert text.rstrip().endswith("ZeroDivisionError: boom")
    assert "\x1b" not in text


def test_a_long_log_is_renamed_once(tmp_path):
    log = FaultLog(tmp_path / "monitor.log")
    for letter in "abc":
        log.write(letter * (LOG_BYTES_MAX + 1))
    assert log.path.read_text()[0] == "c"
    assert (tmp_path / "monitor.log.1").read_text()[0] == "b"
    assert len(list(tmp_path.iterdir())) == 2


def test_unwritten_lines_are_kept_up_to_a_limit(tmp_path):
    (tmp_path / "file").write_text("")
    log = FaultLog(tmp_path / "file" / "monitor.log")
    for number in range(2 * UNWRITTEN_MAX):
        log.write(f"{number}")
    assert list(log.unwritten) == [f"{number}" for number in range(UNWRITTEN_MAX, 2 * UNWRITTEN_MAX)]
