"""RocketMQ's own clients on a sync pair of trioha nodes that loses its master.

Its slave is promoted, or serves them until the master is back. Orderly consumers have no part in the second:
their locks of queues come from a master only, so they wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import frozen

from tests.interop.asking import (
    QUEUES,
    ask,
    commit,
    committed,
    make_topic,
    max_offsets,
    wait_for_groups,
    wait_for_route,
)
from tests.interop.java import JavaConsumer, JavaDriver
from tests.interop.messages import assert_order_within_queues, bodies, everything, places
from tests.interop.name_server import trioha_name_server
from tests.interop.timed import TimedProducer
from tests.interop.world import running
from tests.node_process import SLAVE_TIMEOUT_MS, TriohaNode
from tests.ports import free_port
from tests.waiting import wait_until
from trioha.remoting.codes import RequestCode

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TOPIC = "TopicOfCluster"
COPIES = {"trioha.metadataSyncFirst": 100, "trioha.metadataSyncPeriod": 1000}
"""The slave has no topic of its own: it copies topics, groups and offsets, each second."""
ENOUGH = 150
"""Messages that are acknowledged before a fault, and after it."""
MODES = ("concurrent", "broadcast", "lite")
COMMITTED_WITHIN_S = 120.0


@frozen
class Pair:
    """A SYNC_MASTER and its slave under a trioha name server."""

    master: TriohaNode
    slave: TriohaNode
    name_server: str


def has_topic(slave: TriohaNode) -> bool:
    answer = ask(slave.listen_address, RequestCode.GET_ALL_TOPIC_CONFIG)
    return f'"{TOPIC}"'.encode() in bytes(answer.body)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with (
        trioha_name_server(tmp_path / "names") as names,
        # A port that is still free when a test starts the master again.
        running(
            tmp_path / "master",
            role="SYNC_MASTER",
            namesrvAddr=names,
            ha_port=free_port(),
            slaveTimeout=SLAVE_TIMEOUT_MS,
        ) as master,
        running(tmp_path / "slave", role="SLAVE", namesrvAddr=names, **COPIES) as slave,
    ):
        master.wait(connections=1)
        make_topic(master.listen_address, TOPIC)
        wait_until(lambda: has_topic(slave), "the slave has its master's topics")
        wait_for_groups(names, {"interop": {0: master.listen_address, 1: slave.listen_address}})
        wait_for_route(names, TOPIC)
        yield Pair(master, slave, names)


def test_consumers_go_on_with_a_promoted_slave_and_miss_nothing(
    java: JavaDriver, pair: Pair, tmp_path: Path
) -> None:
    with ExitStack() as later:
        names = pair.name_server
        producer = TimedProducer.start(java, names, topic=TOPIC)
        consumers = {
            mode: java.consume(names, group=f"group-{mode}", topic=TOPIC, mode=mode)
            for mode in (*MODES, "orderly")
        }
        # Every consumer is in the middle of its queues.
        for mode, consumer in consumers.items():
            assert len(consumer.received(ENOUGH)) >= ENOUGH, (mode, pair.master.log())
        pair.master.kill()
        before = producer.accepted()
        assert before >= ENOUGH
        pair.slave.stop()
        promoted = later.enter_context(running(tmp_path / "slave", role="ASYNC_MASTER", namesrvAddr=names))
        assert producer.accepted(number=before + ENOUGH) >= before + ENOUGH, promoted.log()
        sent = producer.end()
        acknowledged = {one.body for one in sent if one.is_ok}
        ends = max_offsets(promoted.listen_address, TOPIC)
        received = {
            mode: everything(consumer, acknowledged, ends, what=f"{mode}\n{promoted.log()}")
            for mode, consumer in consumers.items()
        }
        for consumer in consumers.values():
            consumer.end()
    for mode, messages in received.items():
        print(f"{mode}: {len(messages)} messages, {len(messages) - len(bodies(messages))} of them again")
        # None is made up, and none comes from a place where another message is now.
        assert set(bodies(messages)) <= {one.body for one in sent}
    assert_order_within_queues(received["orderly"])


def wait_for_offsets(broker: TriohaNode, group: str, ends: Mapping[int, int]) -> None:
    wait_until(
        lambda: committed(broker.listen_address, group, TOPIC) == ends,
        f"offsets {ends} of {group}\n{broker.log()}",
        within_s=COMMITTED_WITHIN_S,
    )


def test_consumers_go_on_at_the_slave_and_return_to_the_master(
    java: JavaDriver, pair: Pair, tmp_path: Path
) -> None:
    with ExitStack() as later:
        names, slave = pair.name_server, pair.slave.listen_address
        producer = TimedProducer.start(java, names, topic=TOPIC)

        def consume(group: str, mode: str = "concurrent") -> JavaConsumer:
            return java.consume(names, group=group, topic=TOPIC, mode=mode)

        consumers = {mode: consume(f"group-{mode}", mode) for mode in MODES}
        consumers |= {group: consume(group) for group in ("renewed", "absent")}
        for name, consumer in consumers.items():
            assert len(consumer.received(ENOUGH)) >= ENOUGH, (name, pair.master.log())
        committed_before = {
            mode: committed(pair.master.listen_address, f"group-{mode}", TOPIC) for mode in MODES
        }
        pair.master.kill()
        sent = producer.end()
        acknowledged = {one.body for one in sent if one.is_ok}
        wait_for_groups(names, {"interop": {1: slave}})

        # What is on the slave is received from it: all that was SEND_OK, and each place of its queues.
        ends = max_offsets(slave, TOPIC)
        for name, consumer in consumers.items():
            everything(consumer, acknowledged, ends, what=f"{name}\n{pair.slave.log()}")
        # Clients of both versions commit to a slave when their route has no master.
        for group in ("group-concurrent", "renewed", "absent"):
            wait_for_offsets(pair.slave, group, ends)

        # A consumer that starts now goes on with the offsets at the slave: it gets what lies after them
        # again, and nothing else. Here they are one message behind in each queue.
        consumers.pop("renewed").end()
        last = {queue_id: end - 1 for queue_id, end in ends.items()}
        commit(slave, "renewed", TOPIC, last)
        renewed = consume("renewed")
        assert places(renewed.received(QUEUES)) == Counter(last.items()), pair.slave.log()
        wait_for_offsets(pair.slave, "renewed", ends)
        consumers.pop("absent").end()

        # The master comes back at another port for clients: they go on there, and commit there.
        back = later.enter_context(
            running(tmp_path / "master", role="SYNC_MASTER", namesrvAddr=names, ha_port=pair.master.ha_port)
        )
        back.wait(connections=1)
        wait_for_groups(names, {"interop": {0: back.listen_address, 1: slave}})
        # No consumer of this group brings its offsets: the master has those from before it was killed.
        started_at = committed(back.listen_address, "absent", TOPIC)
        assert java.produce(names, 40, topic=TOPIC, prefix="later") == {"SEND_OK": 40}, back.log()
        ends_now = max_offsets(back.listen_address, TOPIC)
        received = {
            name: everything(consumer, set(), ends_now, what=f"{name}\n{back.log()}")
            for name, consumer in consumers.items()
        }
        for group in ("group-concurrent", "renewed"):
            wait_for_offsets(back, group, ends_now)
        # What it has consumed at the slave comes again, and no more than that.
        comes = [
            (queue_id, offset)
            for queue_id, end in ends_now.items()
            for offset in range(started_at.get(queue_id, 0), end)
        ]
        absent = consume("absent")
        assert places(absent.received(len(comes))) == Counter(comes), back.log()
        print(f"a group without a consumer when the master returned: {len(comes) - 40} messages came again")
        for consumer in (*consumers.values(), renewed, absent):
            consumer.end()
    for name, messages in received.items():
        new = [body for body in bodies(messages) if body.startswith("later")]
        assert len(new) == 40, name
        # A consumer that runs all the time knows where it is: its offsets go with it to the slave and back.
        again = {place: count for place, count in places(messages).items() if count > 1}
        print(f"{name}: {len(messages)} messages, of these again {again}")
        # What comes again lies after the offsets that were committed before the master was killed.
        assert all(offset >= committed_before[name].get(queue_id, 0) for queue_id, offset in again), name
        assert set(bodies(messages)) <= {one.body for one in sent} | set(new)
