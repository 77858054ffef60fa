"""Fixtures of the interop tests: one JVM per RocketMQ version for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import JavaDriver, JavaDrivers, JavaStore, java_driver
from tests.interop.rocketmq import LINES, NEWEST, VERSIONS, missing_tools, version_params
from tests.interop.world import StartNode, StartPair, World, sync_settings, world
from tests.node_process import TriohaNode

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
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaDrivers]:
    """A JVM for each version that a test of this process asks for, running until the end of the run."""
    if lacking := missing_tools():
        pytest.skip(lacking)
    with JavaDrivers(lambda: tmp_path_factory.mktemp("rocketmq")) as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def jvms_of_module(request: pytest.FixtureRequest) -> None:
    """Starts the JVMs of a module's tests: their pipes are open before a test counts its descriptors."""
    versions: set[str] = set()
    for item in request.session.items:
        if item.path != request.path or "drivers" not in getattr(item, "fixturenames", ()):
            continue
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        versions |= {value for value in given if value in VERSIONS}
        versions |= {NEWEST} if "newest" in item.fixturenames else set()
        versions |= set(LINES) if "of_both_lines" in item.fixturenames else set()
    for version in versions:
        with request.getfixturevalue("drivers").lent(version):
            pass


@pytest.fixture(params=version_params())
def java(request: pytest.FixtureRequest, drivers: JavaDrivers) -> Iterator[JavaDriver]:
    """A JVM with real RocketMQ; what a test leaves open is shut down after it.

    In CI it has the newest version, unless the test is of `both_lines`.
    """
    with drivers.lent(request.param) as driver:
        yield driver


@pytest.fixture
def newest(drivers: JavaDrivers) -> Iterator[JavaDriver]:
    """As `java`, always with the newest RocketMQ of this run, for what 4.9 does not have."""
    with drivers.lent(NEWEST) as driver:
        yield driver


@pytest.fixture
def of_both_lines(drivers: JavaDrivers) -> Iterator[list[JavaDriver]]:
    """A JVM with the oldest and one with the newest version, for slaves of both at one master."""
    with ExitStack() as lent:
        yield [lent.enter_context(drivers.lent(version)) for version in LINES]


@pytest.fixture(scope="module", params=version_params())
def java_of_module(request: pytest.FixtureRequest, drivers: JavaDrivers) -> Iterator[JavaDriver]:
    """As `java`, for brokers that all tests of a module share."""
    with drivers.lent(request.param) as driver:
        yield driver


@pytest.fixture
def own_jvm(tmp_path: Path, drivers: JavaDrivers) -> Iterator[Callable[..., JavaDriver]]:
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


@pytest.fixture(scope="module")
def shared(java_of_module: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A cluster for all tests of a module that only look at it, or have topics and groups of their own."""
    with world(java_of_module, tmp_path_factory.mktemp("world")) as started:
        yield started


@pytest.fixture
def start_pair(java: JavaDriver, start_node: StartNode, tmp_path: Path) -> StartPair:
    """Starts a real master and a trioha slave that has its first bytes, so that it gets every file.

    The first report decides where a transfer starts, and an empty slave is given the last file only
    (docs/protocol/ha.md#where-a-master-starts): a master that already had several files would keep the others
    to itself.
    """

    def start(role: str, *, jvm: JavaDriver = java, **settings: Any) -> tuple[JavaStore, TriohaNode]:
        master = jvm.open_store(tmp_path / "master", role=role, **sync_settings(jvm), **settings)
        slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
        first = master.put(1, size=(100, 100), wait_store_msg_ok=False)
        slave.wait(max_offset=first.end_offset)
        return master, slave

    return start
