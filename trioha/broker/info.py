"""Status of this broker: its runtime info (28) and HA status (907).

See docs/protocol/remoting.md#runtime-info, docs/protocol/ha.md#status-requests.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from attrs import asdict, evolve, frozen

from trioha import __version__
from trioha.broker.delayed_delivery import DelayProgress
from trioha.broker.pull_counts import PullStatistics
from trioha.broker.puts import PutService
from trioha.broker.timer_delivery import TimerProgress
from trioha.broker_status import ArchiveStatus, BrokerStatus, ControlStatus, MetadataStatus, PendingStatus
from trioha.errors import StoreError
from trioha.ha.master import HaMaster
from trioha.ha.replicas import ConnectedReplicas
from trioha.net.threads import run_in_thread
from trioha.remoting.codes import OUR_VERSION
from trioha.remoting.fastjson import camel_case
from trioha.remoting.serving import ServerStatistics
from trioha.store.disk_use import DiskUse
from trioha.store.message_store import MessageStore
from trioha.store.record_layout import RECORD_BYTES_MIN, store_timestamp_ms

if TYPE_CHECKING:
    from trioha.ha.slave import HaSlave

GIB = 1 << 30
CLIENTS_PREFIX = "trioha.clients."
"""Prefix of trioha's own keys in the runtime table: counters of clients' connections and requests."""
DISK_CACHE_S = 1.0
"""Cache lifetime of the disk usage."""


@frozen(kw_only=True)
class PartStatuses:
    """Statuses of parts of the node that are beside the broker; by default none of these parts is there."""

    metadata: Callable[[], MetadataStatus | None] = lambda: None
    """Of a slave's copy of the master's metadata."""
    archive: Callable[[], ArchiveStatus | None] = lambda: None
    clock_doubt: Callable[[], str] = str
    """Why retention does not believe the clock; empty if it does."""
    control: Callable[[], ControlStatus | None] = lambda: None
    """Of controller mode."""
    pending: Callable[[], PendingStatus | None] = lambda: None
    """Of what this version does not deliver, which is counted on a master."""


NO_PARTS: Final = PartStatuses()


class BrokerInfo:
    """Collects the status of this broker from its parts."""

    def __init__(
        self,
        identity: BrokerStatus,
        *,
        store_path: Path,
        store: MessageStore,
        puts: PutService,
        master: HaMaster,
        replicas: ConnectedReplicas,
        slave: HaSlave | None,
        parts: PartStatuses = NO_PARTS,
        clients: Callable[[], ServerStatistics] | None = None,
        pulls: Callable[[], PullStatistics] = PullStatistics,
        delays: Callable[[], Sequence[DelayProgress]] = tuple,
        timers: Callable[[], TimerProgress] = TimerProgress,
        acl_refusals: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`identity` has what never changes: names, role, version, settings, warnings.

        `clients` gives the counters of the remoting server, `pulls` those of the pulls, `delays` the progress
        of the delay levels, none on a slave, `timers` that of timers, and `acl_refusals` how many requests
        access control has refused, None without it.
        """
        self._identity = identity
        self._store_path = store_path
        self._store = store
        self._log = store.commit_log
        self._puts = puts
        self._master = master
        self._replicas = replicas
        self._slave = slave
        self._parts = parts
        self._clients = clients
        self._pulls = pulls
        self._delays = delays
        self._timers = timers
        self._acl_refusals = acl_refusals
        self._boot_ms = time.time_ns() // 1_000_000
        self._disk: DiskUse | None = None
        """Total, used and free bytes of the store's disk."""
        self._disk_until_s = -math.inf
        self._disk_lock = trio.Lock()

    def ha_status(self) -> BrokerStatus:
        """Replication as of now."""
        commit_log, dispatcher = self._log, self._store.dispatcher
        fault = dispatcher.last_fault
        max_offset = commit_log.max_offset
        statistics = self._master.statistics()
        probes: dict[str, dict[str, int]] = {}
        for one in statistics.probes:
            probes.setdefault(one.host, {})[one.reason.name] = one.count
        return evolve(
            self._identity,
            min_offset=commit_log.min_offset,
            max_offset=max_offset,
            flushed_offset=commit_log.flushed.offset,
            dispatched_offset=dispatcher.position,
            dispatch_fault="" if fault is None else f"{fault.reason} at offset {fault.physical_offset}",
            time_steps=dispatcher.time_steps.noted,
            time_lead_ms=commit_log.lead_ms,
            clock_doubt=self._parts.clock_doubt(),
            read_faults=commit_log.read_faults.count,
            read_fault=commit_log.read_faults.last,
            put_refusal=commit_log.put_refusal,
            unwritten=self._store.unwritten.reasons,
            write_failures=self._store.unwritten.failures,
            in_sync_slaves=self._replicas.eligible_count(max_offset),
            connections=tuple(self._master.connections()),
            client=None if self._slave is None else self._slave.status(),
            put_statuses=self._puts.statuses,
            ended_connections=statistics.closed,
            probes=probes,
            files=len(commit_log.files),
            acl_refusals=self._acl_refusals(),
            metadata=self._parts.metadata(),
            archive=self._parts.archive(),
            control=self._parts.control(),
            pending=self._parts.pending(),
        )

    def ha_status_body(self) -> bytes:
        """The body of an answer to GET_BROKER_HA_STATUS."""
        # A start does not wait for this and the libraries that it needs.
        from trioha.remoting.ha_runtime_info import encode_ha_status  # noqa: PLC0415

        return encode_ha_status(self.ha_status())

    async def runtime_info_body(self) -> bytes:
        """The body of an answer to GET_BROKER_RUNTIME_INFO."""
        return json.dumps({"table": await self.runtime_info()}).encode()

    async def runtime_info(self) -> dict[str, str]:
        """The table of GET_BROKER_RUNTIME_INFO, with all keys that `mqadmin` reads."""
        commit_log = self._log
        puts = self._puts.statistics()
        disk = await self._disk_use()
        pulls = self._pulls()
        transferred = _rates(pulls.messages_per_s)
        stored = puts.messages_stored
        timers = self._timers()
        now_ms = time.time_ns() // 1_000_000
        return {
            "bootTimestamp": str(self._boot_ms),
            "brokerActive": "true",
            "brokerVersion": str(int(OUR_VERSION)),
            "brokerVersionDesc": f"trioha-{__version__}",
            "commitLogDirCapacity": (
                f"Total : {disk.total_bytes / GIB:.1f} GiB, Free : {disk.free_bytes / GIB:.1f} GiB."
            ),
            "commitLogDiskRatio": str(disk.ratio),
            "commitLogMaxOffset": str(commit_log.max_offset),
            "commitLogMinOffset": str(commit_log.min_offset),
            "dispatchBehindBytes": str(commit_log.max_offset - self._store.dispatcher.position),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "getFoundTps": _rates(pulls.found_per_s),
            "getMissTps": _rates(pulls.missed_per_s),
            "getTotalTps": _rates(tuple(map(sum, zip(pulls.found_per_s, pulls.missed_per_s, strict=True)))),
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "msgGetTotalTodayMorning": str(pulls.messages_until_today),
            "msgGetTotalTodayNow": str(pulls.messages),
            "msgGetTotalYesterdayMorning": str(pulls.messages_until_yesterday),
            "msgPutTotalTodayMorning": str(puts.stored_until_today),
            "msgPutTotalTodayNow": str(stored),
            "msgPutTotalYesterdayMorning": str(puts.stored_until_yesterday),
            "pageCacheLockTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "putMessageAverageSize": str(puts.bytes_appended / stored if stored else 0.0),
            "putMessageFailedTimes": str(puts.messages_refused),
            "putMessageSizeTotal": str(puts.bytes_appended),
            "putMessageTimesTotal": str(stored),
            "putTps": _rates(puts.messages_per_s),
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "remainHowManyDataToFlush": f"{commit_log.max_offset - commit_log.flushed.offset} B",
            "runtime": _runtime_text(now_ms - self._boot_ms),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "sendThreadPoolQueueSize": "0",
            "startAcceptSendRequestTimeStamp": "0",
            "timerCongestNum": str(timers.pending),
            "timerDequeueTps": str(timers.delivered_per_s),
            "timerEnqueueTps": str(timers.stored_per_s),
            "timerOffsetBehind": str(timers.unread),
            "timerReadBehind": str(timers.late_s),
            **{
                f"scheduleMessageOffset_{one.level}": f"{one.delivered_offset},{one.max_offset}"
                for one in self._delays()
            },
            **self._client_counters(),
        }

    def _client_counters(self) -> dict[str, str]:
        if self._clients is None:
            return {}
        counters = asdict(self._clients())
        if (acl_refusals := self._acl_refusals()) is not None:
            counters["acl_refusals"] = acl_refusals
        return {f"{CLIENTS_PREFIX}{camel_case(name)}": str(number) for name, number in counters.items()}

    async def _disk_use(self) -> DiskUse:
        """Of the store's disk; read in a thread, since a disk may be slow."""
        # One thread for all who wait: they must not use up those that sync the log.
        async with self._disk_lock:
            if self._disk is None or trio.current_time() >= self._disk_until_s:
                now_s = trio.current_time()
                self._disk = await run_in_thread(partial(DiskUse.of, self._store_path))
                self._disk_until_s = now_s + DISK_CACHE_S
            return self._disk

    def _earliest_ms(self) -> int:
        """storeTimestamp of the first record, -1 without one, or where the disk does not give it."""
        try:
            view = self._log.read(self._log.min_offset, RECORD_BYTES_MIN)
        except StoreError:
            # Counted and reported by the log.
            return -1
        return store_timestamp_ms(view, 0) if len(view) else -1


def _rates(per_s: tuple[float, ...]) -> str:
    """Rates over the three windows, as `mqadmin` reads them."""
    return " ".join(map(str, per_s or (0.0, 0.0, 0.0)))


def _runtime_text(elapsed_ms: int) -> str:
    days, rest = divmod(elapsed_ms // 1000, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
