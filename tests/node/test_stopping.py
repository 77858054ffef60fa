"""How a node ends when it is asked to: during the start, and while clients wait for answers."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.node import run_trioha
from tests.node.test_processes import node_command
from tests.store.support import message, open_store

pytestmark = pytest.mark.process

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
def test_sigterm_ends_a_start_that_recovers_and_the_next_one_recovers_whole(
    tmp_path: Path, phase: str
) -> None:
    store = open_store(tmp_path / "store")
    # 40 s of the slowed recovery.
    for _ in range(400):
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
        said, log = process.communicate(timeout=10)
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
        assert again.wait(20) == 0
    assert not (tmp_path / "store" / "abort").exists()
    assert run_trioha("verify", tmp_path / "store").exit_code == 0
