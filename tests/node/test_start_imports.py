"""What a node imports before its ready line, and what only afterwards."""

import re
import sys
from functools import partial

import pytest

from tests.node_process import TriohaNode
from trioha.node.late_imports import MODULES

pytestmark = pytest.mark.process

LIBRARIES = {
    "obstore", "asyncio", "cattrs", "cyclopts", "difflib", "h11", "lz4", "prometheus_client", "pygments",
    "rich", "yaml", "zstandard", "numpy", "pandas", "plotly", "py4j", "pyarrow", "pyspark", "textual",
    "trioha_analysis", "trioha_monitor", "trioha_sessions", "trioha_spark",
}  # fmt: skip
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


@pytest.fixture
def start(start_node):
    """Starts a node whose log has its imports, too, in their order."""
    return partial(
        start_node,
        role="ASYNC_MASTER",
        program=[sys.executable, "-X", "importtime", "-m", "trioha"],
    )


def imports_until_ready(node: TriohaNode) -> set[str]:
    """Modules; the line `serving` is the first after the ready line."""
    until_ready, _, _ = node.wait_logged("] serving").partition("] serving")
    return set(IMPORTED.findall(until_ready))


def packages_of(modules: set[str]) -> set[str]:
    # structlog's attempt has a line, but finds none: else rich's own modules would have theirs.
    return {name.partition(".")[0] for name in modules - {"rich"}}


def test_a_default_node_imports_what_other_settings_and_requests_need_later_or_not_at_all(start):
    node = start()
    modules = imports_until_ready(node)
    assert {"trio", "trioha.node.node", "trioha.store.message_store"} <= modules
    assert packages_of(modules) & LIBRARIES == set()
    assert modules & (PARTS | set(MODULES)) == set()
    # A module that is imported by its name, as these are, has no line; what it imports has.
    assert MODULES == ("trioha.remoting.ha_runtime_info",)
    node.wait_logged("| cattrs\n")


def test_a_part_is_imported_with_its_setting(start, tmp_path):
    modules = imports_until_ready(
        start(**{"trioha.metricsPort": 0, "trioha.recordDir": tmp_path / "sessions"})
    )
    assert {"prometheus_client", "trioha.metrics", "trioha.recording.recorder"} <= modules


def test_a_node_with_an_archive_leaves_its_libraries_to_the_process_of_the_archiver(start, tmp_path):
    modules = imports_until_ready(start(**{"trioha.archiveUrl": (tmp_path / "archive").as_uri()}))
    assert "trioha.node.archive_service" in modules
    assert packages_of(modules) & LIBRARIES == set()
    assert not any(name.startswith("trioha.archive") for name in modules)
