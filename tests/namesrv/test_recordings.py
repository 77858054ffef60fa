"""Every request that a real name server was asked in the recordings, asked of this one.

Before each request the name server is put into the state that the recorded answer tells of: that answer's
brokers, topics and values. Then it must answer the same: code, remark, fields, and body as a JSON value.
Sessions of `nsprobe` bring their own state and are played as they are.
"""

from pathlib import Path
from typing import Any, Final

from tests.namesrv.values import Asked, identity, register, topics
from tests.remoting.recorded import commands
from trioha.metadata.registration import Registration, parse_data_version
from trioha.namesrv.registry import BrokerIdentity
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.fastjson import parse_json

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "name-server"
SESSIONS: Final = sorted(VECTORS.glob("*/*.c2s.bin"))
NEVER_ANSWERED: Final = {RequestCode.GET_BROKER_MEMBER_GROUP, RequestCode.BROKER_HEARTBEAT, 9999}
"""By 4.9.7, which lets the peer wait for what it does not know. Here the first two are answered as by 5.3.3,
and what nobody knows gets REQUEST_CODE_NOT_SUPPORTED."""
NULL_POINTER: Final = "java.lang.NullPointerException"
"""Of 5.3.3, for a registration that says that it is not compressed and is: this name server reads it."""

WRITTEN_ALIKE: Final = {RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_MEMBER_GROUP}
"""Answers that are equal byte for byte where they name one group of brokers: no hash table orders them."""

# Further differences: GET_NAMESRV_CONFIG lists the settings that this name server has, not those of Java's. A
# client of a version before 5.0 gets the fields of 4.9's answers also where the recorded server is 5.3.3. A
# request with the binary header is answered with it; 5.3.3 answers GET_ROUTEINFO_BY_TOPIC in JSON.


def recorded(path):
    """The requests of a session with their answers."""
    answers = {
        answer.opaque: answer
        for answer in commands(path.with_name(path.name.replace(".c2s.", ".s2c.")))
        if answer.is_response
    }
    return [(asked, answers.get(asked.opaque)) for asked in commands(path)]


def test_the_recordings_have_every_request_of_a_name_server():
    codes = {asked.code for path in SESSIONS for asked, _ in recorded(path)}
    # Those that no recording has were asked of real name servers: see test_processor.
    assert codes == {*(100, 101, 102, 103, 104, 105, 106, 206, 219, 224, 304, 319, 322, 901, 904, 9999)}
    assert len(SESSIONS) == 73


async def test_recorded_requests_are_answered_as_they_were(tmp_path):
    for path in SESSIONS:
        server = Asked(tmp_path / path.parent.name / path.name)
        for number, (asked, answer) in enumerate(recorded(path)):
            if "nsprobe" not in path.name:
                server = Asked(tmp_path / path.parent.name / path.name / str(number))
                await put_into_state(server, asked, answer)
            elif path.name.startswith("090"):
                # The recorded server removed one of two brokers of the closed connection: see test_server.
                await put_into_state(server, asked, answer)
            given = await server.answer(asked)
            if answer is None:
                assert asked.is_oneway or asked.code in NEVER_ANSWERED or "slavebroker" in path.name
            elif (answer.remark or "").startswith(NULL_POINTER):
                assert given.code == ResponseCode.SUCCESS
            else:
                check_answer(asked, given, answer, f"{path.name}: {asked} -> {answer}")


def check_answer(asked, given, answer, shown):
    assert (given.code, given.remark) == (answer.code, answer.remark), shown
    assert given.serialize_type is asked.serialize_type, shown
    assert given.ext_fields == answer.ext_fields, shown
    if asked.code == RequestCode.GET_NAMESRV_CONFIG:
        assert keys(given) <= keys(answer) | OUR_KEYS | NEW_IN_5, shown
        return
    assert comparable(given.body) == expected(asked, answer), shown
    is_one_group = bytes(answer.body).count(b"cluster") == 1
    if asked.code in WRITTEN_ALIKE and is_one_group and is_one_version(asked):
        assert bytes(given.body) == bytes(answer.body), shown


OUR_KEYS: Final = {
    f"trioha.{name}" for name in ("brokersMax", "clientBytesMax", "connectionsMax", "topicsMax")
}
NEW_IN_5: Final = {
    "bindAddress",
    "deleteTopicWithBrokerRegistration",
    "returnOrderTopicConfigToBroker",
    "scanNotActiveBrokerInterval",
    "supportActingMaster",
    "tls.server.mode",
}


def keys(answer):
    return {line.partition("=")[0] for line in bytes(answer.body).decode().splitlines()}


def comparable(body):
    """A body without the order that Java's hash tables gave it."""
    if not body:
        return None
    value: Any = parse_json(body)
    if "topicList" in value:
        value["topicList"] = sorted(value["topicList"])
    if "clusterAddrTable" in value:
        value["clusterAddrTable"] = {key: sorted(names) for key, names in value["clusterAddrTable"].items()}
    return value


def is_one_version(asked):
    """Whether the recorded server had no reason to answer in another version's way."""
    return asked.version in {407, 479, 497}


def expected(asked, answer):
    value = comparable(answer.body)
    if asked.version < 413 and value:
        for group in (*value.get("brokerDatas", ()), *value.get("brokerAddrTable", {}).values()):
            group.pop("enableActingMaster", None)
    return value


async def put_into_state(server, asked, answer):
    """Let the name server know what the answer says."""
    fields = asked.ext_fields
    if answer is None or answer.code != ResponseCode.SUCCESS:
        if answer is not None and answer.code == ResponseCode.QUERY_NOT_FOUND:
            await server.kv.put("other", "k", "v")
        return
    body = parse_json(answer.body) if bytes(answer.body)[:1] == b"{" else {}
    groups = [*body.get("brokerDatas", ()), *body.get("brokerAddrTable", {}).values()]
    if "brokerMemberGroup" in body:
        groups.append(body["brokerMemberGroup"])
    for group in groups:
        for broker_id, address in group["brokerAddrs"].items():
            who = BrokerIdentity(group["cluster"], group["brokerName"], address, int(broker_id))
            register(server.registry, who, topics(), acting_master=group.get("enableActingMaster"))
    for data in body.get("queueDatas", ()):
        known = next(
            live.identity for live in server.registry.live if live.identity.broker_name == data["brokerName"]
        )
        numbers = {
            "read_queue_nums": data["readQueueNums"],
            "write_queue_nums": data["writeQueueNums"],
            "perm": data["perm"],
            "sys_flag": data["topicSysFlag"],
        }
        master = BrokerIdentity(known.cluster_name, known.broker_name, known.address, 0)
        acting = next(iter(groups)).get("enableActingMaster")
        register(server.registry, master, topics(fields["topic"], **numbers), acting_master=acting)
    if "topicList" in body:
        names = body["topicList"]
        cluster = fields.get("cluster", "SpecCluster")
        who = identity(name="broker-a", cluster=cluster, address=body.get("brokerAddr"))
        register(server.registry, who, topics(*names))
    if asked.code == RequestCode.QUERY_DATA_VERSION and body:
        who = BrokerIdentity(
            fields["clusterName"], fields["brokerName"], fields["brokerAddr"], int(fields["brokerId"])
        )
        register(server.registry, who, Registration(parse_data_version(body)))
    if "masterAddr" in answer.ext_fields:
        address = answer.ext_fields["masterAddr"]
        register(
            server.registry, BrokerIdentity(fields["clusterName"], fields["brokerName"], address, 0), topics()
        )
        server.registry.live[-1].ha_address = answer.ext_fields["haServerAddr"]
    if "value" in answer.ext_fields:
        await server.kv.put(fields["namespace"], fields["key"], answer.ext_fields["value"])
    for key, value in body.get("table", {}).items():
        await server.kv.put(fields["namespace"], key, value)
