"""A trioha master that measures inside its own process: the trioha side of `java/BenchDriver.java`.

The master is what `trioha node` makes of a configuration, less the remoting server: puts come from tasks of
this process. Each line on stdin is a command, each gets one answer on stdout, as the Java driver has them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import fields

from tests.benchmarks.rivals.pacer import TICK
from trioha.broker.puts import PutResult, PutService
from trioha.config.model import BrokerConfig
from trioha.ha.group_commit import GroupCommit, GroupCommitSettings
from trioha.ha.master import HaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.net.busy_poll import has_cores_to_spare
from trioha.node.logs import configure_logs
from trioha.recording.events import NoSink
from trioha.store.allocate import allocate_ahead
from trioha.store.commit_log import CommitLog
from trioha.store.dispatch_service import DispatchService
from trioha.store.flush import FlushService
from trioha.store.message_store import MessageStore, StoreSettings
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Host
from trioha.watermark import Watermark

FIRST_PUT_WITHIN_S = 20.0
APPENDS_PER_TURN = 500
OUTSTANDING_MAX = 10_000
BUSY_POLL_S = fields(BrokerConfig).ha_busy_poll.default / 1e6
LATE_MAX = 4
"""After this multiple of the planned time no more puts are made."""


class Master:
    """An open store with all that a master runs around it."""

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        dispatched: Watermark,
        ha: HaMaster,
        replicas: Replicas,
        puts: PutService,
        ha_port: int,
        load_s: float,
        queued: int,
    ) -> None:
        self._log = commit_log
        self._dispatched = dispatched
        self._ha = ha
        self._replicas = replicas
        self._puts = puts
        self.ha_port = ha_port
        self.load_s = load_s
        """How long the store took to open, its queues and index included."""
        self.queued = queued
        """Messages in its queues then."""

    @property
    def max_offset(self) -> int:
        """End of the log."""
        return self._log.max_offset

    async def fill(self, *, body_bytes: int, log_bytes: int) -> dict[str, Any]:
        """Append messages without waiting for them until the log is long enough."""
        message = Message(topic="Bench", queue_id=0, body=bytes(body_bytes))
        while self._log.max_offset < log_bytes:
            for _ in range(APPENDS_PER_TURN):
                result = self._puts.put(message, wait_store_ok=False)
                assert isinstance(result, PutResult)
                assert result.status is PutStatus.PUT_OK, result
                if self._log.max_offset >= log_bytes:
                    break
            await trio.lowlevel.checkpoint()
        await self._dispatched.reached(self._log.max_offset)
        return {"maxOffset": self._log.max_offset}

    async def catch_up(self, *, slaves: int, within_s: float) -> dict[str, Any]:
        """Wait for the first request of a slave, then until all `slaves` have acknowledged the whole log.

        Nothing is polled: the status of eight connections, each millisecond, would cost a tenth of a core.
        """
        max_offset = self._log.max_offset
        began_s = None
        with trio.fail_after(within_s), self._ha.changes() as changes:
            while (requested := sum(one.state == "TRANSFER" for one in self._ha.connections())) < slaves:
                if requested and began_s is None:
                    began_s = time.perf_counter()
                await anext(changes)
            began_s = began_s or time.perf_counter()
            await self._replicas.copies(slaves).reached(max_offset)
        return {"seconds": time.perf_counter() - began_s, "bytes": max_offset * slaves}

    async def alone(self, *, within_s: float) -> dict[str, Any]:
        """Wait until no slave is connected."""
        with trio.fail_after(within_s):
            while self._ha.connections():  # noqa: ASYNC110
                await trio.sleep(0.005)
        return {}

    async def puts(self, *, body_bytes: int, writers: int, seconds: float) -> dict[str, Any]:
        """Each writer puts one message after the other, and waits for the slave each time."""
        message = Message(topic="Bench", queue_id=0, body=bytes(body_bytes))
        await self._slave_came(message)
        times: list[float] = []
        began = time.perf_counter()
        end = began + seconds

        async def write() -> None:
            started = time.perf_counter()
            while started < end:
                result = self._puts.put(message, wait_store_ok=True)
                if not isinstance(result, PutResult):
                    result = await result
                now = time.perf_counter()
                assert result.status is PutStatus.PUT_OK, result
                times.append(now - started)
                started = now

        async with trio.open_nursery() as nursery:
            for _ in range(writers):
                nursery.start_soon(write)
        return _figures(times, time.perf_counter() - began)

    async def offered(self, *, body_bytes: int, rate: int, seconds: float) -> dict[str, Any]:
        """Puts at a rate, whether those before were answered or not, up to `OUTSTANDING_MAX` of them.

        Those of a millisecond are put together, when it begins: `pacer` says when, from a process of its own.
        The time of a put runs from then, so that what waits for its turn counts.
        """
        message = Message(topic="Bench", queue_id=0, body=bytes(body_bytes))
        await self._slave_came(message)
        times: list[float] = []
        outstanding = 0
        began = 0.0

        async def put(due: float) -> None:
            nonlocal outstanding
            result = await self._put(message)
            times.append(time.perf_counter() - due)
            outstanding -= 1
            assert result.status is PutStatus.PUT_OK, result

        command = [sys.executable, "-m", "tests.benchmarks.rivals.pacer", str(rate), str(seconds)]
        pacer = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
        assert pacer.stdout is not None
        rest = b""
        async with pacer.stdout, trio.open_nursery() as nursery:
            with trio.CancelScope() as putting:
                async for data in pacer.stdout:
                    whole = rest + data
                    rest = whole[len(whole) - len(whole) % TICK.size :]
                    for due, count in TICK.iter_unpack(whole[: len(whole) - len(rest)]):
                        if not began:
                            began = due
                            putting.deadline = trio.current_time() + seconds * LATE_MAX
                        for _ in range(count):
                            while outstanding >= OUTSTANDING_MAX:  # noqa: ASYNC110 - as the Java driver does
                                await trio.sleep(0.001)
                            outstanding += 1
                            nursery.start_soon(put, due)
            pacer.kill()
        await pacer.wait()
        if not times:
            raise RuntimeError(f"{' '.join(command)} said nothing")
        return _figures(times, time.perf_counter() - began)

    async def _slave_came(self, message: Message) -> None:
        with trio.fail_after(FIRST_PUT_WITHIN_S):
            while (await self._put(message)).status is not PutStatus.PUT_OK:  # noqa: ASYNC110
                await trio.sleep(0.02)

    async def _put(self, message: Message) -> PutResult:
        result = self._puts.put(message, wait_store_ok=True)
        return result if isinstance(result, PutResult) else await result


def _figures(times: list[float], took_s: float) -> dict[str, Any]:
    """The answer for puts that took these times."""
    times.sort()
    return {
        "puts": len(times),
        "seconds": took_s,
        "p50Us": times[len(times) // 2] * 1e6,
        "p99Us": times[int(len(times) * 0.99)] * 1e6,
    }


@asynccontextmanager
async def open_master(root: Path, *, file_bytes: int) -> AsyncIterator[Master]:
    """A SYNC_MASTER on `root` with RocketMQ's and trioha's defaults, at any free port of 127.0.0.1."""
    settings = StoreSettings(
        root=root,
        commit_log_directory=root / "commitlog",
        file_bytes=file_bytes,
        message_bytes_max=4 << 20,
        store_host=Host.parse("127.0.0.1", 10911),
    )
    began = time.perf_counter()
    store = await trio.to_thread.run_sync(MessageStore.open, settings)
    load_s = time.perf_counter() - began
    queued = sum(queue.max_offset for queue in store.queues)
    try:
        commit_log, sink = store.commit_log, NoSink()
        replicas = Replicas(gap_bytes_max=256 << 20)
        ha = HaMaster(
            commit_log=commit_log,
            replicas=replicas,
            settings=HaSettings(
                heartbeat_interval_s=5.0,
                housekeeping_interval_s=60.0,
                transfer_batch_bytes=32768,
                transfer_batch_bytes_max=1 << 20,
                busy_poll_s=BUSY_POLL_S if has_cores_to_spare() else 0.0,
            ),
            sink=sink,
        )
        commit = GroupCommit(
            GroupCommitSettings(
                copies_needed=1, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0
            ),
            replicas=replicas,
            flushed=commit_log.flushed,
            sink=sink,
            push=ha.push,
            poll_acks=ha.poll_acks,
        )
        puts = PutService(commit_log=commit_log, group_commit=commit, sink=sink, is_slave=False)
        flush = FlushService(store, sync_flush=False, interval_s=0.5, on_flushed=lambda _offset, _ns: None)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush.run)
            nursery.start_soon(DispatchService(store, sync_flush=False).run)
            nursery.start_soon(commit.run)
            nursery.start_soon(allocate_ahead, commit_log)
            await nursery.start(ha.serve, listeners)
            yield Master(
                commit_log=commit_log,
                dispatched=store.dispatcher.dispatched,
                ha=ha,
                replicas=replicas,
                puts=puts,
                ha_port=listeners[0].socket.getsockname()[1],
                load_s=load_s,
                queued=queued,
            )
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(store.close)


async def perform(master: Master, command: dict[str, Any]) -> dict[str, Any]:
    """Carry out one command on the open store."""
    match command["do"]:
        case "fill":
            return await master.fill(body_bytes=command["bodyBytes"], log_bytes=command["bytes"])
        case "catchUp":
            return await master.catch_up(slaves=command["slaves"], within_s=command["millis"] / 1000)
        case "alone":
            return await master.alone(within_s=command["millis"] / 1000)
        case "puts":
            return await master.puts(
                body_bytes=command["bodyBytes"], writers=command["writers"], seconds=command["seconds"]
            )
        case "offered":
            return await master.offered(
                body_bytes=command["bodyBytes"], rate=command["rate"], seconds=command["seconds"]
            )
    raise ValueError(f"unknown command {command['do']}")


def answer(command: dict[str, Any], kind: str, value: object) -> None:
    """One line on stdout."""
    sys.stdout.write(json.dumps({"id": command["id"], kind: value}) + "\n")
    sys.stdout.flush()


async def next_command() -> dict[str, Any] | None:
    """The next command, None when stdin has ended."""
    line = await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    return json.loads(line) if line else None


async def handle(master: Master, command: dict[str, Any]) -> None:
    """Carry out one command and answer it."""
    try:
        result = await perform(master, command)
    except Exception:  # noqa: BLE001 - the benchmark that sent the command shows it
        answer(command, "error", traceback.format_exc())
    else:
        answer(command, "result", result)


async def serve(opening: dict[str, Any]) -> None:
    """Open the store that the first command names, then serve commands until `close` or the end of stdin."""
    config = opening["config"]
    closing = None
    root = Path(config["storePathRootDir"])
    async with open_master(root, file_bytes=config["mappedFileSizeCommitLog"]) as master:
        answer(
            opening,
            "result",
            {
                "haPort": master.ha_port,
                "maxOffset": master.max_offset,
                "loadSeconds": master.load_s,
                "queued": master.queued,
            },
        )
        async with trio.open_nursery() as nursery:
            while (command := await next_command()) is not None:
                if command["do"] == "close":
                    closing = command
                    break
                nursery.start_soon(handle, master, command)
            nursery.cancel_scope.cancel()
    if closing is not None:
        answer(closing, "result", {})


async def main() -> None:
    """Serve one store after the other."""
    # As `trioha node` does: collections do not visit what was imported.
    gc.freeze()
    configure_logs(as_json=False)
    while (command := await next_command()) is not None:
        await serve(command)


if __name__ == "__main__":
    trio.run(main)
