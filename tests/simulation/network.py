"""Links between simulated nodes: streams with latency, bounded buffers, and everything that breaks them.

Theory of operation. A link is two pipes. A pipe is a queue of pieces with the time at which each arrives; its
reader sleeps until then, so there is no task in between and nothing runs that is not asked for. A pipe takes
no more than `capacity_bytes` that are not read yet: a reader that stops stops its writer, as TCP does.

| fault | what both ends see |
|---|---|
| `end` | the end of the stream after what is under way |
| `reset` | what is under way is lost, BrokenResourceError |
| `freeze` | nothing arrives for a while, then all of it |
| `silence` | nothing arrives any more, and no end is notified (half open) |
"""

from __future__ import annotations

import math
import random
from abc import abstractmethod
from collections import deque
from collections.abc import Callable

import trio
from attrs import frozen

from trioha.net.transport import SocketTransport

Tap = Callable[[bytes], None]


@frozen
class LinkQuality:
    """What a link is like while nothing is wrong with it."""

    latency_s: float
    bandwidth_bytes_per_s: float
    capacity_bytes: int
    dribble: float
    """Chance that a read gets only a few of the bytes that are there."""


class Pipe:
    """One direction of a link."""

    def __init__(self, quality: LinkQuality, rng: random.Random) -> None:
        self.quality = quality
        self.on_sent: Tap = lambda _: None
        self.on_received: Tap = lambda _: None
        self._rng = rng
        self._pieces: deque[tuple[float, memoryview]] = deque()
        self._unread_bytes = 0
        self._last_arrival_s = 0.0
        self._frozen_until_s = 0.0
        self._ends = False
        self._broken = False
        self._reader_closed = False
        self.is_silent = False
        self._changed = trio.Event()

    def _change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def has_unread(self) -> bool:
        return bool(self._pieces)

    @property
    def room_bytes(self) -> int:
        """How many bytes the pipe takes now."""
        return self.quality.capacity_bytes - self._unread_bytes

    def push(self, data: bytes | bytearray | memoryview) -> int:
        """Accept as much of `data` as there is room for; BrokenResourceError if the reader is gone."""
        if self._broken or self._ends or self._reader_closed:
            raise trio.BrokenResourceError("the connection is gone")
        taken = bytes(memoryview(data)[: max(self.room_bytes, 0)])
        if not taken:
            return 0
        self.on_sent(taken)
        self._unread_bytes += len(taken)
        if not self.is_silent:
            quality = self.quality
            start_s = max(self._last_arrival_s, trio.current_time() + quality.latency_s)
            self._last_arrival_s = start_s + len(taken) / quality.bandwidth_bytes_per_s
            self._pieces.append((self._last_arrival_s, memoryview(taken)))
            self._change()
        return len(taken)

    async def wait_for_room(self) -> None:
        """Return when half of the pipe is free (else one byte at a time would go), or it is gone."""
        while self.room_bytes < self.quality.capacity_bytes // 2 and not (
            self._broken or self._ends or self._reader_closed
        ):
            await self._changed.wait()

    async def pull(self, max_bytes: int) -> bytes:
        """What has arrived, at most `max_bytes` of it; nothing at the end of the stream."""
        while True:
            if self._broken:
                raise trio.BrokenResourceError("the connection was reset")
            data = self._take(max_bytes)
            if data:
                self.on_received(data)
                return data
            if self._ends and not self._pieces and trio.current_time() >= self._frozen_until_s:
                return b""
            with trio.move_on_at(self._next_arrival_s()):
                await self._changed.wait()

    def _next_arrival_s(self) -> float:
        if self.is_silent:
            return math.inf
        if self._pieces:
            return max(self._pieces[0][0], self._frozen_until_s)
        return self._frozen_until_s if self._ends else math.inf

    def _take(self, max_bytes: int) -> bytes:
        now_s = trio.current_time()
        if self.is_silent or now_s < self._frozen_until_s:
            return b""
        wanted = 0
        for arrival_s, piece in self._pieces:
            if arrival_s > now_s or wanted >= max_bytes:
                break
            wanted += len(piece)
        wanted = min(wanted, max_bytes)
        if wanted and self._rng.random() < self.quality.dribble:
            wanted = self._rng.randint(1, self._rng.choice((min(wanted, 24), wanted)))
        parts = []
        left = wanted
        while left:
            arrival_s, piece = self._pieces.popleft()
            parts.append(piece[:left])
            if len(piece) > left:
                self._pieces.appendleft((arrival_s, piece[left:]))
            left -= len(parts[-1])
        if wanted:
            self._unread_bytes -= wanted
            self._change()
        return b"".join(parts)

    def end(self) -> None:
        """No more will be sent: the reader gets what is under way, then the end."""
        if not self.is_silent:
            self._ends = True
            self._change()

    def break_(self) -> None:
        """Lose what is under way; both ends get BrokenResourceError."""
        if not self.is_silent:
            self._broken = True
            self._pieces.clear()
            self._change()

    def close_reader(self) -> None:
        """The reader is gone: sending fails, unless the pipe is half open."""
        if not self.is_silent:
            self._reader_closed = True
            self._change()

    def freeze_until(self, time_s: float) -> None:
        """Nothing arrives before `time_s`."""
        self._frozen_until_s = max(self._frozen_until_s, time_s)
        self._change()

    def thaw(self) -> None:
        self._frozen_until_s = 0.0
        self._change()

    def silence(self) -> None:
        """Nothing arrives any more; what is sent is taken until the buffer is full."""
        self.is_silent = True
        self._pieces.clear()
        self._change()


class Link:
    """A connection of a slave (the near end) to a master (the far end)."""

    def __init__(self, quality: LinkQuality, rng: random.Random, *, direct: bool, number: int) -> None:
        """`direct` ends offer `send_now`, as sockets do."""
        self.number = number
        self.was_hurt = False
        """Whether a fault happened to it."""
        self._rng = rng
        self.reports = Pipe(quality, rng)
        self.frames = Pipe(quality, rng)
        make = DirectEnd if direct else PlainEnd
        self.near = make(self, outgoing=self.reports, incoming=self.frames)
        self.far = make(self, outgoing=self.frames, incoming=self.reports)

    @property
    def is_open(self) -> bool:
        return not (self.near.is_closed and self.far.is_closed)

    def _hurt(self) -> tuple[Pipe, Pipe]:
        self.was_hurt = True
        return self.reports, self.frames

    def end(self) -> None:
        """A proxy in between closes in order."""
        for pipe in self._hurt():
            pipe.end()

    def reset(self) -> None:
        """A proxy in between goes away."""
        for pipe in self._hurt():
            pipe.break_()

    def freeze(self, duration_s: float, *, reports: bool, frames: bool) -> None:
        """Nothing arrives in the named directions for `duration_s`."""
        for pipe, is_frozen in zip(self._hurt(), (reports, frames), strict=True):
            if is_frozen:
                pipe.freeze_until(trio.current_time() + duration_s)

    def silence(self) -> None:
        """Half open: nothing arrives any more and no end is notified."""
        for pipe in self._hurt():
            pipe.silence()

    def set_quality(self, quality: LinkQuality) -> None:
        """Another latency and bandwidth from now on."""
        self.reports.quality = self.frames.quality = quality

    def heal(self, quality: LinkQuality) -> None:
        """No freeze any more, and a better link. What is half open stays so: its ends must find out."""
        self.set_quality(quality)
        self.reports.thaw()
        self.frames.thaw()

    def close_end(self, *, outgoing: Pipe, incoming: Pipe) -> None:
        """One end closes: an orderly end, or a reset where it left bytes unread (as kernels do)."""
        if incoming.has_unread and self._rng.random() < 0.5:
            outgoing.break_()
        outgoing.end()
        incoming.close_reader()


class End(trio.abc.Stream):
    """One end of a link, as a stream."""

    def __init__(self, link: Link, *, outgoing: Pipe, incoming: Pipe) -> None:
        self._link = link
        self._outgoing = outgoing
        self._incoming = incoming
        self.is_closed = False
        self._is_dead = False

    def die(self) -> None:
        """The process of this end is killed: what its last tasks still send goes nowhere."""
        self._is_dead = True

    def close(self) -> None:
        """As `aclose`, at once."""
        if not self.is_closed:
            self.is_closed = True
            self._link.close_end(outgoing=self._outgoing, incoming=self._incoming)

    def _push(self, data: bytes | bytearray | memoryview) -> int:
        """Send what goes without waiting."""
        if self.is_closed:
            raise trio.ClosedResourceError("this stream is closed")
        if self._is_dead:
            raise trio.BrokenResourceError("the process has ended")
        return self._outgoing.push(data)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._before_call()
        with memoryview(data) as whole:
            sent = 0
            while sent < len(whole):
                with whole[sent:] as rest:
                    sent_now = self._push(rest)
                sent += sent_now
                if not sent_now:
                    await self._outgoing.wait_for_room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await self._before_call()
        if self.is_closed:
            raise trio.ClosedResourceError("this stream is closed")
        return await self._incoming.pull(65536 if max_bytes is None else max_bytes)

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()

    @abstractmethod
    async def _before_call(self) -> None:
        """Yield, if this kind of end does."""


class PlainEnd(End):
    """An end as any stream is: every call is a checkpoint."""

    async def _before_call(self) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        await self._outgoing.wait_for_room()


class DirectEnd(End, SocketTransport):
    """An end as the nodes' own transport is: it offers `send_now` and yields only when it must wait."""

    def __init__(self, link: Link, *, outgoing: Pipe, incoming: Pipe) -> None:
        # Not the transport's own: there is no socket.
        End.__init__(self, link, outgoing=outgoing, incoming=incoming)
        self._calls = 0

    async def _before_call(self) -> None:
        await self.checkpoint_if_due()

    @property
    def local_address(self) -> str | None:
        return None

    def send_now(self, data: bytes | memoryview) -> int:
        return self._push(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._outgoing.wait_for_room()

    async def receive_into(self, buffer: memoryview) -> int:
        data = await self.receive_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)
