"""Fixtures of the interop tests: one JVM per RocketMQ version for the whole run, nodes for a test each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.interop.clients import RocketClients, rocket_clients
from tests.interop.java import JavaDriver, java_driver
from tests.interop.rocketmq import VERSIONS, missing_tools

TIMEOUT_S = 400
"""For a test with its fixtures, in seconds: longer than any of its waits, which say what is missing.
Those are ten times what an idle machine needs and more: other suites may have the cores."""
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of this folder have TIMEOUT_S unless they say otherwise."""
    for item in items:
        if FOLDER in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def rocketmq_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, JavaDriver]]:
    """A JVM for each version, running until the end of the run."""
    lacking = missing_tools()
    if lacking:
        pytest.skip(lacking)
    with ExitStack() as jvms:
        yield {
            version: jvms.enter_context(java_driver(version, folder=tmp_path_factory.mktemp("rocketmq")))
            for version in VERSIONS
        }


@pytest.fixture
def rocketmq(rocketmq_of_this_run: dict[str, JavaDriver]) -> Iterator[dict[str, JavaDriver]]:
    """Real RocketMQ by version; what a test leaves open is shut down after it."""
    yield rocketmq_of_this_run
    for driver in rocketmq_of_this_run.values():
        driver.retire_stores()


@pytest.fixture(params=VERSIONS, ids=[f"rocketmq-{version}" for version in VERSIONS])
def java(request: pytest.FixtureRequest, rocketmq: dict[str, JavaDriver]) -> JavaDriver:
    """A JVM with real RocketMQ, once for each version."""
    return rocketmq[request.param]


@pytest.fixture
def newest(rocketmq: dict[str, JavaDriver]) -> JavaDriver:
    """A JVM with the newest RocketMQ of this run, for what 4.9 does not have."""
    return rocketmq[VERSIONS[-1]]


@pytest.fixture(scope="session")
def clients_of_this_run(
    rocketmq_of_this_run: dict[str, JavaDriver], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, RocketClients]]:
    """RocketMQ's own clients by version, a JVM for each, running until the end of the run."""
    with ExitStack() as jvms:
        yield {
            version: jvms.enter_context(rocket_clients(version, folder=tmp_path_factory.mktemp("clients")))
            for version in rocketmq_of_this_run
        }


@pytest.fixture
def clients(java: JavaDriver, clients_of_this_run: dict[str, RocketClients]) -> RocketClients:
    """Clients and mqadmin of the version that the test is about."""
    return clients_of_this_run[java.version]


@pytest.fixture
def own_jvm(tmp_path: Path, rocketmq: dict[str, JavaDriver]) -> Iterator[Callable[..., JavaDriver]]:
    """A further JVM of a version for a test that kills or stops it, or with system properties of its own."""
    with ExitStack() as jvms:
        started = 0

        def start(version: str, **system_properties: str) -> JavaDriver:
            nonlocal started
            started += 1
            return jvms.enter_context(
                java_driver(version, folder=tmp_path / f"jvm-{started}", system_properties=system_properties)
            )

        yield start
