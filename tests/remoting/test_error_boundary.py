"""Exceptions planted in every part of server and client end one connection only."""

import errno
from collections.abc import Coroutine
from contextlib import contextmanager, suppress
from inspect import iscoroutinefunction
from itertools import product

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.remoting.serving import WITHIN_S, dialled, echo, read_command, served_stream, serving
from tests.waiting import until
from trioha.net.error_boundary import ErrorBoundary
from trioha.net.housekeeping import Housekeeping
from trioha.net.transport import SocketTransport
from trioha.remoting import codec, request_handling, server_connection
from trioha.remoting.client import ConnectionLostError, RemotingClient, open_client
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.command import SerializeType, request, response_to
from trioha.remoting.in_flight import InFlight
from trioha.remoting.memory import ClientMemory, MemoryAccount
from trioha.remoting.request_handling import RequestHandling
from trioha.remoting.request_reader import RequestReader
from trioha.remoting.server import RemotingServer
from trioha.remoting.server_connection import ServerConnection

PLACES: list[tuple[object, str]] = [
    (FrameDecoder, "feed"),
    (FrameDecoder, "next_command"),
    (FrameDecoder, "_check_length"),
    (codec, "_decode_json_header"),
    (codec, "_decode_binary_header"),
    (request_handling, "encode_head"),
    (server_connection, "send_parts_now"),
    (ServerConnection, "__init__"),
    (ServerConnection, "_await_answer"),
    (ServerConnection, "_send"),
    (RequestHandling, "handle_next"),
    (RequestHandling, "done"),
    (RequestReader, "receive"),
    (RequestReader, "note_unfinished"),
    (InFlight, "answer"),
    (InFlight, "take_outbox"),
    (ClientMemory, "open_account"),
    (MemoryAccount, "readable_bytes"),
    (MemoryAccount, "try_to_hold"),
    (Housekeeping, "__init__"),
    (SocketTransport, "receive_now"),
    (SocketTransport, "send_parts_now"),
    (SocketTransport, "from_stream"),
]
BUGS = {
    "bug": lambda: RuntimeError("planted"),
    "bugs": lambda: ExceptionGroup("planted", [ValueError("1"), ExceptionGroup("inner", [KeyError("2")])]),
}
ERRORS = {
    **BUGS,
    "memory": MemoryError,
    "descriptors": lambda: OSError(errno.EMFILE, "Too many open files"),
}


class Plant:
    """Raises once, at the first call after it was armed."""

    def __init__(self, error, patched, place, name):
        self.is_armed = False
        self.has_raised = False
        original = getattr(place, name)

        def bear_fruit():
            if self.is_armed:
                self.is_armed = False
                self.has_raised = True
                raise error()

        def planted(*args, **kwargs):
            bear_fruit()
            return original(*args, **kwargs)

        async def planted_async(*args, **kwargs):
            try:
                bear_fruit()
            except BaseException:
                for argument in args:
                    if isinstance(argument, Coroutine):
                        argument.close()
                raise
            return await original(*args, **kwargs)

        patched.setattr(place, name, planted_async if iscoroutinefunction(original) else planted)


async def answer(asked):
    await trio.lowlevel.checkpoint()
    return echo(asked, None)


def echo_or_later(asked, peer):
    return answer(asked) if asked.code == 2 else echo(asked, peer)


@contextmanager
def named(name):
    """Say at which place a test failed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"planted in {name}")
        raise


@pytest.mark.parametrize("error", ERRORS)
async def test_an_exception_anywhere_in_a_connection_ends_no_other(error, monkeypatch):
    for place, name in PLACES:
        with named(name), monkeypatch.context() as patched, capture_logs() as logs:
            await plant_in_server(Plant(ERRORS[error], patched, place, name), is_bug=error in BUGS)
        errors = [entry for entry in logs if entry["log_level"] == "error"]
        assert len(errors) == (error in BUGS), name
        assert all("exc_info" in entry for entry in errors)


async def plant_in_server(plant, *, is_bug):
    async with serving(echo_or_later) as (server, address), open_client(address) as honest:
        assert (await honest.request(request(1, body=b"before"))).body == b"before"
        plant.is_armed = True
        async with await dialled(address) as hostile:
            for serialize_type, code in product(SerializeType, (1, 2)):
                if plant.has_raised:
                    break
                with suppress(trio.BrokenResourceError):
                    await hostile.send_all(encode(request(code, serialize_type=serialize_type), opaque=code))
                    await trio.testing.wait_all_tasks_blocked(0.002)
            await until(lambda: plant.has_raised)
            await until(lambda: reported(server) == 1)
            statistics = server.statistics
            assert (statistics.bugs, statistics.shortages) == (is_bug, not is_bug)
            # Those who were there, and those who come.
            assert (await honest.request(request(2, body=b"after"))).body == b"after"
            async with open_client(address) as newcomer:
                assert (await newcomer.request(request(1, body=b"new"))).body == b"new"
        await until(lambda: server.statistics.connections_open == 1)
        assert server.statistics.held_bytes == 0


def reported(server):
    statistics = server.statistics
    return statistics.bugs + statistics.shortages


async def test_a_peer_that_was_reset_before_it_is_served_is_counted_as_broken(monkeypatch):
    """As on macOS: the accepted socket has lost its peer."""

    def gone(_):
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async with serving() as (server, address):
        monkeypatch.setattr("trioha.remoting.server._host_and_port", gone)
        async with await dialled(address) as stream:
            assert await stream.receive_some() == b""
        monkeypatch.undo()
        async with open_client(address) as client:
            assert (await client.request(request(1))).code == 0
        assert server.statistics.broken_connections == 1
        assert (server.statistics.bugs, server.statistics.shortages) == (0, 0)


async def test_a_bug_of_one_kind_is_logged_once_a_minute_and_counted_each_time():
    def handler(asked, peer):
        raise KeyError("b")

    server = RemotingServer(handler)
    with capture_logs() as logs:
        async with served_stream(server) as stream:
            decoder = FrameDecoder()
            for opaque in range(100):
                await stream.send_all(encode(request(10), opaque=opaque))
                received = await read_command(stream, decoder)
                assert (received.opaque, received.code) == (opaque, 1)
    assert len(logs) == 1
    assert server.statistics.handler_errors == server.statistics.bugs == 100


async def test_peers_that_break_the_protocol_repeatedly_do_not_fill_the_log(autojump_clock):
    server = RemotingServer(echo)
    with capture_logs() as logs:
        for minute in range(2):
            for _ in range(100):
                async with served_stream(server) as stream:
                    await stream.send_all(b"GET / HTTP/1.1\r\n\r\n")
                    assert await stream.receive_some(100) == b""
            await trio.sleep(60)
            assert server.statistics.protocol_errors == 100 * (minute + 1)
    assert len(logs) == 61
    assert [entry["count"] for entry in logs if "count" in entry] == [70]


# The client.

CLIENT_PLACES: list[tuple[object, str]] = [
    (FrameDecoder, "feed"),
    (FrameDecoder, "next_command"),
    (codec, "_decode_json_header"),
    (RemotingClient, "_receive"),
]


@pytest.mark.parametrize("error", ERRORS)
async def test_an_exception_in_the_client_is_one_clear_error_for_its_callers(error, monkeypatch):
    for place, name in CLIENT_PLACES:
        with named(name), monkeypatch.context() as patched, capture_logs() as logs:
            await plant_in_client(Plant(ERRORS[error], patched, place, name), patched)
        assert len(logs) == 1, name


async def plant_in_client(plant, patched):
    patched.setattr("trioha.remoting.client.BOUNDARY", ErrorBoundary("client"))
    reasons = []

    async def ask(client):
        with pytest.raises(ConnectionLostError) as caught:
            await client.request(request(1))
        reasons.append(caught.value.reason)

    with trio.fail_after(WITHIN_S):
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            client = RemotingClient(ours, "192.0.2.1:10911")
            nursery.start_soon(client._run)
            for _ in range(3):
                nursery.start_soon(ask, client)
            await trio.testing.wait_all_tasks_blocked()
            plant.is_armed = True
            await theirs.send_all(encode(response_to(request(1), 0)))
        assert not client.is_connected
        with pytest.raises(ConnectionLostError):
            await client.request(request(1))
    assert len(reasons) == 3
    assert len(set(reasons)) == 1


async def test_a_callback_that_fails_ends_its_clients_connection_and_not_the_block_around_it():
    def fail(command):
        raise ZeroDivisionError("planted")

    with capture_logs() as logs:
        async with serving() as (server, address), open_client(address, on_request=fail) as client:
            assert (await client.request(request(1))).code == 0
            assert server.connections.push(1, encode(request(907, oneway=True)))
            assert "ZeroDivisionError" in await client.wait_lost()
            with pytest.raises(ConnectionLostError, match="ZeroDivisionError"):
                await client.request(request(1))
    assert [entry["log_level"] for entry in logs] == ["error"]


@pytest.mark.parametrize("host", ["a" * 70, "a..b", "\ud800", "é" * 64, "x" * 300])
async def test_an_invalid_host_name_is_a_connection_error(host):
    with trio.fail_after(WITHIN_S), pytest.raises(ConnectionLostError, match="cannot connect"):
        async with open_client(f"{host}:10911"):
            raise AssertionError("not reached")
