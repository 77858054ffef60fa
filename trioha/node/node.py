"""A node: store, replication and remoting server of one broker, in one nursery tree.

```
run_node
+- recorder                       (only with trioha.recordDir; ends last, so that it sees all ends)
   +- flush                       moves `flushed` towards `appended`
   +- dispatch                    builds queues and index behind `appended`
   +- allocate                    makes the next log file ahead
   +- HA server                   a nursery per replica's connection
   +- HA client                   on a slave
   +- remoting server             a nursery per client
```

Cancelling is the only way to stop: everything in the tree ends, then the store is flushed and closed.
"""

from __future__ import annotations

import os
import shlex
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import structlog
import trio
from attrs import frozen

from trioha.broker.info import BrokerInfo, Identity
from trioha.broker.processor import BrokerProcessor
from trioha.broker.puts import PutService
from trioha.broker.send import SendProcessor
from trioha.broker.updates import StatusUpdates
from trioha.config.broker import BrokerConfig, BrokerRole, DistinctBy, FlushDiskType
from trioha.config.model import AckMode, HaRole, HaVerify
from trioha.errors import ConfigError
from trioha.ha.admission import AdmissionSettings, TlsFiles, client_context, server_context
from trioha.ha.connection import HaSettings
from trioha.ha.follow import FollowSettings
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.ha.master import HaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.slave import HaSlave
from trioha.net.busy_poll import has_cores_to_spare
from trioha.net.transport import SocketTransport
from trioha.recording.events import EventSink, Kind, NoSink
from trioha.recording.layout import SessionIdentity
from trioha.recording.recorder import Recorder
from trioha.remoting.address import Address
from trioha.remoting.server import RemotingServer
from trioha.remoting.status import BrokerSettings
from trioha.store.allocate import allocate_ahead
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch import DispatchSettings
from trioha.store.dispatch_service import DispatchService
from trioha.store.flush import FlushService
from trioha.store.index_file import IndexShape
from trioha.store.inner import MultiDispatch
from trioha.store.message_store import MessageStore, StoreSettings
from trioha.store.record import Host
from trioha.store.retention import Retention, RetentionSettings
from trioha.store.tags import DelayLevels

log = structlog.get_logger(__name__)

PROGRESS_INTERVAL_S = 2.0
HA_BACKLOG = 50
"""As RocketMQ's listener (spec ha 2.6)."""
ANY_ADDRESSES = frozenset(("0.0.0.0", "::"))  # noqa: S104 - compared with, not bound to


@frozen
class Ready:
    """A node that serves."""

    role: str
    listen: Address
    """Where clients reach it."""
    ha: Address
    """Where slaves reach it."""
    store: Path
    max_offset: int
    session: Path | None
    """Folder of the recording, None if nothing is recorded."""

    def line(self) -> str:
        """The one line on stdout that says so: `ready` and `key=value` pairs, quoted as for a shell."""
        pairs = {
            "role": self.role,
            "listen": str(self.listen),
            "ha": str(self.ha),
            "store": str(self.store),
            "max_offset": str(self.max_offset),
        }
        if self.session is not None:
            pairs["session"] = str(self.session)
        return " ".join(["ready", *(f"{key}={shlex.quote(value)}" for key, value in pairs.items())])


async def run_node(
    config: BrokerConfig, *, on_ready: Callable[[Ready], None], warnings: tuple[str, ...] = ()
) -> None:
    """Run one node until cancelled; `on_ready` is called once, when it serves.

    `warnings` of the configuration are told to whoever asks for the node's status.

    Raises StoreError if the store cannot be opened, or when its disk fails later; ConfigError if it cannot
    listen where it should.
    """
    store = await _open_store(config)
    try:
        async with _recording(config) as (sink, session):
            await _serve(config, store, sink=sink, session=session, on_ready=on_ready, warnings=warnings)
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)
        log.info("store closed", flushed_offset=store.commit_log.flushed.offset)


async def _open_store(config: BrokerConfig) -> MessageStore:
    is_slave = config.broker_role is BrokerRole.SLAVE
    settings = StoreSettings(
        root=config.store_path_root_dir,
        commit_log_directory=config.store_path_commit_log,
        file_bytes=config.mapped_file_size_commit_log,
        message_bytes_max=config.max_message_size,
        store_host=Host.parse(config.broker_ip1, config.listen_port),
        queues=ConsumeQueueSettings(
            file_bytes=config.mapped_file_size_consume_queue,
            batch_file_bytes=config.mapped_file_size_batch_consume_queue,
        ),
        index=IndexShape(hash_slots=config.max_hash_slot_num, index_num=config.max_index_num),
        dispatch=DispatchSettings(
            message_index_enable=config.message_index_enable,
            enable_lmq=config.enable_lmq,
            enable_multi_dispatch=config.enable_multi_dispatch,
            is_slave=is_slave,
            # Only a slave takes bytes that nobody has checked.
            check_crc=is_slave and config.ha_verify is HaVerify.FRAME,
            delay_levels=DelayLevels(config.message_delay_level),
        ),
    )
    opened: list[MessageStore] = []

    def open_store() -> None:
        opened.append(MessageStore.open(settings, on_progress=_watch_opening()))

    try:
        await trio.to_thread.run_sync(open_store)
    except trio.Cancelled:
        log.info("start ended while the store was being opened", path=str(config.store_path_root_dir))
        raise
    store = opened[0]
    log.info(
        "store opened",
        path=str(config.store_path_root_dir),
        records=store.recovered.records,
        min_offset=store.commit_log.min_offset,
        max_offset=store.commit_log.max_offset,
    )
    return store


def _watch_opening() -> Callable[[str, int, int], None]:
    """Logs every few seconds how far a long start is, and ends it where the node is cancelled.

    For the thread that opens the store: it is never abandoned, since lock and files must have an owner.
    """
    reported_s = time.monotonic()

    def on_progress(what: str, done: int, total: int) -> None:
        nonlocal reported_s
        trio.from_thread.check_cancelled()
        if time.monotonic() - reported_s >= PROGRESS_INTERVAL_S:
            reported_s = time.monotonic()
            log.info(what, done=done, total=total)

    return on_progress


@asynccontextmanager
async def _recording(config: BrokerConfig) -> AsyncIterator[tuple[EventSink, Path | None]]:
    """The sink for this node's events; the recorder behind it ends after everything that reports to it."""
    if config.record_dir is None:
        yield NoSink(), None
        return
    recorder = Recorder(
        config.record_dir,
        identity=SessionIdentity(
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            role=config.broker_role.value,
            settings={
                "haSendHeartbeatInterval": config.ha_send_heartbeat_interval,
                "haHousekeepingInterval": config.ha_housekeeping_interval,
                "haTransferBatchSize": config.ha_transfer_batch_size,
                "trioha.haTransferBatchMax": config.ha_transfer_batch_max,
                "trioha.haAckMode": config.ha_ack_mode.value,
                "haMaxGapNotInSync": config.ha_max_gap_not_in_sync,
                "slaveTimeout": config.slave_timeout,
                "syncFlushTimeout": config.sync_flush_timeout,
                "inSyncReplicas": config.in_sync_replicas,
                "minInSyncReplicas": config.min_in_sync_replicas,
                "allAckInSyncStateSet": config.all_ack_in_sync_state_set,
                "enableAutoInSyncReplicas": config.enable_auto_in_sync_replicas,
                "flushDiskType": config.flush_disk_type.value,
                "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
            },
        ),
        node_id=config.broker_id,
    )
    # Shielded: a cancelled node ends first, and the recorder with it.
    scope = trio.CancelScope(shield=True)

    async def record(*, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await recorder.run(task_status=task_status)

    async with trio.open_nursery() as recording:
        await recording.start(record)
        try:
            yield recorder, recorder.path
        finally:
            scope.cancel()


async def _serve(
    config: BrokerConfig,
    store: MessageStore,
    *,
    sink: EventSink,
    session: Path | None,
    on_ready: Callable[[Ready], None],
    warnings: tuple[str, ...],
) -> None:
    commit_log = store.commit_log
    commit_log.multi_dispatch = MultiDispatch(
        enabled=config.enable_multi_dispatch or config.enable_lmq, light_queues=config.enable_lmq
    )
    is_slave = config.broker_role is BrokerRole.SLAVE
    sync_flush = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
    ha_settings = HaSettings(
        heartbeat_interval_s=config.ha_send_heartbeat_interval / 1000,
        housekeeping_interval_s=config.ha_housekeeping_interval / 1000,
        transfer_batch_bytes=config.ha_transfer_batch_size,
        transfer_batch_bytes_max=config.ha_transfer_batch_max,
        flow_bytes_per_s=config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else None,
        first_report_timeout_s=config.ha_first_report_timeout / 1000,
        busy_poll_s=config.ha_busy_poll / 1e6 if has_cores_to_spare() else 0.0,
    )
    tls_files = _tls_files(config)
    replicas = Replicas(
        gap_bytes_max=config.ha_max_gap_not_in_sync,
        silence_s_max=config.ha_max_time_slave_not_catchup / 1000,
    )
    # A slave serves slaves too: in its recording a number means one connection.
    connection_ids = count(1)
    master = HaMaster(
        commit_log=commit_log,
        replicas=replicas,
        settings=ha_settings,
        sink=sink,
        distinct_by_connection=config.ha_distinct_by is DistinctBy.CONNECTION,
        admission=AdmissionSettings(
            allowed=config.ha_allowed_peers,
            connections_max=config.ha_connections_max,
            connections_per_peer_max=config.ha_connections_per_peer,
        ),
        tls=server_context(tls_files) if tls_files is not None else None,
        connection_ids=connection_ids,
    )
    slave = None
    if is_slave:
        slave = _slave(config, store, settings=ha_settings, sink=sink, connection_ids=connection_ids)
    group_commit = GroupCommit(
        GroupCommitSettings(
            copies_needed=config.slave_acks_needed,
            copies_min=config.min_in_sync_replicas - 1 if config.slave_acks_needed else 0,
            lowers_need=config.enable_auto_in_sync_replicas,
            all_in_sync=config.all_ack_in_sync_state_set,
            slave_timeout_s=config.slave_timeout / 1000,
            sync_flush=sync_flush,
            sync_flush_timeout_s=config.sync_flush_timeout / 1000,
        ),
        replicas=replicas,
        flushed=commit_log.flushed,
        sink=sink,
        push=master.push,
        look_for_acks=master.look_for_acks,
    )
    puts = PutService(commit_log=commit_log, group_commit=group_commit, sink=sink, is_slave=is_slave)
    flush = FlushService(
        store,
        # A slave that acks what is on disk syncs as long as anything is not.
        sync_flush=sync_flush or (is_slave and config.ha_ack_mode is AckMode.FLUSHED),
        interval_s=config.flush_interval_commit_log / 1000,
        on_flushed=lambda offset, duration_ns: sink.emit(Kind.FLUSHED, offset=offset, aux=duration_ns),
    )
    dispatch = DispatchService(
        store,
        sync_flush=sync_flush,
        on_dispatched=lambda offset, records: sink.emit(Kind.DISPATCHED, offset=offset, size=records),
    )
    ha_listeners = await _open_ha_listeners(config)
    ha_address = Address(
        _announced(config.bind_address, config.broker_ip2), ha_listeners[0].socket.getsockname()[1]
    )
    info = BrokerInfo(
        Identity(
            role=config.broker_role.value,
            cluster_name=config.broker_cluster_name,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
            ha_address=str(ha_address),
            store_path=config.store_path_root_dir,
            settings=BrokerSettings(
                gap_bytes_max=config.ha_max_gap_not_in_sync,
                slave_timeout_ms=config.slave_timeout,
                housekeeping_ms=config.ha_housekeeping_interval,
                heartbeat_ms=config.ha_send_heartbeat_interval,
                file_bytes=config.mapped_file_size_commit_log,
                reserved_h=config.file_reserved_time,
                disk_percent_max=config.disk_max_used_space_ratio,
            ),
            warnings=warnings,
        ),
        store=store,
        puts=puts,
        master=master,
        replicas=replicas,
        slave=slave,
    )
    send = SendProcessor(puts, cluster_name=config.broker_cluster_name)
    updates = StatusUpdates(info.ha_status_body, info.runtime_info_body)
    server = RemotingServer(BrokerProcessor(send=send, info=info, updates=updates))
    async with trio.open_nursery() as node:
        node.start_soon(flush.run)
        node.start_soon(group_commit.run)
        node.start_soon(allocate_ahead, commit_log)
        node.start_soon(dispatch.run)
        node.start_soon(updates.run, server.push)
        node.start_soon(_retention(config, store, master).run)
        await node.start(master.serve, ha_listeners)
        if slave is not None:
            node.start_soon(slave.run)
        listening = await node.start(partial(server.serve, host=config.bind_address, port=config.listen_port))
        listen_port = listening[0][1]
        # Records name the port that clients reach, also where any free one was asked for.
        commit_log.announce(Host.parse(config.broker_ip1, listen_port))
        on_ready(
            Ready(
                role=config.broker_role.value,
                listen=Address(_announced(config.bind_address, config.broker_ip1), listen_port),
                ha=ha_address,
                store=config.store_path_root_dir,
                max_offset=commit_log.max_offset,
                session=session,
            )
        )


def _retention(config: BrokerConfig, store: MessageStore, master: HaMaster) -> Retention:
    return Retention(
        store.commit_log,
        RetentionSettings(
            file_reserved_s=config.file_reserved_time * 3600.0,
            delete_when=config.delete_when,
            disk_max_used_ratio=config.disk_max_used_space_ratio / 100,
            force_ratio=config.disk_space_clean_forcibly_ratio / 100,
            full_ratio=config.disk_space_warning_level_ratio / 100,
            clean_forcibly=config.clean_file_forcibly_enable,
            interval_s=config.clean_resource_interval / 1000,
        ),
        needed_from=master.needed_from,
        on_deleted=store.head_deleted,
    )


def _slave(
    config: BrokerConfig,
    store: MessageStore,
    *,
    settings: HaSettings,
    sink: EventSink,
    connection_ids: Iterator[int],
) -> HaSlave:
    tls_files = _tls_files(config)
    endpoint = config.ha_master_endpoint
    assert endpoint is not None, "load_config refuses a SLAVE without haMasterAddress"
    host, port = endpoint
    return HaSlave(
        master_address=str(Address(host, port)),
        connect=partial(_connect, host, port, client_context(tls_files) if tls_files is not None else None),
        commit_log=store.commit_log,
        settings=settings,
        sink=sink,
        follow=FollowSettings(
            tail_check_bytes=config.ha_tail_check, start=config.ha_start_from, verify=config.ha_verify
        ),
        acks=config.ha_ack_mode,
        is_observer=config.ha_role is HaRole.OBSERVER,
        gap_policy=config.ha_gap_policy,
        connection_ids=connection_ids,
    )


async def _connect(host: str, port: int, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """A stream to the master. Raises OSError if it is not there, or is not who it should be."""
    transport = SocketTransport.take_over(await trio.open_tcp_stream(host, port))
    if tls is None:
        return transport
    stream = trio.SSLStream(transport, tls, server_hostname=host)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise ConnectionError(f"TLS: {error.__cause__}") from error
    except trio.Cancelled:
        await trio.aclose_forcefully(stream)
        raise
    return stream


def _tls_files(config: BrokerConfig) -> TlsFiles | None:
    if config.ha_tls_cert is None or config.ha_tls_key is None or config.ha_tls_ca is None:
        return None
    return TlsFiles(certificate=config.ha_tls_cert, key=config.ha_tls_key, authority=config.ha_tls_ca)


async def _open_ha_listeners(config: BrokerConfig) -> list[trio.SocketListener]:
    host, port = config.bind_address, config.ha_listen_port
    try:
        return await trio.open_tcp_listeners(port, host=host, backlog=HA_BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigError(
            f"cannot listen for slaves on {host}:{port}: {reason}",
            key="haListenPort",
            hint="choose another port or stop who uses it",
        ) from error


def _announced(bind_address: str, broker_ip: str) -> str:
    """The host to tell others: brokerIP where all addresses are listened on, else the only one that is."""
    return broker_ip if bind_address in ANY_ADDRESSES else bind_address
