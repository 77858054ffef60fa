"""Requests of mqadmin: topics, groups, offsets, statistics and configuration."""

import json
from functools import partial

import pytest
import trio

from tests.broker.consuming import GROUP, PEER, TOPIC, Broker, records_of
from tests.store.support import message
from trioha.broker.admin_answers import NO_CHANGE_ON_SLAVE, NO_RESET_ON_SLAVE
from trioha.broker.admin_config import at_run_time
from trioha.config.update import ConfigFile
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.topics import TopicConfig
from trioha.remoting.address import Address
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import LanguageCode, RequestCode, ResponseCode, Version
from trioha.remoting.command import RemotingCommand
from trioha.remoting.fastjson import parse_json
from trioha.remoting.serving import Peer

V5 = int(Version.V5_3_3)
QUEUE_0 = (("brokerName", "broker-a"), ("queueId", 0), ("topic", TOPIC))


async def here(call):
    """In this thread, so that virtual time stands still."""
    return call()


@pytest.fixture
async def broker(tmp_path, nursery):
    made = Broker(tmp_path)
    nursery.start_soon(partial(made.metadata.run, in_thread=here))
    return made


def value_of(answer):
    assert answer.code == ResponseCode.SUCCESS, answer
    return parse_json(bytes(answer.body))


def on_disk(broker, name):
    return json.loads((broker.metadata.settings.folder / name).read_text())


def topic_fields(name, **changes):
    fields = {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", **changes,
    }  # fmt: skip
    return {key: str(value) for key, value in fields.items()}


# -- topics --------------------------------------------------------------------------------------------------


async def test_a_created_topic_is_in_its_file_when_the_answer_comes(broker):
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Made", order="true"))
    assert answer.code == ResponseCode.SUCCESS
    topic = broker.metadata.topics.find("Made")
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.order) == (3, 2, 6, True)
    assert on_disk(broker, "topics.json")["topicConfigTable"]["Made"]["readQueueNums"] == 3


async def test_a_changed_topic_keeps_what_the_request_does_not_name(broker):
    broker.metadata.topics.put(TopicConfig("Made", other={"attributes": {"message.type": "FIFO"}, "x": 1}))
    await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("Made", perm=4))
    topic = broker.metadata.topics.find("Made")
    assert (topic.perm, topic.other) == (4, {"attributes": {"message.type": "FIFO"}, "x": 1})
    changes = topic_fields("Made", attributes="-message.type")
    await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, changes, version=V5)
    changes = topic_fields("Made", attributes="+message.type=DELAY")
    await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, changes, version=V5)
    assert broker.metadata.topics.find("Made").other["attributes"] == {"message.type": "DELAY"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topic": ""}, "blank"),
        ({"topic": "a/b"}, "illegal characters"),
        ({"topic": "SELF_TEST_TOPIC"}, "conflict with system topic"),
        ({"readQueueNums": "x"}, "readQueueNums"),
        ({"writeQueueNums": 65537}, "writeQueueNums"),
        ({"perm": 16}, "perm"),
        ({"topicFilterType": "X"}, "topicFilterType"),
        ({"attributes": "+queue.type=BatchCQ"}, "queue.type"),
        ({"attributes": "+message.type=X"}, "message.type"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(broker, changes, words):
    before = dict(broker.metadata.topics.entries)
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {**topic_fields("Made"), **changes})
    assert answer.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER}
    assert words in answer.remark
    assert broker.metadata.topics.entries == before


async def test_a_deleted_topic_loses_its_queues_offsets_and_statistics(broker):
    broker.put(b"a", b"b")
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    broker.metadata.consumer_offsets.commit(GROUP, "Other", 0, 1)
    broker.admin.traffic.note_put(TOPIC, 2, 2)
    answer = await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert answer.code == ResponseCode.SUCCESS
    assert broker.metadata.topics.find(TOPIC) is None
    assert TOPIC not in on_disk(broker, "topics.json")["topicConfigTable"]
    assert broker.metadata.consumer_offsets.find(GROUP, TOPIC, 0) is None
    assert broker.metadata.consumer_offsets.find(GROUP, "Other", 0) == 1
    assert broker.store.reads.max_offset(TOPIC, 0) == 0
    assert TOPIC not in broker.admin.traffic.puts.keys
    # The next messages are the first ones.
    broker.metadata.topics.put(TopicConfig(TOPIC, 4, 4))
    broker.put(b"c")
    pulled = broker.pull()
    assert [(record.queue_offset, record.body) for record in records_of(pulled.body)] == [(0, b"c")]


async def test_a_deletion_waits_for_the_dispatch_of_the_last_messages(broker, nursery, autojump_clock):
    broker.put(b"a")
    broker.store.commit_log.append(message(b"late", topic=TOPIC))
    done = []

    async def delete():
        done.append(await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}))

    nursery.start_soon(delete)
    await trio.sleep(1)
    assert not done
    broker.store.dispatcher.dispatch(broker.store.commit_log.max_offset)
    await trio.sleep(1)
    assert [answer.code for answer in done] == [ResponseCode.SUCCESS]
    assert broker.store.reads.max_offset(TOPIC, 0) == 0
    assert not any(name == TOPIC for name, _ in broker.store.commit_log.queue_offsets)


async def test_a_deletion_is_completed_when_its_client_disconnects(broker, nursery, autojump_clock):
    broker.put(b"a")
    broker.store.commit_log.append(message(b"late", topic=TOPIC))
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)

    async def delete(task_status):
        with trio.CancelScope() as connection:
            task_status.started(connection)
            await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})

    connection = await nursery.start(delete)
    await trio.sleep(1)
    connection.cancel()
    await trio.sleep(1)
    broker.store.dispatcher.dispatch(broker.store.commit_log.max_offset)
    await trio.sleep(1)
    assert broker.store.reads.max_offset(TOPIC, 0) == 0
    assert broker.metadata.consumer_offsets.find(GROUP, TOPIC, 0) is None


async def test_a_deletion_without_dispatch_says_what_is_left(broker, autojump_clock):
    broker.store.commit_log.append(message(b"late", topic=TOPIC))
    answer = await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "Stop its producers" in answer.remark


async def test_a_deleted_system_topic_is_refused_and_an_unknown_one_is_gone(broker):
    refused = await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TBW102"})
    assert "conflict with system topic" in refused.remark
    broker.metadata.topics.put(TopicConfig("x"))
    assert (await broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "NoSuch"})).code == 0


async def test_topic_stats_have_the_ends_of_each_queue(broker, autojump_clock):
    broker.put(b"a", b"b")
    value = value_of(await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}))
    assert set(value) == {"offsetTable"}
    assert len(value["offsetTable"]) == 4
    first = value["offsetTable"][QUEUE_0]
    assert (first["minOffset"], first["maxOffset"]) == (0, 2)
    assert first["lastUpdateTimestamp"] == broker.store.reads.store_timestamp(TOPIC, 0, 1)
    assert value["offsetTable"][(*QUEUE_0[:1], ("queueId", 3), QUEUE_0[2])] == {
        "lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0,
    }  # fmt: skip
    broker.admin.traffic.note_put(TOPIC, 6, 600)
    await trio.sleep(3)
    of_5 = value_of(await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, version=V5))
    assert of_5["topicPutTps"] == 2.0


async def test_an_answer_that_would_be_too_long_is_refused(broker, monkeypatch):
    monkeypatch.setattr("trioha.broker.admin_answers.ANSWER_BYTES_MAX", 300)
    answer = await broker.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "more than 300 bytes" in answer.remark


# -- groups --------------------------------------------------------------------------------------------------


async def test_a_changed_group_is_in_its_file_when_the_answer_comes(broker):
    body = json.dumps({"groupName": "G", "retryMaxTimes": 3, "groupSysFlag": 1}).encode()
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS
    assert broker.metadata.groups.find("G") == SubscriptionGroup(
        "G", retry_max_times=3, other={"groupSysFlag": 1}
    )
    assert on_disk(broker, "subscriptionGroup.json")["subscriptionGroupTable"]["G"]["retryMaxTimes"] == 3
    value = value_of(await broker.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "G"}))
    assert (value["groupName"], value["retryMaxTimes"]) == ("G", 3)


async def test_a_client_of_5_x_that_asks_for_an_unknown_group_has_it_made(broker):
    asked = (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "New"})
    assert (await broker.ask(*asked)).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    value = value_of(await broker.ask(*asked, version=int(Version.V5_3_3)))
    assert (value["groupName"], value["retryMaxTimes"]) == ("New", 16)
    assert broker.metadata.groups.find("New") is not None
    wrong = await broker.ask(asked[0], {"group": "a/b"}, version=int(Version.V5_3_3))
    assert wrong.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"groupName":""}',
        b'{"groupName":"a b"}',
        b'{"groupName":"a","brokerId":-1}',
        b" " * 20_000,
    ],
)
async def test_a_body_that_is_no_group_is_refused(broker, body):
    before = dict(broker.metadata.groups.entries)
    answer = await broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert broker.metadata.groups.entries == before


@pytest.mark.parametrize("flag", ["removeOffset", "cleanOffset"])
async def test_a_deleted_group_keeps_its_offsets_unless_the_request_says_otherwise(broker, flag):
    for _ in range(2):
        broker.metadata.groups.put(SubscriptionGroup(GROUP))
        broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
        await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP})
        assert broker.metadata.groups.find(GROUP) is None
        assert broker.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == 1
    await broker.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, flag: "true"})
    assert broker.metadata.consumer_offsets.find(GROUP, TOPIC, 0) is None


# -- offsets -------------------------------------------------------------------------------------------------


async def test_consume_stats_have_the_lag_of_each_queue(broker, autojump_clock):
    broker.put(b"a", b"b", b"c")
    broker.metadata.groups.put(SubscriptionGroup(GROUP))
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    broker.metadata.consumer_offsets.commit(GROUP, "Deleted", 0, 1)
    broker.pull(maxMsgNums=2)
    await trio.sleep(10)
    value = value_of(await broker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}))
    assert value["consumeTps"] == pytest.approx(0.2)
    assert len(value["offsetTable"]) == 4
    assert value["offsetTable"][QUEUE_0] == {
        "brokerOffset": 3,
        "consumerOffset": 1,
        "lastTimestamp": broker.store.reads.store_timestamp(TOPIC, 0, 0),
    }
    asked = {"consumerGroup": GROUP, "topicList": f"{TOPIC};NoSuch"}
    of_5 = value_of(await broker.ask(RequestCode.GET_CONSUME_STATS, asked, version=V5))
    assert of_5["offsetTable"][QUEUE_0]["pullOffset"] == 2
    value = value_of(await broker.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, version=V5))
    assert (value["brokerAddr"], value["totalDiff"], value["totalInflightDiff"]) == ("127.0.0.1:10911", 2, 1)
    (stats,) = [stats[GROUP] for stats in value["consumeStatsList"] if GROUP in stats]
    assert stats == [{"consumeTps": of_5["consumeTps"], "offsetTable": of_5["offsetTable"]}]
    value = value_of(await broker.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"}))
    assert all(stats == [] for group in value["consumeStatsList"] for stats in group.values())
    assert value["totalDiff"] == 0


async def test_topics_that_the_connected_consumers_have_left_are_not_in_consume_stats(broker):
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 1)
    await broker.heartbeat(topics=("Else",))
    value = value_of(await broker.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}))
    assert value["offsetTable"] == {}


def reset_fields(**changes):
    fields = {"topic": TOPIC, "group": GROUP, "timestamp": 0, "isForce": "true", **changes}
    return {key: str(value) for key, value in fields.items()}


@pytest.fixture
def resetting(broker):
    """Three messages in queue 0, of which the group has consumed two."""
    broker.put(b"a", b"b", b"c")
    broker.metadata.groups.put(SubscriptionGroup(GROUP))
    broker.metadata.consumer_offsets.commit(GROUP, TOPIC, 0, 2)
    return broker


async def test_a_reset_goes_to_the_connected_consumers(resetting):
    await resetting.heartbeat("c1")
    await resetting.heartbeat("c2", peer=Peer(Address("192.0.2.8", 5555), 2))
    answer = await resetting.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields())
    assert value_of(answer)["offsetTable"][QUEUE_0] == 0
    assert [connection for connection, _ in resetting.pushed] == [1, 2]
    decoder = FrameDecoder()
    decoder.feed(resetting.pushed[0][1])
    sent = decoder.next_command()
    assert (sent.code, sent.is_oneway) == (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, True)
    assert sent.ext_fields == {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "false"}
    assert parse_json(bytes(sent.body)) == value_of(answer)
    # The consumers commit it, when they have gone back.
    assert resetting.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == 2


async def test_consumers_of_cpp_get_their_form_of_a_reset(resetting):
    await resetting.heartbeat("c1")
    command = RemotingCommand(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, 7, 0, None, reset_fields(), language=LanguageCode.CPP
    )
    await resetting.handlers[command.code](command, PEER)
    decoder = FrameDecoder()
    decoder.feed(resetting.pushed[0][1])
    assert parse_json(bytes(decoder.next_command().body))["offsetTable"][0] == {
        "brokerName": "broker-a", "offset": 0, "queueId": 0, "topic": TOPIC
    }  # fmt: skip


async def test_without_consumers_4_9_is_told_so_and_5_x_has_the_offsets_committed(resetting):
    answer = await resetting.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields())
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert resetting.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == 2
    answer = await resetting.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields(), version=V5)
    assert answer.code == ResponseCode.SUCCESS
    assert resetting.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == 0
    assert resetting.pushed == []


@pytest.mark.parametrize(
    ("changes", "offset"),
    [
        ({"timestamp": -1}, 3),
        ({"timestamp": -1, "isForce": "false"}, 2),
        ({"timestamp": 0, "isForce": "false"}, 0),
        ({"timestamp": 2**62}, 3),
        ({"queueId": 0, "offset": 1}, 1),
        ({"queueId": 0, "timestamp": -1}, 3),
    ],
)
async def test_offsets_after_a_reset(resetting, changes, offset):
    await resetting.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields(**changes), version=V5)
    assert resetting.metadata.consumer_offsets.find(GROUP, TOPIC, 0) == offset


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "NoSuch"},
        {"group": "NoSuch"},
        {"queueId": 9},
        {"queueId": -2},
        {"queueId": 0, "offset": 9},
        {"timestamp": "x"},
    ],
)
async def test_a_reset_that_makes_no_sense_is_refused(resetting, changes):
    answer = await resetting.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields(**changes), version=V5
    )
    assert answer.code in {ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
    assert resetting.metadata.consumer_offsets.of_group(GROUP, TOPIC) == {0: 2}


# -- statistics ----------------------------------------------------------------------------------------------


async def test_statistics_of_a_topic_and_a_group(broker, autojump_clock):
    broker.admin.traffic.note_put(TOPIC, 3, 300)
    broker.put(b"a")
    broker.pull()
    await trio.sleep(6)

    async def view(name, key):
        return await broker.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})

    value = value_of(await view("TOPIC_PUT_NUMS", TOPIC))
    assert value == {
        name: {"avgpt": 3.0, "sum": 3, "tps": 0.5} for name in ("statsDay", "statsHour", "statsMinute")
    }
    assert value_of(await view("TOPIC_PUT_SIZE", TOPIC))["statsMinute"]["sum"] == 300
    assert value_of(await view("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}"))["statsDay"]["sum"] == 1
    assert value_of(await view("BROKER_GET_NUMS", "DefaultCluster"))["statsDay"]["sum"] == 1
    unknown = await view("TOPIC_PUT_NUMS", "NoSuch")
    assert (unknown.code, unknown.remark) == (1, "The stats <TOPIC_PUT_NUMS> <NoSuch> not exist")


# -- configuration -------------------------------------------------------------------------------------------


@pytest.fixture
async def configured(tmp_path):
    """A broker with a broker.conf, and what was applied."""
    path = tmp_path / "broker.conf"
    path.write_text("# mine\nfileReservedTime=72\n")
    path.chmod(0o640)
    applied = []
    settings = [at_run_time("file_reserved_time", apply=applied.append)]
    made = Broker(tmp_path, config_file=ConfigFile(path), run_time_settings=settings)
    made.path, made.applied = path, applied
    return made


async def test_a_changed_setting_is_in_the_file_and_in_effect(configured):
    before = json.loads((await configured.ask(RequestCode.GET_BROKER_CONFIG)).ext_fields["version"])
    answer = await configured.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24\n")
    assert answer.code == ResponseCode.SUCCESS
    assert [config.file_reserved_time for config in configured.applied] == [24]
    assert configured.path.read_text() == "# mine\nfileReservedTime=24\n"
    assert configured.path.with_name("broker.conf.bak").read_text() == "# mine\nfileReservedTime=72\n"
    assert configured.path.stat().st_mode & 0o777 == 0o640
    shown = await configured.ask(RequestCode.GET_BROKER_CONFIG)
    assert b"\nfileReservedTime=24\n" in bytes(shown.body)
    assert json.loads(shown.ext_fields["version"])["counter"] == before["counter"] + 1


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"flushDiskType=SYNC_FLUSH\n", 16, "flushDiskType can only be changed by a restart"),
        (b"fileReservedTime=24\nlistenPort=1\n", 16, "listenPort"),
        (b"fileReservedTime=never\n", 1, "fileReservedTime"),
        (b"nonsense=1\n", 1, "nonsense"),
        (b"# nothing\n", 1, "no settings"),
        (b"a=\\u12\n", 1, "hexadecimal"),
        (b"x" * 70_000, 1, "at most"),
    ],
)
async def test_a_change_that_cannot_be_made_changes_nothing(configured, body, code, words):
    answer = await configured.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
    assert answer.code == code
    assert words in answer.remark
    assert configured.applied == []
    assert configured.path.read_text() == "# mine\nfileReservedTime=72\n"


async def test_a_file_that_cannot_be_written_changes_nothing(configured, monkeypatch):
    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trioha.broker.admin_config.replace_file", full)
    answer = await configured.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24\n")
    assert "No space left on device" in answer.remark
    assert configured.applied == []


async def test_a_broker_without_a_file_refuses_changes(broker):
    answer = await broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=24\n")
    assert answer.code == ResponseCode.NO_PERMISSION


# -- slaves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields", "body", "remark"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields("T"), b"", NO_CHANGE_ON_SLAVE),
        (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, b"", NO_CHANGE_ON_SLAVE),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}', NO_CHANGE_ON_SLAVE),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"}, b"", NO_CHANGE_ON_SLAVE),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_fields(), b"", NO_RESET_ON_SLAVE),
    ],
)
async def test_a_slave_refuses_to_change_what_its_master_has(tmp_path, code, fields, body, remark):
    answer = await Broker(tmp_path, role="SLAVE").ask(code, fields, body=body)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)


@pytest.mark.parametrize("code", [17, 202, 203, 204, 207, 208, 215, 222, 300, 315, 351, 352])
async def test_a_request_without_its_fields_is_refused(broker, code):
    answer = await broker.ask(code)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is missing" in answer.remark
