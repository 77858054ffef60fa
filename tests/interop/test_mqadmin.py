"""mqadmin of real RocketMQ on a trioha broker: what its commands print.

Each version has one cluster for the whole module, and runs all commands in one JVM.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.asking import topics
from tests.interop.java import JavaDriver
from tests.interop.messages import bodies
from tests.interop.name_server import trioha_name_server
from tests.interop.rocketmq import is_5, only_4
from tests.interop.world import running
from tests.node_process import TriohaNode, wait_dispatched
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

CLUSTER, BROKER = "interop", "broker-t"


class Admin:
    """mqadmin on one cluster: one name server, one broker."""

    def __init__(self, java: JavaDriver, names: str, node: TriohaNode) -> None:
        self.java, self.names, self.node = java, names, node

    def __call__(self, command: str, *arguments: str) -> str:
        return self.java.mqadmin(command, self.names, *arguments)

    def rows(self, command: str, *arguments: str) -> list[list[str]]:
        """What it prints, by lines and columns, without comments."""
        lines = self(command, *arguments).splitlines()
        return [line.split() for line in lines if line.strip() and not line.startswith("#")]

    def make(self, topic: str, *arguments: str) -> None:
        """Create a topic and wait until the name server has it."""
        made = self("updateTopic", "-c", CLUSTER, "-t", topic, "-r", "2", "-w", "2", *arguments)
        assert "success" in made, made
        wait_until(lambda: topic in topics(self.names), f"topic {topic} is registered")

    def send(self, topic: str, number: int) -> None:
        """Send messages, and wait until the queues and the index have them."""
        assert self.java.produce(self.names, number, topic=topic, tags="tag") == {"SEND_OK": number}
        wait_dispatched(self.node.listen_address)

    def fields(self, command: str, *arguments: str) -> dict[str, str]:
        """The lines of the form `name: value` that it prints."""
        pairs = (line.partition(":") for line in self(command, *arguments).splitlines())
        return {name.strip(): value.strip() for name, separator, value in pairs if separator}

    def committed(self, group: str, topic: str) -> int:
        """Messages that a group has committed in a topic, as consumerProgress prints them."""
        rows = self.rows("consumerProgress", "-g", group)
        return sum(int(row[4]) for row in rows if row[0] == topic)

    def saved(self, name: str) -> dict[str, Any]:
        """A file of the broker's tables."""
        return json.loads((self.node.root / "config" / name).read_text())

    @property
    def java_version(self) -> str:
        """As mqadmin writes the version of clients."""
        return f"V{self.java.version.replace('.', '_')}"

    @property
    def config_path(self) -> Path:
        return self.node.root.with_name(f"{self.node.root.name}.conf")


@pytest.fixture(scope="module")
def admin(java_of_module: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    folder = tmp_path_factory.mktemp("mqadmin")
    with (
        trioha_name_server(folder / "names") as names,
        running(folder / "master", role="ASYNC_MASTER", namesrvAddr=names, brokerName=BROKER) as node,
    ):
        wait_until(lambda: BROKER in topics(names), "the broker is registered")
        yield Admin(java_of_module, names, node)
        assert node.is_running
        assert "Traceback" not in node.log()
        node.stop()


def test_topics_are_made_shown_changed_and_deleted(admin: Admin) -> None:
    address = admin.node.listen_address
    admin.make("Made")
    admin.send("Made", 8)
    status = admin.rows("topicStatus", "-t", "Made")
    route = admin("topicRoute", "-t", "Made")
    listed = admin.rows("topicList", "-c")
    changed = admin("updateTopic", "-b", address, "-t", "Made", "-r", "4", "-w", "4")
    wider = admin.rows("topicStatus", "-t", "Made")
    statistics = admin.rows("statsAll", "-t", "Made")
    deleted = admin("deleteTopic", "-c", CLUSTER, "-t", "Made")
    wait_until(lambda: "Made" not in topics(admin.names), "the topic is gone")

    status, wider = ([row for row in rows if row[0] == BROKER] for rows in (status, wider))
    assert [row[:4] for row in status] == [[BROKER, "0", "0", "4"], [BROKER, "1", "0", "4"]]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row[4]) for row in status)
    assert re.search(rf'0:"{address}"', route)
    for name, value in (("perm", 6), ("readQueueNums", 2), ("writeQueueNums", 2)):
        assert re.search(rf'"{name}":{value}\b', route), route
    assert [CLUSTER, "Made"] in listed
    assert "success" in changed
    assert [row[1:4] for row in wider] == [
        ["0", "0", "4"], ["1", "0", "4"], ["2", "0", "0"], ["3", "0", "0"]
    ]  # fmt: skip
    # Without a group: messages per second of the last minute, and those of the day.
    (numbers,) = [row[1:] for row in statistics if row[0] == "Made"]
    assert numbers[-2:] == ["8", "NO_CONSUMER"], statistics
    assert 0 < float(numbers[-3]) <= 8
    assert "success" in deleted
    assert "Made" not in admin.saved("topics.json")["topicConfigTable"]
    # Made again, it is empty, and counts from 0.
    admin.make("Made")
    again = admin.rows("topicStatus", "-t", "Made")
    assert [row[2:4] for row in again if row[0] == BROKER] == [["0", "0"], ["0", "0"]]
    admin.send("Made", 2)
    again = admin.rows("topicStatus", "-t", "Made")
    assert [row[2:4] for row in again if row[0] == BROKER] == [["0", "1"], ["0", "1"]]
    refused = admin("updateTopic", "-c", CLUSTER, "-t", "TBW102")
    assert "success" not in refused


def test_the_cluster_and_the_brokers_state_are_shown(admin: Admin) -> None:
    address = admin.node.listen_address
    admin.make("Shown")
    before = admin.fields("brokerStatus", "-b", address)
    admin.send("Shown", 4)
    after = admin.fields("brokerStatus", "-b", address)
    ((cluster, name, broker_id, shown, *_),) = admin.rows("clusterList")
    ((*_, in_today, _out_today),) = admin.rows("clusterList", "-m")
    config = admin("getBrokerConfig", "-b", address)

    assert (cluster, name, broker_id, shown) == (CLUSTER, BROKER, "0", address)
    assert int(after["msgPutTotalTodayNow"]) - int(before["msgPutTotalTodayNow"]) == 4
    assert in_today == after["msgPutTotalTodayNow"]
    assert int(after["commitLogMaxOffset"]) > int(before["commitLogMaxOffset"])
    assert re.search(rf"^brokerName\s+=\s+{BROKER}$", config, re.MULTILINE)
    assert re.search(r"^fileReservedTime\s+=\s+72$", config, re.MULTILINE)
    if is_5(admin.java.version):
        ha = admin("haStatus", "-b", address).split()
        assert ha[ha.index("#MasterAddr") + 1] == address
        assert ha[ha.index("#MasterCommitLogMaxOffset") + 1] == after["commitLogMaxOffset"]
        assert ha[ha.index("#SlaveNum") + 1] == "0"


def test_a_live_group_is_shown_and_reset(admin: Admin) -> None:
    admin.make("Live")
    made = admin("updateSubGroup", "-c", CLUSTER, "-g", "live-group", "-q", "3", "-r", "7")
    admin.send("Live", 8)
    with (
        admin.java.connected_producer(admin.names, group="live-group-producer", topic="Live") as offset_id,
        admin.java.consuming(admin.names, group="live-group", topic="Live") as live,
    ):
        assert len(live.received(9)) == 9
        wait_until(lambda: admin.committed("live-group", "Live") == 9, "all is committed")
        progress = admin("consumerProgress", "-g", "live-group")
        groups = admin.rows("consumerProgress")
        listed = admin.rows("topicList", "-c")
        consumer = admin.rows("consumerConnection", "-g", "live-group")
        # A producer's first heartbeat follows a second after its start.
        shown = ("producerConnection", "-g", "live-group-producer", "-t", "Live")
        wait_until(lambda: bool(admin.rows(*shown)), "the producer is known")
        producer = admin.rows(*shown)
        statistics = admin.rows("statsAll", "-t", "Live")
        by_id = admin("queryMsgById", "-i", offset_id, *(("-t", "Live") if is_5(admin.java.version) else ()))
        consumed = admin.rows("brokerConsumeStats", "-b", admin.node.listen_address)
        reset = admin.rows("resetOffsetByTime", "-g", "live-group", "-t", "Live", "-s", "0")
        # The consumer goes on at the start some 10 s after the broker's notice.
        received = live.received(18)
        wait_until(lambda: admin.committed("live-group", "Live") == 9, "all is committed again")

    assert "success" in made
    group = admin.saved("subscriptionGroup.json")["subscriptionGroupTable"]["live-group"]
    assert (group["retryQueueNums"], group["retryMaxTimes"]) == (3, 7)
    rows = [line.split() for line in progress.splitlines() if line.startswith("Live ")]
    assert sorted(row[2] for row in rows) == ["0", "1"]
    assert sorted(row[3:6] for row in rows) == [["4", "4", "0"], ["5", "5", "0"]]
    assert re.search(r"Diff Total: 0$", progress, re.MULTILINE)
    (shown,) = [row for row in groups if row[0] == "live-group"]
    assert [*shown[:5], shown[-1]] == ["live-group", "1", admin.java_version, "PUSH", "CLUSTERING", "0"]
    assert [CLUSTER, "Live", "live-group"] in listed
    assert [row[-2:] for row in consumer if "127.0.0.1" in row[1]] == [["JAVA", admin.java_version]]
    assert ["Live", "*"] in consumer
    assert ["ConsumeFromWhere:", "CONSUME_FROM_FIRST_OFFSET"] in consumer
    assert [row[-2:] for row in producer] == [["JAVA", admin.java_version]]
    (traffic,) = [row for row in statistics if row[:2] == ["Live", "live-group"]]
    assert (traffic[2], traffic[-2:]) == ("0", ["9", "9"])
    assert re.search(r"^Queue Offset: +4$", by_id, re.MULTILINE)
    assert re.search(rf"^CommitLog Offset: +{int(offset_id[-16:], 16)}$", by_id, re.MULTILINE)
    assert "consumerGroup=live-group, trackType=CONSUMED," in by_id
    mine = [row[4:7] for row in consumed if row[:3] == ["Live", "live-group", BROKER]]
    assert sorted(mine) == [["4", "4", "0"], ["5", "5", "0"]]
    assert sorted(row for row in reset if row[0] == BROKER) == [[BROKER, "0", "0"], [BROKER, "1", "0"]]
    assert bodies(received[:9]) == bodies(received[9:18])


def test_an_idle_group_is_reset_and_deleted_and_messages_are_found(admin: Admin) -> None:
    admin.make("Idle")
    admin.send("Idle", 5)
    with admin.java.consuming(admin.names, group="idle-group", topic="Idle") as live:
        assert len(live.received(5)) == 5
        # What a listener has just returned from is not committed by a shutdown.
        wait_until(lambda: admin.committed("idle-group", "Idle") == 5, "all is committed")
    before = admin.committed("idle-group", "Idle")
    admin("resetOffsetByTime", "-g", "idle-group", "-t", "Idle", "-s", "0")
    after = admin.committed("idle-group", "Idle")
    sent = admin.rows("sendMessage", "-t", "Idle", "-p", "hello", "-k", "a-key")
    wait_dispatched(admin.node.listen_address)
    by_key = admin.rows("queryMsgByKey", "-t", "Idle", "-k", "a-key")
    by_offset = admin("queryMsgByOffset", "-t", "Idle", "-b", BROKER, "-i", "0", "-o", "0")
    deleted = admin("deleteSubGroup", "-c", CLUSTER, "-g", "idle-group", "-r", "true")

    assert (before, after) == (5, 0)
    ((broker, queue_id, status, message_id),) = sent
    assert (broker, status) == (BROKER, "SEND_OK")
    assert [row[:2] for row in by_key] == [[message_id, queue_id]]
    assert re.search(r"^Queue Offset: +0$", by_offset, re.MULTILINE)
    assert re.search(r"^Keys: +\[key\d\]$", by_offset, re.MULTILINE)
    assert "success" in deleted
    assert "idle-group" not in admin.saved("subscriptionGroup.json")["subscriptionGroupTable"]
    assert admin.committed("idle-group", "Idle") == 0


def test_the_configuration_is_changed_in_the_broker_and_in_its_file(admin: Admin) -> None:
    address = admin.node.listen_address
    admin.make("Setting")
    before = admin.config_path.read_text()

    def set_permission(value: int) -> str:
        said = admin("updateBrokerConfig", "-b", address, "-k", "brokerPermission", "-v", str(value))
        wait_until(
            lambda: re.search(rf'"perm":\s*{value}\b', admin("topicRoute", "-t", "Setting")) is not None,
            "the permission is registered",
        )
        return said

    changed = set_permission(4)
    shown = admin("getBrokerConfig", "-b", address)
    read_only = admin.rows("sendMessage", "-t", "Setting", "-p", "hello")
    refused = {
        key: admin("updateBrokerConfig", "-b", address, "-k", key, "-v", value)
        for key, value in (("flushDiskType", "SYNC_FLUSH"), ("fileReservedTime", "x"), ("nonsense", "1"))
    }
    text = admin.config_path.read_text()
    set_permission(6)

    assert "success" in changed
    assert re.search(r"^brokerPermission\s+=\s+4$", shown, re.MULTILINE)
    assert not any("SEND_OK" in row for row in read_only)
    assert text == before + "brokerPermission=4\n"
    assert all("success" not in said for said in refused.values()), refused


@pytest.mark.nightly
@only_4
def test_versions_before_5_do_not_have_the_commands_of_controller_mode(java: JavaDriver) -> None:
    for command in ("getSyncStateSet", "getBrokerEpoch", "electMaster", "getControllerMetaData"):
        assert f"The sub command {command} not exist" in java.mqadmin(command, "127.0.0.1:9")
