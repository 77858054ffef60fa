"""Stopping a node: during its start, and while clients wait for answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.client import Client
from tests.node.test_processes import node_command
from tests.node_process import TriohaNode, run_trioha
from tests.store.support import message, open_store

pytestmark = pytest.mark.process


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[..., tuple[TriohaNode, TriohaNode]]]:
    """Starts a master with the settings of the test, and a slave that has caught up and hangs."""
    nodes: list[TriohaNode] = []

    def start(**settings: Any) -> tuple[TriohaNode, TriohaNode]:
        master = TriohaNode(tmp_path / "master", role="SYNC_MASTER", **settings)
        nodes.append(master)
        slave = TriohaNode(tmp_path / "slave", role="SLAVE", ha_master_address=master.ha_address)
        nodes.append(slave)
        master.wait(connections=1)
        return master, slave

    yield start
    for node in nodes:
        if node.is_running:
            node.resume()
            node.kill()


def terminate(node: TriohaNode) -> None:
    os.kill(node.pid, signal.SIGTERM)


def wait_for(node: TriohaNode, text: str) -> None:
    deadline = time.monotonic() + 15
    while text not in node.log():
        assert time.monotonic() < deadline, node.log()
        time.sleep(0.02)


def test_a_stopping_node_answers_waiting_sends_and_accepts_no_more(
    pair: Callable[..., tuple[TriohaNode, TriohaNode]], tmp_path: Path
) -> None:
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
        wait_for(master, "stopping")
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


def test_a_waiting_send_is_answered_at_its_own_deadline_if_that_is_earlier(
    pair: Callable[..., tuple[TriohaNode, TriohaNode]],
) -> None:
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


@pytest.mark.parametrize("signals", [1, 2])
def test_a_longer_wait_is_cut_off_after_3_s_or_by_a_second_signal(
    pair: Callable[..., tuple[TriohaNode, TriohaNode]], tmp_path: Path, signals: int
) -> None:
    master, slave = pair(slaveTimeout=100_000)
    with Client(master.listen_address) as client:
        assert client.send() == {"PUT_OK": 1}
        before = master.max_offset
        slave.hang()
        client.ask()
        grown(master, beyond=before)
        terminate(master)
        wait_for(master, "stopping")
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


SLOW_START = """
import sys, time
from trioha.store import message_store, recovery
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
message_store._DISPATCH_RECORDS = 1
from trioha.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("phase", ["scan", "dispatch"])
def test_sigterm_ends_a_recovering_start_and_the_next_start_recovers_completely(
    tmp_path: Path, phase: str
) -> None:
    store = open_store(tmp_path / "store")
    # A log file each: 6 s of the slowed recovery.
    for _ in range(60):
        store.commit_log.append(message(bytes(60_000)))
    end_offset = store.commit_log.max_offset
    store.close()
    (tmp_path / "store" / "abort").touch()
    settings = [
        "mappedFileSizeConsumeQueue=400",
        "mapperFileSizeBatchConsumeQueue=920",
        "maxHashSlotNum=53",
        "maxIndexNum=100",
    ]
    command = node_command(tmp_path, *settings)
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_START, phase, *command[3:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
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
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as again:
        assert again.stdout is not None
        assert f"max_offset={end_offset}" in again.stdout.readline().split()
        again.send_signal(signal.SIGTERM)
        assert again.wait(60) == 0
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


def test_a_bug_ends_the_node_with_one_clear_line_and_a_closed_store(tmp_path: Path) -> None:
    command = node_command(tmp_path, "cleanResourceInterval=1")
    ended = subprocess.run(
        [sys.executable, "-c", FAULT, *command[3:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert lines[-1] == "trioha: the node ended by a fault of this program: KeyError: 'planted' at <string>:6"
    # Where it was, for who mends it.
    assert "Traceback" in ended.stderr
    assert "store closed" in ended.stderr
    assert not (tmp_path / "store" / "abort").exists()
