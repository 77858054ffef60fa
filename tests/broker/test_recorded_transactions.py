"""Transactions in stores that real brokers wrote: what is open there, and records equal to theirs."""

import pytest
import trio
import trio.testing

from tests.broker.transacting import Master
from tests.store.support import copy_store, open_store
from trioha.broker.half_messages import HalfMessage, op_message, op_offsets
from trioha.store.message_properties import parse_properties
from trioha.store.reads import ReadLimits
from trioha.store.record import Record, decode_record
from trioha.store.topics import HALF_TOPIC, OP_TOPIC

STORES = ("store-4.9.7", "store-5.3.3")
LIMITS = ReadLimits(messages_max=1000, bytes_max=1 << 30)


def records_of(store, topic):
    result = store.reads.get(topic, 0, 0, limits=LIMITS)
    return [decode_record(view) for view in result.records]


def fields_of(message):
    """What the broker decides of a message, and what it keeps."""
    properties = message.properties_raw if isinstance(message, Record) else message.properties
    return (
        message.topic,
        message.queue_id,
        message.sys_flag,
        message.flag,
        message.prepared_transaction_offset,
        message.body,
        message.born_timestamp_ms,
        message.born_host,
        parse_properties(properties),
    )


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return open_store(copy_store(request.param, tmp_path))


def test_a_committed_message_is_as_the_real_brokers(store):
    (committed,) = records_of(store, "VecTran")
    half = HalfMessage.of(store.reads.record_at(committed.prepared_transaction_offset))
    assert half is not None
    assert fields_of(half.committed()) == fields_of(committed)


def test_op_records_are_as_the_real_brokers(store):
    records = records_of(store, OP_TOPIC)
    assert sorted(offset for record in records for offset in op_offsets(record.body)) == [0, 1]
    for record in records:
        ours = op_message(record.body, now_ms=record.born_timestamp_ms, host=record.store_host)
        assert fields_of(ours) == fields_of(record)


def test_a_copy_for_a_check_is_as_the_real_brokers(tmp_path):
    store = open_store(copy_store("store-5.3.3", tmp_path))
    *_, older, copy = records_of(store, HALF_TOPIC)
    half = HalfMessage.of(store.reads.record_at(older.physical_offset))
    assert half is not None
    assert fields_of(half.checked_again()) == fields_of(copy)


@pytest.fixture(params=[(name, kind) for name in STORES for kind in ("store", "crash-store")])
def stopped(request, tmp_path):
    """Folder of a stopped broker, and queue offsets of the first and the newest copy of its transaction."""
    name, kind = request.param
    return copy_store(name, tmp_path, kind=kind), {"store-4.9.7": (2, 2), "store-5.3.3": (2, 3)}[name]


async def test_a_store_of_a_real_broker_goes_on_with_its_open_transaction(
    stopped, monkeypatch, nursery, autojump_clock
):
    folder, offsets = stopped
    master = Master(folder, monkeypatch)
    await nursery.start(master.run)
    (transaction,) = list(master.service._table)
    assert (transaction.first_offset, transaction.queue_offset) == offsets
    master.connect(group="vec_tran")
    await trio.sleep(31)
    ((_, check, _),) = master.pushed
    shown = decode_record(check.body)
    assert isinstance(shown, Record)
    assert (shown.topic, shown.body) == ("VecTran", b"tx unknown")
    await master.end(check, group="vec_tran")
    assert [record.body for record in master.records("VecTran")] == [b"tx commit", b"tx unknown"]
    nursery.cancel_scope.cancel()
