"""Small stores with queues of all kinds, keys and epochs, and all that their readers see of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from attrs import frozen

from tests.descriptors import resources_closed
from tests.store.support import log_bytes, message, offsets_of, open_store
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.entry_queue import Entry
from trioha.store.epochs import EpochEntry
from trioha.store.message_store import MessageStore

FILE_BYTES = 4096
RECORDS = 64
TOPICS = '{"topicConfigTable":{"Batched":{"attributes":{"queue.type":"BatchCQ"},"topicName":"Batched"}}}'
EPOCHS = (1, 20, 40, 41, RECORDS)
"""Numbers of the records that a new master stored first; the last one has stored none."""


@frozen
class Contents:
    """What a store has, as its readers see it."""

    log: bytes
    queues: dict[tuple[str, int], tuple[type, int, int, list[Entry]]]
    """Of those with messages: kind, minimum, maximum, entries."""
    keys: dict[str, list[int]]
    epochs: tuple[EpochEntry, ...]


def opened(root: Path, *, is_slave: bool = False) -> MessageStore:
    return open_store(
        root,
        file_bytes=FILE_BYTES,
        dispatch=DispatchSettings(enable_lmq=True, enable_multi_dispatch=True, is_slave=is_slave),
        has_epochs=True,
    )


def put(store: MessageStore, number: int) -> int:
    """Store one of many kinds of messages; returns its physical offset."""
    topic = ("Orders", "Payments", "Batched", "Orders")[number % 4]
    properties = f"UNIQ_KEY\x01id{number}\x02KEYS\x01key{number % 7}\x02TAGS\x01tag"
    if number % 4 == 1:
        properties += "\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b"
    result = store.commit_log.append(
        message(
            bytes([number]) * (number % 5 * 80),
            topic=topic,
            queue_id=number % 3,
            properties=properties.encode(),
        )
    )
    assert result.physical_offset >= 0, result
    return result.physical_offset


def dispatch(store: MessageStore) -> None:
    dispatch_to_end(store.dispatcher, store.commit_log)
    assert store.dispatcher.position == store.commit_log.max_offset


def contents(store: MessageStore) -> Contents:
    assert store.dispatcher.position == store.commit_log.max_offset
    assert store.epochs is not None
    return Contents(
        log_bytes(store.commit_log),
        {
            (queue.topic, queue.queue_id): (
                type(queue),
                queue.min_offset,
                queue.max_offset,
                list(queue.entries(queue.min_offset, 1000)),
            )
            for queue in store.queues
            if queue.max_offset
        },
        {
            f"{topic} {key}": offsets_of(store.index, topic, key)
            for topic in ("Orders", "Payments", "Batched")
            for key in (
                *(f"id{number}" for number in range(RECORDS + 9)),
                *(f"key{number}" for number in range(7)),
            )
        },
        store.epochs.entries,
    )


def reopened(root: Path) -> Contents:
    with resources_closed():
        return contents(opened(root))


def rebuilt(root: Path, target: Path, *, end: int) -> Contents:
    """What is built anew from the first bytes of a store's log."""
    shutil.copytree(root / "config", target / "config")
    shutil.copytree(root / "commitlog", target / "commitlog")
    if (root / "epochFileCheckpoint").exists():
        shutil.copy(root / "epochFileCheckpoint", target)
    left = end
    for path in sorted((target / "commitlog").iterdir()):
        data = path.read_bytes()
        if left <= 0:
            path.unlink()
        else:
            path.write_bytes(data[:left].ljust(FILE_BYTES, b"\0"))
        left -= FILE_BYTES
    with resources_closed():
        store = opened(target)
        assert store.epochs is not None
        store.epochs.truncate_suffix(end)
        assert store.commit_log.max_offset == end
        return contents(store)


@contextmanager
def slow_clock() -> Iterator[None]:
    """A second passes with each record that is stored, from a time in the past on: a file of the log takes
    longer than the 3 s that a start allows for."""
    ticks = count(1_700_000_000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: next(ticks) * 1_000_000_000)
        yield


def make_store(root: Path) -> list[int]:
    """Make a store that is closed cleanly, with its records stored by `slow_clock`; where they start."""
    (root / "config").mkdir(parents=True)
    (root / "config/topics.json").write_text(TOPICS)
    with resources_closed(), slow_clock():
        store = opened(root)
        assert store.epochs is not None
        starts = []
        for number in range(RECORDS):
            if number in EPOCHS:
                store.epochs.append(EPOCHS.index(number) + 1, store.commit_log.max_offset)
            starts.append(put(store, number))
        store.epochs.append(len(EPOCHS), store.commit_log.max_offset)
        assert len(store.commit_log.files) >= 4
        store.close()
    assert len(list((root / "index").iterdir())) >= 2
    return starts
