"""mqadmin of real RocketMQ on a trioha broker: what its commands print."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.clients import RocketClients
from tests.interop.node import TriohaNode
from tests.interop.rocketmq import is_5
from tests.interop.test_name_servers import topics, trioha_name_server, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process]

StartNode = Callable[..., TriohaNode]
CLUSTER, BROKER = "interop", "broker-t"


class Admin:
    """mqadmin on one cluster: one name server, one broker."""

    def __init__(self, clients: RocketClients, names: str, node: TriohaNode) -> None:
        self.clients, self.names, self.node = clients, names, node

    def __call__(self, command: str, *arguments: str) -> str:
        return self.clients.mqadmin(command, self.names, *arguments)

    def rows(self, command: str, *arguments: str) -> list[list[str]]:
        """What it prints, by lines and columns, without comments."""
        lines = self(command, *arguments).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]

    def make(self, topic: str, *arguments: str) -> None:
        """Create a topic and wait until the name server has it."""
        made = self("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2", *arguments)
        assert "success" in made, made
        wait_until(lambda: topic in topics(self.names), f"topic {topic} is registered")

    @property
    def config_path(self) -> Path:
        return self.node.root.with_name(f"{self.node.root.name}.conf")


@pytest.fixture
def admin(clients: RocketClients, start_node: StartNode, tmp_path: Path) -> Iterator[Admin]:
    with trioha_name_server(tmp_path / "names") as names:
        node = start_node("master", role="ASYNC_MASTER", namesrvAddr=names, brokerName=BROKER)
        wait_until(lambda: BROKER in topics(names), "the broker is registered")
        yield Admin(clients, names, node)
        assert node.is_running
        assert "Traceback" not in node.log()
        node.stop()


def test_topics_are_made_shown_changed_and_deleted(admin: Admin) -> None:
    address = admin.node.listen_address
    admin.make("Made")
    admin.clients.send(admin.names, "Made", 8)
    status = admin.rows("topicStatus", "-t", "Made")
    route = admin("topicRoute", "-t", "Made")
    listed = admin("topicList", "-c")
    changed = admin("updateTopic", "-b", address, "-t", "Made", "-r", "4", "-w", "4")
    wider = admin.rows("topicStatus", "-t", "Made")
    statistics = admin.rows("statsAll", "-t", "Made")
    deleted = admin("deleteTopic", "-c", CLUSTER, "-t", "Made")
    wait_until(lambda: "Made" not in topics(admin.names), "the topic is gone")

    status, wider = ([row for row in rows if row[0] == BROKER] for rows in (status, wider))
    assert [row[:4] for row in status] == [[BROKER, "0", "0", "4"], [BROKER, "1", "0", "4"]]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row[4]) for row in status)
    assert re.search(r'"writeQueueNums":\s*2', route)
    assert any(row.split()[:2] == [CLUSTER, "Made"] for row in listed.splitlines())
    assert "success" in changed
    assert [row[1] for row in wider] == ["0", "1", "2", "3"]
    (numbers,) = [row[1:] for row in statistics if row[0] == "Made"]
    assert "8" in numbers, statistics
    assert "success" in deleted
    config = json.loads((admin.node.root / "config" / "topics.json").read_text())
    assert "Made" not in config["topicConfigTable"]
    # Made again, it is empty.
    admin.make("Made")
    again = admin.rows("topicStatus", "-t", "Made")
    assert [row[2:4] for row in again if row[0] == BROKER] == [["0", "0"], ["0", "0"]]


def test_the_cluster_and_the_brokers_state_are_shown(admin: Admin) -> None:
    admin.make("Made")
    admin.clients.send(admin.names, "Made", 4)
    ((cluster, name, broker_id, address, *_),) = admin.rows("clusterList")
    status = admin("brokerStatus", "-b", admin.node.listen_address).splitlines()
    stats = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in status)}
    config = admin("getBrokerConfig", "-b", admin.node.listen_address)
    consumed = admin("brokerConsumeStats", "-b", admin.node.listen_address)

    assert (cluster, name, broker_id, address) == (CLUSTER, BROKER, "0", admin.node.listen_address)
    assert stats["msgPutTotalTodayNow"] == "4"
    assert re.search(rf"^brokerName\s+=\s+{BROKER}$", config, re.MULTILINE)
    assert "Diff Total: 0" in consumed
    if is_5(admin.clients.version):
        ha = admin("haStatus", "-b", admin.node.listen_address).split()
        assert ha[ha.index("#MasterAddr") + 1] == admin.node.listen_address
        assert ha[ha.index("#SlaveNum") + 1] == "0"


def committed(admin: Admin, group: str, topic: str) -> int:
    """Messages that a group has committed in a topic, as consumerProgress prints them."""
    rows = admin.rows("consumerProgress", "-g", group)
    return sum(int(row[4]) for row in rows if row[0] == topic)


def test_a_live_group_is_shown_and_reset(admin: Admin) -> None:
    admin.make("Live")
    made = admin("updateSubGroup", "-c", CLUSTER, "-g", "live-group")
    admin.clients.send(admin.names, "Live", 8)
    offset_id = admin.clients.join(admin.names, "Live", "live-group")
    try:
        wait_until(lambda: len(admin.clients.received()) == 9, "all messages are consumed")
        wait_until(lambda: committed(admin, "live-group", "Live") == 9, "all is committed")
        progress = admin.rows("consumerProgress", "-g", "live-group")
        groups = admin.rows("consumerProgress")
        consumer = admin("consumerConnection", "-g", "live-group")
        producer = admin("producerConnection", "-g", "live-group-producer", "-t", "Live")
        statistics = admin("statsAll", "-t", "Live")
        by_id = admin(
            "queryMsgById", "-i", offset_id, *(("-t", "Live") if is_5(admin.clients.version) else ())
        )
        consumed = admin("brokerConsumeStats", "-b", admin.node.listen_address)
        reset = admin("resetOffsetByTime", "-g", "live-group", "-t", "Live", "-s", "0")
        # The consumer goes on at the start, some 10 s after it was told so.
        wait_until(lambda: len(admin.clients.received()) == 18, "all messages are consumed again")
    finally:
        admin.clients.leave()

    assert "success" in made
    live = [row for row in progress if row[0] == "Live"]
    assert sorted(int(row[2]) for row in live) == [0, 1]
    assert sum(int(row[3]) for row in live) == 9, progress
    (shown,) = [row for row in groups if row[0] == "live-group"]
    assert shown[1] == "1", groups
    assert "CONSUME_FROM_FIRST_OFFSET" in consumer
    assert "Live" in consumer
    assert "JAVA" in consumer
    assert "JAVA" in producer
    assert any(line.split()[:2] == ["Live", "live-group"] for line in statistics.splitlines()), statistics
    assert "live" in by_id
    assert "Live" in consumed
    assert [row.split()[2] for row in reset.splitlines() if row.startswith(BROKER)] == ["0", "0"], reset


def test_an_idle_group_is_reset_and_messages_are_found(admin: Admin) -> None:
    admin.make("Idle")
    admin.clients.send(admin.names, "Idle", 4)
    admin.clients.join(admin.names, "Idle", "idle-group")
    try:
        wait_until(lambda: len(admin.clients.received()) == 5, "all messages are consumed")
    finally:
        admin.clients.leave()
    assert committed(admin, "idle-group", "Idle") == 5
    admin("resetOffsetByTime", "-g", "idle-group", "-t", "Idle", "-s", "0")
    progress = committed(admin, "idle-group", "Idle")
    sent = admin("sendMessage", "-t", "Idle", "-p", "hello", "-k", "a-key")
    by_key = admin("queryMsgByKey", "-t", "Idle", "-k", "a-key")
    by_offset = admin("queryMsgByOffset", "-t", "Idle", "-b", BROKER, "-i", "0", "-o", "0")

    assert progress == 0
    assert "SEND_OK" in sent
    assert len([line for line in by_key.splitlines() if line and not line.startswith("#")]) == 1, by_key
    assert re.search(r"Queue Offset:\s+0", by_offset), by_offset


def test_the_configuration_is_changed_in_the_broker_and_in_its_file(admin: Admin) -> None:
    address = admin.node.listen_address
    admin.make("Made")
    before = admin.config_path.read_text()
    changed = admin("updateBrokerConfig", "-b", address, "-k", "brokerPermission", "-v", "4")
    shown = admin("getBrokerConfig", "-b", address)
    wait_until(
        lambda: re.search(r'"perm":\s*4', admin("topicRoute", "-t", "Made")) is not None,
        "the permission is registered",
    )
    refused = {
        key: admin("updateBrokerConfig", "-b", address, "-k", key, "-v", value)
        for key, value in (("flushDiskType", "SYNC_FLUSH"), ("fileReservedTime", "x"), ("nonsense", "1"))
    }
    text = admin.config_path.read_text()

    assert "success" in changed
    assert re.search(r"^brokerPermission\s+=\s+4$", shown, re.MULTILINE)
    assert text == before + "brokerPermission=4\n"
    assert all("success" not in said for said in refused.values()), refused
