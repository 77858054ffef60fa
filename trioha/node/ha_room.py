"""Replication of a node: master, slave, and the group commit of puts."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import frozen

from trioha.config.broker import BrokerConfig, BrokerRole, DistinctBy, FlushDiskType
from trioha.config.model import HaRole
from trioha.errors import ConfigError
from trioha.ha.admission import AdmissionSettings
from trioha.ha.confirm_offset import ConfirmOffset
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.ha.master import HaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.net.busy_poll import has_cores_to_spare
from trioha.net.descriptors import Gate
from trioha.net.tls import MutualTlsFiles, mutual_client_context, mutual_server_context
from trioha.net.transport import SocketTransport
from trioha.node.addresses import announced, os_reason
from trioha.node.budget import DescriptorBudget
from trioha.recording.events import EventSink
from trioha.remoting.address import Address, parse_address
from trioha.store.message_store import MessageStore

if TYPE_CHECKING:
    from trioha.ha.slave import HaSlave

log = structlog.get_logger(__name__)

HA_BACKLOG = 50
"""As RocketMQ's listener (spec ha 2.6)."""
MASTER_WAIT_S = 3.0
"""How long one attempt to connect waits for the master's address from a name server."""


class MasterLocation:
    """The HA address of a slave's master: as configured, or from a name server."""

    def __init__(self, address: Address | None) -> None:
        self._address = address
        self._is_fixed = address is not None
        self._known = trio.Event()
        self.on_dial: Callable[[str], None] | None = None
        """Called with the address before each connection; must not block."""

    def __str__(self) -> str:
        return "" if self._address is None else str(self._address)

    def receive(self, text: str) -> None:
        """Use the address from a name server for the next connection, if none is configured."""
        if self._is_fixed or text == str(self):
            return
        try:
            self._address = parse_address(text)
        except ConfigError as error:
            log.warning("a name server sent a master's address that is not one", reason=str(error))
            return
        log.info("the master's address was learned from a name server", master=str(self))
        self._known.set()

    async def resolve(self) -> Address:
        """The address; waits for it up to `MASTER_WAIT_S`. Raises OSError if it is not known then."""
        if self._address is None:
            with trio.move_on_after(MASTER_WAIT_S):
                await self._known.wait()
        if self._address is None:
            raise OSError("no name server has sent the master's HA address")
        if self.on_dial is not None:
            self.on_dial(str(self))
        return self._address


@frozen
class HaRoom:
    """The parts of replication. `build` them, then `listen`, then `run`."""

    replicas: Replicas
    master: HaMaster
    """Serves slaves; on a slave, the slaves that copy it."""
    group_commit: GroupCommit
    slave: HaSlave | None
    """Copies the log of the master; None on a master."""
    master_location: MasterLocation
    """Where `slave` dials."""
    confirm: ConfirmOffset | None = None
    """What consumers may receive; None if they receive all that is stored."""

    @classmethod
    def build(
        cls, config: BrokerConfig, store: MessageStore, *, sink: EventSink, budget: DescriptorBudget
    ) -> HaRoom:
        """Raises ConfigError for TLS files that cannot be used."""
        commit_log = store.commit_log
        settings = HaSettings(
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
            unacked_s_max=config.ha_max_time_slave_not_catchup / 1000,
        )
        # A slave also serves slaves: connections of both sides are numbered together in its recording.
        connection_ids = count(1)
        master = HaMaster(
            commit_log=commit_log,
            replicas=replicas,
            settings=settings,
            sink=sink,
            distinct_by_connection=config.ha_distinct_by is DistinctBy.CONNECTION,
            admission=AdmissionSettings(
                allowed=config.ha_allowed_peers,
                connections_max=budget.ha_connections,
                connections_per_peer_max=config.ha_connections_per_peer,
            ),
            tls=mutual_server_context(tls_files) if tls_files is not None else None,
            connection_ids=connection_ids,
        )
        group_commit = GroupCommit(
            GroupCommitSettings(
                copies_needed=config.slave_acks_needed,
                copies_min=config.min_in_sync_replicas - 1 if config.slave_acks_needed else 0,
                lowers_need=config.enable_auto_in_sync_replicas,
                all_in_sync=config.all_ack_in_sync_state_set,
                slave_timeout_s=config.slave_timeout / 1000,
                sync_flush=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
                sync_flush_timeout_s=config.sync_flush_timeout / 1000,
            ),
            replicas=replicas,
            flushed=commit_log.flushed,
            sink=sink,
            push=master.push,
            poll_acks=master.poll_acks,
        )
        slave = None
        endpoint = config.ha_master_endpoint
        location = MasterLocation(None if endpoint is None else Address(*endpoint))
        if config.broker_role is BrokerRole.SLAVE:
            slave = _slave(
                config,
                store,
                location=location,
                settings=settings,
                sink=sink,
                connection_ids=connection_ids,
            )
            location.on_dial = slave.follow
        confirm = _confirm_offset(config, store, group_commit)
        if confirm is not None:
            replicas.on_acknowledged = confirm.update
        return cls(replicas, master, group_commit, slave, location, confirm)

    async def run(
        self,
        listeners: list[trio.SocketListener],
        *,
        gate: Gate,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Replicate until cancelled; started when slaves are served, which are accepted while `gate` is
        open."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.group_commit.run)
            if self.confirm is not None:
                nursery.start_soon(self.confirm.run)
            await nursery.start(partial(self.master.serve, listeners, gate=gate))
            if self.slave is not None:
                nursery.start_soon(self.slave.run)
            task_status.started()


def _confirm_offset(
    config: BrokerConfig, store: MessageStore, group_commit: GroupCommit
) -> ConfirmOffset | None:
    """That of a master whose consumers receive replicated messages only; kept in the store's checkpoint."""
    if not (config.consume_replicated_only and config.slave_acks_needed):
        return None
    commit_log = store.commit_log
    confirm = ConfirmOffset.restored(
        lambda: group_commit.replicated_offset(commit_log.max_offset),
        lambda: commit_log.max_offset,
        checkpoint_offset=store.last_confirm_offset,
    )
    store.confirm_offset = confirm.for_checkpoint
    return confirm


async def listen_for_slaves(config: BrokerConfig) -> tuple[list[trio.SocketListener], Address]:
    """Listeners of the HA port, and the address that slaves dial. Raises ConfigError."""
    host, port = config.bind_address, config.ha_listen_port
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=HA_BACKLOG)
    except OSError as error:
        raise ConfigError(
            f"cannot listen for slaves on {host}:{port}: {os_reason(error)}",
            key="haListenPort",
            hint="choose another port or stop the program that uses it",
        ) from error
    return listeners, Address(announced(host, config.broker_ip2), listeners[0].socket.getsockname()[1])


def _slave(
    config: BrokerConfig,
    store: MessageStore,
    *,
    location: MasterLocation,
    settings: HaSettings,
    sink: EventSink,
    connection_ids: Iterator[int],
) -> HaSlave:
    from trioha.ha.replication_session import ReplicationSettings  # noqa: PLC0415
    from trioha.ha.slave import HaSlave  # noqa: PLC0415

    tls_files = _tls_files(config)
    return HaSlave(
        master_address=str(location),
        connect=partial(
            _connect, location, mutual_client_context(tls_files) if tls_files is not None else None
        ),
        commit_log=store.commit_log,
        settings=settings,
        sink=sink,
        replication=ReplicationSettings(
            tail_check_bytes=config.ha_tail_check, start=config.ha_start_from, verify=config.ha_verify
        ),
        ack_mode=config.ha_ack_mode,
        is_observer=config.ha_role is HaRole.OBSERVER,
        gap_policy=config.ha_gap_policy,
        connection_ids=connection_ids,
    )


async def _connect(location: MasterLocation, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """A stream to the master. Raises OSError if it cannot be reached or authenticated."""
    address = await location.resolve()
    transport = SocketTransport.from_stream(await trio.open_tcp_stream(address.host, address.port))
    if tls is None:
        return transport
    stream = trio.SSLStream(transport, tls, server_hostname=address.host)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise ConnectionError(f"TLS: {error.__cause__}") from error
    except trio.Cancelled:
        await trio.aclose_forcefully(stream)
        raise
    return stream


def _tls_files(config: BrokerConfig) -> MutualTlsFiles | None:
    if config.ha_tls_cert is None or config.ha_tls_key is None or config.ha_tls_ca is None:
        return None
    return MutualTlsFiles(certificate=config.ha_tls_cert, key=config.ha_tls_key, authority=config.ha_tls_ca)
