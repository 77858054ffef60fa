"""Stores of trioha after a power cut, opened by real RocketMQ; and the checkpoint that both write."""

from __future__ import annotations

import shutil
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.descriptors import close_after_test, release_after_test, resources_closed
from tests.interop.java import JavaDriver, JavaMessage
from tests.interop.rocketmq import writes_logics_offset
from tests.interop.test_features import SHAPE
from tests.node_process import FILE_BYTES
from tests.store.crashes import CrashingDisk, PowerCutDisk
from tests.store.support import cut_store
from tests.store.whole_stores import dispatch
from tests.waiting import wait_until
from trioha.store.checkpoint import Checkpoint
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.opening import open_store
from trioha.store.record import Host
from trioha.store.recovery import SLACK_MS
from trioha.store.store_settings import StoreSettings

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TOPIC = "TopicTest"
MESSAGES = 500


def opened(root: Path) -> MessageStore:
    """A store of trioha with the settings of the real ones; its files are closed after the test."""
    store = open_store(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=FILE_BYTES,
            message_bytes_max=65536,
            store_host=Host.parse("127.0.0.1", 10911),
            queues=SHAPE.queues,
            index=SHAPE.index,
        )
    )
    release_after_test(store.release)
    return store


def put(store: MessageStore, count: int) -> list[int]:
    """Store messages, put the log on disk, and dispatch; returns where the messages are in the log."""
    log = store.commit_log
    offsets = [
        log.append(Message(topic=TOPIC, queue_id=number % 4, body=bytes(900))).physical_offset
        for number in range(count)
    ]
    store.syncs.log_sync(log.flushed.offset, log.max_offset, store_timestamp_ms=log.last_store_timestamp_ms)()
    log.flushed.advance(log.max_offset)
    dispatch(store)
    return offsets


def sync_queues(store: MessageStore) -> None:
    work = store.syncs.queue_sync()
    assert work is not None
    work()


@contextmanager
def power_cut(root: Path, image: Path) -> Iterator[None]:
    """`image` is the store without what the block did not sync."""
    root.mkdir(exist_ok=True)
    disk = close_after_test(PowerCutDisk(root))
    with resources_closed(), CrashingDisk(on_sync=disk.synced).in_use():
        yield
    disk.image(image, is_kept=lambda: False)
    (image / "abort").touch()


def between_two_syncs(root: Path, image: Path) -> list[int]:
    with power_cut(root, image):
        store = opened(root)
        there = put(store, MESSAGES // 2)
        sync_queues(store)
        return there + put(store, MESSAGES // 2)


def after_a_start_that_built_queues(root: Path, image: Path) -> list[int]:
    with resources_closed():
        store = opened(root)
        there = put(store, MESSAGES)
        store.close()
    shutil.rmtree(root / "consumequeue")
    with power_cut(root, image):
        opened(root)
    return there


def after_a_cut(root: Path, image: Path) -> list[int]:
    with power_cut(root, image):
        store = opened(root)
        there = put(store, MESSAGES)
        sync_queues(store)
        cut_store(store, there[MESSAGES // 2])
        dispatch(store)
        store.puts.enable()
        return there[: MESSAGES // 2] + put(store, MESSAGES)


SCENARIOS = [
    between_two_syncs,
    *(pytest.param(one, marks=pytest.mark.nightly) for one in (after_a_start_that_built_queues, after_a_cut)),
]
"""When the power goes. They leave a store, and return where its messages are in the log."""


@pytest.fixture
def _one_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    """All records have one store time, as under load those on both sides of a file's end."""
    now_ns = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now_ns)


def entries(root: Path) -> set[int]:
    """Where the messages are that queues have on disk."""
    found: set[int] = set()
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            found |= {offset for offset, size, _ in struct.iter_unpack(">qiq", path.read_bytes()) if size}
    return found


def check_queues(java: JavaDriver, image: Path, there: list[int], **settings: object) -> None:
    """RocketMQ opens a store of which queue entries are missing, and then has all of them."""
    assert entries(image) < set(there)
    # By default RocketMQ builds queues from where they may be incomplete, however old its index is.
    store = java.open_store(image, role="ASYNC_MASTER", messageIndexSafe=False, **settings)
    read = store.read(TOPIC)
    assert [message.physical_offset for message in read.messages] == there
    assert read.gaps() == []
    appended = store.put(8, topic=TOPIC)
    assert appended.statuses == {"PUT_OK": 8}
    assert len(store.read(TOPIC).messages) == len(there) + 8


@pytest.mark.usefixtures("_one_millisecond")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rocketmq_builds_all_queue_entries_that_a_power_cut_took(
    java: JavaDriver, tmp_path: Path, scenario: Callable[[Path, Path], list[int]]
) -> None:
    there = scenario(tmp_path / "store", tmp_path / "image")
    check_queues(java, tmp_path / "image", there)


@pytest.mark.usefixtures("_one_millisecond")
@pytest.mark.parametrize(
    "scenario", [between_two_syncs, pytest.param(after_a_cut, marks=pytest.mark.nightly)]
)
def test_rocketmq_reads_the_log_from_the_checkpoints_offset_on(
    newest: JavaDriver, tmp_path: Path, scenario: Callable[[Path, Path], list[int]]
) -> None:
    if not writes_logics_offset(newest.version):
        pytest.skip(f"{newest.version} reads whole files")
    there = scenario(tmp_path / "store", tmp_path / "image")
    assert Checkpoint.load(tmp_path / "image" / "checkpoint").logics_physical_offset > FILE_BYTES
    check_queues(newest, tmp_path / "image", there, enableAcceleratedRecovery=True)


def dispatched_from(messages: Sequence[JavaMessage], killed: Checkpoint) -> int:
    """Where trioha dispatches from after a kill: at the newest log file whose first record is 3 s older than
    what the checkpoint has, and that starts at or before its offset."""
    old_ms = min(killed.physic_msg_timestamp_ms, killed.logics_msg_timestamp_ms) - SLACK_MS
    firsts = {}
    for message in messages:
        firsts.setdefault(
            message.physical_offset // FILE_BYTES * FILE_BYTES, message.record["storeTimestamp"]
        )
    return max(
        (start for start, ms in firsts.items() if ms <= old_ms and start <= killed.logics_physical_offset),
        default=0,
    )


@pytest.mark.parametrize("stop", ["clean", pytest.param("killed", marks=pytest.mark.nightly)])
def test_in_a_store_that_both_use_the_offset_is_that_of_a_sync_of_the_queues(
    java: JavaDriver, own_jvm: Callable[..., JavaDriver], tmp_path: Path, stop: str
) -> None:
    root = tmp_path / "store"
    with resources_closed():
        store = opened(root)
        put(store, 100)
        end_offset = store.commit_log.max_offset
        store.close()
    before = Checkpoint.load(root / "checkpoint")
    jvm = own_jvm(java.version) if stop == "killed" else java
    real = jvm.open_store(root, role="ASYNC_MASTER", flushConsumeQueueThoroughInterval=100)
    assert real.put(200, topic=TOPIC).statuses == {"PUT_OK": 200}
    messages = real.read(TOPIC).messages
    # RocketMQ writes where the last message starts whose entry was there before a sync.
    last_offset = messages[-1].physical_offset if writes_logics_offset(java.version) else end_offset
    last_ms = messages[-1].record["storeTimestamp"]

    def on_disk() -> Checkpoint:
        return Checkpoint.load(root / "checkpoint")

    wait_until(lambda: on_disk().logics_msg_timestamp_ms == last_ms, "the queues are synced")
    now = on_disk()
    if stop == "killed":
        jvm.kill()
    else:
        real.shutdown()
    after = Checkpoint.load(root / "checkpoint")
    # endPhyOffset of the header: records without keys are in the index of some versions only.
    (indexed_offset,) = struct.unpack_from(">q", max((root / "index").iterdir()).read_bytes(), 24)
    with resources_closed():
        store = opened(root)
        found = Checkpoint.load(root / "checkpoint")
        max_offset = store.commit_log.max_offset
        queued = sum(store.reads.max_offset(TOPIC, queue_id) for queue_id in range(4))

    assert before.logics_physical_offset == end_offset
    assert (now.logics_physical_offset, after.logics_physical_offset) == (last_offset, last_offset)
    assert queued == len(messages) == 300
    if stop == "clean":
        # The index may lack keys of its last record, and of all after it, as far as a start knows; a broker
        # that writes the offset says what it has.
        assert found.logics_physical_offset == max(last_offset, indexed_offset) < max_offset
    else:
        assert found.logics_physical_offset == dispatched_from(messages, after)
