"""Every request that a node serves, and every field that it may have: one row each.

Each request that a node serves has its row here; `test_live.py` finds a missing one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from attrs import frozen

from tests.hostile.values import properties_value, text_value
from tests.remoting.batches import encode_batch_body
from trioha.broker.timer_messages import RecallHandle
from trioha.metadata.consumer_orders import ORDERS_FIELD
from trioha.remoting.codes import RequestCode
from trioha.store.messages import BatchItem

_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")


class Type(StrEnum):
    """What a field's value means (docs/protocol/remoting.md#sends)."""

    I32 = "i32"
    I64 = "i64"
    MILLIS = "milliseconds"
    """As I64, but never long: a pull may wait so long for its answer."""
    COUNT = "count"
    """Not below 0; how large it may be is the request's own rule."""
    BOOLEAN = "boolean"
    TEXT = "text"
    TOPIC = "topic"
    DELETED_TOPIC = "deleted topic"
    """As TOPIC, but never one that messages are sent to: the check of the queues builds them from the log,
    where no deletion is."""
    PROPERTIES = "properties"


@frozen
class Field:
    """One field of a request's header."""

    name: str
    type: Type
    good: tuple[str, ...]
    """Values that a client would send."""
    required: bool = True

    def hostile(self, chance: random.Random) -> str:
        """Any value, seldom one that fits."""
        if self.type is Type.PROPERTIES:
            return properties_value(chance)
        value = text_value(chance)
        if self.type is Type.MILLIS and _is_number(value, 1001, 2**63 - 1):
            return "1000"
        if self.type is Type.DELETED_TOPIC and _TOPIC.fullmatch(value):
            return f"Gone{value}"
        return value

    def must_be_refused(self, value: str) -> bool:
        """Whether no node may take this value. False says nothing."""
        if not value:
            # The binary header cannot say it: there it is as if the field were missing.
            return self.required and self.type in {Type.I32, Type.I64, Type.TOPIC, Type.DELETED_TOPIC}
        match self.type:
            case Type.I32:
                return not _is_number(value, -(2**31), 2**31 - 1)
            case Type.I64:
                return not _is_number(value, -(2**63), 2**63 - 1)
            case Type.MILLIS:
                return not _is_number(value, -(2**63), 2**63 - 1)
            case Type.COUNT:
                return not _is_number(value, 0, 2**63 - 1)
            case Type.TOPIC | Type.DELETED_TOPIC:
                return len(value) > 255 or not _TOPIC.fullmatch(value)
            case _:
                return False


@frozen
class Request:
    """One request: its code, its fields, and a body as a client would send it."""

    code: int
    fields: tuple[Field, ...] = ()
    body: Callable[[random.Random], bytes] = lambda _chance: b""
    stores: bool = False
    """Whether it puts a message into the log."""

    @property
    def fits_binary(self) -> bool:
        """Whether its code fits the 16 bits of a binary header."""
        return self.code < 2**15


def _message_body(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 10, 100, 100, 1000)))


def _batch_body(chance: random.Random) -> bytes:
    items = [
        BatchItem(_message_body(chance), chance.choice((b"", b"TAGS\x01tag\x02", b"KEYS\x01a b")))
        for _ in range(chance.choice((1, 1, 3, 20)))
    ]
    return damaged(encode_batch_body(items), chance)


_SEND: Final = (
    ("a", "producerGroup", Type.TEXT, ("group",), True),
    ("b", "topic", Type.TOPIC, ("TopicHostile", "TopicHostile-2", "%RETRY%group"), True),
    ("c", "defaultTopic", Type.TEXT, ("TBW102",), True),
    ("d", "defaultTopicQueueNums", Type.I32, ("4", "0", "-1"), True),
    ("e", "queueId", Type.I32, ("0", "1", "2", "3", "-1"), True),
    ("f", "sysFlag", Type.I32, ("0", "1"), True),
    ("g", "bornTimestamp", Type.I64, ("1700000000000", "0"), True),
    ("h", "flag", Type.I32, ("0", "5"), True),
    ("i", "properties", Type.PROPERTIES, ("", "WAIT\x01true\x02", "TAGS\x01tag\x02KEYS\x01a b\x02"), False),
    ("j", "reconsumeTimes", Type.I32, ("0", "3"), False),
    ("k", "unitMode", Type.BOOLEAN, ("false", "true"), False),
    ("l", "maxReconsumeTimes", Type.I32, ("16",), False),
    ("m", "batch", Type.BOOLEAN, ("false",), False),
    ("n", "brokerName", Type.TEXT, ("broker-a",), False),
)

_HANDLE: Final = RecallHandle("TopicHostile", "broker-a", 4_000_000_000_000, "KEY").encode()
_GROUP: Final = Field("consumerGroup", Type.TEXT, ("group", "group-2"))
_TOPIC_FIELD: Final = Field("topic", Type.TEXT, ("TopicHostile", "TopicHostile-2", "NoSuchTopic"))
_POPPING: Final = (
    _GROUP,
    _TOPIC_FIELD,
    Field("queueId", Type.I32, ("-1", "0"), required=False),
    Field("pollTime", Type.MILLIS, ("0", "100"), required=False),
    Field("bornTime", Type.I64, ("0",), required=False),
    Field("expType", Type.TEXT, ("TAG", "SQL92"), required=False),
    Field("exp", Type.TEXT, ("*", "tag"), required=False),
    Field("order", Type.BOOLEAN, ("false", "true"), required=False),
    Field("attemptId", Type.TEXT, ("a",), required=False),
)
_POPPED: Final = (
    _GROUP,
    _TOPIC_FIELD,
    Field("queueId", Type.I32, ("0", "1")),
    Field("offset", Type.I64, ("0", "1")),
    Field("extraInfo", Type.TEXT, ("0 1700000000000 60000 0 0 broker-a 0 0 0", "0 1 2 999 0 broker-a 0 0")),
)
_USERNAME: Final = Field("username", Type.TEXT, ("hostile-1", "hostile-2"))
_SUBJECT: Final = Field("subject", Type.TEXT, ("User:hostile-1", "User:nobody"))
_QUEUE: Final = Field("queueId", Type.I32, ("0", "1", "2", "3"))
_PULL: Final = (
    _GROUP,
    _TOPIC_FIELD,
    _QUEUE,
    Field("queueOffset", Type.I64, ("0", "1", "100")),
    Field("maxMsgNums", Type.I32, ("32", "1", "0", "-1")),
    Field("sysFlag", Type.I32, ("4", "5", "6", "7", "0", "2")),
    Field("commitOffset", Type.I64, ("0", "7", "-1"), required=False),
    Field("suspendTimeoutMillis", Type.MILLIS, ("0", "10", "-1"), required=False),
    Field("subscription", Type.TEXT, ("*", "tag", "a || b", "||"), required=False),
    Field("expressionType", Type.TEXT, ("TAG", "SQL92"), required=False),
    Field("subVersion", Type.I64, ("0", "1700000000000"), required=False),
    Field("maxMsgBytes", Type.I32, ("262144", "1", "-1"), required=False),
)


def _heartbeat(chance: random.Random) -> bytes:
    subscription = {"topic": "TopicHostile", "subString": "*", "tagsSet": [], "codeSet": [], "subVersion": 1}
    groups = [
        {"groupName": f"group-{chance.randrange(50)}", "subscriptionDataSet": [subscription]}
        for _ in range(chance.choice((0, 1, 3)))
    ]
    body = {"clientID": f"c{chance.randrange(9)}", "producerDataSet": [], "consumerDataSet": groups}
    return damaged(json.dumps(body).encode(), chance)


def _locks(chance: random.Random) -> bytes:
    queues = [
        {"brokerName": "broker-a", "topic": "TopicHostile", "queueId": chance.randrange(-1, 9)}
        for _ in range(chance.choice((0, 1, 5)))
    ]
    body = {"clientId": f"c{chance.randrange(9)}", "consumerGroup": "group", "mqSet": queues}
    return damaged(json.dumps(body).encode(), chance)


def _client_config(chance: random.Random) -> bytes:
    data = {"topic": "TopicHostile", "subString": "a", "expressionType": chance.choice(("TAG", "SQL92"))}
    return damaged(json.dumps({"clientId": "c", "group": "g", "subscriptionData": data}).encode(), chance)


def _subscription_group(chance: random.Random) -> bytes:
    body = {"groupName": f"group-admin-{chance.randrange(9)}", "retryMaxTimes": chance.randrange(20)}
    return damaged(json.dumps(body).encode(), chance)


def _request_mode(chance: random.Random) -> bytes:
    body = {
        "topic": chance.choice(("TopicHostile", "%RETRY%group", "NoSuchTopic")),
        "consumerGroup": f"group-{chance.randrange(9)}",
        "mode": chance.choice(("POP", "PULL", "PUSH")),
        "popShareQueueNum": chance.randrange(-2, 9),
    }
    return damaged(json.dumps(body).encode(), chance)


def _batch_ack(chance: random.Random) -> bytes:
    acks = [
        {
            "c": "group",
            "t": chance.choice(("TopicHostile", "NoSuchTopic")),
            "r": chance.choice(("0", "1", "2")),
            "so": chance.randrange(3),
            "q": chance.choice((0, 0, 99)),
            "rq": chance.choice((0, 7, 999, 2**31 - 1)),
            "pt": chance.choice((0, 1_700_000_000_000)),
            "it": chance.choice((0, 60_000, 2**63 - 1)),
            "b": chance.choice(("AQ==", "/////w==", "")),
        }
        for _ in range(chance.randrange(3))
    ]
    return damaged(json.dumps({"brokerName": "broker-a", "acks": acks}).encode(), chance)


def _assignment(chance: random.Random) -> bytes:
    body = {
        "topic": chance.choice(("TopicHostile", "%RETRY%group", "NoSuchTopic")),
        "consumerGroup": f"group-{chance.randrange(9)}",
        "clientId": f"c{chance.randrange(9)}",
        "strategyName": chance.choice(("AVG", "AVG_BY_CIRCLE", "")),
        "messageModel": chance.choice(("CLUSTERING", "BROADCASTING")),
    }
    return damaged(json.dumps(body).encode(), chance)


def _broker_config(chance: random.Random) -> bytes:
    """Changes that no honest peer notices, or that are refused."""
    key, value = chance.choice(
        (("fileReservedTime", "72"), ("fileReservedTime", "71"), ("flushDiskType", "SYNC_FLUSH"), ("x", "y"))
    )
    return damaged(f"{key}={value}\n".encode(), chance)


def _user(chance: random.Random) -> bytes:
    body = {"password": f"secret-{chance.randrange(9)}", "userType": chance.choice(("Normal", "Super", ""))}
    return damaged(json.dumps(body).encode(), chance)


def _acl(chance: random.Random) -> bytes:
    entries = [
        {
            "resource": chance.choice(("Topic:a", "Topic:a*", "Group:*", "*", "Cluster:c", "a", "")),
            "actions": chance.choice((["Pub"], ["Pub", "Sub"], ["All"], ["Any"], [], "Pub")),
            "sourceIps": chance.choice((None, ["127.0.0.1"], ["10.0.0.0/8"], ["nowhere"], "127.0.0.1")),
            "decision": chance.choice(("Allow", "Deny", "")),
        }
        for _ in range(chance.choice((0, 1, 1, 3)))
    ]
    body = {"subject": "User:hostile-1", "policies": [{"policyType": "Custom", "entries": entries}]}
    return damaged(json.dumps(body).encode(), chance)


def damaged(body: bytes, chance: random.Random) -> bytes:
    """Most often as it is; else with bytes changed or cut off."""
    if chance.random() < 0.5:
        return body
    changed = bytearray(body)
    for _ in range(chance.choice((1, 1, 3, 20))):
        changed[chance.randrange(len(changed))] = chance.choice((0, 0xFF, *b'{}[]",:0-e'))
    return bytes(changed[: chance.choice((len(changed), chance.randrange(len(changed) + 1)))])


REQUESTS: Final = (
    Request(
        RequestCode.SEND_MESSAGE,
        tuple(Field(long, type_, good, required) for _, long, type_, good, required in _SEND),
        _message_body,
        stores=True,
    ),
    Request(
        RequestCode.SEND_MESSAGE_V2,
        tuple(Field(short, type_, good, required) for short, _, type_, good, required in _SEND),
        _message_body,
        stores=True,
    ),
    Request(
        RequestCode.SEND_BATCH_MESSAGE,
        tuple(
            Field(short, type_, ("true", "false") if short == "m" else good, required)
            for short, _, type_, good, required in _SEND
        ),
        _batch_body,
        stores=True,
    ),
    Request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        (
            Field("offset", Type.I64, ("0", "1", "100")),
            Field("group", Type.TEXT, ("group", "group-2")),
            Field("delayLevel", Type.I32, ("0", "1", "-1", "99")),
            Field("originMsgId", Type.TEXT, ("x",), required=False),
            Field("originTopic", Type.TEXT, ("TopicHostile",), required=False),
            Field("unitMode", Type.BOOLEAN, ("false", "true"), required=False),
            Field("maxReconsumeTimes", Type.I32, ("16", "0", "-1"), required=False),
        ),
        stores=True,
    ),
    Request(RequestCode.PULL_MESSAGE, _PULL),
    Request(RequestCode.LITE_PULL_MESSAGE, _PULL),
    Request(
        RequestCode.QUERY_MESSAGE,
        (
            _TOPIC_FIELD,
            Field("key", Type.TEXT, ("a", "b", "")),
            Field("maxNum", Type.I32, ("1", "32", "0")),
            Field("beginTimestamp", Type.I64, ("0",)),
            Field("endTimestamp", Type.I64, ("4611686018427387904",)),
            Field("_UNIQUE_KEY_QUERY", Type.BOOLEAN, ("false", "true"), required=False),
        ),
    ),
    Request(
        RequestCode.QUERY_CONSUMER_OFFSET,
        (_GROUP, _TOPIC_FIELD, _QUEUE, Field("setZeroIfNotFound", Type.BOOLEAN, ("true",), required=False)),
    ),
    Request(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        (_GROUP, _TOPIC_FIELD, _QUEUE, Field("commitOffset", Type.I64, ("0", "5"))),
    ),
    Request(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        (
            _TOPIC_FIELD,
            _QUEUE,
            Field("timestamp", Type.I64, ("0", "1700000000000")),
            Field("boundaryType", Type.TEXT, ("LOWER", "UPPER"), required=False),
        ),
    ),
    Request(RequestCode.GET_MAX_OFFSET, (_TOPIC_FIELD, _QUEUE)),
    Request(RequestCode.GET_MIN_OFFSET, (_TOPIC_FIELD, _QUEUE)),
    Request(RequestCode.GET_EARLIEST_MSG_STORETIME, (_TOPIC_FIELD, _QUEUE)),
    Request(RequestCode.VIEW_MESSAGE_BY_ID, (Field("offset", Type.I64, ("0", "1", "100000")),)),
    Request(RequestCode.HEART_BEAT, body=_heartbeat),
    Request(
        RequestCode.UNREGISTER_CLIENT,
        (
            Field("clientID", Type.TEXT, ("c1", "c2")),
            Field("producerGroup", Type.TEXT, ("group",), required=False),
            Field("consumerGroup", Type.TEXT, ("group-1", "group-2"), required=False),
        ),
    ),
    Request(
        RequestCode.END_TRANSACTION,
        (
            Field("producerGroup", Type.TEXT, ("group", "group-2")),
            Field("tranStateTableOffset", Type.I64, ("0", "1", "100")),
            Field("commitLogOffset", Type.I64, ("0", "1", "100000")),
            Field("commitOrRollback", Type.I32, ("0", "8", "12")),
            Field("fromTransactionCheck", Type.BOOLEAN, ("false", "true"), required=False),
            Field("msgId", Type.TEXT, ("7F00000100002A9F0000000000000000",)),
            Field("transactionId", Type.TEXT, ("7F00000100002A9F",), required=False),
        ),
    ),
    Request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, (_GROUP,)),
    Request(RequestCode.CHECK_CLIENT_CONFIG, body=_client_config),
    Request(RequestCode.LOCK_BATCH_MQ, body=_locks),
    Request(RequestCode.UNLOCK_BATCH_MQ, body=_locks),
    Request(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        (
            Field("topic", Type.TOPIC, ("TopicAdmin", "TopicAdmin-2")),
            Field("defaultTopic", Type.TEXT, ("TBW102",), required=False),
            Field("readQueueNums", Type.COUNT, ("1", "4")),
            Field("writeQueueNums", Type.COUNT, ("1", "4")),
            Field("perm", Type.COUNT, ("6", "4")),
            Field("topicFilterType", Type.TEXT, ("SINGLE_TAG",), required=False),
            Field("topicSysFlag", Type.I32, ("0",), required=False),
            Field("order", Type.BOOLEAN, ("false", "true"), required=False),
            Field("attributes", Type.TEXT, ("", "+message.type=FIFO", "-message.type"), required=False),
        ),
    ),
    Request(
        RequestCode.DELETE_TOPIC_IN_BROKER,
        (Field("topic", Type.DELETED_TOPIC, ("TopicAdmin", "NoSuchTopic")),),
    ),
    Request(RequestCode.GET_TOPIC_CONFIG, (_TOPIC_FIELD,)),
    Request(RequestCode.GET_TOPIC_STATS_INFO, (_TOPIC_FIELD,)),
    Request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, (_TOPIC_FIELD,)),
    Request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER),
    Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=_subscription_group),
    Request(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        (
            Field("groupName", Type.TEXT, ("group-admin", "group-admin-2")),
            Field("removeOffset", Type.BOOLEAN, ("false", "true"), required=False),
            Field("cleanOffset", Type.BOOLEAN, ("false", "true"), required=False),
        ),
    ),
    Request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, (Field("group", Type.TEXT, ("group", "group-2")),)),
    Request(RequestCode.GET_CONSUMER_CONNECTION_LIST, (_GROUP,)),
    Request(RequestCode.GET_PRODUCER_CONNECTION_LIST, (Field("producerGroup", Type.TEXT, ("group",)),)),
    Request(
        RequestCode.GET_CONSUME_STATS,
        (
            _GROUP,
            Field("topic", Type.TEXT, ("TopicHostile", "NoSuchTopic"), required=False),
            Field("topicList", Type.TEXT, ("TopicHostile;NoSuchTopic", ";"), required=False),
        ),
    ),
    Request(RequestCode.GET_BROKER_CONSUME_STATS, (Field("isOrder", Type.BOOLEAN, ("false", "true")),)),
    Request(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        (
            _TOPIC_FIELD,
            Field("group", Type.TEXT, ("group", "group-2")),
            Field("timestamp", Type.I64, ("0", "-1", "1700000000000")),
            Field("isForce", Type.BOOLEAN, ("false", "true"), required=False),
            Field("queueId", Type.I32, ("-1", "0"), required=False),
            Field("offset", Type.I64, ("-1", "0"), required=False),
        ),
    ),
    Request(
        RequestCode.VIEW_BROKER_STATS_DATA,
        (
            Field("statsName", Type.TEXT, ("TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "NO_SUCH")),
            Field("statsKey", Type.TEXT, ("TopicHostile", "TopicHostile@group")),
        ),
    ),
    Request(
        RequestCode.GET_ALL_TOPIC_CONFIG,
        (
            Field("topicSeq", Type.COUNT, ("0", "1"), required=False),
            Field("maxTopicNum", Type.I32, ("1", "2000"), required=False),
            Field("dataVersion", Type.TEXT, ("", '{"counter":1,"timestamp":2}'), required=False),
        ),
    ),
    Request(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        (
            Field("groupSeq", Type.COUNT, ("0", "1"), required=False),
            Field("maxGroupNum", Type.I32, ("1", "2000"), required=False),
            Field("dataVersion", Type.TEXT, ("", '{"counter":1,"timestamp":2}'), required=False),
        ),
    ),
    Request(RequestCode.GET_ALL_CONSUMER_OFFSET),
    Request(RequestCode.GET_ALL_DELAY_OFFSET),
    Request(
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        (Field(ORDERS_FIELD, Type.BOOLEAN, ("true", "false"), required=False),),
    ),
    Request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=_request_mode),
    Request(
        RequestCode.POP_MESSAGE,
        (
            *_POPPING,
            Field("maxMsgNums", Type.I32, ("1", "32", "33"), required=False),
            Field("invisibleTime", Type.I64, ("0", "1000", "60000"), required=False),
            Field("initMode", Type.I32, ("0", "1"), required=False),
        ),
    ),
    Request(RequestCode.NOTIFICATION, _POPPING),
    Request(
        RequestCode.PEEK_MESSAGE, (*_POPPING[:3], Field("maxMsgNums", Type.I32, ("1", "32"), required=False))
    ),
    Request(RequestCode.POLLING_INFO, _POPPING[:3]),
    Request(RequestCode.ACK_MESSAGE, _POPPED),
    Request(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        (
            *_POPPED,
            Field("invisibleTime", Type.I64, ("0", "1000", "60000")),
            Field("suspend", Type.BOOLEAN, ("false", "true"), required=False),
        ),
    ),
    Request(RequestCode.BATCH_ACK_MESSAGE, body=_batch_ack),
    Request(RequestCode.QUERY_ASSIGNMENT, body=_assignment),
    Request(
        RequestCode.RECALL_MESSAGE,
        (
            Field("producerGroup", Type.TEXT, ("group",)),
            _TOPIC_FIELD,
            Field("recallHandle", Type.TEXT, (_HANDLE, "djEg", "")),
        ),
    ),
    Request(RequestCode.GET_TIMER_METRICS),
    Request(RequestCode.GET_TIMER_CHECK_POINT),
    Request(RequestCode.GET_BROKER_CONFIG),
    Request(RequestCode.UPDATE_BROKER_CONFIG, body=_broker_config),
    Request(RequestCode.GET_BROKER_RUNTIME_INFO),
    Request(
        RequestCode.GET_BROKER_HA_STATUS,
        (
            Field("triohaEveryMillis", Type.COUNT, ("50", "100", "60000"), required=False),
            Field("triohaUpdates", Type.COUNT, ("0", "1", "100"), required=False),
        ),
    ),
    Request(RequestCode.AUTH_CREATE_USER, (_USERNAME,), _user),
    Request(RequestCode.AUTH_UPDATE_USER, (_USERNAME,), _user),
    Request(RequestCode.AUTH_DELETE_USER, (_USERNAME,)),
    Request(RequestCode.AUTH_GET_USER, (_USERNAME,)),
    Request(RequestCode.AUTH_LIST_USER, (Field("filter", Type.TEXT, ("hostile", ""), required=False),)),
    Request(RequestCode.AUTH_CREATE_ACL, (_SUBJECT,), _acl),
    Request(RequestCode.AUTH_UPDATE_ACL, (_SUBJECT,), _acl),
    Request(
        RequestCode.AUTH_DELETE_ACL,
        (
            _SUBJECT,
            Field("policyType", Type.TEXT, ("Custom", "Default"), required=False),
            Field("resource", Type.TEXT, ("Topic:a", "*"), required=False),
        ),
    ),
    Request(RequestCode.AUTH_GET_ACL, (_SUBJECT,)),
    Request(
        RequestCode.AUTH_LIST_ACL,
        (
            Field("subjectFilter", Type.TEXT, ("User", ""), required=False),
            Field("resourceFilter", Type.TEXT, ("Topic", ""), required=False),
        ),
    ),
)
"""What `trioha.broker.processor` answers otherwise than with "not supported"."""

BINARY_ROWS: Final = tuple(row for row in REQUESTS if row.fits_binary)
SERVED: Final = frozenset(request.code for request in REQUESTS)
UNSERVED: Final = tuple(sorted(code for code in RequestCode if code not in SERVED))
"""RocketMQ's requests that a node does not serve."""


def _is_number(text: str, low: int, high: int) -> bool:
    return len(text) < 100 and _WHOLE_NUMBER.fullmatch(text) is not None and low <= int(text) <= high
