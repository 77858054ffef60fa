"""A log as producers of tags and keys make it, and its dispatch to consume queues and index."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch import Dispatcher
from trioha.store.index_service import IndexService
from trioha.store.message_properties import encode_properties
from trioha.store.messages import Message
from trioha.store.record import Host

FILE_BYTES: Final = 256 << 20
QUEUES: Final = 8
BODY: Final = bytes(range(256)) * 4
RECORD_BYTES: Final = 1300
"""About what a record takes."""


def open_log(folder: Path) -> CommitLog:
    """An empty log."""
    folder.mkdir(parents=True)
    return CommitLog(
        folder, file_bytes=FILE_BYTES, message_bytes_max=4 << 20, store_host=Host.parse("127.0.0.1", 1)
    )


def make_log(folder: Path, *, records: int) -> CommitLog:
    """A log whose records have a UNIQ_KEY as Java's client makes it, a key and a tag."""
    log = open_log(folder)
    for number in range(records):
        properties = {
            "KEYS": f"order-{number}",
            "UNIQ_KEY": f"7F0000012DB4{0x0E2F2A67:08X}{number >> 16:08X}{number & 0xFFFF:04X}",
            "CLUSTER": "DefaultCluster",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
            "TAGS": f"Tag{number % 16}",
            "WAIT": "true",
        }
        encoded = encode_properties(properties)
        log.append(Message(topic="BenchTopic", queue_id=number % QUEUES, body=BODY, properties=encoded))
    return log


def dispatch(log: CommitLog, folder: Path, *, records: int) -> None:
    """Build queues and index of the whole log, and check that each record is in them."""
    queues = ConsumeQueues(folder)
    index = IndexService.open(folder)
    dispatcher = Dispatcher(log, queues, index, position=log.min_offset)
    while dispatcher.position < log.max_offset:
        dispatcher.dispatch(log.max_offset, records_max=5000)
    assert dispatcher.faults == 0
    assert sum(queue.max_offset for queue in queues) == records
    assert sum(file.index_count - 1 for file in index.files) == 2 * records
    queues.close()
    index.close()
