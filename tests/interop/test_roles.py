"""A pair of a real broker and a trioha node exchanges its roles and changes them back.

An exchange is that of docs/metadata.md: the slave has the log and the tables, both are stopped, and each is
started in the other role. Delay levels differ from master to master: what waits for an hour at one is due at
the next, so that what is pending at an exchange does not depend on how fast the machine is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.interop.asking import QUEUES, committed, groups, max_offset, max_offsets, tables, wait_for_route
from tests.interop.java import JavaDriver, JavaStore
from tests.interop.messages import bodies, expected
from tests.interop.name_server import trioha_name_server
from tests.interop.rocketmq import is_5
from tests.interop.transactions import COMMIT, OPS, ROLLBACK, UNKNOWN, TransactionProducer
from tests.interop.world import QUICK, Broker, StartNode
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.metadata.pretty_json import parse_pretty

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TOPIC = "TopicOfRoles"
GROUP = "group"
DELAY_LEVELS = ("1s 1h 1h", "1s 1s 1h", "1s 1s 1s")
"""At the first master, at the second, and at the first again."""
NO_CHECKS = {"transactionTimeOut": 3_600_000, "transactionCheckInterval": 3_600_000}
"""A real broker checks once more while it stops, and adds to its log what is open beyond the time-out."""
TIMEOUT_MS = 6000
"""Of transactions. A real broker that asks for one before its decision arrives goes on asking for it."""
RECEIVED_WITHIN_S = 120.0
CHECKED_EACH_MS = {"real": 4000, "trioha": 500}
CHECKED = ("open0", "open-third0")
"""What is committed by a master's checks."""


def consumer_offsets(broker: Broker) -> dict[int, int]:
    """The group's offsets by queue."""
    return {
        queue_id: offset
        for queue_id, offset in committed(broker.listen_address, GROUP, TOPIC).items()
        if offset
    }


def delay_offsets(broker: Broker) -> dict[str, int]:
    """How many messages of each delay level are delivered, as a master says it to its slaves."""
    return delivered(tables(broker.listen_address)[3])


def copied_delay_offsets(slave: Broker) -> dict[str, int]:
    """As a slave has them in its file. 4.9.7 loads them when it is started as a master, not before."""
    path = slave.root / "config" / "delayOffset.json"
    return delivered(parse_pretty(path.read_text())) if path.exists() else {}


def delivered(table: Any) -> dict[str, int]:
    return {level: offset for level, offset in table["offsetTable"].items() if offset}


@define
class MixedPair:
    """The stores of a real broker and of a trioha node, with the one master that clients find at a time."""

    java: JavaDriver
    start_node: StartNode
    folder: Path
    names: str
    term: int = -1
    """How many masters there were before this one."""
    delays: Counter[str] = field(factory=Counter)
    """Messages by delay level that are delivered."""
    ops: int = 0
    """Transactions that are decided."""

    def start_master(self, kind: str, *, checks: bool) -> Broker:
        """Start the broker of that kind, `real` or `trioha`, as the pair's master, and wait for its route."""
        self.term += 1
        times = {"transactionTimeOut": TIMEOUT_MS, "transactionCheckInterval": CHECKED_EACH_MS[kind]}
        master = self._start(kind, "ASYNC_MASTER", **(times if checks else NO_CHECKS))

        def is_registered() -> bool:
            if isinstance(master, JavaStore):
                master.register()
            return groups(self.names) == {"interop": {0: master.listen_address}}

        wait_until(is_registered, "the master is registered, and no other broker")
        wait_for_route(self.names, TOPIC if self.term else "TBW102")
        return master

    def hand_over(self, master: Broker, kind: str) -> None:
        """Start the other broker as slave, and stop both when it has the master's log and tables."""
        slave = self._start(kind, "SLAVE", ha_master_address=master.ha_address, **NO_CHECKS)
        consumers, delays = consumer_offsets(master), delay_offsets(master)

        def has_tables() -> bool:
            if isinstance(slave, JavaStore):
                slave.register()
                slave.sync_metadata()
            return consumer_offsets(slave) == consumers and copied_delay_offsets(slave) == delays

        wait_until(lambda: slave.max_offset == master.max_offset, "the slave has the log")
        wait_until(has_tables, f"the slave has {consumers}, {delays}")
        assert slave.max_offset == master.max_offset
        for broker in (master, slave):
            if isinstance(broker, JavaStore):
                broker.shutdown()
            else:
                broker.stop()

    def _start(self, kind: str, role: str, **settings: Any) -> Broker:
        settings |= {
            "role": role,
            "namesrvAddr": self.names,
            "messageDelayLevel": DELAY_LEVELS[self.term],
        }
        if kind == "real" and is_5(self.java.version):
            # Decisions of the same interval share a record, and records are counted here.
            settings["transactionOpBatchInterval"] = 1
        if kind == "trioha":
            # RocketMQ's slaves ask for topics at the listenPort - 2, which a node on port 0 does not have.
            return self.start_node(
                "trioha", listenPort=free_port(), flushDelayOffsetInterval=100, **QUICK, **settings
            )
        return self.java.open_broker(self.folder / "real", **settings)

    def send(self, prefix: str, *, delay_level: int = 0, number: int = 2 * QUEUES) -> Counter[str]:
        """Send messages, to each queue; their bodies."""
        said = self.java.produce(self.names, number, topic=TOPIC, prefix=prefix, delay_level=delay_level)
        assert said == {"SEND_OK": number}
        return expected(number, prefix)

    @contextmanager
    def transactions(self) -> Iterator[TransactionProducer]:
        """A producer of transactions, which answers the master's checks."""
        producer = TransactionProducer.start(self.java, self.names)
        yield producer
        producer.end()

    def decide(
        self, master: Broker, producer: TransactionProducer, prefix: str, decision: str
    ) -> Counter[str]:
        """A transaction that is decided at once, also in the log; what consumers get of it."""
        producer.send(1, topic=TOPIC, prefix=prefix, decision=decision)
        self.wait_for_decisions(master, 1)
        return expected(1, prefix) if decision == COMMIT else Counter()

    def wait_for_decisions(self, master: Broker, number: int) -> None:
        """Wait until so many more decisions are in the log. They are one-way requests."""
        self.ops += number
        wait_until(lambda: max_offset(master.listen_address, OPS) >= self.ops, f"{self.ops} decisions")

    def consume(self, master: Broker, wanted: Counter[str], *, delays: dict[str, int]) -> None:
        """The group receives exactly these messages, and commits its offsets; `delays` more are delivered."""
        consumer = self.java.consume(self.names, group=GROUP, topic=TOPIC)
        missing = wanted

        def has_all() -> bool:
            nonlocal missing
            missing = wanted - bodies(consumer.received(0))
            return not missing

        try:
            wait_until(has_all, "all messages of the group", within_s=RECEIVED_WITHIN_S)
        except AssertionError:
            raise AssertionError(f"{list(missing)} of {list(wanted)} are missing") from None
        self.delays.update(delays)
        wait_until(lambda: delay_offsets(master) == self.delays, f"{self.delays}: {delay_offsets(master)}")
        ends = {queue: end for queue, end in max_offsets(master.listen_address, TOPIC).items() if end}
        received = bodies(consumer.end())
        if isinstance(master, JavaStore):
            # It asks again at its next check, and commits again, where the first answer takes that long.
            received -= Counter({body: times - 1 for body, times in received.items() if body in CHECKED})
        wait_until(lambda: consumer_offsets(master) == ends, f"{ends}: {consumer_offsets(master)}")
        assert received == wanted


@pytest.mark.parametrize("first", ["real", pytest.param("trioha", marks=pytest.mark.nightly)])
def test_a_mixed_pair_that_exchanges_its_roles_twice_goes_on_where_it_was(
    java: JavaDriver, start_node: StartNode, tmp_path: Path, first: str
) -> None:
    second = {"real": "trioha", "trioha": "real"}[first]
    with trioha_name_server(tmp_path / "names") as names:
        pair = MixedPair(java, start_node, tmp_path, names)
        master = pair.start_master(first, checks=False)
        wanted = pair.send("plain") + pair.send("delayed", delay_level=1, number=2)
        pending = pair.send("pending", delay_level=2, number=2)
        with pair.transactions() as producer:
            wanted += pair.decide(master, producer, "committed", COMMIT)
            pair.decide(master, producer, "rolled-back", ROLLBACK)
            producer.send(1, topic=TOPIC, prefix="open", decision=UNKNOWN, decision_of_check=COMMIT)
        pair.consume(master, wanted, delays={"1": 2})
        unread = pair.send("unread")
        pair.hand_over(master, second)

        # The new master goes on: with what the group has not consumed, what was pending, what was open.
        master = pair.start_master(second, checks=True)
        with pair.transactions() as producer:
            wanted = unread + pending + expected(1, "open") + pair.send("second", delay_level=1, number=2)
            wanted += pair.decide(master, producer, "committed-second", COMMIT)
            pair.consume(master, wanted, delays={"1": 2, "2": 2})
            pair.wait_for_decisions(master, 1)
            assert set(bodies(producer.checks(1))) == {"open0"}
        pending = pair.send("pending-second", delay_level=3, number=2)
        unread = pair.send("unread-second")
        pair.hand_over(master, first)

        # And so does the first one with what has happened since.
        master = pair.start_master(first, checks=True)
        with pair.transactions() as producer:
            wanted = (
                unread + pending + pair.send("third", delay_level=1, number=2) + expected(1, "open-third")
            )
            producer.send(1, topic=TOPIC, prefix="open-third", decision=UNKNOWN, decision_of_check=COMMIT)
            pair.consume(master, wanted, delays={"1": 2, "3": 2})
            assert set(bodies(producer.checks(1))) == {"open-third0"}
