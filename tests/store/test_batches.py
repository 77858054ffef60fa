"""Batches in the log: the bytes of real brokers, and all or none after a kill."""

import os
from errno import ENOSPC

import pytest

from tests.store.support import FILE_BYTES, HOST, VECTORS, expected, log_bytes, message, open_log
from trioha.errors import StoreError
from trioha.store import commit_log
from trioha.store.messages import BatchItem, MessageBatch
from trioha.store.put_records import encode_records, record_sizes
from trioha.store.put_status import PutStatus
from trioha.store.record import decode_record
from trioha.store.record_log import PWRITE_BYTES_MIN


def recorded_batch(name):
    """The records of the batch in a recorded store, and their bytes."""
    log = b"".join(file.read_bytes() for file in sorted((VECTORS / name / "store" / "commitlog").iterdir()))
    described = [one for one in expected(name)["messages"] if not one.get("blank")]
    records = [decode_record(log, one["physicalOffset"]) for one in described]
    batch = [record for record in records if record.body.startswith(b"batch")]
    start, end = batch[0].physical_offset, batch[-1].physical_offset + batch[-1].total_size
    return batch, log[start:end]


@pytest.mark.parametrize("name", ["store-4.9.7", "store-5.3.3"])
def test_a_batch_is_stored_in_the_bytes_of_the_real_broker(name):
    records, data = recorded_batch(name)
    assert len(records) == 5
    first = records[0]
    batch = MessageBatch(
        first.topic,
        first.queue_id,
        [BatchItem(record.body, record.properties_raw, record.flag) for record in records],
        first.sys_flag,
        first.born_timestamp_ms,
        first.born_host,
        first.reconsume_times,
    )
    sizes = record_sizes(batch, batch.items, store_host=first.store_host)
    assert sizes == [record.total_size for record in records]
    assert (
        encode_records(
            batch,
            batch.items,
            sizes,
            physical_offset=first.physical_offset,
            queue_offset=first.queue_offset,
            store_timestamp_ms=first.store_timestamp_ms,
            store_host=first.store_host,
        )
        == data
    )


def test_a_batch_that_was_cut_off_by_a_kill_leaves_no_record(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message(b"before"))
    items = [BatchItem(b"item %d" % number) for number in range(3)]
    end = log.max_offset
    result = log.append_batch(MessageBatch("Orders", 0, items))
    # The first record's length and magic are written last.
    log.files[0].view[end : end + 8] = bytes(8)
    log.close()
    again, recovered = open_log(tmp_path, clean_exit=False)
    assert (again.max_offset, recovered.records) == (end, 1)
    # A message in the place of the first record does not bring back those after it.
    again.append(message(b"item 0"))
    assert again.max_offset == result.batch_offsets[1]
    again.close()
    once_more, recovered = open_log(tmp_path, clean_exit=False)
    assert (once_more.max_offset, recovered.records) == (result.batch_offsets[1], 2)


@pytest.mark.parametrize("written_bytes", [0, 8000])
@pytest.mark.parametrize("filled", [False, True])
@pytest.mark.parametrize("is_batch", [False, True])
def test_a_put_that_the_disk_refuses_is_not_stored(tmp_path, monkeypatch, written_bytes, filled, is_batch):
    """The first in its file, or not; records that were written before the refusal do not come back."""
    log, _ = open_log(tmp_path)
    log.append(message(b"before"))
    items = [BatchItem(b"%d" % number * (PWRITE_BYTES_MIN // 2)) for number in range(4)]
    if filled:
        while log.max_offset < FILE_BYTES - 4 * PWRITE_BYTES_MIN // 2:
            log.append(message(b"before" * 100))
    end = log.max_offset
    pwritev, start = os.pwritev, 0 if filled else end

    def refuse(fd, chunks, at):
        """A disk that has room up to an index of the file."""
        data = b"".join(chunks)[: max(start + written_bytes - at, 0)]
        if not data:
            raise OSError(ENOSPC, "No space left on device")
        return pwritev(fd, [data], at)

    monkeypatch.setattr(os, "pwritev", refuse)
    batch = MessageBatch("Orders", 0, items)
    refused = log.append_batch(batch) if is_batch else log.append(message(items[0].body * 4))
    assert (refused.status, refused.size) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
    assert "No space left" in refused.reason
    assert log.max_offset == (FILE_BYTES if filled else end)
    assert log.queue_offsets == {("Orders", 0): log.queue_offsets["Orders", 0]}
    monkeypatch.undo()
    # As long as the first record of the batch.
    log.append(message(items[0].body))
    expected_end = log.max_offset
    log.close()
    again, _ = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == expected_end
    result = again.append_batch(batch)
    assert (result.status, result.physical_offset) == (PutStatus.PUT_OK, expected_end)
    assert [decode_record(again.read(offset, 10_000)).body for offset in result.batch_offsets] == [
        item.body for item in items
    ]


def test_nothing_is_stored_while_the_disk_does_not_clear_what_it_has_refused(tmp_path, monkeypatch):
    """As a full disk whose file system writes elsewhere what is written again."""
    log, _ = open_log(tmp_path)
    items = [BatchItem(b"%d" % number * (PWRITE_BYTES_MIN // 2)) for number in range(4)]
    pwritev, calls = os.pwritev, []

    def refuse(fd, chunks, at):
        calls.append(at)
        if len(calls) == 1:
            return pwritev(fd, [b"".join(chunks)[:8000]], at)
        raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", refuse)
    same = message(items[0].body)
    for refused in (log.append_batch(MessageBatch("Orders", 0, items)), log.append(same)):
        assert (refused.status, refused.size) == (PutStatus.SERVICE_NOT_AVAILABLE, 0)
    with pytest.raises(StoreError, match="No space left"):
        log.append_records(memoryview(bytes(100)), last_store_timestamp_ms=0)
    # The batch, in two steps, and twice what is to be cleared.
    assert (log.max_offset, len(calls)) == (0, 4)
    monkeypatch.undo()
    end = log.append(same).end_offset
    log.close()
    again, _ = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == end


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_put_that_fails_at_the_end_of_a_file_leaves_the_log_whole(tmp_path, monkeypatch, is_batch):
    log, _ = open_log(tmp_path)
    while log.max_offset < FILE_BYTES - 1000:
        log.append(message(b"before" * 100))

    def put():
        items = [BatchItem(b"a" * 500), BatchItem(b"b" * 500)]
        return (
            log.append_batch(MessageBatch("Orders", 0, items))
            if is_batch
            else log.append(message(b"a" * 1000))
        )

    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr(commit_log, "encode_records", fail)
    with pytest.raises(MemoryError):
        put()
    monkeypatch.undo()
    assert log.max_offset == FILE_BYTES
    result = put()
    assert (result.status, result.physical_offset) == (PutStatus.PUT_OK, FILE_BYTES)
    log.close()
    again, _ = open_log(tmp_path, clean_exit=False)
    assert again.max_offset == result.end_offset


def test_queue_offsets_and_ids_of_a_batch(tmp_path):
    log, _ = open_log(tmp_path)
    log.append(message())
    result = log.append_batch(MessageBatch("Orders", 0, [BatchItem(b"a"), BatchItem(b"b")]))
    assert (result.status, result.queue_offset, result.messages) == (PutStatus.PUT_OK, 1, 2)
    assert log.queue_offsets["Orders", 0] == 3
    records = [decode_record(log.read(offset, 1000)) for offset in result.batch_offsets]
    assert [record.queue_offset for record in records] == [1, 2]
    assert result.message_id == ",".join(record.message_id for record in records)
    assert result.end_offset == log.max_offset
    assert str(records[0].store_host) == str(HOST)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"disk_is_full": True}, PutStatus.SERVICE_NOT_AVAILABLE),
        ({"puts_blocked": True}, PutStatus.SERVICE_NOT_AVAILABLE),
        ({"queues_max": 0}, PutStatus.SERVICE_NOT_AVAILABLE),
        ({"message_bytes_max": 2}, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_a_log_that_takes_no_message_takes_no_batch(tmp_path, change, status):
    log, _ = open_log(tmp_path)
    for name, value in change.items():
        setattr(log, name, value)
    result = log.append_batch(MessageBatch("Orders", 0, [BatchItem(b"one"), BatchItem(b"two")]))
    assert (result.status, result.size, log_bytes(log)) == (status, 0, b"")
    assert "message 0 of the batch" in result.reason


@pytest.mark.parametrize("topic", ["", "a/b", "t" * 128])
def test_a_batch_of_an_illegal_topic_is_refused(tmp_path, topic):
    log, _ = open_log(tmp_path)
    assert log.append_batch(MessageBatch(topic, 0, [BatchItem(b"x")])).status is PutStatus.MESSAGE_ILLEGAL
