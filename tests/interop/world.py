"""A cluster that tests only look at: a real master with a trioha slave, a trioha master with a real one.

All four are registered with a real name server and with trioha's. Each test has topics and groups of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.interop.asking import groups, make_topic, max_offsets, wait_for_route
from tests.interop.java import JavaDriver, JavaStore
from tests.interop.name_server import trioha_name_server
from tests.interop.rocketmq import is_5
from tests.node_process import SLAVE_TIMEOUT_MS, TriohaNode, load
from tests.ports import free_port
from tests.waiting import wait_until

Broker = JavaStore | TriohaNode
StartNode = Callable[..., TriohaNode]
StartPair = Callable[..., tuple[JavaStore, TriohaNode]]
REAL, TRIOHA = "broker-r", "broker-t"
"""Names of brokers, by their masters."""
QUICK = {"trioha.metadataSyncFirst": 50, "trioha.metadataSyncPeriod": 100, "flushConsumerOffsetInterval": 100}
"""A trioha slave copies its master's tables at once."""
DELAYS = "1s 1s 1s 1s 1s"


def sync_settings(java: JavaDriver) -> dict[str, Any]:
    """What makes a SYNC_MASTER of this version wait for one slave (docs/protocol/ha.md#which-puts-wait)."""
    return {"inSyncReplicas": 2, "totalReplicas": 2} if is_5(java.version) else {}


@contextmanager
def running(root: Path, **settings: Any) -> Iterator[TriohaNode]:
    """A trioha node until the block ends, and then killed if it still runs."""
    node = TriohaNode(root, **settings)
    try:
        yield node
    finally:
        if node.is_running:
            node.kill()


@frozen
class Pair:
    """A SYNC_MASTER and its slave."""

    master: Broker
    slave: Broker

    def is_equal(self) -> bool:
        """Whether the slave has its master's log."""
        return self.slave.max_offset == self.master.max_offset


@frozen
class World:
    """Both pairs by name, and both name servers."""

    java: JavaDriver
    pairs: Mapping[str, Pair]
    name_servers: Mapping[str, str]
    first_sends: Mapping[str, int]
    """Statuses of the sends that made the topic `Shared`."""

    def make_topic(self, topic: str) -> None:
        """Make a topic at both masters, and wait for its routes."""
        for pair in self.pairs.values():
            make_topic(pair.master.listen_address, topic)
        for address in self.name_servers.values():
            wait_for_route(address, topic, *self.pairs)

    @property
    def names(self) -> str:
        """The real name server."""
        return self.name_servers["real"]

    def offsets(self, topic: str) -> dict[str, int]:
        """How many messages of a topic each master has."""
        return {
            name: sum(max_offsets(pair.master.listen_address, topic).values())
            for name, pair in self.pairs.items()
        }


SHARED = "Shared"
FIRST_SENDS = 32


@contextmanager
def world(java: JavaDriver, folder: Path) -> Iterator[World]:
    """Start it, and wait until all are registered and in step."""
    with ExitStack() as stack:
        servers = {
            "real": stack.enter_context(java.name_server(folder / "real-names")),
            "trioha": stack.enter_context(trioha_name_server(folder / "trioha-names")),
        }
        common = {"namesrvAddr": ";".join(servers.values()), "slaveTimeout": SLAVE_TIMEOUT_MS}

        def ours(name: str, role: str, **settings: Any) -> TriohaNode:
            given = {**common, **QUICK, "role": role, "brokerName": name, "messageDelayLevel": DELAYS}
            return stack.enter_context(running(folder / f"{name}-{role}", **given, **settings))

        def theirs(name: str, role: str, **settings: Any) -> JavaStore:
            given = {**common, "role": role, "brokerName": name, "messageDelayLevel": DELAYS}
            return java.open_broker(folder / f"{name}-{role}", **given, **settings)

        real = theirs(REAL, "SYNC_MASTER", **sync_settings(java))
        # Slaves of RocketMQ ask for topics at the listenPort - 2, which a node on port 0 does not have.
        trioha = ours(TRIOHA, "SYNC_MASTER", listenPort=free_port())
        pairs = {
            REAL: Pair(real, ours(REAL, "SLAVE")),
            TRIOHA: Pair(trioha, theirs(TRIOHA, "SLAVE", ha_master_address=trioha.ha_address)),
        }
        addresses = {
            name: {0: pair.master.listen_address, 1: pair.slave.listen_address}
            for name, pair in pairs.items()
        }

        def are_registered(address: str) -> bool:
            for pair in pairs.values():
                for broker in (pair.master, pair.slave):
                    if isinstance(broker, JavaStore):
                        broker.register()
            return groups(address) == addresses

        for address in servers.values():
            wait_until(lambda: are_registered(address), "all brokers are registered")  # noqa: B023
            wait_for_route(address, "TBW102", *pairs)
        for pair in pairs.values():
            wait_until(
                lambda: set(load(pair.master.listen_address, 1).statuses) == {"PUT_OK"},  # noqa: B023
                "a put is on the slave",
                within_s=120,
            )
        sent = java.produce(servers["real"], FIRST_SENDS, topic=SHARED, prefix="first", brokers=tuple(pairs))
        for address in servers.values():
            wait_for_route(address, SHARED, *pairs)
        yield World(java, pairs, servers, sent)
