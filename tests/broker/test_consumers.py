"""Groups and their members, locks of queues, offsets and queries."""

import json

import pytest
import trio
import trio.testing
from attrs import evolve

from tests.broker.consuming import GROUP, PEER, TOPIC, Broker, bodies_of, records_of
from tests.ha.support import settled
from trioha.broker.queue_locks import CLIENT_LEASE_S, LEASE_S
from trioha.metadata.groups import SubscriptionGroup
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.subscriptions import Subscription

OTHER = evolve(PEER, connection=2)
CONSUMER = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[%s]}]}'
THIRD = evolve(PEER, connection=3)


@pytest.fixture
async def broker(tmp_path):
    return Broker(tmp_path)


async def members(broker, group=GROUP):
    answer = await broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": group})
    if answer.code:
        return answer.remark
    return json.loads(bytes(answer.body))["consumerIdList"]


# -- heartbeats and members ----------------------------------------------------------------------------------


async def test_a_heartbeat_makes_members_and_notifies_them_of_each_other(broker):
    answer = await broker.heartbeat("c1", producers=["p"])
    assert (answer.code, answer.ext_fields) == (ResponseCode.SUCCESS, {})
    assert broker.notified == [(1, GROUP)]
    await broker.heartbeat("c2", peer=OTHER)
    assert broker.notified[1:] == [(1, GROUP), (2, GROUP)]
    # The same again is no change, nor is a newer version of the same topics.
    await broker.heartbeat("c2", peer=OTHER, version=6)
    assert len(broker.notified) == 3
    assert await members(broker) == ["c1", "c2"]
    await broker.heartbeat("c2", peer=OTHER, topics=[TOPIC, "More"])
    assert broker.notified[3:] == [(1, GROUP), (2, GROUP)]
    assert list(broker.consumers.clients.producers["p"]) == [1]
    assert broker.metadata.groups.find(GROUP) == SubscriptionGroup(GROUP)
    assert broker.metadata.topics.find(f"%RETRY%{GROUP}").read_queue_nums == 1


async def test_members_leave_when_they_say_so_and_the_others_are_notified(broker):
    await broker.heartbeat("c1", producers=["p"])
    await broker.heartbeat("c2", peer=OTHER)
    broker.notified.clear()
    fields = {"clientID": "c1", "consumerGroup": GROUP, "producerGroup": "p"}
    for _ in range(2):
        answer = await broker.ask(RequestCode.UNREGISTER_CLIENT, fields)
        assert answer.code == ResponseCode.SUCCESS
    assert broker.notified == [(2, GROUP)]
    assert await members(broker) == ["c2"]
    assert broker.consumers.clients.producers == {}
    assert broker.consumers.clients.members == 1


async def test_members_leave_with_their_connection(broker):
    await broker.heartbeat("c1", producers=["p"])
    await broker.heartbeat("c1", group="second")
    await broker.heartbeat("c2", peer=OTHER)
    broker.notified.clear()
    broker.consumers.clients.connection_ended(1)
    assert (broker.notified, await members(broker)) == ([(2, GROUP)], ["c2"])
    broker.consumers.clients.connection_ended(2)
    clients = broker.consumers.clients
    assert (clients.members, clients.consumers, clients.producers) == (0, {}, {})
    assert clients._subscription_bytes == 0
    assert not clients._groups_of


async def test_silent_members_leave_after_120_virtual_seconds(broker, nursery, autojump_clock):
    nursery.start_soon(broker.consumers.run)
    await broker.heartbeat("c1")
    await broker.heartbeat("c2", peer=OTHER, producers=["p"])
    await trio.sleep(100)
    await broker.heartbeat("c1")
    await trio.sleep(19)
    assert await members(broker) == ["c1", "c2"]
    await trio.sleep(12)
    assert await members(broker) == ["c1"]
    assert broker.consumers.clients.producers == {}


async def test_notifications_may_be_switched_off(tmp_path):
    broker = Broker(tmp_path)
    broker.metadata.groups.put(SubscriptionGroup(GROUP, notify_consumer_ids_changed_enable=False))
    await broker.heartbeat()
    assert broker.notified == []
    broker = Broker(tmp_path / "other", notify_consumer_ids_changed_enable=False)
    await broker.heartbeat()
    assert broker.notified == []


async def test_members_have_a_maximum_and_a_refused_heartbeat_changes_nothing(tmp_path):
    broker = Broker(tmp_path, consumers_max=3)
    await broker.heartbeat("c1")
    await broker.heartbeat("c2", peer=OTHER, producers=["p"])
    answer = await broker.heartbeat("c3", peer=THIRD)
    assert (answer.code, "trioha.consumersMax" in answer.remark) == (ResponseCode.SYSTEM_BUSY, True)
    assert (await members(broker), broker.consumers.clients.members) == (["c1", "c2"], 3)
    # Those that are members may go on.
    assert (await broker.heartbeat("c2", peer=OTHER, producers=["p"])).code == ResponseCode.SUCCESS


async def test_subscriptions_of_all_groups_have_a_maximum_in_bytes(broker, monkeypatch):
    monkeypatch.setattr("trioha.broker.clients.SUBSCRIPTION_BYTES_MAX", 5000)
    assert (await broker.heartbeat("c1", tags=["x" * 1000])).code == ResponseCode.SUCCESS
    answer = await broker.heartbeat("c2", peer=OTHER, group="second", tags=["x" * 2000])
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "second" not in broker.consumers.clients.consumers
    assert (await broker.heartbeat("c1", tags=["x" * 1500])).code == ResponseCode.SUCCESS


async def test_groups_have_a_maximum(tmp_path):
    broker = Broker(tmp_path, groups_max=9)
    answers = [await broker.heartbeat(group=f"g{number}") for number in range(4)]
    assert [answer.code for answer in answers] == [0, 0, ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_ERROR]
    assert "trioha.groupsMax" in answers[3].remark


async def test_of_two_versions_of_a_subscription_the_newer_counts(broker):
    await broker.heartbeat("c1", expression="new", tags=["new"], codes=[1], version=9)
    await broker.heartbeat("c2", peer=OTHER, expression="old", tags=["old"], codes=[2], version=8)
    assert broker.consumers.clients.consumers[GROUP].subscriptions[TOPIC].expression == "new"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"{}", b'{"clientID":7}', b'{"clientID":""}',
        b'{"clientID":"c","consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[7]}',
        b'{"clientID":"c","consumerDataSet":[{}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":""}]}',
        CONSUMER % b'{"topic":7}',
        CONSUMER % b'{"topic":"t","codeSet":[99999999999]}',
        CONSUMER % b'{"topic":"t","tagsSet":[7]}',
        b"[" * 100_000,
        b'{"clientID":"' + b"x" * 2_000_000 + b'"}',
    ],
)  # fmt: skip
async def test_a_heartbeat_of_another_shape_is_refused(broker, body):
    for code in (RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        answer = await broker.ask(code, body=body)
        assert (answer.code, bool(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert broker.consumers.clients.members == 0


async def test_a_client_is_told_that_only_tags_are_filtered(broker):
    for kind, code in (("SQL92", ResponseCode.SYSTEM_ERROR), ("TAG", ResponseCode.SUCCESS)):
        data = {"topic": TOPIC, "subString": "a > 1", "expressionType": kind}
        body = json.dumps({"clientId": "c", "group": GROUP, "subscriptionData": data}).encode()
        answer = await broker.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)
        assert answer.code == code
    assert Subscription.of_json(Subscription.parse(TOPIC, "a||b").to_json()) == Subscription.parse(
        TOPIC, "a||b"
    )


# -- over a server -------------------------------------------------------------------------------------------


async def test_members_are_notified_before_the_answer_and_leave_with_their_connection(broker, nursery):
    server = broker.server()
    nursery.start_soon(broker.consumers.run)

    async def connect():
        ours, theirs = trio.testing.memory_stream_pair()

        async def serve():
            await server.serve_stream(theirs, PEER.address)
            await theirs.aclose()

        nursery.start_soon(serve)
        return ours, FrameDecoder()

    async def receive(connection, count):
        stream, decoder = connection
        found = []
        while len(found) < count:
            while (command := decoder.next_command()) is not None:
                found.append((command.code, command.is_response, command.ext_fields.get("consumerGroup")))
            if len(found) < count:
                decoder.feed(await stream.receive_some(65536))
        return found

    def heartbeat(client_id):
        body = {"clientID": client_id, "consumerDataSet": [{"groupName": GROUP}]}
        return encode(request(RequestCode.HEART_BEAT, body=json.dumps(body).encode()))

    push = (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, False, GROUP)
    with trio.fail_after(20):
        first, second = await connect(), await connect()
        await first[0].send_all(heartbeat("c1"))
        assert await receive(first, 2) == [push, (0, True, None)]
        # In one turn with other answers the notification still comes before its own.
        listed = encode(request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext_fields={"consumerGroup": GROUP}))
        await second[0].send_all(listed + heartbeat("c2"))
        assert await receive(second, 3) == [(0, True, None), push, (0, True, None)]
        assert await receive(first, 1) == [push]
        pull = request(
            RequestCode.PULL_MESSAGE,
            ext_fields={
                **of_queue(), "consumerGroup": GROUP, "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "6",
                "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
            },
        )  # fmt: skip
        await second[0].send_all(encode(pull))
        await settled()
        assert broker.consumers.polls.open_polls == 1
        await second[0].aclose()
        assert await receive(first, 1) == [push]
        await settled()
        assert (await members(broker), broker.consumers.polls.open_polls) == (["c1"], 0)
        await first[0].aclose()
        await settled()
        assert broker.consumers.clients.members == 0


# -- locks ---------------------------------------------------------------------------------------------------


async def lock(broker, client_id, *queue_ids, group=GROUP, peer=PEER, code=RequestCode.LOCK_BATCH_MQ):
    queues = [{"brokerName": "broker-a", "queueId": queue_id, "topic": TOPIC} for queue_id in queue_ids]
    body = {"clientId": client_id, "consumerGroup": group, "mqSet": queues}
    answer = await broker.ask(code, body=json.dumps(body).encode(), peer=peer)
    assert (answer.code, answer.ext_fields) == (ResponseCode.SUCCESS, {})
    if code == RequestCode.UNLOCK_BATCH_MQ:
        return bytes(answer.body)
    found = json.loads(bytes(answer.body))["lockOKMQSet"]
    assert all(queue in queues for queue in found)
    return [queue["queueId"] for queue in found]


async def test_a_queue_is_locked_for_one_client_of_a_group(broker, autojump_clock):
    assert await lock(broker, "c1", 0, 1) == [0, 1]
    assert await lock(broker, "c1", 0, 1) == [0, 1]
    assert await lock(broker, "c2", 1, 2, peer=OTHER) == [2]
    assert await lock(broker, "c2", 1, group="second", peer=OTHER) == [1]
    assert await lock(broker, "c2", 1, peer=OTHER, code=RequestCode.UNLOCK_BATCH_MQ) == b""
    assert await lock(broker, "c2", 1, peer=OTHER) == []
    assert await lock(broker, "c1", 1, code=RequestCode.UNLOCK_BATCH_MQ) == b""
    assert await lock(broker, "c2", 1, peer=OTHER) == [1]


async def test_a_lock_that_is_not_renewed_ends_after_its_lease(broker, nursery, autojump_clock):
    nursery.start_soon(broker.consumers.run)
    await lock(broker, "c1", 0)
    await trio.sleep(LEASE_S - 1)
    assert await lock(broker, "c1", 0) == [0]
    await trio.sleep(LEASE_S - 1)
    assert await lock(broker, "c2", 0, peer=OTHER) == []
    await trio.sleep(2)
    assert await lock(broker, "c2", 0, peer=OTHER) == [0]
    await trio.sleep(LEASE_S + 20)
    assert len(broker.consumers.locks) == 0
    assert not broker.consumers.locks._by_connection


async def test_locks_of_a_connection_that_ended_end_when_their_client_stops_by_itself(broker, autojump_clock):
    await lock(broker, "c1", 0)
    broker.consumers.clients.connection_ended(1)
    await trio.sleep(CLIENT_LEASE_S - 1)
    assert await lock(broker, "c2", 0, peer=OTHER) == []
    await trio.sleep(2)
    assert await lock(broker, "c2", 0, peer=OTHER) == [0]


async def test_a_group_has_locks_until_they_are_given_up_or_their_lease_is_over(broker, autojump_clock):
    locks = broker.consumers.locks
    await lock(broker, "c1", 0, 1)
    assert (locks.has_locks(GROUP), locks.has_locks("second")) == (True, False)
    await lock(broker, "c1", 0, code=RequestCode.UNLOCK_BATCH_MQ)
    assert locks.has_locks(GROUP)
    await trio.sleep(LEASE_S + 1)
    assert not locks.has_locks(GROUP)
    await lock(broker, "c1", 1)
    await lock(broker, "c1", 1, code=RequestCode.UNLOCK_BATCH_MQ)
    assert not locks.has_locks(GROUP)
    assert not locks._by_group


async def test_locks_have_a_maximum(tmp_path):
    broker = Broker(tmp_path, queue_locks_max=3)
    assert await lock(broker, "c1", 0, 1) == [0, 1]
    assert await lock(broker, "c2", 2, 3, peer=OTHER) == [2]
    assert await lock(broker, "c1", 0, 1) == [0, 1]


# -- offsets -------------------------------------------------------------------------------------------------


def of_queue(queue_id=0, *, topic=TOPIC, **fields):
    return {"topic": topic, "queueId": str(queue_id), **{name: str(value) for name, value in fields.items()}}


async def test_offsets_of_a_group_are_kept(broker):
    await broker.heartbeat()
    for oneway in (False, True):
        answer = await broker.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            of_queue(2, consumerGroup=GROUP, commitOffset=40 + oneway),
            oneway=oneway,
        )
        assert (answer.code, answer.ext_fields) == (ResponseCode.SUCCESS, {})
    answer = await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, of_queue(2, consumerGroup=GROUP))
    assert answer.ext_fields == {"offset": "41"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"consumerGroup": "nogroup"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "NoSuch"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": "-1"}, ResponseCode.SYSTEM_ERROR),
        ({"commitOffset": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_offsets_of_what_is_not_there_are_refused(broker, changes, code):
    await broker.heartbeat()
    fields = of_queue(consumerGroup=GROUP, commitOffset=1) | changes
    assert (await broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == code
    assert broker.metadata.consumer_offsets.count == 0


async def test_offsets_have_a_maximum(tmp_path):
    broker = Broker(tmp_path, consumer_offsets_max=2)
    await broker.heartbeat()
    codes = [
        (
            await broker.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET, of_queue(number, consumerGroup=GROUP, commitOffset=1)
            )
        ).code
        for number in (0, 1, 2, 1)
    ]
    assert codes == [0, 0, ResponseCode.SYSTEM_ERROR, 0]


async def test_a_new_group_begins_at_0_where_it_missed_nothing(tmp_path):
    broker = Broker(tmp_path)
    broker.put(b"a")
    fields = of_queue(consumerGroup="new")

    async def query(version=407, **changes):
        answer = await broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields | changes, version=version)
        return answer.code, answer.ext_fields.get("offset"), answer.remark

    not_found = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    assert await query() == await query(479) == (0, "0", None)
    assert await query(queueId="3") == (0, "0", None)
    assert await query(479, queueId="3") == (ResponseCode.QUERY_NOT_FOUND, None, not_found)
    assert (await query(479, setZeroIfNotFound="false"))[0] == ResponseCode.QUERY_NOT_FOUND
    assert await query(setZeroIfNotFound="false") == (0, "0", None)
    # The first message is not in memory any more.
    broker = Broker(tmp_path / "old", access_message_in_memory_max_ratio=0)
    broker.put(b"a")
    assert await query() == (ResponseCode.QUERY_NOT_FOUND, None, not_found)


async def test_a_queue_says_where_it_begins_and_ends_and_when_its_messages_came(broker, monkeypatch):
    times_ms = [1000, 2000, 2000, 5000]
    for number, time_ms in enumerate(times_ms):
        monkeypatch.setattr("time.time_ns", lambda time_ms=time_ms: time_ms * 1_000_000)
        broker.put(b"%d" % number)

    async def ask(code, version=407, **fields):
        answer = await broker.ask(code, of_queue(**fields), version=version)
        assert answer.code == ResponseCode.SUCCESS
        return answer.ext_fields

    assert await ask(RequestCode.GET_MIN_OFFSET) == {"offset": "0"}
    assert await ask(RequestCode.GET_MAX_OFFSET) == {"offset": "4"}
    assert await ask(RequestCode.GET_MAX_OFFSET, topic="NoSuch") == {"offset": "0"}
    assert await ask(RequestCode.GET_EARLIEST_MSG_STORETIME) == {"timestamp": "1000"}
    assert await ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue_id=3) == {"timestamp": "-1"}
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    for timestamp, offset in ((0, "0"), (1000, "0"), (1001, "1"), (2000, "1"), (3000, "3")):
        assert await ask(search, timestamp=timestamp) == {"offset": offset}
    assert await ask(search, timestamp=2000, boundaryType="upper") == {"offset": "2"}
    # Where all are older, 4.9 gives the last message, 5.x the end.
    assert await ask(search, timestamp=9000) == {"offset": "3"}
    assert await ask(search, 479, timestamp=9000) == {"offset": "4"}
    assert await ask(search, topic="NoSuch", timestamp=9000) == {"offset": "0"}


# -- queries -------------------------------------------------------------------------------------------------


async def test_a_message_is_found_by_its_place(broker):
    broker.put(b"a", b"b")
    second = records_of(broker.pull().body)[1]
    answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(second.physical_offset)})
    assert (answer.code, bodies_of(answer)) == (ResponseCode.SUCCESS, [b"b"])
    for offset in (1, 99999999, -1, 2**63 - 1):
        answer = await broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {offset}",
        )


async def test_messages_are_found_by_key_the_newest_first_ones_last(broker):
    for number in range(40):
        broker.put(b"%d" % number, KEYS="k", UNIQ_KEY=f"u{number}")
    broker.put(b"other", topic="Other", KEYS="k")

    async def query(key, **changes):
        fields = {
            "topic": TOPIC,
            "key": key,
            "maxNum": "3",
            "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        }
        return await broker.ask(RequestCode.QUERY_MESSAGE, fields | changes)

    answer = await query("k")
    assert (answer.code, bodies_of(answer)) == (ResponseCode.SUCCESS, [b"37", b"38", b"39"])
    assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) > 0
    assert int(answer.ext_fields["indexLastUpdateTimestamp"]) > 0
    assert bodies_of(await query("u5")) == [b"5"]
    assert len(bodies_of(await query("k", _UNIQUE_KEY_QUERY="true"))) == 32
    for missing in (await query("zzz"), await query("k", endTimestamp="5"), await query("k", maxNum="0")):
        assert (missing.code, missing.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "can not find message, maybe time range not correct",
        )
        assert missing.ext_fields == {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}


async def test_every_field_that_is_missing_or_no_number_is_a_refusal(broker):
    for code in broker.consumers.handlers:
        for fields in ({}, of_queue(), of_queue(consumerGroup=GROUP), of_queue("x"), of_queue("9" * 30)):
            answer = await broker.ask(code, fields)
            assert isinstance(answer, RemotingCommand)
