"""A master, slaves and scripted peers over memory streams."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio
from attrs import define, field
from trio.testing import memory_stream_pair

from tests.sinks import SingleEvents
from tests.waiting import until
from trioha.broker.puts import PutResult
from trioha.ha.frames import HEADER, HEADER_BYTES, REPORT
from trioha.ha.group_commit import GroupCommit, SlaveQuorum
from trioha.ha.master import DefaultHaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.ha.slave import HaSlave
from trioha.recording.events import NO_CONNECTION, HaState
from trioha.store.put_status import PutStatus

SETTINGS = HaSettings(heartbeat_interval_s=5.0, housekeeping_interval_s=20.0, transfer_batch_bytes=32768)


@define
class Events(SingleEvents):
    """An event sink that keeps events and facts."""

    seen: list[tuple] = field(factory=list)
    facts: list[tuple] = field(factory=list)

    def emit(self, kind, *, conn=NO_CONNECTION, offset=0, aux=0, size=0, flags=0):
        self.seen.append((int(kind), conn, offset, aux, size, int(flags)))

    def fact(self, type_, **fields):
        self.facts.append((type_, fields))

    def of(self, kind):
        return [event for event in self.seen if event[0] == kind]


@define
class Peer:
    """The other end of a connection, which a test scripts."""

    stream: trio.abc.Stream
    buffer: bytearray = field(factory=bytearray)

    async def report(self, offset):
        await self.stream.send_all(REPORT.pack(offset))

    async def frame(self, offset, body=b""):
        await self.stream.send_all(HEADER.pack(offset, len(body)) + body)

    async def read(self, size):
        while len(self.buffer) < size:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError(f"the connection ended, {len(self.buffer)} of {size} bytes are there")
            self.buffer += data
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    async def next_frame(self):
        offset, size = HEADER.unpack(await self.read(HEADER_BYTES))
        return offset, await self.read(size)

    async def next_report(self):
        return REPORT.unpack(await self.read(8))[0]

    async def reported(self, offset):
        """Read reports until one is of `offset` or more."""
        while await self.next_report() < offset:
            pass

    async def ended(self):
        """Wait for the other side to close, discarding what it still sends."""
        while await self.stream.receive_some(65536):
            pass


def make_master(log, *, events=None, gap_bytes_max=1 << 28, settings=SETTINGS, **options):
    events = events or Events()
    replicas = Replicas(gap_bytes_max=gap_bytes_max)
    master = DefaultHaMaster(commit_log=log, replicas=replicas, settings=settings, sink=events, **options)
    return master, replicas, events


@asynccontextmanager
async def connected(master, *, host="127.0.0.1", port=50000, stream_pair=memory_stream_pair):
    """A scripted slave of `master`; yields (peer, list that gets the close reason)."""
    near, far = stream_pair()
    reasons = []

    async def serve():
        reasons.append(await master.serve_stream(near, host=host, port=port))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await trio.testing.wait_all_tasks_blocked()
        yield Peer(far), reasons
        nursery.cancel_scope.cancel()


@define
class Dialer:
    """A `connect` for slaves: each call returns a near end, `peers` has the far ends."""

    peers: list[Peer] = field(factory=list)
    times: list[float] = field(factory=list)
    refuse: bool = False
    address: str = "master:10912"
    """That is dialed."""

    async def __call__(self, dialing):
        await trio.lowlevel.checkpoint()
        dialing(self.address)
        self.times.append(trio.current_time())
        if self.refuse:
            raise ConnectionRefusedError("no listener")
        near, far = memory_stream_pair()
        self.peers.append(Peer(far))
        return near


def make_slave(log, *, dialer=None, events=None, settings=SETTINGS, **options):
    events = events or Events()
    dialer = dialer or Dialer()
    slave = HaSlave(
        master_address="master:10912",
        connect=dialer,
        commit_log=log,
        settings=settings,
        sink=events,
        **options,
    )
    return slave, dialer, events


@asynccontextmanager
async def running(slave, dialer=None):
    """Runs a slave until the block ends; yields the master's end of its first connection."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slave.run)
        await settled()
        yield dialer.peers[0] if dialer is not None and dialer.peers else None
        nursery.cancel_scope.cancel()


async def ended(connection):
    """Wait until a master's connection is in SHUTDOWN."""
    await until(lambda: connection.progress.state is HaState.SHUTDOWN)


@asynccontextmanager
async def listening(master):
    """A master at a TCP port, which is yielded."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        await nursery.start(master.serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def settled():
    """Let every task run until it waits."""
    await trio.testing.wait_all_tasks_blocked()


def slave_commit(settings, *, replicas, flushed, sink, send_now=lambda _offset: None):
    """The group commit of a master whose puts wait for these replicas."""
    quorum = SlaveQuorum(settings, replicas)
    return GroupCommit(settings, quorum=quorum, flushed=flushed, sink=sink, send_now=send_now)


async def put_and_wait(puts, message):
    """The result of a put once it is known."""
    put = puts.put_and_wait(message)
    if isinstance(put, PutResult):
        return put
    await put.settled()
    return puts.result(put)


async def committed(commit, appended, *, request_id=1):
    """The status of a put once it is known."""
    begun = commit.begin(appended, request_id=request_id)
    await begun.settled()
    statuses = commit.end(begun)
    return PutStatus.PUT_OK if statuses is None else statuses[0]
