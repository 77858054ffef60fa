"""Fixtures of the interop tests: one JVM per RocketMQ version for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.java import JavaDriver, java_driver
from tests.interop.rocketmq import VERSIONS, missing_tools


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], JavaDriver]]:
    """RocketMQ by version; each JVM is started on its first use and ends with the run."""
    lacking = missing_tools()
    if lacking:
        pytest.skip(lacking)
    open_drivers: dict[str, tuple[object, JavaDriver]] = {}

    def get(version: str) -> JavaDriver:
        if version not in open_drivers:
            manager = java_driver(version, folder=tmp_path_factory.mktemp(f"rocketmq-{version}-"))
            open_drivers[version] = (manager, manager.__enter__())
        return open_drivers[version][1]

    yield get
    for _, driver in open_drivers.values():
        driver.close()


@pytest.fixture(scope="session", params=VERSIONS, ids=[f"rocketmq-{version}" for version in VERSIONS])
def java(request: pytest.FixtureRequest, rocketmq: Callable[[str], JavaDriver]) -> JavaDriver:
    """A JVM with real RocketMQ, once for each version."""
    return rocketmq(request.param)
