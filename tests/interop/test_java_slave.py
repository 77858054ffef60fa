"""trioha as master, real RocketMQ as slave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import JavaDriver, JavaStore
from tests.interop.logs import assert_same_log, blank_tails, log_files, remove_files_just_made, whole_records
from tests.interop.rocketmq import LINES
from tests.interop.test_java_master import TIMES_OUT_MS
from tests.interop.world import StartNode
from tests.node_process import FILE_BYTES, SLAVE_TIMEOUT_MS, WITHIN_S, TriohaNode, finish_load, start_load
from tests.ports import free_port

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

LARGE = (20000, 64000)
"""Bodies of more than one transfer batch, up to what a file of the tests can just hold."""
MIB = 1024 * 1024


def start_with_slaves(
    javas: list[JavaDriver],
    start_node: StartNode,
    folder: Path,
    *,
    role: str,
    name: str = "master",
    **settings: Any,
) -> tuple[TriohaNode, list[JavaStore]]:
    """A trioha master and real slaves that have its first bytes, so that they get every file."""
    master = start_node(name, role=role, **{"slaveTimeout": SLAVE_TIMEOUT_MS, **settings})
    slaves = [
        java.open_store(
            folder / f"slave-of-{name}-{java.version}",
            role="SLAVE",
            ha_master_address=master.ha_address,
            mappedFileSizeCommitLog=settings.get("mappedFileSizeCommitLog", FILE_BYTES),
        )
        for java in javas
    ]
    master.wait(connections=len(slaves))
    master.load(1, size=(100, 100))
    first_bytes = master.max_offset
    for slave in slaves:
        slave.wait(maxOffset=first_bytes)
    return master, slaves


def test_sync_puts_are_ok_and_the_real_slaves_log_is_equal_at_once(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master, (slave,) = start_with_slaves(
        [java], start_node, tmp_path, role="SYNC_MASTER", flushDiskType="SYNC_FLUSH"
    )

    small = master.load(300, seed=1)
    large = master.load(12, size=LARGE, seed=2)
    end = master.max_offset
    # No waiting: what was acknowledged is there at this moment.
    assert slave.max_offset == end
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)

    assert small.statuses == {"PUT_OK": 300}
    assert large.statuses == {"PUT_OK": 12}
    assert (small.exit_code, large.exit_code) == (0, 0)
    assert end > 12 * FILE_BYTES
    assert blank_tails(master.root, end=end, file_bytes=FILE_BYTES) == end // FILE_BYTES
    assert master.wait(ack_offset=end).in_sync_slaves == 1
    read = slave.read()
    assert (len(read.messages), read.gaps()) == (313, [])


def test_messages_of_megabytes_in_the_largest_frames_reach_real_slaves(
    of_both_lines: list[JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    file_bytes = 8 * MIB
    master, slaves = start_with_slaves(
        of_both_lines,
        start_node,
        tmp_path,
        role="SYNC_MASTER",
        inSyncReplicas=3,
        totalReplicas=3,
        mappedFileSizeCommitLog=file_bytes,
        maxMessageSize=4 * MIB,
        # The longest that fits a real slave's buffer (docs/protocol/ha.md#what-a-slave-checks).
        haTransferBatchSize=4 * MIB - 12,
    )
    loaded = master.load(6, size=(3 * MIB, 4 * MIB), concurrency=2)
    end = master.max_offset

    assert loaded.statuses == {"PUT_OK": 6}
    assert end > 2 * file_bytes
    for slave in slaves:
        assert_same_log(master.root, slave.root, end=end, file_bytes=file_bytes)


def test_puts_are_on_the_real_slave_of_each_version_and_one_slave_less_is_not_enough(
    of_both_lines: list[JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    copies = len(of_both_lines) + 1
    master, slaves = start_with_slaves(
        of_both_lines,
        start_node,
        tmp_path,
        role="SYNC_MASTER",
        inSyncReplicas=copies,
        totalReplicas=copies,
    )
    with_all = master.load(200)
    end = master.max_offset
    ends = [slave.max_offset for slave in slaves]
    slaves[0].shutdown()
    master.wait(connections=len(slaves) - 1)
    without_one = master.load(5, seed=2)

    assert with_all.statuses == {"PUT_OK": 200}
    assert ends == [end] * len(slaves)
    for slave in slaves:
        assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
    assert without_one.statuses == {"SLAVE_NOT_AVAILABLE": 5}
    assert without_one.exit_code == 1


def test_an_empty_real_slave_of_a_trioha_master_with_history_starts_at_the_last_file(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = start_node("master", role="ASYNC_MASTER")
    master.load(150)
    before = master.max_offset
    start = before - before % FILE_BYTES
    assert start > 2 * FILE_BYTES

    slave = java.open_store(tmp_path / "slave", role="SLAVE", ha_master_address=master.ha_address)
    slave.wait(maxOffset=before)
    master.load(100, seed=2)
    end = master.max_offset
    slave.wait(maxOffset=end)

    assert slave.min_offset == start
    assert min(log_files(slave.root)) == start
    assert_same_log(master.root, slave.root, start=start, end=end, file_bytes=FILE_BYTES)


@pytest.mark.nightly
def test_a_sync_master_says_at_once_that_no_slave_is_there_and_is_ok_again_when_they_are_back(
    of_both_lines: list[JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    master, slaves = start_with_slaves(of_both_lines, start_node, tmp_path, role="SYNC_MASTER")
    before = master.load(10)
    for shutdown in [slave.start_shutdown() for slave in slaves]:
        shutdown.result(WITHIN_S)
    master.wait(connections=0)
    alone = master.load(60, seed=2)
    missed = master.max_offset
    again = [
        java.open_store(slave.root, role="SLAVE", ha_master_address=master.ha_address)
        for java, slave in zip(of_both_lines, slaves, strict=True)
    ]
    for slave in again:
        slave.wait(maxOffset=missed)
    master.wait(ack_offset=missed)
    together = master.load(60, seed=3)
    end = master.max_offset

    assert before.statuses == {"PUT_OK": 10}
    assert alone.statuses == {"SLAVE_NOT_AVAILABLE": 60}
    assert alone.exit_code == 1
    assert together.statuses == {"PUT_OK": 60}
    for slave in again:
        slave.wait(maxOffset=end)
        assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)


@pytest.mark.nightly
def test_hung_real_slaves_let_sync_puts_time_out_and_then_catch_up(
    own_jvm: Callable[..., JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    jvms = [own_jvm(version) for version in LINES]
    master, slaves = start_with_slaves(
        jvms, start_node, tmp_path, role="SYNC_MASTER", slaveTimeout=TIMES_OUT_MS
    )
    for jvm in jvms:
        jvm.hang()
    hung = master.load(8, concurrency=8)
    for jvm in jvms:
        jvm.resume()
    end = master.max_offset
    for slave in slaves:
        slave.wait(maxOffset=end)
    master.wait(ack_offset=end)
    awake = master.load(8, seed=2)

    assert hung.statuses == {"FLUSH_SLAVE_TIMEOUT": 8}
    assert awake.statuses == {"PUT_OK": 8}


@pytest.mark.nightly
def test_real_slaves_follow_a_trioha_master_that_restarts_cleanly_or_killed(
    of_both_lines: list[JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    # Both ways at the same time: a real slave waits 5 s before it dials again (docs/protocol/ha.md#timers).
    pairs = {
        stop: start_with_slaves(
            of_both_lines, start_node, tmp_path, name=stop, role="ASYNC_MASTER", ha_port=free_port()
        )
        for stop in ("clean", "killed")
    }
    held = {}
    for stop, (master, slaves) in pairs.items():
        sending = start_load(master.listen_address, 1_000_000, size=(10, 1000))
        try:
            for slave in slaves:
                slave.wait(maxOffset=300_000)
            if stop == "killed":
                master.kill()
            else:
                master.stop()
        finally:
            sending.kill()
            sending.communicate()
        held[stop] = max(slave.max_offset for slave in slaves)

    for stop, (master, slaves) in pairs.items():
        again = start_node(stop, role="ASYNC_MASTER", ha_port=master.ha_port)
        again.load(100, seed=2)
        end = again.max_offset

        assert again.max_offset_at_start >= held[stop]
        for slave in slaves:
            slave.wait(maxOffset=end)
            assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
            assert slave.read().gaps() == []


def test_no_put_is_ok_that_a_killed_real_slave_does_not_hold_and_it_resumes_at_its_exact_byte(
    java: JavaDriver, own_jvm: Callable[..., JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    jvm = own_jvm(java.version)
    master, (slave,) = start_with_slaves(
        [jvm], start_node, tmp_path, role="SYNC_MASTER", slaveTimeout=TIMES_OUT_MS
    )
    sending = start_load(master.listen_address, 5000, size=(10, 500))
    slave.wait(maxOffset=300_000)
    jvm.kill()
    held = whole_records(slave.root, file_bytes=FILE_BYTES)
    loaded = finish_load(sending)
    end = master.max_offset
    remove_files_just_made(slave.root)
    again = own_jvm(java.version).open_store(slave.root, role="SLAVE", ha_master_address=master.ha_address)
    again.wait(maxOffset=end)
    read = again.read()

    # One more than the counted ones: the message that start_with_slaves sent.
    assert 500 < loaded.statuses["PUT_OK"] < held
    assert set(loaded.statuses) - {"PUT_OK"} <= {"SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT"}
    assert len(loaded.statuses) > 1
    assert sum(loaded.statuses.values()) == 5000
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
    assert len(read.messages) == 5001
    assert read.gaps() == []


def test_trioha_takes_over_from_a_real_master_which_then_follows_it(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    first = java.open_store(tmp_path / "a", role="ASYNC_MASTER")
    second = start_node("b", role="SLAVE", ha_master_address=first.ha_address)
    second.wait(max_offset=first.put(1, size=(100, 100)).end_offset)
    handed_over = first.put(100, prepared_every=7).end_offset
    second.wait(max_offset=handed_over)
    first.shutdown()
    second.stop()

    master = start_node("b", role="SYNC_MASTER", slaveTimeout=SLAVE_TIMEOUT_MS)
    slave = java.open_store(first.root, role="SLAVE", ha_master_address=master.ha_address)
    master.wait(ack_offset=handed_over)
    loaded = master.load(100, seed=2)
    end = master.max_offset
    read = slave.read()

    assert master.max_offset_at_start == handed_over
    assert loaded.statuses == {"PUT_OK": 100}
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
    assert len(read.messages) == 1 + 100 - 15 + 100
    assert read.gaps() == []
