"""What a node tells systemd: ready, alive, how it is, stopping."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest
import trio
from structlog.testing import capture_logs

from tests.waiting import wait_until
from trioha.node.service_manager import STATUS_INTERVAL_S, ServiceManager

WITHIN_S = 60.0


@pytest.fixture(params=["path", "abstract"])
def manager_socket(request, tmp_path):
    """The name that NOTIFY_SOCKET has, and the socket."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        if request.param == "path":
            name = str(tmp_path / "notify")
            listening.bind(name)
        else:
            name = f"@trioha-test-{os.getpid()}"
            listening.bind("\0" + name[1:])
        listening.setblocking(False)
        yield name, listening


def received(listening: socket.socket) -> list[str]:
    """The datagrams that are there."""
    found = []
    while True:
        try:
            found.append(listening.recv(4096).decode())
        except BlockingIOError:
            return found


async def test_a_state_is_told_when_it_changes_and_the_watchdog_twice_as_often_as_it_waits(
    manager_socket, autojump_clock
):
    name, listening = manager_socket
    states = iter(["starting", "starting", "ready\x1b"])
    manager = ServiceManager(
        {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    )
    with trio.move_on_after(3.5):
        await manager.run(lambda: next(states))
    assert received(listening) == [
        "WATCHDOG=1\nSTATUS=starting",
        "WATCHDOG=1",
        "WATCHDOG=1\nSTATUS=ready\\x1b",
    ]
    manager.ready()
    manager.stopping()
    assert received(listening) == ["READY=1", "STOPPING=1"]


@pytest.mark.parametrize(
    "variables",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "10", "WATCHDOG_PID": "1"}],
)
async def test_without_a_watchdog_of_this_process_only_changes_are_told(
    manager_socket, autojump_clock, variables
):
    name, listening = manager_socket
    with trio.move_on_after(3.5 * STATUS_INTERVAL_S):
        await ServiceManager({"NOTIFY_SOCKET": name, **variables}).run(lambda: "ready")
    assert received(listening) == ["STATUS=ready"]


async def test_without_a_manager_nothing_is_told(autojump_clock):
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    await manager.run(lambda: pytest.fail("nobody asks"))
    manager.ready()


def test_a_manager_that_is_gone_is_logged_once_and_a_full_socket_does_not_block(tmp_path):
    with capture_logs() as lines:
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "none")})
        manager.ready()
        manager.stopping()
    assert [line["event"] for line in lines] == ["the service manager cannot be reached"]
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "full"))
        manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "full")})
        with capture_logs() as lines:
            # More than any system's net.unix.max_dgram_qlen.
            for _ in range(20_000):
                if lines:
                    break
                manager.ready()
        assert len(lines) == 1


@pytest.mark.process
def test_a_node_tells_its_manager_when_it_serves_how_it_is_and_that_it_stops(tmp_path, start_node):
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(WITHIN_S)
        told: list[str] = []

        def tells(line: str) -> bool:
            told.extend(listening.recv(4096).decode().splitlines())
            return line in told

        variables = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        node = start_node(role="ASYNC_MASTER", environment=os.environ | variables)
        wait_until(lambda: tells("READY=1"))
        assert told[0] == "WATCHDOG=1"
        assert "STATUS=not ready: the store is being recovered" in told[: told.index("READY=1")]
        wait_until(lambda: tells("STATUS=ready"))
        told.clear()
        # It is told again and again.
        wait_until(lambda: tells("WATCHDOG=1"))
        node.stop()
        wait_until(lambda: tells("STOPPING=1"))
