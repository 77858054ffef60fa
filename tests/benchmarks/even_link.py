"""An even link on loopback, as a process: fixed latency and bandwidth.

The proxy of the fault tests passes random pieces, and each of them as a whole: what a link of that bandwidth
would deliver within a frame arrives with its last byte. Here each direction is a first-in, first-out pipe:
its bytes leave at `bytes_per_s` in packets of `PACKET_BYTES`, and arrive `latency_s` later.

The link is a process of its own, so that its delays do not depend on threads of the benchmark. Its input has
one JSON object in each line: `{"target": [host, port]}`, `{"latencyS": ..., "bytesPerS": ...}`; its output is
its port. The end of its input ends it.
"""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, Self

PACKET_BYTES: Final = 1448
"""Payload of a TCP segment on Ethernet."""
RECEIVE_BYTES: Final = 64 * 1024
PINGS: Final = 60
QUEUED_BYTES_MAX: Final = 4 << 20
"""Bytes under way in one direction, after which the link does not read from its sender."""


class EvenLink:
    """The process of a link. Use it as a context."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        """Where it listens on 127.0.0.1."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    @property
    def address(self) -> str:
        """Where to dial, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def lead_to(self, port: int) -> None:
        """Connect what dials the link to this port of 127.0.0.1."""
        self._say(target=["127.0.0.1", port])

    def slow(self, *, latency_s: float, bytes_per_s: float) -> None:
        """Delay each byte by `latency_s`, and pass `bytes_per_s` in each direction; 0 for no limit."""
        self._say(latencyS=latency_s, bytesPerS=bytes_per_s)

    def _say(self, **values: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(values) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "ok\n", "the link has ended"


class _Speed:
    latency_s = 0.0
    bytes_per_s = 0.0


class _Pipe:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, target: socket.socket, speed: _Speed) -> None:
        self.source, self.target, self._speed = source, target, speed
        self._packets: deque[tuple[float, bytes]] = deque()
        self._free_s = 0.0
        self._queued_bytes = 0
        self.is_ended = False

    @property
    def reads(self) -> bool:
        return not self.is_ended and self._queued_bytes < QUEUED_BYTES_MAX

    @property
    def due_s(self) -> float | None:
        return self._packets[0][0] if self._packets else None

    def receive(self, now_s: float) -> None:
        try:
            data = self.source.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_ended = True
            return
        speed = self._speed
        if not speed.latency_s and not speed.bytes_per_s and not self._packets:
            self._send(data)
            return
        step = PACKET_BYTES if speed.bytes_per_s else len(data)
        for at in range(0, len(data), step):
            packet = data[at : at + step]
            if speed.bytes_per_s:
                self._free_s = max(self._free_s, now_s) + len(packet) / speed.bytes_per_s
                left_s = self._free_s
            else:
                left_s = now_s
            self._packets.append((left_s + speed.latency_s, packet))
            self._queued_bytes += len(packet)

    def deliver(self, now_s: float) -> None:
        while self._packets and self._packets[0][0] <= now_s:
            _, packet = self._packets.popleft()
            self._queued_bytes -= len(packet)
            self._send(packet)

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self.target.send(view) :]
            except BlockingIOError:
                select.select([], [self.target], [])
            except OSError:
                self.is_ended = True
                return


def round_trip_s(*, latency_s: float, bytes_per_s: float) -> float:
    """Measured round trip that a link of this speed adds to 8 bytes each way: the median of `PINGS`."""
    times_s = []
    with socket.create_server(("127.0.0.1", 0)) as listener, EvenLink() as link:
        link.lead_to(listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", link.port)) as near:
            far, _ = listener.accept()
            with far:
                for end in (near, far):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for speed in ((0.0, 0.0), (latency_s, bytes_per_s)):
                    link.slow(latency_s=speed[0], bytes_per_s=speed[1])
                    times_s.append(statistics.median(_ping_s(near, far) for _ in range(PINGS)))
    return times_s[1] - times_s[0]


def _ping_s(near: socket.socket, far: socket.socket) -> float:
    began_s = time.perf_counter()
    near.sendall(bytes(8))
    far.recv(8)
    far.sendall(bytes(8))
    near.recv(8)
    return time.perf_counter() - began_s


def _serve() -> None:
    speed = _Speed()
    target: tuple[str, int] = ("127.0.0.1", 0)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    pipes: list[_Pipe] = []
    orders = b""
    while True:
        readable: list[Any] = [0, listener, *(pipe.source for pipe in pipes if pipe.reads)]
        due_s = min((pipe.due_s for pipe in pipes if pipe.due_s is not None), default=None)
        wait_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        ready, _, _ = select.select(readable, [], [], wait_s)
        now_s = time.monotonic()
        for pipe in pipes:
            pipe.deliver(now_s)
            if pipe.source in ready:
                pipe.receive(now_s)
        if listener in ready:
            client, _ = listener.accept()
            server = socket.create_connection(target)
            for end in (client, server):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pipes += [_Pipe(client, server, speed), _Pipe(server, client, speed)]
        for pipe in [pipe for pipe in pipes if pipe.is_ended]:
            # Of both directions; both ends see the end.
            pipe.source.close()
            pipe.target.close()
        pipes = [pipe for pipe in pipes if pipe.source.fileno() >= 0 and pipe.target.fileno() >= 0]
        if 0 in ready:
            data = os.read(0, 4096)
            if not data:
                return
            *lines, orders = (orders + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "target" in order:
                    target = (order["target"][0], order["target"][1])
                else:
                    speed.latency_s, speed.bytes_per_s = order["latencyS"], order["bytesPerS"]
                print("ok", flush=True)


if __name__ == "__main__":
    _serve()
