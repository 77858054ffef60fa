"""The walk passes the records that the check of each one passes, compiled or not, of logs of all kinds."""

import pytest
from attrs import evolve
from isal.isal_zlib import crc32

from tests.compiled_code import compiled_code, needs_compiled
from tests.store.support import VECTORS
from tests.store.test_any_record import HOST_V6
from tests.store.test_compiled_records import Wanted, in_order
from trioha.store import compiled_records
from trioha.store.record import encode_record
from trioha.store.record_layout import _COPY_BYTES, BORN_HOST_V6, FaultKind, check_record, scan_records

pytestmark = needs_compiled

LOG = VECTORS / "store-5.3.3/store/commitlog" / f"{0:020}"


def records_of(bodies, *, are_common=True):
    """Records of one topic that follow each other from offset 0 on."""
    data = bytearray()
    wanted = [Wanted("T", 0, b"", 0, body, None, False, 1) for body in bodies]
    for record in in_order(wanted):
        kept = evolve(record, physical_offset=len(data))
        if not are_common:
            kept = evolve(kept, born_host=HOST_V6, sys_flag=BORN_HOST_V6)
        data += encode_record(kept)
    return data


def scanned(data, *, check_crc=True):
    """What the walk says, compiled or not, which is what the check of each record says."""
    found = []
    for is_compiled in (False, True):
        with compiled_code(is_compiled=is_compiled):
            found.append(scan_records(memoryview(data), 0, len(data), 0, check_crc=check_crc))
    assert found[0] == found[1]
    at = records = 0
    while (size := check_record(data, at, len(data), at, check_crc=check_crc)) > 0:
        records += 1
        at += size
    assert (found[0].at, found[0].records) == (at, records)
    return found[0]


@pytest.mark.parametrize("check_crc", [False, True])
def test_a_log_that_is_cut_at_any_byte_ends_at_the_same_record(check_crc):
    log = LOG.read_bytes()[:3000]
    ends = {scanned(log[:size], check_crc=check_crc).at for size in range(len(log) + 1)}
    assert len(ends) > 3


def test_lengths_that_lead_out_of_a_record_end_both_walks():
    log = LOG.read_bytes()
    for size in range(91, 300, 19):
        data = bytearray(log[:size])
        data[:4] = size.to_bytes(4, "big")
        for body_bytes in range(-1, size - 80):
            data[84:88] = body_bytes.to_bytes(4, "big", signed=True)
            scanned(data, check_crc=False)


def test_uncommon_records_and_longer_ones_than_a_copy_are_passed_too():
    common, uncommon = records_of([b"body"] * 3), records_of([b"body"] * 300, are_common=False)
    assert scanned(uncommon).records == 300
    long = records_of([b"body", bytes(_COPY_BYTES), bytes(3 * _COPY_BYTES), b"body"])
    assert (scanned(long).records, scanned(common).records) == (4, 3)


def test_a_damaged_body_ends_the_walk_that_checks_it():
    data = records_of([b"body"] * 3)
    data[-5] ^= 1
    assert compiled_records.walk_records(bytes(data), 0, None)[1] == 3
    assert compiled_records.walk_records(bytes(data), 0, crc32)[1] == 2
    found = scanned(data)
    assert (found.records, found.fault.kind) == (2, FaultKind.BAD_CRC)
