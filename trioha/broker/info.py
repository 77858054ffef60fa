"""What a broker says of itself: runtime info (28) and HA status (907) (spec remoting 5.1, ha 7)."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from attrs import asdict, field, frozen

from trioha import __version__
from trioha.broker.puts import PutService
from trioha.ha.master import HaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.slave import HaSlave
from trioha.net.threads import run_in_thread
from trioha.remoting.codes import OUR_VERSION
from trioha.remoting.ha_status import (
    BrokerSettings,
    ConnectionStatus,
    HaClientExtras,
    HaExtras,
    HaRuntimeInfo,
    SlaveClientStatus,
)
from trioha.remoting.serving import ServerStatistics
from trioha.store.message_store import MessageStore
from trioha.store.record_layout import store_timestamp_ms

GIB = 1 << 30
CLIENTS_PREFIX = "trioha.clients."
"""Of keys of the runtime table that RocketMQ does not have: what became of clients."""
DISK_KEPT_S = 1.0
"""How long what the disk holds is told again, in seconds."""


class DiskUsage(Protocol):
    """What `shutil.disk_usage` gives, all in bytes."""

    @property
    def total(self) -> int:
        """All of it."""

    @property
    def used(self) -> int:
        """What files hold."""

    @property
    def free(self) -> int:
        """What is left."""


@frozen
class Identity:
    """Who this broker is."""

    role: str
    """brokerRole."""
    cluster_name: str
    broker_name: str
    broker_id: int
    ha_address: str
    """`host:port` that slaves dial."""
    store_path: Path
    settings: BrokerSettings = field(factory=BrokerSettings)
    """What replication and the log are measured by."""
    warnings: tuple[str, ...] = ()
    """What the node warned of in its own configuration when it started."""


class BrokerInfo:
    """Answers questions about this broker from the parts that know."""

    def __init__(
        self,
        identity: Identity,
        *,
        store: MessageStore,
        puts: PutService,
        master: HaMaster,
        replicas: Replicas,
        slave: HaSlave | None,
    ) -> None:
        self._identity = identity
        self._store = store
        self._log = store.commit_log
        self._puts = puts
        self._master = master
        self._replicas = replicas
        self._slave = slave
        self.client_statistics: Callable[[], ServerStatistics] | None = None
        """Counters of the server that clients reach. Set by who builds that: it needs this object first."""
        self._boot_ms = time.time_ns() // 1_000_000
        self._disk: DiskUsage | None = None
        self._disk_until_s = -math.inf
        self._disk_asked = trio.Lock()

    def ha_status(self) -> HaRuntimeInfo:
        """Replication as it stands now."""
        identity = self._identity
        commit_log = self._log
        dispatcher = self._store.dispatcher
        fault = dispatcher.last_fault
        max_offset = commit_log.max_offset
        slave = None if self._slave is None else self._slave.status()
        statistics = self._master.statistics()
        probes: dict[str, dict[str, int]] = {}
        for one in statistics.probes:
            probes.setdefault(one.host, {})[one.reason.name] = one.count
        connections = tuple(
            ConnectionStatus(
                address=connection.address,
                sent_offset=connection.sent_offset,
                ack_offset=connection.ack_offset,
                lag_bytes=max_offset - max(connection.ack_offset, 0),
                in_sync=self._replicas.is_eligible(connection.connection_id, max_offset),
                transferred_bytes_per_s=connection.transferred_bytes_per_s,
                state=connection.state.name,
                lag_ms=round(connection.lag_s * 1000),
                connection_id=connection.connection_id,
                heard_ms=round(connection.last_received_s * 1000),
                ack_latency_us=connection.ack_latency_us,
                frame_bytes=connection.frame_bytes,
            )
            for connection in self._master.connections()
        )
        client = SlaveClientStatus(None, 0, 0, 0, 0)
        client_extras = None
        if slave is not None:
            client = SlaveClientStatus(
                master_address=slave.master_address,
                max_offset=max_offset,
                transferred_bytes_per_s=slave.transferred_bytes_per_s,
                last_read_ms=slave.last_read_ms,
                last_write_ms=slave.last_write_ms,
            )
            client_extras = HaClientExtras(
                state=slave.state.name,
                reported_offset=slave.reported_offset,
                reconnects=slave.reconnects,
                verdict=slave.verdict,
                local_address=slave.local_address,
                is_observer=slave.is_observer,
            )
        return HaRuntimeInfo(
            master=slave is None,
            master_max_offset=max_offset if slave is None else 0,
            in_sync_slaves=self._replicas.eligible_count(max_offset),
            connections=connections,
            client=client,
            extras=HaExtras(
                version=__version__,
                role=identity.role,
                cluster_name=identity.cluster_name,
                broker_name=identity.broker_name,
                broker_id=identity.broker_id,
                min_offset=commit_log.min_offset,
                flushed_offset=commit_log.flushed.offset,
                dispatched_offset=dispatcher.position,
                dispatch_fault="" if fault is None else f"{fault.reason} at offset {fault.physical_offset}",
                ha_address=identity.ha_address,
                client=client_extras,
                put_statuses=self._puts.statuses,
                ended_connections=statistics.closed,
                probes=probes,
                settings=identity.settings,
                files=len(commit_log.files),
                warnings=identity.warnings,
            ),
        )

    def ha_status_body(self) -> bytes:
        """The body of an answer to GET_BROKER_HA_STATUS."""
        return self.ha_status().to_json()

    async def runtime_info_body(self) -> bytes:
        """The body of an answer to GET_BROKER_RUNTIME_INFO."""
        return json.dumps({"table": await self.runtime_info()}).encode()

    async def runtime_info(self) -> dict[str, str]:
        """The table of GET_BROKER_RUNTIME_INFO: what `mqadmin` needs and this broker knows, all as text."""
        commit_log = self._log
        puts = self._puts.statistics()
        disk = await self._disk_usage()
        disk_ratio = str(disk.used / disk.total) if disk.total else "0.0"
        rates = " ".join(str(rate) for rate in puts.messages_per_s)
        none_per_s = "0.0 0.0 0.0"
        stored = puts.messages_stored
        now_ms = time.time_ns() // 1_000_000
        return {
            "bootTimestamp": str(self._boot_ms),
            "brokerActive": "true",
            "brokerVersion": str(int(OUR_VERSION)),
            "brokerVersionDesc": f"trioha-{__version__}",
            "commitLogDirCapacity": f"Total : {disk.total / GIB:.1f} GiB, Free : {disk.free / GIB:.1f} GiB.",
            "commitLogDiskRatio": disk_ratio,
            "commitLogMaxOffset": str(commit_log.max_offset),
            "commitLogMinOffset": str(commit_log.min_offset),
            "dispatchBehindBytes": str(commit_log.max_offset - self._store.dispatcher.position),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "getFoundTps": none_per_s,
            "getMissTps": none_per_s,
            "getTotalTps": none_per_s,
            "getTransferedTps": none_per_s,
            "getTransferredTps": none_per_s,
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": "0",
            "msgGetTotalYesterdayMorning": "0",
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
            "putTps": rates,
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "remainHowManyDataToFlush": f"{commit_log.max_offset - commit_log.flushed.offset} B",
            "runtime": _runtime_text(now_ms - self._boot_ms),
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "sendThreadPoolQueueSize": "0",
            "startAcceptSendRequestTimeStamp": "0",
            "timerCongestNum": "0",
            "timerDequeueTps": "0.0",
            "timerEnqueueTps": "0.0",
            "timerOffsetBehind": "0",
            "timerReadBehind": "0",
            **self._client_counters(),
        }

    def _client_counters(self) -> dict[str, str]:
        """What became of clients' connections and requests, by names of our own: `trioha.clients.*`."""
        if self.client_statistics is None:
            return {}
        counters = asdict(self.client_statistics())
        return {f"{CLIENTS_PREFIX}{_camel(name)}": str(number) for name, number in counters.items()}

    async def _disk_usage(self) -> DiskUsage:
        """What the disk of the store holds; asked in a thread, since a disk may be slow."""
        if self._disk is not None and trio.current_time() < self._disk_until_s:
            return self._disk
        # Once for all who ask meanwhile: they must not take every thread from those who sync.
        async with self._disk_asked:
            disk, now_s = self._disk, trio.current_time()
            if disk is None or now_s >= self._disk_until_s:
                disk = await run_in_thread(partial(shutil.disk_usage, self._identity.store_path))
                self._disk, self._disk_until_s = disk, now_s + DISK_KEPT_S
            return disk

    def _earliest_ms(self) -> int:
        """storeTimestamp of the first record, -1 without one."""
        view = self._log.read(self._log.min_offset, self._log.file_bytes)
        return store_timestamp_ms(view, 0) if len(view) else -1


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _runtime_text(elapsed_ms: int) -> str:
    days, rest = divmod(elapsed_ms // 1000, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, seconds = divmod(rest, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
