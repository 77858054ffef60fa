"""ACK_MESSAGE, BATCH_ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: what becomes of popped messages.

See docs/pop.md, docs/protocol/pop.md#check-points-and-acknowledgements.

An acknowledgement is a record in the log, and is answered with success when the record is where the broker's
role wants puts to be. A RocketMQ broker answers 0 also if it could not store the record. While no slave is
connected, a SYNC_MASTER stores puts alone: the answer is 0 then, with the remark SLAVE_NOT_AVAILABLE.
Acknowledgements of one connection that came together are one append, as are those of one request.

A change puts a check point for the message alone, then acknowledges the message of the old one: with the
first record alone the message comes twice, with the second alone it would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from trioha.broker.pop.handed_out import HandedOut
from trioha.broker.pop.ordered import OrderedPops
from trioha.broker.pop.puts import PopPuts, PopRecord, Put, refused
from trioha.broker.pop.records import Acknowledgement, CheckPoint, Pop
from trioha.broker.pop.settings import PopSettings, retry_topic
from trioha.broker.puts import PutAnswer
from trioha.broker.remarks import no_queue, no_topic
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.remoting.codec import encode_head
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.pop_handle import ORDERED_REVIVE_QUEUE, PopHandle, PopSource
from trioha.remoting.pop_message import (
    AckRequest,
    BatchAck,
    BatchAckRequest,
    ChangeInvisibleAnswer,
    ChangeInvisibleRequest,
)
from trioha.remoting.serving import Peer
from trioha.store.message_store import MessageStore
from trioha.store.put_status import PutStatus
from trioha.store.topics import RETRY_TOPIC_PREFIX

Answer: TypeAlias = RemotingCommand | PutAnswer[RemotingCommand]


class AckProcessor:
    """Handles acknowledgements and changes."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        settings: PopSettings,
        *,
        puts: PopPuts,
        ordered: OrderedPops,
        handed_out: HandedOut,
        is_slave: bool,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._settings = settings
        self._puts = puts
        self._ordered = ordered
        self._handed_out = handed_out
        self._is_slave = is_slave
        self._now_ms = now_ms

    def ack(self, request: RemotingCommand, peer: Peer) -> Answer:
        """ACK_MESSAGE. Raises BadRequestError."""
        checked = self._checked(request, peer)
        return self._when_settled(request, self._puts.put_all([] if checked is None else [checked]))

    def answer_run(self, requests: Sequence[RemotingCommand], peer: Peer) -> bytes | PutAnswer[bytes]:
        """As `AckHandler`."""
        records: list[tuple[PopRecord, int]] = []
        known: list[RemotingCommand | None] = []
        """The answers that are known now."""
        for request in requests:
            try:
                checked = self._checked(request, peer)
            except BadRequestError as error:
                known.append(_refusal(request, error))
                continue
            if checked is None:
                known.append(response_to(request, ResponseCode.SUCCESS))
            else:
                known.append(None)
                records.append(checked)

        def frames(statuses: list[PutStatus | BadRequestError]) -> bytes:
            left = iter(statuses)
            return b"".join(
                [
                    encode_head(answer or _answer(request, next(left)))
                    for request, answer in zip(requests, known, strict=True)
                ]
            )

        return self._puts.answer(self._puts.put_all(records), frames)

    def _checked(self, request: RemotingCommand, peer: Peer) -> tuple[PopRecord, int] | None:
        """The record of an acknowledgement, and its queue of the revive topic; None for one of an ordered
        pop, which counts from now on. Raises BadRequestError."""
        header = AckRequest.of(request)
        low, high = self._range(header.topic, header.queue_id, peer, offset=header.offset)
        if not low <= header.offset <= high:
            raise BadRequestError(
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.offset}, "
                f"store:{low}~{high}",
                code=ResponseCode.NO_MESSAGE,
            )
        if header.handle.is_ordered:
            self._ordered.ack(
                (header.group, header.topic, header.queue_id), header.offset, pop_ms=header.handle.pop_ms
            )
            return None
        self._check_revive_queue(header.handle.revive_queue_id)
        record = _acknowledgement(header.group, header.topic, header.queue_id, header.offset, header.handle)
        self._note(record)
        return record, header.handle.revive_queue_id

    def batch_ack(self, request: RemotingCommand, peer: Peer) -> Answer:
        """BATCH_ACK_MESSAGE. Offsets beyond their queue are passed over. Raises BadRequestError."""
        acks = BatchAckRequest.of(request).acks
        if not acks:
            return response_to(request, ResponseCode.NO_MESSAGE)
        records: list[tuple[PopRecord, int]] = []
        for ack in acks:
            topic = (
                ack.topic if ack.source is PopSource.TOPIC else retry_topic(ack.group, ack.topic, ack.source)
            )
            low, high = self._range(topic, ack.queue_id, peer, offset=max(ack.offsets, default=0))
            offsets = tuple(offset for offset in ack.offsets if low <= offset <= high)
            if ack.revive_queue_id == ORDERED_REVIVE_QUEUE:
                for offset in offsets:
                    self._ordered.ack((ack.group, topic, ack.queue_id), offset, pop_ms=ack.pop_ms)
            elif offsets:
                self._check_revive_queue(ack.revive_queue_id)
                record = self._batch_record(ack, topic, offsets)
                self._note(record)
                records.append((record, ack.revive_queue_id))
        return self._when_settled(request, self._puts.put_all(records))

    def _batch_record(self, ack: BatchAck, topic: str, offsets: tuple[int, ...]) -> Acknowledgement:
        name = self._settings.broker_name
        pop = Pop(topic, ack.group, ack.queue_id, name, ack.start_offset, ack.pop_ms)
        return Acknowledgement(pop, offsets, ack.pop_ms + ack.invisible_ms, is_batch=True)

    def change(self, request: RemotingCommand, peer: Peer) -> Answer:
        """CHANGE_MESSAGE_INVISIBLETIME; a refusal has the fields of an answer, too."""
        try:
            return self._change(request, peer)
        except BadRequestError as error:
            fields = ChangeInvisibleAnswer().to_ext_fields()
            return response_to(request, error.code, remark=error.reason, ext_fields=fields)

    def _change(self, request: RemotingCommand, peer: Peer) -> Answer:
        """As `change`. Raises BadRequestError."""
        header = ChangeInvisibleRequest.of(request)
        low, high = self._range(header.topic, header.queue_id, peer, offset=header.offset)
        if not low <= header.offset < high:
            fields = ChangeInvisibleAnswer().to_ext_fields()
            return response_to(request, ResponseCode.NO_MESSAGE, ext_fields=fields)
        if header.invisible_ms < 0:
            raise BadRequestError("invisibleTime is negative", code=ResponseCode.INVALID_PARAMETER)
        handle = header.handle
        if handle.is_ordered:
            queue = (header.group, header.topic, header.queue_id)
            invisible_ms = self._ordered.change(
                queue, header.offset, pop_ms=handle.pop_ms, invisible_ms=header.invisible_ms
            )
            answer = ChangeInvisibleAnswer(handle.pop_ms, invisible_ms, handle.revive_queue_id)
            return response_to(request, ResponseCode.SUCCESS, ext_fields=answer.to_ext_fields())
        self._check_revive_queue(handle.revive_queue_id)
        # Never the time of the old check point: it would have the same name, and be acknowledged, too.
        pop_ms = max(self._now_ms(), handle.pop_ms + 1)
        pop = Pop(header.topic, header.group, header.queue_id, handle.broker_name, header.offset, pop_ms)
        point = CheckPoint(pop, header.invisible_ms, (0,), is_suspended=header.is_suspended)
        old = _acknowledgement(header.group, header.topic, header.queue_id, header.offset, handle)
        puts = [self._puts.put(record, revive_queue_id=handle.revive_queue_id) for record in (point, old)]
        self._note(old)
        self._handed_out.add((header.group, header.topic, header.queue_id), 1, due_ms=point.revive_ms)
        answer = ChangeInvisibleAnswer(pop_ms, header.invisible_ms, handle.revive_queue_id)
        return self._when_settled(request, puts, answer.to_ext_fields())

    def _note(self, record: Acknowledgement) -> None:
        """Messages are in flight no more."""
        pop = record.pop
        self._handed_out.remove(
            (pop.group, pop.topic, pop.queue_id), len(record.offsets), due_ms=record.deliver_ms
        )

    # -- checks

    def _range(self, topic: str, queue_id: int, peer: Peer, *, offset: int) -> tuple[int, int]:
        """The first offset of the queue, and the one after its last, as far as `offset` needs it.

        Raises BadRequestError.
        """
        if self._is_slave:
            raise BadRequestError("this broker is a slave", code=ResponseCode.SERVICE_NOT_AVAILABLE)
        config = self._metadata.topics.find(topic)
        queues = 0 if config is None else config.read_queue_nums
        if config is None:
            # A promoted slave may have the messages before the topic.
            if not topic.startswith(RETRY_TOPIC_PREFIX) or self._store.queues.find(topic, 0) is None:
                raise no_topic(topic[:300])
            queues = 1
        if not 0 <= queue_id < queues:
            raise no_queue(topic, queue_id, queues=queues, peer=peer, code=ResponseCode.MESSAGE_ILLEGAL)
        reads = self._store.reads
        try:
            if offset >= reads.max_offset(topic, queue_id):
                # What was popped is in its queue: to dispatch after each acknowledgement costs as much as it.
                self._store.dispatcher.catch_up()
            return reads.min_offset(topic, queue_id), reads.max_offset(topic, queue_id)
        except StoreError as error:
            raise BadRequestError(str(error)) from error

    def _check_revive_queue(self, queue_id: int) -> None:
        """Raises BadRequestError for a queue that no pop of this broker has had."""
        topic = self._metadata.topics.find(self._puts.topic)
        if queue_id >= max(self._settings.revive_queues, 0 if topic is None else topic.queue_nums):
            raise BadRequestError(
                f"queue {queue_id} of {self._puts.topic} does not exist", code=ResponseCode.MESSAGE_ILLEGAL
            )

    # -- answers

    def _when_settled(
        self,
        request: RemotingCommand,
        puts: Sequence[Put],
        fields: dict[str, str] | None = None,
    ) -> Answer:
        """The answer when all puts are settled: that to the first one that is not as it should be."""

        def answer(statuses: list[PutStatus | BadRequestError]) -> RemotingCommand:
            answers = [_answer(request, status, fields) for status in statuses]
            refusals = [one for one in answers if one.code != ResponseCode.SUCCESS]
            remarks = [one for one in answers if one.remark is not None]
            return next(iter(refusals + remarks + answers), response_to(request, ResponseCode.SUCCESS))

        return self._puts.answer(puts, answer)


def _answer(
    request: RemotingCommand, status: PutStatus | BadRequestError, fields: dict[str, str] | None = None
) -> RemotingCommand:
    """The answer to a request with one record, whose put has this status."""
    if isinstance(status, BadRequestError):
        return _refusal(request, status)
    if status is PutStatus.PUT_OK:
        return response_to(request, ResponseCode.SUCCESS, ext_fields=fields)
    if status is PutStatus.SLAVE_NOT_AVAILABLE:
        return response_to(request, ResponseCode.SUCCESS, remark=status.name, ext_fields=fields)
    return _refusal(request, refused(status))


def _refusal(request: RemotingCommand, error: BadRequestError) -> RemotingCommand:
    return response_to(request, error.code, remark=error.reason)


def _acknowledgement(
    group: str, topic: str, queue_id: int, offset: int, handle: PopHandle
) -> Acknowledgement:
    pop = Pop(topic, group, queue_id, handle.broker_name, handle.start_offset, handle.pop_ms)
    return Acknowledgement(pop, (offset,), handle.pop_ms + handle.invisible_ms)
