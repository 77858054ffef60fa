"""Puts that a full disk refuses."""

from structlog.testing import capture_logs

from trioha.errors import StoreError
from trioha.store.disk_refusals import CURRENT_S, LOG_INTERVAL_S, DiskRefusals
from trioha.store.put_status import PutStatus


def test_refusals_are_a_line_now_and_then_and_known_for_a_minute():
    now_s = 0.0
    refusals = DiskRefusals(clock_s=lambda: now_s)
    assert refusals.current == ""
    error = StoreError("no space left", path="/store/commitlog")
    with capture_logs() as logs:
        for number in range(2001):
            now_s = number * LOG_INTERVAL_S / 1000
            result = refusals.refuse(error)
            assert (result.status, result.reason) == (PutStatus.SERVICE_NOT_AVAILABLE, "no space left")
    assert [(line["event"], line["puts"]) for line in logs] == [
        ("the disk refuses puts", 1),
        ("the disk refuses puts", 1000),
        ("the disk refuses puts", 1000),
    ]
    assert refusals.current == "/store/commitlog: no space left"
    now_s += CURRENT_S + 1
    assert refusals.current == ""
