"""A real master and a real slave, recorded through faults, with their status at the end."""

from __future__ import annotations

import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from attrs import frozen

from tests.faults.proxy import Direction, Link
from tests.monitor.real_nodes import running, send
from trioha.broker_status import BrokerStatus
from trioha.node.node import Ready
from trioha.recording.reader import find_sessions, open_session
from trioha.remoting.client import open_client
from trioha.remoting.status_reader import fetch_status
from trioha_sessions.records import read_segment
from trioha_sessions.segments import read_segments

HEARTBEAT_MS = 100
SLAVE_TIMEOUT_MS = 1500
"""Far longer than an acknowledged put takes; one put times out."""
WITHIN_S = 20


@frozen
class RecordedPair:
    """Recorded sessions, and the status of both nodes at their end."""

    sessions: Path
    """Of all starts of both nodes, copied while both were idle."""
    master: BrokerStatus
    slave: BrokerStatus
    stopped: Path
    """The same sessions after both were stopped."""


def record_pair(folder: Path) -> RecordedPair:
    """Run the pair: a reset, a late ack, a slave with a different log, and its restart."""
    return trio.run(_record, folder)


async def _record(folder: Path) -> RecordedPair:
    sessions = folder / "sessions"
    common: dict[str, object] = {
        "listenPort": 0,
        "trioha.recordDir": str(sessions),
        "haSendHeartbeatInterval": HEARTBEAT_MS,
        "slaveTimeout": SLAVE_TIMEOUT_MS,
    }
    # The slave starts with a different log, longer than its master's will be.
    async with running(folder / "slave", brokerRole="ASYNC_MASTER", brokerId=0, listenPort=0) as other:
        assert await send(str(other.listen), 60) == ["PUT_OK"] * 60
    link = Link(seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(link.serve)
        async with running(folder / "master", brokerRole="SYNC_MASTER", brokerId=0, **common) as master:
            link.target = (master.ha.host, master.ha.port)
            slave_settings = {
                **common,
                "brokerRole": "SLAVE",
                "brokerId": 1,
                "haMasterAddress": link.address,
                "trioha.haGapPolicy": "resync",
            }
            assert await send(str(master.listen), 1) == ["SLAVE_NOT_AVAILABLE"]
            async with running(folder / "slave", **slave_settings) as slave:
                await _same(master, slave)
                assert await send(str(master.listen), 10) == ["PUT_OK"] * 10
                link.cut(reset=True)
                await _same(master, slave)
                link.freeze(Direction.TO_TARGET)
                assert await send(str(master.listen), 1) == ["FLUSH_SLAVE_TIMEOUT"]
                link.thaw()
                await _same(master, slave)
            await _until(lambda: _is_alone(master))
            assert await send(str(master.listen), 2) == ["SLAVE_NOT_AVAILABLE"] * 2
            async with running(folder / "slave", **slave_settings) as slave:
                await _same(master, slave)
                assert await send(str(master.listen), 5) == ["PUT_OK"] * 5
                statuses = await _same(master, slave)
                asked_ns = time.monotonic_ns()
                # Once later heartbeats are on disk, all earlier records are.
                await _until(lambda: _recorded_beyond(sessions, asked_ns))
                shutil.copytree(sessions, folder / "running")
        nursery.cancel_scope.cancel()
    return RecordedPair(folder / "running", *statuses, sessions)


async def _same(master: Ready, slave: Ready) -> tuple[BrokerStatus, BrokerStatus]:
    """Status of both once all of the master's log is stored, flushed and dispatched on both, and acked."""
    statuses: list[BrokerStatus] = []

    async def is_same() -> bool:
        statuses[:] = [await _ask(master), await _ask(slave)]
        ends = {
            end for one in statuses for end in (one.max_offset, one.flushed_offset, one.dispatched_offset)
        }
        acks = [connection.ack_offset for connection in statuses[0].connections]
        client = statuses[1].client
        return (
            acks == [statuses[0].max_offset]
            and ends == set(acks)
            and client is not None
            and (client.reported_offset == acks[0])
        )

    await _until(is_same)
    return statuses[0], statuses[1]


async def _is_alone(master: Ready) -> bool:
    return not (await _ask(master)).connections


async def _recorded_beyond(sessions: Path, ts_ns: int) -> bool:
    """Whether each node's last session has records after a time of the monotonic clock."""
    last: dict[int, int] = {}
    for path in find_sessions([sessions]):
        session = open_session(path)
        segment = read_segments(session).segments[-1]
        records = read_segment(session, segment, first=max(0, segment.records - 1), count=1).array
        last[session.identity.broker_id] = int(records["ts_ns"][-1])
    return min(last.values()) > ts_ns


async def _ask(node: Ready) -> BrokerStatus:
    async with open_client(str(node.listen)) as client:
        return await fetch_status(client, timeout_s=5)


async def _until(is_so: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(WITHIN_S):
        while not await is_so():  # noqa: ASYNC110 - waits for the status of other processes
            await trio.sleep(0.02)
