"""The harness itself: real RocketMQ beside real RocketMQ, and what happens without Maven."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.interop import rocketmq as toolchain
from tests.interop.java import JavaDriver
from tests.interop.logs import assert_same_log, blank_tails
from tests.interop.rocketmq import VERSIONS, ToolchainError, chosen_versions, class_path, is_5, missing_tools
from tests.node_process import FILE_BYTES

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(("master_version", "slave_version"), product(VERSIONS, VERSIONS))
def test_a_real_slave_becomes_a_byte_copy_of_a_real_master(
    tmp_path: Path, rocketmq: dict[str, JavaDriver], master_version: str, slave_version: str
) -> None:
    master_jvm, slave_jvm = rocketmq[master_version], rocketmq[slave_version]
    wait_for: dict[str, Any] = {"inSyncReplicas": 2, "totalReplicas": 2} if is_5(master_version) else {}
    master = master_jvm.open_store(tmp_path / "master", role="SYNC_MASTER", **wait_for)
    slave = slave_jvm.open_store(tmp_path / "slave", role="SLAVE", ha_master_address=master.ha_address)
    # The first report decides where a transfer starts: only a slave that has the first bytes gets all files.
    joined = master.put(1, size=(100, 100), wait_store_msg_ok=False)
    slave.wait(maxOffset=joined.end_offset)

    puts = master.put(200)
    end = puts.end_offset
    slave.wait(maxOffset=end)
    master.wait(push2SlaveMaxOffset=end)
    read_master, read_slave = master.read(), slave.read()

    assert puts.statuses == {"PUT_OK": 200}
    assert end > 4 * FILE_BYTES
    assert blank_tails(master.root, end=end, file_bytes=FILE_BYTES) == end // FILE_BYTES
    assert_same_log(master.root, slave.root, end=end, file_bytes=FILE_BYTES)
    assert len(read_master.messages) == 201
    assert read_master.gaps() == []
    assert read_master == read_slave


def test_the_newest_of_each_line_is_tested_unless_versions_are_named() -> None:
    assert chosen_versions("") == ("4.9.7", "5.5.0")
    assert chosen_versions("5.5.0 5.3.3") == ("5.3.3", "5.5.0")
    assert chosen_versions("all") == ("4.9.7", "5.3.3", "5.4.0", "5.5.0")
    with pytest.raises(ValueError, match=r"5\.9\.9 is not one of 4\.9\.7, 5\.3\.3, 5\.4\.0, 5\.5\.0"):
        chosen_versions("4.9.7 5.9.9")
    with pytest.raises(ValueError, match=r"needs a version of 5\.x"):
        chosen_versions("4.9.7")


def test_a_machine_without_maven_is_told_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    lacking = missing_tools()
    assert lacking == "interop tests need Maven and a JDK 17 or newer: there is no `mvn`"


def test_an_old_jdk_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for tool in ("mvn", "java"):
        _fake_tool(tmp_path / tool, "exit 0")
    _fake_tool(tmp_path / "javac", "echo javac 11.0.2")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert missing_tools() == "interop tests need a JDK 17 or newer: `javac -version` says javac 11.0.2"


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
    _fake_tool(
        tmp_path / "mvn", f"echo mvn >> {calls}; sleep 0.2; mkdir -p lib; touch lib/rocketmq-broker-5.5.0.jar"
    )
    _fake_tool(tmp_path / "javac", f"echo javac >> {calls}; mkdir -p classes")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(3) as runs:
        paths = list(runs.map(lambda _: class_path("5.5.0", cache=cache), range(3)))

    (classes,) = (cache / "5.5.0").glob("classes-*")
    assert set(paths) == {f"{classes}:{cache}/5.5.0/lib/*"}
    assert calls.read_text().split() == ["mvn", "javac"]


def test_classes_that_a_jvm_may_load_stay_when_other_sources_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _fake_tool(tmp_path / "mvn", "mkdir -p lib; touch lib/rocketmq-broker-5.5.0.jar")
    _fake_tool(tmp_path / "javac", "mkdir -p classes; touch classes/StoreDriver.class")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    first = class_path("5.5.0", cache=tmp_path / "cache")
    other = tmp_path / "java"
    shutil.copytree(toolchain.JAVA_SOURCES, other)
    (other / "StoreDriver.java").write_text("// another checkout's")
    monkeypatch.setattr(toolchain, "JAVA_SOURCES", other)
    second = class_path("5.5.0", cache=tmp_path / "cache")
    assert first != second
    for path in (first, second):
        assert Path(path.split(os.pathsep)[0], "StoreDriver.class").exists()


def _fake_tool(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
