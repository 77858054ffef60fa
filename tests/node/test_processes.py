"""Node processes: start, stop, refusals, and kill -9 of either side at any moment."""

import json
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.node_process import TriohaNode, finish_load, run_trioha, start_load
from tests.ports import free_port

pytestmark = pytest.mark.process

FILE_BYTES = 1 << 20


@pytest.fixture
def start(tmp_path):
    """Starts nodes; stops those that still run after the test."""
    nodes = []

    def start_node(name, *, role, **options):
        node = TriohaNode(
            tmp_path / name,
            role=role,
            mappedFileSizeCommitLog=FILE_BYTES,
            **options,
        )
        nodes.append(node)
        return node

    yield start_node
    for node in nodes:
        if node.is_running:
            node.kill()


def verify(*arguments):
    answer = run_trioha("verify", "--json", *arguments)
    assert answer.stdout, answer
    found = json.loads(answer.stdout)
    assert answer.exit_code == (0 if found["ok"] else 1)
    return found


def wait_grown(node, loading):
    """Wait until the node's log is longer than at its start, or the load has ended."""
    while node.status().max_offset == node.max_offset_at_start and loading.poll() is None:
        time.sleep(0.02)


def node_command(tmp_path, *settings):
    config = tmp_path / "broker.conf"
    config.write_text(
        "brokerRole=ASYNC_MASTER\nbrokerId=0\nbrokerName=b\nbrokerIP1=127.0.0.1\n"
        f"trioha.bindAddress=127.0.0.1\nlistenPort=0\nmappedFileSizeCommitLog=65536\nmaxMessageSize=60000\n"
        f"storePathRootDir={tmp_path / 'store'}\n"
    )
    overrides = [argument for setting in settings for argument in ("-p", setting)]
    return [sys.executable, "-m", "trioha", "node", "-c", str(config), *overrides]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_prints_ready_once_and_stops_cleanly_within_2_s(tmp_path, number):
    process = subprocess.Popen(
        node_command(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = process.stdout.readline()
        fields = dict(pair.split("=", 1) for pair in line.split()[1:])
        assert line.startswith("ready ")
        assert fields["role"] == "ASYNC_MASTER"
        assert fields["store"] == str(tmp_path / "store")
        assert fields["max_offset"] == "0"
        assert all(int(fields[name].rpartition(":")[2]) > 0 for name in ("listen", "ha"))
        assert (tmp_path / "store" / "abort").exists()
        process.send_signal(number)
        began = time.monotonic()
        rest, log = process.communicate(timeout=60)
        assert time.monotonic() - began < 5  # 2 s are promised; a busy machine may add some
        assert (process.returncode, rest) == (0, "")
        assert "store closed" in log
        assert "Traceback" not in log
        assert not (tmp_path / "store" / "abort").exists()
    finally:
        process.kill()
        process.wait()


def test_a_second_node_on_the_same_store_is_refused_by_the_lock(tmp_path, start):
    node = start("store", role="ASYNC_MASTER")
    refused = subprocess.run(
        node_command(tmp_path, "mappedFileSizeCommitLog=1048576"),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
    )
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines()[-1] == (
        f"trioha: {tmp_path / 'store' / 'lock'}: the store is locked by another process; stop the broker or "
        "node that uses it, or give this one another storePathRootDir"
    )
    assert node.is_running
    node.stop()


@pytest.mark.parametrize("key", ["listenPort", "haListenPort"])
def test_a_port_in_use_is_one_clear_line(tmp_path, key):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = subprocess.run(
            node_command(tmp_path, f"{key}={port}", *(["haListenPort=0"] if key == "listenPort" else [])),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=60,
            check=False,
        )
    assert (refused.returncode, refused.stdout) == (2, "")
    problem = refused.stderr.splitlines()[-1]
    assert problem.startswith("trioha: ")
    assert f"127.0.0.1:{port}" in problem
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "store" / "abort").exists()


def test_log_lines_can_be_json(tmp_path):
    process = subprocess.Popen(
        node_command(tmp_path, "trioha.logFormat=json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        events = [json.loads(line)["event"] for line in log.splitlines()]
        assert {"store opened", "serving", "store closed"} <= set(events)
    finally:
        process.kill()
        process.wait()


def test_a_slave_that_is_killed_repeatedly_under_load_ends_equal_to_its_master(tmp_path, start):
    rng = random.Random(20)
    master = start("master", role="SYNC_MASTER", slaveTimeout=500)
    slave = start("slave", role="SLAVE", ha_master_address=master.ha_address)
    master.wait(connections=1)
    loading = start_load(master.listen_address, 12000, size=(10, 3000), concurrency=8)
    for _ in range(4):
        wait_grown(slave, loading)
        time.sleep(rng.uniform(0.1, 0.6))
        slave.kill()
        found = verify(tmp_path / "slave", "--against", tmp_path / "master", "--prefix")
        assert found["firstDifference"] is None, found["problems"]
        slave = start("slave", role="SLAVE", ha_master_address=master.ha_address)
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


def test_a_master_that_is_killed_repeatedly_under_load_has_all_that_its_slave_has(tmp_path, start):
    rng = random.Random(21)
    ports = {"ha_port": free_port(), "listenPort": free_port()}
    master = start("master", role="SYNC_MASTER", slaveTimeout=500, **ports)
    slave = start("slave", role="SLAVE", ha_master_address=master.ha_address)
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
    slave = start("slave", role="SLAVE", ha_master_address=master.ha_address)
    master.wait(connections=1)
    loaded = master.load(2000, size=(10, 2000))
    assert loaded.statuses == {"PUT_OK": 2000}
    master.kill()
    slave.kill()
    found = verify(tmp_path / "slave")
    assert (found["ok"], found["stores"][0]["records"]) == (True, 2000)


def test_a_master_with_in_sync_replicas_3_waits_for_both_of_its_slaves(tmp_path, start):
    master = start("master", role="SYNC_MASTER", inSyncReplicas=3, totalReplicas=3)
    first = start("slave-1", role="SLAVE", ha_master_address=master.ha_address)
    master.wait(connections=1)
    assert master.load(10).statuses == {"SLAVE_NOT_AVAILABLE": 10}
    second = start("slave-2", role="SLAVE", ha_master_address=master.ha_address, brokerId=2)
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
