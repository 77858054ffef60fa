"""What a recorded session says of controller mode: role, epochs, sync-state set, cuts, leading controller.

All of these are rare. The confirm offset moves with acks, so it is looked at each `CONFIRM_PERIOD_S`, and
recorded where it has moved: nothing is recorded, or done, for a put.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import trio

from trioha.config.broker import BrokerConfig
from trioha.controller.role import NO_EPOCH, Role
from trioha.ha.autoswitch.set_keeper import Alter, SetDecision
from trioha.ha.sync_state_set import Proposal, SetObserver, SyncStateSet
from trioha.node.roles import Control
from trioha.recording import role_records
from trioha.recording.events import EventSink, GroupRole, Kind, SetEvent
from trioha.recording.role_records import NO_ID, record_leader, record_set
from trioha.store.epochs import EpochEntry, EpochTable
from trioha.store.message_store import MessageStore

CONFIRM_PERIOD_S: Final = 0.2


def record_role(sink: EventSink, store: MessageStore, control: Control) -> None:
    """Record the role of a term, at its start; of a master also its epoch and its first set."""
    role, code = control.role, _code_of(control.role)
    epoch, broker_id = _epoch_and_id(control)
    role_records.record_role(
        sink,
        role=code,
        former=_code_of(control.former),
        epoch=epoch,
        broker_id=broker_id,
        master_id=NO_ID if role is None else role.master_id,
        master_address=None if role is None else role.master_address,
        max_offset=store.commit_log.max_offset,
    )
    if role is None or not role.is_master:
        return
    if store.epochs is not None and store.epochs.entries:
        record_epoch(sink, store.epochs.entries[-1], code=code, broker_id=broker_id)
    record_set(
        sink,
        SetEvent.CHANGED,
        members=role.sync_state_set,
        set_epoch=role.sync_state_set_epoch,
        confirm_offset=store.checkpoints.confirm_offset(),
    )


def _code_of(role: Role | None) -> GroupRole:
    if role is None:
        return GroupRole.NONE
    return GroupRole.MASTER if role.is_master else GroupRole.SLAVE


def _epoch_and_id(control: Control) -> tuple[int, int]:
    if control.role is not None:
        return control.role.epoch, control.role.broker_id
    broker_id = control.agent.broker_id
    return NO_EPOCH, NO_ID if broker_id is None else broker_id


def record_epoch(sink: EventSink, entry: EpochEntry, *, code: GroupRole, broker_id: int) -> None:
    """Record that an epoch has begun in the log."""
    role_records.record_epoch(sink, entry.epoch, offset=entry.start_offset, role=code, broker_id=broker_id)


def record_cut(sink: EventSink, epochs: EpochTable, *, offset: int, end_offset: int) -> None:
    """Record that the bytes from `offset` to `end_offset` were cut, one event for each of their epochs.

    `epochs` are those before the cut.
    """
    for entry in epochs.entries:
        begin, end = max(entry.start_offset, offset), epochs.end_of(entry, end_offset)
        if begin < end:
            sink.emit(Kind.LOG_CUT, offset=begin, aux=end, size=entry.epoch)


def record_completed_cut(sink: EventSink, store: MessageStore) -> None:
    """Record the cut that the opening of the store has completed, in the first session that can have it."""
    cut, store.completed_cut = store.completed_cut, None
    if cut is not None:
        record_cut(sink, cut.epochs, offset=cut.offset, end_offset=cut.end_offset)


def recorded_cut(sink: EventSink, store: MessageStore) -> Callable[[int], Iterator[Callable[[], None]]]:
    """`Cutter.steps`, recorded when it is done."""

    def cut(offset: int) -> Iterator[Callable[[], None]]:
        epochs = EpochTable() if store.epochs is None else store.epochs.table
        end_offset = store.commit_log.max_offset
        yield from store.cutter.steps(offset)
        record_cut(sink, epochs, offset=offset, end_offset=end_offset)

    return cut


async def record_changes(
    sink: EventSink, store: MessageStore, control: Control, config: BrokerConfig
) -> None:
    """Record how the confirm offset moves and which controller leads, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_record_controllers, sink, control)
        if _has_confirm_offset(control, config):
            nursery.start_soon(_record_confirm_offset, sink, store)


def _has_confirm_offset(control: Control, config: BrokerConfig) -> bool:
    """Whether it says what all of the set hold. Without allAckInSyncStateSet a master's is its log's end."""
    role = control.role
    return role is not None and (config.all_ack_in_sync_state_set or not role.is_master)


async def _record_controllers(sink: EventSink, control: Control) -> None:
    with control.agent.leaders() as leaders:
        record_leader(sink, control.agent.leader)
        async for address in leaders:
            record_leader(sink, address)


async def _record_confirm_offset(sink: EventSink, store: MessageStore) -> None:
    recorded_offset = -1

    def record() -> None:
        nonlocal recorded_offset
        offset = store.checkpoints.confirm_offset()
        if offset != recorded_offset:
            recorded_offset = offset
            sink.emit(Kind.CONFIRMED, offset=offset, aux=store.commit_log.max_offset)

    try:
        while True:
            record()
            await trio.sleep(CONFIRM_PERIOD_S)
    finally:
        record()


class SetRecorder(SetObserver):
    """Records what happens to a master's sync-state set, and what controllers answer to its proposals."""

    def __init__(self, sink: EventSink, *, set_epoch: int) -> None:
        """`set_epoch` is that of the role, with which its set is recorded."""
        self._sink = sink
        self._set_epoch = set_epoch

    def proposed(self, sync_state_set: SyncStateSet, proposal: Proposal) -> None:
        """As `SetObserver`."""
        self._record(sync_state_set, SetEvent.PROPOSED, proposal.members, proposal.known_epoch)

    def changed(self, sync_state_set: SyncStateSet) -> None:
        """Record the known set, if it is another one."""
        if sync_state_set.set_epoch != self._set_epoch:
            self._set_epoch = sync_state_set.set_epoch
            self._record(sync_state_set, SetEvent.CHANGED, sync_state_set.members, sync_state_set.set_epoch)

    def asking(self, sync_state_set: SyncStateSet, alter: Alter) -> Alter:
        """`alter`, with its answers recorded; of a set that was accepted see `changed`."""

        async def recorded(members: frozenset[int], known_epoch: int) -> SetDecision | None:
            decision = await alter(members, known_epoch)
            if decision is None:
                self._record(sync_state_set, SetEvent.UNDECIDED, members, known_epoch)
            elif decision.set_epoch <= known_epoch:
                self._record(sync_state_set, SetEvent.REFUSED, members, known_epoch)
            return decision

        return recorded

    def _record(
        self, sync_state_set: SyncStateSet, event: SetEvent, members: frozenset[int], set_epoch: int
    ) -> None:
        confirm_offset = sync_state_set.confirm_offset
        record_set(self._sink, event, members=members, set_epoch=set_epoch, confirm_offset=confirm_offset)
