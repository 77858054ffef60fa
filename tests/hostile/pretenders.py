"""Hostile servers: a broker that the client asks, and a master that a slave follows."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import trio
from attrs import define

from tests.hostile.answering import good_answer
from tests.hostile.counters import ConnectionCounters
from tests.hostile.frame import Frame, Manner
from tests.hostile.generator import answer_of, transfer_of
from tests.hostile.strangers import DRIBBLE_BYTES, HANG_S, reset
from tests.hostile.transferring import Place
from trioha.errors import RemoteProtocolError, TriohaError
from trioha.ha.frames import HEADER, REPORT
from trioha.remoting.client import open_client
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode
from trioha.remoting.name_server import fetch_broker_groups
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    put_status_name,
    send_request,
)
from trioha.remoting.status_reader import StatusReader
from trioha.store.checkpoint import Checkpoint
from trioha.store.messages import Message
from trioha.store.record import Host
from trioha.store.recovery import open_commit_log

ANSWER_S: Final = 0.05
"""How long the client waits for an answer that may never come. Nothing is concluded from it."""
_HEADER = SendMessageRequestHeader(
    producer_group="group", topic="Topic", default_topic=DEFAULT_TOPIC, default_topic_queue_nums=4,
    queue_id=0,
    sys_flag=0, born_timestamp_ms=0, flag=0,
)  # fmt: skip


@define
class _Broker:
    """A server whose answer to one request code is the frame's, and honest to all others."""

    frame: Frame | None = None
    """None: honest."""

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            # However the client ends it.
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, RemoteProtocolError):
                await self._serve(stream)

    async def _serve(self, stream: trio.SocketStream) -> None:
        decoder = FrameDecoder()
        async for data in stream:
            decoder.feed(data)
            while (command := decoder.next_command()) is not None:
                frame = self.frame
                if frame is None or command.code != frame.code:
                    is_trioha = frame is None or frame.code != RequestCode.GET_BROKER_CONFIG
                    await stream.send_all(good_answer(command.code, command.opaque, is_trioha=is_trioha))
                    continue
                answer = answer_of(frame, command.opaque)
                if answer.manner is Manner.RESET:
                    reset(stream)
                elif answer.manner is Manner.DRIBBLE:
                    for at in range(0, len(answer.data), DRIBBLE_BYTES):
                        await stream.send_all(answer.data[at : at + DRIBBLE_BYTES])
                else:
                    await stream.send_all(answer.data)
                if answer.closes:
                    await stream.send_eof()
                    return


@asynccontextmanager
async def _listening(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


# -- the client --------------------------------------------------------------------------------------------


async def answer_client(frames: trio.MemoryReceiveChannel[Frame], counters: ConnectionCounters) -> None:
    """Let the remoting client ask, and answer as the frames say.

    Only a `TriohaError` may come of it, and an honest broker is understood afterwards.
    """
    broker = _Broker()
    async with _listening(broker.serve) as port:
        address = f"127.0.0.1:{port}"
        async for frame in frames:
            counters.begin((frame,))
            broker.frame = frame
            try:
                counters.codes[f"client: {await _ask(address, frame.code)}"] += 1
            except TriohaError as error:
                counters.codes[f"client: {type(error).__name__}"] += 1
            except Exception:  # noqa: BLE001 - what is looked for
                counters.find(f"the client raised {_last_lines()}", frame)
            counters.end((frame,))
        broker.frame = None
        if await _ask(address, RequestCode.GET_BROKER_HA_STATUS, timeout_s=HANG_S) != "answer":
            counters.find("the client does not understand an honest broker any more")


async def _ask(address: str, code: int, *, timeout_s: float = ANSWER_S) -> str:
    async with open_client(address, connect_timeout_s=HANG_S) as client:
        match code:
            case RequestCode.SEND_MESSAGE_V2:
                response = await client.request(send_request(_HEADER, b"body"), timeout_s=timeout_s)
                put_status_name(response)
                SendMessageResponseHeader.of(response)
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                await fetch_broker_groups(client, timeout_s=timeout_s)
            case _:
                reader = StatusReader(client, with_table=True, every_s=0.01)
                await reader.fetch(timeout_s=timeout_s)
                # Once more on the same connection: of what was pushed meanwhile.
                await reader.fetch(timeout_s=timeout_s)
        return "answer"


def _last_lines() -> str:
    return " | ".join(line.strip() for line in traceback.format_exc().splitlines()[-4:])


# -- the slave ---------------------------------------------------------------------------------------------


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
        self._dialled = trio.Event()
        self._stream: trio.SocketStream | None = None
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
                    try:
                        await self._serve(stream, frames, counters)
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        counters.closes["by the slave"] += 1

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
        counters.closes["by the slave"] += 1

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
