"""The bytes that a connection sends, in the order in which its tasks put them: one owner of the sending side.

Theory of operation. Several tasks have bytes for one stream: a writer with frames and heartbeats, a put that
sends its record in its own turn. What a socket does not take at once has to be kept and sent before anything
else; where each task kept its own rest, one would overwrite the other's. Here `put` sends at once what the
socket takes and keeps the rest behind what is kept already, and `flush` waits until all of it was sent. Any
task may `put`, one task flushes.
"""

from __future__ import annotations

from collections import deque

import trio

from trioha.net.transport import SocketTransport


class Outbox:
    """Outgoing bytes of one stream."""

    __slots__ = ("_kept", "_stream", "_timeout_s", "_transport")

    def __init__(self, stream: trio.abc.Stream, *, timeout_s: float) -> None:
        """`timeout_s`: how long `flush` waits for the peer to take one piece that was put."""
        self._stream = stream
        self._transport = stream if isinstance(stream, SocketTransport) else None
        self._timeout_s = timeout_s
        self._kept: deque[memoryview] = deque()
        """What was put and not yet sent, oldest first; the first one may be on its way."""

    @property
    def is_empty(self) -> bool:
        """Whether all that was put was handed to the stream."""
        return not self._kept

    @property
    def sends_at_once(self) -> bool:
        """Whether what is put now goes to a socket without waiting for another task."""
        return self._transport is not None and not self._kept

    def put(self, data: bytes | memoryview) -> None:
        """Send `data` after everything that was put before: what the socket takes at once, else by `flush`.

        On streams other than a `SocketTransport` all of it is left to `flush`. `data` must not change before
        it was sent; if it is a view, the caller may release it. Raises BrokenResourceError if the connection
        is gone.
        """
        with memoryview(data) as whole:
            sent_bytes = 0
            if self._transport is not None and not self._kept:
                sent_bytes = self._transport.send_now(whole)
            if sent_bytes < len(whole):
                self._kept.append(whole[sent_bytes:])

    async def flush(self) -> None:
        """Return when all that was put, also meanwhile, was handed to the stream.

        Raises TooSlowError if the peer takes a piece too slowly, BrokenResourceError if the connection is
        gone. After an exception, or if cancelled, an unknown part was sent: the stream is of no use.
        """
        kept = self._kept
        while kept:
            # The piece stays in its place until it was sent: what is put meanwhile goes behind it.
            with trio.fail_after(self._timeout_s):
                await self._stream.send_all(kept[0])
            kept.popleft().release()

    def close(self) -> None:
        """Release what was not sent, once nothing flushes any more: a slice keeps a deleted file on disk."""
        while self._kept:
            self._kept.popleft().release()
