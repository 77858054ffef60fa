"""Peers that send hostile frames to a node's ports, and judge what comes of each.

Theory of operation. A stranger at the listen port sends in one piece as many frames as must leave the
connection open, and after them a request whose answer is known. When all answers are there it sends the frame
that may end the connection, if there is one, closes its own side where the node may wait for more, and sees
the node close. So tens of frames share a connection, and each is judged by itself.

A stranger at an HA port plays one script on each connection.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

import trio
from attrs import define

from tests.hostile.counters import ConnectionCounters
from tests.hostile.frame import Frame, Manner, Outcome, Relative
from tests.hostile.wire import frame as frame_bytes
from tests.hostile.wire import json_head, json_object
from trioha.errors import RemoteProtocolError
from trioha.ha.frames import HEADER, HEADER_BYTES, REPORT
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand

HANG_S: Final = 30.0
"""A node that does not answer or close within this time hangs: ten times the protocol's own timeout."""
BATCH_FRAMES: Final = 64
BATCH_BYTES: Final = 512 * 1024
IDLE_S: Final = 1.0
DEAF_S: Final = 1.0
DEAF_ROUNDS: Final = 400
"""Times that a deaf peer sends its requests, at most: some 20,000 requests, some 50 MB of answers."""
DRIBBLE_BYTES: Final = 16
PROBE_CODE: Final = 5
"""A request that no broker serves: its answer is known, and says that all before it was handled."""
PROBE_OPAQUE: Final = 0x70000000

_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)
_PROBE = frame_bytes(json_object(json_head(str(PROBE_CODE), str(PROBE_OPAQUE))).encode())
_OUR_EXCEPTION = re.compile(r"[A-Z]\w*(Error|Exception|Exit|Interrupt)\b")


class NodeGone(Exception):  # noqa: N818 - it says what happened
    """The node does not accept connections any more."""


@define
class Target:
    """A port of a node."""

    name: str
    port: int


async def connect(target: Target) -> trio.SocketStream:
    """A connection to the port. Raises NodeGone if the port is closed."""
    # Not `open_tcp_stream`, whose happy eyeballs cost more than all the rest of a short connection.
    endpoint = trio.socket.socket()
    try:
        with trio.fail_after(HANG_S):
            await endpoint.connect(("127.0.0.1", target.port))
            return trio.SocketStream(endpoint)
    except (OSError, trio.TooSlowError) as error:
        endpoint.close()
        raise NodeGone(f"{target.name} does not accept connections: {error}") from error


def reset(stream: trio.SocketStream) -> None:
    """Let closing reset the connection."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


# -- the listen port ---------------------------------------------------------------------------------------


class Batches:
    """Groups frames for a listen port: those of one group share a connection."""

    def __init__(self) -> None:
        self._held: list[Frame] = []
        self._held_bytes = 0
        self._opaques: set[int] = set()

    def add(self, frame: Frame) -> Iterator[tuple[Frame, ...]]:
        """Take one more frame; gives the groups that are complete now."""
        is_answered = frame.outcome is Outcome.ANSWERED
        is_alone = frame.manner is not Manner.WHOLE
        if is_alone or (is_answered and frame.opaque in self._opaques):
            yield from self.rest()
        self._held.append(frame)
        self._held_bytes += len(frame.data)
        if is_answered:
            self._opaques.add(frame.opaque)
        is_last = is_alone or frame.outcome in {Outcome.ANY, Outcome.CLOSED}
        if is_last or len(self._held) >= BATCH_FRAMES or self._held_bytes >= BATCH_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[tuple[Frame, ...]]:
        """The group that is not complete, if there is one."""
        if self._held:
            yield tuple(self._held)
        self._held, self._held_bytes = [], 0
        self._opaques.clear()


async def attack(
    target: Target,
    batches: trio.MemoryReceiveChannel[tuple[Frame, ...]],
    counters: ConnectionCounters,
    background: trio.Nursery,
) -> None:
    """Send all that comes, until there is no more. Raises NodeGone.

    What takes its time (peers that are silent or deaf) goes to the nursery `background`.
    """
    async for batch in batches:
        first = batch[0]
        if first.manner in {Manner.DEAF, Manner.IDLE}:
            counters.begin(batch)
            background.start_soon(
                _aside, _deaf if first.manner is Manner.DEAF else _idle, target, first, counters
            )
        else:
            await talk(target, batch, counters)


async def talk(target: Target, batch: Sequence[Frame], counters: ConnectionCounters) -> None:
    """Send frames on a connection of their own and judge what comes. Only the last one may end it."""
    counters.begin(batch)
    stream = await connect(target)
    counters.connected(batch[0])
    async with stream:
        if batch[0].manner is Manner.RESET:
            reset(stream)
            with suppress(trio.BrokenResourceError):  # the node was faster
                await stream.send_all(batch[0].data)
        else:
            await _Conversation(target, stream, batch, counters).run()
    counters.end(batch)


class _Conversation:
    """One connection to a listen port."""

    def __init__(
        self, target: Target, stream: trio.SocketStream, batch: Sequence[Frame], counters: ConnectionCounters
    ) -> None:
        self._target = target
        self._stream = stream
        self._counters = counters
        self._batch = batch
        self._ending = batch[-1] if batch[-1].outcome in {Outcome.ANY, Outcome.CLOSED} else None
        self._staying = batch[:-1] if self._ending is not None else batch
        self._waiting = {one.opaque: one for one in self._staying if one.outcome is Outcome.ANSWERED}
        self._probe_answered = not self._staying
        self._is_sending_the_last = False
        self._is_over = False
        self._changed = trio.Event()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            if self._staying:
                data = b"".join([one.data for one in self._staying]) + _PROBE
                await self._send(data, is_dribbled=self._batch[0].manner is Manner.DRIBBLE)
                await self._settle()
            if self._ending is not None and not self._is_over:
                await self._end(self._ending)
            nursery.cancel_scope.cancel()

    async def _send(self, data: bytes, *, is_dribbled: bool = False) -> None:
        try:
            if not is_dribbled:
                with trio.move_on_after(HANG_S) as hang:
                    await self._stream.send_all(data)
                if hang.cancelled_caught:
                    self._counters.find(f"{self._target.name} read nothing for {HANG_S:g} s", *self._batch)
                return
            for at in range(0, len(data), DRIBBLE_BYTES):
                await self._stream.send_all(data[at : at + DRIBBLE_BYTES])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            # The reader sees why.
            await trio.lowlevel.checkpoint()

    async def _settle(self) -> None:
        """Wait until all that must be answered is, and say what was not."""
        with trio.move_on_after(HANG_S):
            while (self._waiting or not self._probe_answered) and not self._is_over:
                await self._changed.wait()
        if self._waiting or not self._probe_answered:
            left = tuple(self._waiting.values()) or tuple(self._staying)
            if self._is_over:
                # What came before the first unanswered frame was handled.
                self._counters.find(f"{self._target.name} closed a connection that had to stay", *left)
            else:
                self._counters.find(f"{self._target.name} did not answer within {HANG_S:g} s", *left)

    async def _end(self, frame: Frame) -> None:
        """Send the frame that may end the connection, and see it end."""
        self._is_sending_the_last = True
        await self._send(frame.data)
        if frame.outcome is Outcome.ANY:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the node was faster
                await self._stream.send_eof()
        with trio.move_on_after(HANG_S):
            while not self._is_over:
                await self._changed.wait()
        if not self._is_over:
            self._counters.find(
                f"{self._target.name} did not close the connection within {HANG_S:g} s", frame
            )

    def _notice(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _read(self) -> None:
        decoder = FrameDecoder(frame_bytes_max=1 << 30, header_bytes_max=1 << 24)
        try:
            async for data in self._stream:
                decoder.feed(data)
                while (command := decoder.next_command()) is not None:
                    self._take(command)
        except RemoteProtocolError as error:
            said = f"answered bytes that are not a frame: {error}"
            self._counters.find(f"{self._target.name} {said}", *self._batch, is_of_an_answer=True)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # ended by a reset: as good as any end
        self._is_over = True
        self._notice()

    def _take(self, answer: RemotingCommand) -> None:
        if not answer.is_response:
            self._counters.codes[f"pushed {answer.code}"] += 1
            return
        self._counters.codes[response_code_name(answer.code)] += 1
        frame = self._waiting.pop(answer.opaque, None)
        if frame is not None:
            self._judge(frame, answer)
        elif answer.opaque == PROBE_OPAQUE and not self._probe_answered:
            self._probe_answered = True
        elif self._is_sending_the_last and self._ending is not None:
            self._judge(self._ending, answer)
        else:
            self._counters.find(
                f"{self._target.name} answered opaque {answer.opaque}, never asked", *self._batch
            )
        self._notice()

    def _judge(self, frame: Frame, answer: RemotingCommand) -> None:
        if answer.code == ResponseCode.SYSTEM_ERROR and _OUR_EXCEPTION.match(answer.remark or ""):
            said = (answer.remark or "")[:200]
            self._counters.find(f"{self._target.name} failed: {said}", frame, is_of_an_answer=True)
        if frame.must_be_refused and answer.code in _STORED:
            said = f"took what it must refuse, code {answer.code}"
            self._counters.find(f"{self._target.name} {said}", frame, is_of_an_answer=True)


async def _aside(
    behave: Callable[[Target, Frame, ConnectionCounters], Awaitable[None]],
    target: Target,
    frame: Frame,
    counters: ConnectionCounters,
) -> None:
    try:
        await behave(target, frame, counters)
    except NodeGone:
        return  # who is in flight stays a suspect
    counters.end((frame,))


async def _idle(target: Target, frame: Frame, counters: ConnectionCounters) -> None:
    async with await connect(target) as stream:
        counters.connected(frame)
        await stream.send_all(frame.data)
        with trio.move_on_after(IDLE_S):
            try:
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass  # closed for it: as good as any end


async def _deaf(target: Target, frame: Frame, counters: ConnectionCounters) -> None:
    async with await connect(target) as stream:
        counters.connected(frame)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reset(stream)
        try:
            for _ in range(DEAF_ROUNDS):
                with trio.move_on_after(DEAF_S) as blocked:
                    await stream.send_all(frame.data)
                if blocked.cancelled_caught:
                    break
            await trio.sleep(DEAF_S)
        except trio.BrokenResourceError:
            pass  # the node had enough of it


# -- the HA port -------------------------------------------------------------------------------------------


async def besiege(
    target: Target,
    frames: trio.MemoryReceiveChannel[Frame],
    counters: ConnectionCounters,
    background: trio.Nursery,
) -> None:
    """Play the scripts that come, one after the other, until there are no more or the node is gone."""
    async for frame in frames:
        counters.begin((frame,))
        if frame.manner in {Manner.IDLE, Manner.DEAF}:
            background.start_soon(_aside, play, target, frame, counters)
        else:
            await play(target, frame, counters)
            counters.end((frame,))


async def play(target: Target, frame: Frame, counters: ConnectionCounters) -> None:
    """Play one script at an HA port."""
    stream = await connect(target)
    counters.connected(frame)
    async with stream:
        if frame.manner is Manner.RESET:
            reset(stream)
        peer = _HaPeer(stream)
        try:
            with trio.move_on_after(HANG_S) as hang:
                await _play(peer, frame)
            if hang.cancelled_caught:
                counters.find(f"{target.name} did not close the connection within {HANG_S:g} s", frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # ended by a reset: as good as any end


async def _play(peer: _HaPeer, frame: Frame) -> None:
    stream = peer.stream
    for step in frame.steps:
        if isinstance(step, Relative):
            await peer.read_frame()
            if peer.is_over:
                return
            data = REPORT.pack(min(peer.received_offset + step.delta, 2**63 - 1))
        else:
            data = step
        if frame.manner is Manner.DRIBBLE:
            for at in range(len(data)):
                await stream.send_all(data[at : at + 1])
        else:
            await stream.send_all(data)
    match frame.manner:
        case Manner.IDLE:
            with trio.move_on_after(IDLE_S):
                await peer.drain()
        case Manner.DEAF:
            await trio.sleep(DEAF_S)
        case _ if frame.outcome is Outcome.CLOSED:
            await peer.drain()


class _HaPeer:
    """The slave's side of an HA connection, by hand."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.received_offset = 0
        """End of the last frame that was read whole."""
        self.is_over = False
        self._buffer = bytearray()

    async def read_frame(self) -> None:
        """One frame of the master's; `is_over` if the connection ended before."""
        header = await self._read(HEADER_BYTES)
        if header is None:
            return
        offset, size = HEADER.unpack(header)
        if await self._read(size) is not None:
            self.received_offset = offset + size

    async def _read(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            data = await self.stream.receive_some(65536)
            if not data:
                self.is_over = True
                return None
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def drain(self) -> None:
        """Read until the node closes."""
        while await self.stream.receive_some(65536):
            pass
        self.is_over = True
