"""Node processes: start, stop, refusals, and kill -9 of either side at any moment."""

import json
import random
import signal
import socket
import time
from functools import partial

import pytest

from tests.node_process import WITHIN_S, finish_load, run_node, start_load, verify
from tests.ports import free_port

pytestmark = pytest.mark.process

FILE_BYTES = 1 << 20


MASTER = {"role": "ASYNC_MASTER"}


@pytest.fixture
def start(start_node):
    return partial(start_node, mappedFileSizeCommitLog=FILE_BYTES)


def wait_grown(node, loading):
    """Wait until the node's log is longer than at its start, or the load has ended."""
    while node.status().max_offset == node.max_offset_at_start and loading.poll() is None:
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_prints_ready_once_and_stops_cleanly(start_node, number):
    node = start_node(role="ASYNC_MASTER", brokerName="b", **{"trioha.logFormat": "json"})
    assert (node.ready["role"], node.ready["store"], node.ready["max_offset"]) == (
        "ASYNC_MASTER", str(node.root), "0",
    )  # fmt: skip
    assert all(int(node.ready[name].rpartition(":")[2]) > 0 for name in ("listen", "ha"))
    assert (node.root / "abort").exists()
    node.stop(number)
    assert not (node.root / "abort").exists()
    events = [json.loads(line)["event"] for line in node.log_path.read_text().splitlines()]
    assert {"store opened", "serving", "store closed"} <= set(events)


def test_a_second_node_on_the_same_store_or_on_its_log_is_refused_by_the_lock(start_node, tmp_path):
    node = start_node(role="ASYNC_MASTER")
    log = {"storePathCommitLog": node.root / "commitlog"}
    for root, given, key in (
        (node.root, {}, "storePathRootDir"),
        (tmp_path / "other", log, "storePathCommitLog"),
    ):
        refused = run_node(root, role="ASYNC_MASTER", **given)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert refused.stderr.splitlines()[-1] == (
            f"trioha: {node.root / 'lock'}: the store is locked by another process; stop the broker or "
            f"node that uses it, or give this one another {key}"
        )
    assert node.is_running
    node.stop()


def test_a_node_whose_lock_file_was_removed_or_replaced_ends_at_once_and_writes_nothing_more(start_node):
    node = start_node(**MASTER)
    assert node.load(50).statuses == {"PUT_OK": 50}
    end = node.max_offset
    node.hang()
    (node.root / "lock").unlink()
    # Beside the running node nobody opens the store, lock file or not.
    refused = run_node(node.root, **MASTER)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines()[-1].startswith(
        f"trioha: {node.root / 'lock'}: the store is used by process {node.pid}, which has locked a file of"
    )
    # As on a machine where that cannot be known.
    (node.root / "abort").write_bytes(b"")
    (node.root / "lock").unlink()
    other = start_node(**MASTER, log_path=node.log_path.with_name("other.log"))
    assert other.load(10).statuses == {"PUT_OK": 10}
    node.resume()
    assert node.wait_ended(within_s=WITHIN_S) == 1
    assert "ends at once" in node.log()
    assert "the store's lock file was replaced" in node.log()
    assert (node.root / "abort").read_bytes().split(b"\n")[0] == str(other.pid).encode()
    assert other.load(10).statuses == {"PUT_OK": 10}
    other.stop()
    after = start_node(**MASTER)
    assert after.max_offset_at_start > end
    # Without another process nothing is lost.
    (after.root / "lock").unlink()
    assert after.wait_ended(within_s=WITHIN_S) == 1
    assert "the store's lock file is gone" in after.log()
    assert start_node(**MASTER).max_offset_at_start == after.max_offset_at_start


@pytest.mark.parametrize("key", ["listenPort", "haListenPort"])
def test_a_port_in_use_is_one_clear_line(tmp_path, key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = run_node(tmp_path / "store", role="ASYNC_MASTER", **{key: port})
    assert (refused.exit_code, refused.stdout) == (2, "")
    problem = refused.stderr.splitlines()[-1]
    assert problem.startswith("trioha: ")
    assert f"127.0.0.1:{port}" in problem
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "store" / "abort").exists()


@pytest.mark.full
def test_a_slave_that_is_killed_repeatedly_under_load_ends_equal_to_its_master(tmp_path, start):
    rng = random.Random(20)
    master = start("master", role="SYNC_MASTER", slaveTimeout=500)
    slave = start("slave", slave_of=master)
    master.wait(connections=1)
    loading = start_load(master.listen_address, 12000, size=(10, 3000), concurrency=8)
    for _ in range(4):
        wait_grown(slave, loading)
        time.sleep(rng.uniform(0.1, 0.6))
        slave.kill()
        found = verify(tmp_path / "slave", "--against", tmp_path / "master", "--prefix")
        assert found["firstDifference"] is None, found["problems"]
        slave = start("slave", slave_of=master)
    loaded = finish_load(loading)
    assert sum(loaded.statuses.values()) == 12000
    assert loaded.statuses.keys() <= {"PUT_OK", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}
    assert loaded.exit_code == (0 if loaded.statuses.keys() == {"PUT_OK"} else 1)
    end_offset = master.max_offset
    slave.wait(max_offset=end_offset)
    slave.stop()
    master.stop()
    found = verify(tmp_path / "slave", "--against", tmp_path / "master")
    assert found["ok"], found["problems"]
    assert found["compared"] == [0, end_offset]
    assert found["stores"][1]["records"] == 12000


@pytest.mark.full
def test_a_master_that_is_killed_repeatedly_under_load_has_all_that_its_slave_has(tmp_path, start):
    rng = random.Random(21)
    ports = {"ha_port": free_port(), "listenPort": free_port()}
    master = start("master", role="SYNC_MASTER", slaveTimeout=500, **ports)
    slave = start("slave", slave_of=master)
    master.wait(connections=1)
    acked = 0
    for _ in range(3):
        loading = start_load(master.listen_address, 6000, size=(10, 3000), concurrency=8)
        wait_grown(master, loading)
        time.sleep(rng.uniform(0.1, 0.6))
        master.kill()
        loading.kill()
        loading.communicate()
        master = start("master", role="SYNC_MASTER", slaveTimeout=500, **ports)
        assert master.max_offset_at_start >= acked
        acked = master.wait(ack_offset=master.max_offset_at_start).max_offset
    slave.wait(max_offset=master.max_offset)
    status = slave.status()
    assert status.client.reconnects >= 3
    slave.stop()
    master.stop()
    found = verify(tmp_path / "slave", "--against", tmp_path / "master")
    assert found["ok"], found["problems"]


def test_no_put_that_was_answered_ok_is_missing_on_the_slave_of_a_killed_master(tmp_path, start):
    master = start("master", role="SYNC_MASTER")
    slave = start("slave", slave_of=master)
    master.wait(connections=1)
    loaded = master.load(2000, size=(10, 2000))
    assert loaded.statuses == {"PUT_OK": 2000}
    master.kill()
    slave.kill()
    found = verify(tmp_path / "slave")
    assert (found["ok"], found["stores"][0]["records"]) == (True, 2000)


@pytest.mark.full
def test_a_master_with_in_sync_replicas_3_waits_for_both_of_its_slaves(tmp_path, start):
    master = start("master", role="SYNC_MASTER", inSyncReplicas=3, totalReplicas=3)
    first = start("slave-1", slave_of=master)
    master.wait(connections=1)
    assert master.load(10).statuses == {"SLAVE_NOT_AVAILABLE": 10}
    second = start("slave-2", slave_of=master, brokerId=2)
    master.wait(connections=2, ack_offset=master.max_offset)
    second.wait(max_offset=master.max_offset)
    assert master.load(500).statuses == {"PUT_OK": 500}
    end_offset = master.max_offset
    first.kill()
    second.kill()
    master.stop()
    for name in ("slave-1", "slave-2"):
        found = verify(tmp_path / name, "--against", tmp_path / "master")
        assert found["ok"], found["problems"]
        assert found["compared"][1] == end_offset
