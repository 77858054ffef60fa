"""The send buffer of a connection, which keeps the bytes of several tasks in order.

Theory of operation. Several tasks send on one stream: frames, heartbeats, reports. Bytes that the socket does
not accept at once must be sent before any later ones, so there is one buffer for all tasks: `put` sends at
once what the socket accepts and appends the rest to the buffer, `flush` waits until the buffer is empty. Each
task may do either; the tasks send in turn.
"""

from __future__ import annotations

from collections import deque

import trio

from trioha.net.transport import SocketTransport


class Outbox:
    """Outgoing bytes of one stream."""

    __slots__ = ("_chunks", "_is_unknown", "_sending", "_stream", "_timeout_s", "_transport")

    def __init__(self, stream: trio.abc.Stream, *, timeout_s: float) -> None:
        """`timeout_s`: how long `flush` waits for one chunk (of one `put`) to be sent."""
        self._stream = stream
        self._transport = stream if isinstance(stream, SocketTransport) else None
        self._timeout_s = timeout_s
        self._chunks: deque[memoryview] = deque()
        """Unsent chunks, oldest first; of the first one a part may be sent."""
        self._is_unknown = False
        """Whether a send of the first chunk is under way, or ended somewhere in it."""
        self._sending = trio.Lock()

    @property
    def is_empty(self) -> bool:
        """Whether all bytes were handed to the stream."""
        return not self._chunks

    def put(self, data: bytes | memoryview) -> None:
        """Send `data` after everything put before: at once as far as the socket accepts it, else by `flush`.

        On streams other than a `SocketTransport` all of it is left to `flush`. Do not change `data` before it
        is sent; a view may be released. Raises BrokenResourceError if the connection is gone.
        """
        with memoryview(data) as whole:
            sent_bytes = 0
            if self._transport is not None and not self._chunks:
                sent_bytes = self._transport.send_now(whole)
            if sent_bytes < len(whole):
                self._chunks.append(whole[sent_bytes:])

    async def flush(self) -> None:
        """Return when all bytes, also those put meanwhile, were handed to the stream.

        Raises TooSlowError if a chunk is not sent in time, BrokenResourceError if the connection is gone.
        After an exception or cancellation an unknown part was sent: the stream cannot be used further. A task
        that waits for its turn meanwhile, and is not cancelled yet, gets BrokenResourceError: it would send
        that part once more.
        """
        chunks = self._chunks
        while chunks:
            async with self._sending:
                if self._is_unknown:
                    raise trio.BrokenResourceError("a send ended in the middle of a chunk")
                # Another task may have sent them meanwhile.
                if chunks:
                    # The chunk stays first until it is sent, so that later ones follow it.
                    self._is_unknown = True
                    with trio.fail_after(self._timeout_s):
                        await self._stream.send_all(chunks[0])
                    self._is_unknown = False
                    chunks.popleft().release()

    async def aclose(self) -> None:
        """Release unsent chunks, which keep deleted files on disk, and close the stream at once, also when
        cancelled. No task may flush any more."""
        while self._chunks:
            self._chunks.popleft().release()
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)
