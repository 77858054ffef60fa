"""Real RocketMQ as master, trioha as slave."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.interop.java import JavaDriver
from tests.interop.logs import assert_same_log, blank_tails, log_files, remove_files_just_made, whole_records
from tests.interop.rocketmq import both_lines, is_5, only_5
from tests.interop.world import StartNode, StartPair, sync_settings
from tests.node_process import FILE_BYTES, WITHIN_S, TriohaNode, run_trioha
from trioha.broker_status import SlaveStatus

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TIMES_OUT_MS = 3000
"""slaveTimeout where puts have to time out, and others of the same test must not, on a busy machine."""
LARGE = (20000, 65000)
"""Bodies of more than one transfer batch, up to what a file of the tests can just hold."""


def assert_verified(store: Path) -> None:
    """`trioha verify` finds nothing wrong."""
    answer = run_trioha("verify", store)
    assert answer.exit_code == 0, answer


@both_lines
@pytest.mark.parametrize("flush", [pytest.param("ASYNC_FLUSH", marks=pytest.mark.nightly), "SYNC_FLUSH"])
def test_sync_puts_are_ok_and_the_trioha_slaves_log_is_equal_at_once(
    flush: str, start_pair: StartPair
) -> None:
    master, slave = start_pair("SYNC_MASTER", flushDiskType=flush)

    small = master.put(200, seed=1)
    large = master.put(12, size=LARGE, seed=2)
    end = large.end_offset
    # No waiting: what was acknowledged is there at this moment.
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)

    assert small.statuses == {"PUT_OK": 200}
    assert large.statuses == {"PUT_OK": 12}
    assert end > 10 * FILE_BYTES
    assert blank_tails(slave.root, end=end, file_bytes=FILE_BYTES) == end // FILE_BYTES
    assert master.status()["push2SlaveMaxOffset"] == end
    slave.stop()
    assert_verified(slave.root)


def test_a_trioha_slave_copies_an_async_master_and_a_real_store_reads_the_copy(
    java: JavaDriver, start_pair: StartPair
) -> None:
    master, slave = start_pair("ASYNC_MASTER")

    puts = master.put(400)
    end = puts.end_offset
    slave.wait(max_offset=end)
    slave.stop()
    copy = java.open_store(slave.root, role="ASYNC_MASTER")

    assert puts.statuses == {"PUT_OK": 400}
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
    assert copy.max_offset == end
    read = copy.read()
    assert len(read.messages) == 401
    assert read == master.read()


def test_an_empty_trioha_slave_of_a_master_with_history_starts_at_the_last_file(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = java.open_store(tmp_path / "master", role="ASYNC_MASTER")
    before = master.put(150).end_offset
    start = before - before % FILE_BYTES
    assert start > 2 * FILE_BYTES

    slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    slave.wait(max_offset=before)
    end = master.put(100, seed=2).end_offset
    status = slave.wait(max_offset=end)

    assert status.min_offset == start
    assert min(log_files(slave.root)) == start
    assert_same_log(master.root, slave.root, start=start, end=end, file_bytes=FILE_BYTES)


@pytest.mark.nightly
def test_a_stopped_trioha_slave_resumes_at_its_exact_byte(
    start_node: StartNode, start_pair: StartPair
) -> None:
    master, slave = start_pair("SYNC_MASTER")
    held = master.put(60).end_offset
    slave.wait(max_offset=held)
    slave.stop()
    missed = master.put(60, seed=2, wait_store_msg_ok=False).end_offset

    again = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    again.wait(max_offset=missed)
    after = master.put(60, seed=3)

    # Not what it says when it serves: by then it may have received all the rest.
    opened_with = re.findall(r"store opened +max_offset=(\d+)", again.log())
    assert opened_with == ["0", str(held)]
    assert held < missed
    assert after.statuses == {"PUT_OK": 60}
    assert_same_log(master.root, slave.root, end=after.end_offset, file_bytes=FILE_BYTES)


def test_no_put_is_ok_that_a_killed_trioha_slave_does_not_hold(start_pair: StartPair) -> None:
    master, slave = start_pair("SYNC_MASTER", slaveTimeout=TIMES_OUT_MS)
    puts = master.start_put(1_000_000, size=(10, 500), ipv6_born_hosts=False, until_not_ok=True)
    slave.wait(max_offset=300_000)
    slave.kill()
    statuses = puts.result(WITHIN_S).statuses

    # One more than the counted ones: the message that start_pair sent.
    assert 500 < statuses["PUT_OK"] < whole_records(slave.root, file_bytes=FILE_BYTES)
    assert set(statuses) - {"PUT_OK"} <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    assert len(statuses) > 1


def test_a_trioha_slave_killed_in_the_middle_of_a_transfer_ends_with_the_same_log(
    start_node: StartNode, start_pair: StartPair
) -> None:
    master, slave = start_pair("ASYNC_MASTER")
    deadline_s = time.monotonic() + WITHIN_S
    for seed in count():
        puts = master.start_put(10_000, size=(10, 1000), seed=seed)
        slave.wait(max_offset=slave.max_offset + 100_000)
        slave.kill()
        slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
        end = puts.result(WITHIN_S).end_offset
        slave.wait(max_offset=end)
        if 0 < slave.max_offset_at_start < end:
            break
        assert time.monotonic() < deadline_s, "the slave was never killed before it had everything"

    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
    slave.stop()
    assert_verified(slave.root)


@pytest.mark.nightly
def test_a_trioha_slave_follows_a_real_master_that_restarts(java: JavaDriver, start_pair: StartPair) -> None:
    master, slave = start_pair("ASYNC_MASTER")
    slave.wait(max_offset=master.put(60).end_offset)

    master.shutdown()
    again = java.open_store(master.root, role="ASYNC_MASTER", haListenPort=master.ha_port)
    end = again.put(150, seed=2).end_offset
    slave.wait(max_offset=end)

    assert again.max_offset == end
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)


def test_a_trioha_slave_follows_a_real_master_that_was_killed(
    java: JavaDriver, own_jvm: Callable[..., JavaDriver], start_pair: StartPair
) -> None:
    jvm = own_jvm(java.version)
    master, slave = start_pair("ASYNC_MASTER", jvm=jvm)
    master.start_put(20000, size=(10, 1000))
    slave.wait(max_offset=master.max_offset + 200_000)
    jvm.kill()
    held = slave.max_offset
    remove_files_just_made(master.root)

    again = own_jvm(java.version).open_store(master.root, role="ASYNC_MASTER", haListenPort=master.ha_port)
    assert again.max_offset >= held
    end = again.put(150, seed=2).end_offset
    slave.wait(max_offset=end)

    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)


def test_a_hung_trioha_slave_lets_sync_puts_time_out_and_then_catches_up(start_pair: StartPair) -> None:
    master, slave = start_pair("SYNC_MASTER", slaveTimeout=TIMES_OUT_MS)
    slave.hang()
    hung = master.put(3, size=(2000, 2000))
    slave.resume()
    slave.wait(max_offset=hung.end_offset)
    awake = master.put(20, seed=2)

    assert hung.statuses == {"FLUSH_SLAVE_TIMEOUT": 3}
    assert awake.statuses == {"PUT_OK": 20}
    assert_same_log(master.root, slave.root, end=awake.end_offset, file_bytes=FILE_BYTES)


@pytest.mark.nightly
def test_messages_of_megabytes_reach_a_trioha_slave(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    file_bytes = 8 * 1024 * 1024
    master = java.open_store(
        tmp_path / "master",
        role="SYNC_MASTER",
        mappedFileSizeCommitLog=file_bytes,
        maxMessageSize=file_bytes // 2,
        haTransferBatchSize=1024 * 1024,
        **sync_settings(java),
    )
    slave = start_node(
        "slave",
        role="SLAVE",
        ha_master_address=master.ha_address,
        mappedFileSizeCommitLog=file_bytes,
        maxMessageSize=file_bytes // 2,
    )
    first = master.put(1, size=(100, 100), wait_store_msg_ok=False)
    slave.wait(max_offset=first.end_offset)
    puts = master.put(6, size=(file_bytes // 3, file_bytes // 2))

    assert puts.statuses == {"PUT_OK": 6}
    assert puts.end_offset > 2 * file_bytes
    assert_same_log(master.root, slave.root, end=puts.end_offset, file_bytes=file_bytes)


def test_a_real_master_that_needs_three_copies_counts_two_trioha_slaves(
    newest: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    # Only 5.x can wait for more than one slave.
    master = newest.open_store(
        tmp_path / "master", role="SYNC_MASTER", inSyncReplicas=3, totalReplicas=3, slaveTimeout=TIMES_OUT_MS
    )
    slaves = [
        start_node(name, role="SLAVE", ha_master_address=master.ha_address) for name in ("slave-1", "slave-2")
    ]
    first = master.put(1, size=(100, 100), wait_store_msg_ok=False)
    for slave in slaves:
        slave.wait(max_offset=first.end_offset)
    three = master.put(100)
    for slave in slaves:
        assert_same_log(master.root, slave.root, end=three.end_offset, file_bytes=FILE_BYTES)
    slaves[0].hang()
    two = master.put(2, seed=2)

    assert three.statuses == {"PUT_OK": 100}
    assert two.statuses == {"FLUSH_SLAVE_TIMEOUT": 2}


@both_lines
def test_a_trioha_slave_that_is_gone_is_seen_at_once_by_a_real_master(
    java: JavaDriver, start_pair: StartPair
) -> None:
    master, slave = start_pair("SYNC_MASTER", slaveTimeout=400)
    slave.stop()
    master.wait(haConnections=0)
    alone = master.put(3)
    # 5.x does not check for slaves before it waits (docs/protocol/ha.md#which-puts-wait).
    assert alone.statuses == {"SLAVE_NOT_AVAILABLE" if not is_5(java.version) else "FLUSH_SLAVE_TIMEOUT": 3}


HOUSEKEEPING_MS = 4000
"""A slave that has no processor for so long may be cut off; one that has reports each 0.2 s."""


@pytest.mark.nightly
def test_an_idle_trioha_slave_keeps_its_connection_beyond_the_housekeeping_interval(
    start_pair: StartPair,
) -> None:
    master, slave = start_pair(
        "ASYNC_MASTER",
        haHousekeepingInterval=HOUSEKEEPING_MS,
    )
    before = client_of(slave)
    time.sleep(2.3 * HOUSEKEEPING_MS / 1000)
    after = client_of(slave)

    assert master.status()["haConnections"] == 1
    assert after.reconnects == before.reconnects
    assert after.last_read_ms > before.last_read_ms


def client_of(slave: TriohaNode) -> SlaveStatus:
    """A slave's own view of its connection."""
    client = slave.status().client
    assert client is not None
    return client


@only_5
def test_records_of_version_2_are_replicated_and_decoded(start_pair: StartPair) -> None:
    topic = "%RETRY%" + "long-topic-" * 15
    assert len(topic) > 127
    master, slave = start_pair("SYNC_MASTER")
    puts = master.put(40, topic=topic)
    slave.stop()

    assert puts.statuses == {"PUT_OK": 40}
    assert_same_log(master.root, slave.root, end=puts.end_offset, file_bytes=FILE_BYTES)
    assert_verified(slave.root)
