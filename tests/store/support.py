"""Stores for tests: recorded ones of RocketMQ, and small new ones."""

from __future__ import annotations

import json
import shutil
from binascii import crc32
from pathlib import Path
from typing import Any

from tests.descriptors import close_after_test, release_after_test
from trioha.store import opening
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.epochs import FILE_NAME
from trioha.store.index_file import IndexShape
from trioha.store.index_service import IndexService
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import CRC_MASK, MAGIC_V1
from trioha.store.recovery import Recovered, open_commit_log
from trioha.store.store_settings import StoreSettings

VECTORS = Path(__file__).parent.parent / "vectors"
STORES = ("store-4.9.7", "store-5.3.3", "store-5.3.3-propcrc-lmq")
FILE_BYTES = 65536
OPEN_QUEUE_FILES_MAX = 32
"""Of each store: tests pass with 256 descriptors."""
HOST = Host.parse("127.0.0.1", 10911)


def expected(name: str) -> dict[str, Any]:
    """RocketMQ's own description of a recorded store."""
    return json.loads((VECTORS / name / "expected.json").read_text())


def copy_store(name: str, folder: Path, *, kind: str = "store") -> Path:
    """A copy of a recorded store that may be changed."""
    return Path(shutil.copytree(VECTORS / name / kind, folder / f"{name}-{kind}"))


def open_log(
    directory: Path,
    *,
    file_bytes: int = FILE_BYTES,
    message_bytes_max: int = 4 << 20,
    clean_exit: bool = True,
    checkpoint: Checkpoint | None = None,
    store_host: Host = HOST,
) -> tuple[CommitLog, Recovered]:
    """A recovered log with the settings of the recorded stores; closed after the test."""
    log, recovered = open_commit_log(
        directory,
        file_bytes=file_bytes,
        message_bytes_max=message_bytes_max,
        store_host=store_host,
        clean_exit=clean_exit,
        checkpoint=checkpoint or Checkpoint(),
    )
    return close_after_test(log), recovered


def open_store(
    root: Path,
    *,
    file_bytes: int = FILE_BYTES,
    dispatch: DispatchSettings | None = None,
    has_epochs: bool = False,
    dispatch_to_confirmed: bool = False,
) -> MessageStore:
    """A store with the settings of the recorded ones; its files are closed after the test."""
    store = opening.open_store(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=file_bytes,
            message_bytes_max=4 << 20,
            store_host=HOST,
            queues=ConsumeQueueSettings(
                file_bytes=400, batch_file_bytes=920, open_files_max=OPEN_QUEUE_FILES_MAX
            ),
            index=IndexShape(hash_slots=53, index_num=100),
            dispatch=dispatch or DispatchSettings(enable_lmq=True, enable_multi_dispatch=True),
            dispatch_to_confirmed=dispatch_to_confirmed,
            epoch_file=root / FILE_NAME if has_epochs else None,
        )
    )
    release_after_test(store.release)
    return store


def message(body: bytes = b"hello", *, topic: str = "Orders", queue_id: int = 0, **fields: Any) -> Message:
    """A legal message."""
    return Message(topic=topic, queue_id=queue_id, body=body, **fields)


def offsets_of(
    index: IndexService, topic: str, key: str, *, begin_ms: int = 0, end_ms: int = 1 << 62
) -> list[int]:
    """Physical offsets that the index has for a key, newest first."""
    return list(index.candidates(topic, key, begin_ms=begin_ms, end_ms=end_ms))


def log_bytes(log: CommitLog) -> bytes:
    """All bytes of a log."""
    data = bytearray()
    while view := log.read(log.min_offset + len(data), FILE_BYTES * 100):
        data += view
    return bytes(data)


def receive(store: MessageStore, ms: int) -> None:
    """Append a record as a slave does, with any store time."""
    log = store.commit_log
    queue_offset = log.queue_offsets.get(("Orders", 0), 0)
    body = b"copied"
    record = Record(
        magic=MAGIC_V1, body_crc=crc32(body) & CRC_MASK, queue_id=0, flag=0, queue_offset=queue_offset,
        physical_offset=log.max_offset, sys_flag=0, born_timestamp_ms=0, born_host=HOST,
        store_timestamp_ms=ms, store_host=HOST, reconsume_times=0, prepared_transaction_offset=0, body=body,
        topic="Orders", properties_raw=b"",
    )  # fmt: skip
    log.append_records(memoryview(encode_record(record)), last_store_timestamp_ms=ms)
    log.queue_offsets["Orders", 0] = queue_offset + 1


def cut_store(store: MessageStore, offset: int) -> None:
    """End the log at `offset`, and all that was built from it, on disk."""
    for step in store.cutter.steps(offset):
        step()


def sync_queues(store: MessageStore) -> Checkpoint:
    """Put queues and index on disk, as the dispatch task does it; returns the checkpoint on disk then."""
    work = store.syncs.queue_sync()
    assert work is not None
    work()
    return on_disk(store)


def on_disk(store: MessageStore) -> Checkpoint:
    """The checkpoint as it is in its file."""
    return Checkpoint.load(store.settings.root / "checkpoint")
