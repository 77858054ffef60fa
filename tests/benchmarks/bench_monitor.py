"""What the monitor itself takes of a core: 4 masters with 8 slaves each, ten times a second.

    python tests/benchmarks/bench_monitor.py [--seconds 20] [--sizes 80x24 200x50]

The masters are servers of the remoting protocol in another process: their logs grow, acks follow, and no two
answers are the same. `trioha monitor` runs on a terminal (a pty) whose output is read at once. CPU is that of
its process, from five seconds after its start on.
"""

from __future__ import annotations

import argparse
import fcntl
import multiprocessing
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.rivals.machine import cpu_s
from trioha.broker.status_publisher import StatusPublisher
from trioha.broker_status import BrokerSettings, BrokerStatus, ConnectionStatus
from trioha.distribution import Distribution
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, response_to
from trioha.remoting.ha_runtime_info import encode_ha_status
from trioha.remoting.server import Peer, RemotingServer
from trioha.remoting.status_subscription import StatusSubscription

MASTERS, SLAVES = 4, 8
WARM_UP_S = 5.0
SETTINGS = BrokerSettings(1 << 28, 3000, 20_000, 5000, 1 << 30, 72, 75)
TABLE = b'{"table":{"bootTimestamp":"1","putTps":"1204.0 1204.0 1204.0","commitLogDiskRatio":"0.5"}}'


def status(number: int, now_s: float) -> BrokerStatus:
    """What master `number` says at a moment: 1.2 MB/s are put, and each slave is behind by some of it."""
    end = 10**9 + round(now_s * 1_200_000) % 10**9
    connections = tuple(
        ConnectionStatus(
            address=f"10.0.{number}.{slave}:40000",
            sent_offset=end,
            ack_offset=end - lag,
            lag_bytes=lag,
            in_sync=True,
            transferred_bytes_per_s=1_200_000,
            state="TRANSFER",
            lag_ms=lag // 1200,
            connection_id=slave,
            last_received_ms=20,
            ack_latency_us=Distribution(300 + lag % 50, 2400, 18_000, 800),
            frame_bytes=Distribution(1204, 32_768, 32_768, 800),
        )
        for slave in range(SLAVES)
        for lag in (round(now_s * 1000 * (slave + 3)) * 7919 % 90_000,)
    )
    return BrokerStatus(
        version="0.1.0",
        role="SYNC_MASTER",
        cluster_name="DefaultCluster",
        broker_name=f"broker-{number}",
        broker_id=0,
        min_offset=0,
        max_offset=end,
        flushed_offset=end - 4096,
        dispatched_offset=end,
        ha_address=f"127.0.0.1:{number + 1}",
        in_sync_slaves=SLAVES,
        connections=connections,
        put_statuses={"PUT_OK": end // 1000},
        settings=SETTINGS,
        files=2,
    )


class Master:
    """What a node's remoting server answers, and sends by itself, of such a status."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.updates = StatusPublisher(self._status, self._table)
        self.server = RemotingServer(self._answer)

    def _status(self) -> bytes:
        return encode_ha_status(status(self._number, time.time()))

    async def _table(self) -> bytes:
        return TABLE

    def _answer(self, asked: RemotingCommand, peer: Peer) -> RemotingCommand:
        if asked.code != RequestCode.GET_BROKER_HA_STATUS:
            return response_to(asked, ResponseCode.SUCCESS, body=TABLE)
        wanted = StatusSubscription.of(asked.ext_fields)
        if wanted is not None:
            self.updates.subscribe(peer.connection, wanted)
        fields = None if wanted is None else wanted.to_fields()
        return response_to(asked, ResponseCode.SUCCESS, ext_fields=fields, body=self._status())


def run_masters(pipe: Connection) -> None:
    """Serve until the stop command; the first output line has the addresses."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            addresses = []
            for number in range(MASTERS):
                master = Master(number)
                nursery.start_soon(master.updates.run, master.server.push)
                ((host, port),) = await nursery.start(partial(master.server.serve, host="127.0.0.1", port=0))
                addresses.append(f"{host}:{port}")
            pipe.send(addresses)
            await trio.to_thread.run_sync(pipe.recv)
            nursery.cancel_scope.cancel()

    trio.run(main)


def measure(addresses: list[str], *, columns: int, lines: int, seconds: float) -> tuple[float, float]:
    """What a monitor on a terminal of this size takes of a core, and how many kB/s it writes."""
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    monitor = subprocess.Popen(
        (sys.executable, "-m", "trioha", "monitor", *addresses),
        stdin=inside,
        stdout=inside,
        stderr=inside,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(inside)
    written = 0

    def read_for(duration_s: float) -> None:
        nonlocal written
        end_s = time.monotonic() + duration_s
        while (left_s := end_s - time.monotonic()) > 0:
            if select.select([terminal], [], [], left_s)[0]:
                written += len(os.read(terminal, 1 << 16))

    read_for(WARM_UP_S)
    began_s, began_cpu_s, written = time.monotonic(), cpu_s(monitor.pid), 0
    read_for(seconds)
    took_s, used_s = time.monotonic() - began_s, cpu_s(monitor.pid) - began_cpu_s
    os.write(terminal, b"q")
    monitor.wait(10)
    os.close(terminal)
    return used_s / took_s, written / took_s / 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--sizes", nargs="+", default=["80x24", "200x50"])
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    masters = multiprocessing.Process(target=run_masters, args=(theirs,))
    masters.start()
    addresses = ours.recv()
    print("size     share of a core  kB/s to the terminal")
    for size in args.sizes:
        columns, _, lines = size.partition("x")
        share, kb_per_s = measure(addresses, columns=int(columns), lines=int(lines), seconds=args.seconds)
        print(f"{size:8} {share:15.1%} {kb_per_s:21.1f}", flush=True)
    ours.send(None)
    masters.join()


if __name__ == "__main__":
    main()
