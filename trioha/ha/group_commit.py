"""Group commit: what a put waits for after its append (docs/protocol/ha.md#group-commit).

`need` is the number of copies beyond the master's own: a fixed one (inSyncReplicas), all replicas in sync
(allAckInSyncStateSet), or as many as are in sync (enableAutoInSyncReplicas). With fewer in sync than
minInSyncReplicas the put is refused before its append: IN_SYNC_REPLICAS_NOT_ENOUGH. With fewer eligible
replicas than `need` the put is answered at once, its message stays stored: SLAVE_NOT_AVAILABLE. Otherwise it
waits until the need-th largest acknowledged offset reaches its end, at most slaveTimeout:
FLUSH_SLAVE_TIMEOUT. With SYNC_FLUSH it also waits for the disk, at most syncFlushTimeout: FLUSH_DISK_TIMEOUT.
Both waits run side by side, each put has its own deadlines, and if both fail the replicas' status is the
answer.

Puts that were appended together are one `Commit`, which begins when they are appended:

    commit = group_commit.begin(appended, request_id=7)
    await commit.settled()
    statuses = group_commit.end(commit)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import trio
from attrs import define, frozen

from trioha.ha.replicas import Replicas
from trioha.recording.events import EventSink, Kind, NoSink
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.watermark import Wait, Watermark

# Plain numbers: looking up a member of an enum costs more than an `emit` that ignores it.
_WAIT_END = int(Kind.WAIT_END)
PUT_OK = PutStatus.PUT_OK


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


class Quorum(Protocol):
    """Which copies a put needs: of connected slaves (`SlaveQuorum`), or of the sync-state set of controller
    mode (`ha.set_commit.SetQuorum`)."""

    waits: bool
    """Whether puts wait for replicas."""

    def in_sync_count(self, max_offset: int, /) -> int:
        """Replicas in sync with a log that ends at `max_offset`, the master not counted."""
        ...

    def begin(self, end_offset: int, now_s: float, /) -> tuple[int, Watermark | None]:
        """How many copies a put that ends there needs beyond the master's own, and what reaches its end with
        them; None if it needs none, or cannot have them now."""
        ...

    def note(self, commit: Commit, now_s: float) -> None:
        """A put waits."""
        ...

    def marks(self) -> list[Watermark]:
        """All marks that puts wait for."""
        ...


@define(eq=False)
class Stage:
    """A mark that has to reach a put's end, until a deadline."""

    mark: Watermark
    end_offset: int
    deadline_s: float
    """On trio's clock."""
    rewinds: int
    """Of the mark, when the wait began."""
    wait: Wait | None = None
    """The last one at the mark."""

    @classmethod
    def begin(cls, mark: Watermark, end_offset: int, deadline_s: float) -> Stage:
        """Of a put that begins to wait now."""
        return cls(mark, end_offset, deadline_s, mark.rewinds)

    def offset(self) -> int:
        """Puts that end at or before it have what they wait for; 0 after a cut."""
        if self.wait is not None and self.wait.is_reached:
            return self.end_offset
        return self.mark.offset if self.mark.rewinds == self.rewinds else 0

    def is_settled(self, now_s: float) -> bool:
        """Whether the end is reached, or will not be: in time, or at all after a cut."""
        mark = self.mark
        return (
            mark.offset >= self.end_offset
            or mark.rewinds != self.rewinds
            or now_s >= self.deadline_s
            or (self.wait is not None and self.wait.is_reached)
        )

    def watch(self, event: trio.Event) -> None:
        """Have `event` set when it may be settled before its deadline."""
        self.unwatch()
        self.wait = self.mark.watch(self.end_offset, event)

    def unwatch(self) -> None:
        """Leave the event alone from now on."""
        if self.wait is not None:
            self.mark.unwatch(self.wait)


@define(eq=False)
class Commit:
    """One append, with one or more puts, and what it waits for."""

    appended: AppendResult
    request_id: int
    """Of the first put; those that follow count on."""
    started_s: float
    status: PutStatus
    """If no stage fails."""
    copies: Stage | None
    disk: Stage | None

    @property
    def marks(self) -> Hashable:
        """What it waits for. Of one client's commits with the same marks, the first one settles first."""
        return (self.copies and self.copies.mark, self.disk and self.disk.mark)

    def is_settled(self, now_s: float) -> bool:
        """Whether its puts may be answered."""
        return (self.copies is None or self.copies.is_settled(now_s)) and (
            self.disk is None or self.disk.is_settled(now_s)
        )

    def watch(self, event: trio.Event, now_s: float) -> float:
        """Have `event` set when its puts may be answered, or wait for their next stage. Call `unwatch` then.

        Returns when that will be the case at the latest, on trio's clock.
        """
        for stage in (self.copies, self.disk):
            if stage is not None and not stage.is_settled(now_s):
                stage.watch(event)
                return stage.deadline_s
        event.set()
        return now_s

    def unwatch(self) -> None:
        """Leave the event alone from now on."""
        for stage in (self.copies, self.disk):
            if stage is not None:
                stage.unwatch()

    async def settled(self) -> None:
        """Wait until its puts may be answered: on a `trio.Event` for each stage."""
        while not self.is_settled(now_s := trio.current_time()):
            event = trio.Event()
            try:
                with trio.move_on_at(self.watch(event, now_s)):
                    await event.wait()
            finally:
                self.unwatch()

    def statuses(self, *, is_over: bool) -> list[PutStatus] | None:
        """The status of each put now; None if all are PUT_OK. `is_over`: no copies count."""
        copies_offset = disk_offset = self.appended.end_offset
        if self.copies is not None:
            copies_offset = 0 if is_over else self.copies.offset()
        if self.disk is not None:
            disk_offset = self.disk.offset()
        if self.status is PUT_OK and min(copies_offset, disk_offset) >= self.appended.end_offset:
            return None
        return [
            PutStatus.FLUSH_SLAVE_TIMEOUT
            if end_offset > copies_offset
            else PutStatus.FLUSH_DISK_TIMEOUT
            if end_offset > disk_offset and self.status is PUT_OK
            else self.status
            for end_offset in _put_ends(self.appended)
        ]


class GroupCommit:
    """Waits for replicas and disk on behalf of puts."""

    def __init__(
        self,
        settings: GroupCommitSettings,
        *,
        quorum: Quorum,
        flushed: Watermark,
        sink: EventSink,
        send_now: Callable[[int], None],
    ) -> None:
        """`send_now` is `HaMaster.send_now`."""
        self._settings = settings
        self._quorum = quorum
        self._flushed = flushed
        self._sink = sink
        self._send_now = send_now
        self._is_recorded = not isinstance(sink, NoSink)
        self.waits = quorum.waits or settings.sync_flush
        """Whether puts wait; one with the property WAIT=false never does."""
        self._is_over = False
        """Whether the node is the master no more: no copy counts."""

    def refusal(self, max_offset: int) -> PutStatus | None:
        """Why a put may not be appended while the log ends at `max_offset`; None if it may.

        IN_SYNC_REPLICAS_NOT_ENOUGH with fewer replicas in sync than minInSyncReplicas requires.
        """
        copies_min = self._settings.copies_min
        if copies_min and self._quorum.in_sync_count(max_offset) < copies_min:
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return None

    def begin(self, appended: AppendResult, *, request_id: int) -> Commit:
        """Record the puts that were appended, and begin what they wait for."""
        now_s = trio.current_time()
        settings, end_offset = self._settings, appended.end_offset
        need, mark = self._quorum.begin(end_offset, now_s)
        if self._is_recorded:
            self._record_begin(appended, request_id, need + 1)
        copies = disk = None
        if mark is not None:
            copies = Stage.begin(mark, end_offset, now_s + (0 if self._is_over else settings.slave_timeout_s))
        if settings.sync_flush:
            disk = Stage.begin(self._flushed, end_offset, now_s + settings.sync_flush_timeout_s)
        status = PUT_OK if mark is not None or not need else PutStatus.SLAVE_NOT_AVAILABLE
        commit = Commit(appended, request_id, now_s, status, copies, disk)
        if copies is not None:
            self._quorum.note(commit, now_s)
            self._send_now(appended.physical_offset)
        return commit

    def end(self, commit: Commit) -> list[PutStatus] | None:
        """Record that its puts are answered now. The status of each; None if all are PUT_OK."""
        statuses = commit.statuses(is_over=self._is_over)
        if self._is_recorded:
            self._record_end(commit, statuses)
        return statuses

    def end_replica_waits(self) -> None:
        """End every wait for replicas now, and each later one at once: this node is the master no more.

        The puts are answered with FLUSH_SLAVE_TIMEOUT: they are stored here, and not known to be elsewhere.
        So are those whose copies were acknowledged, and which still wait for the disk: replicas cut what the
        new master does not have.
        """
        self._is_over = True
        for mark in self._quorum.marks():
            mark.rewind(mark.offset)

    def _record_begin(self, appended: AppendResult, request_id: int, copies: int) -> None:
        if appended.put_offsets:
            self._sink.puts_and_waits(
                put_offsets=appended.put_offsets,
                end_offset=appended.end_offset,
                request_id=request_id,
                copies=copies,
            )
        else:
            self._sink.put_and_wait(
                offset=appended.end_offset, size=appended.size, request_id=request_id, copies=copies
            )

    def _record_end(self, commit: Commit, statuses: list[PutStatus] | None) -> None:
        appended, took_us = commit.appended, _in_us(trio.current_time() - commit.started_s)
        if statuses is None and appended.put_offsets:
            self._sink.waits_ended(
                put_offsets=appended.put_offsets,
                end_offset=appended.end_offset,
                request_id=commit.request_id,
                took_us=took_us,
                status=PUT_OK,
            )
            return
        for number, end_offset in enumerate(_put_ends(appended)):
            status = PUT_OK if statuses is None else statuses[number]
            self._sink.emit(
                _WAIT_END, offset=end_offset, aux=commit.request_id + number, size=took_us, flags=status
            )


class SlaveQuorum:
    """The copies that puts need of connected slaves."""

    def __init__(self, settings: GroupCommitSettings, replicas: Replicas) -> None:
        self._settings = settings
        self._replicas = replicas
        self._depends_on_sync = settings.all_in_sync or settings.lowers_need
        self.waits = settings.copies_needed > 0

    def in_sync_count(self, max_offset: int) -> int:
        """As `Quorum`."""
        return self._replicas.in_sync_count(max_offset)

    def _copies_needed(self, end_offset: int, now_s: float) -> int:
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
        """End of what as many replicas hold as a put at the log's end `max_offset` needs."""
        need = self._copies_needed(max_offset, trio.current_time())
        return self._replicas.acknowledged_offset(need) if need else max_offset

    def begin(self, end_offset: int, now_s: float) -> tuple[int, Watermark | None]:
        """As `Quorum`."""
        if not self.waits:
            return 0, None
        need = self._copies_needed(end_offset, now_s)
        if not need or need > self._replicas.eligible_count(end_offset, now_s):
            return need, None
        return need, self._replicas.current.copies(need)

    def note(self, commit: Commit, now_s: float) -> None:
        """As `Quorum`."""
        self._replicas.current.add_waiting(commit, now_s)

    def marks(self) -> list[Watermark]:
        """As `Quorum`."""
        return self._replicas.marks()


def _put_ends(appended: AppendResult) -> list[int]:
    """End of each put; a batch is one put."""
    return appended.put_ends if appended.put_offsets else [appended.end_offset]


def _in_us(seconds: float) -> int:
    """Whole microseconds. A sink records a wait beyond the field, 35 minutes, as the longest that fits."""
    return int(seconds * 1e6 + 0.5)
