"""Replication of a node: master, slave, and the group commit of puts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import field, frozen

from trioha.config.broker import BrokerConfig, BrokerRole
from trioha.config.keys.ha import DistinctBy, HaRole
from trioha.config.keys.store import FlushDiskType
from trioha.errors import ConfigError
from trioha.ha.admission import AdmissionSettings
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings, SlaveQuorum
from trioha.ha.master import DefaultHaMaster, HaMaster
from trioha.ha.replicas import ConnectedReplicas, Replicas
from trioha.ha.replicated_offset import ReplicatedOffset
from trioha.ha.settings import HaSettings
from trioha.net.descriptors import Gate
from trioha.net.tls import MutualTls
from trioha.net.transport import SocketTransport
from trioha.node.budget import DescriptorBudget
from trioha.node.roles import Control
from trioha.recording.events import EventSink
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import NO_SECURITY, ClientSecurity
from trioha.store.message_store import MessageStore

if TYPE_CHECKING:
    from trioha.ha.slave import HaSlave
    from trioha.node.controlled_replication import NamedMaster

log = structlog.get_logger(__name__)

MASTER_WAIT_S = 3.0
"""How long one attempt to connect waits for the master's address from a name server."""


class MasterLocation:
    """The HA address of a slave's master: as configured, or from a name server."""

    def __init__(self, address: Address | None) -> None:
        self._address = address
        self._is_fixed = address is not None
        self._known = trio.Event()

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
        return self._address


@frozen
class Replication:
    """The parts of replication. `build` them, then `run`."""

    replicas: ConnectedReplicas
    master: HaMaster
    """Serves slaves; on a slave, the slaves that copy it."""
    group_commit: GroupCommit
    slave: HaSlave | None
    """Copies the log of the master; None on a master."""
    master_location: MasterLocation | NamedMaster
    """Where `slave` dials."""
    replicated: ReplicatedOffset | None = None
    """What consumers may receive; None if they receive all that is stored."""
    keep_set: Callable[[], Awaitable[None]] | None = None
    """The task of a master in controller mode that keeps its sync-state set."""
    _following: trio.CancelScope = field(factory=trio.CancelScope, init=False)
    """Of `slave`."""

    @classmethod
    def build(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        *,
        sink: EventSink,
        budget: DescriptorBudget,
        control: Control | None = None,
        security: ClientSecurity = NO_SECURITY,
        tls: MutualTls | None = None,
        check_master: Callable[[], Awaitable[str]] | None = None,
    ) -> Replication:
        """`control` is that of controller mode; `check_master` that of `HaSlave`."""
        commit_log = store.commit_log
        settings = HaSettings(
            heartbeat_interval_s=config.ha_send_heartbeat_interval / 1000,
            housekeeping_interval_s=config.ha_housekeeping_interval / 1000,
            transfer_batch_bytes=config.ha_transfer_batch_size,
            transfer_batch_bytes_max=config.ha_transfer_batch_max,
            flow_bytes_per_s=config.max_ha_transfer_byte_in_second if config.ha_flow_control_enable else None,
            first_report_timeout_s=config.ha_first_report_timeout / 1000,
        )
        if control is not None:
            return cls._controlled(
                config,
                store,
                control,
                settings=settings,
                sink=sink,
                budget=budget,
                security=security,
                tls=tls,
            )
        replicas = Replicas(
            gap_bytes_max=config.ha_max_gap_not_in_sync,
            unacked_s_max=config.ha_max_time_slave_not_catchup / 1000,
        )
        # A slave also serves slaves: connections of both sides are numbered together in its recording.
        connection_ids = count(1)
        master = DefaultHaMaster(
            commit_log=commit_log,
            replicas=replicas,
            settings=settings,
            sink=sink,
            distinct_by_connection=config.ha_distinct_by is DistinctBy.CONNECTION,
            admission=_admission(config, budget),
            tls=tls,
            connection_ids=connection_ids,
        )
        commit_settings = _commit_settings(config)
        quorum = SlaveQuorum(commit_settings, replicas)
        replicated = _replicated_offset(config, store, quorum, replicas)
        group_commit = GroupCommit(
            commit_settings,
            quorum=quorum,
            flushed=commit_log.flushed,
            sink=sink,
            send_now=master.send_now,
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
                tls=tls,
                check_master=check_master,
            )
        return cls(replicas, master, group_commit, slave, location, replicated)

    @classmethod
    def _controlled(
        cls,
        config: BrokerConfig,
        store: MessageStore,
        control: Control,
        *,
        settings: HaSettings,
        sink: EventSink,
        budget: DescriptorBudget,
        security: ClientSecurity,
        tls: MutualTls | None,
    ) -> Replication:
        from trioha.node.controlled_replication import NamedMaster, build_controlled, build_follower  # noqa: PLC0415

        connection_ids = count(1)
        ha = build_controlled(
            config,
            store,
            control,
            settings=settings,
            sink=sink,
            admission=_admission(config, budget),
            commit=_commit_settings(config),
            connection_ids=connection_ids,
            tls=tls,
        )
        role = control.role
        if role is None or role.is_master or role.master_address is None:
            keep_set = ha.keep_set if role is not None and role.is_master else None
            return cls(ha.replicas, ha.master, ha.group_commit, None, MasterLocation(None), keep_set=keep_set)
        location = NamedMaster(role.master_address, security=security)
        slave = build_follower(
            config,
            store,
            control,
            settings=settings,
            sink=sink,
            connection_ids=connection_ids,
            connect=partial(_connect, location, tls),
            location=location,
        )
        return cls(ha.replicas, ha.master, ha.group_commit, slave, location)

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
            if self.replicated is not None:
                nursery.start_soon(self.replicated.run)
            if self.keep_set is not None:
                nursery.start_soon(self.keep_set)
            await nursery.start(partial(self.master.serve, listeners, gate=gate))
            if self.slave is not None:
                nursery.start_soon(self._follow, self.slave)
            task_status.started()

    async def _follow(self, slave: HaSlave) -> None:
        with self._following:
            await slave.run()

    def stop_following(self) -> None:
        """End the session of `slave` for good; nothing happens on a master."""
        self._following.cancel()


def _admission(config: BrokerConfig, budget: DescriptorBudget) -> AdmissionSettings:
    return AdmissionSettings(
        allowed=config.ha_allowed_peers,
        connections_max=budget.ha_connections,
        connections_per_peer_max=config.ha_connections_per_peer,
    )


def _commit_settings(config: BrokerConfig) -> GroupCommitSettings:
    return GroupCommitSettings(
        copies_needed=config.slave_acks_needed,
        copies_min=config.min_in_sync_replicas - 1 if config.slave_acks_needed else 0,
        lowers_need=config.enable_auto_in_sync_replicas,
        all_in_sync=config.all_ack_in_sync_state_set,
        slave_timeout_s=config.slave_timeout / 1000,
        sync_flush=config.flush_disk_type is FlushDiskType.SYNC_FLUSH,
        sync_flush_timeout_s=config.sync_flush_timeout / 1000,
    )


def _replicated_offset(
    config: BrokerConfig, store: MessageStore, quorum: SlaveQuorum, replicas: Replicas
) -> ReplicatedOffset | None:
    """That of a master whose consumers receive replicated messages only; the store's checkpoint keeps it."""
    if not (config.consume_replicated_only and config.slave_acks_needed):
        return None
    commit_log, checkpoints = store.commit_log, store.checkpoints
    replicated = ReplicatedOffset.restored(
        lambda: quorum.replicated_offset(commit_log.max_offset),
        lambda: commit_log.max_offset,
        acks=replicas.acks,
        checkpoint_offset=checkpoints.current.confirm_physical_offset,
    )
    checkpoints.follow_confirm_offset(replicated.for_checkpoint)
    return replicated


def _slave(
    config: BrokerConfig,
    store: MessageStore,
    *,
    location: MasterLocation,
    settings: HaSettings,
    sink: EventSink,
    connection_ids: Iterator[int],
    tls: MutualTls | None,
    check_master: Callable[[], Awaitable[str]] | None,
) -> HaSlave:
    from trioha.ha.replication_session import ReplicationSettings  # noqa: PLC0415
    from trioha.ha.slave import HaSlave  # noqa: PLC0415

    return HaSlave(
        master_address=str(location),
        connect=partial(_connect, location, tls),
        commit_log=store.commit_log,
        settings=settings,
        sink=sink,
        replication=ReplicationSettings(tail_check_bytes=config.ha_tail_check, start=config.ha_start_from),
        ack_mode=config.ha_ack_mode,
        is_observer=config.ha_role is HaRole.OBSERVER,
        gap_policy=config.ha_gap_policy,
        connection_ids=connection_ids,
        check_master=check_master,
    )


async def _connect(
    location: MasterLocation | NamedMaster, tls: MutualTls | None, dialing: Callable[[str], None]
) -> trio.abc.Stream:
    """A stream to the master. Raises OSError if it cannot be reached or authenticated."""
    address = await location.resolve()
    dialing(str(location))
    transport = SocketTransport.from_stream(await trio.open_tcp_stream(address.host, address.port))
    if tls is None:
        return transport
    stream = trio.SSLStream(transport, tls.client, server_hostname=address.host)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise ConnectionError(f"TLS: {error.__cause__}") from error
    except trio.Cancelled:
        await trio.aclose_forcefully(stream)
        raise
    return stream
