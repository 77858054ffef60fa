"""A trioha master that measures inside its own process: the trioha side of `java/BenchDriver.java`.

The master is what `trioha node` makes of a configuration, less the remoting server. Each line on stdin is a
command, each gets one answer on stdout, as the Java driver has them.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from attrs import fields, frozen

from trioha.config.broker import BrokerConfig
from trioha.ha.master import DefaultHaMaster, HaMaster
from trioha.ha.replicas import Replicas
from trioha.ha.settings import HaSettings
from trioha.net.busy_poll import busy_polling
from trioha.node.logs import configure_logs
from trioha.recording.events import NoSink
from trioha.store.allocate import allocate_ahead
from trioha.store.dispatch_service import DispatchService
from trioha.store.flush import FlushService
from trioha.store.message_store import MessageStore
from trioha.store.messages import Message
from trioha.store.record import Host
from trioha.store.store_settings import StoreSettings

APPENDS_PER_TURN = 500
BUSY_POLL_S = fields(BrokerConfig).busy_poll.default / 1e6


@frozen
class Master:
    """An open store with all that a master runs around it."""

    store: MessageStore
    ha: HaMaster
    replicas: Replicas
    facts: dict[str, Any]
    """Its HA port, how long the store took to open, queues and index included, and the messages in queues."""

    async def fill(self, *, body_bytes: int, log_bytes: int) -> dict[str, Any]:
        """Append messages until the log is long enough, and wait until they are in queues and index."""
        message, log = Message(topic="Bench", queue_id=0, body=bytes(body_bytes)), self.store.commit_log
        while log.max_offset < log_bytes:
            for _ in range(APPENDS_PER_TURN):
                log.append(message)
                if log.max_offset >= log_bytes:
                    break
            await trio.lowlevel.checkpoint()
        await self.store.dispatcher.dispatched.reached(log.max_offset)
        return {"maxOffset": log.max_offset}

    async def catch_up(self, *, slaves: int, within_s: float) -> dict[str, Any]:
        """Wait for the first request of a slave, then until all `slaves` have acknowledged the whole log.

        Nothing is polled: the status of eight connections, each millisecond, would cost a tenth of a core.
        """
        max_offset = self.store.commit_log.max_offset
        began_s = None
        with trio.fail_after(within_s), self.ha.changes() as changes:
            while (requested := sum(one.state == "TRANSFER" for one in self.ha.connections())) < slaves:
                if requested and began_s is None:
                    began_s = time.perf_counter()
                await anext(changes)
            began_s = began_s or time.perf_counter()
            await self.replicas.copies(slaves).reached(max_offset)
        return {"seconds": time.perf_counter() - began_s, "bytes": max_offset * slaves}

    async def alone(self, *, within_s: float) -> dict[str, Any]:
        """Wait until no slave is connected."""
        with trio.fail_after(within_s):
            while self.ha.connections():  # noqa: ASYNC110
                await trio.sleep(0.005)
        return {}


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
        replicas = Replicas(gap_bytes_max=256 << 20)
        ha = DefaultHaMaster(
            commit_log=store.commit_log,
            replicas=replicas,
            settings=HaSettings(
                heartbeat_interval_s=5.0,
                housekeeping_interval_s=60.0,
                transfer_batch_bytes=32768,
                transfer_batch_bytes_max=1 << 20,
            ),
            sink=NoSink(),
        )
        flush = FlushService(store, sync_flush=False, interval_s=0.5, on_flushed=lambda _offset, _ns: None)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=50)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush.run)
            nursery.start_soon(DispatchService(store, sync_flush=False).run)
            nursery.start_soon(allocate_ahead, store.commit_log)
            await nursery.start(ha.serve, listeners)
            ha_port = listeners[0].socket.getsockname()[1]
            facts = {"haPort": ha_port, "loadSeconds": load_s, "queued": queued}
            yield Master(store, ha, replicas, facts)
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
    closing = None
    async with open_master(Path(opening["root"]), file_bytes=opening["fileBytes"]) as master:
        answer(opening, "result", master.facts)
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
    with busy_polling(BUSY_POLL_S):
        while (command := await next_command()) is not None:
            await serve(command)


if __name__ == "__main__":
    trio.run(main)
