"""RECALL_MESSAGE: a producer takes back a timer message (docs/protocol/timer.md#recall).

The request has the handle that the send was answered with. What is stored is a timer of the same slot, with
the key of the message that is recalled; neither of the two is delivered.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from trioha.broker.puts import PutAnswer, PutResult, PutService
from trioha.broker.remarks import SEE_FAQ
from trioha.broker.send_processor import born_host_of
from trioha.broker.timer_messages import DELIVER_MS, RecallHandle, TimerMessages, waiting_message
from trioha.broker.timer_records import RECALLED_KEY, UNIQUE_KEY
from trioha.ha.group_commit import Commit
from trioha.metadata.topics import TopicTable
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.send_message import PUT_STATUS_CODES, STORED_STATUSES
from trioha.remoting.serving import Answer, Peer
from trioha.store.messages import Message

TAG: Final = "_RECALL_TAG_"
BODY: Final = b"0"


class RecallProcessor:
    """Handles recalls."""

    def __init__(
        self,
        puts: PutService,
        topics: TopicTable,
        timers: TimerMessages,
    ) -> None:
        self._puts = puts
        self._topics = topics
        self._timers = timers

    def answer(self, request: RemotingCommand, peer: Peer) -> Answer:
        """The response, a later one if the put waits for slaves or the disk. Raises BadRequestError."""
        fields = HeaderFields(request.ext_fields)
        timers, topic = self._timers, fields.text("topic")
        if not (timers.settings.is_enabled and timers.settings.recall_enabled):
            raise BadRequestError("recall failed, operation is forbidden", code=ResponseCode.NO_PERMISSION)
        if self._puts.is_slave:
            raise BadRequestError(
                "recall failed, broker service not available", code=ResponseCode.SLAVE_NOT_AVAILABLE
            )
        if self._topics.find(topic) is None:
            raise BadRequestError(
                f"recall failed, the topic[{topic}] not exist{SEE_FAQ}", code=ResponseCode.TOPIC_NOT_EXIST
            )
        handle = self._handle(fields.text("recallHandle"), topic)
        now_ms = timers.now_ms()
        slot_ms = timers.slot_of(handle.deliver_ms)
        properties = {
            RECALLED_KEY: handle.unique_key,
            "BORN_TIMESTAMP": str(now_ms),
            DELIVER_MS: str(handle.deliver_ms),
            UNIQUE_KEY: handle.unique_key,
            "PGROUP": fields.optional("producerGroup") or "",
            "TAGS": TAG,
        }
        message = Message(
            topic=topic,
            queue_id=0,
            body=BODY,
            properties=b"",
            born_timestamp_ms=now_ms,
            born_host=born_host_of(peer.address.host, peer.address.port),
        )
        put = self._puts.put_and_wait(waiting_message(message, properties, slot_ms))
        if isinstance(put, PutResult):
            return _respond(request, handle, put)
        return PutAnswer(put, partial(self._respond_later, request, handle, put))

    def _handle(self, text: str, topic: str) -> RecallHandle:
        """The handle of a timer of this broker that is still to come. Raises BadRequestError."""
        timers = self._timers
        try:
            handle = RecallHandle.decode(text)
        except ValueError:
            raise _refused("recall handle is invalid") from None
        if handle.topic != topic:
            raise _refused("recall failed, topic not match")
        if handle.broker_name != timers.broker_name:
            raise _refused("recall failed, broker service not available")
        ahead_ms = handle.deliver_ms - timers.now_ms()
        if not 0 < ahead_ms <= timers.settings.delay_ms_max:
            raise _refused("recall failed, timestamp invalid")
        return handle

    def _respond_later(
        self, request: RemotingCommand, handle: RecallHandle, commit: Commit
    ) -> RemotingCommand:
        return _respond(request, handle, self._puts.result(commit))


def _respond(request: RemotingCommand, handle: RecallHandle, result: PutResult) -> RemotingCommand:
    if result.status not in STORED_STATUSES:
        raise BadRequestError(
            result.append.reason or result.status.name, code=PUT_STATUS_CODES[result.status]
        )
    return response_to(request, PUT_STATUS_CODES[result.status], ext_fields={"msgId": handle.unique_key})


def _refused(reason: str) -> BadRequestError:
    return BadRequestError(reason, code=ResponseCode.ILLEGAL_OPERATION)
