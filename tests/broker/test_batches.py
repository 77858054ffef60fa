"""Batches: every message a record of its own, all of them or none; compressed and one-way sends."""

import bz2
import zlib
from struct import pack

import pytest

from tests.broker.sending import PEER, TOPIC, Sending, properties_of
from tests.remoting.batches import encode_batch_body
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.message_batch import parse_batch
from trioha.remoting.send_message import SendMessageResponseHeader
from trioha.store.messages import BatchItem, MessageBatch
from trioha.store.record import Host

ITEMS = (
    BatchItem(b"one", b"TAGS\x01a\x02KEYS\x01k1", 1),
    BatchItem(b"", b"", 2),
    BatchItem(b"three", b"TAGS\x01c\x02", 3),
)
BATCH = encode_batch_body(ITEMS)


@pytest.fixture
async def broker(tmp_path, wall):
    return Sending(tmp_path, wall)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
async def test_each_message_of_a_batch_is_a_record(broker, code, autojump_clock):
    await broker.send()
    answer = await broker.send(
        BATCH, code=code, batch=True, properties="WAIT\x01true\x02UNIQ_KEY\x01U", queue_id=2
    )
    records = broker.records()[1:]
    header = SendMessageResponseHeader.of(answer)
    assert (answer.code, header.queue_id, header.queue_offset) == (ResponseCode.SUCCESS, 2, 1)
    assert header.msg_id == ",".join(record.message_id for record in records)
    assert [(one.body, one.flag, one.queue_id, one.queue_offset) for one in records] == [
        (b"one", 1, 2, 1), (b"", 2, 2, 2), (b"three", 3, 2, 3),
    ]  # fmt: skip
    # None of the batch's own: the UNIQ_KEY of a batch would be that of each of its messages.
    assert [record.properties_raw for record in records] == [item.properties for item in parse_batch(BATCH)]
    assert {(one.topic, one.born_timestamp_ms, str(one.born_host)) for one in records} == {
        (TOPIC, 1234, str(PEER.address))
    }
    # Consumers and queries find each of them.
    queue = broker.store.queues.find(TOPIC, 2)
    assert [entry.physical_offset for entry in queue.entries(1, 10)] == [
        record.physical_offset for record in records
    ]
    assert [bytes(view) for view in broker.store.reads.by_key(TOPIC, "k1")] == [
        bytes(broker.log.read(records[0].physical_offset, records[0].total_size))
    ]
    statistics = broker.puts.statistics()
    assert (statistics.messages_stored, statistics.statuses) == (4, {"PUT_OK": 2})
    sizes = [record.total_size for record in broker.records()]
    assert broker.stored == [(TOPIC, 1, sizes[0]), (TOPIC, 3, sum(sizes[1:]))]


async def test_the_flag_decides_whether_a_send_is_a_batch(broker, autojump_clock):
    await broker.send(BATCH, code=RequestCode.SEND_BATCH_MESSAGE)
    (record,) = broker.records()
    assert record.body == BATCH


def damaged(at, value):
    return BATCH[:at] + pack(">i", value) + BATCH[at + 4 :]


@pytest.mark.parametrize(
    ("body", "changes", "said"),
    [
        (b"", {}, "no message"),
        (b"x", {}, "message 0 of the batch, at byte 0 of 1, is cut short"),
        (BATCH[:-1], {}, "message 2"),
        (BATCH + b"\0" * 21, {}, "message 3 of the batch, at byte 95 of 116, is cut short"),
        (damaged(0, 0), {}, "message 0"),
        (damaged(0, 2**31 - 1), {}, "message 0"),
        (damaged(16, -1), {}, "message 0 of the batch, at byte 0 of 95, is cut short"),
        (damaged(16, 2**31 - 1), {}, "message 0"),
        (encode_batch_body([BatchItem(b"b", b"INNER_NUM\x012\x02")]), {}, "INNER_"),
        (encode_batch_body([BatchItem(bytes(30000))] * 3), {}, "never fits"),
        (BATCH, {"properties": {"DELAY": "1"}}, "delay level"),
        (BATCH, {"properties": {"DELAY": "soon"}}, "soon"),
        (BATCH, {"sys_flag": 4}, "transaction"),
        (BATCH, {"sys_flag": 8}, "transaction"),
        (BATCH, {"sys_flag": 0x80}, "inner batches"),
        (BATCH, {"topic": "%RETRY%group"}, "batch request does not support retry group %RETRY%group"),
    ],
)  # fmt: skip
async def test_an_illegal_batch_is_refused_and_nothing_of_it_is_stored(
    broker, body, changes, said, autojump_clock
):
    answer = await broker.send(body, batch=True, **changes)
    assert (answer.code, said in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True), answer.remark
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert broker.log.is_empty


async def test_a_batch_is_refused_like_a_message_where_its_queue_is_not(broker, autojump_clock):
    assert (await broker.send(BATCH, batch=True, queue_id=9)).code == ResponseCode.SYSTEM_ERROR
    assert (await broker.send(BATCH, batch=True, topic="SCHEDULE_TOPIC_XXXX")).code == (
        ResponseCode.NO_PERMISSION
    )
    answer = await broker.send(BATCH, batch=True, topic="NoAuto", default_topic="NOPE")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.log.is_empty


async def test_a_batch_of_a_topic_with_batch_queues_is_one_record(broker, autojump_clock):
    broker.topics.put(TopicConfig("Batches", 4, 4, other={"attributes": {"queue.type": "BatchCQ"}}))
    answer = await broker.send(BATCH, batch=True, topic="Batches", properties={"UNIQ_KEY": "U1"})
    (record,) = broker.records()
    assert (record.body, record.sys_flag) == (BATCH, 0xC0)
    properties = properties_of(record)
    assert (properties["INNER_NUM"], properties["INNER_BASE"], properties["UNIQ_KEY"]) == ("3", "0", "U1")
    assert (answer.ext_fields["msgId"], answer.ext_fields["batchUniqId"]) == (record.message_id, "U1")
    assert broker.log.queue_offsets["Batches", 2] == 3
    # Without its own key it is taken apart.
    await broker.send(BATCH, batch=True, topic="Batches")
    assert len(broker.records()) == 4


@pytest.mark.parametrize(
    ("sys_flag", "body"),
    [(1, zlib.compress(b"x" * 5000)), (0x301, zlib.compress(b"y" * 5000)), (0x101, b"lz4"), (0x201, b"zstd"),
     (0x701, bz2.compress(b"z"))],
)  # fmt: skip
async def test_a_compressed_body_is_stored_as_it_was_sent(broker, sys_flag, body, autojump_clock):
    assert (await broker.send(body, sys_flag=sys_flag)).code == ResponseCode.SUCCESS
    (record,) = broker.records()
    assert (record.body, record.sys_flag) == (body, sys_flag)


async def test_a_batch_of_an_ipv6_producer_has_its_host_in_each_record(broker, autojump_clock):
    host = Host.parse("2001:db8::1", 4444)
    result = broker.log.append_batch(MessageBatch(TOPIC, 0, ITEMS, born_host=host))
    assert result.messages == 3
    assert [record.born_host for record in broker.records()] == [host] * 3


async def test_a_batch_that_does_not_fit_the_file_goes_to_the_next_as_a_whole(broker, autojump_clock):
    body = encode_batch_body([BatchItem(bytes(7000), b"KEYS\x01k\x02")] * 5)
    for _ in range(3):
        assert (await broker.send(body, batch=True)).code == ResponseCode.SUCCESS
    files = [record.physical_offset // broker.log.file_bytes for record in broker.records()]
    assert files == [0] * 5 + [1] * 5 + [2] * 5
