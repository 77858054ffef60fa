"""The walk in C reads no byte beyond its end, refuses what does not fit, and lets other threads run.

That it passes the same records as plain Python is in `test_kernel`.
"""

import subprocess
import sys
import threading
import time
from array import array

import pytest
from attrs import evolve

from tests.store.guarded import run_guarded
from tests.store.support import VECTORS
from tests.store.test_kernel import Wanted, in_order, mode, needs_kernel
from trioha.store import compiled
from trioha.store.record import encode_record
from trioha.store.record_layout import scan_records

pytestmark = needs_kernel

LOG = VECTORS / "store-5.3.3/store/commitlog" / f"{0:020}"


def records_of(count, *, body):
    """Common records of one topic that follow each other from offset 0 on."""
    data = bytearray()
    for record in in_order([Wanted("T", 0, b"", 0, body, None, False, 1)] * count):
        data += encode_record(evolve(record, physical_offset=len(data)))
    return data


WITHOUT_CRC = """
import importlib.util, sys
import _socket

spec = importlib.util.spec_from_file_location("trioha.store._records", sys.argv[1])
walk = importlib.util.module_from_spec(spec)
spec.loader.exec_module(walk)
for path in ("/nonexistent.so", _socket.__file__):
    assert walk.find_crc32(path) is False
assert walk.walk_records(bytes(100), 0, 100, 0, False) == (0, 0, -1)
try:
    walk.walk_records(bytes(100), 0, 100, 0, True)
except RuntimeError as error:
    print(error)
"""
GUARDED = """
from pathlib import Path

log = Path(sys.argv[1]).read_bytes()[: 3 * mmap.PAGESIZE]
passed = 0
for size in range(1, len(log) + 1):
    # The bytes end where the page that nobody may read begins.
    at = len(view) - size
    view[at:] = log[:size]
    for check_crc in (False, True):
        passed += compiled.records.walk_records(view, at, len(view), -at, check_crc)[1]
    described = compiled.records.describe_records(view, at, len(view), -at, set(), 10)
    assert described[:2] == compiled.records.walk_records(view, at, len(view), -at, True)[:2]
for size in range(91, 500):
    # Lengths inside the record that lead beyond it.
    at = len(view) - size
    view[at:] = log[:size]
    view[at : at + 4] = size.to_bytes(4, "big")
    for body_bytes in range(-1, size - 80):
        view[at + 84 : at + 88] = body_bytes.to_bytes(4, "big", signed=True)
        if 0 <= body_bytes < size - 88:
            view[at + 88 + body_bytes] = 127
        for check_crc in (False, True):
            compiled.records.walk_records(view, at, len(view), -at, check_crc)
        compiled.records.describe_records(view, at, len(view), -at, set(), 10)
print(passed)
"""


def test_no_byte_after_the_end_is_read():
    assert run_guarded(GUARDED, str(LOG)) > 1000


@pytest.mark.parametrize(
    ("at", "end", "shift"),
    [(-1, 10, 0), (11, 10, 0), (0, 101, 0), (0, 100, 2**63 - 50), (0, 100, 2**63), (2**70, 100, 0)],
)
def test_places_that_do_not_fit_the_buffer_are_refused(at, end, shift):
    with pytest.raises((ValueError, OverflowError)):
        compiled.records.walk_records(bytes(100), at, end, shift, False)


def test_what_is_no_buffer_of_bytes_in_a_row_is_refused():
    for wrong in ("text", 5, None, memoryview(bytes(100))[::2]):
        with pytest.raises((TypeError, BufferError)):
            compiled.records.walk_records(wrong, 0, 10, 0, False)
    with pytest.raises(TypeError, match="5 arguments"):
        compiled.records.walk_records(b"", 0, 0, 0)
    assert compiled.records.walk_records(array("q", [0] * 20), 0, 160, 0, False) == (0, 0, -1)


def test_a_long_walk_lets_other_threads_run():
    view = memoryview(records_of(6000, body=bytes(64 * 1024)))
    turns = 0
    is_over = threading.Event()

    def count():
        nonlocal turns
        while not is_over.is_set():
            turns += 1
            time.sleep(0)

    interval_s = sys.getswitchinterval()
    # Longer than the walk: nothing but the walk itself gives the interpreter to the other thread.
    sys.setswitchinterval(60)
    thread = threading.Thread(target=count)
    try:
        thread.start()
        before = turns
        assert compiled.records.walk_records(view, 0, len(view), 0, True)[1] == 6000
        during = turns - before
    finally:
        sys.setswitchinterval(interval_s)
        is_over.set()
        thread.join()
    assert during > 0


def test_without_the_crc_of_isa_l_records_are_checked_in_plain_python(monkeypatch):
    data = records_of(3, body=b"body")
    data[-5] ^= 1
    view = memoryview(data)
    with mode(is_compiled=False):
        plain = scan_records(view, 0, len(view), 0)
    assert plain.records == 2
    monkeypatch.setattr(compiled, "CHECKS_CRC", False)
    monkeypatch.setattr(compiled, "records", None)
    assert scan_records(view, 0, len(view), 0) == plain


def test_a_library_without_that_crc_is_not_used():
    # In a process of its own, without compiled.py: that would find it.
    said = subprocess.check_output(
        [sys.executable, "-c", WITHOUT_CRC, str(compiled.records.__file__)], text=True, timeout=100
    )
    assert said == "find_crc32 has not found a CRC\n"
