"""Answers to slaves that ask for metadata: as real masters give them, in pages, and in slices."""

import json
from inspect import isawaitable

import pytest
import trio

from tests.broker.pending_records import SENT, TIMERS, recorded
from tests.metadata.test_replica import SYNC_SESSIONS, replica, store, take
from tests.remoting.recorded import VECTORS, answers, commands
from trioha.broker import metadata_processor
from trioha.broker.metadata_processor import MetadataProcessor
from trioha.broker.timer_records import PendingTimers
from trioha.metadata.data_version import DataVersion
from trioha.metadata.documents import TimerCheckPoint
from trioha.metadata.pretty_json import parse_pretty
from trioha.metadata.replica import CopiedTable
from trioha.metadata.topics import TopicConfig
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.serving import Peer
from trioha.store.message_properties import parse_properties
from trioha.store.topics import TIMER_TOPIC

PEER = Peer(Address("192.0.2.1", 1), 1)
NAMES = [f"T{number}" for number in range(10)]
RECORDS = recorded(TIMERS)


class Reads:
    """What the processor reads of a store."""

    @property
    def reads(self):
        return self

    def __init__(self, *, timers=0, oldest_ms=-1):
        self.timers = timers
        self.oldest_ms = oldest_ms

    def max_offset(self, topic, queue_id):
        assert (topic, queue_id) == (TIMER_TOPIC, 0)
        return self.timers

    def earliest_store_timestamp(self, topic, queue_id):
        assert (topic, queue_id) == (TIMER_TOPIC, 0)
        return self.oldest_ms


def processor(tables, reads=None, **options):
    return MetadataProcessor(tables, reads or Reads(), **options)


async def ask(asked, code, version=Version.V4_9_7, **fields):
    answer = asked.handlers[code](RemotingCommand(code, version=version, ext_fields=fields), PEER)
    if isawaitable(answer):
        answer = await answer
    assert isinstance(answer, RemotingCommand)
    assert answer.code == 0
    return answer


@pytest.mark.parametrize("session", SYNC_SESSIONS)
async def test_a_slave_of_a_slave_gets_what_the_real_master_has_answered(session):
    recorded = answers(session)
    requests = {one.code: one for one in commands(VECTORS / f"{session}.c2s.bin")}
    for code, table in SYNC_SESSIONS[session].items():
        tables = store()
        body = bytes(recorded[code].body)
        take(replica(tables), table, body)
        ours = await ask(processor(tables), code, requests[code].version, **requests[code].ext_fields)
        if table is CopiedTable.TIMER_CHECK_POINT:
            # Positions in the master's own files are not given on.
            theirs = TimerCheckPoint.decode(body)
            assert (len(ours.body), TimerCheckPoint.decode(ours.body)) == (56, theirs)
            continue
        answered, expected = parse_pretty(bytes(ours.body).decode()), parse_pretty(body.decode())
        assert isinstance(answered, dict)
        assert isinstance(expected, dict)
        if table is CopiedTable.CONSUMER_OFFSETS:
            # Derived by RocketMQ, and not read by its slaves.
            expected.pop("groupTopicMap", None)
        if table is CopiedTable.TOPICS and "mappingDataVersion" in expected:
            # trioha has no mappings: a constant version, so that slaves do not write their file again.
            assert answered.pop("mappingDataVersion") == {"counter": 0, "stateVersion": 0, "timestamp": 0}
            del expected["mappingDataVersion"]
        assert answered == expected


async def test_slaves_of_5x_get_a_version_of_offsets_that_have_none():
    tables = store()
    tables.consumer_offsets.commit("G", "T", 0, 5)
    asked = processor(tables)
    old = await ask(asked, RequestCode.GET_ALL_CONSUMER_OFFSET)
    new = await ask(asked, RequestCode.GET_ALL_CONSUMER_OFFSET, Version.V5_3_3)
    assert bytes(old.body) == b'{"offsetTable":{"T@G":{0:5}}}'
    assert bytes(new.body).startswith(
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"offsetTable"'
    )
    delays = await ask(asked, RequestCode.GET_ALL_DELAY_OFFSET, Version.V5_3_3)
    assert b"dataVersion" in bytes(delays.body)


async def pages(asked, size):
    """Asks for topics as a slave of 5.4 does it, until it has all but one at least."""
    found = []
    version, count = "", 0
    while True:
        answer = await ask(
            asked,
            RequestCode.GET_ALL_TOPIC_CONFIG,
            Version.V5_3_3,
            topicSeq=str(count),
            maxTopicNum=str(size),
            dataVersion=version,
        )
        body = json.loads(bytes(answer.body))
        found.append(list(body["topicConfigTable"]))
        version = json.dumps(body["dataVersion"])
        count += len(found[-1])
        if count >= int(answer.ext_fields["totalTopicNum"]) - 1:
            return found


@pytest.mark.parametrize("size", [1, 3, 10, 2000])
async def test_a_slave_that_asks_for_pages_gets_every_topic_once(size):
    tables = store()
    for name in NAMES:
        tables.topics.put(TopicConfig(name))
    found = await pages(processor(tables), size)
    assert [name for page in found for name in page] == NAMES
    assert max(map(len, found)) <= size + 1


async def test_a_page_of_another_version_begins_at_the_first_topic():
    tables = store()
    for name in NAMES:
        tables.topics.put(TopicConfig(name))
    answer = await ask(
        processor(tables),
        RequestCode.GET_ALL_TOPIC_CONFIG,
        Version.V5_3_3,
        topicSeq="4",
        maxTopicNum="2",
        dataVersion='{"counter":1,"timestamp":1}',
    )
    assert list(json.loads(bytes(answer.body))["topicConfigTable"]) == ["T0", "T1"]
    for fields in ({"topicSeq": "-1"}, {"topicSeq": "0", "dataVersion": "["}, {"maxTopicNum": "x"}):
        with pytest.raises(BadRequestError):
            await ask(processor(tables), RequestCode.GET_ALL_TOPIC_CONFIG, **fields)


async def test_other_tasks_run_while_a_large_table_is_encoded():
    tables = store()
    for number in range(1000):
        tables.topics.put(TopicConfig(f"T{number}"))
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        asked = processor(tables)
        first = await ask(asked, RequestCode.GET_ALL_TOPIC_CONFIG)
        assert turns >= 10
        tables.topics.delete("T7")
        second = await ask(asked, RequestCode.GET_ALL_TOPIC_CONFIG)
        nursery.cancel_scope.cancel()
    assert json.loads(bytes(first.body))["topicConfigTable"].keys() - json.loads(bytes(second.body))[
        "topicConfigTable"
    ].keys() == {"T7"}


async def asked_check_point(asked):
    answer = await ask(asked, RequestCode.GET_TIMER_CHECK_POINT, Version.V5_3_3)
    return TimerCheckPoint.decode(answer.body)


async def test_what_waits_is_counted_and_all_before_it_is_said_to_be_delivered(monkeypatch):
    """Whatever the former master answered: the log may end before what that had delivered, or after it."""
    monkeypatch.setattr(metadata_processor, "wall_clock_ms", lambda: 1_700_000_009_999)
    waiting_ms = None
    tables = store()
    former = TimerCheckPoint(1_700_000_007_000, 5, DataVersion(3, 1_700_000_006_000, 2))
    tables.timers.set_check_point(former)
    asked = processor(tables, Reads(timers=7, oldest_ms=1_600_000_000_000), timers_from_ms=lambda: waiting_ms)
    assert await asked_check_point(asked) == former
    for counted_ms, said_ms in (
        (1_700_000_003_000, 1_700_000_003_000),
        # Slots of a precision below a second, and a clock that was ahead at the count.
        (1_700_000_003_200, 1_700_000_003_000),
        (1_800_000_000_000, 1_700_000_009_000),
    ):
        waiting_ms = counted_ms
        assert await asked_check_point(asked) == TimerCheckPoint(said_ms, 7, former.version)


async def test_a_broker_with_the_timers_of_another_says_that_none_is_delivered_until_they_are_counted():
    """They are due after they were stored, in a slot up to 1 s before that."""
    reads = Reads(timers=7, oldest_ms=1_700_000_003_456)
    check_point = await asked_check_point(processor(store(), reads))
    assert (check_point.last_read_ms, check_point.master_queue_offset) == (1_700_000_002_000, 7)


async def test_a_broker_without_timers_says_so_with_a_time_of_today():
    """A check point of 0 would make the timer of a promoted slave begin in 1970."""
    answer = await ask(processor(store()), RequestCode.GET_TIMER_CHECK_POINT, Version.V5_3_3)
    check_point = TimerCheckPoint.decode(answer.body)
    assert (len(answer.body), check_point.master_queue_offset) == (56, 0)
    assert check_point.last_read_ms > 1_700_000_000_000
    metrics = await ask(processor(store()), RequestCode.GET_TIMER_METRICS, Version.V5_3_3)
    assert json.loads(bytes(metrics.body))["timingCount"] == {}


async def test_a_master_answers_how_many_timers_of_each_topic_wait():
    timers = PendingTimers()
    tables = store()
    tables.timers.set_metrics({"TopicTimer": {"count": 8, "timeStamp": 1}}, DataVersion(3, 7, 2))
    counted = None
    asked = processor(tables, pending=lambda: counted)

    async def metrics():
        return json.loads(bytes((await ask(asked, RequestCode.GET_TIMER_METRICS, Version.V5_3_3)).body))

    former = await metrics()
    assert former["timingCount"] == {"TopicTimer": {"count": 8, "timeStamp": 1}}
    assert former["dataVersion"] == {"counter": 3, "stateVersion": 2, "timestamp": 7}
    counted = timers
    for waiting, records in ((8, RECORDS[:SENT]), (1, RECORDS[SENT:])):
        for record in records:
            timers.add(record, parse_properties(record.properties_raw))
        last_ms = records[-1].store_timestamp_ms
        found = await metrics()
        assert found["timingCount"] == {"TopicTimer": {"count": waiting, "timeStamp": last_ms}}
        assert found["dataVersion"] == {"counter": timers.changes, "stateVersion": 0, "timestamp": last_ms}
