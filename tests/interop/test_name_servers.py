"""Real brokers and clients under a trioha name server, and a trioha broker under a real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.interop.asking import groups, topics, wait_for_groups
from tests.interop.java import JavaDriver
from tests.interop.messages import expected
from tests.interop.name_server import trioha_name_server
from tests.interop.rocketmq import is_5
from tests.interop.world import StartNode
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.remoting.fastjson import parse_json

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]


def printed(text: str) -> dict[str, Any]:
    """A JSON object as mqadmin prints it: with bare keys."""
    value = parse_json(text)
    assert isinstance(value, dict), text
    return value


def test_real_brokers_and_clients_work_under_a_trioha_name_server(java: JavaDriver, tmp_path: Path) -> None:
    with trioha_name_server(tmp_path / "names") as names:
        master = java.open_broker(
            tmp_path / "master",
            role="ASYNC_MASTER",
            namesrvAddr=names,
            brokerName="broker-a",
            # Without it 5.x cannot delete a topic; 4.9 does not have it.
            **({"timerWheelEnable": True} if is_5(java.version) else {}),
        )
        master.register()
        wait_until(lambda: "broker-a" in groups(names), "the master is registered")
        slave = java.open_broker(tmp_path / "slave", role="SLAVE", namesrvAddr=names, brokerName="broker-a")
        both = {"broker-a": {0: master.listen_address, 1: slave.listen_address}}
        slave.register()
        wait_for_groups(names, both)

        # A topic made by an administrator, and one made by a first send.
        made = java.mqadmin("updateTopic", names, "-c", "interop", "-t", "Made", "-r", "3", "-w", "2")
        wait_until(lambda: "Made" in topics(names), "the new topic is registered")
        sent = java.sends(names, 12, topic="Sent")
        wait_until(lambda: "Sent" in topics(names), "the sent topic is registered")
        bodies = java.consumed(names, 12, group="readers", topic="Sent")
        listed = java.mqadmin("clusterList", names)
        route = java.mqadmin("topicRoute", names, "-t", "Made")
        all_topics = java.mqadmin("topicList", names).split()
        wiped = java.mqadmin("wipeWritePerm", names, "-b", "broker-a")
        read_only = java.mqadmin("topicRoute", names, "-t", "Made")
        added = java.mqadmin("addWritePerm", names, "-b", "broker-a")
        java.mqadmin("updateKvConfig", names, "-s", "NS", "-k", "key", "-v", "value")
        config = java.mqadmin("getNamesrvConfig", names)
        java.mqadmin("updateNamesrvConfig", names, "-k", "orderMessageEnable", "-v", "true")
        changed = java.mqadmin("getNamesrvConfig", names)
        deleted = java.mqadmin("deleteTopic", names, "-c", "interop", "-t", "Made")
        left = topics(names)
        # What the slave asks its name server for: where the master is.
        slave.wait(maxOffset=master.max_offset)
        slave.shutdown()
        alone = groups(names)
        master.shutdown()
        none = groups(names)

    assert "success" in made
    assert {(one.status, one.broker_name) for one in sent} == {("SEND_OK", "broker-a")}
    assert sorted(bodies) == sorted(expected(12))
    assert master.listen_address in listed
    assert slave.listen_address in listed
    (queues,) = printed(route)["queueDatas"]
    assert (queues["writeQueueNums"], queues["readQueueNums"], queues["perm"]) == (2, 3, 6)
    assert [queues["perm"] for queues in printed(read_only)["queueDatas"]] == [4]
    assert {"Made", "Sent", "interop", "broker-a"} <= set(all_topics)
    assert "wipe write perm" in wiped
    assert "add write perm" in added
    assert "orderMessageEnable" in config
    assert [line.split()[-1] for line in changed.splitlines() if "orderMessageEnable" in line] == ["true"]
    assert "success" in deleted
    assert "Made" not in left
    assert "Sent" in left
    assert alone == {"broker-a": {0: master.listen_address}}
    assert none == {}
    assert json.loads((tmp_path / "names" / "kvConfig.json").read_text()) == {
        "configTable": {"NS": {"key": "value"}}
    }


def test_a_trioha_broker_under_a_real_name_server_is_found_by_real_clients(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    with java.name_server(tmp_path / "names") as names:
        master = start_node("master", role="ASYNC_MASTER", namesrvAddr=names, brokerName="broker-t")
        slave = start_node("slave", role="SLAVE", namesrvAddr=names, brokerName="broker-t")
        both = {"broker-t": {0: master.listen_address, 1: slave.listen_address}}
        wait_for_groups(names, both)
        # The slave learned from the name server where its master is.
        master.wait(connections=1)
        sent = java.sends(names, 12, topic="First")
        wait_until(lambda: "First" in topics(names), "the topic of the first send is registered")
        again = java.sends(names, 4, topic="First")
        listed = java.mqadmin("clusterList", names)
        all_topics = java.mqadmin("topicList", names).split()
        slave.wait(max_offset=master.max_offset)
        # A name server of 5.x takes brokers off its lists in a thread of its own.
        slave.stop()
        wait_for_groups(names, {"broker-t": {0: master.listen_address}})
        master.stop()
        wait_for_groups(names, {})

    assert {(one.status, one.broker_name) for one in sent + again} == {("SEND_OK", "broker-t")}
    assert {one.queue_id for one in again} == {0, 1, 2, 3}
    assert master.listen_address in listed
    assert {"First", "TBW102", "interop", "broker-t"} <= set(all_topics)


@pytest.mark.nightly
def test_a_real_broker_registers_again_with_a_name_server_that_was_started_anew(
    newest: JavaDriver, tmp_path: Path
) -> None:
    with trioha_name_server(tmp_path / "names", listenPort=free_port()) as names:
        broker = newest.open_broker(
            tmp_path / "broker", role="ASYNC_MASTER", namesrvAddr=names, registerNameServerPeriod=10000
        )
        wait_until(lambda: "interop" in groups(names), "the broker is registered")
        before = topics(names)
    with trioha_name_server(tmp_path / "names", listenPort=names.rpartition(":")[2]) as again:
        assert again == names
        wait_until(lambda: "interop" in groups(names), "the broker is registered again")
        assert topics(names) == before
    assert broker.is_open
