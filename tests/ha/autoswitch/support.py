"""Stores with epochs, and masters of controller mode that a test scripts."""

from __future__ import annotations

from functools import partial

import trio
import trio.lowlevel
from attrs import define

from tests.epochs import epoch_at
from tests.ha.support import SETTINGS, Dialer, Events, Peer
from tests.store.support import message, open_store
from trioha.ha.autoswitch.client import SlaveIdentity
from trioha.ha.autoswitch.frames import (
    REPORT,
    REPORT_BYTES,
    SLAVE_HANDSHAKE_BYTES,
    MasterHandshake,
    MasterStreamDecoder,
    SlaveHandshake,
    SlaveStreamDecoder,
    TransferHeader,
    encode_master_handshake,
    encode_transfer_header,
)
from trioha.ha.autoswitch.slave import AutoSwitchSlave
from trioha.store.epochs import EpochEntry

open_epoch_store = partial(open_store, has_epochs=True)


def entries(*pairs):
    return tuple(EpochEntry(epoch, start_offset) for epoch, start_offset in pairs)


def epochs_of(store):
    return [(entry.epoch, entry.start_offset) for entry in store.epochs.entries]


def put(store, *bodies):
    """Store a message for each body; returns the log's end."""
    for body in bodies:
        store.commit_log.append(message(body))
    return store.commit_log.max_offset


def begin_epoch(store, epoch):
    """What a broker does that becomes the master of `epoch`."""
    store.epochs.drop_from(epoch)
    store.epochs.append(epoch, store.commit_log.max_offset)


@define
class MasterPeer:
    """A scripted master on one connection."""

    peer: Peer

    async def handshake(self) -> SlaveHandshake:
        [frame] = SlaveStreamDecoder().feed(await self.peer.read(SLAVE_HANDSHAKE_BYTES))
        return frame

    async def answer(self, max_offset, *epochs):
        last_epoch = epochs[-1][0] if epochs else -1
        handshake = MasterHandshake(max_offset, last_epoch, entries(*epochs))
        await self.send(encode_master_handshake(handshake))

    async def frame(self, offset, body=b"", *, epoch, start, confirm=0):
        header = TransferHeader(offset, len(body), epoch, start, confirm)
        await self.send(encode_transfer_header(header) + body)

    async def send(self, data):
        await self.peer.stream.send_all(data)

    async def next_report(self):
        return REPORT.unpack(await self.peer.read(REPORT_BYTES))[1]

    async def reported(self, offset):
        """Read reports until one is of `offset` or more."""
        while await self.next_report() < offset:
            pass

    async def serve(self, store):
        """Answer the handshake; returns the offset that the slave requests."""
        await self.handshake()
        await self.answer(store.commit_log.max_offset, *epochs_of(store))
        return await self.next_report()

    async def send_log(self, store, start_offset, *, batch_bytes=32768, confirm=0):
        for header, body in frames_of(store, start_offset, batch_bytes=batch_bytes, confirm=confirm):
            await self.send(encode_transfer_header(header) + body)


def frames_of(store, start_offset, *, batch_bytes=32768, confirm=0):
    """The frames that RocketMQ's master sends: cut at the ends of files and epochs, labelled as it does."""
    log, table = store.commit_log, store.epochs.table
    offset = start_offset
    while offset < log.max_offset:
        entry = epoch_at(table, offset)
        end = table.end_of(entry, log.max_offset)
        body = bytes(log.read(offset, min(batch_bytes, end - offset)))
        label = epoch_at(table, offset + len(body)) if offset + len(body) == end else entry
        yield TransferHeader(offset, len(body), label.epoch, label.start_offset, confirm), body
        offset += len(body)


def recorded_frames(data):
    """Handshake, and header and body of each frame, of a recorded master."""
    decoder = MasterStreamDecoder()
    decoder.feed(data)
    handshake = decoder.next_event()
    frames = []
    while (event := decoder.next_event()) is not None:
        if isinstance(event, TransferHeader):
            frames.append((event, b""))
        else:
            frames[-1] = (frames[-1][0], bytes(event.data))
    return handshake, frames


async def at_once(step):
    """In place of a worker thread, which virtual time would leap over."""
    await trio.lowlevel.checkpoint()
    step()


def make_slave(store, *, dialer=None, events=None, broker_id=2, settings=SETTINGS, **options):
    events = events or Events()
    dialer = dialer or Dialer()
    options.setdefault("identity", SlaveIdentity(broker_id))
    options.setdefault("run_blocking", at_once)
    slave = AutoSwitchSlave(
        master_address="master:10912",
        connect=dialer,
        commit_log=store.commit_log,
        epochs=store.epochs,
        cut=store.cutter.steps,
        settings=settings,
        sink=events,
        **options,
    )
    return slave, dialer, events
