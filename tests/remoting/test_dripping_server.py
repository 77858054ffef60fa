"""A client's connection to a server that sends its answers byte by byte: name server, controller, broker."""

from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import memory_stream_pair

from trioha.remoting.client import FRAME_BYTES_PER_S_MIN, FRAME_TIMEOUT_S, RemotingClient
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import request, response_to


@asynccontextmanager
async def connected():
    """A client, and the server's end of its connection."""
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        client = RemotingClient(ours, "server:1")
        nursery.start_soon(client._run)
        yield client, theirs, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("begin", "frame_bytes"),
    [(b"", 4), ((1 << 20).to_bytes(4, "big"), 4 + (1 << 20))],
    ids=["in a length", "in a frame"],
)
@pytest.mark.parametrize("first", [False, True], ids=["", "after a frame that was whole"])
async def test_a_frame_has_a_deadline_of_its_own(autojump_clock, begin, frame_bytes, first):
    async with connected() as (client, theirs, nursery):
        whole = encode(response_to(request(105), 0)) if first else b""
        await theirs.send_all(whole + begin + b"\0")
        began_s = trio.current_time()

        async def drip():
            while True:
                await trio.sleep(19)
                await theirs.send_all(b"\0")

        if begin:
            nursery.start_soon(drip)
        assert "of the peer was not whole after" in await client.wait_lost()
        assert trio.current_time() - began_s == FRAME_TIMEOUT_S + frame_bytes / FRAME_BYTES_PER_S_MIN


async def test_whole_answers_at_any_pace_and_long_ones_on_a_slow_line_keep_the_connection(autojump_clock):
    async with connected() as (client, theirs, nursery):

        async def serve():
            decoder = FrameDecoder()
            while data := await theirs.receive_some():
                decoder.feed(data)
                while (asked := decoder.next_command()) is not None:
                    answer = encode(response_to(asked, 0, body=bytes(8 << 20)))
                    # 100 KB/s: 84 s.
                    for at in range(0, len(answer), 100_000):
                        await trio.sleep(1)
                        await theirs.send_all(answer[at : at + 100_000])
                    await trio.sleep(100)

        nursery.start_soon(serve)
        for _ in range(2):
            answer = await client.request(request(105), timeout_s=1000)
            assert len(answer.body) == 8 << 20
        await trio.sleep(1000)
        assert client.is_connected
