"""A power loss keeps any combination of an append's sectors."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.levels import by_level
from tests.store.support import log_bytes, message, open_log
from trioha.store.checkpoint import Checkpoint
from trioha.store.lost_sectors import SECTOR_BYTES
from trioha.store.record import Host

LONG_TOPIC = "%RETRY%" + "g" * 200
IPV6 = Host.parse("2001:db8::1", 50001)
KEYS = b"KEYS\x01k\x02TAGS\x01t\x02"


def properties(length):
    return (b"a\x01" + b"v" * length)[: max(length - 1, 0)] + b"\x02" if length else b""


SHAPES = {
    "plain": [message(b"x" * 300, properties=KEYS)] * 5,
    "a long body, its text in a sector of its own": [
        message(b"x" * (1024 - 2 * 91), properties=KEYS),
        message(b"y" * 800, properties=properties(300)),
    ],
    "zeros as body": [message(bytes(700), properties=KEYS)] * 3,
    "nothing but properties": [message(b"", properties=properties(900))] * 2,
    "no properties": [message(b"x" * 430)] * 4,
    "no body, no properties": [message(b"")] * 20,
    "long topics": [message(b"x" * 200, topic=LONG_TOPIC, properties=properties(400))] * 3,
    "IPv6": [message(b"x" * 200, born_host=IPV6, properties=properties(250))] * 4,
}


FIRST_BODIES = [0, 37, 330, 411, 420, 421, 423]


def appended(log, messages):
    for each in messages:
        assert log.append(each).size


def lose(log, sectors):
    for sector in sectors:
        log.files[0].view[sector : sector + SECTOR_BYTES] = bytes(SECTOR_BYTES)


@pytest.mark.sized
@pytest.mark.parametrize("first_body_bytes", by_level([0, 421], FIRST_BODIES, FIRST_BODIES))
@pytest.mark.parametrize("shape", SHAPES)
def test_after_any_loss_of_sectors_only_written_records_are_left(tmp_path, shape, first_body_bytes):
    log, _ = open_log(tmp_path)
    appended(log, [message(bytes([1]) * first_body_bytes)])
    flushed = log.max_offset
    appended(log, SHAPES[shape])
    written = log_bytes(log)
    # The sector that was flushed last is whole: only its bytes after the flush change.
    first = flushed - flushed % SECTOR_BYTES
    sectors = range(first, log.max_offset, SECTOR_BYTES)
    image = bytes(log.files[0].view[: sectors.stop])
    assert 3 <= len(sectors) <= 9
    checkpoint = Checkpoint(physic_msg_timestamp_ms=0)
    for kept in product([True, False], repeat=len(sectors)):
        log.files[0].view[: len(image)] = image
        lose(log, [at for at, is_kept in zip(sectors, kept, strict=True) if not is_kept])
        log.files[0].view[:flushed] = image[:flushed]
        again, recovered = open_log(tmp_path, clean_exit=False, checkpoint=checkpoint)
        assert written.startswith(log_bytes(again))
        assert again.max_offset >= flushed
        if all(kept):
            assert recovered.cut_bytes == 0
            assert log_bytes(again) == written
        again.close()


@given(
    bodies=st.lists(st.binary(max_size=900), min_size=1, max_size=6),
    property_bytes=st.lists(st.integers(0, 1200), min_size=6, max_size=6),
    lost=st.sets(st.integers(0, 40), max_size=8),
)
@resources_closed()
def test_records_of_any_length_are_whole_or_cut(tmp_path_factory, bodies, property_bytes, lost):
    tmp_path = tmp_path_factory.mktemp("lost")
    log, _ = open_log(tmp_path)
    appended(
        log,
        [
            message(body, properties=properties(length))
            for body, length in zip(bodies, property_bytes, strict=False)
        ],
    )
    written = log_bytes(log)
    lose(log, [number * SECTOR_BYTES for number in lost])
    again, _ = open_log(tmp_path, clean_exit=False)
    assert written.startswith(log_bytes(again))
    again.close()


def zeros_in_a_property(log):
    """Two legal messages, the second with zeros that fill whole sectors."""
    appended(log, [message(b"x"), message(b"y", properties=b"a\x01" + bytes(1500) + b"\x02")])


def test_zeros_that_a_producer_sent_are_kept_where_a_flush_covered_them(tmp_path):
    log, _ = open_log(tmp_path)
    zeros_in_a_property(log)
    appended(log, [message(b"z")])
    written = log_bytes(log)
    checkpoint = Checkpoint(physic_msg_timestamp_ms=log.last_store_timestamp_ms + 1)
    again, recovered = open_log(tmp_path, clean_exit=False, checkpoint=checkpoint)
    assert (log_bytes(again), recovered.cut_bytes) == (written, 0)


def test_zeros_that_a_producer_sent_are_kept_after_a_clean_stop(tmp_path):
    log, _ = open_log(tmp_path)
    zeros_in_a_property(log)
    again, recovered = open_log(tmp_path, clean_exit=True)
    assert (again.max_offset, recovered.cut_bytes) == (log.max_offset, 0)


def test_zeros_that_fill_no_sector_are_kept(tmp_path):
    log, _ = open_log(tmp_path)
    appended(log, [message(bytes(300), properties=b"a\x01" + bytes(400) + b"b\x02")] * 8)
    again, recovered = open_log(tmp_path, clean_exit=False)
    assert (again.max_offset, recovered.cut_bytes, recovered.records) == (log.max_offset, 0, 8)


def test_a_sector_lost_from_properties_cuts_the_log_there(tmp_path):
    log, _ = open_log(tmp_path)
    appended(log, [message(b"x"), message(b"y", properties=properties(1500)), message(b"z")])
    first_end = 91 + 1 + len("Orders")
    lose(log, [2 * SECTOR_BYTES])
    again, recovered = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == first_end
    assert recovered.cut_reason == "a sector with its topic or properties was not written"
    assert not any(again.files[0].view[first_end:])
    reopened, recovered = open_log(tmp_path, clean_exit=False)
    assert (reopened.max_offset, recovered.cut_bytes) == (first_end, 0)
