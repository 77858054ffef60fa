"""Access control in front of a handler: recorded sessions, permissions of each request, hostile requests."""

import inspect
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.remoting.recorded import VECTORS, commands
from trioha.broker.acl import AccessControl
from trioha.broker.acl_rules import AclRules, parse_acl
from trioha.broker.touched import TABLE, Around, needs_admin
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, request, response_to
from trioha.remoting.serving import Peer
from trioha.remoting.signature import ACCESS_KEY, SIGNATURE, Credentials, signed

FILE = Path("plain_acl.yml")
PEER = Peer(Address("192.0.2.7", 5555), 1)
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
RULES = b"""\
globalWhiteRemoteAddresses: [198.51.100.*]
accounts:
- {accessKey: rocketmq2, secretKey: '12345678', admin: true}
- accessKey: producer-only
  secretKey: secret-p
  topicPerms: [Orders=PUB]
- accessKey: consumer-only
  secretKey: secret-c
  whiteRemoteAddress: 203.0.113.9
  topicPerms: [Orders=SUB, Logs=SUB]
  groupPerms: [workers=SUB]
- {accessKey: everything, secretKey: secret-e, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB|PUB}
"""
ACCOUNTS = {
    "rocketmq2": Credentials("rocketmq2", "12345678"),
    "producer-only": Credentials("producer-only", "secret-p"),
    "consumer-only": Credentials("consumer-only", "secret-c"),
    "everything": Credentials("everything", "secret-e"),
}


def served(asked, peer):
    return response_to(asked, ResponseCode.SUCCESS)


TOPICS = {100: "Orders", 200: "Other", 300: "%RETRY%workers", 400: "%RETRY%others"}
"""Of the records at these offsets of the log."""
AROUND = Around("check", TOPICS.get)
ADMIN_CODES = sorted(filter(needs_admin, TABLE))


def control(**options):
    rules = parse_acl(RULES, file=FILE)
    return AccessControl(lambda: rules, AROUND, **options)


def ask(acl, asked, host=PEER.address.host):
    """The answer as the server makes it."""
    try:
        answer = acl.guard(served)(asked, Peer(Address(host, 5555), 1))
    except BadRequestError as refused:
        return response_to(asked, refused.code, remark=refused.reason)
    assert isinstance(answer, RemotingCommand)
    return answer


@pytest.mark.parametrize("session", ["113-acl--master", "115-acl--master"])
def test_recorded_requests_get_the_codes_and_remarks_of_the_real_broker(session):
    said = {command.opaque: command for command in commands(VECTORS / f"remoting-4.9.7/{session}.s2c.bin")}
    acl = control()
    differences = []
    for asked in commands(VECTORS / f"remoting-4.9.7/{session}.c2s.bin"):
        real, ours = said[asked.opaque], ask(acl, asked)
        # The real remark ends with a line of Java's stack trace.
        reason = (real.remark or "").rpartition(", org.apache.rocketmq.acl.plain.")[0]
        if (ours.code, ours.remark or "") != (real.code, reason):
            differences.append(asked)
    # The real broker refuses the queries by key of its own clients: here both variants are valid.
    assert all("_UNIQUE_KEY_QUERY" in asked.ext_fields for asked in differences)
    assert len(differences) == 1
    assert all(ask(acl, asked).code == ResponseCode.SUCCESS for asked in differences)


def heartbeat(group, *topics):
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
    body = {
        "clientID": "c1",
        "producerDataSet": [{"groupName": "any"}],
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": subscriptions}],
    }
    return request(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def send(topic, code=RequestCode.SEND_MESSAGE_V2):
    names = ("topic", "producerGroup") if code == RequestCode.SEND_MESSAGE else ("b", "a")
    return request(code, ext_fields=dict(zip(names, (topic, "workers"), strict=True)))


def with_fields(code, **fields):
    return request(code, ext_fields=fields)


def locks(code, group):
    queues = [{"topic": "Orders", "brokerName": "b", "queueId": 0}]
    return request(code, body=json.dumps({"consumerGroup": group, "clientId": "c", "mqSet": queues}).encode())


NO = EXCEPTION + "No default permission for "


@pytest.mark.parametrize(
    ("account", "asked", "remark"),
    [
        ("producer-only", send("Orders"), None),
        ("producer-only", send("Orders", RequestCode.SEND_MESSAGE), None),
        ("producer-only", send("Orders", RequestCode.SEND_BATCH_MESSAGE), None),
        ("producer-only", send("Logs"), NO + "topic:Logs"),
        ("producer-only", send("%RETRY%workers"), NO + "group:workers"),
        ("producer-only", with_fields(11, topic="Orders", consumerGroup="workers"), NO + "topic:Orders"),
        ("producer-only", with_fields(12, topic="Orders"), NO + "topic:Orders"),
        ("consumer-only", send("Orders"), NO + "topic:Orders"),
        ("consumer-only", send("Orders", RequestCode.SEND_MESSAGE), NO + "topic:Orders"),
        ("producer-only", with_fields(370, topic="Orders"), None),
        ("consumer-only", with_fields(370, topic="Orders"), NO + "topic:Orders"),
        ("consumer-only", send("Orders", RequestCode.SEND_BATCH_MESSAGE), NO + "topic:Orders"),
        ("consumer-only", send("%RETRY%workers"), None),
        # The group that a request names does not open the retry topic of another.
        ("consumer-only", send("%RETRY%others"), NO + "group:others"),
        ("consumer-only", with_fields(11, topic="Orders", consumerGroup="workers"), None),
        ("consumer-only", with_fields(361, topic="Orders", consumerGroup="workers"), None),
        ("consumer-only", with_fields(361, topic="Other", consumerGroup="workers"), NO + "topic:Other"),
        ("consumer-only", with_fields(11, topic="Orders", consumerGroup="others"), NO + "group:others"),
        (
            "consumer-only",
            with_fields(11, topic="%RETRY%others", consumerGroup="workers"),
            NO + "group:others",
        ),
        ("consumer-only", with_fields(15, topic="Orders", consumerGroup="others"), NO + "group:others"),
        ("consumer-only", with_fields(36, group="others"), NO + "group:others"),
        ("consumer-only", with_fields(36, group="workers"), None),
        ("consumer-only", with_fields(36, group="workers", offset="100"), None),
        ("consumer-only", with_fields(36, group="workers", offset="300"), None),
        ("consumer-only", with_fields(36, group="workers", offset="200"), NO + "topic:Other"),
        ("consumer-only", with_fields(36, group="workers", offset="400"), NO + "group:others"),
        ("consumer-only", with_fields(33, offset="100"), None),
        ("consumer-only", with_fields(33, offset="200"), NO + "topic:Other"),
        # No record starts there: its handler says so.
        ("consumer-only", with_fields(33, offset="101"), None),
        (
            "consumer-only",
            with_fields(33, offset="x"),
            "request header field offset: 'x' is not a whole number",
        ),
        ("consumer-only", locks(41, "workers"), None),
        ("consumer-only", locks(41, "others"), NO + "group:others"),
        ("consumer-only", locks(42, "others"), NO + "group:others"),
        ("consumer-only", with_fields(222, topic="Orders", group="others"), NO + "group:others"),
        ("everything", with_fields(11, topic="Any", consumerGroup="any"), None),
        ("everything", with_fields(11, topic="SCHEDULE_TOPIC_XXXX"), NO + "topic:SCHEDULE_TOPIC_XXXX"),
        ("consumer-only", with_fields(38, consumerGroup="others"), NO + "group:others"),
        ("consumer-only", with_fields(35, clientID="c", consumerGroup="others"), NO + "group:others"),
        ("consumer-only", with_fields(35, clientID="c", producerGroup="others"), None),
        ("consumer-only", heartbeat("workers", "Orders", "Logs", "%RETRY%workers"), None),
        ("consumer-only", heartbeat("workers", "Orders", "Other"), NO + "topic:Other"),
        ("consumer-only", heartbeat("others", "Orders"), NO + "group:others"),
        ("consumer-only", with_fields(30, topic="Other", queueId="0"), None),
        ("producer-only", with_fields(37, commitLogOffset="100"), None),
        # What the request says of the topic does not count.
        ("producer-only", with_fields(37, commitLogOffset="200", topic="Orders"), NO + "topic:Other"),
        ("consumer-only", send("RMQ_SYS_TRACE_TOPIC"), None),
        (
            "consumer-only",
            with_fields(11, topic="RMQ_SYS_TRACE_TOPIC", consumerGroup="workers"),
            NO + "topic:RMQ_SYS_TRACE_TOPIC",
        ),
        ("everything", send("Any"), None),
        ("everything", heartbeat("any", "Any"), None),
        ("rocketmq2", send("Any"), None),
        ("rocketmq2", heartbeat("any", "Any"), None),
        # What the request lacks is its handler's to refuse.
        ("producer-only", request(310), None),
        ("consumer-only", request(11), None),
    ],
)
def test_each_request_needs_its_permissions(account, asked, remark):
    answer = ask(control(), signed(asked, ACCOUNTS[account]))
    assert answer.remark == remark
    assert answer.code == (ResponseCode.SUCCESS if remark is None else ResponseCode.SYSTEM_ERROR)


@pytest.mark.parametrize("code", ADMIN_CODES)
def test_changes_of_topics_groups_and_configuration_need_an_admin(code):
    acl = control()
    assert ask(acl, signed(request(code), ACCOUNTS["rocketmq2"])).code == ResponseCode.SUCCESS
    refused = ask(acl, signed(request(code), ACCOUNTS["everything"]))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == (
        f"{EXCEPTION}Need admin permission for request code={code}, but accessKey=everything is not"
    )


def test_notices_of_controllers_need_no_account():
    """RocketMQ's controllers do not sign, and a notice is only a reason to ask the leading one."""
    notice = with_fields(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    assert ask(control(), notice, "192.0.2.1").code == ResponseCode.SUCCESS


def test_addresses_of_white_lists_need_no_signature():
    acl = control()
    unsigned = send("Orders")
    assert ask(acl, unsigned, "198.51.100.77").code == ResponseCode.SUCCESS
    assert ask(acl, unsigned, "198.51.101.77").remark == EXCEPTION + "No accessKey is configured"
    named = with_fields(RequestCode.UPDATE_BROKER_CONFIG, **{ACCESS_KEY: "consumer-only"})
    assert ask(acl, named, "203.0.113.9").code == ResponseCode.SUCCESS
    assert ask(acl, named, "203.0.113.8").remark == (
        EXCEPTION + "Check signature failed for accessKey=consumer-only"
    )
    # The account's address does not help without its name.
    assert ask(acl, unsigned, "203.0.113.9").remark == EXCEPTION + "No accessKey is configured"


def test_new_rules_hold_from_the_next_request_on():
    rules = parse_acl(RULES, file=FILE)
    acl = AccessControl(lambda: rules, AROUND)
    asked = signed(send("Orders"), ACCOUNTS["producer-only"])
    assert ask(acl, asked).code == ResponseCode.SUCCESS
    assert ask(acl, send("Orders"), "198.51.100.77").code == ResponseCode.SUCCESS
    rules = AclRules()
    assert ask(acl, asked).remark == EXCEPTION + "No acl config for producer-only"
    assert ask(acl, send("Orders"), "198.51.100.77").code == ResponseCode.SYSTEM_ERROR
    assert acl.refused == 2


@pytest.mark.parametrize(
    "fields",
    [
        {ACCESS_KEY: ""},
        {ACCESS_KEY: "x" * 50_000},
        {ACCESS_KEY: "\ud800"},
        {ACCESS_KEY: "rocketmq2"},
        {ACCESS_KEY: "rocketmq2", SIGNATURE: ""},
        {ACCESS_KEY: "rocketmq2", SIGNATURE: "\u0661" * 1000},
        {SIGNATURE: "x"},
    ],
)
def test_hostile_fields_are_refused_in_one_short_line(fields):
    answer = ask(control(), request(310, ext_fields={"b": "Orders", **fields}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert len(answer.remark) < 300


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"clientID":7}', b"\xff" * 100, b"[" * 10_000])
def test_a_signed_heartbeat_that_cannot_be_read_is_refused(body):
    asked = signed(request(RequestCode.HEART_BEAT, body=body), ACCOUNTS["everything"])
    assert ask(control(), asked).code == ResponseCode.SYSTEM_ERROR


async def test_an_awaitable_of_the_handler_is_passed_on():
    async def later(asked):
        return response_to(asked, ResponseCode.SUCCESS)

    guarded = control().guard(lambda asked, _: later(asked))
    answer = guarded(signed(send("Orders"), ACCOUNTS["producer-only"]), PEER)
    assert inspect.isawaitable(answer)
    assert (await answer).code == ResponseCode.SUCCESS


def test_refusals_are_logged_once_a_minute_with_their_number():
    moments_s = [0.0, 1.0, 59.9, 60.0, 61.0]
    acl = control(clock=iter(moments_s).__next__)
    with capture_logs() as lines:
        for _ in moments_s:
            ask(acl, send("Orders"))
    assert acl.refused == 5
    assert [(line["peer"], line["code"], line["not_logged"]) for line in lines] == [
        ("192.0.2.7:5555", 310, 0),
        ("192.0.2.7:5555", 310, 2),
    ]
    assert lines[0]["reason"].endswith("No accessKey is configured")
