"""Group commit: what a put waits for after its append (docs/protocol/ha.md#group-commit).

`need` is the number of copies beyond the master's own: a fixed one (inSyncReplicas), all replicas in sync
(allAckInSyncStateSet), or as many as are in sync (enableAutoInSyncReplicas). With fewer in sync than
minInSyncReplicas the put is refused before its append: IN_SYNC_REPLICAS_NOT_ENOUGH. With fewer eligible
replicas than `need` the put is answered at once, its message stays stored: SLAVE_NOT_AVAILABLE. Otherwise it
waits until the need-th largest acknowledged offset reaches its end, at most slaveTimeout:
FLUSH_SLAVE_TIMEOUT. With SYNC_FLUSH it also waits for the disk, at most syncFlushTimeout: FLUSH_DISK_TIMEOUT.
Both waits run side by side, each put has its own deadlines, and if both fail the replicas' status is the
answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import trio
from attrs import frozen

from trioha.deferred import Deferred
from trioha.ha.replicas import Replicas
from trioha.ha.timeouts import Timeouts
from trioha.recording.events import EventSink, Kind, NoSink
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.watermark import GIVEN_UP, REACHED, REWOUND, Wait, Watermark

# Plain numbers: looking up a member of an enum costs more than an `emit` that ignores it.
_WAIT_END = int(Kind.WAIT_END)
PUT_OK: Final = PutStatus.PUT_OK
PUSHED_PUTS_MAX: Final = 4
"""Where more puts wait, the next ones go to slaves with those of other connections that come in the same turn
of the scheduler."""
UNACKED_BYTES_MAX: Final = 32 * 1024
"""A slave that has more to acknowledge is not in step: what it gets next waits for more to come."""

T = TypeVar("T")
Answer = Callable[[PutStatus, AppendResult, float], T]
"""Makes the result of a put that has waited, from its status and the time now, in s of trio's clock."""
RunAnswer = Callable[["list[PutStatus] | None", AppendResult, float], T]
"""The same of a run of puts, from the status of each; None if all are PUT_OK."""


@frozen
class GroupCommitSettings:
    """What puts of this master wait for."""

    copies_needed: int
    """Replicas that must hold a put before PUT_OK; 0 for an ASYNC_MASTER."""
    slave_timeout_s: float
    sync_flush: bool
    sync_flush_timeout_s: float
    copies_min: int = 0
    """minInSyncReplicas less the master's own copy: with fewer replicas in sync puts are refused."""
    lowers_need: bool = False
    """enableAutoInSyncReplicas: a put needs no more copies than are in sync, but at least `copies_min`."""
    all_in_sync: bool = False
    """allAckInSyncStateSet: a put needs every replica in sync, at least `copies_needed`."""


class GroupCommit:
    """Waits for replicas and disk on behalf of puts, while `run` keeps their deadlines."""

    def __init__(
        self,
        settings: GroupCommitSettings,
        *,
        replicas: Replicas,
        flushed: Watermark,
        sink: EventSink,
        push: Callable[[int], bool] | None = None,
        poll_acks: Callable[[Wait], None] | None = None,
    ) -> None:
        """Where no other put is expected now, `push` sends what was appended at once, to the slaves that have
        at most the given number of bytes to acknowledge, and returns whether that was all; if so, `poll_acks`
        polls for a moment for the acks that end the last wait."""
        self._settings = settings
        self._replicas = replicas
        self._flushed = flushed
        self._sink = sink
        self._is_recorded = not isinstance(sink, NoSink)
        self._now_s: Callable[[], float] = trio.current_time
        self._depends_on_sync = settings.all_in_sync or settings.lowers_need
        self.waits = settings.copies_needed > 0 or settings.sync_flush
        """Whether puts wait; one with the property WAIT=false never does."""
        self.refuses = settings.copies_min > 0
        """Whether `refusal` may refuse a put."""
        self._push = push
        self._poll_acks = poll_acks
        self._mark = flushed
        """What the last put waits for."""
        self._waiting = 0
        """Waiting puts, including released ones whose task has not run yet."""
        self._is_push_due = False
        """Whether a put that few others preceded has begun since the last `end_turn`."""
        self._is_over = False
        """Whether the node is the master no more: no copy counts."""
        self._lone: Wait | None = None
        """Wait of that put, if it was the only one and a client waits for its answer."""
        self._replica_timeouts = Timeouts(settings.slave_timeout_s)
        self._disk_timeouts = Timeouts(settings.sync_flush_timeout_s)

    def refusal(self, max_offset: int) -> PutStatus | None:
        """Why a put may not be appended while the log ends at `max_offset`; None if it may.

        IN_SYNC_REPLICAS_NOT_ENOUGH with fewer replicas in sync than minInSyncReplicas requires.
        """
        if self.refuses and self._replicas.in_sync_count(max_offset) < self._settings.copies_min:
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return None

    def _copies_needed(self, end_offset: int, now_s: float | None = None) -> int:
        """How many replicas must hold a put that ends at `end_offset`."""
        settings = self._settings
        need = settings.copies_needed
        if not self._depends_on_sync:
            return need
        in_sync = self._replicas.in_sync_count(end_offset, now_s)
        if settings.all_in_sync:
            need = max(need, in_sync)
        if settings.lowers_need:
            need = max(min(need, in_sync), settings.copies_min)
        return need

    def replicated_offset(self, max_offset: int) -> int:
        """End of what as many replicas have acknowledged as a put at the log's end `max_offset` needs."""
        need = self._copies_needed(max_offset)
        return self._replicas.acknowledged_offset(need) if need else max_offset

    def end_replica_waits(self) -> None:
        """End every wait for replicas now, and each later one at once: this node is the master no more.

        The puts are answered with FLUSH_SLAVE_TIMEOUT: they are stored here, and not known to be elsewhere.
        So are those whose copies were acknowledged, and which still wait for the disk: replicas cut what the
        new master does not have.
        """
        self._is_over = True
        self._replica_timeouts.end_all()

    def wait(self, appended: AppendResult, *, request_id: int, answer: Answer[T]) -> Awaitable[T]:
        """Record the put, and wait until it is as safe as the settings require; gives `answer`'s result.

        The status is PUT_OK, SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT or FLUSH_DISK_TIMEOUT. The wait begins
        now; the caller must await the result, and cancelling that leaves nothing behind.
        """
        started_s = self._now_s()
        status, copies, disk = self._begin_waits(appended, request_id, started_s)
        return self._wait(appended, request_id, started_s, status, copies, disk, answer)

    async def _wait(  # noqa: PLR0917 - a call by keywords would cost each put more
        self,
        appended: AppendResult,
        request_id: int,
        started_s: float,
        status: PutStatus,
        copies: Wait | None,
        disk: Wait | None,
        answer: Answer[T],
    ) -> T:
        """Every put of a task goes through this one coroutine: it waits for the events of its waits itself,
        reads the clock once, and asks for nothing that holds for all puts between two acks."""
        # Puts of the same scheduler turn share the connection's next frame. With one waiting put there is
        # nothing to batch, nor after as many puts as the last ack released, or half of many: they are sent at
        # once. The slave stores that half while the other one is put.
        is_sent = False
        if copies is not None and self._push is not None and (not self._waiting or self._mark.is_refilled):
            is_sent = self._push(0)
        self._waiting += 1
        try:
            if is_sent and copies is not None and self._poll_acks is not None:
                # Other tasks run while the slave works. If none of them has put, polling delays no put.
                waiting = self._waiting
                await trio.lowlevel.checkpoint()
                if self._waiting == waiting and copies.result is None:
                    self._poll_acks(copies)
                    if waiting > 1:
                        # Put again in the turn in which the others do.
                        await trio.lowlevel.checkpoint()
            if copies is not None:
                if copies.result is None:
                    copies.event = event = trio.Event()
                    await event.wait()
                if copies.result is not REACHED:
                    status = PutStatus.FLUSH_SLAVE_TIMEOUT
            if disk is not None:
                if disk.result is None:
                    disk.event = event = trio.Event()
                    await event.wait()
                # After a cut the log does not hold the record any more: it will not be flushed.
                if disk.result is not REACHED and status is PUT_OK:
                    status = PutStatus.FLUSH_DISK_TIMEOUT
        except BaseException:
            # Cancelled before or between the two waits.
            if copies is not None:
                copies.end()
            if disk is not None:
                disk.end()
            raise
        finally:
            self._waiting -= 1
        if copies is not None and self._is_over:
            status = PutStatus.FLUSH_SLAVE_TIMEOUT
        now_s = self._now_s()
        if self._is_recorded:
            self._record_end(appended.end_offset, request_id, started_s, now_s, status)
        return answer(status, appended, now_s)

    def begin(
        self,
        appended: AppendResult,
        *,
        request_id: int,
        answer: Answer[T],
        expected: Callable[[], T] | None = None,
        is_awaited: bool = True,
    ) -> Deferred[T]:
        """As `wait`, without a task: the result comes from the `Deferred`.

        Call `end_turn` after all puts that come together: they are sent to the slaves in one frame.
        `expected` makes what `answer` returns for PUT_OK. If no client waits for the answer, `is_awaited` is
        False: the acks of the put are not polled for.
        """
        started_s = self._now_s()
        status, copies, disk = self._begin_waits(appended, request_id, started_s)
        self._note_push(copies, is_awaited=is_awaited)
        return _WaitingPut(
            self,
            appended,
            request_id=request_id,
            started_s=started_s,
            status=status,
            copies=copies,
            disk=disk,
            answer=answer,
            expected=expected,
        )

    def begin_run(
        self,
        appended: AppendResult,
        *,
        request_id: int,
        answer: RunAnswer[T],
        expected: Callable[[], T] | None = None,
        is_awaited: bool = True,
    ) -> Deferred[T]:
        """As `begin`, for a run of puts that were appended together: they share their waits.

        Each is a put of its own: it has a status of its own, and `request_id` is that of the first one.
        """
        started_s = self._now_s()
        status, copies, disk = self._begin_waits(appended, request_id, started_s)
        self._note_push(copies, is_awaited=is_awaited)
        return _WaitingRun(
            self,
            appended,
            request_id=request_id,
            started_s=started_s,
            status=status,
            copies=copies,
            disk=disk,
            answer=answer,
            expected=expected,
            copies_mark=self._mark,
        )

    def _note_push(self, copies: Wait | None, *, is_awaited: bool) -> None:
        """Note what `end_turn` has to do for a put that begins."""
        if copies is not None and self._waiting < PUSHED_PUTS_MAX:
            self._is_push_due = True
            self._lone = copies if is_awaited and not self._waiting else None

    def end_turn(self) -> Callable[[], None] | None:
        """If a put was begun since the last call while few others waited, send to slaves what was appended.

        A slave in step gets it although it has not acknowledged all before: the writer task of its connection
        would send it a turn of the scheduler later. If the put is the only one that waits, and a client waits
        for its answer, returns a function that polls for the acks: call it once the other tasks have run that
        are ready now, since the slave works meanwhile. A poll for any other put would only delay the dispatch
        of its message.
        """
        if not self._is_push_due or self._push is None:
            return None
        self._is_push_due = False
        lone, self._lone = self._lone, None
        self._push(UNACKED_BYTES_MAX)
        if lone is None or self._poll_acks is None or self._waiting > 1:
            return None
        return partial(self._poll, lone)

    def _poll(self, lone: Wait) -> None:
        # If another task has put meanwhile, polling would delay that put.
        if lone.result is None and self._waiting == 1 and self._poll_acks is not None:
            self._poll_acks(lone)

    def _begin_waits(
        self, appended: AppendResult, request_id: int, started_s: float
    ) -> tuple[PutStatus, Wait | None, Wait | None]:
        """What a put waits for, copies and disk, each None if it need not; the status if nothing fails."""
        settings = self._settings
        start_offset = appended.physical_offset
        end_offset = start_offset + appended.size
        need = settings.copies_needed
        eligible = 0
        if need:
            eligible = self._replicas.eligible_count(end_offset, started_s)
            if self._depends_on_sync:
                need = self._copies_needed(end_offset, started_s)
        if self._is_recorded:
            self._record_begin(appended, request_id, need + 1)
        status = PUT_OK
        # Both waits begin before either is awaited: they run side by side.
        copies = disk = None
        if need > eligible:
            status = PutStatus.SLAVE_NOT_AVAILABLE
        elif need:
            self._mark = mark = self._replicas.current.copies(need)
            copies = mark.wait_for(end_offset, start_offset=start_offset)
            self._replica_timeouts.add(copies, started_s)
        if settings.sync_flush:
            disk = self._flushed.wait_for(end_offset)
            self._disk_timeouts.add(disk, started_s)
        return status, copies, disk

    def _record_begin(self, appended: AppendResult, request_id: int, copies: int) -> None:
        places, size = appended.places, appended.size
        end_offset = appended.physical_offset + size
        if places:
            self._sink.puts_and_waits(
                places=places, end_offset=end_offset, request_id=request_id, copies=copies
            )
        else:
            self._sink.put_and_wait(offset=end_offset, size=size, request_id=request_id, copies=copies)

    def _record_end(
        self, end_offset: int, request_id: int, started_s: float, now_s: float, status: PutStatus
    ) -> None:
        self._sink.emit(
            _WAIT_END,
            offset=end_offset,
            aux=request_id,
            size=_in_us(now_s - started_s),
            flags=status,
        )

    async def run(self) -> None:
        """End waits at their deadlines, until cancelled: without it no put times out."""
        # One call in place of three.
        self._now_s = trio.lowlevel.current_clock().current_time
        async with trio.open_nursery() as tasks:
            tasks.start_soon(self._replica_timeouts.run)
            tasks.start_soon(self._disk_timeouts.run)


class _Waiting(Deferred[T]):
    """What was appended and waits for copies and disk. Its waits call `set` when they end."""

    __slots__ = (
        "_appended",
        "_commit",
        "_copies",
        "_disk",
        "_expected",
        "_puts",
        "_request_id",
        "_started_s",
        "_status",
    )

    def __init__(  # noqa: PLR0917 - a call by keywords would cost each put more
        self,
        commit: GroupCommit,
        appended: AppendResult,
        request_id: int,
        started_s: float,
        status: PutStatus,
        copies: Wait | None,
        disk: Wait | None,
        expected: Callable[[], T] | None,
        puts: int = 1,
    ) -> None:
        self.is_ready = False
        self._on_ready = None
        self._commit = commit
        self._appended = appended
        self._request_id = request_id
        self._started_s = started_s
        self._status = status
        self._copies = copies
        self._disk = disk
        self._expected = expected
        self._puts = puts
        commit._waiting += puts
        if copies is not None and copies.result is None:
            copies.event = self
        if disk is not None and disk.result is None:
            disk.event = self

    def set(self) -> None:
        """A wait has ended."""
        copies, disk = self._copies, self._disk
        if (copies is None or copies.result is not None) and (disk is None or disk.result is not None):
            self._commit._waiting -= self._puts
            self._ready()

    def expected(self) -> T | None:
        """The result if the waits end well."""
        return self._expected() if self._expected is not None and self._status is PUT_OK else None

    def abandon(self) -> None:
        """End the waits."""
        self._on_ready = None
        if self._copies is not None:
            self._copies.end()
        if self._disk is not None:
            self._disk.end()


class _WaitingPut(_Waiting[T]):
    """A put that `GroupCommit.begin` has begun."""

    __slots__ = ("_answer",)

    def __init__(
        self,
        commit: GroupCommit,
        appended: AppendResult,
        *,
        request_id: int,
        started_s: float,
        status: PutStatus,
        copies: Wait | None,
        disk: Wait | None,
        answer: Answer[T],
        expected: Callable[[], T] | None,
    ) -> None:
        super().__init__(commit, appended, request_id, started_s, status, copies, disk, expected)
        self._answer = answer
        self.set()

    def result(self) -> T:
        """The answer to the put."""
        status, copies, disk = self._status, self._copies, self._disk
        if copies is not None and (copies.result is not REACHED or self._commit._is_over):
            status = PutStatus.FLUSH_SLAVE_TIMEOUT
        # After a cut the log does not hold the record any more: it will not be flushed.
        if disk is not None and disk.result is not REACHED and status is PUT_OK:
            status = PutStatus.FLUSH_DISK_TIMEOUT
        now_s = self._commit._now_s()
        if self._commit._is_recorded:
            self._commit._record_end(
                self._appended.end_offset, self._request_id, self._started_s, now_s, status
            )
        return self._answer(status, self._appended, now_s)


class _WaitingRun(_Waiting[T]):
    """A run of puts that `GroupCommit.begin_run` has begun, with one wait for copies and one for the disk.

    Both are for the end of the last put. If a wait is given up, the puts before its mark have what they
    waited for, as if each had waited for itself.
    """

    __slots__ = ("_answer", "_copies_mark", "_copies_offset", "_disk_offset")

    def __init__(
        self,
        commit: GroupCommit,
        appended: AppendResult,
        *,
        request_id: int,
        started_s: float,
        status: PutStatus,
        copies: Wait | None,
        disk: Wait | None,
        answer: RunAnswer[T],
        expected: Callable[[], T] | None,
        copies_mark: Watermark,
    ) -> None:
        """`copies_mark` is what `copies` waits for."""
        super().__init__(
            commit,
            appended,
            request_id,
            started_s,
            status,
            copies,
            disk,
            expected,
            len(appended.batch_offsets),
        )
        self._answer = answer
        self._copies_mark = copies_mark
        self._copies_offset: int | None = None
        """Puts that end beyond have not enough copies; None if the wait was not given up."""
        self._disk_offset: int | None = None
        """The same of the disk."""
        self.set()

    def set(self) -> None:
        """A wait has ended."""
        # Now: the marks may move on before the result is taken.
        if self._copies is not None and self._copies_offset is None:
            self._copies_offset = _offset_given_up(self._copies, self._copies_mark)
        if self._disk is not None and self._disk_offset is None:
            self._disk_offset = _offset_given_up(self._disk, self._commit._flushed)
        super().set()

    def result(self) -> T:
        """The answers to the puts."""
        commit, appended = self._commit, self._appended
        if self._copies is not None and commit._is_over:
            self._copies_offset = 0
        statuses = None
        if self._status is not PUT_OK or self._copies_offset is not None or self._disk_offset is not None:
            statuses = [self._status_of(end_offset) for end_offset in appended.put_ends]
        now_s = commit._now_s()
        if commit._is_recorded:
            if statuses is None:
                commit._sink.waits_ended(
                    places=appended.places,
                    end_offset=appended.end_offset,
                    request_id=self._request_id,
                    took_us=_in_us(now_s - self._started_s),
                    status=PUT_OK,
                )
            else:
                for number, (end_offset, status) in enumerate(zip(appended.put_ends, statuses, strict=True)):
                    commit._record_end(end_offset, self._request_id + number, self._started_s, now_s, status)
        return self._answer(statuses, appended, now_s)

    def _status_of(self, end_offset: int) -> PutStatus:
        """The status of the put that ends there, by the rules of `_WaitingPut.result`."""
        if self._copies_offset is not None and end_offset > self._copies_offset:
            return PutStatus.FLUSH_SLAVE_TIMEOUT
        if self._disk_offset is not None and end_offset > self._disk_offset and self._status is PUT_OK:
            return PutStatus.FLUSH_DISK_TIMEOUT
        return self._status


def _in_us(seconds: float) -> int:
    """Whole microseconds. A sink records a wait beyond the field, 35 minutes, as the longest that fits."""
    return int(seconds * 1e6 + 0.5)


def _offset_given_up(wait: Wait, mark: Watermark) -> int | None:
    """Where the mark is if `wait` was given up; 0 if its bytes were cut; None if it has not ended so."""
    if wait.result is GIVEN_UP:
        return mark.offset
    return 0 if wait.result is REWOUND else None
