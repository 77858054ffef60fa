"""Server and client with each other, and the server with peers that misbehave."""

import socket
from contextlib import asynccontextmanager
from functools import partial
from struct import pack

import pytest
import trio
import trio.testing
from attrs import evolve
from structlog.testing import capture_logs

from tests.ports import free_port
from tests.remoting.serving import WITHIN_S, dialled, echo, opaques, read_command, served_stream, serving
from tests.waiting import until
from trioha.errors import ConfigError, LocalProtocolError
from trioha.remoting.client import ConnectionLostError, RemotingClient, RequestTimeoutError, open_client
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import BadRequestError, SerializeType, request, response_to
from trioha.remoting.connections import Connections
from trioha.remoting.in_flight import REQUEST_BYTES
from trioha.remoting.server import Peer, RemotingServer, ServerLimits
from trioha.remoting.wrong_port import UNANSWERED


@pytest.mark.parametrize("serialize_type", SerializeType)
async def test_a_request_is_answered_in_its_own_serialization(serialize_type):
    async with serving() as (_, address), open_client(address) as client:
        asked = request(310, ext_fields={"b": "T"}, body=b"body", serialize_type=serialize_type)
        answer = await client.request(asked)
    assert answer.is_response
    assert (answer.code, answer.ext_fields, answer.body) == (0, {"b": "T"}, b"body")
    assert answer.serialize_type is serialize_type


async def test_many_requests_in_flight_each_get_their_own_answer():
    async def slow_if_even(asked, peer):
        if asked.body[-1] % 2 == 0:
            await trio.sleep(0.02)
        return echo(asked, peer)

    got: dict[int, bytes] = {}

    async def ask(client, number):
        answer = await client.request(request(310, body=b"x" * number + bytes([number])))
        got[number] = bytes(answer.body)

    async with serving(slow_if_even) as (server, address), open_client(address) as client:
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(ask, client, number)
        assert client.statistics.responses == 200
        assert client.statistics.late_responses == 0
        assert server.statistics.requests == server.statistics.responses == 200
    assert got == {number: b"x" * number + bytes([number]) for number in range(200)}


async def test_a_waiting_request_does_not_delay_the_next(autojump_clock):
    def handler(asked, peer):
        return wait(asked, peer) if asked.code == 1 else echo(asked, peer)

    async def wait(asked, peer):
        await trio.sleep(3)
        return echo(asked, peer)

    async with served_stream(RemotingServer(handler)) as stream:
        await stream.send_all(b"".join(encode(request(code), opaque=code) for code in (1, 2)))
        decoder = FrameDecoder()
        moments = [((await read_command(stream, decoder)).opaque, trio.current_time()) for _ in range(2)]
    assert moments == [(2, 0.0), (1, 3.0)]


async def test_a_frame_in_chunks_is_one_request():
    async with served_stream(RemotingServer(echo)) as stream:
        for byte in encode(request(310, body=b"body"), opaque=5):
            await stream.send_all(bytes([byte]))
        answer = await read_command(stream)
    assert (answer.opaque, answer.body) == (5, b"body")


async def test_a_oneway_request_is_never_answered():
    seen: list[int] = []

    def handler(asked, peer):
        seen.append(asked.code)
        if asked.code == 2:
            raise ValueError("a oneway request may fail, too")
        return later(asked) if asked.code == 3 else echo(asked, peer)

    async def later(asked):
        return response_to(asked, 0)

    server = RemotingServer(handler)
    with capture_logs():
        async with served_stream(server) as stream:
            for code in (1, 2, 3):
                await stream.send_all(encode(request(code, oneway=True), opaque=code))
            await stream.send_all(encode(request(4), opaque=4))
            answer = await read_command(stream)
            assert answer.opaque == 4
            await trio.testing.wait_all_tasks_blocked()
    assert seen == [1, 2, 3, 4]
    assert server.statistics.oneway_requests == 3
    assert server.statistics.responses == 1


def raising(error):
    def handler(asked, peer):
        raise error

    return handler


def raising_later(error):
    async def handler(asked, peer):
        await trio.lowlevel.checkpoint()
        raise error

    return handler


@pytest.mark.parametrize(
    ("handler", "code", "remark"),
    [
        (raising(KeyError("b")), 1, "KeyError: 'b'"),
        (raising_later(KeyError("b")), 1, "KeyError: 'b'"),
        (lambda asked, peer: response_to(asked, 0, ext_fields={"queueId": 3}), 1, "LocalProtocolError: "),
        (raising(BadRequestError("the topic is missing", code=13)), 13, "the topic is missing"),
    ],
    ids=["at once", "later", "an answer that no frame can hold", "a refusal"],
)
async def test_a_handler_that_fails_is_answered_with_system_error_and_one_that_refuses_with_its_code(
    handler, code, remark
):
    server = RemotingServer(handler)
    with capture_logs() as logs:
        async with served_stream(server) as stream:
            await stream.send_all(encode(request(10), opaque=6))
            answer = await read_command(stream)
    is_failure = code == 1
    assert (answer.opaque, answer.code) == (6, code)
    assert answer.remark.startswith(remark)
    assert server.statistics.handler_errors == is_failure
    assert [(entry["event"], entry["code"], entry["peer"]) for entry in logs] == [
        ("request failed", 10, "192.0.2.1:4711")
    ] * is_failure


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        bytes.fromhex("1603010200010001fc0303"),
        pack(">I", 0xFFFFFFFF),
        pack(">II", 6, 2) + b"[]",
    ],
)
async def test_a_peer_that_breaks_the_protocol_is_closed_and_counted(garbage):
    with capture_logs() as logs:
        async with serving() as (server, address):
            async with await dialled(address) as stream:
                await stream.send_all(garbage)
                assert await stream.receive_some() == b""
            await until(lambda: server.statistics.connections_open == 0)
            assert server.statistics.protocol_errors == 1
            async with open_client(address) as client:
                assert (await client.request(request(28))).code == 0
    assert [entry["log_level"] for entry in logs] == ["warning"]


@pytest.mark.parametrize("sent", [0, 20])
async def test_an_idle_connection_ends_at_the_idle_timeout_and_an_unfinished_frame_before(
    sent, autojump_clock
):
    server = RemotingServer(echo)
    async with served_stream(server) as stream:
        if sent:
            await stream.send_all(encode(request(28), opaque=1)[:sent])
        assert await stream.receive_some(100) == b""
        assert trio.current_time() == (30.0 if sent else 120.0)
    assert server.statistics.idle_closes == (not sent)
    assert server.statistics.frame_timeouts == (sent > 0)
    assert server.statistics.connections_open == 0


async def test_reading_and_writing_postpone_the_idle_timeout(autojump_clock):
    async def handler(asked, peer):
        await trio.sleep(100)
        return echo(asked, peer)

    server = RemotingServer(handler)
    async with served_stream(server) as stream:
        await trio.sleep(110)
        await stream.send_all(encode(request(28), opaque=1))
        decoder = FrameDecoder()
        assert await read_command(stream, decoder) is not None
        assert trio.current_time() == 210.0
        assert await read_command(stream, decoder) is None
        assert trio.current_time() == 330.0


async def test_a_peer_that_reads_no_answers_is_not_read_from_and_is_closed():
    limits = ServerLimits(in_flight_max=8, send_timeout_s=0.3)
    frame = encode(request(310, body=b"x" * 1_000_000))
    with capture_logs() as logs:
        async with (
            serving(connections=Connections(limits)) as (server, address),
            await dialled(address) as stream,
        ):
            with pytest.raises(trio.BrokenResourceError):
                await stream.send_all(frame * 200)
            await until(lambda: server.statistics.connections_open == 0)
    assert server.statistics.send_timeouts == 1
    assert "took nothing" in logs[0]["reason"]
    # What was taken is bounded by what the sockets hold and the requests in flight.
    assert server.statistics.requests < 100


@pytest.mark.parametrize(
    "limits", [ServerLimits(in_flight_max=3), ServerLimits(in_flight_bytes_max=4 * REQUEST_BYTES)]
)
async def test_a_connection_is_not_read_beyond_its_requests_in_flight(limits):
    go = trio.Event()
    started: list[int] = []

    async def handler(asked, peer):
        started.append(asked.opaque)
        await go.wait()
        return echo(asked, peer)

    async with served_stream(RemotingServer(handler, connections=Connections(limits))) as stream:
        for number in range(10):
            await stream.send_all(encode(request(10, body=b"0123456789"), opaque=number))
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(started) == [0, 1, 2]
        go.set()
        assert sorted(await opaques(stream, FrameDecoder(), 10)) == list(range(10))


async def test_a_request_larger_than_the_bytes_in_flight_is_still_served():
    async with served_stream(
        RemotingServer(echo, connections=Connections(ServerLimits(in_flight_bytes_max=10)))
    ) as stream:
        await stream.send_all(encode(request(10, body=b"x" * 100), opaque=1))
        assert await read_command(stream) is not None


async def refused(address):
    async with open_client(address) as client:
        with pytest.raises(ConnectionLostError):
            await client.request(request(28))


@pytest.mark.parametrize("limit", [{"connections_max": 2}, {"connections_per_peer_max": 2}])
async def test_one_connection_too_many_of_all_or_of_one_address_is_closed_and_counted(limit):
    async with serving(connections=Connections(ServerLimits(**limit))) as (server, address):
        async with open_client(address) as first, open_client(address) as second:
            await first.request(request(28))
            await second.request(request(28))
            await refused(address)
            assert server.statistics.connections_refused == 1
            assert server.statistics.connections_open == 2
            if "connections_per_peer_max" in limit:
                # Another address has places of its own.
                port = int(address.rpartition(":")[2])
                async with await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.2") as other:
                    await other.send_all(encode(request(28), opaque=1))
                    assert await read_command(other) is not None
        await until(lambda: server.statistics.connections_open == 0)
        async with open_client(address) as fourth:
            await fourth.request(request(28))


async def test_a_handler_in_flight_is_cancelled_when_its_connection_ends():
    cancelled = trio.Event()

    async def handler(asked, peer):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()
        raise AssertionError("sleeps forever")

    async with serving(handler) as (server, address):
        async with open_client(address) as client:
            with pytest.raises(RequestTimeoutError):
                await client.request(request(310), timeout_s=0.05)
        await cancelled.wait()
        await until(lambda: server.statistics.connections_open == 0)


async def test_unexpected_responses_are_counted_and_ignored():
    server = RemotingServer(echo)
    async with served_stream(server) as stream:
        await stream.send_all(encode(response_to(request(40), 0)))
        await stream.send_all(encode(request(28), opaque=3))
        answer = await read_command(stream)
    assert answer.opaque == 3
    assert server.statistics.unexpected_responses == 1


async def test_an_address_in_use_is_reported_in_one_line():
    async with serving() as (_, address):
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await RemotingServer(echo).serve(host="127.0.0.1", port=port)


async def test_a_peer_is_named_by_its_address_and_connection():
    peers: list[Peer] = []

    def handler(asked, peer):
        peers.append(peer)
        return echo(asked, peer)

    async with serving(handler) as (_, address):
        for _ in range(2):
            async with open_client(address) as client:
                await client.request(request(28))
                assert peers[-1].address == client.local_address
    assert [peer.connection for peer in peers] == [1, 2]


# The client.


@asynccontextmanager
async def client_and_peer():
    """A client over a stream in memory, and the other end for the test to play the server."""
    ours, theirs = trio.testing.memory_stream_pair()
    client = RemotingClient(ours, "192.0.2.1:10911")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client._run)
        yield client, theirs
        nursery.cancel_scope.cancel()


async def test_a_late_answer_is_ignored_and_counted(autojump_clock):
    async with client_and_peer() as (client, peer):
        with pytest.raises(RequestTimeoutError, match=r"192.0.2.1:10911: no answer to request 28 in 3 s"):
            await client.request(request(28), timeout_s=3.0)
        assert trio.current_time() == 3.0
        asked = await read_command(peer)
        assert asked is not None
        await peer.send_all(encode(response_to(asked, 0)))
        await peer.send_all(encode(response_to(evolve(asked, opaque=999), 0)))
        await peer.send_all(encode(request(40, oneway=True)))
        await trio.testing.wait_all_tasks_blocked()
        statistics = client.statistics
        assert client.is_connected
    assert (statistics.requests, statistics.responses) == (1, 0)
    assert (statistics.late_responses, statistics.server_requests) == (2, 1)


@pytest.mark.parametrize(
    ("end", "says"),
    [(b"", UNANSWERED), (b"HTTP/1.1 400 Bad\r\n", "speaks HTTP"), (bytes(4), "does not speak remoting")],
)
async def test_every_waiting_request_fails_when_the_connection_ends(end, says):
    reasons: list[str] = []

    async def ask(client):
        with pytest.raises(ConnectionLostError) as caught:
            await client.request(request(28))
        reasons.append(caught.value.reason)

    with trio.fail_after(WITHIN_S):
        async with client_and_peer() as (client, peer):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(ask, client)
                await trio.testing.wait_all_tasks_blocked()
                if end:
                    await peer.send_all(end)
                else:
                    await peer.aclose()
            assert not client.is_connected
            assert says in await client.wait_lost()
            with pytest.raises(ConnectionLostError):
                await client.request(request(28))
    assert len(reasons) == 5
    assert all(says in reason for reason in reasons)


async def test_a_cancelled_request_leaves_the_client_usable():
    async with serving() as (_, address), open_client(address) as client:
        with trio.move_on_after(0) as scope:
            await client.request(request(28))
        assert scope.cancelled_caught
        assert (await client.request(request(28))).code == 0


async def test_an_answer_in_the_very_tick_of_the_timeout_is_late():
    async def ask(client, task_status):
        with trio.CancelScope() as scope:
            task_status.started(scope)
            await client.request(request(28))
        assert scope.cancelled_caught

    async with client_and_peer() as (client, peer), trio.open_nursery() as nursery:
        scope = await nursery.start(ask, client)
        asked = await read_command(peer)
        assert asked is not None
        # Cancelled, but its task has not run yet when the answer is taken.
        scope.cancel()
        client._receive(response_to(asked, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert client.statistics.late_responses == 1


async def test_opaques_wrap_without_leaving_32_bits():
    async with client_and_peer() as (client, peer):
        client._opaque = 2**31 - 1
        client.send_oneway(request(34, oneway=True))
        client.send_oneway(request(34, oneway=True))
        decoder = FrameDecoder()
        first, second = await read_command(peer, decoder), await read_command(peer, decoder)
    assert (first.opaque, second.opaque) == (2**31 - 1, 0)


async def test_a_request_with_an_answer_cannot_be_sent_oneway():
    async with client_and_peer() as (client, _):
        with pytest.raises(LocalProtocolError, match="not one-way"):
            client.send_oneway(request(28))


async def test_a_refused_connection_is_reported_in_one_line():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    with trio.fail_after(WITHIN_S), pytest.raises(ConnectionLostError) as caught:
        async with open_client(f"127.0.0.1:{port}"):
            raise AssertionError("not reached")
    assert str(caught.value) == f"127.0.0.1:{port}: cannot connect: Connection refused"


async def test_errors_of_the_clients_block_are_not_wrapped():
    async with serving() as (_, address):
        with pytest.raises(ValueError, match=r"^mine$"):
            async with open_client(address):
                raise ValueError("mine")


PUSHED = encode(request(907, body=b"pushed", oneway=True))


async def test_a_pushed_frame_goes_to_the_connection_of_that_number():
    server = RemotingServer(echo)
    async with served_stream(server) as first:
        await trio.testing.wait_all_tasks_blocked()
        async with served_stream(server) as second:
            await trio.testing.wait_all_tasks_blocked()
            assert server.connections.push(2, PUSHED)
            await second.send_all(encode(request(310), opaque=7))
            decoder = FrameDecoder()
            pushed, answer = [await read_command(second, decoder) for _ in range(2)]
            assert (pushed.code, bytes(pushed.body), answer.opaque) == (907, b"pushed", 7)
            assert not server.connections.push(3, PUSHED)
            await first.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert not server.connections.push(1, PUSHED)


async def test_pushes_to_a_peer_that_does_not_read_are_dropped():
    """When it reads again, the frames after that are complete and in order."""
    frame = encode(request(907, body=bytes(100_000), oneway=True))
    pushes = 2000
    async with serving() as (server, address):
        async with await dialled(address) as stream:
            await stream.send_all(encode(request(310), opaque=1))
            decoder = FrameDecoder()
            assert await read_command(stream, decoder) is not None
            for _ in range(pushes):
                assert server.connections.push(1, frame)
                await trio.lowlevel.checkpoint()
            await stream.send_all(encode(request(310, body=b"last"), opaque=2))
            taken = 0
            while (command := await read_command(stream, decoder)) is not None and command.code == 907:
                assert len(command.body) == 100_000
                taken += 1
            assert (command.opaque, command.body) == (2, b"last")
        assert 0 < taken < pushes // 4


# -- the VIP port -------------------------------------------------------------------------------------------


async def test_the_vip_port_has_the_same_handler_and_shares_the_limits():
    port = free_port()
    vip_port = port - 2
    server = RemotingServer(echo, connections=Connections(ServerLimits(connections_max=2)))
    with trio.fail_after(WITHIN_S):
        async with trio.open_nursery() as nursery:
            listening = await nursery.start(
                partial(server.serve, host="127.0.0.1", port=port, vip_port=vip_port)
            )
            assert listening == [("127.0.0.1", port), ("127.0.0.1", vip_port)]
            addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{vip_port}"]
            async with open_client(addresses[0]) as first, open_client(addresses[1]) as second:
                assert (await first.request(request(310, body=b"1"))).body == b"1"
                assert (await second.request(request(310, body=b"2"))).body == b"2"
                for one in addresses:
                    await refused(one)
            assert server.statistics.connections_refused == 2
            await server.drain()
            for closed in addresses:
                with pytest.raises(ConnectionLostError, match="cannot connect"):
                    async with open_client(closed):
                        pass


async def test_a_vip_port_in_use_is_one_error_and_the_first_port_is_free_again():
    port = free_port()
    vip_port = port - 2
    with socket.socket() as other:
        other.bind(("127.0.0.1", vip_port))
        other.listen()
        server = RemotingServer(echo)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{vip_port}, the VIP port: "):
            await server.serve(host="127.0.0.1", port=port, vip_port=vip_port)
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))
