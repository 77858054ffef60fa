"""What a node imports before its ready line, and what only afterwards."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from trioha.node.late_imports import MODULES

pytestmark = pytest.mark.process

WITHIN_S = 75
LIBRARIES = {
    "obstore",
    *(
        "asyncio",
        "cattrs",
        "cyclopts",
        "difflib",
        "h11",
        "lz4",
        "prometheus_client",
        "pygments",
        "rich",
        "yaml",
        "zstandard",
    ),
    *("numpy", "pandas", "plotly", "py4j", "pyarrow", "pyspark", "textual"),
    *("trioha_analysis", "trioha_monitor", "trioha_spark"),
}
PARTS = {
    "trioha.archive",
    "trioha.node.archive_service",
    "trioha.node.role_changes",
    "trioha.broker.acl_file",
    "trioha.broker.registration",
    "trioha.ha.slave",
    "trioha.metrics",
    "trioha.namesrv",
    "trioha.recording.recorder",
}
"""Of settings that a node does not have by default."""
IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +(\S+)$", re.MULTILINE)


@contextmanager
def started(folder: Path, *settings: str) -> Iterator[Path]:
    """A ready node; the file has its imports and log lines in their order."""
    config = folder / "broker.conf"
    config.write_text(
        f"brokerIP1=127.0.0.1\ntrioha.bindAddress=127.0.0.1\nlistenPort=0\nhaListenPort=0\n"
        f"mappedFileSizeCommitLog=65536\nmaxMessageSize=60000\nstorePathRootDir={folder / 'store'}\n"
    )
    options = [word for setting in settings for word in ("-p", setting)]
    errors = folder / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "trioha", "node", "-c", str(config), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready "), errors.read_text()
        yield errors
    finally:
        process.kill()
        process.communicate()


def wait_for_text(file: Path, text: str) -> str:
    """The content of `file` as soon as `text` is in it."""
    deadline_s = time.monotonic() + WITHIN_S
    while text not in (content := file.read_text()):
        assert time.monotonic() < deadline_s, content
        time.sleep(0.02)
    return content


def imports_until_ready(errors: Path) -> set[str]:
    """Modules; the line `serving` is the first after the ready line."""
    until_ready, _, _ = wait_for_text(errors, "] serving").partition("] serving")
    return set(IMPORTED.findall(until_ready))


def test_a_default_node_starts_without_what_other_settings_and_later_requests_need(tmp_path: Path) -> None:
    with started(tmp_path) as errors:
        modules = imports_until_ready(errors)
        assert {"trio", "trioha.node.node", "trioha.store.message_store"} <= modules
        # structlog's attempt has a line, but finds none: else rich's own modules would have theirs.
        packages = {name.partition(".")[0] for name in modules - {"rich"}}
        assert packages & LIBRARIES == set()
        assert modules & (PARTS | set(MODULES)) == set()


def test_what_requests_need_is_imported_after_the_ready_line(tmp_path: Path) -> None:
    with started(tmp_path) as errors:
        # A module that is imported by its name, as these are, has no line; what it imports has.
        assert MODULES == ("trioha.remoting.ha_runtime_info",)
        wait_for_text(errors, "| cattrs\n")


def test_a_part_is_imported_with_its_setting(tmp_path: Path) -> None:
    settings = ("trioha.metricsPort=0", f"trioha.recordDir={tmp_path / 'sessions'}")
    with started(tmp_path, *settings) as errors:
        modules = imports_until_ready(errors)
        assert {"prometheus_client", "trioha.metrics", "trioha.recording.recorder"} <= modules


def test_a_node_with_an_archive_leaves_its_libraries_to_the_process_of_the_archiver(tmp_path: Path) -> None:
    with started(tmp_path, f"trioha.archiveUrl={(tmp_path / 'archive').as_uri()}") as errors:
        modules = imports_until_ready(errors)
        assert "trioha.node.archive_service" in modules
        assert {name.partition(".")[0] for name in modules - {"rich"}} & LIBRARIES == set()
        assert not any(name.startswith("trioha.archive") for name in modules)
