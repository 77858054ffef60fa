"""Memory streams that behave like sockets: bounded, half-closeable, with non-blocking calls."""

from __future__ import annotations

import trio

from trioha.net.transport import DirectStream


class _Pipe:
    """One direction."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.data = bytearray()
        self.is_ended = False
        self.changed = trio.Event()

    def note_change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class MemoryTransport(trio.abc.HalfCloseableStream):
    """One end of a connection in memory."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def checkpoint_if_due(self) -> None:
        await trio.lowlevel.checkpoint()

    def receive_now(self, max_bytes: int) -> bytes | None:
        data = self.peek_now(max_bytes)
        if data:
            del self._incoming.data[: len(data)]
            self._incoming.note_change()
        return data

    def peek_now(self, max_bytes: int) -> bytes | None:
        incoming = self._incoming
        if incoming.data:
            return bytes(incoming.data[:max_bytes])
        return b"" if incoming.is_ended else None

    async def wait_readable(self) -> None:
        while not self._incoming.data and not self._incoming.is_ended:
            await self._incoming.changed.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await self.checkpoint_if_due()
        while (data := self.receive_now(max_bytes or 65536)) is None:
            await self.wait_readable()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(data)
        outgoing = self._outgoing
        await self.checkpoint_if_due()
        while left:
            if outgoing.is_ended:
                raise trio.BrokenResourceError("the other end is closed")
            room = outgoing.capacity_bytes - len(outgoing.data)
            if room:
                outgoing.data += left[:room]
                left = left[room:]
                outgoing.note_change()
            else:
                await outgoing.changed.wait()

    async def wait_send_all_might_not_block(self) -> None:
        while len(self._outgoing.data) == self._outgoing.capacity_bytes:
            await self._outgoing.changed.wait()

    async def send_eof(self) -> None:
        self._outgoing.is_ended = True
        self._outgoing.note_change()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        for pipe in (self._incoming, self._outgoing):
            pipe.is_ended = True
            pipe.note_change()
        await trio.lowlevel.checkpoint()


def transport_pair(capacity_bytes: int = 64 * 1024) -> tuple[MemoryTransport, MemoryTransport]:
    """Two ends of a connection; each direction buffers so many bytes."""
    there, back = _Pipe(capacity_bytes), _Pipe(capacity_bytes)
    ours, theirs = MemoryTransport(back, there), MemoryTransport(there, back)
    assert isinstance(theirs, DirectStream)
    return ours, theirs
