"""Timers of real RocketMQ 5 brokers: how tests send them, and how far a broker is with them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from struct import Struct
from typing import Any

from tests.doctor.changes import ask
from tests.interop.asking import groups, make_topic, max_offset
from tests.interop.java import JavaDriver, JavaStore
from tests.interop.world import Broker
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.fastjson import parse_json
from trioha.remoting.send_message import SendMessageRequestHeader, send_request

TOPIC = "Orders"
NAMES = {"brokerName": "interop", "brokerClusterName": "interop"}


def open_master(java: JavaDriver, root: Path, **settings: object) -> JavaStore:
    """A real master that delivers timers, with a topic."""
    master = java.open_broker(root, role="ASYNC_MASTER", timerWheelEnable=True, **NAMES, **settings)
    make_topic(master.listen_address, TOPIC)
    return master


def open_slave(java: JavaDriver, root: Path, ha_address: str, names: str) -> JavaStore:
    """A real slave of the master at `ha_address`, with its tables. It delivers timers when it is promoted.

    It asks for topics at the master's listenPort - 2, so that is not 0.
    """
    slave = java.open_broker(
        root, role="SLAVE", ha_master_address=ha_address, namesrvAddr=names, timerWheelEnable=True, **NAMES
    )
    wait_until(lambda: has_tables(slave, names), "the slave knows its master, and has its topics")
    return slave


def send(address: str, key: str, *, due_ms: int | None = None, topic: str = TOPIC) -> None:
    """Store a message in queue 0, or have it delivered there at a time."""
    properties = f"UNIQ_KEY\x01{key}\x02" + ("" if due_ms is None else f"TIMER_DELIVER_MS\x01{due_ms}\x02")
    header = SendMessageRequestHeader("P", topic, "TBW102", 4, 0, 0, now_ms(), 0, properties=properties)
    ask(address, send_request(header, key.encode()))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def slot_ms(due_ms: int) -> int:
    """The slot of a timer (docs/protocol/timer.md#from-a-send-to-a-waiting-record)."""
    return (due_ms - 1) // 1000 * 1000


def positions(broker: JavaStore) -> tuple[int, int]:
    """The slot that a real broker delivers next, and how much of the queue of timers it has read."""
    path = broker.root / "config/timercheck"
    last_read_ms, _, queue_offset = Struct(">qqq").unpack_from(
        path.read_bytes() if path.exists() else bytes(24)
    )
    return last_read_ms, queue_offset


def keys(broker: JavaStore) -> Counter[str]:
    """How often each message is in the topic."""
    return Counter(message.record["properties"]["UNIQ_KEY"] for message in broker.read(TOPIC).messages)


def has_tables(slave: JavaStore, names: str) -> bool:
    """Whether a real slave is registered beside its master at the name server `names`, and has its tables."""
    slave.register()
    return len(groups(names).get("interop", {})) == 2 and slave.sync_metadata()


def timers_by_topic(address: str) -> dict[str, int]:
    """How many timers of each topic wait, as a broker counts them."""
    metrics: Any = parse_json(ask(address, request(RequestCode.GET_TIMER_METRICS)).body)
    return {topic: found["count"] for topic, found in metrics["timingCount"].items()}


def waiting_timers(master: JavaStore) -> int:
    """How many timers of the topic wait, as the real master counts them."""
    return timers_by_topic(master.listen_address)[TOPIC]


def deliver_one(master: Broker, key: str = "soon", *, topic: str = TOPIC) -> int:
    """Have a master deliver a timer; its slot."""
    before = max_offset(master.listen_address, topic)
    due_ms = now_ms() + 1500
    send(master.listen_address, key, due_ms=due_ms, topic=topic)
    wait_until(lambda: max_offset(master.listen_address, topic) == before + 1, "the master delivers a timer")
    return slot_ms(due_ms)
