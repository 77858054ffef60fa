"""Real processes: stores that were restored from an archive become slaves and masters."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.node_process import run_node, run_trioha, verify

pytestmark = pytest.mark.process


def ran(*arguments: str | Path) -> dict[str, Any]:
    answer = run_trioha(*arguments, "--json")
    assert answer.exit_code == 0, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    return found


def test_a_restored_slave_goes_on_from_its_master_where_it_ends(tmp_path, start_node):
    url = f"file://{tmp_path}/archive"
    master = start_node("master", role="ASYNC_MASTER")
    assert master.load(300, size=(10, 3000)).statuses == {"PUT_OK": 300}
    ran("archive", tmp_path / "master", "--to", url)
    archived_end = master.max_offset
    assert master.load(50, size=(10, 3000)).statuses == {"PUT_OK": 50}
    restored = ran("restore", url, "--into", tmp_path / "slave", "--to-offset", str(archived_end // 2))
    end_offset = restored["endOffset"]
    assert 0 < end_offset <= archived_end // 2
    slave = start_node("slave", slave_of=master)
    assert slave.max_offset_at_start == end_offset
    slave.wait(max_offset=master.max_offset)
    assert [path.name for path in (tmp_path / "slave").glob("commitlog*")] == ["commitlog"]
    assert master.load(50, size=(10, 3000)).statuses == {"PUT_OK": 50}
    slave.wait(max_offset=master.max_offset)
    slave.stop()
    master.stop()
    found = verify(tmp_path / "slave", "--against", tmp_path / "master")
    assert found["compared"][0] == 0
    assert found["stores"][0]["records"] == 400
    assert verify(tmp_path / "slave", "--against", url)["compared"] == [0, archived_end]


@pytest.mark.full
def test_a_restore_whose_process_is_killed_is_completed_and_becomes_a_master(tmp_path, start_node):
    url = f"file://{tmp_path}/archive"
    into = tmp_path / "restored"
    master = start_node("master", role="ASYNC_MASTER")
    assert master.load(800, size=(2000, 3000)).statuses == {"PUT_OK": 800}
    end_offset = master.max_offset
    master.stop()
    ran("archive", tmp_path / "master", "--to", url)
    with subprocess.Popen(
        [sys.executable, "-m", "trioha", "restore", url, "--into", into],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not list(into.glob("commitlog/[0-9]*")):
            assert process.poll() in {None, 0}
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    if (into / "commitlog/trioha-restore.json").exists():
        # A busy machine may have let it end before it was killed.
        assert ran("restore", url, "--into", into)["filesKept"] >= 1
    assert verify(into, "--against", url)["compared"] == [0, end_offset]
    promoted = start_node("restored", role="ASYNC_MASTER")
    assert promoted.max_offset_at_start == end_offset
    assert promoted.load(20, size=(10, 3000)).statuses == {"PUT_OK": 20}
    promoted.stop()
    assert verify(into, "--against", url)["onlyStore"] == [[end_offset, promoted_end(into)]]


@pytest.mark.full
def test_a_node_does_not_start_on_a_store_whose_restore_has_not_ended(tmp_path, start_node):
    url = f"file://{tmp_path}/archive"
    into = tmp_path / "restored"
    master = start_node("master", role="ASYNC_MASTER")
    assert master.load(50).statuses == {"PUT_OK": 50}
    master.stop()
    ran("archive", tmp_path / "master", "--to", url)
    ran("restore", url, "--into", into)
    # As a restore leaves it that was killed before its end.
    marker = into / "commitlog/trioha-restore.json"
    marker.write_text("{}")
    before = {path: path.stat().st_mtime_ns for path in into.rglob("*")}
    said = run_node(into, role="ASYNC_MASTER")
    assert said.exit_code == 2
    assert [line for line in said.stderr.splitlines() if line.startswith("trioha: ")] == [
        (
            f"trioha: {into}: a restore into this store has not ended: its log is not whole; "
            "run the same trioha restore again"
        )
    ]
    assert {path: path.stat().st_mtime_ns for path in into.rglob("*")} == before
    marker.unlink()
    promoted = start_node("restored", role="ASYNC_MASTER")
    promoted.stop()


def promoted_end(store: Path) -> int:
    end: int = verify(store)["stores"][0]["maxOffset"]
    return end
