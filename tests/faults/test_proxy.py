"""The proxy itself: what each fault does to the bytes and ends of a connection."""

import random
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from tests.faults.proxy import BOTH, PIECE_BYTES_MAX, Direction, Link, Substitution
from tests.waiting import until

PATIENCE_S = 5
QUIET_S = 0.1
"""Long enough for a byte on loopback to arrive if it is on its way."""


@asynccontextmanager
async def joined(link):
    """A client of `link`, the stream at its target, and a function that dials once more.

    Dialling gives the client's stream and an awaitable of the target's.
    """
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        send, receive = trio.open_memory_channel(10)

        async def keep(stream):
            await send.send(stream)
            await trio.sleep_forever()

        async def dial():
            stream = await trio.open_tcp_stream("127.0.0.1", link.port)
            return await stack.enter_async_context(stream)

        listeners = await nursery.start(trio.serve_tcp, keep, 0)
        link.target = ("127.0.0.1", listeners[0].socket.getsockname()[1])
        await nursery.start(link.serve)
        with trio.fail_after(PATIENCE_S):
            client = await dial()
            target = await receive.receive()
            # The target may know of the connection before the link does.
            await client.send_all(b"!")
            assert await read(target, 1) == b"!"
        yield client, target, dial, receive
        nursery.cancel_scope.cancel()


async def read(stream, number_bytes):
    data = b""
    with trio.fail_after(PATIENCE_S):
        while len(data) < number_bytes:
            part = await stream.receive_some(number_bytes - len(data))
            assert part, f"the connection ended after {len(data)} of {number_bytes} bytes"
            data += part
    return data


async def read_to_end(stream):
    data = b""
    with trio.fail_after(PATIENCE_S):
        while part := await stream.receive_some():
            data += part
    return data


async def is_silent(stream):
    with trio.move_on_after(QUIET_S):
        await stream.receive_some()
        return False
    return True


@pytest.mark.parametrize("piece_bytes_max", [PIECE_BYTES_MAX, 5])
async def test_bytes_pass_both_ways_whole_and_in_order_also_in_small_pieces(piece_bytes_max):
    data = random.Random(1).randbytes(3_000_000 if piece_bytes_max == PIECE_BYTES_MAX else 500)
    link = Link()
    async with joined(link) as (client, target, *_), trio.open_nursery() as nursery:
        link.shred(piece_bytes_max)
        nursery.start_soon(client.send_all, data)
        nursery.start_soon(target.send_all, data[::-1])
        assert await read(target, len(data)) == data
        assert await read(client, len(data)) == data[::-1]
    assert [link.passed_bytes(way) for way in BOTH] == [1 + len(data), len(data)]


@pytest.mark.parametrize("reset", [False, True])
async def test_a_cut_is_an_end_or_an_error_at_both_sides(reset):
    link = Link()
    async with joined(link) as (client, target, *_):
        link.cut(reset=reset)
        for stream in (client, target):
            with trio.fail_after(PATIENCE_S):
                if reset:
                    with pytest.raises(trio.BrokenResourceError):
                        await stream.receive_some()
                else:
                    assert await stream.receive_some() == b""
        await until(lambda: link.connections == 0)


async def test_the_end_of_one_side_reaches_the_other():
    link = Link()
    async with joined(link) as (client, target, *_):
        await client.send_all(b"last words")
        await client.aclose()
        assert await read_to_end(target) == b"last words"


@pytest.mark.parametrize("number_bytes", [7, 100_000])
async def test_a_cut_after_n_bytes_lets_exactly_n_through(number_bytes):
    data = random.Random(2).randbytes(300_000)
    resets = []
    link = Link()
    async with joined(link) as (client, target, *_), trio.open_nursery() as nursery:
        link.cut_after(Direction.TO_CLIENT, number_bytes)

        async def send():
            for _ in range(100):
                try:
                    await target.send_all(data)
                except trio.BrokenResourceError:
                    resets.append(True)
                    return

        nursery.start_soon(send)
        received = await read_to_end(client)
        assert received == data[:number_bytes]
    assert resets == [True]


async def test_a_cut_after_n_bytes_counts_on_over_connections():
    link = Link()
    async with joined(link) as (client, target, dial, accepted):
        link.cut_after(Direction.TO_TARGET, 10)
        await client.send_all(b"12345")
        assert await read(target, 5) == b"12345"
        await client.aclose()
        second = await dial()
        await second.send_all(b"67890abc")
        with trio.fail_after(PATIENCE_S):
            assert await read_to_end(await accepted.receive()) == b"67890"


async def test_a_frozen_direction_keeps_its_bytes_and_their_end_and_the_other_goes_on():
    link = Link()
    async with joined(link) as (client, target, *_):
        link.freeze(Direction.TO_TARGET)
        await client.send_all(b"kept")
        await target.send_all(b"passes")
        assert await read(client, 6) == b"passes"
        await client.aclose()
        assert await is_silent(target)
        link.thaw()
        assert await read_to_end(target) == b"kept"


async def test_a_vanished_peer_is_silence_without_an_end():
    link = Link()
    async with joined(link) as (client, target, dial, accepted):
        link.vanish()
        await client.send_all(b"lost")
        await target.send_all(b"lost")
        assert await is_silent(client)
        assert await is_silent(target)
        await client.aclose()
        assert await is_silent(target)
        second = await dial()
        await second.send_all(b"hello")
        assert await is_silent(second)
        link.appear()
        with trio.fail_after(PATIENCE_S):
            fresh = await accepted.receive()
        assert await read(fresh, 5) == b"hello"
        assert await is_silent(target)


async def test_a_slow_link_takes_its_time_and_loses_nothing():
    link = Link()
    async with joined(link) as (client, target, *_):
        link.slow(latency_s=0.1, bytes_per_s=100_000)
        began_s = trio.current_time()
        data = random.Random(3).randbytes(30_000)
        await client.send_all(data)
        assert await read(target, len(data)) == data
        # 0.1 s latency and 0.3 s for the bytes.
        assert trio.current_time() - began_s >= 0.39


async def test_no_target_refuses_and_a_healed_link_joins_again():
    link = Link()
    async with joined(link) as (_, _, dial, accepted):
        where, link.target = link.target, None
        refused = await dial()
        with trio.fail_after(PATIENCE_S), pytest.raises(trio.BrokenResourceError):
            await refused.receive_some()
        link.target = where
        link.freeze(*BOTH)
        link.vanish()
        link.slow(latency_s=9, bytes_per_s=1)
        link.cut_after(Direction.TO_TARGET, 1)
        link.heal()
        again = await dial()
        await again.send_all(b"fine")
        with trio.fail_after(PATIENCE_S):
            assert await read(await accepted.receive(), 4) == b"fine"


WORDS = {b"127.0.0.1:12345": b"127.0.0.1:54321", b"127.0.0.1:23456": b"127.0.0.1:65432"}
TEXT = b'{"a":"127.0.0.1:12345","b":"127.0.0.1:23456;127.0.0.1:12345","c":"127.0.0.1:11111"}'


def test_words_are_replaced_however_the_stream_is_cut_and_only_the_begin_of_one_is_kept_back():
    for piece_bytes in range(1, len(TEXT) + 1):
        substitution = Substitution(WORDS)
        pieces = [TEXT[at : at + piece_bytes] for at in range(0, len(TEXT), piece_bytes)]
        sent = b"".join(map(substitution.feed, pieces)) + substitution.feed(b"")
        assert sent == TEXT.replace(b"12345", b"54321").replace(b"23456", b"65432"), piece_bytes
    substitution = Substitution(WORDS)
    assert substitution.feed(b"x127.0.0.1:123") == b"x"
    assert substitution.feed(b"99") == b"127.0.0.1:12399"
    assert substitution.feed(b"y127") == b"y"
    assert substitution.feed(b"") == b"127"


async def test_a_link_replaces_other_words_in_each_direction():
    link = Link()
    link.words = {b"12345": b"54321"}
    link.words_to_target = {b"23456": b"65432"}
    async with joined(link) as (client, target, *_):
        await client.send_all(b"12345 23456.")
        assert await read(target, 12) == b"12345 65432."
        await target.send_all(b"12345 23456.")
        assert await read(client, 12) == b"54321 23456."
