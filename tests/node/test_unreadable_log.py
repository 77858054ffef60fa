"""Real nodes whose disk does not give parts of their log."""

import json
import os
import signal
import sys
from functools import partial

import pytest

from tests.compiled_code import needs_compiled
from tests.faults import disks
from tests.node.wire import Wire, bodies_of, pull_from, send_to
from tests.node_process import FILE_BYTES, run_trioha
from tests.power_cut import devices
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = pytest.mark.process

KEPT_BYTES = 4096
"""What is left of the file that is cut."""
MESSAGES = 400
BODY = b"x" * 1000
HOT_PULLS = 50
"""Of a consumer that tries again at once."""


def log_file(root, number):
    return root / "commitlog" / f"{number * FILE_BYTES:020d}"


def fill(node):
    """Several log files of one queue. With SYNC_FLUSH all but the last one are on disk, and read by calls."""
    with Wire(node.listen_address) as wire:
        for _ in range(MESSAGES // 100):
            answers = wire.answers(wire.start(*[send_to("Orders", BODY)] * 100))
            assert [answer.code for answer in answers.values()] == [ResponseCode.SUCCESS] * 100
    wait_until(lambda: (now := node.status()).dispatched_offset == now.max_offset, "all is in the queue")


def assert_only_what_is_lost_fails(node, path):
    """Pulls of the cut file get an error that names it; all others are answered, and the node goes on."""
    with Wire(node.listen_address) as wire:
        # What is left can be read.
        assert bodies_of(wire.ask(pull_from("Orders", 0, number=1))) == [BODY]
        for _ in range(HOT_PULLS):
            refused = wire.ask(pull_from("Orders", 0))
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert refused.remark.startswith(f"{path} at offset ")
        viewed = wire.ask(request(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields={"offset": str(KEPT_BYTES)}))
        assert viewed.code == ResponseCode.SYSTEM_ERROR
        assert str(path) in viewed.remark
        assert bodies_of(wire.ask(pull_from("Orders", MESSAGES - 32))) == [BODY] * 32
        assert wire.ask(send_to("Orders", BODY)).code == ResponseCode.SUCCESS
    status = node.status()
    assert status.read_faults > HOT_PULLS
    assert status.read_fault.startswith(f"{path} at offset ")
    assert 1 <= node.log_path.read_text().count("the log cannot be read") < HOT_PULLS / 2
    said = run_trioha("doctor", "--json", node.listen_address).stdout
    assert "log-unreadable" in {finding["id"] for finding in json.loads(said)["findings"]}
    assert node.is_running


def test_a_log_file_that_is_cut_under_a_node_fails_its_readers_only_before_and_after_a_restart(start_node):
    start = partial(start_node, role="ASYNC_MASTER", flushDiskType="SYNC_FLUSH")
    node = start()
    fill(node)
    path = log_file(node.root, 0)
    os.truncate(path, KEPT_BYTES)
    assert_only_what_is_lost_fails(node, path)
    node.stop()
    node.log_path.unlink()
    again = start()
    assert "a log file has lost its end" in again.log_path.read_text()
    assert_only_what_is_lost_fails(again, path)
    again.stop()


@pytest.mark.full
def test_bad_sectors_of_a_real_device_fail_their_readers_only(start_node, tmp_path):
    if reason := devices.why_not():
        pytest.skip(reason)
    start = partial(start_node, role="ASYNC_MASTER", flushDiskType="SYNC_FLUSH")
    node = start()
    fill(node)
    node.stop()
    path, bad = log_file(node.root, 0), tmp_path / "bad"
    bad.mkdir()
    with devices.bad_sectors(path, good_bytes=KEPT_BYTES, folder=tmp_path / "device") as device:
        path.unlink()
        path.symlink_to(bad / path.name)
        again = start(program=[*devices.mounted(device, bad, "ext4"), sys.executable, "-m", "trioha"])
        assert_only_what_is_lost_fails(again, path)
        assert "Input/output error" in again.status().read_fault
        again.stop()


def test_a_slave_that_needs_what_is_lost_does_not_end_its_master(start_node):
    master = start_node("master", role="ASYNC_MASTER", flushDiskType="SYNC_FLUSH")
    # A slave with a log goes on at its end.
    slave = start_node("slave", slave_of=master)
    with Wire(master.listen_address) as wire:
        assert wire.ask(send_to("Orders", BODY)).code == ResponseCode.SUCCESS
    slave.wait(max_offset=master.max_offset)
    slave.stop()
    fill(master)
    path = log_file(master.root, 1)
    os.truncate(path, KEPT_BYTES)
    slave = start_node("slave", slave_of=master)
    master.wait_logged("(STORE_ERROR)")
    assert f"path={path}" in master.log_path.read_text()
    # What comes before it was replicated.
    wait_until(lambda: slave.max_offset >= FILE_BYTES, "the slave has the file before")
    assert master.status().ended_connections["STORE_ERROR"] >= 1
    with Wire(master.listen_address) as wire:
        assert wire.ask(send_to("Orders", BODY)).code == ResponseCode.SUCCESS
    master.stop()


def test_a_bad_sector_fails_its_readers_until_the_disk_gives_it_again(start_node, tmp_path):
    fault = tmp_path / "fault"
    node = start_node(
        role="ASYNC_MASTER",
        flushDiskType="SYNC_FLUSH",
        program=disks.program(fault),
        environment={**os.environ, "TRIOHA_PURE": "1"},
    )
    fill(node)
    disks.set_fault(fault, disks.LOG_READS)
    with Wire(node.listen_address) as wire:
        refused = wire.ask(pull_from("Orders", 0))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        where = f"{log_file(node.root, 0)} at offset 0: cannot be read: Input/output error"
        assert refused.remark.startswith(where)
        assert bodies_of(wire.ask(pull_from("Orders", MESSAGES - 32))) == [BODY] * 32
        assert wire.ask(send_to("Orders", BODY)).code == ResponseCode.SUCCESS
        disks.set_fault(fault, disks.HEALTHY)
        assert bodies_of(wire.ask(pull_from("Orders", 0))) == [BODY] * 32
    assert node.status().read_faults == 1
    node.stop()


@pytest.mark.parametrize(
    "is_pure",
    [
        pytest.param(False, marks=needs_compiled),
        True,
    ],
)
def test_a_node_that_the_disk_ends_says_where_it_was(start_node, is_pure):
    environment = {**os.environ, "TRIOHA_PURE": str(int(is_pure))}
    node = start_node(role="ASYNC_MASTER", environment=environment)
    with Wire(node.listen_address) as wire:
        assert wire.ask(send_to("Orders", BODY)).code == ResponseCode.SUCCESS
        path = log_file(node.root, 0)
        os.truncate(path, 0)
        wire.start(send_to("Orders", BODY))
        assert node.wait_ended(within_s=60) == -signal.SIGBUS
    said = node.log_path.read_text()
    if is_pure:
        assert "Fatal Python error: Bus error" in said
    else:
        (line,) = [line for line in said.splitlines() if line.startswith("trioha: ")]
        assert "(SIGBUS), the process ends" in line
        assert str(path) in line
        assert " at offset " in line
