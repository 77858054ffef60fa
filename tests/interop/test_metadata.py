"""Metadata between real brokers and trioha nodes, in both directions; tables compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import JavaDriver
from tests.interop.name_server import name_server
from tests.interop.rocketmq import is_5
from tests.node.test_metadata_copies import QUICK, ask, tables, wait_until
from tests.node_process import TriohaNode
from tests.ports import free_port
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.interop, pytest.mark.process]

GROUP = {"groupName": "group", "retryMaxTimes": 7}
WITHIN_S = 150.0
"""A slave of 4.9 copies 3 s after its start, and then every 10 s."""


def create(address: str) -> None:
    """A topic, a group, and an offset of the group."""
    fields = {"topic": "Copied", "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "order": "false"}
    fields |= {"readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "topicSysFlag": "0"}
    offset = {"topic": "Copied", "consumerGroup": "group", "queueId": "1", "commitOffset": "5"}
    answers = ask(
        address,
        request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields),
        request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=json.dumps(GROUP).encode()),
        request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=offset),
    )
    assert [answer.code for answer in answers] == [0, 0, 0], answers


def compared(address: str) -> list[Any]:
    """Topics, groups and offsets without versions and the fields that only some versions have."""
    topics, groups, offsets, delays = tables(address)
    group = groups["subscriptionGroupTable"].get("group", {})
    return [
        {
            name: (topic["readQueueNums"], topic["writeQueueNums"], topic["perm"])
            for name, topic in topics["topicConfigTable"].items()
        },
        sorted(groups["subscriptionGroupTable"]),
        group.get("retryMaxTimes"),
        offsets["offsetTable"].get("Copied@group"),
        delays["offsetTable"],
    ]


def test_a_trioha_slave_has_the_tables_of_a_real_master(
    java: JavaDriver, start_node: Callable[..., TriohaNode], tmp_path: Path
) -> None:
    broker = java.open_broker(tmp_path / "broker", role="ASYNC_MASTER")
    create(broker.listen_address)
    slave = start_node(
        "slave",
        role="SLAVE",
        ha_master_address=broker.ha_address,
        **{**QUICK, "trioha.masterAddress": broker.listen_address},
    )
    wait_until(lambda: compared(slave.listen_address) == compared(broker.listen_address), within_s=WITHIN_S)
    metadata = slave.status().metadata
    assert metadata is not None
    assert {name: one.error for name, one in metadata.tables.items() if one.error} == {}
    assert ("requestModes" in metadata.tables) is is_5(java.version)
    assert compared(slave.listen_address)[2:4] == [7, {"1": 5}]


def test_a_real_slave_has_the_tables_of_a_trioha_master(
    java: JavaDriver, start_node: Callable[..., TriohaNode], tmp_path: Path
) -> None:
    # Slaves ask for topics at the VIP port, for the rest at the listenPort.
    with name_server(java.version, folder=tmp_path / "namesrv") as address:
        master = start_node(
            "master", role="ASYNC_MASTER", namesrvAddr=address, listenPort=free_port(), **QUICK
        )
        create(master.listen_address)
        slave = java.open_broker(tmp_path / "slave", role="SLAVE", namesrvAddr=address)

        def copied() -> list[Any]:
            """The slave's tables; one of 5.x begins a copy now, one of 4.9 by itself."""
            if is_5(java.version):
                slave.register()
                slave.sync_metadata()
            return compared(slave.listen_address)

        assert "Copied" in compared(master.listen_address)[0]
        wait_until(lambda: copied() == compared(master.listen_address), within_s=WITHIN_S)
        assert compared(slave.listen_address)[2:4] == [7, {"1": 5}]
        # An administrator's change follows with the next copy.
        ask(
            master.listen_address,
            request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": "Copied"}),
        )
        wait_until(lambda: "Copied" not in copied()[0], within_s=WITHIN_S)
