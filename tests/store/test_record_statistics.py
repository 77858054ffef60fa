"""Number, times and topics of checked records: what an archive lists of its objects."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.compiled_code import WAYS, compiled_code
from tests.store.support import HOST
from tests.store.test_any_record import records
from trioha.store.record import Record, encode_record
from trioha.store.record_layout import MAGIC_V1
from trioha.store.record_statistics import RecordStatistics

SHIFT = 1 << 40


@pytest.mark.parametrize("is_compiled", WAYS)
@given(found=st.lists(records(), max_size=8), damaged=st.booleans())
def test_statistics_of_any_records_end_before_the_first_that_is_damaged(is_compiled, found, damaged):
    data = bytearray()
    for record in found:
        last_at = len(data)
        data += encode_record(evolve(record, physical_offset=SHIFT + last_at))
    if damaged and found:
        data[last_at + 8] ^= 1  # of its CRC
        found.pop()
    else:
        last_at = len(data)
    statistics = RecordStatistics(topics_max=100)
    with compiled_code(is_compiled=is_compiled):
        assert statistics.pass_records(bytes(data), at=0, shift=SHIFT).at == last_at
    times_ms = [record.store_timestamp_ms for record in found]
    assert statistics.records == len(found)
    assert statistics.store_times_ms == ((min(times_ms), max(times_ms)) if found else (0, 0))
    assert statistics.topics == {record.topic.encode() for record in found}


@given(found=st.lists(records(), min_size=2, max_size=6))
def test_statistics_go_on_with_the_next_bytes_and_name_no_topics_beyond_their_number(found):
    statistics, limited = RecordStatistics(topics_max=100), RecordStatistics(topics_max=1)
    for record in found:
        data = encode_record(evolve(record, physical_offset=SHIFT))
        for each in (statistics, limited):
            assert each.pass_records(b"?" + data, at=1, shift=SHIFT - 1).at == 1 + len(data)
    topics = {record.topic.encode() for record in found}
    times_ms = [record.store_timestamp_ms for record in found]
    assert (statistics.records, statistics.store_times_ms) == (len(found), (min(times_ms), max(times_ms)))
    assert statistics.topics == topics
    assert limited.topics == (topics if len(topics) == 1 else None)


@pytest.mark.parametrize("is_compiled", WAYS)
def test_no_more_topics_are_kept_than_tell_that_there_are_too_many(is_compiled):
    data = bytearray()
    for number in range(50):
        data += encode_record(
            Record(
                magic=MAGIC_V1, body_crc=0, queue_id=0, flag=0, queue_offset=number,
                physical_offset=len(data), sys_flag=0, born_timestamp_ms=0, born_host=HOST,
                store_timestamp_ms=number, store_host=HOST, reconsume_times=0,
                prepared_transaction_offset=0, body=b"", topic=f"T{number % 25:02}", properties_raw=b"",
            )
        )  # fmt: skip
    few, many = RecordStatistics(topics_max=24), RecordStatistics(topics_max=25)
    with compiled_code(is_compiled=is_compiled):
        for each in (few, many):
            assert each.pass_records(bytes(data), at=0, shift=0).at == len(data)
    assert (few.topics, few.records) == (None, 50)
    assert many.topics == {b"T%02d" % number for number in range(25)}
