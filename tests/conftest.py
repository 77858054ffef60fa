"""What all tests share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests import levels
from tests.descriptors import left_open, open_descriptors, resources_closed
from tests.node_process import TriohaNode
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

TESTS = Path(__file__).parent
TOGETHER = frozenset(("spark",))
"""Folders whose tests share a JVM that takes long to start: they run in one process."""
FIRST = ("spark", "interop", "faults", "hostile", "simulation", "node", "cli", "monitor", "archive")
"""Folders whose tests wait for processes. They start first: at the end no process of tests runs alone."""

ID_CHARS_MAX = 80
"""Of a value in the id of a test."""
NIGHTLY_TIMEOUT_S = 3600
"""For a test whose examples are thousands; others end within the time of `pyproject.toml`."""

LEFT_OUT = pytest.StashKey[Counter[str]]()
"""How many tests a level leaves out, by mark."""
CALL_FAILED = pytest.StashKey[bool]()
"""Whether a test, or its set-up, failed."""


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Of a long value its begin and its length: an id is printed, and passed between processes."""
    if isinstance(val, str | bytes) and len(val) > ID_CHARS_MAX:
        return f"{val[:ID_CHARS_MAX]!r}, {len(val)} long"
    return None


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--level`: which tests run."""
    parser.addoption(
        "--level", choices=levels.LEVELS, default=levels.TEST, help="which tests run: see tests/levels.py"
    )


@pytest.hookimpl(tryfirst=True)  # before pytest-timeout reads its option
def pytest_configure(config: pytest.Config) -> None:
    """Test modules that are imported later read their sizes."""
    level = config.getoption("level")
    levels.use_level(level)
    if level == levels.NIGHTLY and config.option.timeout is None:
        config.option.timeout = NIGHTLY_TIMEOUT_S


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the level does not run. Tests of one file run in one process, slow folders first."""
    level = config.getoption("level")
    reasons = {
        item: None if levels.is_named(item, config.args) else levels.left_out_by(item, level=level)
        for item in items
    }
    if left_out := [item for item in items if reasons[item]]:
        config.hook.pytest_deselected(items=left_out)
    config.stash[LEFT_OUT] = Counter(reason for reason in reasons.values() if reason)
    items[:] = [item for item in items if not reasons[item]]
    for item in items:
        place = item.path.relative_to(TESTS)
        group = place.parts[0] if place.parts[0] in TOGETHER else place.as_posix()
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _turn(item.path.relative_to(TESTS).parts[0]))


def _turn(folder: str) -> int:
    return FIRST.index(folder) if folder in FIRST else len(FIRST)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Where tests run in several processes, each has counted the same tests."""
    if (counts := getattr(node, "workeroutput", {}).get("left_out")) is not None:
        node.config.stash[LEFT_OUT] = Counter(counts)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of several gives its counts to the one that prints."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["left_out"] = dict(session.config.stash.get(LEFT_OUT, Counter()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out, and what runs it."""
    counts = terminalreporter.config.stash.get(LEFT_OUT, Counter())
    said = [f"{counts[mark]} by {command}" for mark, command in levels.BEYOND.items() if counts[mark]]
    if said:
        terminalreporter.write_line(f"Left out here, and run: {', '.join(said)}.")


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


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., TriohaNode]]:
    """Starts trioha nodes on stores of the test's folder, by name; none of them outlives the test."""
    nodes: list[TriohaNode] = []

    def start(name: str = "store", **options: Any) -> TriohaNode:
        nodes.append(TriohaNode(tmp_path / name, **options))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.is_running:
            node.kill()


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
