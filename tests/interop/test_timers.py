"""Timers of a real 5.x master whose store trioha takes over, and of that in the hands of a real slave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.doctor.changes import ask
from tests.interop.asking import make_topic, max_offset
from tests.interop.java import JavaDriver
from tests.interop.name_server import trioha_name_server
from tests.interop.popping import pop_client
from tests.interop.rocketmq import only_5
from tests.interop.timers import (
    NAMES,
    TOPIC,
    deliver_one,
    keys,
    now_ms,
    open_master,
    open_slave,
    positions,
    send,
    slot_ms,
    timers_by_topic,
    waiting_timers,
)
from tests.interop.world import StartNode
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.broker.pending import count_pending
from trioha.broker_status import PendingStatus
from trioha.metadata.timer_check import read_timer_check
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.store.topics import REVIVE_TOPIC_PREFIX

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

DELETED, OTHER = "Deleted", "Other"
AHEAD_MS = {"overdue-0": 8_000, "overdue-1": 9_000, "later": 45_000}
"""When the timers that wait are due: two while trioha is the master, one after the promotion of the slave,
unless the machine is busy."""


@only_5
def test_trioha_delivers_what_a_real_master_left_and_a_real_slave_of_it_the_rest_each_once(
    own_jvm: Callable[..., JavaDriver], java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    killed = own_jvm(java.version)
    first = open_master(killed, tmp_path / "store")
    deliver_one(first, "soon")
    due_ms = {key: now_ms() + ahead_ms for key, ahead_ms in AHEAD_MS.items()}
    for key, each_ms in due_ms.items():
        send(first.listen_address, key, due_ms=each_ms)
    wait_until(lambda: waiting_timers(first) == len(due_ms), "the real master has the timers")
    killed.kill()

    with trioha_name_server(tmp_path / "names") as names:
        second = start_node("store", role="ASYNC_MASTER", listenPort=free_port(), namesrvAddr=names)
        slave = open_slave(java, tmp_path / "slave", second.ha_address, names)
        wait_until(lambda: max_offset(second.listen_address, TOPIC) == 3, "trioha delivers two timers")
        # It asks for the check point 10 s after its start, and reads its queue up to the offset that it gets.
        # What it has not read when it is promoted is delivered once more.
        wait_until(lambda: positions(slave)[1] == 1 + len(due_ms), "the slave has read the timers")
        wait_until(lambda: positions(slave)[0] > due_ms["overdue-1"], "the slave knows what was delivered")
        pending = second.status().pending
        assert pending is not None
        assert (pending.timers, pending.timers_first_ms) == (1, slot_ms(due_ms["later"]))
        assert pending.delivers_timers
        stopping = slave.start_shutdown()
        second.stop()
        stopping.result()
    third = java.open_broker(tmp_path / "slave", role="ASYNC_MASTER", timerWheelEnable=True, **NAMES)

    # What came again, or not at all, would have come before the last one.
    wait_until(lambda: keys(third)["later"], "the promoted broker delivers the last timer")
    assert keys(third) == Counter(["soon", *due_ms])


@pytest.mark.nightly
@only_5
def test_a_master_says_of_each_topic_how_many_timers_wait_as_a_real_one_does(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    node = start_node("trioha", role="ASYNC_MASTER", **NAMES)
    make_topic(node.listen_address, TOPIC)

    async def pop(address: str) -> None:
        async with pop_client(address) as client:
            assert (await client.pop(TOPIC)).bodies == ["soon"]

    for master in (open_master(java, tmp_path / "real"), node):
        address = master.listen_address
        make_topic(address, OTHER)
        deliver_one(master)
        for key, topic in (("a", TOPIC), ("b", TOPIC), ("c", OTHER)):
            send(address, key, due_ms=now_ms() + 600_000, topic=topic)
        trio.run(pop, address)
        waiting = {TOPIC: 2, OTHER: 1, f"{REVIVE_TOPIC_PREFIX}interop": 1}
        wait_until(lambda: timers_by_topic(address) == waiting, f"{address}: {waiting}")  # noqa: B023


@pytest.mark.nightly
@only_5
def test_what_a_real_master_had_delivered_to_a_topic_that_is_deleted_is_not_pending(
    java: JavaDriver, start_node: StartNode, tmp_path: Path
) -> None:
    master = open_master(java, tmp_path / "store")
    make_topic(master.listen_address, DELETED)
    deliver_one(master, "deleted", topic=DELETED)
    ask(master.listen_address, request(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields={"topic": DELETED}))
    done_ms = deliver_one(master, "soon")
    wait_until(lambda: positions(master)[0] > done_ms, "the real master notes how far it is")
    master.shutdown()

    node = start_node("store", role="ASYNC_MASTER")
    wait_until(lambda: node.status().pending is not None, "what is pending is counted")
    assert node.status().pending == PendingStatus(delivers_timers=True)
    node.stop()
    check_point = read_timer_check(master.root / "config")
    assert check_point is not None
    assert (check_point.last_read_ms % 1000, check_point.master_queue_offset) == (0, 2)
    # Its copy is in the log, and in no queue.
    (master.root / "config/timercheck").unlink()
    counted = count_pending(master.root, revived={})
    assert (counted.status.timers, counted.timers_from_ms) == (1, counted.status.timers_first_ms)


@only_5
@pytest.mark.parametrize(
    "is_killed",
    [pytest.param(False, id="stopped", marks=pytest.mark.nightly), pytest.param(True, id="killed")],
)
def test_a_real_broker_on_the_store_of_trioha_delivers_what_is_pending_and_nothing_again(
    java: JavaDriver, start_node: StartNode, tmp_path: Path, *, is_killed: bool
) -> None:
    node = start_node("store", role="ASYNC_MASTER", **NAMES)
    make_topic(node.listen_address, TOPIC)
    send(node.listen_address, "delivered", due_ms=now_ms() + 1000)
    wait_until(lambda: max_offset(node.listen_address, TOPIC) == 1, "trioha delivers a timer")
    for number in range(3):
        send(node.listen_address, f"pending-{number}", due_ms=now_ms() + 20_000 + 500 * number)
    send(node.listen_address, "plain")
    check = tmp_path / "store/config/timercheck"

    def is_noted() -> bool:
        found = read_timer_check(check.parent)
        return found is not None and found.master_queue_offset == 4

    wait_until(is_noted, "what is pending is noted for a real broker")
    if is_killed:
        node.kill()
    else:
        node.stop()

    master = java.open_broker(tmp_path / "store", role="ASYNC_MASTER", timerWheelEnable=True, **NAMES)
    wait_until(lambda: sum(keys(master).values()) >= 5, "the real broker delivers what is pending")
    # What came again would have come at its start.
    assert keys(master) == Counter(["delivered", "plain", *(f"pending-{number}" for number in range(3))])
