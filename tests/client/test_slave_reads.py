"""A consumer whose master is gone reads from the slave and returns; in virtual time."""

import pytest
import trio

from tests.client.fakes import FakeNameServer, ServedBroker, fake_cluster, opened, route_body
from tests.client.test_consumer import FIRST, TOPIC, bodies, receive
from trioha.client.consumer import COMMIT_INTERVAL_S, Consumer, ConsumerSettings
from trioha.client.failed_brokers import AVOID_S, FAILED_MAX, FailedBrokers
from trioha.client.routes import REFRESH_INTERVAL_S
from trioha.errors import PeerError
from trioha.remoting.codes import RequestCode

MASTER, SLAVE = "broker-a:10911", "slave-a:10911"
GROUP = ConsumerSettings(TOPIC, group="g", start_at=FIRST)


class Pair:
    """A master and a slave with the same messages behind one name server."""

    def __init__(self, fake, name_server, master, slave):
        self.fake, self.name_server = fake, name_server
        self.master, self.slave = master, slave

    def put(self, *messages):
        """Messages that are replicated at once."""
        for broker in (self.master, self.slave):
            broker.put(*messages)

    def route(self, *ids):
        """What the name server answers from now on: the brokers with these ids."""
        addresses = {number: (MASTER, SLAVE)[number] for number in ids}
        self.name_server.topics[TOPIC] = route_body({"broker-a": 1}, brokers={"broker-a": addresses})

    def lose_master(self):
        self.fake.down.add(MASTER)
        self.fake.cut(MASTER)

    def pulls(self):
        """Number of pulls at master and slave."""
        return self.master.count(RequestCode.PULL_MESSAGE), self.slave.count(RequestCode.PULL_MESSAGE)


@pytest.fixture
async def pair(tmp_path):
    name_server = FakeNameServer()
    async with fake_cluster(ns=name_server) as fake, trio.open_nursery() as nursery:
        pair = Pair(
            fake, name_server, ServedBroker(tmp_path / "m"), ServedBroker(tmp_path / "s", role="SLAVE")
        )
        pair.master.attach(fake, nursery, MASTER)
        pair.slave.attach(fake, nursery, SLAVE)
        pair.route(0, 1)
        yield pair
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("is_noticed", [True, False])
async def test_a_consumer_reads_from_the_slave_while_its_master_is_gone(pair, autojump_clock, is_noticed):
    """Also before the name server has noticed that the master is gone."""
    async with opened(pair.fake) as cluster, Consumer(cluster, GROUP) as consumer:
        pair.put(b"0", b"1")
        assert bodies(await receive(consumer, 2)) == [b"0", b"1"]
        assert pair.pulls()[1] == 0
        pair.lose_master()
        if is_noticed:
            pair.route(1)
        await trio.sleep(5)
        pair.put(b"2")
        with trio.fail_after(AVOID_S):
            assert bodies(await receive(consumer, 1)) == [b"2"]
        at_master = pair.pulls()[0]
        for number in range(3, 20):
            await trio.sleep(7)
            pair.put(b"%d" % number)
            with trio.fail_after(2):
                assert bodies(await receive(consumer, 1)) == [b"%d" % number]
        assert pair.pulls()[0] == at_master
        # The master is back.
        pair.fake.down.clear()
        pair.route(0, 1)
        await trio.sleep(REFRESH_INTERVAL_S + 20)
        _, at_slave = pair.pulls()
        pair.put(b"20")
        assert bodies(await receive(consumer, 1)) == [b"20"]
        await trio.sleep(60)
        assert pair.pulls()[1] == at_slave
        assert pair.pulls()[0] > at_master


async def test_offsets_are_committed_at_the_slave_and_again_at_the_master_that_is_back(pair, autojump_clock):
    async with opened(pair.fake) as cluster, Consumer(cluster, GROUP) as consumer:
        pair.put(b"0", b"1")
        await receive(consumer, 2)
        await trio.sleep(COMMIT_INTERVAL_S + 1)
        assert (pair.master.committed("g", 0), pair.slave.committed("g", 0)) == (2, None)
        pair.lose_master()
        pair.route(1)
        await trio.sleep(5)
        pair.put(b"2")
        await receive(consumer, 1)
        await trio.sleep(COMMIT_INTERVAL_S + 1)
        assert (pair.master.committed("g", 0), pair.slave.committed("g", 0)) == (2, 3)
        pair.fake.down.clear()
        pair.route(0, 1)
        # Nothing new is consumed, and yet the master learns it.
        await trio.sleep(REFRESH_INTERVAL_S + AVOID_S + 2 * COMMIT_INTERVAL_S)
        assert pair.master.committed("g", 0) == 3


async def test_a_master_that_starts_again_gets_the_offset_again(pair, autojump_clock):
    async with opened(pair.fake) as cluster, Consumer(cluster, GROUP) as consumer:
        pair.put(b"0")
        await receive(consumer, 1)
        await trio.sleep(COMMIT_INTERVAL_S + 1)
        # The last commits were not on its disk.
        pair.master.broker.metadata.consumer_offsets.commit("g", TOPIC, 0, 0)
        pair.lose_master()
        await trio.sleep(3)
        pair.fake.down.clear()
        await trio.sleep(AVOID_S + REFRESH_INTERVAL_S)
        assert pair.master.committed("g", 0) == 1


async def test_a_consumer_that_starts_without_the_master_continues_at_the_slaves_offset(pair, autojump_clock):
    pair.put(b"0", b"1", b"2")
    pair.slave.broker.metadata.consumer_offsets.commit("g", TOPIC, 0, 1)
    pair.lose_master()
    pair.route(1)
    async with opened(pair.fake) as cluster, Consumer(cluster, GROUP) as consumer:
        assert bodies(await receive(consumer, 2)) == [b"1", b"2"]
    assert pair.slave.committed("g", 0) == 3


async def test_a_message_is_sent_back_to_a_master_only(pair, autojump_clock):
    async with opened(pair.fake) as cluster, Consumer(cluster, GROUP) as consumer:
        pair.put(b"0")
        (message,) = await receive(consumer, 1, acknowledge=False)
        pair.lose_master()
        pair.route(1)
        await cluster.routes.fetch(TOPIC)
        with pytest.raises(PeerError, match="has no master"):
            await consumer.send_back(message)
        assert pair.slave.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 0


async def test_a_consumer_that_is_ahead_of_the_slave_waits_and_misses_nothing(pair, autojump_clock):
    async with opened(pair.fake) as cluster:
        pair.slave.broker.is_connected = False
        async with Consumer(cluster, GROUP) as consumer:
            pair.put(b"0")
            pair.master.put(b"1")
            assert bodies(await receive(consumer, 2)) == [b"0", b"1"]
            pair.lose_master()
            pair.route(1)
            await trio.sleep(60)
            # Held pulls, not thousands.
            assert pair.pulls()[1] <= 6
            pair.slave.put(b"1")
            pair.put(b"2")
            assert bodies(await receive(consumer, 1)) == [b"2"]


async def test_failed_brokers_are_avoided_for_10_virtual_seconds(autojump_clock):
    failed = FailedBrokers()
    failed.add("a:1")
    assert "a:1" in failed
    assert "b:1" not in failed
    await trio.sleep(AVOID_S)
    assert "a:1" not in failed
    for number in range(2 * FAILED_MAX):
        failed.add(f"h:{number}")
    assert len(failed._until_s) == FAILED_MAX
