"""Timers of real RocketMQ 5 brokers: how tests send them, and how far a broker is with them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.doctor.changes import ask
from tests.interop.asking import make_topic, max_offset
from tests.interop.java import JavaDriver, JavaStore
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


def waiting_timers(master: JavaStore) -> int:
    """How many timers of the topic wait, as the real master counts them."""
    metrics: Any = parse_json(ask(master.listen_address, request(RequestCode.GET_TIMER_METRICS)).body)
    return int(metrics["timingCount"][TOPIC]["count"])


def deliver_one(master: JavaStore, key: str = "soon", *, topic: str = TOPIC) -> int:
    """Have the real master deliver a timer; its slot."""
    before = max_offset(master.listen_address, topic)
    due_ms = now_ms() + 1500
    send(master.listen_address, key, due_ms=due_ms, topic=topic)
    wait_until(
        lambda: max_offset(master.listen_address, topic) == before + 1, "the real master delivers a timer"
    )
    return slot_ms(due_ms)
