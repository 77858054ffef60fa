"""Deletion of a topic's queues in a store that goes on to store and to dispatch.

The records stay in the log until retention deletes its files; without entries they cannot be read by queue.
A queue is deleted only while it has an entry for each record that the log has counted in it. Then the log
counts from 0 again, as in the broker, and the next record is the new queue's first one. A record that is not
dispatched yet would enter the new queue under its old number, and those after it would be dropped: such a
queue is left for the next call, after more was dispatched.
"""

from __future__ import annotations

from collections.abc import Iterator

from trioha.store.message_store import MessageStore


def delete_queues(store: MessageStore, topic: str) -> Iterator[bool]:
    """Delete the queues of a topic, one for each step, between which other tasks may run.

    Yields whether a queue was deleted: False for one that has records to be dispatched first. Raises
    StoreError if the disk refuses; the queue is then gone for readers, and some of its files stay.
    """
    queues, log = store.queues, store.commit_log
    numbers = {queue.queue_id for queue in queues if queue.topic == topic}
    numbers |= {queue_id for name, queue_id in log.queue_offsets if name == topic}
    for queue_id in sorted(numbers):
        queue = queues.find(topic, queue_id)
        counted = log.queue_offsets.get((topic, queue_id), 0)
        if counted > (0 if queue is None else queue.max_offset):
            yield False
            continue
        log.queue_offsets.pop((topic, queue_id), None)
        store.dispatcher.forget_queues()
        if queue is not None:
            queues.delete(topic, queue_id)
        yield True
