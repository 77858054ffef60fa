"""Headers of sends, and the response codes of put statuses.

SEND_MESSAGE (10) has long field names, SEND_MESSAGE_V2 (310) has one letter for each
(docs/protocol/remoting.md#sends):

| V2 | V1 | V2 | V1 |
|---|---|---|---|
| a | producerGroup | h | flag |
| b | topic | i | properties |
| c | defaultTopic | j | reconsumeTimes |
| d | defaultTopicQueueNums | k | unitMode |
| e | queueId | l | maxReconsumeTimes |
| f | sysFlag | m | batch |
| g | bornTimestamp | n | (brokerName) |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from attrs import define

from trioha.errors import RemoteProtocolError
from trioha.numbers import I32, I64, NATURAL32, Range, parse_int
from trioha.recording.events import PutStatus
from trioha.remoting.codes import RequestCode, ResponseCode, Version, response_code_name
from trioha.remoting.command import BadRequestError, RemotingCommand, SerializeType, request, response_to
from trioha.store.topics import RETRY_TOPIC_PREFIX

TOPIC_CHARS_MAX: Final = 127
RETRY_TOPIC_CHARS_MAX: Final = 255
DEFAULT_TOPIC: Final = "TBW102"
"""The template of topics that a first send creates."""

_SEND_MESSAGE = int(RequestCode.SEND_MESSAGE)
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]+")

_V1_NAMES = (
    ("a", "producerGroup"),
    ("b", "topic"),
    ("c", "defaultTopic"),
    ("d", "defaultTopicQueueNums"),
    ("e", "queueId"),
    ("f", "sysFlag"),
    ("g", "bornTimestamp"),
    ("h", "flag"),
    ("i", "properties"),
    ("j", "reconsumeTimes"),
    ("k", "unitMode"),
    ("l", "maxReconsumeTimes"),
    ("m", "batch"),
    ("n", "brokerName"),
)
_LONG_NAMES: Final = dict(_V1_NAMES)

SEND_RESPONSE_FIELDS: Final[Mapping[str, str]] = MappingProxyType(
    {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
)
"""In every response to a send, also in failures: the Java client reads them unchecked
(docs/protocol/remoting.md#sends)."""


@define
class SendMessageRequestHeader:
    """Header of a send; the message is the body. Never changed; not frozen, as `RemotingCommand`."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    """Below zero, the broker chooses a queue."""
    sys_flag: int
    born_timestamp_ms: int
    """The producer's wall clock, ms since 1970."""
    flag: int
    """The user's own flag, stored unchanged."""
    properties: str = ""
    """The properties string (docs/protocol/store.md#properties)."""
    reconsume_times: int = 0
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    batch: bool = False
    broker_name: str | None = None

    @classmethod
    def of(cls, command: RemotingCommand) -> SendMessageRequestHeader:
        """The header of a request 10, 310 or 320.

        Raises BadRequestError for a field that is missing or invalid.
        """
        fields = command.ext_fields
        if command.code == _SEND_MESSAGE:
            fields = {short: fields[long] for short, long in _V1_NAMES if long in fields}
        try:
            header = cls(
                fields["a"],
                fields["b"],
                fields["c"],
                _number("d", fields["d"]),
                _number("e", fields["e"]),
                _number("f", fields["f"]),
                _number("g", fields["g"], I64),
                _number("h", fields["h"]),
                fields.get("i", ""),
                _number("j", fields.get("j", "0")),
                fields.get("k") == "true",
                _number("l", fields["l"]) if "l" in fields else None,
                fields.get("m") == "true",
                fields.get("n"),
            )
        except KeyError as error:
            missing = str(error.args[0])
            raise BadRequestError(
                f"request header field {_LONG_NAMES[missing]} ({missing}) is missing"
            ) from None
        check_topic(header.topic)
        return header

    def to_ext_fields(self) -> dict[str, str]:
        """The fields of SEND_MESSAGE_V2."""
        fields = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_nums),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp_ms),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "true" if self.unit_mode else "false",
            "m": "true" if self.batch else "false",
        }
        if self.max_reconsume_times is not None:
            fields["l"] = str(self.max_reconsume_times)
        if self.broker_name is not None:
            fields["n"] = self.broker_name
        return fields


@define
class SendMessageResponseHeader:
    """Header of the response for a stored message. Never changed; not frozen, as `RemotingCommand`."""

    msg_id: str
    """Offset message id: store host and physical offset in hex; of a batch, several with commas."""
    queue_id: int
    queue_offset: int
    """Position in the consume queue, counted in messages; of a batch, the first."""
    transaction_id: str | None = None
    batch_unique_id: str | None = None
    """UNIQ_KEY of a batch that is stored as one record."""
    recall_handle: str | None = None
    """What the timer of a message that waits for its time is recalled with."""

    def to_ext_fields(self) -> dict[str, str]:
        """The fields of the response."""
        fields = {
            "msgId": self.msg_id,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
            # SEND_RESPONSE_FIELDS, written out: to unpack a mapping costs as much as all the rest.
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
        if self.transaction_id is not None:
            fields["transactionId"] = self.transaction_id
        if self.batch_unique_id is not None:
            fields["batchUniqId"] = self.batch_unique_id
        if self.recall_handle is not None:
            fields["recallHandle"] = self.recall_handle
        return fields

    @classmethod
    def of(cls, command: RemotingCommand) -> SendMessageResponseHeader:
        """The header of the response for a stored message.

        Raises RemoteProtocolError for a field that is missing or invalid.
        """
        ext = command.ext_fields
        try:
            return cls(
                ext["msgId"],
                parse_int(ext["queueId"], NATURAL32),
                parse_int(ext["queueOffset"], I64),
                ext.get("transactionId"),
                ext.get("batchUniqId"),
                ext.get("recallHandle"),
            )
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(
                f"response to a send without a usable msgId, queueId or queueOffset: {error}"
            ) from error


def send_request(
    header: SendMessageRequestHeader, body: bytes, *, serialize_type: SerializeType = SerializeType.JSON
) -> RemotingCommand:
    """The request that sends one message, as a current Java producer does."""
    return request(
        RequestCode.SEND_MESSAGE_V2,
        ext_fields=header.to_ext_fields(),
        body=body,
        serialize_type=serialize_type,
    )


def send_response(
    asked: RemotingCommand,
    status: PutStatus,
    *,
    header: SendMessageResponseHeader | None,
    remark: str | None = None,
) -> RemotingCommand:
    """The response to a send that ended with `status`.

    `header` is required for `STORED_STATUSES`, and ignored for others; `remark` replaces the usual text.
    """
    code = PUT_STATUS_CODES[status]
    if status in STORED_STATUSES:
        assert header is not None, f"a stored message has an id: {status.name}"
        return response_to(asked, code, remark=remark, ext_fields=header.to_ext_fields())
    return response_to(
        asked, code, remark=remark or PUT_STATUS_REMARKS[status], ext_fields=SEND_RESPONSE_FIELDS
    )


def refused_send(asked: RemotingCommand, error: BadRequestError) -> RemotingCommand:
    """The response to a send that was refused before it was put.

    An invalid parameter has the code of the sender's version: producers of 4.9 do not know INVALID_PARAMETER,
    those of 5.x would try again after SYSTEM_ERROR.
    """
    code = error.code
    if code == ResponseCode.INVALID_PARAMETER and asked.version < Version.V5_0_0:
        code = ResponseCode.SYSTEM_ERROR
    return response_to(asked, code, remark=error.reason, ext_fields=SEND_RESPONSE_FIELDS)


PUT_STATUS_CODES: Final[Mapping[PutStatus, ResponseCode]] = MappingProxyType(
    {
        PutStatus.PUT_OK: ResponseCode.SUCCESS,
        PutStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
        PutStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
        PutStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
        PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
        # 5.3 answers 2, 4.9 answers 1; producers of both versions retry after 1, those of 4.9 not after 2.
        PutStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_ERROR,
        PutStatus.UNKNOWN_ERROR: ResponseCode.SYSTEM_ERROR,
        PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    }
)
"""The response code of each put status (docs/protocol/store.md#put-statuses)."""

PUT_STATUS_REMARKS: Final[Mapping[PutStatus, str]] = MappingProxyType(
    {
        PutStatus.SERVICE_NOT_AVAILABLE: "no messages are taken now: a slave, stopping, or its disk is full",
        PutStatus.CREATE_MAPPED_FILE_FAILED: "no file could be made for the message; is the disk full?",
        PutStatus.MESSAGE_ILLEGAL: "the message is illegal: too large, or a field that cannot be stored",
        PutStatus.PROPERTIES_SIZE_EXCEEDED: "the message's properties are larger than 32767 bytes",
        PutStatus.OS_PAGE_CACHE_BUSY: "the broker's disk is too slow for what it is sent",
        PutStatus.UNKNOWN_ERROR: "the message could not be stored; the broker's log says why",
        PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: "in-sync replicas not enough",
    }
)
"""Remarks for messages that were not stored."""

STORED_STATUSES: Final = frozenset(
    {
        PutStatus.PUT_OK,
        PutStatus.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT,
        PutStatus.SLAVE_NOT_AVAILABLE,
    }
)
"""Statuses of messages that are in the log."""

_STATUSES_BY_REMARK = {remark: status for status, remark in PUT_STATUS_REMARKS.items()}
_STATUSES_BY_CODE = {
    int(ResponseCode.SUCCESS): PutStatus.PUT_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): PutStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): PutStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): PutStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.SERVICE_NOT_AVAILABLE): PutStatus.SERVICE_NOT_AVAILABLE,
    int(ResponseCode.MESSAGE_ILLEGAL): PutStatus.MESSAGE_ILLEGAL,
}


def put_status_name(answer: RemotingCommand) -> str:
    """RocketMQ's name of the put status in the response to a send.

    Several statuses share a code and are distinguished by trioha's remarks and RocketMQ's `in-sync replicas
    not enough`. A code of no put status gives the name of the code.
    """
    status = _STATUSES_BY_CODE.get(answer.code)
    by_remark = _STATUSES_BY_REMARK.get(answer.remark or "")
    if by_remark is not None and PUT_STATUS_CODES[by_remark] == answer.code:
        status = by_remark
    return response_code_name(answer.code) if status is None else status.name


def _number(name: str, text: str, within: Range = I32) -> int:
    if len(text) < 10 and text.isdigit() and text.isascii():
        # Most are of a few digits, and so within any range.
        return int(text)
    try:
        return parse_int(text, within)
    except ValueError:
        bits = within.high.bit_length() + 1
        raise BadRequestError(
            f"request header field {_LONG_NAMES[name]} ({name}) is not a {bits}-bit number: {text[:40]!r}"
        ) from None


@lru_cache(maxsize=4096)
def check_topic(topic: str) -> None:
    """Raises BadRequestError for a name that no topic may have."""
    is_retry = topic.startswith(RETRY_TOPIC_PREFIX)
    chars_max = RETRY_TOPIC_CHARS_MAX if is_retry else TOPIC_CHARS_MAX
    if not topic:
        reason = "The specified topic is blank."
    elif len(topic) > chars_max and is_retry:
        reason = (
            f"The specified topic is DLQ or Retry topic: {topic[:300]}, "
            f"and it's longer than topic max length: {chars_max}"
        )
    elif len(topic) > chars_max:
        reason = f"The specified topic: {topic[:300]}, is longer than topic max length: {chars_max}"
    elif not _TOPIC.fullmatch(topic):
        reason = (
            f"The specified topic: {topic}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
        )
    else:
        return
    raise BadRequestError(reason, code=ResponseCode.INVALID_PARAMETER)
