"""A master of controller mode, and slaves that a test scripts."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio
from attrs import define, field
from trio.testing import memory_stream_pair

from tests.ha.support import SETTINGS, Events
from trioha.ha.autoswitch.frames import (
    EPOCHS_MAX,
    MasterHandshake,
    MasterStreamDecoder,
    SlaveHandshake,
    TransferHeader,
    encode_slave_handshake,
    encode_slave_report,
)
from trioha.ha.autoswitch.master import AutoSwitchMaster
from trioha.ha.autoswitch.set_keeper import SetKeeper
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.ha.set_commit import SetQuorum, SetReplicas
from trioha.ha.sync_state_set import SyncStateSet
from trioha.store.commit_log import CommitLog
from trioha.store.epochs import EpochEntry, EpochTable

OWN = 1


@define
class Life:
    """One life of a master of epoch 1, without its tasks."""

    log: CommitLog
    epochs: EpochTable
    set: SyncStateSet
    keeper: SetKeeper
    replicas: SetReplicas
    master: AutoSwitchMaster
    commit: GroupCommit
    events: Events

    def append_epoch(self, epoch):
        """The same master gets a higher epoch."""
        self.epochs = self.epochs.append(epoch, self.log.max_offset)
        self.set.epoch_start_offset = self.log.max_offset

    def accept(self):
        """The controller accepts the open proposal."""
        proposal = self.set.open_proposal
        self.set.decided(proposal.members, proposal.known_epoch + 1)


def table(*pairs):
    return EpochTable(tuple(EpochEntry(*pair) for pair in pairs))


def begin_life(
    log,
    *,
    epochs=None,
    own_id=OWN,
    members=frozenset(),
    all_ack=True,
    in_sync_replicas=1,
    min_in_sync_replicas=1,
    sync_flush=False,
    settings=SETTINGS,
    set_check_interval_s=5.0,
    **options,
):
    events = Events()
    keeper = SetKeeper(check_interval_s=set_check_interval_s)
    epochs = epochs or table((1, 0))
    sync_state_set = SyncStateSet(
        own_id,
        members=frozenset(members) or frozenset({own_id}),
        set_epoch=1,
        epoch_start_offset=epochs.entries[-1].start_offset if epochs.entries else 0,
        confirm_offset=0,
        log_end=lambda: log.max_offset,
        observers=(keeper,),
        all_ack=all_ack,
        size_min=min_in_sync_replicas,
        flushed=log.flushed if sync_flush else None,
    )
    replicas = SetReplicas(sync_state_set, term_start_offset=log.max_offset)
    master = AutoSwitchMaster(
        commit_log=log,
        replicas=replicas,
        settings=settings,
        sink=events,
        epochs=lambda: life.epochs,
        **options,
    )
    commit_settings = GroupCommitSettings(
        copies_needed=in_sync_replicas - 1,
        copies_min=min_in_sync_replicas - 1,
        all_in_sync=all_ack,
        slave_timeout_s=3.0,
        sync_flush=sync_flush,
        sync_flush_timeout_s=5.0,
    )
    quorum = SetQuorum(commit_settings, sync_state_set)
    commit = GroupCommit(
        commit_settings, quorum=quorum, flushed=log.flushed, sink=events, send_now=master.send_now
    )
    life = Life(log, epochs, sync_state_set, keeper, replicas, master, commit, events)
    return life


@define
class SlavePeer:
    """A scripted slave on one connection."""

    stream: trio.abc.Stream
    reasons: list = field(factory=list)
    """Gets the close reason."""
    _decoder: MasterStreamDecoder = field(factory=lambda: MasterStreamDecoder(epochs_max=EPOCHS_MAX))

    def feed(self, data):
        """Decode bytes that the test has read itself."""
        self._decoder.feed(data)

    async def send(self, data):
        await self.stream.send_all(data)

    async def shake_hands(self, broker_id=2, *, from_last_file=False, is_learner=False):
        """Returns the master's answer."""
        await self.send(encode_slave_handshake(SlaveHandshake(from_last_file, is_learner, broker_id)))
        answer = await self.next_event()
        assert isinstance(answer, MasterHandshake)
        return answer

    async def report(self, offset):
        await self.send(encode_slave_report(offset))

    async def join(self, offset, broker_id=2, **options):
        """Handshake and first report."""
        await self.shake_hands(broker_id, **options)
        await self.report(offset)

    async def next_event(self):
        while (event := self._decoder.next_event()) is None:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError("the master closed the connection")
            self._decoder.feed(bytes(data))
        return event

    async def next_frame(self):
        """(header, body)."""
        header = await self.next_event()
        assert isinstance(header, TransferHeader)
        body = bytearray()
        while len(body) < header.body_bytes:
            body += (await self.next_event()).data
        return header, bytes(body)

    async def ended(self):
        """Wait for the master to close, discarding what it still sends."""
        while await self.stream.receive_some(65536):
            pass

    async def ended_for(self, reason):
        """Wait for the master to close the connection for this reason."""
        await self.ended()
        await trio.testing.wait_all_tasks_blocked()
        assert self.reasons == [reason]

    async def acknowledge(self, offset):
        """Receive a frame, and say that the log ends there."""
        await self.next_frame()
        await self.report(offset)
        await trio.testing.wait_all_tasks_blocked()


@asynccontextmanager
async def connected(life, *, host="127.0.0.1", port=50000, identity=None):
    """A scripted slave of `life.master`."""
    near, far = memory_stream_pair()
    peer = SlavePeer(far)

    async def serve():
        peer.reasons.append(await life.master.serve_stream(near, host=host, port=port, identity=identity))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        yield peer
        nursery.cancel_scope.cancel()
