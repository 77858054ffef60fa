"""A node that hangs sends no heartbeats, so that the controllers elect another master."""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from structlog.testing import capture_logs

from tests.node.role_nodes import SYNC_MASTER, WITHIN_S, RoleNode, put, role_node, slave_of
from tests.node.test_controller_mode import NOWHERE, scripted_controller
from trioha.config.broker import BrokerRole
from trioha.node import role_changes
from trioha.node.hang_watch import HangWatch
from trioha.node.roles import WAITING
from trioha.remoting.client import open_client
from trioha.store import dispatch_to_end, syncing
from trioha.store.dispatch import Dispatcher
from trioha.store.store_syncs import StoreSyncs

STOPS = "no heartbeats to the controllers: this broker hangs"
GOES_ON = "heartbeats to the controllers go on: this broker does not hang any more"


async def test_work_without_an_end_or_a_step_for_its_time_hangs(autojump_clock):
    watch = HangWatch(10.0)
    assert watch.hanging() is None
    with watch.working("a sync") as work:
        await trio.sleep(9.9)
        assert watch.hanging() is None
        work.step()
        await trio.sleep(1)
        assert watch.hanging() is None
        await trio.sleep(9.9)
        assert watch.hanging() is None
        await trio.sleep(0.1)
        assert watch.hanging() == "a sync has begun 21 s ago and makes no progress"
        work.step()
        assert watch.hanging() is None
        await trio.sleep(10)
        assert watch.hanging() is not None
    assert watch.hanging() is None


async def test_each_work_has_its_own_time(autojump_clock):
    watch = HangWatch(10.0)
    slow, quick = watch.begin("slow"), watch.begin("quick")
    for _ in range(5):
        await trio.sleep(4)
        quick.step()
        hanging = watch.hanging()
    assert hanging.startswith("slow")
    watch.end(slow)
    watch.end(slow)
    assert watch.hanging() is None


class Hanging:
    """Work that a test lets hang."""

    def __init__(self) -> None:
        self._may_go_on = threading.Event()
        self._may_go_on.set()

    def hang(self) -> None:
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def hanging(*arguments: Any, **options: Any) -> Any:
            self._may_go_on.wait()
            return call(*arguments, **options)

        return hanging


@asynccontextmanager
async def node_of(folder: Path, controller: str, hanging: Hanging) -> AsyncIterator[RoleNode]:
    """A node that ends also if a test fails while it hangs."""
    async with role_node(
        folder,
        WAITING,
        enableControllerMode="true",
        controllerAddr=controller,
        namesrvAddr=NOWHERE,
        brokerHeartbeatInterval=100,
        mappedFileSizeCommitLog=65536,
        **{"trioha.hangTimeout": 1000},
    ) as node:
        try:
            yield node
        finally:
            hanging.go_on()


async def logged(logs: list[Any], event: str) -> Any:
    with trio.fail_after(20):
        while True:
            for line in logs:
                if line["event"] == event:
                    return line
            await trio.sleep(0.02)


async def test_a_master_whose_disk_hangs_sends_no_heartbeats_until_it_goes_on(tmp_path, monkeypatch):
    hanging, sync_work = Hanging(), StoreSyncs.log_sync

    def hanging_work(*arguments: Any, **options: Any) -> Callable[[], None]:
        return hanging.before(sync_work(*arguments, **options))

    monkeypatch.setattr(StoreSyncs, "log_sync", hanging_work)
    with capture_logs() as logs, scripted_controller() as controller:
        async with node_of(tmp_path, controller.address, hanging) as node:
            await node.until(lambda status: status.role == BrokerRole.SYNC_MASTER.value)
            hanging.hang()
            async with open_client(node.address) as client:
                assert await put(client, b"is not synced") == "PUT_OK"
                line = await logged(logs, STOPS)
                assert line["reason"].startswith("a sync of the log has begun")
                assert line["role"] == "master"
                hanging.go_on()
                await logged(logs, GOES_ON)


SYNC_FILE_RANGE_WAIT_AFTER = 4
"""Of Linux."""


class SlowDisk(Hanging):
    """Writes one piece for each `permit`."""

    def __init__(self) -> None:
        super().__init__()
        self._permits = threading.Semaphore(0)

    def permit(self) -> None:
        self._permits.release()

    def go_on(self) -> None:
        self._permits.release(1000)

    def write(self, _fd: int, _offset: int, _length: int, flags: int) -> int:
        # A paced sync, for which nobody waits, only begins writes.
        if flags & SYNC_FILE_RANGE_WAIT_AFTER:
            self._permits.acquire()
        return 0


async def test_a_sync_of_many_pieces_does_not_hang_as_long_as_they_are_written(tmp_path, monkeypatch):
    disk = SlowDisk()
    monkeypatch.setattr(syncing, "PIECE_BYTES", 1000)
    monkeypatch.setattr(syncing, "_sync_file_range", lambda: disk.write)
    with capture_logs() as logs, scripted_controller() as controller:
        async with node_of(tmp_path, controller.address, disk) as node:
            await node.until(lambda status: status.role == BrokerRole.SYNC_MASTER.value)
            async with open_client(node.address) as client:
                assert await put(client, bytes(5000)) == "PUT_OK"
                assert (await logged(logs, STOPS))["reason"].startswith("a sync of the log has begun")
                # The sync has not ended.
                disk.permit()
                await logged(logs, GOES_ON)
                del logs[:]
                await logged(logs, STOPS)
                disk.go_on()
                await logged(logs, GOES_ON)
                end = (await node.status()).max_offset
                await node.until(lambda status: status.flushed_offset == end)


async def test_a_change_of_the_role_that_hangs_ends_the_heartbeats(tmp_path, monkeypatch):
    hanging = Hanging()
    monkeypatch.setattr(role_changes, "take_epoch", hanging.before(role_changes.take_epoch))
    hanging.hang()
    with capture_logs() as logs, scripted_controller() as controller:
        async with node_of(tmp_path, controller.address, hanging) as node:
            line = await logged(logs, STOPS)
            assert line["reason"].startswith("a change of the role has begun")
            hanging.go_on()
            await logged(logs, GOES_ON)
            await node.until(lambda status: status.role == BrokerRole.SYNC_MASTER.value)


async def test_a_node_that_is_stopped_while_it_dispatches_for_its_next_role_stops(tmp_path, monkeypatch):
    """As long as the log is: the next start dispatches the rest."""
    is_dispatching = threading.Event()

    def dispatch(*_arguments: Any, **_options: Any) -> bool:
        is_dispatching.set()
        return True

    with trio.fail_after(WITHIN_S):
        async with role_node(tmp_path, slave_of()) as node:
            monkeypatch.setattr(dispatch_to_end, "CLOSE_DISPATCH_S", 0.0)
            monkeypatch.setattr(Dispatcher, "dispatch", dispatch)
            node.roles.set(SYNC_MASTER)
            await trio.to_thread.run_sync(is_dispatching.wait)
