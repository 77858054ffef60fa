"""Timers and popped messages that a real 5.x master leaves to a trioha node: named by kind and number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.doctor.changes import ask
from tests.interop.asking import make_topic, max_offset
from tests.interop.controller import Consensus, eventually
from tests.interop.java import JavaDriver, JavaStore
from tests.interop.members import wait_until_registered
from tests.interop.replica_group import cluster, replica_group
from tests.interop.rocketmq import NEWEST, missing_tools
from tests.interop.test_failover import DLEDGER
from tests.interop.timers import (
    TOPIC,
    deliver_one,
    now_ms,
    open_master,
    send,
    slot_ms,
    waiting_timers,
)
from tests.interop.world import StartNode
from tests.node_process import TriohaNode, broker_status, run_trioha
from tests.waiting import wait_until
from trioha.broker_status import PendingStatus
from trioha.remoting.command import RemotingCommand, request

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

GROUP = "billing"
POP_MESSAGE, ACK_MESSAGE = 200050, 200051
LATER_MS = 600_000
"""After the end of the test."""
WARNING = "a RocketMQ master left messages in the log that are not delivered"


def pop(master: JavaStore) -> list[tuple[str, int]]:
    """Pop all messages of queue 0: the handle of their check point, and their queue offsets."""
    kinds = {"initMode": "0", "expType": "TAG", "exp": "*", "order": "false"}
    times = {"invisibleTime": str(LATER_MS), "pollTime": "0", "bornTime": "0"}
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "maxMsgNums": "32", **kinds, **times}
    found = ask(master.listen_address, request(POP_MESSAGE, ext_fields=fields)).ext_fields
    _, _, start = found["startOffsetInfo"].split(" ")
    _, _, listed = found["msgOffsetInfo"].split(" ")
    times_of_pop = f"{found['popTime']} {found['invisibleTime']} {found['reviveQid']}"
    return [(f"{start} {times_of_pop} 0 interop 0 {offset}", int(offset)) for offset in listed.split(",")]


def acknowledge(master: JavaStore, handle: str, offset: int) -> RemotingCommand:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "offset": str(offset)}
    return ask(master.listen_address, request(ACK_MESSAGE, ext_fields={**fields, "extraInfo": handle}))


def promoted(
    start_node: StartNode, master: JavaStore, slave: TriohaNode, *, end: Callable[[], None]
) -> TriohaNode:
    """The slave as master, after it has had all of the log and the master has ended."""
    wait_until(lambda: slave.max_offset == master.max_offset, "the slave has all of the log")
    end()
    slave.stop()
    node = start_node("slave", role="ASYNC_MASTER")
    wait_until(lambda: node.status().pending is not None, "what is pending is counted")
    return node


def test_what_a_killed_master_left_is_counted_by_its_trioha_successor_which_delivers_it(
    own_jvm: Callable[..., JavaDriver], start_node: StartNode, tmp_path: Path
) -> None:
    java = own_jvm(NEWEST)
    master = open_master(java, tmp_path / "master")
    slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    deliver_one(master)
    for number in range(4):
        send(master.listen_address, f"plain-{number}")
    # The delivered one and the four.
    (acknowledged, *left) = pop(master)
    assert len(left) == 4
    acknowledge(master, *acknowledged)
    first_ms = now_ms() + LATER_MS
    for number in range(3):
        send(master.listen_address, f"later-{number}", due_ms=first_ms + 10_000 * number)
    wait_until(lambda: waiting_timers(master) == 3, "the real master has three timers")

    node = promoted(start_node, master, slave, end=java.kill)

    pending = node.status().pending
    assert pending is not None
    slots_ms = [slot_ms(due_ms) for due_ms in (first_ms, first_ms + 20_000)]
    # A master that gives popped messages again does not count them.
    assert pending == PendingStatus(
        timers=3, delivers_timers=True, timers_first_ms=slots_ms[0], timers_last_ms=slots_ms[1]
    )
    # What is delivered, or given again, is no finding.
    assert WARNING not in node.log_path.read_text()
    found = json.loads(run_trioha("doctor", "--json", node.listen_address).stdout)
    assert "pending-not-delivered" not in {one["id"] for one in found["findings"]}


def test_a_trioha_slave_that_controllers_elect_has_the_timers_of_its_master(tmp_path: Path) -> None:
    if lacking := missing_tools():
        pytest.skip(lacking)
    consensus = Consensus.DLEDGER if NEWEST in DLEDGER else Consensus.JRAFT
    with (
        cluster(NEWEST, folder=tmp_path, consensus=consensus, scanNotActiveBrokerInterval=500) as running,
        replica_group(
            running, folder=tmp_path, broker_name="interop", controllerHeartBeatTimeoutMills=5000
        ) as group,
    ):
        first = group.join("rocketmq", "first", timerWheelEnable=True)
        wait_until_registered(running.names, "interop", first)
        make_topic(first.address, TOPIC)
        second = group.join("trioha", "second")
        group.wait_set(first, second)
        for number in range(3):
            send(first.address, f"later-{number}", due_ms=now_ms() + LATER_MS)
        group.wait_equal(first, second)

        first.kill()

        assert group.wait_master(second) is second
        pending = eventually(
            "what is pending is counted", lambda: broker_status(second.address).pending, logs=group.log
        )
        assert (pending.timers, pending.popped, pending.delivers_timers) == (3, 0, True)
        assert WARNING not in second.log()


@pytest.mark.nightly
def test_nothing_is_said_where_a_real_master_has_delivered_all(
    newest: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = open_master(newest, tmp_path / "master")
    slave = start_node("slave", role="SLAVE", ha_master_address=master.ha_address)
    deliver_one(master)
    send(master.listen_address, "plain")
    for popped in pop(master):
        acknowledge(master, *popped)
    wait_until(lambda: waiting_timers(master) == 0, "the real master has no timer")

    node = promoted(start_node, master, slave, end=master.shutdown)

    assert node.status().pending == PendingStatus(delivers_timers=True)
    assert WARNING not in node.log_path.read_text()


@pytest.mark.nightly
def test_rocksdb_stores_of_a_real_master_are_named(
    newest: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    root = tmp_path / "master"
    kept_in_rocksdb = {"popConsumerKVServiceInit": True, "popConsumerKVServiceEnable": True}
    master = open_master(newest, root, **kept_in_rocksdb)
    addresses = {"ha_master_address": master.ha_address, "trioha.masterAddress": master.listen_address}
    slave = start_node("slave", role="SLAVE", **addresses)
    send(master.listen_address, "plain")
    wait_until(lambda: max_offset(master.listen_address, TOPIC) == 1, "the message can be popped")
    plain = json.loads(run_trioha("doctor", "--json", root).stdout)
    # Every broker of 5.5 makes a store for timers, which is empty.
    assert (root / "rocksdbstore" / "CURRENT").is_file()
    assert plain["findings"] == []
    pop(master)

    def named() -> bool:
        found = json.loads(run_trioha("doctor", "--json", root).stdout)
        return [one["evidence"] for one in found["findings"]] == ["kvStore (popped messages)"]

    wait_until(named, "the store of popped messages is named")
    # No slave has it: it says so before a take-over, and after one.
    only_there = "popped messages (popConsumerKVServiceEnable of the master)"
    slave.wait_logged(f"stores='{only_there}'")
    pair = json.loads(run_trioha("doctor", "--json", master.listen_address, slave.listen_address).stdout)
    assert only_there in [one["evidence"] for one in pair["findings"] if one["id"] == "unread-store"]

    node = promoted(start_node, master, slave, end=master.shutdown)

    assert node.status().pending == PendingStatus(delivers_timers=True, unread_stores=(only_there,))
