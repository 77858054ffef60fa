"""RocketMQ's own consumers go on with a trioha slave while their master is gone, and return to it.

Orderly consumers are not here: their locks of queues come from a master only, so they wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interop.java import JavaConsumer, JavaDriver
from tests.interop.rocketmq import VERSIONS
from tests.interop.steady import SteadyProducer
from tests.interop.test_clusters import (
    ENOUGH,
    POLLS,
    QUEUES,
    TOPIC,
    everything,
    max_offsets,
    running,
    started_pair,
)
from tests.interop.test_consumers import bodies
from tests.interop.test_name_servers import ask, groups, wait_until
from tests.node_process import TriohaNode
from trioha.remoting.codes import RequestCode, ResponseCode

pytestmark = [pytest.mark.interop, pytest.mark.process]

MODES = ("concurrent", "broadcast", "lite")
COMMITTED_WITHIN_S = 120.0
"""Consumers commit each 5 s, to the broker that their route has then."""


@pytest.fixture(scope="module", params=VERSIONS, ids=[f"rocketmq-{version}" for version in VERSIONS])
def rocket(
    request: pytest.FixtureRequest, rocketmq_of_this_run: dict[str, JavaDriver]
) -> Iterator[JavaDriver]:
    """A JVM with RocketMQ's clients, once for each version."""
    driver = rocketmq_of_this_run[request.param]
    yield driver
    driver.retire_stores()


def committed(address: str, group: str) -> dict[int, int]:
    """The group's offsets by queue, as a broker has them."""
    found = {}
    for queue_id in range(QUEUES):
        answer = ask(
            address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            consumerGroup=group,
            topic=TOPIC,
            queueId=str(queue_id),
        )
        if answer.code == ResponseCode.SUCCESS:
            found[queue_id] = int(answer.ext_fields["offset"])
    return found


def commit(address: str, group: str, offsets: Mapping[int, int]) -> None:
    """Set the group's offsets by queue."""
    for queue_id, offset in offsets.items():
        answer = ask(
            address,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup=group,
            topic=TOPIC,
            queueId=str(queue_id),
            commitOffset=str(offset),
        )
        assert answer.code == ResponseCode.SUCCESS, answer


def wait_for_offsets(broker: TriohaNode, group: str, ends: Mapping[int, int]) -> None:
    wait_until(
        lambda: committed(broker.listen_address, group) == ends,
        f"offsets {ends} of {group}\n{broker.log()}",
        within_s=COMMITTED_WITHIN_S,
    )


def places(messages: list[dict[str, Any]]) -> Counter[tuple[int, int]]:
    """How often each place of the queues was received."""
    return Counter((message["queueId"], message["queueOffset"]) for message in messages)


def test_consumers_go_on_at_the_slave_and_return_to_the_master(rocket: JavaDriver, tmp_path: Path) -> None:
    with started_pair(rocket, tmp_path) as pair, ExitStack() as later:
        names, slave = pair.name_server, pair.slave.listen_address
        producer = SteadyProducer.start(rocket, names, topic=TOPIC)

        def consume(group: str, mode: str = "concurrent") -> JavaConsumer:
            return rocket.consume(names, group=group, topic=TOPIC, mode=mode, **POLLS)

        consumers = {mode: consume(f"group-{mode}", mode) for mode in MODES}
        consumers |= {group: consume(group) for group in ("renewed", "absent")}
        for name, consumer in consumers.items():
            assert len(consumer.received(ENOUGH)) >= ENOUGH, (name, pair.master.log())
        committed_before = {mode: committed(pair.master.listen_address, f"group-{mode}") for mode in MODES}
        pair.master.kill()
        outcomes = producer.end()
        acknowledged = {body for body, outcome in outcomes.items() if outcome == "SEND_OK"}
        wait_until(lambda: groups(names) == {"interop": {1: slave}}, "the name server misses the master")

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
        commit(slave, "renewed", last)
        renewed = consume("renewed")
        assert places(renewed.received(QUEUES)) == Counter(last.items()), pair.slave.log()
        wait_for_offsets(pair.slave, "renewed", ends)
        consumers.pop("absent").end()

        # The master comes back at another port for clients: they go on there, and commit there.
        back = later.enter_context(
            running(tmp_path / "master", role="SYNC_MASTER", namesrvAddr=names, ha_port=pair.master.ha_port)
        )
        back.wait(connections=1)
        pair_is_back = {"interop": {0: back.listen_address, 1: slave}}
        wait_until(lambda: groups(names) == pair_is_back, "the pair is back")
        # No consumer of this group brings its offsets: the master has those from before it was killed.
        started_at = committed(back.listen_address, "absent")
        assert rocket.produce(names, 40, topic=TOPIC, prefix="later") == {"SEND_OK": 40}, back.log()
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
        assert set(bodies(messages)) <= set(outcomes) | set(new)
