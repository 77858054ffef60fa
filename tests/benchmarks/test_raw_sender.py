"""The sender that only sends: each slave receives the whole log in frames."""

import os
import socket
import threading

import pytest

from tests.benchmarks.bench_rocketmq_slave import raw_options
from tests.benchmarks.rivals.raw_sender import RawSender
from trioha.ha.frames import BodyPart, FrameHeader, TransferDecoder, encode_report

LOG_BYTES = 1_000_003
WITHIN_S = 60


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(os.urandom(LOG_BYTES) + bytes(100))
    return path


def receive_log(port, received, *, until):
    """A slave that reports after each frame, and reports once more at `until`."""
    decoder = TransferDecoder()
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as master:
        master.sendall(encode_report(0))
        while len(received) < until:
            decoder.feed(master.recv(4096))
            while (event := decoder.next_event()) is not None:
                if isinstance(event, FrameHeader):
                    assert event.offset == len(received)
                else:
                    assert isinstance(event, BodyPart)
                    received += event.data
                    if event.ended:
                        master.sendall(encode_report(len(received)))


@pytest.mark.parametrize(("frame_bytes", "frames_per_call"), [(32 * 1024, 1), (1000, 31), (1 << 20, 1)])
def test_each_slave_receives_the_whole_log(log, frame_bytes, frames_per_call):
    sender = RawSender(log, log_bytes=LOG_BYTES)
    try:
        for _ in range(2):
            received = bytearray()
            slave = threading.Thread(
                target=receive_log, args=(sender.ha_port, received), kwargs={"until": LOG_BYTES}
            )
            slave.start()
            found = sender.catch_up(
                within_s=WITHIN_S, frame_bytes=frame_bytes, frames_per_call=frames_per_call
            )
            slave.join(WITHIN_S)
            sender.alone(within_s=WITHIN_S)
            assert received == log.read_bytes()[:LOG_BYTES]
            assert found["bytes"] == LOG_BYTES
    finally:
        sender.close()


def test_a_slave_that_hangs_up_is_an_error(log):
    sender = RawSender(log, log_bytes=LOG_BYTES)
    try:
        slave = threading.Thread(
            target=receive_log, args=(sender.ha_port, bytearray()), kwargs={"until": 5000}
        )
        slave.start()
        with pytest.raises(ConnectionError):
            sender.catch_up(within_s=WITHIN_S, frame_bytes=1000)
        slave.join(WITHIN_S)
        sender.alone(within_s=WITHIN_S)
    finally:
        sender.close()


def test_options_of_a_raw_sender():
    assert raw_options("32") == {
        "frame_bytes": 32768,
        "frames_per_call": 1,
        "send_buffer_bytes": 0,
        "unsent_bytes_max": 0,
    }
    assert raw_options("128x4x64x256") == {
        "frame_bytes": 131072,
        "frames_per_call": 4,
        "send_buffer_bytes": 65536,
        "unsent_bytes_max": 262144,
    }
