"""Puts: append, wait for disk and slaves, result (docs/architecture.md#one-messages-way)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

import trio
from attrs import define, field, frozen

from trioha.broker.rates import MidnightTotals, RateWindows, local_date
from trioha.ha.group_commit import Commit, GroupCommit
from trioha.recording.events import EventSink, Kind
from trioha.remoting.command import RemotingCommand
from trioha.remoting.serving import PendingAnswer
from trioha.store.commit_log import CommitLog
from trioha.store.messages import AppendResult, EncodedSends, Message, MessageBatch
from trioha.store.put_status import PutStatus
from trioha.store.record import Host

_PUT = int(Kind.PUT)
_NAMES = tuple(status.name for status in PutStatus)


class OnStored(Protocol):
    """Counts what was stored in a topic."""

    def __call__(self, topic: str, messages: int, total_bytes: int, puts: int = 1) -> None:
        """Note that `puts` puts have stored `messages` messages of `total_bytes` in all."""


@frozen
class PutStatistics:
    """Results of the puts since the start of the node."""

    statuses: dict[str, int] = field(factory=dict)
    """Puts by the name of their status."""
    messages_stored: int = 0
    messages_refused: int = 0
    """Puts that stored nothing."""
    stored_until_today: int = 0
    """Messages stored before the last local midnight."""
    stored_until_yesterday: int = 0
    """Messages stored before the midnight before that."""
    bytes_appended: int = 0
    """Bytes of the records that were stored."""
    messages_per_s: tuple[float, ...] = ()
    """Puts per second over the last 10 s, 60 s and 600 s."""


@define
class PutResult:
    """Status of a put and the result of its append. Never changed.

    Not frozen: attrs would set each field by a call, for each put.
    """

    status: PutStatus
    append: AppendResult


T = TypeVar("T", RemotingCommand, bytes)


@define(eq=False)
class PutAnswer(PendingAnswer, Generic[T]):
    """The answer to puts that are stored and wait for disk or slaves."""

    commit: Commit
    _answer: Callable[[], T]

    @property
    def marks(self) -> Hashable:
        """As `PendingAnswer`."""
        return self.commit.marks

    def watch(self, event: trio.Event, now_s: float) -> float:
        """As `PendingAnswer`."""
        return self.commit.watch(event, now_s)

    def unwatch(self) -> None:
        """As `PendingAnswer`."""
        self.commit.unwatch()

    def is_settled(self, now_s: float) -> bool:
        """As `PendingAnswer`."""
        return self.commit.is_settled(now_s)

    def answer(self) -> T:
        """As `PendingAnswer`."""
        return self._answer()


class PutService:
    """Stores messages on a master; a slave refuses them."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        group_commit: GroupCommit,
        sink: EventSink,
        is_slave: bool,
        on_stored: OnStored | None = None,
    ) -> None:
        """`on_stored` is called for each put that was stored."""
        self._log = commit_log
        self._group_commit = group_commit
        self._sink = sink
        self.is_slave = is_slave
        """Whether every put is refused."""
        self._refusal: str | None = "this broker is a slave" if is_slave else None
        """Why every put is refused; None if it is not."""
        self._on_stored = on_stored
        self._next_request_id = 1
        self._statuses = [0] * len(PutStatus)
        self._stored = 0
        self._refused = 0
        self._bytes = 0
        self._midnights = MidnightTotals(local_date())
        self._rates = RateWindows(trio.current_time())

    def refuse_all(self, reason: str) -> None:
        """Store nothing more: the broker is about to have another role."""
        self._refusal = reason

    def put(self, message: Message | MessageBatch) -> PutResult:
        """Append `message` now; waits for nothing. A batch is one put."""
        appended, request_id = self._append(message)
        return self._answered(appended, request_id)

    def put_and_wait(self, message: Message | MessageBatch) -> PutResult | Commit:
        """Append `message` now; a `Commit` if the put has to wait for disk or slaves, then `result` for it.

        If the `Commit` is dropped, the message stays stored and unanswered.
        """
        appended, request_id = self._append(message)
        if not (request_id and self._group_commit.waits):
            return self._answered(appended, request_id)
        return self._group_commit.begin(appended, request_id=request_id)

    def put_run(self, sends: EncodedSends, data: bytes, *, born_host: Host) -> Commit | AppendResult | None:
        """Append sends that came together, with bodies in `data`. Each is a put of its own.

        An `AppendResult` if they wait for nothing. None, with nothing stored, where each has to be put by
        itself.
        """
        commit = self._group_commit
        if self._refusal is not None or commit.refusal(self._log.max_offset) is not None:
            return None
        appended = self._log.append_sends(sends, data, born_host=born_host)
        if appended is None:
            return None
        puts = sends.count
        request_id = self._next_request_id
        self._next_request_id += puts
        self._stored += puts
        self._bytes += appended.size
        if self._on_stored is not None:
            self._on_stored(sends.topic, puts, appended.size, puts)
        if commit.waits:
            return commit.begin(appended, request_id=request_id)
        start_offset = appended.physical_offset
        for number, end_offset in enumerate(appended.put_ends):
            self._sink.emit(_PUT, offset=end_offset, aux=request_id + number, size=end_offset - start_offset)
            start_offset = end_offset
        self._count(None, puts, puts)
        return appended

    def end(self, commit: Commit) -> list[PutStatus] | None:
        """Record and count puts that are answered now. The status of each; None if all are PUT_OK."""
        statuses = self._group_commit.end(commit)
        appended = commit.appended
        messages = len(appended.batch_offsets) or 1
        self._count(statuses, messages if appended.put_offsets else 1, messages)
        return statuses

    def result(self, commit: Commit) -> PutResult:
        """The result of a put that was appended alone, as `end` counts it."""
        statuses = self.end(commit)
        return PutResult(PutStatus.PUT_OK if statuses is None else statuses[0], commit.appended)

    def _count(self, statuses: list[PutStatus] | None, puts: int, messages: int) -> None:
        if statuses is None:
            self._statuses[PutStatus.PUT_OK] += puts
        else:
            for status in statuses:
                self._statuses[status] += 1
        self._rates.add(messages, trio.current_time())

    def _append(self, message: Message | MessageBatch) -> tuple[AppendResult, int]:
        """The result of the append, and the number of the put; 0 if nothing was stored. Records no event."""
        if self._refusal is not None:
            appended = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason=self._refusal)
        elif (refusal := self._group_commit.refusal(self._log.max_offset)) is not None:
            appended = AppendResult(refusal)
        elif isinstance(message, MessageBatch):
            appended = self._log.append_batch(message)
        else:
            appended = self._log.append(message)
        if appended.status is not PutStatus.PUT_OK:
            self._refused += 1
            return appended, 0
        request_id = self._next_request_id
        self._next_request_id += 1
        size, messages = appended.size, len(appended.batch_offsets) or 1
        self._stored += messages
        self._bytes += size
        if self._on_stored is not None:
            self._on_stored(message.topic, messages, size)
        return appended, request_id

    def _answered(self, appended: AppendResult, request_id: int) -> PutResult:
        """The result of a put that waits for nothing, or stored nothing (request id 0)."""
        if request_id:
            size = appended.size
            self._sink.emit(_PUT, offset=appended.physical_offset + size, aux=request_id, size=size)
        self._count([appended.status], 1, len(appended.batch_offsets) or 1)
        return PutResult(appended.status, appended)

    @property
    def statuses(self) -> dict[str, int]:
        """Number of puts by the name of their status, without zeros."""
        return {name: count for name, count in zip(_NAMES, self._statuses, strict=True) if count}

    def statistics(self) -> PutStatistics:
        """Results of the puts up to now."""
        self._midnights.roll_over(local_date(), self._stored)
        return PutStatistics(
            messages_stored=self._stored,
            messages_refused=self._refused,
            stored_until_today=self._midnights.until_today,
            stored_until_yesterday=self._midnights.until_yesterday,
            statuses=self.statuses,
            bytes_appended=self._bytes,
            messages_per_s=self._rates.rates_per_s(trio.current_time()),
        )
