"""Every request that a node serves, and every field that it may have: one row each.

Each request that a node serves has its row here; `test_live.py` finds a missing one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Final

from attrs import frozen

from tests.hostile.values import properties_value, text_value
from trioha.remoting.codes import RequestCode

_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")


class Type(StrEnum):
    """What a field's value means (spec remoting 1, 4.1)."""

    I32 = "i32"
    I64 = "i64"
    COUNT = "count"
    """Not below 0; how large it may be is the request's own rule."""
    BOOLEAN = "boolean"
    TEXT = "text"
    TOPIC = "topic"
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
        return properties_value(chance) if self.type is Type.PROPERTIES else text_value(chance)

    def must_be_refused(self, value: str) -> bool:
        """Whether no node may take this value. False says nothing."""
        if not value:
            # The binary header cannot say it: there it is as if the field were missing.
            return self.required and self.type in {Type.I32, Type.I64, Type.TOPIC}
        match self.type:
            case Type.I32:
                return not _is_number(value, -(2**31), 2**31 - 1)
            case Type.I64:
                return not _is_number(value, -(2**63), 2**63 - 1)
            case Type.COUNT:
                return not _is_number(value, 0, 2**63 - 1)
            case Type.TOPIC:
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


def _message_body(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 10, 100, 100, 1000)))


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
    Request(RequestCode.GET_BROKER_RUNTIME_INFO),
    Request(
        RequestCode.GET_BROKER_HA_STATUS,
        (
            Field("triohaEveryMillis", Type.COUNT, ("50", "100", "60000"), required=False),
            Field("triohaUpdates", Type.COUNT, ("0", "1", "100"), required=False),
        ),
    ),
)
"""What `trioha.broker.processor` answers otherwise than with "not supported"."""

SERVED: Final = frozenset(request.code for request in REQUESTS)
UNSERVED: Final = tuple(sorted(code for code in RequestCode if code not in SERVED))
"""RocketMQ's requests that a node does not serve."""


def _is_number(text: str, low: int, high: int) -> bool:
    return len(text) < 100 and _WHOLE_NUMBER.fullmatch(text) is not None and low <= int(text) <= high
