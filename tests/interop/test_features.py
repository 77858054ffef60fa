"""What trioha adds to the protocol, beside unmodified masters and slaves that know nothing of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from attrs import evolve

from tests.faults.rebuilt import Shape, check_rebuilt
from tests.interop.java import JavaDriver, JavaStore
from tests.interop.logs import assert_same_log, log_files, read_log
from tests.interop.rocketmq import both_lines, indexes_tags, is_5
from tests.interop.test_java_master import TIMES_OUT_MS, assert_verified, client_of
from tests.interop.world import StartNode, StartPair, sync_settings
from tests.node_process import FILE_BYTES, SLAVE_TIMEOUT_MS, TriohaNode, start_load
from tests.waiting import wait_until
from trioha.ha.replication_session import WAITED_S
from trioha.store.checkpoint import Checkpoint
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.index_file import IndexFile, IndexShape

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

SHAPE = Shape(
    log_file_bytes=FILE_BYTES,
    queues=ConsumeQueueSettings(file_bytes=2000),
    index=IndexShape(hash_slots=1000, index_num=4000),
)
"""How the stores of these tests are configured, RocketMQ's and trioha's."""


def wait_for_verdict(slave: TriohaNode, word: str) -> str:
    """What a slave says of a master that it cannot follow."""
    wait_until(lambda: word in (client_of(slave).verdict or ""), f"verdict {word}")
    return client_of(slave).verdict or ""


def without_first_files(java: JavaDriver, store: JavaStore, number: int) -> JavaStore:
    """A real master that is started again when its first files have been deleted."""
    store.shutdown()
    for start in range(0, number * FILE_BYTES, FILE_BYTES):
        log_files(store.root)[start].unlink()
    return java.open_store(store.root, role="ASYNC_MASTER", haListenPort=store.ha_port)


# -- where a slave starts ----------------------------------------------------------------------------------


def test_an_empty_slave_takes_all_history_from_a_real_master_when_told_to(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = java.open_store(tmp_path / "master", role="SYNC_MASTER", **sync_settings(java))
    before = master.put(300, wait_store_msg_ok=False).end_offset
    assert before > 4 * FILE_BYTES

    slave = start_node(
        "slave",
        role="SLAVE",
        ha_master_address=master.ha_address,
        **{"trioha.haStartFrom": "earliest"},
    )
    slave.wait(max_offset=before)
    after = master.put(50, seed=2)

    assert after.statuses == {"PUT_OK": 50}
    assert min(log_files(slave.root)) == 0
    assert_same_log(master.root, slave.root, end=after.end_offset, file_bytes=FILE_BYTES)
    slave.stop()
    assert_verified(slave.root)


@pytest.mark.nightly
def test_where_a_real_masters_first_files_are_gone_history_starts_at_the_first_that_is_there(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = java.open_store(tmp_path / "master", role="ASYNC_MASTER")
    end = master.put(300).end_offset
    master = without_first_files(java, master, 2)
    assert (master.min_offset, master.max_offset) == (2 * FILE_BYTES, end)

    slave = start_node(
        "slave", role="SLAVE", ha_master_address=master.ha_address, **{"trioha.haStartFrom": "earliest"}
    )
    # The first file is looked for when no put before the last one waits any more.
    status = slave.wait(max_offset=end, within_s=4 * WAITED_S)

    assert status.min_offset == 2 * FILE_BYTES
    assert_same_log(master.root, slave.root, start=2 * FILE_BYTES, end=end, file_bytes=FILE_BYTES)


# -- who counts --------------------------------------------------------------------------------------------


def test_an_observer_of_a_real_master_has_everything_and_releases_no_put(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = java.open_store(
        tmp_path / "master", role="SYNC_MASTER", slaveTimeout=TIMES_OUT_MS, **sync_settings(java)
    )
    observer = start_node(
        "observer", role="SLAVE", ha_master_address=master.ha_address, **{"trioha.haRole": "observer"}
    )
    master.wait(haConnections=1)
    watched = master.put(5)
    observer.wait(max_offset=watched.end_offset)
    held = master.status()["push2SlaveMaxOffset"]
    replica = start_node("replica", role="SLAVE", ha_master_address=master.ha_address, brokerId=2)
    replica.wait(max_offset=watched.end_offset)
    released = master.put(100, seed=2)
    observer.wait(max_offset=released.end_offset)

    assert watched.statuses == {"FLUSH_SLAVE_TIMEOUT": 5}
    assert held <= 1
    assert released.statuses == {"PUT_OK": 100}
    for node in (observer, replica):
        assert_same_log(master.root, node.root, end=released.end_offset, file_bytes=FILE_BYTES)


@pytest.mark.nightly
def test_flushed_acks_satisfy_a_real_sync_master(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = java.open_store(tmp_path / "master", role="SYNC_MASTER", **sync_settings(java))
    slave = start_node(
        "slave",
        role="SLAVE",
        ha_master_address=master.ha_address,
        flushDiskType="SYNC_FLUSH",
        **{"trioha.haAckMode": "flushed"},
    )
    slave.wait(max_offset=master.put(1, wait_store_msg_ok=False).end_offset)
    puts = master.put(200, seed=2)

    assert puts.statuses == {"PUT_OK": 200}
    assert slave.status().flushed_offset == master.status()["push2SlaveMaxOffset"] == puts.end_offset


@pytest.mark.nightly
def test_a_trioha_master_that_lacks_real_slaves_refuses_before_it_stores(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = start_node(
        "master",
        role="SYNC_MASTER",
        inSyncReplicas=2,
        minInSyncReplicas=2,
        totalReplicas=2,
        slaveTimeout=SLAVE_TIMEOUT_MS,
    )
    slave = java.open_store(tmp_path / "slave", role="SLAVE", ha_master_address=master.ha_address)
    # Connected is not enough: it has to say first what it has.
    wait_until(lambda: master.status().in_sync_slaves >= 1, "a slave is in sync")
    enough = master.load(50)
    end = master.max_offset
    slave.shutdown()
    master.wait(connections=0)
    refused = master.load(5, seed=2)

    assert enough.statuses == {"PUT_OK": 50}
    assert refused.statuses == {"IN_SYNC_REPLICAS_NOT_ENOUGH": 5}
    assert master.max_offset == end


# -- other logs --------------------------------------------------------------------------------------------


def test_a_real_master_with_another_history_is_named_and_nothing_is_overwritten(
    start_node: StartNode, start_pair: StartPair
) -> None:
    master, slave = start_pair("ASYNC_MASTER")
    common = master.put(60).end_offset
    slave.wait(max_offset=common)
    slave.stop()
    alone = start_node("slave", role="ASYNC_MASTER")
    alone.load(5)
    end = alone.max_offset
    alone.stop()
    kept = read_log(slave.root, start=0, end=end, file_bytes=FILE_BYTES)
    # A master that has gone on elsewhere looks healthy to RocketMQ's own slaves: it serves their offset.
    while master.max_offset <= end:
        master.put(20, seed=3)

    back = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    verdict = wait_for_verdict(back, "DIVERGED")

    assert common <= int(verdict.rsplit(" ", 1)[1]) < end
    assert back.max_offset == end
    assert read_log(slave.root, start=0, end=end, file_bytes=FILE_BYTES) == kept


@both_lines
@pytest.mark.parametrize("ahead_by", [pytest.param(3, marks=pytest.mark.nightly), 60])
def test_a_real_master_that_ends_before_its_slave_is_named(
    ahead_by: int, java: JavaDriver, start_node: StartNode, start_pair: StartPair
) -> None:
    master, slave = start_pair("ASYNC_MASTER")
    slave.wait(max_offset=master.put(20).end_offset)
    slave.stop()
    ahead = start_node("slave", role="ASYNC_MASTER")
    ahead.load(ahead_by, size=(100, 500))
    end = ahead.max_offset
    ahead.stop()

    back = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    # Where the compared stretch begins beyond its end, 5.3.3 sends nothing but heartbeats, 4.9.7 hangs up.
    wait_for_verdict(back, "AHEAD" if ahead_by == 3 else "REFUSED" if not is_5(java.version) else "GAP")

    assert back.max_offset == end


@pytest.mark.nightly
def test_a_real_master_that_deleted_what_its_slave_needs_next_is_named(
    java: JavaDriver, start_node: StartNode, start_pair: StartPair
) -> None:
    master, slave = start_pair("ASYNC_MASTER")
    held = slave.max_offset
    slave.stop()
    master.put(300, seed=2)
    master = without_first_files(java, master, 2)

    back = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    verdict = wait_for_verdict(back, "GAP")

    assert str(held) in verdict
    assert back.max_offset == held


# -- queues and index --------------------------------------------------------------------------------------


@both_lines
def test_queues_and_index_of_a_trioha_slave_are_those_of_its_real_master(
    java: JavaDriver, start_pair: StartPair
) -> None:
    master, slave = start_pair("ASYNC_MASTER")
    master.put(300)
    end = master.put(40, topic="WithPrepared", prepared_every=5, seed=2).end_offset
    slave.wait(max_offset=end)
    master.wait(dispatched=True)
    slave.stop()
    master.shutdown()

    assert check_rebuilt(slave.root, SHAPE) == []
    assert check_rebuilt(master.root, SHAPE, may_index_tags=indexes_tags(java.version)) == []
    theirs = files_below(master.root / "consumequeue")
    assert len(theirs) >= 8
    assert files_below(slave.root / "consumequeue") == theirs
    if not indexes_tags(java.version):
        assert list(files_below(slave.root / "index").values()) == list(
            files_below(master.root / "index").values()
        )


def test_a_real_store_takes_over_the_queues_of_a_killed_trioha_master(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    # Of a full index file RocketMQ would have the last record twice.
    one_index_file = evolve(SHAPE, index=evolve(SHAPE.index, index_num=2_000_000))
    settings = {"role": "ASYNC_MASTER", "maxIndexNum": one_index_file.index.index_num}
    node = start_node("store", **settings)
    sending = start_load(node.listen_address, 1_000_000, size=(10, 1000), concurrency=2)
    node.wait(max_offset=2 * FILE_BYTES)
    now_ms = time.time() * 1000
    # Its checkpoint vouches for some files of the log, as after a longer life, and more follow.
    wait_until(lambda: vouched_until_ms(node.root) >= now_ms, "a checkpoint is written")
    node.wait(max_offset=node.max_offset + 300_000)
    node.kill()
    sending.kill()
    sending.communicate()

    store = java.open_store(node.root, messageIndexSafe=False, **settings)
    read = store.read()
    appended = store.put(50, seed=3)
    again = store.read()
    store.shutdown()

    assert len(read.messages) > 500
    assert read.gaps() == again.gaps() == []
    assert read.messages[-1].physical_offset + read.messages[-1].size <= appended.end_offset
    assert len(again.messages) == len(read.messages) + 50
    # As configured by default, it has deleted the index, and built that of the log files that it looked at.
    start = indexed_from(node.root, one_index_file.index)
    assert start in log_files(node.root)
    assert start > 0
    # And back: trioha goes on where RocketMQ stopped, and its queues are what both logs give.
    back = start_node("store", **settings)
    assert back.max_offset_at_start == appended.end_offset
    assert back.load(50, seed=4).statuses == {"PUT_OK": 50}
    back.stop()
    tags = indexes_tags(java.version)
    assert check_rebuilt(node.root, one_index_file, may_index_tags=tags, indexed_from=start) == []


def vouched_until_ms(store: Path) -> int:
    """Store time of records that are on disk, with their queues, to RocketMQ.

    See docs/protocol/store.md#checkpoint.
    """
    checkpoint = Checkpoint.load(store / "checkpoint")
    return min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms) - 3000


def indexed_from(store: Path, shape: IndexShape) -> int:
    """Physical offset of the first record in the index of a store that is closed."""
    (path,) = (store / "index").iterdir()
    index = IndexFile.open(path, shape)
    try:
        return index.begin_physical_offset
    finally:
        index.close()


def files_below(folder: Path) -> dict[str, bytes]:
    """Relative path to content of every file below `folder` that is not all zeros."""
    return {
        str(path.relative_to(folder)): data
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(data := path.read_bytes())
    }
