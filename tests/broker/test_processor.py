"""Answers of a broker: sends in every form and with every result, status, unknown requests."""

import json
import random
from collections import Counter
from struct import pack

import pytest
import trio
from attrs import evolve, fields

from tests.broker.timing import timer_messages
from tests.ha.support import Events, connected, make_master, settled, slave_commit
from tests.levels import by_level
from tests.store.support import open_store
from trioha.broker.info import BrokerInfo
from trioha.broker.processor import BrokerProcessor
from trioha.broker.puts import PutService
from trioha.broker.retries import Retries
from trioha.broker.send_processor import SendProcessor
from trioha.broker.status_publisher import StatusPublisher
from trioha.broker_status import BrokerStatus
from trioha.ha.group_commit import GroupCommitSettings
from trioha.ha.meter import LagClock
from trioha.metadata.groups import GroupTable
from trioha.metadata.topics import TopicConfig, TopicSettings, TopicTable
from trioha.recording.events import Kind
from trioha.remoting.address import Address
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, SerializeType, request, response_to
from trioha.remoting.ha_runtime_info import decode_ha_status
from trioha.remoting.send_message import SendMessageRequestHeader, SendMessageResponseHeader
from trioha.remoting.server import Peer
from trioha.remoting.serving import PendingAnswer, ServerStatistics
from trioha.store.message_properties import parse_properties
from trioha.store.record import Record, decode_record
from trioha.store.tags import DEFAULT_DELAY_LEVELS, DelayLevels

MQADMIN_KEYS = """
brokerVersionDesc putTps getTransferedTps getTransferredTps sendThreadPoolQueueSize
pullThreadPoolQueueSize sendThreadPoolQueueHeadWaitTimeMills
pullThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp
commitLogDiskRatio msgPutTotalYesterdayMorning msgPutTotalTodayMorning msgPutTotalTodayNow
msgGetTotalYesterdayMorning msgGetTotalTodayMorning msgGetTotalTodayNow brokerActive
timerReadBehind timerOffsetBehind timerCongestNum timerEnqueueTps timerDequeueTps
"""

SEE_FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
QUEUES_OF = (
    "TopicConfig [topicName=%s, readQueueNums=%d, writeQueueNums=%d, perm=RW-, topicFilterType=SINGLE_TAG, "
    "topicSysFlag=0, order=false]"
)

PEER = Peer(Address("192.0.2.7", 5555), 1)


class WrittenTopics(TopicTable):
    """Its file is written at once."""

    def put(self, topic):
        super().put(topic)
        self.note_written(self.changes.offset)


class Broker:
    """A processor with its parts."""

    def __init__(
        self,
        tmp_path,
        *,
        need=0,
        on_stored=None,
        is_slave=False,
        delay_levels=DEFAULT_DELAY_LEVELS,
        **statuses,
    ):
        self.store = open_store(tmp_path)
        self.log = self.store.commit_log
        self.events = Events()
        self.master, self.replicas, _ = make_master(self.log, events=self.events)
        settings = GroupCommitSettings(
            copies_needed=need, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
        )
        self.group_commit = slave_commit(
            settings, replicas=self.replicas, flushed=self.log.flushed, sink=self.events
        )
        self.puts = PutService(
            commit_log=self.log,
            group_commit=self.group_commit,
            sink=self.events,
            is_slave=is_slave,
            on_stored=on_stored,
        )
        self.topics = WrittenTopics()
        self.topics.add_system_topics()
        self.info = info = BrokerInfo(
            BrokerStatus(
                role="SYNC_MASTER" if need else "ASYNC_MASTER",
                cluster_name="cluster",
                broker_name="broker",
                broker_id=0,
                ha_address="127.0.0.1:10912",
            ),
            store_path=tmp_path,
            store=self.store,
            puts=self.puts,
            master=self.master,
            replicas=self.replicas,
            slave=None,
            **statuses,
        )
        self.updates = StatusPublisher(info.ha_status_body, info.runtime_info_body)
        self.send_processor = SendProcessor(
            self.puts,
            topics=self.topics,
            retries=Retries(self.topics, GroupTable()),
            cluster_name="cluster",
            broker_ip="192.0.2.1",
            delay_levels=DelayLevels(delay_levels),
            timers=timer_messages(lambda: 0),
        )
        self.processor = BrokerProcessor(
            send=self.send_processor,
            info=info,
            updates=self.updates,
        )

    async def ask(self, command):
        return await self.answered(self.processor(command, PEER))

    async def answered(self, answer):
        if isinstance(answer, PendingAnswer):
            await answer.commit.settled()
            return answer.answer()
        return answer if isinstance(answer, RemotingCommand) else await answer

    async def send(
        self, *, code=RequestCode.SEND_MESSAGE_V2, body=b"hello", version=Version.V4_9_7, **changes
    ):
        fields = {
            "producer_group": "group",
            "topic": "Orders",
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 2,
            "sys_flag": 0,
            "born_timestamp_ms": 1234,
            "flag": 5,
            "properties": "TAGS\x01tag\x02",
        }
        header = SendMessageRequestHeader(**fields | changes)
        ext = header.to_ext_fields()
        if code == RequestCode.SEND_MESSAGE:
            from trioha.remoting.send_message import _LONG_NAMES

            ext = {_LONG_NAMES[name]: value for name, value in ext.items()}
        return await self.ask(evolve(request(code, ext_fields=ext, body=body), version=version))

    def stored(self, offset=0):
        record = decode_record(self.log.read(offset, 65536))
        assert isinstance(record, Record)
        return record

    def records(self):
        """All records of the log, without their store timestamps."""
        found, at = [], 0
        while at < self.log.max_offset:
            record = decode_record(self.log.read(at, 65536))
            if isinstance(record, Record):
                found.append(evolve(record, store_timestamp_ms=0))
            at += record.total_size
        return found

    def acknowledge(self, offset=None):
        """A slave has the log, all of it or up to `offset`."""
        offset = self.log.max_offset if offset is None else offset
        self.replicas.acknowledge(1, replica="a", ack_offset=offset, lag_clock=LagClock())


@pytest.fixture
async def broker(tmp_path):
    return Broker(tmp_path)


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
async def test_a_send_is_stored_with_all_its_fields_and_answered_with_its_position(broker, code):
    answer = await broker.send(code=code)
    record = broker.stored()
    assert answer.code == ResponseCode.SUCCESS
    header = SendMessageResponseHeader.of(answer)
    assert (header.msg_id, header.queue_id, header.queue_offset) == (record.message_id, 2, 0)
    assert (answer.ext_fields["MSG_REGION"], answer.ext_fields["TRACE_ON"]) == ("DefaultRegion", "true")
    assert (record.topic, record.queue_id, record.body, record.flag) == ("Orders", 2, b"hello", 5)
    assert (record.born_timestamp_ms, str(record.born_host)) == (1234, "192.0.2.7:5555")
    assert parse_properties(record.properties_raw) == {"TAGS": "tag", "CLUSTER": "cluster"}


async def test_a_send_makes_its_topic_and_is_answered_when_the_topic_is_in_its_file(broker, nursery):
    broker.topics = topics = broker.send_processor._topics = TopicTable()
    topics.add_system_topics()
    answers = []

    async def send(topic):
        answers.append(await broker.send(topic=topic, default_topic_queue_nums=100, queue_id=-1))

    nursery.start_soon(send, "Made")
    await settled()
    assert (answers, broker.stored().topic) == ([], "Made")
    assert topics.find("Made").write_queue_nums == 8
    topics.put(TopicConfig("Other"))
    topics.note_written(1)
    await settled()
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS]
    # The topic is known now, and nothing is waited for.
    await send("Made")
    assert (answers[1].code, topics.changed_at) == (ResponseCode.SUCCESS, {"Other": 2})


@pytest.mark.parametrize(
    ("version", "code"),
    [(Version.V4_9_7, ResponseCode.SYSTEM_ERROR), (Version.V5_0_0, ResponseCode.INVALID_PARAMETER)],
)
@pytest.mark.parametrize("changes", [{"queue_id": 99}, {"topic": ""}, {"topic": "a b"}, {"topic": "t" * 128}])
async def test_an_invalid_parameter_has_the_code_of_the_senders_version(broker, changes, version, code):
    answer = await broker.send(version=version, **changes)
    assert answer.code == code
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        (
            {"topic": "NoAuto", "default_topic": "NOPE"},
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[NoAuto] not exist, apply first please!{SEE_FAQ}",
        ),
        (
            {"topic": "TopicSpec", "queue_id": 99},
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[99] is illegal, {QUEUES_OF % ('TopicSpec', 4, 4)} Producer: 192.0.2.7:5555",
        ),
        (
            {"topic": "ReadOnly"},
            ResponseCode.NO_PERMISSION,
            "the topic[ReadOnly] sending message is forbidden",
        ),
        (
            {"topic": "Empty", "queue_id": -1},
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[-1] is illegal, {QUEUES_OF % ('Empty', 0, 0)} Producer: 192.0.2.7:5555",
        ),
    ],
)
async def test_a_send_that_its_topic_does_not_allow_is_refused_as_by_the_real_broker(
    broker, changes, code, remark
):
    broker.topics.put(TopicConfig("TopicSpec", 4, 4))
    broker.topics.put(TopicConfig("ReadOnly", 4, 4, 4))
    broker.topics.put(TopicConfig("Empty", 0, 0))
    answer = await broker.send(**changes)
    assert (answer.code, answer.remark) == (code, remark)
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert broker.log.max_offset == 0


async def test_the_number_of_topics_is_limited(broker):
    broker.topics.settings = TopicSettings(topics_max=len(broker.topics.entries) + 3)
    codes = Counter([(await broker.send(topic=f"T{number}")).code for number in range(10)])
    assert codes == {ResponseCode.SUCCESS: 3, ResponseCode.SYSTEM_ERROR: 7}
    assert "trioha.topicsMax" in (await broker.send(topic="T9")).remark
    assert (await broker.send(topic="T2")).code == ResponseCode.SUCCESS


async def test_messages_of_one_connection_are_stored_in_the_order_of_their_requests(
    tmp_path, nursery, autojump_clock
):
    broker = Broker(tmp_path, need=1)
    answers = [
        broker.processor(
            request(
                RequestCode.SEND_MESSAGE_V2,
                ext_fields=SendMessageRequestHeader("g", "T", "TBW102", 4, 0, 0, number, 0).to_ext_fields(),
            ),
            PEER,
        )
        for number in range(3)
    ]
    offset = 0
    for number in range(3):
        record = broker.stored(offset)
        assert record.born_timestamp_ms == number
        offset += record.total_size
    assert {(await broker.answered(answer)).code for answer in answers} == {ResponseCode.SLAVE_NOT_AVAILABLE}


async def test_a_negative_queue_id_lets_the_broker_choose_among_the_default_number(broker):
    for _ in range(50):
        await broker.send(queue_id=-1)
    assert {queue for _, queue in broker.log.queue_offsets} == {0, 1, 2, 3}
    for _ in range(20):
        await broker.send(topic="Made", queue_id=-1, default_topic_queue_nums=2**31 - 1)
    assert all(0 <= queue <= 65535 for _, queue in broker.log.queue_offsets)


async def test_lone_surrogates_are_stored_as_by_java(broker):
    answer = await broker.send(properties="TAGS\x01a\ud800\x02")
    assert answer.code == ResponseCode.SUCCESS
    assert parse_properties(broker.stored().properties_raw)["TAGS"] == "a?"


async def test_a_delayed_message_waits_in_the_schedule_topic(broker):
    await broker.send(properties="DELAY\x0199\x02TAGS\x01t")
    record = broker.stored()
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", 17)
    assert parse_properties(record.properties_raw) == {
        "DELAY": "18",
        "TAGS": "t",
        "CLUSTER": "cluster",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "2",
    }


@pytest.mark.parametrize(
    ("levels", "asked", "given"),
    [
        (3, "1", 1),
        (3, "3", 3),
        (3, "4", 3),
        (3, "9" * 9, 3),
        (30, "25", 25),
        (3, "0", None),
        (3, "-3", None),
    ],
)
async def test_the_highest_delay_level_is_that_of_the_brokers_own_table(tmp_path, levels, asked, given):
    broker = Broker(tmp_path, delay_levels=" ".join(["1s"] * levels))
    await broker.send(properties=f"DELAY\x01{asked}\x02")
    record = broker.stored()
    if given is None:
        assert record.topic == "Orders"
        return
    assert (record.topic, record.queue_id) == ("SCHEDULE_TOPIC_XXXX", given - 1)
    assert parse_properties(record.properties_raw)["DELAY"] == str(given)


async def test_a_delay_is_refused_where_there_are_no_levels(tmp_path):
    broker = Broker(tmp_path, delay_levels="")
    answer = await broker.send(properties="DELAY\x011\x02")
    assert (answer.code, "messageDelayLevel" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert broker.log.is_empty
    assert (await broker.send()).code == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION, "SCHEDULE_TOPIC_XXXX"),
        ({"topic": "bad topic"}, ResponseCode.SYSTEM_ERROR, "bad topic"),
        ({"topic": "t" * 128}, ResponseCode.SYSTEM_ERROR, "max length: 127"),
        ({"sys_flag": 4}, ResponseCode.MESSAGE_ILLEGAL, "transactional"),
        ({"sys_flag": 0x80}, ResponseCode.MESSAGE_ILLEGAL, "batches"),
        ({"batch": True}, ResponseCode.MESSAGE_ILLEGAL, "batch"),
        ({"properties": "INNER_NUM\x012\x02"}, ResponseCode.MESSAGE_ILLEGAL, "batches"),
        ({"properties": "DELAY\x01soon\x02"}, ResponseCode.MESSAGE_ILLEGAL, "soon"),
        ({"properties": "DELAY\x01--5\x02"}, ResponseCode.MESSAGE_ILLEGAL, "--5"),
        ({"properties": "DELAY\x01\u0665\x02"}, ResponseCode.MESSAGE_ILLEGAL, "\u0665"),
        ({"properties": f"DELAY\x01{'9' * 5001}\x02"}, ResponseCode.MESSAGE_ILLEGAL, "level"),
        ({"queue_id": 65536}, ResponseCode.SYSTEM_ERROR, "65536"),
        ({"body": bytes(65536)}, ResponseCode.MESSAGE_ILLEGAL, "never fits"),
        ({"body": bytes(5 << 20)}, ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize"),
        ({"properties": "a\x01" + "b" * 32768}, ResponseCode.MESSAGE_ILLEGAL, "32767"),
    ],
)
async def test_an_invalid_send_is_refused_with_its_reason_and_nothing_is_stored(broker, changes, code, said):
    answer = await broker.send(**changes)
    assert answer.code == code
    assert said in answer.remark
    # The Java client reads these without asking.
    assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
    assert broker.log.is_empty


async def test_a_missing_field_is_named(broker):
    answer = await broker.ask(request(RequestCode.SEND_MESSAGE_V2, ext_fields={"a": "g"}))
    assert (answer.code, "topic" in answer.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_a_slave_refuses_messages(tmp_path):
    broker = Broker(tmp_path, is_slave=True)
    answer = await broker.send()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in answer.remark
    assert broker.puts.statistics().statuses == {"SERVICE_NOT_AVAILABLE": 1}


async def test_a_sync_put_is_put_ok_only_after_the_slaves_ack(tmp_path, nursery, autojump_clock):
    broker = Broker(tmp_path, need=1)
    async with connected(broker.master) as (peer, _):
        await peer.report(0)
        await settled()
        answers = []

        async def send():
            answers.append((await broker.send(), trio.current_time()))

        async with trio.open_nursery() as producer:
            producer.start_soon(send)
            started = trio.current_time()
            offset, body = await peer.next_frame()
            await trio.sleep(1.5)
            assert answers == []
            await peer.report(offset + len(body))
        assert answers[0][0].code == ResponseCode.SUCCESS
        assert answers[0][1] - started == 1.5


async def test_timeouts_and_missing_slaves_are_answered_as_stored(tmp_path, nursery, autojump_clock):
    broker = Broker(tmp_path, need=1)
    assert (await broker.send()).code == ResponseCode.SLAVE_NOT_AVAILABLE
    async with connected(broker.master) as (peer, _):
        await peer.report(0)
        await settled()
        answer = await broker.send()
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert SendMessageResponseHeader.of(answer).queue_offset == 1
        assert (await broker.send(properties="WAIT\x01false\x02")).code == ResponseCode.SUCCESS
    statistics = broker.puts.statistics()
    assert statistics.statuses == {"PUT_OK": 1, "FLUSH_SLAVE_TIMEOUT": 1, "SLAVE_NOT_AVAILABLE": 1}
    assert (statistics.messages_stored, statistics.bytes_appended) == (3, broker.log.max_offset)
    assert len(broker.events.of(Kind.PUT)) == 3


async def test_ha_status_has_the_connections(tmp_path, nursery, autojump_clock):
    broker = Broker(tmp_path, need=1)
    await broker.send(properties="WAIT\x01false\x02")
    async with connected(broker.master, host="10.0.0.9", port=4444) as (peer, _):
        await peer.report(0)
        await peer.next_frame()
        await trio.sleep(2)
        answer = await broker.ask(request(RequestCode.GET_BROKER_HA_STATUS))
        info = decode_ha_status(answer.body)
        assert (info.client, info.max_offset, info.in_sync_slaves) == (None, broker.log.max_offset, 1)
        connection = info.connections[0]
        assert (connection.address, connection.ack_offset) == ("10.0.0.9:4444", 0)
        assert connection.sent_offset == connection.lag_bytes == broker.log.max_offset
        assert (connection.state, connection.lag_ms) == ("TRANSFER", 2000)
        assert info.put_statuses == {"PUT_OK": 1}


async def test_a_peer_without_a_request_is_not_a_connection_and_counts_as_probe(
    tmp_path, nursery, autojump_clock
):
    broker = Broker(tmp_path, need=1)
    for host in ("10.0.0.8", "10.0.0.9", "10.0.0.8", "2001:db8::1"):
        async with connected(broker.master, host=host) as (peer, _):
            info = broker.processor._info.ha_status()
            assert (info.in_sync_slaves, info.connections) == (0, ())
            if host == "10.0.0.9":
                await peer.report(-2)
            await peer.stream.aclose()
            await settled()
    answer = await broker.ask(request(RequestCode.GET_BROKER_HA_STATUS))
    status = decode_ha_status(answer.body)
    assert status.probes == {
        "10.0.0.8": {"EOF": 2}, "10.0.0.9": {"BAD_SIZE": 1}, "2001:db8::1": {"EOF": 1},
    }  # fmt: skip
    assert status.ended_connections == {}


async def test_runtime_info_has_every_key_that_mqadmin_reads(broker):
    await broker.send()
    answer = await broker.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = json.loads(bytes(answer.body))["table"]
    assert all(isinstance(value, str) for value in table.values())
    required = MQADMIN_KEYS.split()
    assert set(required) <= table.keys()
    assert table["commitLogMaxOffset"] == str(broker.log.max_offset)
    assert table["msgPutTotalTodayNow"] == "1"
    assert int(table["earliestMessageTimeStamp"]) == broker.stored().store_timestamp_ms


async def test_runtime_info_has_the_counters_of_clients(tmp_path):
    broker = Broker(tmp_path, clients=lambda: ServerStatistics(connections_open=3, protocol_errors=7))
    answer = await broker.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = json.loads(bytes(answer.body))["table"]
    assert (table["trioha.clients.connectionsOpen"], table["trioha.clients.protocolErrors"]) == ("3", "7")
    assert len([key for key in table if key.startswith("trioha.clients.")]) == len(fields(ServerStatistics))


async def test_refusals_of_access_control_are_in_runtime_info_and_ha_status(tmp_path):
    broker = Broker(tmp_path, clients=ServerStatistics, acl_refusals=lambda: 7)
    answer = await broker.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert json.loads(bytes(answer.body))["table"]["trioha.clients.aclRefusals"] == "7"
    answer = await broker.ask(request(RequestCode.GET_BROKER_HA_STATUS))
    assert json.loads(bytes(answer.body))["trioha"]["aclRefusals"] == 7


@pytest.mark.parametrize("code", [11, 315, 999, -5])
async def test_other_request_codes_are_not_supported(broker, code):
    answer = await broker.ask(request(code))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert answer.remark == f" request type {code} not supported"


async def test_put_rates_are_those_of_the_windows(tmp_path, autojump_clock):
    broker = Broker(tmp_path)
    for _ in range(20):
        await broker.send()
        await trio.sleep(1)
    ten, sixty, ten_minutes = broker.puts.statistics().messages_per_s
    assert ten == sixty == ten_minutes == 1.0
    await trio.sleep(30)
    ten, sixty, ten_minutes = broker.puts.statistics().messages_per_s
    assert (ten, sixty, ten_minutes) == (0.0, 20 / 50, 20 / 50)
    await trio.sleep(1000)
    assert broker.puts.statistics().messages_per_s == (0.0, 0.0, 0.0)


async def test_a_subscription_is_answered_with_its_interval_and_count(broker):
    fields = {"triohaEveryMillis": "10", "triohaUpdates": "20"}
    answer = await broker.ask(request(RequestCode.GET_BROKER_HA_STATUS, ext_fields=fields))
    assert answer.ext_fields == {"triohaEveryMillis": "50", "triohaUpdates": "20"}
    assert decode_ha_status(answer.body).is_trioha
    assert broker.updates.subscribers == 1
    fields["triohaUpdates"] = "0"
    await broker.ask(request(RequestCode.GET_BROKER_HA_STATUS, ext_fields=fields))
    assert broker.updates.subscribers == 0


async def test_many_requests_for_runtime_info_use_one_thread(broker, monkeypatch):
    asked = 0

    async def run_in_thread(call):
        nonlocal asked
        asked += 1
        await trio.sleep(0.01)
        return call()

    monkeypatch.setattr("trioha.broker.info.run_in_thread", run_in_thread)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(broker.ask, request(RequestCode.GET_BROKER_RUNTIME_INFO))
    assert asked == 1


V1_NAMES = """
producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties
reconsumeTimes unitMode maxReconsumeTimes batch
"""
FIELDS = {
    RequestCode.SEND_MESSAGE: V1_NAMES.split(),
    RequestCode.SEND_MESSAGE_V2: list("abcdefghijklmn"),
    RequestCode.GET_BROKER_HA_STATUS: ["triohaEveryMillis", "triohaUpdates"],
    RequestCode.GET_BROKER_RUNTIME_INFO: [],
}
RIGHT_TEXT = "group Topic TBW102 4 1 0 1700000000000 0 TAGS\x01t\x02 0 false 3 false b"
RIGHT = RIGHT_TEXT.split(" ")
ODD = [
    "", "0", "-1", "-2147483648", "2147483647", "2147483648", "65535", "65536", "9223372036854775807",
    "-9223372036854775808", "9223372036854775808", "9" * 5000, "--5", "+5", " 5", "5_0", "\u0665", "1.5",
    "NaN", "true", "null", "{}", "\x00", "\x01", "\x02", "\ud800", "\U0001f600", "a" * 32768, "%RETRY%g",
    "%" * 300, "T" * 127, "T" * 128, "SCHEDULE_TOPIC_XXXX", "DELAY\x01x", "DELAY\x013\x02WAIT\x01false",
    "INNER_NUM\x015\x02", "INNER_BASE\x017\x02", "INNER_MULTI_DISPATCH\x01a,b,,a\x02",
    "KEYS\x01" + "k " * 9000, "TIMER_DELAY_SEC\x01x\x02", "WAIT\x01false\x02\x02\x01\x02=\x01", "1e3",
]  # fmt: skip
ODD_JSON = [None, True, 1.5, [], {}, [1], {"a": None}, 10**30]


def header_bytes(chance, code, fields, serialize_type):
    """A frame whose header is not from our encoder: JSON values of any type, any bytes in binary."""
    if serialize_type is SerializeType.ROCKETMQ:
        ext = b"".join(
            pack(">h", len(raw_key)) + raw_key + pack(">i", len(raw)) + raw
            for key, value in fields.items()
            for raw_key, raw in ((key.encode(), value.encode("utf-8", "surrogatepass")),)
        )
        return pack(">hbhiii", code, 0, 0, 1, 0, 0) + pack(">i", len(ext)) + ext
    values = dict(fields)
    for key, value in fields.items():
        if value.isascii() and value.isdecimal() and len(value) < 20 and chance.random() < 0.5:
            values[key] = int(value)
    if values and chance.random() < 0.2:
        values[chance.choice(list(values))] = chance.choice(ODD_JSON)
    return json.dumps({"code": code, "opaque": 1, "extFields": values}).encode()


@pytest.mark.sized
async def test_every_field_of_every_request_in_every_wrong_form_is_answered_and_never_a_bug(broker):
    """In both header formats, as from the wire; all stored records can be read."""
    chance = random.Random(11)
    codes = Counter()
    count = by_level(3000, 6000, 30_000)
    for _ in range(count):
        code = chance.choice(list(FIELDS))
        names = FIELDS[code]
        right = RIGHT if len(names) > 2 else ["100", "20"]
        fields = dict(zip(names, right, strict=False))
        for name in chance.sample(names, min(len(names), chance.choice((0, 1, 1, 1, 2, 3)))):
            if chance.random() < 0.1:
                del fields[name]
            else:
                fields[name] = chance.choice(ODD)
        serialize_type = chance.choice(list(SerializeType))
        header = header_bytes(chance, code, fields, serialize_type)
        body = bytes(chance.choice((0, 1, 100)))
        frame = pack(">II", 4 + len(header) + len(body), serialize_type << 24 | len(header)) + header + body
        decoder = FrameDecoder()
        decoder.feed(frame)
        command = decoder.next_command()
        before = broker.log.max_offset
        try:
            answer = await broker.ask(command)
        except BadRequestError as error:
            # The server answers with its code.
            answer = response_to(command, error.code, remark=error.reason)
        assert encode(answer)
        codes[ResponseCode(answer.code).name] += 1
        if broker.log.max_offset > before:
            record = decode_record(broker.log.read(before, 65536))
            if not isinstance(record, Record):
                # The end of a file.
                before += record.total_size
                record = broker.stored(before)
            assert record.total_size == broker.log.max_offset - before
            assert 0 <= record.queue_id <= 65535
    assert {"SUCCESS", "SYSTEM_ERROR", "MESSAGE_ILLEGAL", "NO_PERMISSION", "TOPIC_NOT_EXIST"} == set(codes)
    assert codes["SUCCESS"] > count // 6
