"""The harness itself: real RocketMQ beside real RocketMQ, and machines without Maven."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from tests.interop.java import JavaDrivers
from tests.interop.logs import assert_same_log, blank_tails
from tests.interop.rocketmq import VERSIONS, ToolchainError, class_path, is_5, missing_tools
from tests.node_process import FILE_BYTES

pytestmark = pytest.mark.interop


@pytest.mark.nightly
@pytest.mark.parametrize(("master_version", "slave_version"), product(VERSIONS, VERSIONS))
def test_a_real_slave_becomes_a_byte_copy_of_a_real_master(
    tmp_path: Path, drivers: JavaDrivers, master_version: str, slave_version: str
) -> None:
    with drivers.lent(master_version) as master_jvm, drivers.lent(slave_version) as slave_jvm:
        settings = {"inSyncReplicas": 2, "totalReplicas": 2} if is_5(master_version) else {}
        master = master_jvm.open_store(tmp_path / "master", role="SYNC_MASTER", **settings)
        slave = slave_jvm.open_store(tmp_path / "slave", role="SLAVE", ha_master_address=master.ha_address)
        # The first report decides where a transfer starts: only a slave with the first bytes gets all files.
        joined = master.put(1, size=(100, 100), wait_store_msg_ok=False)
        slave.wait(maxOffset=joined.end_offset)
        puts = master.put(200)
        end = puts.end_offset
        slave.wait(maxOffset=end)
        read = master.read()

        assert puts.statuses == {"PUT_OK": 200}
        assert blank_tails(master.root, end=end, file_bytes=FILE_BYTES) == end // FILE_BYTES > 3
        assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
        assert (len(read.messages), read.gaps()) == (201, [])
        assert read == slave.read()


def test_a_machine_without_maven_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    lacking = missing_tools()
    assert lacking == "interop tests need Maven and a JDK 17 or newer: there is no `mvn`"


def test_a_maven_that_fails_is_a_failure_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_tool(tmp_path / "mvn", "echo Could not resolve dependencies; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ToolchainError, match=r"mvn ended with 1:\nCould not resolve dependencies"):
        class_path("5.5.0", cache=tmp_path / "cache")
    assert not list(tmp_path.rglob("*.stamp"))


def test_jars_and_classes_are_made_once_even_by_runs_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    jars = " ".join(f"lib/rocketmq-{artifact}-5.5.0.jar" for artifact in ("broker", "namesrv"))
    _fake_tool(tmp_path / "mvn", f"echo mvn >> {calls}; sleep 0.2; mkdir -p lib; touch {jars}")
    _fake_tool(tmp_path / "javac", f"echo javac >> {calls}; mkdir -p classes")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(3) as runs:
        paths = list(runs.map(lambda _: class_path("5.5.0", cache=cache), range(3)))

    (classes,) = (cache / "5.5.0").glob("classes-*")
    assert set(paths) == {f"{classes}:{cache}/5.5.0/lib/*:{cache}/5.5.0-namesrv/lib/*"}
    assert calls.read_text().split() == ["mvn", "mvn", "javac"]


def _fake_tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
