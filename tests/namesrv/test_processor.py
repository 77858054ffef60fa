"""Requests of a name server that no recording has, answered as real ones of 4.9.7 and 5.3.3 were seen to."""

import gc
import json
import zlib
from itertools import pairwise
from struct import pack

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.namesrv.values import Asked, body_with, identity, register, topics
from tests.remoting.values import ANY_TEXT, WRONG_NUMBERS, json_values
from trioha.metadata.registration import body_crc
from trioha.namesrv.processor import LARGE_BODY_BYTES
from trioha.namesrv.registry import SLICE_TOPICS, Registry, RegistryLimits
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.fastjson import parse_json

C = RequestCode
WHO = {"brokerName": "broker-a", "brokerAddr": "h:1", "clusterName": "C", "brokerId": "0"}


@pytest.fixture
def server(tmp_path):
    return Asked(tmp_path)


def body_of(answer):
    return parse_json(answer.body)


async def test_what_is_known_of_nothing(server):
    async def asked(code, **fields):
        answer = await server.ask(code, version=479, **fields)
        return answer.code, body_of(answer) if answer.body else None

    assert await asked(C.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == (0, {"topicList": []})
    assert await asked(C.GET_SYSTEM_TOPIC_LIST_FROM_NS) == (0, {"topicList": []})
    assert await asked(C.GET_TOPICS_BY_CLUSTER, cluster="X") == (0, {"topicList": []})
    assert await asked(C.GET_BROKER_CLUSTER_INFO) == (0, {"brokerAddrTable": {}, "clusterAddrTable": {}})
    assert await asked(C.BROKER_HEARTBEAT, clusterName="C", brokerName="z", brokerAddr="q:1") == (0, None)
    assert await asked(C.DELETE_TOPIC_IN_NAMESRV, topic="T") == (0, None)
    assert await asked(C.DELETE_KV_CONFIG, namespace="N", key="k") == (0, None)
    assert await asked(C.UNREGISTER_BROKER, **WHO) == (0, None)


async def test_a_registration_is_checked_before_it_counts(server):
    body = body_with(topics("T", "U"))

    async def asked(data=body, **fields):
        answer = await server.ask(C.REGISTER_BROKER, data, **{**WHO, "haServerAddr": "h:2", **fields})
        return answer.code, answer.remark

    assert await asked(bodyCrc32="1") == (1, "crc32 not match")
    assert (await asked(b"{nonsense"))[0] == 1
    assert (await asked(b"x\x9c" + b"\0" * 20, compressed="true"))[0] == 1
    assert (await asked(brokerId="-1"))[0] == 1
    assert (await asked(brokerName="n" * 300))[0] == 1
    assert (await asked(haServerAddr="h" * 300))[0] == 1
    assert server.registry.live == ()
    missing = await server.ask(C.REGISTER_BROKER, body, brokerAddr="h:1")
    assert (missing.code, missing.remark) == (1, "request header field clusterName is missing")
    assert await asked(bodyCrc32=str(body_crc(body))) == (0, None)
    assert await asked() == (0, None)
    assert set(server.registry.topics) == {"T", "U"}


async def test_a_broker_may_register_without_a_body(server):
    assert (await server.ask(C.REGISTER_BROKER, **WHO)).code == 0
    assert [live.identity.address for live in server.registry.live] == ["h:1"]


async def test_a_timeout_that_a_broker_asks_for_is_its_own(server):
    await server.ask(C.REGISTER_BROKER, **WHO, heartbeatTimeoutMillis="3000")
    server.clock.now += 3.1
    assert [gone.address for gone in server.registry.expire()] == ["h:1"]
    await server.ask(C.REGISTER_BROKER, **WHO)
    heartbeat = {name: WHO[name] for name in ("clusterName", "brokerAddr", "brokerName")}
    await server.ask(C.BROKER_HEARTBEAT, **heartbeat, heartbeatTimeoutMills="1000")
    server.clock.now += 1.1
    assert [gone.address for gone in server.registry.expire()] == ["h:1"]


async def test_ordered_topics_are_told_to_brokers_and_clients(tmp_path):
    server = Asked(tmp_path)
    await server.ask(C.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    told = await server.ask(C.REGISTER_BROKER, body_with(topics("T", "U")), **WHO)
    silent = await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="T")
    await server.ask(C.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\nunknown=x\n")
    route = await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="T")
    other = await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="U")
    await server.ask(C.UPDATE_NAMESRV_CONFIG, b"returnOrderTopicConfigToBroker=false")
    untold = await server.ask(C.REGISTER_BROKER, body_with(topics("T", "U")), **WHO)

    assert body_of(told) == {"table": {"T": "broker-a:4"}}
    assert b"orderTopicConf" not in bytes(silent.body) + bytes(other.body)
    assert json.loads(bytes(route.body))["orderTopicConf"] == "broker-a:4"
    assert bytes(untold.body) == b""


async def test_the_last_value_of_a_namespace_leaves_it_empty(server):
    await server.ask(C.PUT_KV_CONFIG, namespace="N", key="k", value="v")
    await server.ask(C.DELETE_KV_CONFIG, namespace="N", key="k")
    assert body_of(await server.ask(C.GET_KVLIST_BY_NAMESPACE, namespace="N")) == {"table": {}}
    assert (await server.ask(C.GET_KV_CONFIG, namespace="N", key="k")).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_client_of_a_zone_gets_the_brokers_of_its_zone(server):
    for name, zone in (("z1", "east"), ("z2", "west"), ("z3", "")):
        fields = {"brokerName": name, "brokerAddr": f"{name}:1", "__ZONE_NAME": zone}
        await server.ask(C.REGISTER_BROKER, body_with(topics("T", "U")), **{**WHO, **fields})

    async def brokers(**fields):
        answer = await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="T", version=479, **fields)
        route = json.loads(bytes(answer.body))
        names = [group["brokerName"] for group in route["brokerDatas"]]
        assert [data["brokerName"] for data in route["queueDatas"]] == names
        return names

    assert await brokers(__ZONE_MODE="true", __ZONE_NAME="EAST") == ["z1"]
    assert await brokers(__ZONE_MODE="true", __ZONE_NAME="north") == []
    assert await brokers(__ZONE_NAME="east") == ["z1", "z2", "z3"]
    # A slave without its master is for all.
    register(server.registry, identity(1, name="z4"), topics("T", "U"), acting_master=False)
    assert await brokers(__ZONE_MODE="true", __ZONE_NAME="west") == ["z2", "z4"]


async def test_a_slave_may_act_as_master_where_that_is_enabled(tmp_path):
    server = Asked(tmp_path, support_acting_master=True)
    register(server.registry, identity(1), topics("T", "U"), acting_master=True)
    answer = await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="T", version=479)
    (group,) = json.loads(bytes(answer.body))["brokerDatas"]
    assert group["brokerAddrs"] == {"0": "broker-a:10912"}
    assert group["enableActingMaster"] is True


async def test_write_permission_is_wiped_and_given_back(server):
    register(server.registry, identity(), topics("T", "U"))
    wiped = await server.ask(C.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    added = await server.ask(C.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    unknown = await server.ask(C.WIPE_WRITE_PERM_OF_BROKER, brokerName="zz")
    assert wiped.ext_fields == {"wipeTopicCount": "2"}
    assert added.ext_fields == {"addTopicCount": "2"}
    assert unknown.ext_fields == {"wipeTopicCount": "0"}


async def test_unit_topics_are_listed_by_their_flags(server):
    register(server.registry, identity(), topics("T0"))
    for flags in (1, 2, 3):
        register(server.registry, identity(), topics(f"T{flags}", sys_flag=flags, counter=1 + flags))

    async def listed(code):
        return body_of(await server.ask(code))

    assert await listed(C.GET_UNIT_TOPIC_LIST) == {"topicList": ["T1", "T3"]}
    assert await listed(C.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"topicList": ["T2", "T3"]}
    assert await listed(C.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"topicList": ["T2"]}


async def test_a_topic_is_registered_and_deleted_alone(server):
    register(server.registry, identity(), topics("T", "U"))
    data = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    body = json.dumps({"queueDatas": [data, {"brokerName": "zz"}, 7], "brokerDatas": []}).encode()
    assert (await server.ask(C.REGISTER_TOPIC_IN_NAMESRV, body, topic="S")).code == 0
    route = json.loads(bytes((await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="S")).body))
    assert route["queueDatas"] == [data]
    await server.ask(C.DELETE_TOPIC_IN_NAMESRV, topic="S", clusterName="Elsewhere")
    assert (await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="S")).code == 0
    await server.ask(C.DELETE_TOPIC_IN_NAMESRV, topic="S", clusterName="Cluster")
    assert (await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="S")).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/x", ResponseCode.NO_PERMISSION),
        (b"configStorePath=/x", ResponseCode.NO_PERMISSION),
        (b"listenPort=1234", ResponseCode.NO_PERMISSION),
        (b"orderMessageEnable=true\nscanNotActiveBrokerInterval=abc", ResponseCode.SYSTEM_ERROR),
        (b"x" * 70_000, ResponseCode.SYSTEM_ERROR),
        (b"", ResponseCode.SUCCESS),
    ],
)
async def test_settings_that_cannot_be_changed_change_nothing(server, body, code):
    before = await server.ask(C.GET_NAMESRV_CONFIG)
    assert (await server.ask(C.UPDATE_NAMESRV_CONFIG, body)).code == code
    assert bytes((await server.ask(C.GET_NAMESRV_CONFIG)).body) == bytes(before.body)
    assert b"orderMessageEnable=false\n" in bytes(before.body)


async def test_a_compressed_body_is_read_also_if_it_is_denied(server):
    """Brokers of 5.3.3 compress their body and say that they did not."""

    def part(text):
        return pack(">i", len(text)) + text.encode()

    mapping = '{"bname":"broker-a","currIdMap":{0:0,1:1},"epoch":1,"topic":"T","totalQueues":2}'
    whole = (
        part('{"counter":3,"stateVersion":0,"timestamp":7}')
        + pack(">i", 2)
        + part("T 4 8 6 SINGLE_TAG {}")
        + part('U 1 1 4 SINGLE_TAG {"+cleanup.policy":"x y"}')
        + part("[]")
        + pack(">i", 1)
        + part(mapping)
    )
    body = zlib.compress(whole, 9)
    answer = await server.ask(C.REGISTER_BROKER, body, version=479, **WHO, compressed="false")
    assert (answer.code, answer.remark) == (0, None)
    route = json.loads(bytes((await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="T", version=479)).body))
    assert route["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
    ]
    assert route["topicQueueMappingByBroker"]["broker-a"]["currIdMap"] == {"0": 0, "1": 1}
    for end in range(1, len(whole)):
        cut = await server.ask(C.REGISTER_BROKER, zlib.compress(whole[:end]), version=479, **WHO)
        assert cut.code in {0, 1}


async def test_a_large_registration_is_taken_like_a_small_one(server):
    names = [f"topic-{number:05}" for number in range(2000)]
    body = body_with(topics(*names))
    assert len(body) > LARGE_BODY_BYTES
    assert (await server.ask(C.REGISTER_BROKER, body, **WHO)).code == 0
    assert set(server.registry.topics) == set(names)
    cut = await server.ask(C.REGISTER_BROKER, body[:-9], **WHO)
    assert (cut.code, len(server.registry.topics)) == (1, 2000)
    full = Registry(clock=server.clock, limits=RegistryLimits(topics_max=1999))
    server.processor.registry = full
    refused = await server.ask(C.REGISTER_BROKER, body, **WHO)
    assert refused.code == 1
    assert "2000 new topics are too many" in (refused.remark or "")
    assert full.live == ()


LARGE = [f"topic-{number:05}" for number in range(10_000)]


async def between_slices(server, act):
    """Register LARGE, and do something once half of it is merged: the registration's answer."""
    answers = []
    async with trio.open_nursery() as nursery:

        async def watch():
            while len(server.registry.topics) < len(LARGE) // 2:
                await trio.lowlevel.checkpoint()
            assert len(server.registry.topics) < len(LARGE)
            await act()

        nursery.start_soon(watch)
        answers.append(await server.ask(C.REGISTER_BROKER, body_with(topics(*LARGE)), **WHO))
    return answers[0]


async def test_routes_are_answered_between_the_slices_of_a_registration(server):
    other = {**WHO, "brokerName": "broker-b", "brokerAddr": "h:2"}
    await server.ask(C.REGISTER_BROKER, body_with(topics("T", "U")), **other)
    seen = set()
    async with trio.open_nursery() as nursery:

        async def ask():
            while True:
                assert (await server.ask(C.GET_ROUTEINFO_BY_TOPIC, topic="T")).code == 0
                seen.add(len(server.registry.topics))
                await trio.lowlevel.checkpoint()

        nursery.start_soon(ask)
        assert (await server.ask(C.REGISTER_BROKER, body_with(topics(*LARGE)), **WHO)).code == 0
        nursery.cancel_scope.cancel()
    # A task that is ready runs once while the other does one slice, first or second.
    gaps = [later - earlier for earlier, later in pairwise(sorted({*seen, 2 + len(LARGE)}))]
    assert max(gaps) <= 2 * SLICE_TOPICS


async def test_changes_of_topics_wait_for_a_registration_that_is_being_merged(server):
    changed = []

    async def change():
        # The permission of all topics, then a topic that was merged, and one that was not.
        changed.append(await server.ask(C.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a"))
        await server.ask(C.DELETE_TOPIC_IN_NAMESRV, topic=LARGE[0])
        await server.ask(C.DELETE_TOPIC_IN_NAMESRV, topic=LARGE[-1])

    assert (await between_slices(server, change)).code == 0
    assert changed[0].ext_fields == {"wipeTopicCount": str(len(LARGE))}
    assert set(server.registry.topics) == set(LARGE[1:-1])
    for topic in LARGE[1:-1:1000]:
        route = server.registry.route(topic)
        assert [queues.perm for queues in route.queues.values()] == [4]


async def test_a_broker_that_changes_a_topic_while_it_registers_is_answered_in_order(server):
    newer = body_with(topics(LARGE[0], LARGE[-1], counter=2, read_queue_nums=9))

    async def change():
        assert (await server.ask(C.REGISTER_BROKER, newer, **WHO)).code == 0

    assert (await between_slices(server, change)).code == 0
    for topic, queues in ((LARGE[0], 9), (LARGE[1], 4), (LARGE[-1], 9)):
        route = server.registry.route(topic)
        assert route.queues["broker-a"].read_queues == queues


async def test_no_garbage_is_collected_while_a_large_registration_is_taken(server):
    paused = []

    async def look():
        paused.append(not gc.isenabled())

    assert gc.isenabled()
    assert (await between_slices(server, look)).code == 0
    assert paused == [True]
    assert gc.isenabled()
    cut = await server.ask(C.REGISTER_BROKER, body_with(topics(*LARGE))[:-9], **WHO)
    assert cut.code == 1
    assert gc.isenabled()


async def test_a_broker_that_leaves_while_it_registers_leaves_nothing(server):
    async def leave():
        server.registry.connection_closed(1)

    answer = await between_slices(server, leave)
    assert (answer.code, answer.remark) == (1, "the broker was removed while its topics were registered")
    assert server.registry.topics == ()
    assert server.registry.live == ()
    # Room that was kept for its topics is free again.
    assert (await server.ask(C.REGISTER_BROKER, body_with(topics(*LARGE)), **WHO)).code == 0
    assert len(server.registry.topics) == len(LARGE)


async def test_a_body_that_inflates_without_end_is_refused(server):
    bomb = zlib.compress(bytes(40 * 1024 * 1024), 9)
    assert len(bomb) < 100_000
    answer = await server.ask(C.REGISTER_BROKER, bomb, **WHO, compressed="true")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "larger than" in (answer.remark or "")


SERVED = [
    *range(100, 107), 205, 206, 216, 217, 219, 224, 304, 311, 312, 313, 318, 319, 322, 327, 901, 904,
]  # fmt: skip
FIELDS = """
brokerName brokerAddr clusterName brokerId topic namespace key value cluster bodyCrc32 compressed
heartbeatTimeoutMillis heartbeatTimeoutMills enableActingMaster haServerAddr acceptStandardJsonOnly
__ZONE_NAME __ZONE_MODE
"""
TABLES = """
topicConfigSerializeWrapper topicConfigTable dataVersion counter timestamp T perm readQueueNums
filterServerList topicQueueMappingInfoMap queueDatas brokerName
"""
VALUES = ANY_TEXT | st.sampled_from(["0", "1", "-1", "true", "C", "n" * 300, *WRONG_NUMBERS])
BODIES = json_values(st.sampled_from(TABLES.split())).map(lambda value: json.dumps(value).encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    code=st.sampled_from(SERVED),
    fields=st.dictionaries(st.sampled_from(FIELDS.split()), VALUES, max_size=8),
    complete=st.booleans(),
    body=BODIES | st.binary(max_size=60),
    version=st.sampled_from([0, int(Version.V4_9_7), int(Version.V5_3_3)]),
)
def test_whatever_is_asked_gets_an_answer_that_a_frame_can_hold(
    *, tmp_path, code, fields, complete, body, version
):
    async def main():
        server = Asked(tmp_path)
        register(server.registry, identity(), topics("T", "U"))
        asked = {**(WHO | {"topic": "T", "namespace": "N", "key": "k"} if complete else {}), **fields}
        assert encode(await server.ask(code, body, version=version, **asked))

    trio.run(main)
