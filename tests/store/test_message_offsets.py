"""Offsets that the log writes into properties, against those that RocketMQ wrote."""

import pytest

from tests.store.support import STORES, copy_store, message, open_log
from trioha.store.message_offsets import INNER_BATCH, MultiDispatch
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Record, decode_record
from trioha.store.record_layout import BORN_HOST_V6, STORE_HOST_V6

GIVEN_BY_THE_BROKER = {"INNER_BASE", "INNER_MULTI_QUEUE_OFFSET", "__CRC32#"}
LIGHT = MultiDispatch(enabled=True, light_queues=True)


def records_of(log):
    offset = log.min_offset
    while offset < log.max_offset:
        record = decode_record(log.read(offset, log.file_bytes))
        if isinstance(record, Record):
            yield record
        offset += record.total_size


def stored(log, result):
    assert result.status is PutStatus.PUT_OK, result
    record = decode_record(log.read(result.physical_offset, log.file_bytes))
    return parse_properties(record.properties_raw), record


@pytest.mark.parametrize("name", STORES)
def test_every_recorded_message_gets_the_offsets_that_rocketmq_gave_it(name, tmp_path):
    real, _ = open_log(copy_store(name, tmp_path) / "commitlog")
    ours, _ = open_log(tmp_path / "ours")
    ours.multi_dispatch = LIGHT
    batches = lights = 0
    for record in records_of(real):
        theirs = parse_properties(record.properties_raw)
        asked = {key: value for key, value in theirs.items() if key not in GIVEN_BY_THE_BROKER}
        result = ours.append(
            Message(
                topic=record.topic,
                queue_id=record.queue_id,
                body=record.body,
                properties=encode_properties(asked),
                sys_flag=record.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
                born_host=record.born_host,
            )
        )
        given, copy = stored(ours, result)
        assert (result.queue_offset, copy.queue_offset) == (record.queue_offset, record.queue_offset)
        assert given == {key: value for key, value in theirs.items() if key != "__CRC32#"}
        batches += "INNER_BASE" in given
        lights += "INNER_MULTI_QUEUE_OFFSET" in given
    assert (batches, lights) == {
        "store-4.9.7": (0, 0), "store-5.3.3": (2, 0), "store-5.3.3-propcrc-lmq": (2, 2)
    }[name]  # fmt: skip


def test_a_batch_takes_as_many_queue_offsets_as_it_has_messages(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    # A producer's own INNER_BASE is dropped.
    batch = log.append(
        message(sys_flag=0xC0, properties=b"INNER_BASE\x0177\x02INNER_NUM\x015\x02TAGS\x01a\x02")
    )
    given, _ = stored(log, batch)
    assert given == {"INNER_BASE": "1", "INNER_NUM": "5", "TAGS": "a"}
    assert (batch.queue_offset, log.append(message()).queue_offset) == (1, 6)


@pytest.mark.parametrize(
    ("sys_flag", "number"),
    [(0, "3"), (INNER_BATCH, "0"), (INNER_BATCH, "-1"), (INNER_BATCH, "x"), (INNER_BATCH, "9" * 20)],
)
def test_a_batch_with_a_malformed_inner_num_is_not_stored(tmp_path, sys_flag, number):
    log, _ = open_log(tmp_path)
    result = log.append(message(sys_flag=sys_flag, properties=f"INNER_NUM\x01{number}\x02".encode()))
    assert result.status is PutStatus.MESSAGE_ILLEGAL
    assert log.is_empty
    assert not log.queue_offsets


def dispatched(log, names, *, topic="Orders", queue_id=3):
    properties = f"INNER_MULTI_DISPATCH\x01{names}\x02".encode()
    return stored(log, log.append(message(topic=topic, queue_id=queue_id, properties=properties)))[0]


def test_other_queues_are_counted_one_by_one(tmp_path):
    log, _ = open_log(tmp_path)
    log.multi_dispatch = LIGHT
    asked = ["%LMQ%a,%LMQ%b", "%LMQ%b", "%LMQ%b,Other,%LMQ%a"]
    assert [dispatched(log, names)["INNER_MULTI_QUEUE_OFFSET"] for names in asked] == ["0,0", "1", "2,0,1"]
    # A light queue has queue id 0, any other the message's.
    assert log.queue_offsets == {
        ("Orders", 3): 3, ("%LMQ%a", 0): 2, ("%LMQ%b", 0): 3, ("Other", 3): 1,
    }  # fmt: skip


@pytest.mark.parametrize("topic", ["%RETRY%group", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_messages_of_system_topics_enter_no_other_queues(tmp_path, topic):
    log, _ = open_log(tmp_path)
    log.multi_dispatch = LIGHT
    assert "INNER_MULTI_QUEUE_OFFSET" not in dispatched(log, "%LMQ%a", topic=topic)


def test_without_multi_dispatch_no_offsets_are_assigned(tmp_path):
    log, _ = open_log(tmp_path)
    assert dispatched(log, "%LMQ%a") == {"INNER_MULTI_DISPATCH": "%LMQ%a"}


def test_a_refused_message_takes_no_offset_of_another_queue(tmp_path):
    log, _ = open_log(tmp_path)
    log.multi_dispatch = LIGHT
    names = b"INNER_MULTI_DISPATCH\x01" + b",".join(b"%%LMQ%%%d" % number for number in range(3000)) + b"\x02"
    assert log.append(message(properties=names)).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
    assert not log.queue_offsets
