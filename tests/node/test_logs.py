"""Log lines that cannot be written."""

import io
import socket
import sys
from pathlib import Path

import pytest
import structlog

from trioha.node.logs import LogStream, configure_logs


class Disk(io.StringIO):
    """A stream on a disk that may be full."""

    is_full = False

    def write(self, text):
        if self.is_full:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lost_lines_are_counted_in_the_next_one_that_can_be_written(monkeypatch):
    disk = Disk()
    monkeypatch.setattr(sys, "stderr", disk)
    configure_logs(as_json=True)
    log = structlog.get_logger()
    log.info("first")
    disk.is_full = True
    log.info("second")
    log.info("third")
    disk.is_full = False
    log.info("fourth")
    log.info("fifth")
    first, lost, fourth, fifth = disk.getvalue().splitlines()
    assert '"first"' in first
    assert lost == "2 log lines before this one could not be written"
    assert '"fourth"' in fourth
    assert '"fifth"' in fifth


def test_a_closed_stream_loses_lines_and_raises_nothing():
    stream = io.StringIO()
    stream.close()
    lines = LogStream(stream)
    lines.write("line\n")
    assert lines.lost == 1


@pytest.mark.process
def test_a_node_lives_on_when_its_log_cannot_be_written(start_node):
    """Its stderr is on a full disk: it serves, a stranger at its HA port is logged, and it stops cleanly."""
    node = start_node(role="ASYNC_MASTER", log_path=Path("/dev/full"))
    with socket.create_connection(("127.0.0.1", node.ha_port), 60) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        # Closed by the node, which has logged why.
        assert stranger.recv(1) == b""
    assert node.load(20).statuses == {"PUT_OK": 20}
    node.stop()
