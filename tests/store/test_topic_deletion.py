"""Deleting the queues of a topic while the store goes on."""

from tests.store.support import message, open_store
from trioha.store.put_status import PutStatus
from trioha.store.topic_deletion import delete_queues


def dispatch(store):
    while store.dispatcher.dispatch(store.commit_log.max_offset):
        pass


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
    store.queue_sync_work()()
    assert list(delete_queues(store, "Orders")) == [True]
    work = store.queue_sync_work()
    assert work is not None, "the list of queues has changed"
    work()
    store.close()
    again = open_store(tmp_path)
    assert again.reads.max_offset("Orders", 0) == 0
    assert again.reads.max_offset("Other", 0) == 1
    assert put(again, b"new").queue_offset == 0
    again.close()
