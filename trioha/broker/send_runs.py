"""Runs of sends: those of one connection that came together are stored and answered together.

Theory of operation. `remoting.codec` finds a run of common sends at the start of what has been received.
`SendRuns.put` stores it if none of its sends needs more than a record of its own: their topic exists, is
writable, and on disk; no property makes them delayed, transactional or an inner batch, or asks for no wait.
Else it says so before anything is stored, and `SendProcessor` handles each by itself, with all its checks and
remarks. So what is stored and answered is the same in both cases, but for store timestamps, which the records
of a run share. Each send of a run is a put of its own: it is counted, recorded and answered as such, and has
a status of its own when a wait ends early.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import Final

from trioha.broker.puts import PutAnswer, PutService
from trioha.broker.send_processor import FORBIDDEN_TOPICS, SendProcessor, born_host_of
from trioha.ha.group_commit import Commit
from trioha.metadata.topics import TopicTable
from trioha.remoting import compiled_sends
from trioha.remoting.codec import encode_head
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import BadRequestError, RemotingCommand
from trioha.remoting.send_message import (
    STORED_STATUSES,
    SendMessageResponseHeader,
    check_topic,
    send_response,
)
from trioha.remoting.serving import Peer
from trioha.store.message_properties import encode_properties
from trioha.store.messages import AppendResult, EncodedSends
from trioha.store.put_status import PutStatus
from trioha.store.record import offset_message_id
from trioha.store.topics import RETRY_TOPIC_PREFIX

SPECIAL_PROPERTIES: Final = (b"DELAY\x01", b"TIMER_", b"INNER_", b"TRAN_MSG", b"WAIT\x01false")
"""A send with one of them may be more than a record of its own, or have another answer."""
_PUT_OFFSETS: Final = struct.Struct(">qq")
"""Physical offset and queue offset of a record."""
_COLUMN: Final = struct.Struct(">9q")


class SendRuns:
    """Stores runs of sends."""

    def __init__(
        self,
        puts: PutService,
        *,
        topics: TopicTable,
        cluster_name: str,
        send: SendProcessor,
    ) -> None:
        """`send` handles the sends of runs that are refused here."""
        self._puts = puts
        self._topics = topics
        self._send = send
        self.shared_properties = encode_properties({"CLUSTER": cluster_name})
        """What the broker adds to the properties of each send."""

    def put(self, sends: EncodedSends, data: bytes, peer: Peer) -> bytes | PutAnswer[bytes] | None:
        """As `RunHandler.put`."""
        topic = sends.topic
        if topic in FORBIDDEN_TOPICS or topic.startswith(RETRY_TOPIC_PREFIX) or not self._send.is_writable:
            return None
        config = self._topics.find(topic)
        if (
            config is None
            or not config.is_writable
            or topic in self._topics.changed_at
            or max(sends.queue_ids) >= config.queue_nums
            or any(name in sends.properties for name in SPECIAL_PROPERTIES)
        ):
            return None
        try:
            check_topic(topic)
        except BadRequestError:
            return None
        put = self._puts.put_run(sends, data, born_host=born_host_of(peer.address.host, peer.address.port))
        if isinstance(put, AppendResult):
            return _answers(sends, None, put)
        return None if put is None else PutAnswer(put, partial(self._answer_later, sends, put))

    def _answer_later(self, sends: EncodedSends, commit: Commit) -> bytes:
        return _answers(sends, self._puts.end(commit), commit.appended)


def _answers(sends: EncodedSends, statuses: list[PutStatus] | None, appended: AppendResult) -> bytes:
    """The frames of the answers to a run; b"" if it is one-way. `statuses` None: all are PUT_OK."""
    if sends.is_oneway:
        return b""
    if statuses is not None:
        return _answers_by_status(sends, statuses, appended)
    host = appended.store_host_packed.hex().upper().encode()
    return compiled_sends.encode_answers(sends.columns, appended.put_offsets, host, _PARTS)


def _answers_by_status(sends: EncodedSends, statuses: list[PutStatus], appended: AppendResult) -> bytes:
    frames: list[bytes] = []
    columns = _COLUMN.iter_unpack(sends.columns)
    put_offsets = _PUT_OFFSETS.iter_unpack(appended.put_offsets)
    for (opaque, queue_id, *_), (physical_offset, queue_offset), status in zip(
        columns, put_offsets, statuses, strict=True
    ):
        assert status in STORED_STATUSES, f"a run is stored as a whole: {status.name}"
        header = SendMessageResponseHeader(
            offset_message_id(appended.store_host_packed, physical_offset), queue_id, queue_offset
        )
        asked = RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque)
        frames.append(encode_head(send_response(asked, status, header=header)))
    return b"".join(frames)


def _header_parts() -> list[bytes]:
    """The pieces of a successful answer's header around message id, queue id, queue offset and opaque."""
    asked = RemotingCommand(RequestCode.SEND_MESSAGE_V2, 1_111_111_111)
    header = SendMessageResponseHeader("MESSAGE-ID", 222_222_222, 333_333_333)
    whole = encode_head(send_response(asked, PutStatus.PUT_OK, header=header))[8:]
    parts: list[bytes] = []
    for value in (b"MESSAGE-ID", b"222222222", b"333333333", b"1111111111"):
        before, found, whole = whole.partition(value)
        assert found, f"{value!r} is in the header"
        parts.append(before)
    return [*parts, whole]


_PARTS: Final = _header_parts()
