"""An accept loop that keeps descriptors free, and that a connection cannot end."""

import errno
import os
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
from structlog.testing import capture_logs

from tests.waiting import WITHIN_S
from trioha.net.descriptors import DescriptorGate, OpenGate, lowest_free_descriptor
from trioha.net.error_boundary import ErrorBoundary
from trioha.net.listen import REPORT_INTERVAL_S, serve_listeners


class SwitchedGate:
    """A gate that the test opens and closes."""

    def __init__(self, *, is_open):
        self.open = is_open
        self.asked = 0

    def is_open(self, descriptor):
        assert descriptor >= 0
        self.asked += 1
        return self.open

    def describe(self):
        return "the test says so"


@pytest.fixture
async def listener():
    (one,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=64)
    yield one
    with trio.CancelScope(shield=True):
        await one.aclose()


async def dial(listener):
    return await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])


async def echo(stream):
    async for data in stream:
        await stream.send_all(data)


async def is_served(stream):
    await stream.send_all(b"x")
    with trio.fail_after(WITHIN_S):
        return await stream.receive_some(1) == b"x"


async def test_connections_wait_in_the_backlog_while_the_gate_is_closed_and_are_served_after(
    listener, autojump_clock
):
    gate = SwitchedGate(is_open=False)
    async with trio.open_nursery() as nursery:
        with capture_logs() as lines:
            await nursery.start(partial(serve_listeners, echo, [listener], gate=gate))
            async with await dial(listener) as stream:
                await stream.send_all(b"x")
                await trio.sleep(REPORT_INTERVAL_S * 2.5)
                gate.open = True
                assert await stream.receive_some(1) == b"x"
        nursery.cancel_scope.cancel()
    assert [line["event"] for line in lines] == ["new connections wait"] * 3
    assert lines[0]["reason"] == "the test says so"
    assert lines[1]["repeated"] > 100


async def test_a_closed_gate_is_not_logged_without_connections(listener, autojump_clock):
    gate = SwitchedGate(is_open=False)
    async with trio.open_nursery() as nursery:
        with capture_logs() as lines:
            await nursery.start(partial(serve_listeners, echo, [listener], gate=gate))
            await trio.sleep(3600)
        nursery.cancel_scope.cancel()
    assert (lines, gate.asked) == ([], 0)


async def test_a_handlers_exception_ends_its_connection_and_no_other(listener):
    boundary = ErrorBoundary("connection")

    async def fail(stream):
        if await stream.receive_some(1) == b"!":
            raise ValueError("planted")
        await stream.send_all(b"x")
        await echo(stream)

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_listeners, fail, [listener], gate=OpenGate(), boundary=boundary))
        async with await dial(listener) as good, await dial(listener) as bad:
            await good.send_all(b".")
            assert await good.receive_some(1) == b"x"
            await bad.send_all(b"!")
            assert await bad.receive_some(1) == b""
            assert await is_served(good)
        nursery.cancel_scope.cancel()
    assert boundary.bugs == 1


@pytest.mark.parametrize(
    ("number", "is_logged"),
    [
        (errno.ECONNABORTED, False),
        (errno.EPERM, False),
        (errno.EMFILE, True),
        (errno.ENFILE, True),
        (errno.EIO, True),
    ],
)
async def test_no_error_of_accept_ends_the_loop(listener, autojump_clock, monkeypatch, number, is_logged):
    accept = listener.accept
    failures = iter(range(20))

    async def fail():
        await trio.lowlevel.checkpoint()
        for _ in failures:
            raise OSError(number, os.strerror(number))
        return await accept()

    monkeypatch.setattr(listener, "accept", fail)
    async with trio.open_nursery() as nursery:
        with capture_logs() as lines:
            await nursery.start(partial(serve_listeners, echo, [listener], gate=OpenGate()))
            async with await dial(listener) as stream:
                assert await is_served(stream)
        nursery.cancel_scope.cancel()
    assert [line["reason"] for line in lines] == [os.strerror(number)] * is_logged


async def test_connections_of_a_nursery_outlive_the_loop(listener):
    port = listener.socket.getsockname()[1]
    async with trio.open_nursery() as connections:
        accepting = trio.CancelScope()

        async def accept(*, task_status):
            with accepting:
                await serve_listeners(
                    echo, [listener], gate=OpenGate(), handler_nursery=connections, task_status=task_status
                )

        await connections.start(accept)
        async with await dial(listener) as stream:
            assert await is_served(stream)
            accepting.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert await is_served(stream)
            with pytest.raises(OSError, match="connect"):
                await trio.open_tcp_stream("127.0.0.1", port)
        connections.cancel_scope.cancel()


async def test_connections_never_hold_the_descriptors_that_are_reserved():
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=64)
    lowest = lowest_free_descriptor(listener.socket.fileno())
    assert lowest is not None
    # The other ends are in this process, too, and open first: 8 connections use 16 numbers.
    gate = DescriptorGate(keep=20, limit=lowest + 36)
    held: list[int] = []

    async def hold(stream):
        held.append(stream.socket.fileno())
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_listeners, hold, [listener], gate=gate))
        async with AsyncExitStack() as strangers:
            with capture_logs() as lines:
                for _ in range(12):
                    await strangers.enter_async_context(await dial(listener))
                    await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert held
    assert max(held) < lowest + 16
    assert len(held) < 12
    assert [line["event"] for line in lines] == ["new connections wait"]
