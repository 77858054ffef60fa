"""Queues that are missing at a start are built again, all of them or some."""

import shutil

import pytest

from tests.store.support import message, open_store
from trioha.store import dispatch_to_end
from trioha.store.entry_queue import EntryQueue
from trioha.store.queue_manifest import FILE_NAME
from trioha.store.topic_deletion import delete_queues


def filled(root):
    store = open_store(root)
    for number in range(60):
        store.commit_log.append(message(b"x" * 2000, topic=f"T{number % 3}", queue_id=number % 2))
    return store


def offsets(store):
    return {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in store.queues}


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("lost", ["T1", "T1/0", "T0/0/" + "0" * 20, ""])
def test_lost_queues_are_built_again_before_the_first_put(tmp_path, stop, lost):
    store = filled(tmp_path)
    store.dispatcher.dispatch(store.commit_log.max_offset)
    wanted = offsets(store)
    assert len(wanted) == 6
    if stop == "killed":
        # The last sync before the kill has named the queues.
        store.syncs.queue_sync()()
        store.abort.mark_failed()
    store.close()
    gone = tmp_path / "consumequeue" / lost
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    again = open_store(tmp_path)
    assert offsets(again) == wanted
    assert again.commit_log.append(message(topic="T1", queue_id=0)).queue_offset == wanted["T1", 0][1]
    again.close()


def test_a_deleted_topic_does_not_come_back(tmp_path):
    store = filled(tmp_path)
    # Records after the last one in any queue are dispatched again anyhow: let them be another topic's.
    store.commit_log.append(message(topic="T0"))
    store.dispatcher.dispatch(store.commit_log.max_offset)
    store.syncs.queue_sync()()
    assert all(delete_queues(store, "T2"))
    store.close()
    again = open_store(tmp_path)
    assert {topic for topic, _ in offsets(again)} == {"T0", "T1"}
    again.close()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"T0": 1}', b"\xff"])
def test_a_manifest_that_cannot_be_parsed_names_no_queue(tmp_path, content):
    store = filled(tmp_path)
    store.close()
    (tmp_path / FILE_NAME).write_bytes(content)
    again = open_store(tmp_path)
    assert len(offsets(again)) == 6
    again.close()
    assert b"T0" in (tmp_path / FILE_NAME).read_bytes()


@pytest.mark.parametrize(("queues", "writes"), [(50, 16 + 50 + 50), (2, 2 * 20)])
def test_a_start_builds_many_queues_with_few_writes(tmp_path, monkeypatch, queues, writes):
    store = open_store(tmp_path, file_bytes=1 << 20)
    for number in range(320):
        store.commit_log.append(message(topic="T", queue_id=number % queues))
    store.abort.mark_failed()
    store.close()
    monkeypatch.setattr(dispatch_to_end, "DISPATCH_RECORDS", 16)
    monkeypatch.setattr(dispatch_to_end, "_SPARSE_DISPATCH_RECORDS", 160)
    written = []
    flush = EntryQueue.flush

    def counted(queue):
        written.append(len(queue.pending))
        flush(queue)

    monkeypatch.setattr(EntryQueue, "flush", counted)
    again = open_store(tmp_path, file_bytes=1 << 20)
    assert sum(maximum for _, maximum in offsets(again).values()) == 320
    # Beside those by which a queue is made.
    assert sum(map(bool, written)) <= writes + queues
    again.close()
