"""Deleting the queues of a topic while the store goes on."""

import shutil

from tests.descriptors import close_after_test
from tests.store.support import message, open_store
from tests.store.whole_stores import dispatch
from trioha.store.batch_consume_queue import BatchConsumeQueue
from trioha.store.file_cache import FileCache
from trioha.store.put_status import PutStatus
from trioha.store.topic_deletion import delete_queues


def put(store, body, *, topic="Orders", queue_id=0):
    result = store.commit_log.append(message(body, topic=topic, queue_id=queue_id))
    assert result.status is PutStatus.PUT_OK
    return result


def test_queues_are_deleted_and_the_next_message_is_number_0(tmp_path):
    store = open_store(tmp_path)
    for number in range(50):
        put(store, b"old", queue_id=number % 2)
    put(store, b"other", topic="Other")
    dispatch(store)
    assert list(delete_queues(store, "Orders")) == [True, True]
    assert store.reads.max_offset("Orders", 0) == 0
    assert not (tmp_path / "consumequeue" / "Orders").exists()
    assert store.reads.max_offset("Other", 0) == 1
    assert put(store, b"new").queue_offset == 0
    dispatch(store)
    (record,) = store.reads.get("Orders", 0, 0).records
    assert b"new" in bytes(record)


def test_a_queue_with_undispatched_records_is_deleted_after_their_dispatch(tmp_path):
    store = open_store(tmp_path)
    put(store, b"old")
    dispatch(store)
    put(store, b"old, too")
    put(store, b"old", queue_id=1)
    assert list(delete_queues(store, "Orders")) == [False, False]
    assert store.reads.max_offset("Orders", 0) == 1
    dispatch(store)
    assert list(delete_queues(store, "Orders")) == [True, True]
    assert put(store, b"new").queue_offset == 0
    dispatch(store)
    assert store.reads.max_offset("Orders", 0) == 1
    assert list(delete_queues(store, "NoSuch")) == []


def test_deleted_queues_do_not_come_back_at_the_next_start(tmp_path):
    store = open_store(tmp_path)
    for _ in range(50):
        put(store, b"old")
    put(store, b"other", topic="Other")
    dispatch(store)
    store.syncs.queue_sync()()
    assert list(delete_queues(store, "Orders")) == [True]
    work = store.syncs.queue_sync()
    assert work is not None, "the list of queues has changed"
    work()
    store.close()
    again = open_store(tmp_path)
    assert again.reads.max_offset("Orders", 0) == 0
    assert again.reads.max_offset("Other", 0) == 1
    assert put(again, b"new").queue_offset == 0
    again.close()


def test_a_log_with_a_topic_that_was_made_again_gives_the_queue_of_the_second_one(tmp_path):
    """As on a slave, after the loss of the queues, or after a stop in which new entries were lost."""
    store = open_store(tmp_path / "master")
    for number in range(50):
        put(store, b"old", queue_id=number % 2)
    dispatch(store)
    list(delete_queues(store, "Orders"))
    for _ in range(3):
        put(store, b"new")
    (tmp_path / "slave").mkdir()
    shutil.copytree(tmp_path / "master" / "commitlog", tmp_path / "slave" / "commitlog")
    slave = open_store(tmp_path / "slave")
    dispatch(slave)
    assert slave.reads.max_offset("Orders", 0) == 3
    assert all(b"new" in bytes(record) for record in slave.reads.get("Orders", 0, 0).records)
    # The queue without new messages is as it was: a slave is not told of the deletion.
    assert slave.reads.max_offset("Orders", 1) == 25
    # Dispatched again from the start, it is the same.
    slave.dispatcher.rewind(0)
    dispatch(slave)
    assert slave.reads.max_offset("Orders", 0) == 3


def test_a_batch_queue_starts_again_at_0(tmp_path):
    queue = BatchConsumeQueue(
        tmp_path, topic="Orders", queue_id=0, file_bytes=920, cache=close_after_test(FileCache())
    )
    entry = {"size": 100, "tags_code": 0, "store_timestamp_ms": 1}
    queue.put(physical_offset=0, base_offset=0, messages=30, **entry)
    queue.flush()
    queue.put(physical_offset=100, base_offset=0, messages=2, **entry)
    queue.flush()
    assert (queue.max_offset, [found.physical_offset for found in queue.entries(0, 9)]) == (2, [100])
