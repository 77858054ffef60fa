"""PULL_MESSAGE and LITE_PULL_MESSAGE: messages of a queue, now or when there are some.

See docs/protocol/remoting.md#pulls.
`PullChecks` refuses pulls, `WaitingPull` waits for the queue.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from trioha.broker.clients import ClientRegistry
from trioha.broker.half_messages import refuse_own_group
from trioha.broker.long_polls import LongPolls
from trioha.broker.pull_checks import Pull, PullChecks, PullSettings
from trioha.broker.pull_counts import PullCounts
from trioha.broker.slave_reads import ELSEWHERE, MASTER_ID, REPEAT_S, always
from trioha.broker.traffic import BrokerTraffic
from trioha.broker.waiting_pull import WaitingPull
from trioha.errors import StoreError
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.table import TableFull
from trioha.net.transport import release
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.compiled_pulls import PullNumbers
from trioha.remoting.pull_forms import PullForm
from trioha.remoting.pull_message import PullFlag, PullRequest, PullResponseHeader
from trioha.remoting.serving import Peer, WaitingAnswer
from trioha.store.message_store import MessageStore
from trioha.store.reads import GetResult, GetStatus

DISPATCH_S: Final = 1.0
"""How long a pull beyond a queue's end waits for records that are stored and not dispatched."""
SUSPEND_S_MAX: Final = 90.0
"""A connection without traffic is closed after 120 s."""

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_FOUND: Final = GetStatus.FOUND
_SUCCESS: Final = int(ResponseCode.SUCCESS)
# A plain number: operations on members of a flag are slow.
_COMMITS: Final = int(PullFlag.COMMIT_OFFSET | PullFlag.SUSPEND)
_EMPTY: Final = frozenset((GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE))
_LOOKED_AT: Final = frozenset((GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING))
"""The read has passed entries of the queue."""


def no_limit() -> int | None:
    """For brokers that give consumers all records."""
    return None


def memory_bytes(percent: int) -> int:
    """So much of the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * percent // 100


class PullProcessor:
    """Answers pulls."""

    def __init__(
        self,
        store: MessageStore,
        metadata: MetadataStore,
        clients: ClientRegistry,
        polls: LongPolls,
        *,
        settings: PullSettings | None = None,
        traffic: BrokerTraffic | None = None,
        log_end: Callable[[], int | None] = no_limit,
        is_following: Callable[[], bool] = always,
    ) -> None:
        """Pulls are counted by group and topic in `traffic`. `log_end` says where the log ends for consumers,
        None if all of it is for them; `is_following` whether a slave is connected to its master."""
        self._store = store
        self._metadata = metadata
        self._checks = PullChecks(metadata, clients)
        self._polls = polls
        self.settings = settings or PullSettings()
        self._traffic = traffic
        self._log_end = log_end
        self._is_following = is_following
        self.counts = PullCounts()

    def answer(self, request: RemotingCommand, peer: Peer) -> RemotingCommand | WaitingAnswer:
        """The response to a pull, or what comes of it later where it waits for messages.

        `WaitingAnswer.abandon` ends the wait. Raises BadRequestError for a request that is refused.
        """
        pull = self._checks.checked(request, peer, self.settings)
        header = pull.header
        if header.flags & _COMMITS == _COMMITS:
            self._commit(header, header.commit_offset)
        result = self._read(pull, header.queue_offset)
        if result.status is _FOUND:
            return self._respond(pull, result)
        timeout_s = self._suspend_s(header)
        if timeout_s <= 0 or not self._waits(result, header.queue_offset):
            return self._respond(pull, result)
        if not _is_at_end(result, header.queue_offset):
            if not self.settings.is_slave:
                timeout_s = min(timeout_s, DISPATCH_S)
            elif self._is_following():
                timeout_s = min(timeout_s, REPEAT_S)
        waiting = WaitingPull(self, pull)
        poll = self._polls.open(
            (header.topic, header.queue_id), peer.connection, waiting, timeout_s=timeout_s
        )
        if poll is None:
            raise BadRequestError(
                "too many pulls wait for messages, trioha.longPollsMax", code=ResponseCode.SYSTEM_BUSY
            )
        waiting.begin(poll)
        return waiting

    def answer_at_once(
        self, form: PullForm, pull: PullNumbers, fits: Callable[[int], bool]
    ) -> tuple[bytes, tuple[memoryview, ...]] | None:
        """The answer to a pull of a known form, as `remoting.serving.PullHandler`. Raises BadRequestError."""
        kept = form.kept
        if type(kept) is not Pull or not self._checks.still_hold(kept, self.settings):
            return None
        header = kept.header
        if header.flags & _COMMITS == _COMMITS:
            self._commit(header, header.commit_offset if pull.commit_offset < 0 else pull.commit_offset)
        result = self._read(kept, pull.queue_offset)
        if result.status is not _FOUND or kept.head is None:
            return None
        head = kept.head.frame(
            self._suggested_broker_id(kept, result),
            result.next_begin_offset,
            result.min_offset,
            result.max_offset,
            opaque=pull.opaque,
            body_bytes=result.total_bytes,
        )
        if not fits(len(head) + result.total_bytes):
            release(list(result.records))
            return None
        # A pull counts when nothing can keep its answer from being sent.
        self._count(kept, result, result.next_begin_offset)
        return head, result.records

    def answer_later(self, pull: Pull, offset: int) -> RemotingCommand | int:
        """The response to a pull that waits, or the queue offset to wait for: each entry is looked at once.

        Raises BadRequestError.
        """
        result = self._read(pull, offset)
        if result.status is GetStatus.NO_MATCHED_MESSAGE:
            # Not for this consumer.
            return result.next_begin_offset
        return offset if self._waits(result, offset) else self._respond(pull, result)

    def answer_now(self, pull: Pull) -> RemotingCommand:
        """The response to a pull whose time is over. Raises BadRequestError."""
        return self._respond(pull, self._read(pull, pull.header.queue_offset))

    # -- reading ---------------------------------------------------------------------------------------

    def _commit(self, header: PullRequest, offset: int) -> None:
        """Keep the offset that a pull which may wait brings along; on a slave as well, like 5.x."""
        refuse_own_group(header.group)
        try:
            self._metadata.consumer_offsets.commit(header.group, header.topic, header.queue_id, offset)
        except TableFull as full:
            raise BadRequestError(str(full), code=ResponseCode.SYSTEM_ERROR) from None

    def _suspend_s(self, header: PullRequest) -> float:
        if not header.has(PullFlag.SUSPEND):
            return 0.0
        if not self.settings.long_polling:
            return self.settings.short_polling_s
        return min(header.suspend_timeout_ms / 1000, SUSPEND_S_MAX)

    def _waits(self, result: GetResult, offset: int) -> bool:
        """Whether a pull that may wait does, after this result of a read at `offset`."""
        if _is_at_end(result, offset):
            return True
        if self.settings.is_slave:
            return result.status in ELSEWHERE
        # A consumer that comes from a slave may be past messages that this broker has not dispatched yet. It
        # must not be sent back: RocketMQ's client would pause for 10 s, and receive them again.
        store = self._store
        return (
            result.status is GetStatus.OFFSET_OVERFLOW_BADLY
            and store.dispatcher.position < store.commit_log.max_offset
        )

    def _read(self, pull: Pull, offset: int) -> GetResult:
        header, reads, log_end = pull.header, self._store.reads, self._log_end()
        try:
            if not pull.tag_codes:
                found = reads.get_common(header.topic, header.queue_id, offset, pull.limits, log_end)
                if found is not None:
                    return found
            return reads.get(
                header.topic,
                header.queue_id,
                offset,
                limits=pull.limits,
                tag_codes=pull.tag_codes,
                log_end=log_end,
                joined=True,
            )
        except StoreError as error:
            raise BadRequestError(str(error), code=ResponseCode.SYSTEM_ERROR) from error

    def _respond(self, pull: Pull, result: GetResult) -> RemotingCommand:
        status = result.status
        asked = pull.header
        offset = asked.queue_offset
        next_offset = result.next_begin_offset
        if status is _FOUND:
            code = _SUCCESS
        elif status in _EMPTY:
            code = ResponseCode.PULL_OFFSET_MOVED if offset else ResponseCode.PULL_NOT_FOUND
        else:
            code = _CODES[status]
        suggested = self._suggested_broker_id(pull, result)
        if self.settings.is_slave and code == ResponseCode.PULL_OFFSET_MOVED:
            # The slave may lag its master, which decides.
            code, next_offset, suggested = ResponseCode.PULL_RETRY_IMMEDIATELY, offset, pull.group.broker_id
        header = PullResponseHeader(suggested, next_offset, result.min_offset, result.max_offset)
        self._count(pull, result, next_offset)
        return response_to(
            pull.request,
            code,
            remark=status.value,
            ext_fields=header.to_ext_fields(version=pull.request.version),
            slices=result.records,
        )

    def _count(self, pull: Pull, result: GetResult, next_offset: int) -> None:
        """Count a pull that is answered; `next_offset` is the one in the answer."""
        asked = pull.header
        if self._traffic is not None:
            self._traffic.note_pull(
                asked.group,
                asked.topic,
                asked.queue_id,
                next_offset=next_offset,
                messages=result.messages,
                total_bytes=result.total_bytes,
            )
        self.counts.note(result.messages)

    def _suggested_broker_id(self, pull: Pull, result: GetResult) -> int:
        if not self.settings.slave_read:
            return MASTER_ID
        header, lag_bytes = pull.header, 0
        if result.status in _LOOKED_AT:
            at = self._store.reads.physical_offset(
                header.topic, header.queue_id, result.next_begin_offset - 1
            )
            lag_bytes = 0 if at is None else self._store.commit_log.max_offset - at
        is_slow = lag_bytes > self.settings.recent_bytes
        return pull.group.which_broker_when_consume_slowly if is_slow else pull.group.broker_id


def _is_at_end(result: GetResult, offset: int) -> bool:
    """Whether a read found that the queue has nothing yet at `offset`."""
    if result.status in _EMPTY:
        return offset == 0
    return result.status is GetStatus.OFFSET_OVERFLOW_ONE or (
        result.status is GetStatus.OFFSET_FOUND_NULL and result.next_begin_offset == offset
    )
