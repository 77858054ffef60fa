"""Defects of master and slaves that the simulation finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar
from unittest.mock import patch

import trio
from attrs import evolve

from tests.simulation.planting import Defect, plants
from trioha.ha.client import DefaultHaClient
from trioha.ha.connection import HaConnection
from trioha.ha.group_commit import Commit, Stage
from trioha.ha.replicas import QuorumView, Replicas
from trioha.ha.replication_session import ReplicationSession
from trioha.ha.slave_progress import Report, SlaveProgress
from trioha.recording.events import CloseReason
from trioha.store import recovery
from trioha.store.commit_log import CommitLog
from trioha.store.put_status import PutStatus
from trioha.store.replica import ReplicaAppender
from trioha.watermark import Watermark

T = TypeVar("T")
PLANTED: list[Defect] = []
_plants = partial(plants, PLANTED)


@contextmanager
def _replicas_acknowledge(ack_offset: Callable[[DefaultHaClient], int]) -> Iterator[None]:
    """Replicas report `ack_offset`; observers stay as they are."""

    def ack(connection: DefaultHaClient) -> int:
        return connection._request_offset if connection._is_observer else ack_offset(connection)

    with patch.object(DefaultHaClient, "_ack_offset", property(ack)):
        yield


@_plants("a slave acknowledges a frame when it has its header")
def _ack_before_append() -> Iterator[None]:
    ends: dict[DefaultHaClient, int] = {}
    real = DefaultHaClient._after_header

    def after_header(connection: DefaultHaClient, offset: int, body_bytes: int) -> None:
        real(connection, offset, body_bytes)
        ends[connection] = offset + body_bytes

    with (
        patch.object(DefaultHaClient, "_after_header", after_header),
        _replicas_acknowledge(lambda one: max(one._session.ack_offset, ends.get(one, 0))),
    ):
        yield


@_plants("a slave acknowledges bytes that are no whole record yet")
def _ack_partial() -> Iterator[None]:
    with _replicas_acknowledge(lambda connection: connection._session.next_offset):
        yield


@_plants("a slave that promises what is on disk acknowledges what is written")
def _ack_unflushed() -> Iterator[None]:
    with _replicas_acknowledge(lambda connection: connection._session.ack_offset):
        yield


@_plants("an observer acknowledges")
def _acking_observer() -> Iterator[None]:
    honest = DefaultHaClient._ack_offset.fget

    def ack_offset(connection: DefaultHaClient) -> int:
        return connection._session.ack_offset if connection._is_observer else honest(connection)

    with patch.object(DefaultHaClient, "_ack_offset", property(ack_offset)):
        yield


@_plants("group commit takes one copy for enough")
def _ignored_need() -> Iterator[None]:
    real = QuorumView.copies
    with patch.object(QuorumView, "copies", lambda view, k: real(view, 1)):
        yield


@_plants("the deadlines of puts are not kept")
def _no_deadlines() -> Iterator[None]:
    real = Stage.begin

    def begin(mark: Watermark, end_offset: int, _deadline_s: float) -> Stage:
        return real(mark, end_offset, math.inf)

    with patch.object(Stage, "begin", begin):
        yield


@_plants("every slave that receives the log is in sync", seed=21)
def _unproven_replicas() -> Iterator[None]:
    with patch.object(Replicas, "in_sync_count", Replicas.eligible_count):
        yield


@_plants("a put that times out is PUT_OK")
def _ok_on_timeout() -> Iterator[None]:
    real = Commit.statuses

    def statuses(commit: Commit, *, is_over: bool) -> list[PutStatus] | None:
        known = real(commit, is_over=is_over)
        return None if known == [PutStatus.FLUSH_SLAVE_TIMEOUT] else known

    with patch.object(Commit, "statuses", statuses):
        yield


@_plants("acks outlive their connection")
def _kept_acks() -> Iterator[None]:
    with patch.object(Replicas, "forget", lambda self, connection_id: None):
        yield


@_plants("a watermark wakes its waiters one byte late")
def _late_wake() -> Iterator[None]:
    advance = Watermark.advance

    def advance_late(self: Watermark, offset: int) -> None:
        advance(self, offset - 1)
        self.offset = max(self.offset, offset)

    with patch.object(Watermark, "advance", advance_late):
        yield


@_plants("a slave takes any frame for the next one", seed=4)
def _any_offset() -> Iterator[None]:
    def begin(session: ReplicationSession, *, at_most: int | None = None) -> int:
        # The partial record of the connection before is kept, and what follows it is taken for its rest.
        appender = session._own._appender
        partial, wanted = appender._partial, appender._wanted_bytes
        offset = real_begin(session, at_most=at_most)
        appender._partial, appender._wanted_bytes = partial, wanted
        return offset

    real_begin = ReplicationSession.begin
    with (
        patch.object(ReplicationSession, "begin", begin),
        patch.object(ReplicationSession, "_handle_other_offset", lambda self, header: None),
    ):
        yield


@_plants("a slave appends parts of records")
def _partial_append() -> Iterator[None]:
    def append(appender: ReplicaAppender, data: memoryview) -> None:
        appender._log.append_records(data, last_store_timestamp_ms=0)

    with patch.object(ReplicaAppender, "append", append):
        yield


@_plants("a slave does not compare its tail", seed=86)
def _no_tail_check() -> Iterator[None]:
    with patch.object(ReplicationSession, "_tail_start", lambda self: self._log.max_offset):
        yield


@_plants("a master skips a byte after a frame")
def _skipped_byte() -> Iterator[None]:
    real = HaConnection._send_next_frame

    async def send_next_frame(self: HaConnection) -> None:
        await real(self)
        if self.progress.sent_offset % 7 == 0:
            self.progress.sent(1)

    with patch.object(HaConnection, "_send_next_frame", send_next_frame):
        yield


@_plants("a master believes any ack")
def _believed_acks() -> Iterator[None]:
    real = HaConnection._handle_report

    def handle_report(self: HaConnection, offset: int, now_s: float) -> None:
        is_request = self.progress.request_offset < 0
        real(self, offset if is_request else self._log.max_offset, now_s)

    def receive_report(self: SlaveProgress, offset: int) -> Report:
        self.ack_offset = offset
        return Report.ACK

    with (
        patch.object(HaConnection, "_handle_report", handle_report),
        patch.object(SlaveProgress, "receive_report", receive_report),
    ):
        yield


@_plants("recovery leaves a torn tail")
def _torn_tail() -> Iterator[None]:
    def no_cut(commit_log: CommitLog, files: list[object], *, index: int, at: int) -> int:
        return 0

    with (
        patch.object(recovery, "_cut", no_cut),
        patch.object(recovery, "scan_records", _scan_blindly(recovery.scan_records)),
    ):
        yield


def _scan_blindly(scan: Callable[..., object]) -> Callable[..., object]:
    """Accept eight bytes more than are records, as a scan that trusts lengths would."""

    def scan_blindly(view: memoryview, start: int, stop: int, offset: int, **options: object) -> object:
        end = scan(view, start, stop, offset, **options)
        if not end.blank and end.at + 16 < stop and any(view[end.at + 8 : end.at + 16]):
            return type(end)(**{**{name: getattr(end, name) for name in _fields(end)}, "at": end.at + 16})
        return end

    return scan_blindly


def _fields(value: object) -> list[str]:
    return [attribute.name for attribute in type(value).__attrs_attrs__]


@_plants("a half-open connection is never given up", seed=1)
def _no_housekeeping() -> Iterator[None]:
    real = DefaultHaClient.run

    async def run(self: DefaultHaClient) -> CloseReason:
        self._settings = evolve(self._settings, housekeeping_interval_s=1e9)
        self._housekeeping.deadline_s = math.inf
        return await real(self)

    with patch.object(DefaultHaClient, "run", run):
        yield


@_plants("a task spins")
def _spin() -> Iterator[None]:
    real = DefaultHaClient._report_flushed

    async def report_flushed(self: DefaultHaClient) -> None:
        while self._log.is_empty:
            await trio.lowlevel.checkpoint()
        await real(self)

    with patch.object(DefaultHaClient, "_report_flushed", report_flushed):
        yield
