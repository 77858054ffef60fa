"""Offsets of groups and of queues: requests 14, 15, 29, 30, 31 and 32.

See docs/protocol/remoting.md#offsets-and-queries.
"""

from __future__ import annotations

from collections.abc import Callable

from trioha.broker.half_messages import refuse_own_group
from trioha.broker.pull_checks import PullSettings
from trioha.broker.pull_processor import no_limit
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.numbers import I32, I64, NATURAL32
from trioha.remoting.codes import ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Peer
from trioha.store.message_store import MessageStore

_NOT_FOUND = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
_NOT_SET_TO_ZERO = "Not found, do not set to zero, maybe this group boot first"


class OffsetProcessor:
    """Handles offsets of queues, and of groups in them."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        *,
        settings: PullSettings,
        log_end: Callable[[], int | None] = no_limit,
    ) -> None:
        """`log_end` as that of the pulls."""
        self._store = store
        self._metadata = metadata
        self.settings = settings
        self._log_end = log_end

    def query(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """QUERY_CONSUMER_OFFSET: the committed offset of the group.

        A group that is new begins at 0 if the queue still begins there and its first message is recent:
        then it missed nothing. Else the client decides. Raises BadRequestError.
        """
        fields = HeaderFields(request.ext_fields)
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.number("queueId", I32)
        offset = self._metadata.consumer_offsets.find(group, topic, queue_id)
        if offset is not None and offset >= 0:
            return _offset(request, offset)
        if request.version >= Version.V5_0_0 and not fields.flag("setZeroIfNotFound", default=True):
            raise BadRequestError(_NOT_SET_TO_ZERO, code=ResponseCode.QUERY_NOT_FOUND)
        if self._begins_at_0(topic, queue_id, version=request.version):
            return _offset(request, 0)
        raise BadRequestError(_NOT_FOUND, code=ResponseCode.QUERY_NOT_FOUND)

    def _begins_at_0(self, topic: str, queue_id: int, *, version: int) -> bool:
        """Whether a new group begins at 0. In a queue without messages only clients of 4.9 do."""
        reads = self._store.reads
        self._store.dispatcher.catch_up()
        try:
            if reads.min_offset(topic, queue_id) > 0:
                return False
            at = reads.physical_offset(topic, queue_id, 0)
        except StoreError as error:
            raise BadRequestError(str(error)) from error
        if at is None:
            return version < Version.V5_0_0
        return self._store.commit_log.max_offset - at <= self.settings.recent_bytes

    def update(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """UPDATE_CONSUMER_OFFSET: commit an offset of the group. Raises BadRequestError."""
        fields = HeaderFields(request.ext_fields)
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id, offset = fields.number("queueId", NATURAL32), fields.number("commitOffset", I64)
        refuse_own_group(group)
        groups = self._metadata.groups
        # A slave may not have a new group of its master yet; its offsets must not be lost.
        if (groups.find_or_default(group) if self.settings.is_slave else groups.find(group)) is None:
            raise BadRequestError(
                f"Group {group[:300]} not exist!", code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        if self._metadata.topics.find(topic) is None:
            raise BadRequestError(f"Topic {topic[:300]} not exist!", code=ResponseCode.TOPIC_NOT_EXIST)
        try:
            self._metadata.consumer_offsets.commit(group, topic, queue_id, offset)
        except TableFull as full:
            raise BadRequestError(str(full)) from None
        return response_to(request, ResponseCode.SUCCESS)

    def max_offset(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_MAX_OFFSET: the queue offset after the last message. Raises BadRequestError."""
        return _offset(request, self._max_offset(*_queue_of(request)))

    def _max_offset(self, topic: str, queue_id: int) -> int:
        self._store.dispatcher.catch_up()
        try:
            return self._store.reads.max_offset(topic, queue_id, log_end=self._log_end())
        except StoreError as error:
            raise BadRequestError(str(error)) from error

    def min_offset(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_MIN_OFFSET: the first queue offset that has a message. Raises BadRequestError."""
        return _offset(request, self._store.reads.min_offset(*_queue_of(request)))

    def by_timestamp(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """SEARCH_OFFSET_BY_TIMESTAMP: the first queue offset stored at or after a time.

        Where all messages are older, clients of 4.9 are given the last message, those of 5.x the queue's end.
        Raises BadRequestError.
        """
        topic, queue_id = _queue_of(request)
        fields = HeaderFields(request.ext_fields)
        is_upper = (fields.optional("boundaryType") or "").upper() == "UPPER"
        reads = self._store.reads
        self._store.dispatcher.catch_up()
        try:
            offset = reads.offset_by_time(topic, queue_id, fields.number("timestamp", I64), upper=is_upper)
        except StoreError as error:
            raise BadRequestError(str(error)) from error
        low, high = reads.min_offset(topic, queue_id), self._max_offset(topic, queue_id)
        offset = min(offset, high)
        if request.version < Version.V5_0_0 and offset == high > low:
            offset = high - 1
        return _offset(request, offset)

    def earliest_store_time(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_EARLIEST_MSG_STORETIME: when the queue's first message was stored. Raises BadRequestError."""
        try:
            timestamp_ms = self._store.reads.earliest_store_timestamp(*_queue_of(request))
        except StoreError as error:
            raise BadRequestError(str(error)) from error
        return response_to(request, ResponseCode.SUCCESS, ext_fields={"timestamp": str(timestamp_ms)})


def _queue_of(request: RemotingCommand) -> tuple[str, int]:
    fields = HeaderFields(request.ext_fields)
    return fields.text("topic"), fields.number("queueId", I32)


def _offset(request: RemotingCommand, offset: int) -> RemotingCommand:
    return response_to(request, ResponseCode.SUCCESS, ext_fields={"offset": str(offset)})
