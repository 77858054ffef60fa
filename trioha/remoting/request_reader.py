"""The receiving side of a server's connection: bytes from its stream, as far as memory and time allow.

Theory of operation. `receive` waits for bytes only while the connection's account may hold them (see
`trioha.remoting.memory`), and holds them before anyone else can have that memory. An unfinished frame has a
clock: `scope` is cancelled `frame_timeout_s` after its first byte. The clock stops while the server does not
read, for lack of memory or since the connection has too much in flight (`paused`).
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from typing import Final

import trio

from trioha.net.transport import DirectStream
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.memory import MemoryAccount
from trioha.remoting.serving import ServerLimits

RECEIVE_MORE_BYTES_MAX: Final = 64 * 1024
"""With more bytes of an unfinished frame `receive_more` gives none: first, the system is asked for memory for
the rest."""
STREAM_RECEIVE_BYTES_MAX: Final = 16 * 1024
"""Of one read from a stream with TLS, which gives one record at most. Their memory is held before the read,
so each connection that waits for a request holds so much."""


class RequestReader:
    """Receives the bytes of one connection, for the decoder that it shares with their reader."""

    def __init__(
        self, stream: trio.abc.Stream, decoder: FrameDecoder, account: MemoryAccount, limits: ServerLimits
    ) -> None:
        self._stream = stream
        self._direct = stream if isinstance(stream, DirectStream) else None
        self._decoder = decoder
        self._account = account
        self._limits = limits
        self.scope = trio.CancelScope()
        """Cancelled to stop the reader; its deadline is that of the unfinished frame."""
        self.has_clock = False
        """Whether the clock of an unfinished frame runs."""

    async def receive(self) -> bytes:
        """Received bytes, which are already in the account; none at the end of the stream."""
        account, wanted_bytes = self._account, self._limits.receive_bytes_max
        direct = self._direct
        if account.unfinished_bytes:
            await account.keep_headroom()
        if direct is None:
            return await self._receive_some(min(wanted_bytes, STREAM_RECEIVE_BYTES_MAX))
        await direct.checkpoint_if_due()
        while True:
            allowed_bytes = account.readable_bytes(wanted_bytes)
            if not allowed_bytes:
                # The end of the stream needs no room: what a peer waits for that has gone may hold it.
                if (arrived := direct.peek_now(1)) == b"":
                    return b""
                if arrived is None:
                    await direct.wait_readable()
                else:
                    await self.paused(account.wait_to_read())
                continue
            try:
                received = direct.receive_now(allowed_bytes)
            except MemoryError:
                # Nothing was received. Unfinished frames of others must not end this connection.
                if not await account.make_room():
                    raise
                continue
            if received is not None:
                account.receive(len(received))
                return received
            await direct.wait_readable()

    async def _receive_some(self, wanted_bytes: int) -> bytes:
        """As `receive`, from a stream that has no calls without a wait."""
        account = self._account
        # Bytes may come at any time during the await: hold their memory before it.
        while not (allowed_bytes := account.readable_bytes(wanted_bytes)):
            await self.paused(account.wait_to_read())
        account.receive(allowed_bytes)
        data = b""
        try:
            data = bytes(await self._stream.receive_some(allowed_bytes))
        finally:
            account.change(len(data) - allowed_bytes)
        return data

    def receive_more(self) -> bytes:
        """What has come since; b"" if nothing has, or nothing is to be received now."""
        if self._direct is None or self._decoder.buffered_bytes > RECEIVE_MORE_BYTES_MAX:
            return b""
        allowed_bytes = self._account.readable_bytes(self._limits.receive_bytes_max)
        if not allowed_bytes:
            return b""
        try:
            data = self._direct.receive_now(allowed_bytes) or b""
        except MemoryError:
            # The next `receive` makes room.
            return b""
        self._account.receive(len(data))
        return data

    def note_unfinished(self) -> None:
        """Account for the unfinished frame after all complete ones, and start its clock."""
        unfinished_bytes = self._decoder.buffered_bytes
        if not unfinished_bytes:
            return
        if not self.has_clock:
            self.scope.deadline = trio.current_time() + self._limits.frame_timeout_s
            self.has_clock = True
        self._account.note_frame(unfinished_bytes, self._decoder.wanted_bytes)

    def stop_clock(self) -> None:
        """Stop the clock of the unfinished frame, if that is complete now."""
        if not self._account.unfinished_bytes:
            self.has_clock = False
            self.scope.deadline = math.inf

    async def paused(self, wait: Awaitable[None]) -> None:
        """Wait with the clock of the unfinished frame stopped."""
        left_s = self.scope.deadline - trio.current_time()
        self.scope.deadline = math.inf
        try:
            await wait
        finally:
            self.scope.deadline = trio.current_time() + left_s
