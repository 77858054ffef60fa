"""Replication of a node in controller mode: as master of an epoch, as slave of one, or without a role yet.

| role | master's side | slave's side | puts wait for | queues are built up to |
|---|---|---|---|---|
| master | serves the group, keeps its set | - | the set, or inSyncReplicas | the confirm offset |
| slave | refuses handshakes | follows the named master | refused | the master's confirm offset |
| none yet | refuses handshakes | - | refused | the checkpoint's confirm offset |
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio
from attrs import evolve, frozen

from trioha.broker.controller_processor import fetch_ha_address
from trioha.config.broker import BrokerConfig
from trioha.controller.role import Role
from trioha.errors import ConfigError, RemoteProtocolError, TriohaError
from trioha.ha.admission import AdmissionSettings
from trioha.ha.autoswitch.master import AutoSwitchMaster
from trioha.ha.autoswitch.set_keeper import SetKeeper
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.ha.set_commit import SetQuorum, SetReplicas
from trioha.ha.settings import HaSettings
from trioha.ha.sync_state_set import SetObserver, SyncStateSet
from trioha.net.tls import MutualTls
from trioha.node.controller_agent import epochs_of, known_confirm_offset
from trioha.node.role_recording import SetRecorder, record_epoch, recorded_cut
from trioha.node.roles import Control
from trioha.recording.events import EventSink, GroupRole
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import ClientSecurity
from trioha.store.dispatch import Dispatcher
from trioha.store.epochs import EpochEntry
from trioha.store.message_store import MessageStore
from trioha.watermark import Watermark

if TYPE_CHECKING:
    from trioha.ha.autoswitch.slave import AutoSwitchSlave
    from trioha.ha.slave import Connect

log = structlog.get_logger(__name__)

NO_ID = -1
ASK_AGAIN_S = 0.5
"""Before a master that has no role yet is asked again for its HA address."""
ASK_FOR_S = 3.0
"""How long one attempt to connect asks for it."""


class NamedMaster:
    """The HA address of the master that the controllers named: it is asked for it (906) before each
    connection."""

    def __init__(self, address: str, *, security: ClientSecurity) -> None:
        """`address` is the master's for clients."""
        self._address = address
        self._security = security
        self.ha_address = ""

    def __str__(self) -> str:
        return self.ha_address

    def receive(self, text: str) -> None:
        """Name servers may not have the new master yet: their answer is not used."""

    async def resolve(self) -> Address:
        """The address for the next connection. Raises OSError if the master does not say it in time."""
        reason = "no answer"
        with trio.move_on_after(ASK_FOR_S):
            while True:
                try:
                    found = await fetch_ha_address(self._address, security=self._security)
                    address = parse_address(found)
                except (RemoteProtocolError, ConfigError, TriohaError) as error:
                    reason = str(error)
                else:
                    self.ha_address = found
                    return address
                await trio.sleep(ASK_AGAIN_S)
        raise OSError(f"the master does not say its HA address: {reason}")


@frozen(kw_only=True)
class ControlledReplication:
    """The parts of replication in controller mode."""

    replicas: SetReplicas
    master: AutoSwitchMaster
    group_commit: GroupCommit
    keeper: SetKeeper
    set: SyncStateSet
    control: Control
    recorder: SetRecorder

    async def keep_set(self) -> None:
        """Ask the controllers for the sets that the master wishes, and take those that they decide."""
        role = self.control.role
        assert role is not None, "only a master keeps a set"
        async with trio.open_nursery() as nursery:
            with self.control.agent.changes() as changes:
                # Also a set that was decided since the controllers gave this role.
                self._take_set(role, self.control.agent.role)
                alter = partial(self.control.agent.alter_sync_state_set, master_epoch=role.epoch)
                nursery.start_soon(self.keeper.run, self.set, self.recorder.asking(self.set, alter))
                async for later in changes:
                    self._take_set(role, later)

    def _take_set(self, role: Role, later: Role | None) -> None:
        """The set of `later`, if that is the master's `role` with any set."""
        if later is not None and later.is_master and later.epoch == role.epoch:
            self.set.decided(later.sync_state_set, later.sync_state_set_epoch)


class _DispatchLimit(SetObserver):
    """Has queues built up to the confirm offset of a set."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def changed(self, sync_state_set: SyncStateSet) -> None:
        """As `SetObserver`."""
        self._dispatcher.limit_to(sync_state_set.limit)


def build_controlled(
    config: BrokerConfig,
    store: MessageStore,
    control: Control,
    *,
    settings: HaSettings,
    sink: EventSink,
    admission: AdmissionSettings,
    commit: GroupCommitSettings,
    connection_ids: Iterator[int],
    tls: MutualTls | None,
) -> ControlledReplication:
    """Replication for the role of `control`. Also limits dispatch.

    `admission` and `commit` are the settings of the default plane; `commit` counts copies by the set here.
    """
    role = control.role
    is_master = role is not None and role.is_master
    keeper = SetKeeper(check_interval_s=config.check_sync_state_set_period / 1000)
    log_ = store.commit_log
    epochs = epochs_of(store).entries
    own_id = NO_ID if role is None else role.broker_id
    set_epoch = role.sync_state_set_epoch if role is not None else 0

    recorder = SetRecorder(sink, set_epoch=set_epoch)
    sync_state_set = SyncStateSet(
        own_id,
        members=role.sync_state_set if role is not None and is_master else frozenset((own_id,)),
        set_epoch=set_epoch,
        epoch_start_offset=epochs[-1].start_offset if epochs else 0,
        confirm_offset=known_confirm_offset(store),
        log_end=lambda: log_.max_offset,
        observers=(_DispatchLimit(store.dispatcher), recorder, keeper) if is_master else (),
        all_ack=config.all_ack_in_sync_state_set,
        not_caught_up_s_max=config.ha_max_time_slave_not_catchup / 1000,
        flushed=log_.flushed if commit.sync_flush else None,
        size_min=config.min_in_sync_replicas,
        slave_timeout_s=commit.slave_timeout_s,
    )
    replicas = SetReplicas(sync_state_set, term_start_offset=log_.max_offset)
    master = AutoSwitchMaster(
        commit_log=log_,
        replicas=replicas,
        settings=settings,
        sink=sink,
        epochs=lambda: epochs_of(store),
        admission=admission,
        tls=tls,
        connection_ids=connection_ids,
        is_master=is_master,
    )
    commit = evolve(
        commit,
        copies_needed=config.in_sync_replicas - 1,
        copies_min=config.min_in_sync_replicas - 1,
        lowers_need=False,
    )
    group_commit = GroupCommit(
        commit,
        quorum=SetQuorum(commit, sync_state_set),
        flushed=log_.flushed,
        sink=sink,
        send_now=master.send_now,
    )
    if is_master:
        store.dispatcher.limit_to(sync_state_set.limit)
        store.checkpoints.follow_confirm_offset(lambda: sync_state_set.confirm_offset)
    return ControlledReplication(
        replicas=replicas,
        master=master,
        group_commit=group_commit,
        keeper=keeper,
        set=sync_state_set,
        control=control,
        recorder=recorder,
    )


class FollowedConfirmOffset:
    """The confirm offset of a slave: its queues are built up to it."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._limit = Watermark(known_confirm_offset(store))
        store.dispatcher.limit_to(self._limit)
        store.checkpoints.follow_confirm_offset(lambda: self._limit.offset)
        # A session that has no confirm offset yet says nothing of a cut.
        store.cutter.on_cut.add(self._stay_in_log)
        store.commit_log.on_restart(self._stay_in_log)

    def _stay_in_log(self) -> None:
        """The log was cut, or begins anew: what follows has to be confirmed, too."""
        self._limit.lower(min(self._limit.offset, self._store.commit_log.max_offset))

    def receive(self, offset: int) -> None:
        """Take what the master said last, as far as the own log has it: the offset may go back."""
        if offset < 0:
            return
        if offset < self._limit.offset:
            self._limit.lower(offset)
        self._limit.advance(offset)


def build_follower(
    config: BrokerConfig,
    store: MessageStore,
    control: Control,
    *,
    settings: HaSettings,
    sink: EventSink,
    connection_ids: Iterator[int],
    connect: Connect,
    location: NamedMaster,
) -> AutoSwitchSlave:
    """The slave of a role that has another broker for its master."""
    from trioha.ha.autoswitch.client import SlaveIdentity  # noqa: PLC0415
    from trioha.ha.autoswitch.consistent_point import Kept  # noqa: PLC0415
    from trioha.ha.autoswitch.slave import AutoSwitchSlave  # noqa: PLC0415
    from trioha.ha.replication_session import ReplicationSettings  # noqa: PLC0415

    assert control.role is not None, "without a role there is nobody to follow"
    assert store.epochs is not None, "a store of controller mode has epochs"
    broker_id = control.role.broker_id

    def adopted(entry: EpochEntry) -> None:
        record_epoch(sink, entry, code=GroupRole.SLAVE, broker_id=broker_id)

    return AutoSwitchSlave(
        master_address=str(location),
        connect=connect,
        commit_log=store.commit_log,
        epochs=store.epochs,
        cut=recorded_cut(sink, store),
        identity=SlaveIdentity(
            broker_id,
            is_async_learner=config.async_learner,
            is_sync_from_last_file=config.sync_from_last_file,
        ),
        settings=settings,
        sink=sink,
        replication=ReplicationSettings(tail_check_bytes=config.ha_tail_check),
        ack_mode=config.ha_ack_mode,
        gap_policy=config.ha_gap_policy,
        on_confirm=FollowedConfirmOffset(store).receive,
        on_epoch=adopted,
        kept=Kept(
            lambda: known_confirm_offset(store),
            counts_acks=not config.async_learner,
            accepted_cut=config.ha_accept_cut,
        )
        if config.all_ack_in_sync_state_set
        else None,
        connection_ids=connection_ids,
    )
