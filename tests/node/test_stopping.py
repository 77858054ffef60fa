"""Stopping a node: during its start, and while clients wait for answers."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.node.client import Client
from tests.node_process import TriohaNode, node_command, run_node, run_trioha
from tests.store.support import message, open_store

pytestmark = pytest.mark.process


Pair = Callable[..., tuple[TriohaNode, TriohaNode]]


@pytest.fixture
def pair(start_node):
    """Starts a master with the settings of the test, and a slave that has caught up and hangs."""

    def start(**settings: Any) -> tuple[TriohaNode, TriohaNode]:
        master = start_node("master", role="SYNC_MASTER", **settings)
        slave = start_node("slave", slave_of=master)
        master.wait(connections=1)
        return master, slave

    return start


def terminate(node: TriohaNode) -> None:
    os.kill(node.pid, signal.SIGTERM)


def test_a_stopping_node_answers_waiting_sends_and_accepts_no_more(pair, tmp_path):
    master, slave = pair(slaveTimeout=20_000)
    with Client(master.listen_address) as client, Client(master.listen_address) as idle:
        assert client.send() == {"PUT_OK": 1}
        assert idle.send() == {"PUT_OK": 1}
        before = master.max_offset
        slave.hang()
        for _ in range(3):
            client.ask()
        end_offset = grown(master, beyond=before)
        terminate(master)
        master.wait_logged("stopping")
        # Idle connections are closed, and new ones are refused.
        assert idle.answer() is None
        with pytest.raises(OSError, match="refused"):
            Client(master.listen_address)
        slave.resume()
        assert [client.answer() for _ in range(3)] == ["PUT_OK"] * 3
        assert client.answer() is None
    assert master.wait_ended(within_s=60) == 0
    assert not (tmp_path / "master" / "abort").exists()
    assert "Traceback" not in master.log()
    assert slave.max_offset == end_offset


@pytest.mark.full
def test_a_waiting_send_is_answered_at_its_own_deadline_if_that_is_earlier(pair):
    master, slave = pair(slaveTimeout=1500)
    with Client(master.listen_address) as client:
        assert client.send() == {"PUT_OK": 1}
        before = master.max_offset
        slave.hang()
        client.ask()
        grown(master, beyond=before)
        terminate(master)
        assert client.answer() == "FLUSH_SLAVE_TIMEOUT"
        assert client.answer() is None
    assert master.wait_ended(within_s=60) == 0


@pytest.mark.parametrize("signals", [pytest.param(1, marks=pytest.mark.full), 2])
def test_a_longer_wait_is_cut_off_after_3_s_or_by_a_second_signal(pair, tmp_path, signals):
    master, slave = pair(slaveTimeout=100_000)
    with Client(master.listen_address) as client:
        assert client.send() == {"PUT_OK": 1}
        before = master.max_offset
        slave.hang()
        client.ask()
        grown(master, beyond=before)
        terminate(master)
        master.wait_logged("stopping")
        if signals == 2:
            terminate(master)
        # Never PUT_OK: the slave does not have it.
        assert client.answer() is None
    assert master.wait_ended(within_s=60) == 0
    assert ("stopping at once" in master.log()) == (signals == 2)
    assert not (tmp_path / "master" / "abort").exists()
    assert run_trioha("verify", tmp_path / "master").exit_code == 0


def grown(node: TriohaNode, *, beyond: int) -> int:
    """Wait until the node's log ends after `beyond`; its end then."""
    end_offset = beyond
    while (now := node.max_offset) == beyond or now != end_offset:
        end_offset = now
        time.sleep(0.1)
    return end_offset


SETTINGS_OF_STORES = {
    "mappedFileSizeConsumeQueue": 400,
    "mapperFileSizeBatchConsumeQueue": 920,
    "maxHashSlotNum": 53,
    "maxIndexNum": 100,
}
"""Those of `open_store`."""
SLOW_START = """
import sys, time
from trioha.store import dispatch_to_end, recovery
from trioha.store.dispatch import Dispatcher

phase = sys.argv.pop(1)
scan, dispatch = recovery.scan_records, Dispatcher.dispatch

def slow(function, of):
    def run(*arguments, **options):
        if of == phase:
            print(of, file=sys.stderr, flush=True)
            time.sleep(0.1)
        return function(*arguments, **options)
    return run

recovery.scan_records = slow(scan, "scan")
Dispatcher.dispatch = slow(dispatch, "dispatch")
dispatch_to_end.DISPATCH_RECORDS = 1
from trioha.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("phase", ["scan", "dispatch"])
def test_sigterm_ends_a_recovering_start_and_the_next_start_recovers_completely(start_node, tmp_path, phase):
    store = open_store(tmp_path / "store")
    # A log file each: 6 s of the slowed recovery.
    for _ in range(60):
        store.commit_log.append(message(bytes(60_000)))
    end_offset = store.commit_log.max_offset
    store.close()
    (tmp_path / "store" / "abort").touch()
    slow = [sys.executable, "-c", SLOW_START, phase]
    process = subprocess.Popen(
        node_command(tmp_path / "store", role="ASYNC_MASTER", program=slow, **SETTINGS_OF_STORES),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while (line := process.stderr.readline()) != f"{phase}\n":
            assert line, "the node has ended"
        process.send_signal(signal.SIGTERM)
        said, log = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said) == (0, "")
    assert "start ended while the store was being opened" in log
    assert "Traceback" not in log
    assert (tmp_path / "store" / "abort").exists()
    # The lock is free, and nothing is missing.
    again = start_node(role="ASYNC_MASTER", **SETTINGS_OF_STORES)
    assert again.max_offset_at_start == end_offset
    again.stop()
    assert not (tmp_path / "store" / "abort").exists()
    assert run_trioha("verify", tmp_path / "store").exit_code == 0


FAULT = """
import sys
from trioha.store.retention import Retention

def fail(self, ratio, *, now):
    raise KeyError("planted")

Retention.apply = fail
from trioha.cli import main
sys.exit(main())
"""


def test_a_bug_ends_the_node_with_one_clear_line_and_a_closed_store(tmp_path):
    program = [sys.executable, "-c", FAULT]
    ended = run_node(tmp_path / "store", role="ASYNC_MASTER", program=program, cleanResourceInterval=1)
    assert ended.exit_code == 1
    lines = ended.stderr.splitlines()
    assert lines[-1] == "trioha: the node ended by a fault of this program: KeyError: 'planted' at <string>:6"
    # Where it was, for who mends it.
    assert "Traceback" in ended.stderr
    assert "store closed" in ended.stderr
    assert not (tmp_path / "store" / "abort").exists()
