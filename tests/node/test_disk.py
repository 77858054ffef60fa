"""Real nodes on disks that fail or fill up."""

import signal
import subprocess
import time

import pytest

from tests.faults import disks
from tests.node_process import TriohaNode, broker_status, load, run_trioha

pytestmark = pytest.mark.process


class ShimmedNode:
    """A node process on a disk with faults."""

    def __init__(self, folder, name, **settings):
        self.fault = folder / f"{name}.fault"
        self.store = folder / name
        self.log = folder / f"{name}.log"
        config = {
            "brokerName": "disk",
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "trioha.bindAddress": "127.0.0.1",
            "listenPort": 0,
            "mappedFileSizeCommitLog": 65536,
            "maxMessageSize": 60000,
            "diskSpaceCleanForciblyRatio": 100,
            "diskSpaceWarningLevelRatio": 100,
            "haSendHeartbeatInterval": 200,
            "storePathRootDir": self.store,
            **settings,
        }
        path = folder / f"{name}.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*disks.program(self.fault), "node", "-c", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.ready = dict(pair.split("=", 1) for pair in self.process.stdout.readline().split()[1:])

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def shimmed(tmp_path):
    nodes = []

    def start(name, **settings):
        nodes.append(ShimmedNode(tmp_path, name, **settings))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
            node.process.wait()
        node.process.stdout.close()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_a_failed_sync_ends_the_node_and_leaves_the_store_unclean(shimmed, flush):
    node = shimmed("store", brokerRole="ASYNC_MASTER", flushDiskType=flush)
    assert load(node.ready["listen"], 20).statuses == {"PUT_OK": 20}
    node.fault.write_text(disks.FSYNC)
    # The node may be gone before the first of them arrives.
    said = run_trioha("load", "--json", "--broker", node.ready["listen"], "--topic", "T", "--count", "5")
    if flush == "SYNC_FLUSH":
        # A put that needs the disk is never answered OK by a node that lost it.
        assert "PUT_OK" not in said.stdout
    assert node.process.wait(60) == 2
    log = node.log.read_text()
    assert "fsync failed: Input/output error" in log.splitlines()[-1]
    assert "Traceback" not in log
    assert (node.store / "abort").exists()
    # The data that is there is checked at the next start, and served.
    node.fault.unlink()
    again = shimmed("store", brokerRole="ASYNC_MASTER", flushDiskType=flush)
    assert int(again.ready["max_offset"]) > 0
    assert again.end() == 0


def test_a_full_disk_refuses_puts_until_there_is_space(shimmed):
    node = shimmed("store", brokerRole="ASYNC_MASTER")
    address = node.ready["listen"]
    assert load(address, 10, size=(100, 100)).statuses == {"PUT_OK": 10}
    node.fault.write_text(disks.FULL)
    statuses = load(address, 100, size=(3000, 3000), concurrency=1).statuses
    assert statuses["SERVICE_NOT_AVAILABLE"] > 0
    stored = statuses.get("PUT_OK", 0)
    # It still answers, and keeps what it has.
    assert broker_status(address).put_statuses["PUT_OK"] == 10 + stored
    node.fault.unlink()
    assert load(address, 100, size=(3000, 3000)).statuses == {"PUT_OK": 100}
    assert node.end() == 0
    found = run_trioha("verify", node.store)
    assert (found.exit_code, f"{110 + stored} records" in found.stdout) == (0, True)


def test_a_slave_on_a_full_disk_loses_nothing_and_continues_when_there_is_space(shimmed, tmp_path):
    master = TriohaNode(tmp_path / "master", role="ASYNC_MASTER")
    try:
        slave = shimmed("slave", brokerRole="SLAVE", brokerId=1, haMasterAddress=master.ha_address)
        master.load(20, size=(1000, 1000))
        slave.fault.write_text(disks.FULL)
        master.load(200, size=(1000, 3000))
        deadline = time.monotonic() + 10
        while "no 65536 bytes could be reserved" not in slave.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert broker_status(slave.ready["listen"]).max_offset < master.max_offset
        slave.fault.unlink()
        deadline = time.monotonic() + 20
        while broker_status(slave.ready["listen"]).max_offset < master.max_offset:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert slave.end() == 0
        master.stop()
        assert run_trioha("verify", slave.store, "--against", tmp_path / "master").exit_code == 0
    finally:
        if master.is_running:
            master.kill()
