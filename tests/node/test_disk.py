"""Real nodes on disks that fail or fill up."""

import json

import pytest

from tests.faults import disks
from tests.node_process import run_trioha, verify

pytestmark = pytest.mark.process


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", pytest.param("ASYNC_FLUSH", marks=pytest.mark.full)])
def test_a_failed_sync_ends_the_node_and_leaves_the_store_unclean(shimmed, fault, flush):
    node = shimmed(role="ASYNC_MASTER", flushDiskType=flush)
    assert node.load(20).statuses == {"PUT_OK": 20}
    fault.write_text(disks.FSYNC)
    # The node may be gone before the first of them arrives.
    said = run_trioha("load", "--json", "--broker", node.listen_address, "--topic", "T", "--count", "5")
    if flush == "SYNC_FLUSH":
        # A put that needs the disk is never answered OK by a node that lost it.
        assert "PUT_OK" not in said.stdout
    assert node.wait_ended(within_s=60) == 2
    assert "fsync failed: Input/output error" in node.log().splitlines()[-1]
    assert "Traceback" not in node.log_path.read_text()
    assert (node.root / "abort").exists()
    # The data that is there is checked at the next start, and served.
    fault.unlink()
    again = shimmed(role="ASYNC_MASTER", flushDiskType=flush)
    assert again.max_offset_at_start > 0
    again.stop()


def test_a_full_disk_refuses_puts_until_there_is_space(shimmed, fault):
    node = shimmed(role="ASYNC_MASTER")
    assert node.load(10, size=(100, 100)).statuses == {"PUT_OK": 10}
    fault.write_text(disks.FULL)
    statuses = node.load(100, size=(3000, 3000), concurrency=1).statuses
    assert statuses["SERVICE_NOT_AVAILABLE"] > 0
    stored = statuses.get("PUT_OK", 0)
    # It still answers, keeps what it has, and says why it stores nothing, in one line for all puts.
    assert node.status().put_statuses["PUT_OK"] == 10 + stored
    assert "could be reserved" in node.status().put_refusal
    assert node.log_path.read_text().count("the disk refuses puts") == 1
    said = run_trioha("doctor", "--json", node.listen_address).stdout
    assert "disk-full" in {finding["id"] for finding in json.loads(said)["findings"]}
    shown = run_trioha("status", node.listen_address)
    assert shown.stdout.splitlines()[0] == f"CRITICAL: DISK FULL: {node.listen_address}"
    assert shown.exit_code == 1
    fault.unlink()
    assert node.load(100, size=(3000, 3000)).statuses == {"PUT_OK": 100}
    node.stop()
    found = verify(node.root)
    assert (found["ok"], found["stores"][0]["records"]) == (True, 110 + stored)


@pytest.mark.full
def test_a_slave_on_a_full_disk_loses_nothing_and_continues_when_there_is_space(shimmed, fault, start_node):
    master = start_node("master", role="ASYNC_MASTER")
    slave = shimmed("slave", slave_of=master)
    master.load(20, size=(1000, 1000))
    fault.write_text(disks.FULL)
    master.load(200, size=(1000, 3000))
    slave.wait_logged("no 65536 bytes could be reserved")
    assert slave.max_offset < master.max_offset
    fault.unlink()
    slave.wait(max_offset=master.max_offset)
    slave.stop()
    master.stop()
    assert verify(slave.root, "--against", master.root)["ok"]
