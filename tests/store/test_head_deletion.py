"""After old log files are deleted, queues, index and reads follow.

See docs/protocol/store.md#deletion-of-files.
"""

import os
import time

import pytest

from tests.faults.rebuilt import Shape, check_rebuilt
from tests.waiting import wait_until
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.index_file import IndexShape
from trioha.store.message_properties import parse_properties
from trioha.store.opening import open_store
from trioha.store.reads import GetStatus
from trioha.store.record import Host, decode_record
from trioha.store.store_settings import StoreSettings

pytestmark = [pytest.mark.process, pytest.mark.full]

FILE_BYTES = 65536
INDEX = IndexShape(hash_slots=100, index_num=200)
QUEUES = ConsumeQueueSettings(file_bytes=400)
NODE = {
    "role": "ASYNC_MASTER", "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": QUEUES.file_bytes, "maxHashSlotNum": INDEX.hash_slots,
    "maxIndexNum": INDEX.index_num,
}  # fmt: skip
EVERY_HOUR = ";".join(f"{hour:02d}" for hour in range(24))
TOPIC = "TopicTest"


def open_files(root):
    return open_store(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=FILE_BYTES,
            message_bytes_max=65000,
            store_host=Host.parse("127.0.0.1", 10911),
            queues=QUEUES,
            index=INDEX,
        )
    )


@pytest.mark.parametrize("stop", ["clean", "killed"])
def test_reads_begin_where_the_log_does_after_its_first_files_were_deleted(start_node, tmp_path, stop):
    root = tmp_path / "store"
    keeping = start_node(**NODE)
    keeping.load(300, size=(900, 1100))
    first_index_file = min(path.name for path in (root / "index").iterdir())
    keeping.stop()
    old = sorted((root / "commitlog").iterdir())[:-1]
    two_hours_ago_s = time.time() - 2 * 3600
    for path in old:
        os.utime(path, (two_hours_ago_s, two_hours_ago_s))
    node = start_node(**NODE, deleteWhen=EVERY_HOUR, fileReservedTime=1, cleanResourceInterval=1000)
    loaded = node.load(300, size=(900, 1100), seed=2)
    wait_until(lambda: node.status().min_offset >= len(old) * FILE_BYTES, "the old files are deleted")
    min_offset, max_offset = node.status().min_offset, node.status().max_offset
    node.stop() if stop == "clean" else node.kill()

    assert loaded.statuses == {"PUT_OK": 300}
    assert len(old) > 3
    assert min(int(path.name) for path in (root / "commitlog").iterdir()) == min_offset
    assert first_index_file not in {path.name for path in (root / "index").iterdir()}
    store = open_files(root)
    assert (store.commit_log.min_offset, store.commit_log.max_offset) == (min_offset, max_offset)
    readable = 0
    for queue in store.queues:
        low, high = queue.min_offset, queue.max_offset
        assert 0 < low < high == 150
        # No file is left with only deleted records.
        names = sorted(int(path.name) for path in (root / f"consumequeue/{TOPIC}/{queue.queue_id}").iterdir())
        assert names[0] <= low * 20 < names[0] + QUEUES.file_bytes
        too_small = store.reads.get(TOPIC, queue.queue_id, low - 1)
        assert (too_small.status, too_small.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
        assert (too_small.min_offset, too_small.max_offset, too_small.records) == (low, high, ())
        assert store.reads.get(TOPIC, queue.queue_id, high).status is GetStatus.OFFSET_OVERFLOW_ONE
        for offset in range(low, high):
            record = decode_record(store.reads.get(TOPIC, queue.queue_id, offset).records[0])
            assert (record.queue_offset, record.queue_id) == (offset, queue.queue_id)
            assert record.physical_offset >= min_offset
            key = parse_properties(record.properties_raw)["UNIQ_KEY"]
            assert [decode_record(found) for found in store.reads.by_key(TOPIC, key)] == [record]
            readable += 1
    assert 0 < readable < 600
    assert store.reads.record_at(0) is None
    store.close()
    shape = Shape(log_file_bytes=FILE_BYTES, queues=QUEUES, index=INDEX)
    # An index file that begins with deleted records stays as long as it has keys of others.
    assert [problem for problem in check_rebuilt(root, shape) if "consumequeue" in problem] == []
