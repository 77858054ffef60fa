"""Batches that are stored as they were sent: the records, refusals and faults of decoded ones."""

from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compiled_code import WAYS, compiled_code, needs_compiled
from tests.descriptors import resources_closed
from tests.remoting.batches import encode_batch_body
from tests.store.support import HOST, log_bytes, message, open_log
from tests.store.test_any_record import HOST_V6
from trioha.errors import RemoteProtocolError
from trioha.remoting.message_batch import batch_items, parse_batch
from trioha.store import commit_log
from trioha.store.landmarks import Landmarks
from trioha.store.message_properties import PROPERTIES_BYTES_MAX
from trioha.store.messages import BatchItem, EncodedItems, MessageBatch

PROPERTIES = st.sampled_from(
    [b"", b"\x02", b"TAGS\x01a", b"TAGS\x01a\x02", b"KEYS\x01k\x02TAGS\x01" + "é".encode(), b"\xff" * 90]
)
I32 = st.integers(-(2**31), 2**31 - 1)
ITEMS = st.lists(st.builds(BatchItem, st.binary(max_size=40), PROPERTIES, I32), min_size=1, max_size=6)
FIELDS = st.fixed_dictionaries(
    {
        "queue_id": st.integers(0, 2**31 - 1),
        "sys_flag": I32,
        "born_timestamp_ms": st.integers(-(2**63), 2**63 - 1),
        "born_host": st.sampled_from([HOST, HOST_V6]),
        "reconsume_times": I32,
    }
)


@pytest.mark.parametrize("is_compiled", WAYS)
@given(
    items=ITEMS,
    fields=FIELDS,
    topic=st.sampled_from(["T", "Orders", "%RETRY%" + "g" * 130]),
    store_host=st.sampled_from([HOST, HOST_V6]),
)
def test_records_of_a_batch_are_those_of_the_plain_code(
    *, items, fields, topic, store_host, tmp_path_factory, is_compiled
):
    folder = tmp_path_factory.mktemp("logs")
    body = encode_batch_body(items)
    found = []
    for read in (parse_batch, batch_items):
        with compiled_code(is_compiled=is_compiled), patch.object(commit_log.time, "time_ns", lambda: 10**18):
            log, _ = open_log(folder / read.__name__, store_host=store_host)
            batch = MessageBatch(topic, items=read(body), **fields)
            # The first one makes the log's file.
            results = [log.append_batch(batch), log.append_batch(batch)]
            found.append((results, list(batch.items), log_bytes(log), dict(log.queue_offsets)))
            log.close()
    assert found[0] == found[1]


@needs_compiled
@given(
    items=ITEMS,
    damage=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=2),
    cut=st.integers(0, 30),
)
@example(items=[BatchItem(b"")], damage=[(16, 0x7F), (0, 0x7F)], cut=0)
@example(items=[BatchItem(b"")], damage=[(16, 0xFF)], cut=0)
@example(items=[BatchItem(b"", b"12")], damage=[(20, 0x80)], cut=0)
def test_bytes_that_are_no_batch_are_refused_compiled_or_not(items, damage, cut):
    damaged = bytearray(encode_batch_body(items))
    for at, value in damage:
        damaged[at % len(damaged)] = value
    body = bytes(damaged[: len(damaged) - cut])
    found = []
    for is_compiled in (False, True):
        with compiled_code(is_compiled=is_compiled):
            try:
                found.append(list(batch_items(body)))
            except RemoteProtocolError as error:
                found.append(str(error))
    assert found[0] == found[1]


@pytest.mark.parametrize("is_compiled", WAYS)
@pytest.mark.parametrize(
    "items",
    [
        [BatchItem(b"one", b"TAGS\x01a"), BatchItem(b""), BatchItem(b"x" * 99, b"KEYS\x01k\x02")],
        [BatchItem(b"one"), BatchItem(b"x" * 101)],
        [BatchItem(b"one"), BatchItem(b"two", b"a\x01" + b"b" * (PROPERTIES_BYTES_MAX - 2))],
        [BatchItem(b"one"), BatchItem(b"two", b"INNER_NUM\x012\x02")],
        [BatchItem(b"INNER_ in a body is no property")],
        [BatchItem(b"x" * 100, b"p" * 30000)] * 3,
    ],
    ids=["stored", "long body", "long properties", "inner", "inner in a body", "long batch"],
)
@resources_closed()
def test_the_log_stores_and_refuses_an_encoded_batch_as_a_decoded_one(
    items, tmp_path, monkeypatch, is_compiled
):
    monkeypatch.setattr("time.time_ns", lambda: 1_795_234_734_922_000_000)
    body = encode_batch_body(items)
    assert parse_batch(body) == items
    found = []
    for read in (parse_batch, batch_items):
        with compiled_code(is_compiled=is_compiled):
            log, _ = open_log(tmp_path / read.__name__, message_bytes_max=100)
            batch = MessageBatch("Orders", 1, read(body), born_host=HOST)
            result = log.append_batch(batch)
            found.append((result, result.message_id, log_bytes(log), dict(log.queue_offsets)))
    assert found[0] == found[1]


def test_a_batch_is_decoded_only_where_its_messages_are_looked_at(tmp_path):
    decoded = []

    def decode():
        decoded.append(1)
        return [BatchItem(b"one"), BatchItem(b"two")]

    body = encode_batch_body(decode())
    decoded.clear()
    items = EncodedItems(body, count=2, decode=decode)
    log, _ = open_log(tmp_path)
    log.append(message())
    assert log.append_batch(MessageBatch("Orders", 0, items)).messages == 2
    assert (len(items), decoded) == (2, [])
    assert [item.body for item in items] == [b"one", b"two"]
    assert (items[0].body, items[:1], decoded) == (b"one", [BatchItem(b"one")], [1])


def test_landmarks_of_many_offsets_are_those_of_each():

    one_by_one, together = Landmarks(), Landmarks()
    offsets = [0, 5, 16383, 16384, 20000, 40000, 56384, 56385, 10**6]
    for start in (0, 2 * 10**6):
        for offset in offsets:
            one_by_one.add(start + offset)
        together.add_all(start + offset for offset in offsets)
    assert list(together) == list(one_by_one) != []
