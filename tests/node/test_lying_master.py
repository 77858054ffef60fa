"""A master that lies about its metadata costs its slave bounded memory, and one line for each table."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import pytest
import trio

from tests.faults.trio_thread import TrioThread
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.server import RemotingServer
from trioha.remoting.serving import Peer

pytestmark = [
    pytest.mark.process,
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="needs /proc"),
]

GROWTH_KB_MAX: Final = 250 * 1024
"""Of a slave's memory at its peak: the pages of one table, their text, what a body of 16 MiB is parsed to,
and what the allocator keeps of these. One answer of 1,000 pages alone would be 16 GB."""
BODY_BYTES: Final = 15 * 1024 * 1024
"""Nearly a frame."""
PAGES_SERVED_MAX: Final = 64
"""Pages of 15 MiB that the master serves: a slave that asks for the last one has no limit."""
TOPIC: Final = TopicConfig("T").to_json()


def peak_kb(pid: int) -> int:
    """The most resident memory that a process ever had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


def filled(start: str, part: Callable[[int], str], end: str) -> bytes:
    """A body of nearly a frame with one part after the other."""
    parts = [part(number) for number in range(BODY_BYTES // (len(part(10**6)) + 1))]
    return f"{start}{','.join(parts)}{end}".encode()


def long_names(served: int) -> bytes:
    """A page of topics with names of a MiB each."""
    names = {f"{served}-{number}-{'x' * (1 << 20)}": TOPIC for number in range(15)}
    return json.dumps({"dataVersion": {"counter": 1}, "topicConfigTable": names}).encode()


def many_groups(served: int) -> bytes:
    """A page of 60,000 groups."""
    names = {f"{served}-{number}": {} for number in range(60_000)}
    return json.dumps({"dataVersion": {"counter": 1}, "subscriptionGroupTable": names}).encode()


class LyingMaster(TrioThread):
    """Answers a slave's questions for tables."""

    def __init__(self) -> None:
        self.address = ""
        self.served: Counter[int] = Counter()
        """Answers by request code."""
        numbers = count()
        map_of = partial(filled, end="}}")
        once = {
            RequestCode.GET_ALL_CONSUMER_OFFSET: map_of('{"offsetTable":{', lambda n: f'"T{n}@G":{{0:1}}'),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: filled(
                '{"messageRequestModeMap":[', lambda _: "[]", "]}"
            ),
            RequestCode.GET_TIMER_METRICS: map_of('{"timingCount":{', lambda n: f'"{n}":1'),
            RequestCode.GET_TIMER_CHECK_POINT: bytes(BODY_BYTES),
            RequestCode.GET_BROKER_CONFIG: b"a=b\n" * (BODY_BYTES // 4),
        }
        self._bodies: dict[int, Callable[[], bytes]] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: lambda: long_names(next(numbers)),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda: many_groups(next(numbers)),
            **{code: partial(bytes, body) for code, body in once.items()},
        }
        super().__init__()

    async def _begin(self, nursery: trio.Nursery) -> None:
        ((host, port),) = await nursery.start(
            partial(RemotingServer(self._answer).serve, host="127.0.0.1", port=0)
        )
        self.address = f"{host}:{port}"

    def _answer(self, asked: RemotingCommand, _peer: Peer) -> RemotingCommand:
        self.served[asked.code] += 1
        totals = {"totalTopicNum": "2147483647", "totalGroupNum": "2147483647"}
        return response_to(asked, 0, ext_fields=totals, body=self._bodies[asked.code]())


def test_a_lying_masters_metadata_is_refused_within_a_bound_of_memory(start_node):
    master = LyingMaster()
    try:
        slave = start_node(
            "slave",
            role="SLAVE",
            ha_master_address=f"127.0.0.1:{free_port()}",
            **{
                "trioha.masterAddress": master.address,
                "trioha.metadataSyncFirst": 200,
                "trioha.metadataSyncPeriod": 100,
            },
        )
        before_kb = peak_kb(slave.pid)
        last, topics = RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_ALL_TOPIC_CONFIG
        wait_until(
            lambda: master.served[last] >= 2 or master.served[topics] > PAGES_SERVED_MAX,
            "two copies of all tables",
            within_s=300,
        )
        growth_kb = peak_kb(slave.pid) - before_kb
        assert master.served[last] >= 2, master.served
        assert growth_kb < GROWTH_KB_MAX
        print(f"at most {growth_kb // 1024} MiB more")
        tables = slave.status().metadata.tables
        assert {name: one.error for name, one in tables.items()} == {
            "topics": "an answer of more than 33554432 bytes",
            "consumerOffsets": "JSON of more than 600000 objects and arrays",
            # Asked for as soon as the log is the master's.
            "delayOffsets": "",
            "groups": "more than 100000 entries",
            "requestModes": "JSON of more than 600000 objects and arrays",
            "timerMetrics": "JSON of more than 1200000 values",
            "timerCheckPoint": f"a timer check point of {BODY_BYTES} bytes, not 32 or 56",
        }
        said = slave.wait_logged("metadata cannot be copied")
        assert said.count("metadata cannot be copied") == 6
        slave.stop()
    finally:
        master.close()
