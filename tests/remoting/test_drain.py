"""Stopping: no new connections, no new requests, and an answer to every request in flight."""

from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
import trio.testing

from tests.remoting.serving import WITHIN_S, served_pipe
from tests.waiting import until
from trioha.remoting.client import ConnectionLostError, open_client
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import request, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.server import RemotingServer, ServerLimits
from trioha.remoting.server_connection import LINGER_S


def sleeper(asked, peer):
    """Answers after as many seconds as the request's code says, 0 at once."""
    return wait(asked) if asked.code else response_to(asked, 0, body=asked.body)


async def wait(asked):
    await trio.sleep(asked.code)
    return response_to(asked, 0, body=asked.body)


async def answers_until_end(stream):
    """Opaque and time of each answer until the server ends the connection; then closes our end."""
    decoder = FrameDecoder()
    answers = []
    while data := await stream.receive_some():
        decoder.feed(data)
        while (command := decoder.next_command()) is not None:
            answers.append((command.opaque, trio.current_time()))
    await stream.aclose()
    return answers


async def test_requests_in_flight_are_answered_before_the_connection_ends(autojump_clock):
    server = RemotingServer(sleeper)
    async with served_pipe(server) as stream, trio.open_nursery() as nursery:
        await stream.send_all(b"".join(encode(request(code), opaque=code) for code in (2, 0, 1)))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(server.drain)
        assert await answers_until_end(stream) == [(0, 0.0), (1, 1.0), (2, 2.0)]
    assert trio.current_time() == 2.0
    assert server.statistics.cut_connections == 0


async def test_requests_without_an_answer_at_the_timeout_are_cut_and_counted(autojump_clock):
    server = RemotingServer(sleeper)
    async with served_pipe(server) as stream, trio.open_nursery() as nursery:
        await stream.send_all(encode(request(1), opaque=1) + encode(request(20), opaque=2))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(server.drain)
        assert await answers_until_end(stream) == [(1, 1.0)]
        assert trio.current_time() == 3.0
    assert server.statistics.cut_connections == 1
    assert server.statistics.connections_open == 0


async def test_a_draining_connection_reads_no_more_requests(autojump_clock):
    """Neither a new request nor the rest of one reaches the handler."""
    server = RemotingServer(sleeper)
    async with served_pipe(server) as stream, trio.open_nursery() as nursery:
        half = encode(request(0), opaque=9)
        await stream.send_all(encode(request(2), opaque=1) + half[:20])
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(server.drain)
        await trio.sleep(1)
        await stream.send_all(half[20:] + encode(request(0), opaque=10))
        assert await answers_until_end(stream) == [(1, 2.0)]
    assert server.statistics.requests == 1


async def test_a_request_that_waits_for_room_is_dropped(autojump_clock):
    server = RemotingServer(sleeper, connections=Connections(ServerLimits(in_flight_max=1)))
    async with served_pipe(server) as stream, trio.open_nursery() as nursery:
        await stream.send_all(encode(request(1), opaque=1) + encode(request(0), opaque=2))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(server.drain)
        assert await answers_until_end(stream) == [(1, 1.0)]


async def test_an_idle_connection_ends_at_once(autojump_clock):
    server = RemotingServer(sleeper)
    async with served_pipe(server) as stream, trio.open_nursery() as nursery:
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(server.drain)
        assert await answers_until_end(stream) == []
        assert trio.current_time() == 0.0


async def test_a_peer_that_does_not_close_is_waited_for_half_a_second(autojump_clock):
    server = RemotingServer(sleeper)
    async with served_pipe(server) as stream:
        await stream.send_all(encode(request(1)))
        await trio.testing.wait_all_tasks_blocked()
        await server.drain()
        assert trio.current_time() == 1.0 + LINGER_S
    assert server.statistics.cut_connections == 0


async def test_answers_to_a_slow_peer_are_sent_completely(autojump_clock):
    server = RemotingServer(sleeper)
    body = bytes(range(256)) * 100
    async with served_pipe(server, 10_000) as stream, trio.open_nursery() as nursery:
        await stream.send_all(encode(request(0, body=body)))
        nursery.start_soon(server.drain)
        await trio.testing.wait_all_tasks_blocked()
        decoder = FrameDecoder()
        while (answer := decoder.next_command()) is None:
            await trio.sleep(0.5)
            decoder.feed(await stream.receive_some())
        assert answer.body == body
        await stream.aclose()
    assert server.statistics.cut_connections == 0


async def test_draining_waits_for_a_oneway_request_in_flight(autojump_clock):
    done = False

    async def work():
        nonlocal done
        await trio.sleep(2)
        done = True

    server = RemotingServer(lambda asked, peer: work())
    async with served_pipe(server) as stream, trio.open_nursery() as nursery:
        await stream.send_all(encode(request(1, oneway=True)))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(server.drain)
        assert await answers_until_end(stream) == []
    assert (done, trio.current_time()) == (True, 2.0)


async def test_draining_without_connections_ends_at_once(autojump_clock):
    await RemotingServer(sleeper).drain()
    assert trio.current_time() == 0.0


async def nobody_listens(address):
    with pytest.raises(ConnectionLostError):
        async with open_client(address):
            raise AssertionError("somebody listens")


@asynccontextmanager
async def serving_until_it_ends(server):
    """Its address. The block ends when serving does."""
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            ((host, port),) = await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
            yield f"{host}:{port}"


async def test_a_draining_server_accepts_no_connection_answers_open_ones_and_ends():
    """Over sockets; for the client the connection ends like any other."""
    release = trio.Event()
    answers = []

    async def hold(asked, peer):
        await release.wait()
        return response_to(asked, 0)

    async def ask(client):
        answers.append((await client.request(request(1))).code)

    server = RemotingServer(hold)
    async with (
        serving_until_it_ends(server) as address,
        open_client(address) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, client)
        await until(lambda: server.statistics.requests)
        nursery.start_soon(server.drain)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await nobody_listens(address)
        assert answers == []
        release.set()
        await client.wait_lost()
    assert answers == [0]


async def test_stop_accepting_keeps_open_connections_and_serving_ends_with_the_last_one():
    server = RemotingServer(sleeper)
    async with serving_until_it_ends(server) as address, open_client(address) as client:
        assert (await client.request(request(0))).code == 0
        server.stop_accepting()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await nobody_listens(address)
        assert (await client.request(request(0))).code == 0


async def test_connections_end_only_after_the_listeners_are_closed(autojump_clock, monkeypatch):
    async def serve_slowly(_handler, listeners, *, task_status, **_options):
        task_status.started(listeners)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                for listener in listeners:
                    await listener.aclose()

    monkeypatch.setattr("trioha.remoting.server.serve_listeners", serve_slowly)
    server = RemotingServer(sleeper)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(server.serve, host="127.0.0.1", port=0))
        async with served_pipe(server) as stream:
            nursery.start_soon(server.drain)
            # A client whose connection has ended dials again, and must not be accepted.
            assert await stream.receive_some() == b""
            assert trio.current_time() == 1.0
            await stream.aclose()
