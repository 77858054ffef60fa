"""What a slave answers consumers, and where consumers are sent to read; in virtual time."""

import pytest
import trio

from tests.broker.consuming import GROUP, TOPIC, Broker, Waiting, bodies_of
from tests.ha.support import settled
from tests.store.support import message
from trioha.broker.pull_processor import DISPATCH_S, memory_bytes
from trioha.broker.slave_reads import REPEAT_S
from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.metadata.groups import SubscriptionGroup
from trioha.node.consumers import pull_settings
from trioha.remoting.codes import RequestCode, ResponseCode

SUSPEND = 2 | 4
QUEUE = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}


class Slave(Broker):
    """A slave whose connection to its master is up or down."""

    def __init__(self, tmp_path, **settings):
        super().__init__(tmp_path, role="SLAVE", **settings)
        self.is_connected = False


@pytest.fixture
async def slave(tmp_path, nursery):
    slave = Slave(tmp_path)
    nursery.start_soon(slave.consumers.run)
    await settled()
    return slave


def suggested(answer):
    return int(answer.ext_fields["suggestWhichBrokerId"])


# -- offsets that the slave does not have --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "queue_id", "status"),
    [
        (9, 0, "OFFSET_OVERFLOW_BADLY"),
        (-1, 0, "OFFSET_TOO_SMALL"),
        (5, 1, "NO_MATCHED_LOGIC_QUEUE"),
    ],
)
@pytest.mark.parametrize(("is_connected", "waited_s"), [(False, 15.0), (True, REPEAT_S)])
async def test_a_pull_for_what_only_the_master_may_have_is_held_and_repeated(  # noqa: PLR0917
    slave, nursery, autojump_clock, offset, queue_id, status, is_connected, waited_s
):
    slave.put(b"a")
    slave.is_connected = is_connected
    start_s = trio.current_time()
    waiting = Waiting(nursery)
    waiting.add("pull", slave.pull(queueOffset=offset, queueId=queue_id, sysFlag=SUSPEND))
    await trio.sleep(20)
    answer, at_s = waiting.answers["pull"]
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, status)
    assert (answer.ext_fields["nextBeginOffset"], suggested(answer)) == (str(offset), 0)
    assert at_s - start_s == pytest.approx(waited_s)


async def test_a_pull_ahead_of_a_slave_gets_the_message_when_it_arrives(slave, nursery, autojump_clock):
    slave.put(b"a")
    waiting = Waiting(nursery)
    waiting.add("pull", slave.pull(queueOffset=3, sysFlag=SUSPEND))
    await trio.sleep(3)
    slave.put(b"b", b"c")
    await settled()
    assert waiting.answers == {}
    slave.put(b"d")
    await settled()
    answer, _ = waiting.answers["pull"]
    assert (answer.code, bodies_of(answer)) == (ResponseCode.SUCCESS, [b"d"])


async def test_a_slave_at_its_end_holds_a_pull_whether_or_not_it_is_connected(slave, nursery, autojump_clock):
    slave.put(b"a")
    start_s = trio.current_time()
    for is_connected in (False, True):
        slave.is_connected = is_connected
        waiting = Waiting(nursery)
        waiting.add("end", slave.pull(queueOffset=1, sysFlag=SUSPEND))
        waiting.add("new queue", slave.pull(queueId=3, sysFlag=SUSPEND))
        await trio.sleep(15)
        await settled()
        for answer, at_s in waiting.answers.values():
            assert (answer.code, at_s) == (ResponseCode.PULL_NOT_FOUND, start_s + 15)
        start_s = trio.current_time()
        assert len(waiting.answers) == 2


async def test_a_master_corrects_offsets_at_once(tmp_path):
    broker = Broker(tmp_path)
    broker.put(b"a")
    assert broker.pull(queueOffset=9, sysFlag=SUSPEND).code == ResponseCode.PULL_OFFSET_MOVED


@pytest.fixture
async def undispatched(tmp_path, nursery):
    """A master with one message in its queue, and two more in its log."""
    broker = Broker(tmp_path)
    nursery.start_soon(broker.consumers.run)
    await settled()
    broker.put(b"a")
    for body in (b"b", b"c"):
        broker.store.commit_log.append(message(body, topic=TOPIC, queue_id=0, properties=b""))
    return broker


async def test_a_consumer_that_comes_from_a_slave_waits_until_its_master_has_dispatched(
    undispatched, nursery, autojump_clock
):
    waiting = Waiting(nursery)
    waiting.add("pull", undispatched.pull(queueOffset=2, sysFlag=SUSPEND))
    await settled()
    assert waiting.answers == {}
    undispatched.put()
    await settled()
    answer, _ = waiting.answers["pull"]
    assert (answer.code, bodies_of(answer)) == (ResponseCode.SUCCESS, [b"c"])


async def test_an_offset_that_a_master_does_not_have_is_corrected_when_it_has_dispatched(
    undispatched, nursery, autojump_clock
):
    start_s = trio.current_time()
    waiting = Waiting(nursery)
    for offset in (9, 10):
        waiting.add(offset, undispatched.pull(queueOffset=offset, sysFlag=SUSPEND))
    undispatched.put()
    await settled()
    assert {answer.code for answer, _ in waiting.answers.values()} == {ResponseCode.PULL_OFFSET_MOVED}
    assert {at_s for _, at_s in waiting.answers.values()} == {start_s}


async def test_a_master_that_does_not_dispatch_corrects_an_offset_after_a_second(
    undispatched, nursery, autojump_clock
):
    start_s = trio.current_time()
    waiting = Waiting(nursery)
    waiting.add("pull", undispatched.pull(queueOffset=9, sysFlag=SUSPEND))
    await trio.sleep(5)
    answer, at_s = waiting.answers["pull"]
    assert (answer.code, at_s) == (ResponseCode.PULL_OFFSET_MOVED, start_s + DISPATCH_S)


# -- where consumers read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [None, "SLAVE"])
@pytest.mark.parametrize(("slave_read", "percent", "expected"), [(False, 0, 0), (True, 0, 3), (True, 40, 2)])
async def test_a_group_that_lags_far_reads_elsewhere(tmp_path, role, slave_read, percent, expected):
    settings = {} if role is None else {"role": role}
    broker = Broker(
        tmp_path, slave_read_enable=slave_read, access_message_in_memory_max_ratio=percent, **settings
    )
    broker.metadata.groups.put(SubscriptionGroup(GROUP, broker_id=2, which_broker_when_consume_slowly=3))
    broker.put(b"a", b"b", tag="x")
    assert suggested(broker.pull()) == expected
    # A group that wants none of the messages lags as far.
    missed = broker.pull(subscription="y")
    assert (missed.remark, suggested(missed)) == ("NO_MATCHED_MESSAGE", expected)
    # At the end of the queue it does not lag.
    assert suggested(broker.pull(queueOffset=2)) == (2 if slave_read else 0)


@pytest.mark.parametrize(
    ("role", "percent", "expected"),
    [
        (BrokerRole.SYNC_MASTER, 40, 40),
        (BrokerRole.SLAVE, 40, 30),
        (BrokerRole.SLAVE, 10, 0),
        (BrokerRole.SLAVE, 3, 0),
    ],
)
def test_a_slave_counts_messages_as_old_at_10_percent_of_memory_less(tmp_path, role, percent, expected):
    config = BrokerConfig(
        store_path_root_dir=tmp_path, broker_role=role, access_message_in_memory_max_ratio=percent
    )
    assert pull_settings(config).recent_bytes == memory_bytes(expected)


# -- groups and offsets --------------------------------------------------------------------------------------


async def test_a_slave_serves_groups_that_it_does_not_have_and_makes_none(slave):
    slave.put(b"a")
    groups = dict(slave.metadata.groups.entries)
    changes = slave.metadata.groups.changes.offset
    assert bodies_of(slave.pull(consumerGroup="new")) == [b"a"]
    await slave.heartbeat(group="newer")
    assert (await slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, QUEUE)).ext_fields == {"offset": "0"}
    assert slave.metadata.groups.entries == groups
    assert slave.metadata.groups.changes.offset == changes


async def test_a_slave_keeps_the_offsets_of_groups_that_it_does_not_have(slave):
    slave.put(b"a", b"b")
    fields = {**QUEUE, "consumerGroup": "new", "commitOffset": "2"}
    assert (await slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == ResponseCode.SUCCESS
    asked = await slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**QUEUE, "consumerGroup": "new"})
    assert asked.ext_fields == {"offset": "2"}


async def test_a_slave_that_may_not_make_groups_serves_those_of_its_master_only(tmp_path):
    slave = Slave(tmp_path, auto_create_subscription_group=False)
    slave.metadata.groups.put(SubscriptionGroup("known"))
    slave.put(b"a")
    assert slave.pull(consumerGroup="known").code == ResponseCode.SUCCESS
    assert slave.pull(consumerGroup="other").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    fields = {**QUEUE, "consumerGroup": "other", "commitOffset": "1"}
    refused = await slave.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_members_that_a_slave_knows_are_those_that_send_it_heartbeats(slave):
    await slave.heartbeat("c1")
    listed = await slave.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": GROUP})
    assert bytes(listed.body) == b'{"consumerIdList":["c1"]}'
