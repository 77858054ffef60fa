"""A real 5.5.0 broker's exporter serves what the recorded page says."""

from __future__ import annotations

import urllib.request

import pytest

from tests.interop.asking import make_topic, wait_for_route
from tests.interop.java import JavaDriver
from tests.interop.rocketmq import NEWEST
from tests.metrics.scraping import Family, families_of, parsed
from tests.metrics.test_rocketmq import NOT_SERVED, recorded
from tests.ports import free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.nightly]


@pytest.mark.skipif(NEWEST != "5.5.0", reason="the page is of 5.5.0")
def test_a_broker_serves_the_families_that_were_recorded(newest: JavaDriver, tmp_path):
    port = free_port()
    expected = {
        name: family
        for name, family in families_of(recorded()).items()
        if name.startswith("rocketmq_") and name not in NOT_SERVED
    }

    def served() -> dict[str, Family]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            text = answer.read().decode()
        found = families_of(parsed(text, is_openmetrics=False))
        return {name: found[name] for name in expected.keys() & found.keys()}

    java = newest
    with java.name_server(tmp_path / "names") as names:
        broker = java.open_broker(
            tmp_path / "store",
            role="ASYNC_MASTER",
            namesrvAddr=names,
            timerWheelEnable=True,
            metricsExporterType="PROM",
            metricsPromExporterHost="127.0.0.1",
            metricsPromExporterPort=port,
        )
        broker.register()
        make_topic(broker.listen_address, "Orders")
        wait_for_route(names, "Orders", "interop")
        assert java.produce(names, 3, topic="Orders") == {"SEND_OK": 3}
        with (
            java.consuming(names, group="Shop", topic="Orders") as consumer,
            java.connected_producer(names, group="P", topic="Orders"),
        ):
            consumer.received(3)
            wait_until(lambda: served() == expected)
