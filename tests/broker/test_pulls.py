"""Pulls: what is found, what is refused, and pulls that wait."""

import inspect

import pytest
import trio
from attrs import evolve

from tests.broker.consuming import GROUP, PEER, TOPIC, Broker, Waiting, bodies_of, records_of
from tests.ha.support import settled
from tests.store.support import message
from trioha.errors import StoreError
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.topics import Perm, TopicConfig
from trioha.remoting.address import Address
from trioha.remoting.codec import FrameDecoder, encode, encode_head
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, request
from trioha.remoting.pull_forms import PullForms
from trioha.remoting.serving import Peer
from trioha.store.dispatch_service import AWAITED_GATHER_S, GATHER_S, DispatchService
from trioha.store.tags import java_hash

SUSPEND = 2 | 4
ADDRESS = PEER.address
SEE_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


@pytest.fixture
async def broker(tmp_path):
    return Broker(tmp_path)


@pytest.fixture
async def polling(broker, nursery):
    nursery.start_soon(broker.consumers.run)
    await settled()
    return broker


# -- what a queue has ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_a_pull_is_given_the_records_of_the_log_unmodified(broker, code):
    broker.put(b"a", b"b", tag="x", KEYS="k")
    broker.put(b"other", queue_id=1)
    answer = broker.pull(code=code)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert answer.ext_fields == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2",
    }  # fmt: skip
    assert [(record.body, record.queue_offset) for record in records_of(answer.body)] == [
        (b"a", 0),
        (b"b", 1),
    ]
    log = broker.store.commit_log
    assert bytes(answer.body) == bytes(log.read(0, len(answer.body)))


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (0, ResponseCode.SUCCESS, "FOUND", 3),
        (2, ResponseCode.SUCCESS, "FOUND", 3),
        (3, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 3),
        (4, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_offsets_beside_the_queue_are_corrected(broker, offset, code, status, next_offset):
    broker.put(b"a", b"b", b"c")
    answer = broker.pull(queueOffset=offset)
    assert (answer.code, answer.remark) == (code, status)
    assert answer.ext_fields["nextBeginOffset"] == str(next_offset)


@pytest.mark.parametrize("offset", [0, 5])
async def test_a_queue_without_messages_is_not_found_from_0_and_moved_from_elsewhere(broker, offset):
    answer = broker.pull(queueOffset=offset)
    code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
    assert (answer.code, answer.remark) == (code, "NO_MATCHED_LOGIC_QUEUE")
    assert answer.ext_fields["nextBeginOffset"] == "0"


async def test_a_slave_corrects_no_offset_that_its_master_may_have(tmp_path):
    broker = Broker(tmp_path, role="SLAVE")
    broker.put(b"a")
    answer = broker.pull(queueOffset=9)
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "OFFSET_OVERFLOW_BADLY")
    assert answer.ext_fields["nextBeginOffset"] == "9"


async def test_a_pull_is_limited_by_messages_and_by_bytes(tmp_path):
    broker = Broker(tmp_path, max_transfer_count_on_message_in_memory=5)
    broker.put(*(b"%d" % number for number in range(20)))
    assert len(records_of(broker.pull().body)) == 5
    assert len(records_of(broker.pull(maxMsgNums=3).body)) == 3
    one = len(broker.pull(maxMsgNums=1).body)
    assert len(records_of(broker.pull(maxMsgBytes=2 * one).body)) == 2
    assert len(records_of(broker.pull(maxMsgBytes=1).body)) == 1


async def test_pulls_are_counted(broker, autojump_clock):
    broker.put(b"a", b"b", b"c")
    broker.pull()
    broker.pull(maxMsgNums=1)
    broker.pull(queueOffset=3)
    await trio.sleep(1)
    counted = broker.consumers.pulls.counts.statistics()
    assert (counted.messages, counted.messages_per_s) == (4, (4.0, 4.0, 4.0))
    assert (counted.found_per_s[0], counted.missed_per_s[0]) == (2.0, 1.0)


async def test_clients_of_5_get_the_fields_that_5_has(broker):
    answer = broker.pull(version=479)
    assert {"topicSysFlag", "groupSysFlag"} <= answer.ext_fields.keys()


# -- tags ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "bodies"),
    [
        ("*", [b"1", b"2", b"3", b"4"]),
        ("", [b"1", b"2", b"3", b"4"]),
        (None, [b"1", b"2", b"3", b"4"]),
        ("a", [b"1", b"3"]),
        (" a || b ", [b"1", b"2", b"3"]),
        ("a||a||", [b"1", b"3"]),
    ],
)
async def test_an_expression_of_tags_selects_messages(broker, expression, bodies):
    broker.put(b"1", tag="a")
    broker.put(b"2", tag="b")
    broker.put(b"3", tag="a")
    broker.put(b"4")
    assert bodies_of(broker.pull(subscription=expression)) == bodies


async def test_messages_of_other_tags_are_passed(broker):
    broker.put(b"1", b"2", tag="a")
    answer = broker.pull(subscription="b")
    assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
    assert answer.ext_fields["nextBeginOffset"] == "2"


async def test_a_subscription_of_the_heartbeat_selects_messages(broker):
    broker.put(b"1", tag="a")
    broker.put(b"2", tag="b")
    await broker.heartbeat(expression="b", tags=["b"], codes=[java_hash("b")])
    assert bodies_of(broker.pull(sysFlag=0, subscription=None, subVersion=5)) == [b"2"]


async def test_a_request_newer_than_the_heartbeat_is_given_all_messages(broker):
    broker.put(b"1", tag="a")
    broker.put(b"2", tag="b")
    await broker.heartbeat(expression="b", tags=["b"], codes=[java_hash("b")], version=5)
    assert bodies_of(broker.pull(sysFlag=0, subscription=None, subVersion=6)) == [b"1", b"2"]


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        (
            {"topic": "NoSuch"},
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[NoSuch] not exist, apply first please! {SEE_FAQ}",
        ),
        (
            {"queueId": 9},
            ResponseCode.SYSTEM_ERROR,
            f"queueId[9] is illegal, topic:[{TOPIC}] topicConfig.readQueueNums:[4] consumer:[/{ADDRESS}]",
        ),
        (
            {"topic": "WriteOnly"},
            ResponseCode.NO_PERMISSION,
            "the topic[WriteOnly] pulling message is forbidden",
        ),
        (
            {"subscription": "||"},
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "parse the consumer's subscription failed",
        ),
        (
            {"subscription": "a > 1", "expressionType": "SQL92"},
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by SQL92",
        ),
        (
            {"sysFlag": 0},
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's group info not exist{SEE_FAQ}",
        ),
        (
            {"sysFlag": 0, "consumerGroup": "elsewhere"},
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist{SEE_FAQ}",
        ),
        (
            {"sysFlag": 0, "consumerGroup": "no-broadcast"},
            ResponseCode.NO_PERMISSION,
            "the consumer group[no-broadcast] can not consume by broadcast way",
        ),
        (
            {"consumerGroup": "closed"},
            ResponseCode.NO_PERMISSION,
            "subscription group no permission, closed",
        ),
        ({"queueOffset": "x"}, ResponseCode.SYSTEM_ERROR, None),
        ({"consumerGroup": None}, ResponseCode.SYSTEM_ERROR, "request header field consumerGroup is missing"),
    ],
)
async def test_a_pull_is_refused_as_by_the_real_broker(broker, changes, code, remark):
    broker.metadata.topics.put(TopicConfig("WriteOnly", 4, 4, 2))
    broker.metadata.groups.put(SubscriptionGroup("closed", consume_enable=False))
    broker.metadata.groups.put(SubscriptionGroup("no-broadcast", consume_broadcast_enable=False))
    await broker.heartbeat(group="elsewhere", topics=["Other"])
    await broker.heartbeat("c2", peer=evolve(PEER, connection=2), group="no-broadcast", model="BROADCASTING")
    answer = broker.pull(**changes)
    assert answer.code == code
    if remark is not None:
        assert answer.remark == remark
    assert answer.ext_fields == {}


async def test_a_broker_without_the_permission_to_read_refuses_pulls(tmp_path):
    broker = Broker(tmp_path, broker_permission=2, broker_ip1="192.0.2.1")
    answer = broker.pull()
    assert answer.code == ResponseCode.NO_PERMISSION
    assert answer.remark == "the broker[192.0.2.1] pulling message is forbidden"


# -- pulls that wait -----------------------------------------------------------------------------------------


async def test_a_pull_waits_until_its_queue_has_a_message(polling, nursery, autojump_clock):
    waiting = Waiting(nursery)
    waiting.add("pull", polling.pull(sysFlag=SUSPEND))
    await trio.sleep(3)
    polling.put(b"elsewhere", queue_id=1)
    await settled()
    assert waiting.answers == {}
    polling.put(b"a")
    await settled()
    answer, at_s = waiting.answers["pull"]
    assert (answer.remark, bodies_of(answer), at_s) == ("FOUND", [b"a"], trio.current_time())
    assert polling.consumers.polls.open_polls == 0


async def test_a_pull_gets_a_lone_record_that_could_be_gathered_as_if_it_had_waited(
    polling, nursery, autojump_clock
):
    async def at_once(work):
        work()

    nursery.start_soon(DispatchService(polling.store, readers=polling.readers, sync=at_once).run)
    await settled()
    for body in (b"dispatched", b"gathered"):
        polling.store.commit_log.append(message(body, topic=TOPIC))
        await settled()
    began_s = trio.current_time()
    waiting = Waiting(nursery)
    waiting.add("pull", polling.pull(queueOffset=1, sysFlag=SUSPEND))
    await trio.sleep(GATHER_S / 2)
    answer, at_s = waiting.answers["pull"]
    assert bodies_of(answer) == [b"gathered"]
    assert at_s - began_s == pytest.approx(AWAITED_GATHER_S)


async def test_a_pull_that_waits_gets_each_lone_record_at_once(polling, nursery, autojump_clock):
    """Also right after another one, which it has had."""

    async def at_once(work):
        work()

    nursery.start_soon(DispatchService(polling.store, readers=polling.readers, sync=at_once).run)
    began_s = trio.current_time()
    for number in range(5):
        waiting = Waiting(nursery)
        waiting.add("pull", polling.pull(queueOffset=number, sysFlag=SUSPEND))
        await settled()
        polling.store.commit_log.append(message(b"%d" % number, topic=TOPIC))
        await settled()
        answer, at_s = waiting.answers["pull"]
        assert (bodies_of(answer), at_s) == ([b"%d" % number], began_s)


async def test_a_pull_that_waits_in_vain_is_answered_when_its_time_is_over(polling, nursery, autojump_clock):
    polling.put(b"a", b"b")
    start_s = trio.current_time()
    waiting = Waiting(nursery)
    for timeout_ms in (15000, 20000, 200000):
        waiting.add(timeout_ms, polling.pull(queueOffset=2, sysFlag=SUSPEND, suspendTimeoutMillis=timeout_ms))
    await trio.sleep(100)
    assert {name: at_s - start_s for name, (_, at_s) in waiting.answers.items()} == {
        15000: 15.0, 20000: 20.0, 200000: 90.0,
    }  # fmt: skip
    for answer, _ in waiting.answers.values():
        assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
        assert answer.ext_fields["nextBeginOffset"] == "2"


async def test_a_pull_of_tags_waits_on_while_messages_of_others_come(polling, nursery, autojump_clock):
    waiting = Waiting(nursery)
    start_s = trio.current_time()
    waiting.add("a", polling.pull(sysFlag=SUSPEND, subscription="a"))
    waiting.add("none", polling.pull(sysFlag=SUSPEND, subscription="none"))
    for _ in range(5):
        await trio.sleep(1)
        polling.put(b"b", tag="b")
    polling.put(b"a", tag="a")
    await trio.sleep(20)
    answer, at_s = waiting.answers["a"]
    assert (bodies_of(answer), at_s) == ([b"a"], start_s + 5)
    assert answer.ext_fields["nextBeginOffset"] == "6"
    answer, at_s = waiting.answers["none"]
    assert (answer.remark, at_s) == ("NO_MATCHED_MESSAGE", start_s + 15)
    assert answer.ext_fields["nextBeginOffset"] == "6"


@pytest.mark.parametrize("changes", [{"sysFlag": 4}, {"suspendTimeoutMillis": 0}, {"queueOffset": 1}])
async def test_a_pull_that_may_not_wait_is_answered_at_once(broker, changes):
    assert not inspect.isawaitable(broker.pull(**{"sysFlag": SUSPEND, **changes}))


async def test_without_long_polling_a_pull_waits_a_second(tmp_path, nursery, autojump_clock):
    broker = Broker(tmp_path, long_polling_enable=False)
    nursery.start_soon(broker.consumers.run)
    start_s = trio.current_time()
    answer = await broker.pull(sysFlag=SUSPEND)
    assert (answer.code, trio.current_time() - start_s) == (ResponseCode.PULL_NOT_FOUND, 1.0)


async def test_a_pull_ends_with_its_task(polling, nursery):
    waiting = Waiting(nursery)
    for number in range(3):
        waiting.add(number, polling.pull(sysFlag=SUSPEND))
    await settled()
    assert polling.consumers.polls.open_polls == 3
    waiting.scopes[1].cancel()
    await settled()
    assert polling.consumers.polls.open_polls == 2
    polling.put(b"a")
    await settled()
    assert set(waiting.answers) == {0, 2}
    assert polling.consumers.polls.open_polls == 0


async def test_pulls_that_wait_have_a_maximum_and_leave_room_on_their_connection(tmp_path, nursery):
    broker = Broker(tmp_path, long_polls_max=5, requests_in_flight_max=4)
    nursery.start_soon(broker.consumers.run)
    waiting = Waiting(nursery)
    for connection in (1, 2):
        peer = Peer(Address("192.0.2.7", 5555), connection)
        for number in range(4):
            answer = broker.pull(sysFlag=SUSPEND, peer=peer)
            if inspect.isawaitable(answer):
                waiting.add((connection, number), answer)
            else:
                assert answer.code == ResponseCode.SYSTEM_BUSY
                assert "trioha.longPollsMax" in answer.remark
    await settled()
    # Three quarters of what a connection may have in flight; five in all.
    assert sorted(waiting.scopes) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert broker.consumers.polls.refused == 3
    broker.put(b"a")
    await settled()
    assert len(waiting.answers) == 5
    assert broker.consumers.polls.open_polls == 0


async def test_a_node_that_stops_ends_its_pulls(polling, nursery):
    waiting = Waiting(nursery)
    waiting.add("old", polling.pull(sysFlag=SUSPEND))
    await settled()
    polling.consumers.polls.end_all()
    waiting.add("new", polling.pull(sysFlag=SUSPEND))
    await settled()
    assert [waiting.answers[name][0].code for name in ("old", "new")] == [ResponseCode.PULL_NOT_FOUND] * 2


async def test_deadlines_of_pulls_that_have_ended_are_swept_out(polling, nursery):
    waiting = Waiting(nursery)
    for number in range(200):
        waiting.add(number, polling.pull(sysFlag=SUSPEND, queueOffset=number))
        await settled()
        polling.put(b"a")
        await settled()
    assert len(waiting.answers) == 200
    assert len(polling.consumers.polls._deadlines) <= 65


# -- offsets that pulls bring along --------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "kept"), [(1 | 2 | 4, 7), (1 | 4, None), (2 | 4, None)])
async def test_a_pull_that_may_wait_brings_its_offset_along(broker, flags, kept):
    broker.put(b"a")
    broker.pull(sysFlag=flags, commitOffset=7)
    assert broker.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == kept


# -- pulls of known forms ------------------------------------------------------------------------------------


class Known:
    """Pulls of a broker that are read from frames, by their forms."""

    def __init__(self, broker):
        self.broker = broker
        self.forms = PullForms()

    def decoder(self, **changes):
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, "queueOffset": 0, "maxMsgNums": 32,
            "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 15000, "subVersion": 5, **changes,
        }  # fmt: skip
        decoder = FrameDecoder(forms=self.forms)
        asked = request(
            RequestCode.PULL_MESSAGE, ext_fields={name: str(value) for name, value in fields.items()}
        )
        decoder.feed(encode(asked))
        return decoder

    def read(self, **changes):
        return self.decoder(**changes).next_command()

    def at_once(self, *, fits=True, **changes):
        found = self.decoder(**changes).pull()
        return self.broker.consumers.pulls.answer_at_once(found.form, found.pull, lambda _bytes: fits)

    def pull(self, **changes):
        try:
            return self.broker.handlers[RequestCode.PULL_MESSAGE](self.read(**changes), PEER)
        except BadRequestError as error:
            return RemotingCommand(error.code, remark=error.reason)


@pytest.fixture
async def known(broker):
    broker.put(b"a", b"b", tag="x")
    await broker.heartbeat()
    known = Known(broker)
    for _ in range(2):
        assert bodies_of(known.pull()) == [b"a", b"b"]
    return known


async def test_pulls_of_a_known_form_go_to_their_own_offsets(known):
    assert bodies_of(known.pull(queueOffset=1)) == [b"b"]
    assert known.pull(queueOffset=2).remark == "OFFSET_OVERFLOW_ONE"
    for commit_offset in (1, 2):
        known.pull(sysFlag=3, queueOffset=1, commitOffset=commit_offset)
        assert known.broker.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == commit_offset


async def test_a_known_pull_is_answered_at_once_as_it_is_answered_by_the_handler(known):
    commit = {"sysFlag": 3, "queueOffset": 1, "commitOffset": 1}
    for changes in ({}, {"queueOffset": 1}, commit):
        known.pull(**changes)
        by_handler = known.pull(**changes)
        head, slices = known.at_once(**changes)
        assert head == encode_head(by_handler)
        assert [bytes(view) for view in slices] == [bytes(view) for view in by_handler.slices]
    counted = known.broker.consumers.pulls.counts.statistics().messages
    # The handler of requests answers it then, and counts it.
    assert known.at_once(fits=False) is None
    assert known.broker.consumers.pulls.counts.statistics().messages == counted
    assert known.at_once() is not None
    assert known.broker.consumers.pulls.counts.statistics().messages == counted + 2
    offsets = known.broker.metadata.consumer_offsets
    assert offsets.find(GROUP, TOPIC, 0) == 1
    assert known.at_once(**{**commit, "commitOffset": 2}) is not None
    assert offsets.find(GROUP, TOPIC, 0) == 2


async def test_a_pull_that_finds_nothing_is_not_answered_at_once(known):
    for changes in ({"queueOffset": 2}, {"queueOffset": 7}, {"queueId": 3}):
        known.pull(**changes)
        known.pull(**changes)
        assert known.at_once(**changes) is None


async def test_a_pull_whose_checks_may_end_otherwise_is_not_answered_at_once(known):
    assert known.at_once() is not None
    groups, topics = known.broker.metadata.groups, known.broker.metadata.topics
    groups.put(evolve(groups.find(GROUP), consume_enable=False))
    assert known.at_once() is None
    groups.put(evolve(groups.find(GROUP), consume_enable=True))
    known.pull()
    assert known.at_once() is not None
    topics.put(evolve(topics.find(TOPIC), perm=int(Perm.WRITE)))
    assert known.at_once() is None
    # Nor is one of a form that the handler has not seen.
    known.forms = PullForms()
    known.read()
    assert known.at_once() is None


async def test_a_known_form_is_checked_again_when_what_it_depends_on_changes(known):
    groups, topics = known.broker.metadata.groups, known.broker.metadata.topics
    pulls, consumers = known.broker.consumers.pulls, known.broker.consumers.clients.consumers

    def found():
        answer = known.pull()
        return bodies_of(answer) if answer.code == ResponseCode.SUCCESS else answer.code

    groups.put(evolve(groups.find(GROUP), consume_enable=False))
    assert found() == ResponseCode.NO_PERMISSION
    groups.put(evolve(groups.find(GROUP), consume_enable=True))
    assert found() == [b"a", b"b"]
    groups.put(evolve(groups.find(GROUP), consume_broadcast_enable=False))
    assert found() == [b"a", b"b"]
    consumers[GROUP].message_model = "BROADCASTING"
    assert found() == ResponseCode.NO_PERMISSION
    consumers[GROUP].message_model = "CLUSTERING"
    topics.put(evolve(topics.find(TOPIC), perm=2))
    assert found() == ResponseCode.NO_PERMISSION
    topics.delete(TOPIC)
    assert found() == ResponseCode.TOPIC_NOT_EXIST
    topics.put(TopicConfig(TOPIC, 4, 4))
    pulls.settings = evolve(pulls.settings, messages_max=1)
    assert found() == [b"a"]
    pulls.settings = evolve(pulls.settings, broker_permission=2)
    assert found() == ResponseCode.NO_PERMISSION


async def test_a_known_form_is_checked_again_when_its_subscription_changes(known):
    await known.broker.heartbeat(expression="y", tags=["y"], codes=[java_hash("y")], version=6)
    assert known.pull(subVersion=6).remark == "NO_MATCHED_MESSAGE"
    assert known.pull().remark == "NO_MATCHED_MESSAGE"
    known.broker.consumers.clients.consumers.clear()
    assert known.pull().code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_a_known_form_with_its_expression_is_filtered_by_it(known):
    for _ in range(2):
        assert known.pull(sysFlag=4, subscription="y").remark == "NO_MATCHED_MESSAGE"
        assert bodies_of(known.pull(sysFlag=4, subscription="x")) == [b"a", b"b"]


# -- pulls that wait without a task --------------------------------------------------------------------------


async def test_a_pull_that_is_abandoned_waits_no_more(polling):
    waiting = polling.pull(sysFlag=SUSPEND).waiting
    waiting.abandon()
    assert polling.consumers.polls.open_polls == 0
    polling.put(b"a")
    polling.consumers.polls.end_all()


@pytest.mark.parametrize("ends", [False, True])
async def test_an_error_of_a_pull_that_waits_is_its_result(polling, monkeypatch, ends):
    waiting = polling.pull(sysFlag=SUSPEND)
    other = polling.pull(sysFlag=SUSPEND)

    def get(*_args, **_options):
        raise StoreError("the disk is gone", path="log")

    with monkeypatch.context() as patch:
        patch.setattr(polling.store.reads, "get", get)
        patch.setattr(polling.store.reads, "get_common", get)
        if ends:
            polling.consumers.polls.end_all()
        else:
            polling.put(b"a")
        for answer in (waiting, other):
            with pytest.raises(BadRequestError, match="the disk is gone"):
                await answer
    assert polling.consumers.polls.open_polls == 0
