"""What all tests share."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.descriptors import left_open, open_descriptors, resources_closed
from tests.s3 import S3Bucket, S3Server, bucket_in_environment, obstore_settled, s3_server, start_obstore

# With the values of all variables, as structlog's own default has it, a traceback takes seconds.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)

_configure_logs = structlog.configure


def _configure_uncached(**settings: Any) -> None:
    """As `structlog.configure`, but loggers that a test uses do not keep its settings and its stderr."""
    _configure_logs(**{**settings, "cache_logger_on_first_use": False})


structlog.configure = _configure_uncached

# Deadlines of single examples measure the machine's load, not the code.
settings.register_profile("trioha", deadline=None)
settings.load_profile("trioha")

TESTS = Path(__file__).parent
TOGETHER = frozenset(("interop", "spark"))
"""Folders whose tests share a JVM that takes long to start: they run in one process."""

CALL_FAILED = pytest.StashKey[bool]()
"""Whether a test, or its set-up, failed."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where tests run in several processes, those of one file run in one."""
    for item in items:
        place = item.path.relative_to(TESTS)
        group = place.parts[0] if place.parts[0] in TOGETHER else place.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember which tests failed, for `descriptors_are_closed`."""
    report = yield
    if report.when != "teardown" and report.failed:
        item.stash[CALL_FAILED] = True
    return report


@pytest.fixture(autouse=True)
def logs_are_configured_anew() -> Iterator[None]:
    """What a command of a test configures ends with the test."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(autouse=True)
def descriptors_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a file, socket or pipe open: the limit of descriptors is one for all tests.

    Fixtures of a session or module are set up before it and so do not count; those of the test do. A test
    that fails is not asked: its traceback holds what it had open.
    """
    before = open_descriptors()
    with resources_closed():
        yield
    if request.node.stash.get(CALL_FAILED, False):
        return
    if left := left_open(before):
        pytest.fail("left open:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session")
def s3_server_of_this_run() -> Iterator[S3Server]:
    """An S3 server over HTTP, for all tests of this process."""
    start_obstore()
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server_of_this_run: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Bucket]:
    """An empty bucket of it; the environment of this process and of its children leads there."""
    with obstore_settled(), bucket_in_environment(s3_server_of_this_run.bucket(), monkeypatch) as bucket:
        yield bucket
