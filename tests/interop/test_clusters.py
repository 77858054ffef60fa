"""RocketMQ's own clients on clusters: trioha beside a real broker, a sync pair, a master that is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from tests.interop.java import JavaConsumer, JavaDriver, JavaError, JavaStore
from tests.interop.name_server import name_server
from tests.interop.rocketmq import VERSIONS
from tests.interop.steady import POLL_MS, SteadyProducer
from tests.interop.test_consumers import bodies, expected
from tests.interop.test_name_servers import ask, groups, trioha_name_server, wait_until
from tests.node_process import SLAVE_TIMEOUT_MS, TriohaNode, wait_dispatched
from tests.ports import free_port
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.fastjson import parse_json

pytestmark = [pytest.mark.interop, pytest.mark.process]

MODES = ("concurrent", "orderly", "broadcast", "lite")
TOPIC = "TopicOfCluster"
QUEUES = 4
FIRST_SENDS = 32
ATTEMPTS = 5
COPIES = {"trioha.metadataSyncFirst": 100, "trioha.metadataSyncPeriod": 1000}
"""The slave has no topic of its own: it copies topics, groups and offsets, each second."""
POLLS = {"pollNameServerInterval": POLL_MS, "heartbeatBrokerInterval": POLL_MS}
ENOUGH = 150
"""Messages that are acknowledged before a fault, and after it."""


@pytest.fixture(scope="module", params=VERSIONS, ids=[f"rocketmq-{version}" for version in VERSIONS])
def rocket(
    request: pytest.FixtureRequest, rocketmq_of_this_run: dict[str, JavaDriver]
) -> Iterator[JavaDriver]:
    """A JVM with real RocketMQ, once for each version; its brokers live for all tests of that version."""
    driver = rocketmq_of_this_run[request.param]
    yield driver
    driver.retire_stores()


@contextmanager
def running(root: Path, **settings: Any) -> Iterator[TriohaNode]:
    node = TriohaNode(root, **settings)
    try:
        yield node
    finally:
        if node.is_running:
            node.kill()


def queue_datas(address: str, topic: str) -> dict[str, Any]:
    """The topic's queues by broker, as a name server knows them; none if it has no route."""
    answer = ask(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return {}
    route = parse_json(answer.body)
    assert isinstance(route, dict), answer
    return {queues["brokerName"]: queues for queues in route["queueDatas"]}


def max_offsets(address: str, topic: str) -> dict[int, int]:
    """Ends of the topic's queues, which have all that is in the broker's log now."""
    wait_dispatched(address)
    return {
        queue_id: int(
            ask(address, RequestCode.GET_MAX_OFFSET, topic=topic, queueId=str(queue_id)).ext_fields["offset"]
        )
        for queue_id in range(QUEUES)
    }


def assert_order_within_queues(messages: Sequence[Mapping[str, Any]]) -> None:
    """A queue's messages came in its order; what came again does not count."""
    last: dict[tuple[str, int], int] = {}
    seen: set[tuple[str, int, int]] = set()
    for message in messages:
        place = (message["broker"], message["queueId"])
        if (*place, message["queueOffset"]) in seen:
            continue
        seen.add((*place, message["queueOffset"]))
        assert last.get(place, -1) < message["queueOffset"], (place, message)
        last[place] = message["queueOffset"]


# -- trioha and a real broker in one cluster ---------------------------------------------------------------


@frozen
class MixedCluster:
    """A trioha broker and a real one that are registered with a real name server and with trioha's."""

    rocket: JavaDriver
    ours: TriohaNode
    theirs: JavaStore
    name_servers: Mapping[str, str]
    first_sends: Mapping[str, int]
    """Statuses of the sends that made the topic."""

    def offsets(self) -> dict[str, int]:
        """How many messages of the topic each broker has."""
        return {
            broker: sum(max_offsets(address, TOPIC).values())
            for broker, address in (
                ("broker-t", self.ours.listen_address),
                ("broker-r", self.theirs.listen_address),
            )
        }


def wait_for_route(address: str, topic: str) -> None:
    """Wait until a name server has the topic on both brokers of the mixed cluster."""

    def is_whole() -> bool:
        return set(queue_datas(address, topic)) == {"broker-t", "broker-r"}

    wait_until(is_whole, f"both brokers have {topic}")


def opened_broker(rocket: JavaDriver, folder: Path, **settings: object) -> JavaStore:
    """A real broker. It needs three ports in a row, of which another process may take one meanwhile."""
    for attempt in range(ATTEMPTS):
        try:
            return rocket.open_broker(folder / f"theirs-{attempt}", **settings)
        except JavaError as error:
            if "BindException" not in str(error) or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError("not reached")


@pytest.fixture(scope="module")
def mixed(rocket: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    folder = tmp_path_factory.mktemp("mixed")
    with ExitStack() as stack:
        servers = {
            "real": stack.enter_context(name_server(rocket.version, folder=folder / "real-names")),
            "trioha": stack.enter_context(trioha_name_server(folder / "trioha-names")),
        }
        both = ";".join(servers.values())
        ours = stack.enter_context(
            running(folder / "ours", role="ASYNC_MASTER", namesrvAddr=both, brokerName="broker-t")
        )
        theirs = opened_broker(rocket, folder, role="ASYNC_MASTER", namesrvAddr=both, brokerName="broker-r")
        addresses = {"broker-t": {0: ours.listen_address}, "broker-r": {0: theirs.listen_address}}
        for address in servers.values():
            wait_until(lambda: groups(address) == addresses, "both brokers are registered")  # noqa: B023
            wait_for_route(address, "TBW102")
        sent = rocket.produce(servers["real"], FIRST_SENDS, topic=TOPIC, prefix="first")
        for address in servers.values():
            wait_for_route(address, TOPIC)
        yield MixedCluster(rocket, ours, theirs, servers, sent)


def test_first_sends_spread_a_topic_over_a_real_and_a_trioha_broker(mixed: MixedCluster) -> None:
    assert mixed.first_sends == {"SEND_OK": FIRST_SENDS}
    assert sum(mixed.offsets().values()) >= FIRST_SENDS
    assert all(mixed.offsets().values()), mixed.offsets()
    for address in mixed.name_servers.values():
        assert {queues["writeQueueNums"] for queues in queue_datas(address, TOPIC).values()} == {QUEUES}


@pytest.mark.parametrize("mode", MODES)
def test_a_consumer_gets_every_message_of_both_brokers_once(mixed: MixedCluster, mode: str) -> None:
    before = mixed.offsets()
    consumers = {
        kind: mixed.rocket.consume(address, group=f"{mode}-{kind}", topic=TOPIC, mode=mode)
        for kind, address in mixed.name_servers.items()
    }
    for kind, address in mixed.name_servers.items():
        prefix = f"{mode}-{kind}-"
        assert mixed.rocket.produce(address, 16, topic=TOPIC, prefix=prefix) == {"SEND_OK": 16}
    after = mixed.offsets()
    assert sum(after.values()) == sum(before.values()) + 32
    for consumer in consumers.values():
        messages = consumer.received(sum(after.values()))
        assert Counter(message["broker"] for message in messages) == after, mixed.ours.log()
        assert {body: count for body, count in bodies(messages).items() if count > 1} == {}
        new = [message for message in messages if message["body"].startswith(f"{mode}-")]
        assert bodies(new) == expected(16, f"{mode}-real-") + expected(16, f"{mode}-trioha-")
        if mode == "orderly":
            assert_order_within_queues(messages)
        consumer.end()


# -- a sync pair ---------------------------------------------------------------------------------------------


@frozen
class Pair:
    """A SYNC_MASTER and its slave under a trioha name server."""

    rocket: JavaDriver
    master: TriohaNode
    slave: TriohaNode
    name_server: str


def make_topic(master: TriohaNode) -> None:
    """Make the topic, as an administrator makes it: with a fixed number of queues, and at the master only."""
    fields = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    answer = ask(master.listen_address, RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer


def has_topic(slave: TriohaNode) -> bool:
    answer = ask(slave.listen_address, RequestCode.GET_ALL_TOPIC_CONFIG)
    return f'"{TOPIC}"'.encode() in bytes(answer.body)


@contextmanager
def started_pair(rocket: JavaDriver, folder: Path) -> Iterator[Pair]:
    with (
        trioha_name_server(folder / "names") as names,
        # A port that is still free when a test starts the master again.
        running(
            folder / "master",
            role="SYNC_MASTER",
            namesrvAddr=names,
            ha_port=free_port(),
            slaveTimeout=SLAVE_TIMEOUT_MS,
        ) as master,
        running(folder / "slave", role="SLAVE", namesrvAddr=names, **COPIES) as slave,
    ):
        master.wait(connections=1)
        make_topic(master)
        wait_until(lambda: has_topic(slave), "the slave has its master's topics")
        both = {"interop": {0: master.listen_address, 1: slave.listen_address}}
        wait_until(lambda: groups(names) == both, "the pair is registered")
        wait_until(lambda: set(queue_datas(names, TOPIC)) == {"interop"}, "the topic is registered")
        yield Pair(rocket, master, slave, names)


@pytest.fixture(scope="module")
def pair(rocket: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with started_pair(rocket, tmp_path_factory.mktemp("pair")) as started:
        yield started


@pytest.mark.parametrize("mode", MODES)
def test_a_consumer_of_a_sync_pair_gets_what_the_slave_has(pair: Pair, mode: str) -> None:
    present = sum(max_offsets(pair.master.listen_address, TOPIC).values())
    assert pair.rocket.produce(pair.name_server, 20, topic=TOPIC, prefix=f"{mode}-old") == {"SEND_OK": 20}
    consumer = pair.rocket.consume(pair.name_server, group=f"group-{mode}", topic=TOPIC, mode=mode)
    assert len(consumer.received(present + 20)) == present + 20, pair.master.log()
    assert pair.rocket.produce(pair.name_server, 20, topic=TOPIC, prefix=f"{mode}-new") == {"SEND_OK": 20}
    # Every send that was SEND_OK is in the slave's log at that moment.
    assert pair.slave.max_offset == pair.master.max_offset
    messages = consumer.received(present + 40)
    assert {body: count for body, count in bodies(messages).items() if count > 1} == {}
    of_mode = [message for message in messages if message["body"].startswith(mode)]
    assert bodies(of_mode) == expected(20, f"{mode}-old") + expected(20, f"{mode}-new"), pair.master.log()
    if mode == "orderly":
        assert_order_within_queues(messages)
    consumer.end()
    assert max_offsets(pair.slave.listen_address, TOPIC) == max_offsets(pair.master.listen_address, TOPIC)


# -- the master is killed, its slave promoted ----------------------------------------------------------------


def test_consumers_go_on_with_a_promoted_slave_and_miss_nothing(rocket: JavaDriver, tmp_path: Path) -> None:
    with started_pair(rocket, tmp_path) as pair, ExitStack() as later:
        names = pair.name_server
        producer = SteadyProducer.start(rocket, names, topic=TOPIC)
        consumers = {
            mode: rocket.consume(names, group=f"group-{mode}", topic=TOPIC, mode=mode, **POLLS)
            for mode in MODES
        }
        # Every consumer is in the middle of its queues.
        for mode, consumer in consumers.items():
            assert len(consumer.received(ENOUGH)) >= ENOUGH, (mode, pair.master.log())
        pair.master.kill()
        before = producer.acknowledged()
        assert before >= ENOUGH
        pair.slave.stop()
        promoted = later.enter_context(running(tmp_path / "slave", role="ASYNC_MASTER", namesrvAddr=names))
        assert producer.acknowledged(before + ENOUGH) >= before + ENOUGH, promoted.log()
        outcomes = producer.end()
        acknowledged = {body for body, outcome in outcomes.items() if outcome == "SEND_OK"}
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
        assert set(bodies(messages)) <= set(outcomes)
    assert_order_within_queues(received["orderly"])


def everything(
    consumer: JavaConsumer, acknowledged: set[str], ends: Mapping[int, int], *, what: str
) -> list[dict[str, Any]]:
    """What a consumer has received, once it has all that was acknowledged and every place of the queues.

    It may get more messages than there are places: those that it gets again.
    """
    places = {(queue_id, offset) for queue_id, end in ends.items() for offset in range(end)}
    messages: list[dict[str, Any]] = []

    def is_whole() -> bool:
        messages[:] = consumer.received(0)
        had = {(message["queueId"], message["queueOffset"]) for message in messages}
        return places <= had and acknowledged <= set(bodies(messages))

    try:
        # A pull that 4.9.7 sent to a broker that was killed ends after 30 s; queues are locked each 20 s.
        wait_until(is_whole, what)
    except AssertionError as late:
        had = {(message["queueId"], message["queueOffset"]) for message in messages}
        lost = sorted(acknowledged - set(bodies(messages)))
        raise AssertionError(f"lost {lost}, skipped {sorted(places - had)}: {late}") from None
    return messages
