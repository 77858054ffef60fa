"""A hostile HA master that a slave follows."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import trio

from tests.hostile.counters import ConnectionCounters
from tests.hostile.frame import Frame
from tests.hostile.generator import transfer_of
from tests.hostile.strangers import HANG_S
from tests.hostile.transferring import Place
from trioha.ha.frames import HEADER, REPORT
from trioha.store.checkpoint import Checkpoint
from trioha.store.messages import Message
from trioha.store.record import Host
from trioha.store.recovery import open_commit_log


class HostileMaster:
    """A master that has a valid log, sends parts of it, and then what no slave may append.

    The log is the truth that the slave's own is compared with at the end.
    """

    def __init__(self, root: Path, *, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._log, _ = open_commit_log(
            root / "commitlog",
            file_bytes=file_bytes,
            message_bytes_max=file_bytes // 4,
            store_host=Host.parse("127.0.0.1", 1),
            clean_exit=True,
            checkpoint=Checkpoint(),
        )
        self.root = root
        """A store, of which only the log is there."""
        self._appended = 0
        self._is_honest = False

    @property
    def max_offset(self) -> int:
        """End of the true log."""
        return self._log.max_offset

    def close(self) -> None:
        """Close the log."""
        self._log.close()

    async def run(
        self,
        frames: trio.MemoryReceiveChannel[Frame],
        counters: ConnectionCounters,
        *,
        task_status: trio.TaskStatus[int],
    ) -> None:
        """Serve until cancelled; the start value is the port. When the frames are over it is honest."""
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")

            async def serve(stream: trio.SocketStream) -> None:
                async with stream:
                    # However the slave ends it.
                    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                        await self._serve(stream, frames, counters)

            nursery.start_soon(trio.serve_listeners, serve, listeners)
            task_status.started(listeners[0].socket.getsockname()[1])

    async def _serve(
        self,
        stream: trio.SocketStream,
        frames: trio.MemoryReceiveChannel[Frame],
        counters: ConnectionCounters,
    ) -> None:
        offset = await self._report(stream)
        if offset is None:
            return
        if offset > self._log.max_offset:
            counters.find(f"a slave reports {offset}, and was sent {self._log.max_offset} at most")
            return
        offset = await self._send_log(stream, offset)
        frame = None
        if not self._is_honest:
            try:
                frame = await frames.receive()
            except trio.EndOfChannel:
                self._is_honest = True
        if frame is None:
            await self._serve_honestly(stream, offset)
            return
        counters.begin((frame,))
        try:
            await self._transfer(stream, frame, offset, counters)
        finally:
            # Also where the slave has closed the connection before all was sent.
            counters.end((frame,))

    async def _transfer(
        self, stream: trio.SocketStream, frame: Frame, offset: int, counters: ConnectionCounters
    ) -> None:
        """Send the log from `offset` on and what the frame makes of its next record; see the slave close."""
        self._append()
        # The next record is for the frame to spoil: it is in the log, and goes out whole next time.
        start = self._append()
        offset = await self._send_log(stream, offset, until=start)
        record = bytes(self._log.read(start, self._file_bytes))
        frame, data = transfer_of(frame, Place(offset, record, self._file_bytes))
        await stream.send_all(data)
        await stream.send_eof()
        with trio.move_on_after(HANG_S) as hang:
            try:
                while await stream.receive_some():
                    pass
            except trio.BrokenResourceError:
                pass  # it hung up with bytes unread
        if hang.cancelled_caught:
            counters.find(f"the slave did not close the connection within {HANG_S:g} s", frame)

    async def _serve_honestly(self, stream: trio.SocketStream, offset: int) -> None:
        while True:
            await stream.send_all(HEADER.pack(offset, 0))
            await trio.sleep(0.1)

    async def _report(self, stream: trio.SocketStream) -> int | None:
        data = b""
        while len(data) < REPORT.size:
            more = await stream.receive_some(REPORT.size - len(data))
            if not more:
                return None
            data += more
        return int(REPORT.unpack(data)[0])

    async def _send_log(self, stream: trio.SocketStream, offset: int, *, until: int | None = None) -> int:
        """Send the true log from `offset`, to its end or to `until`; returns where that is."""
        end = self._log.max_offset if until is None else until
        while offset < end:
            body = bytes(self._log.read(offset, min(32768, end - offset)))
            await stream.send_all(HEADER.pack(offset, len(body)) + body)
            offset += len(body)
        return offset

    def _append(self) -> int:
        """One more record; returns where it begins."""
        self._appended += 1
        body = b"%d " % self._appended * (self._appended % 500)
        result = self._log.append(Message(topic="TopicTrue", queue_id=self._appended % 4, body=body))
        return result.physical_offset
