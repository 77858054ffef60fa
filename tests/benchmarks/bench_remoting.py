"""How many small sends one remoting server answers, over loopback, the client in a process of its own.

    python tests/benchmarks/bench_remoting.py [--seconds 5] [--in-flight 16 64] [--connections 1 4]

The handler checks the header and answers like a broker, without a store: this measures the
remoting room alone. `waiting` answers from an awaitable (a task for each request), `ready` returns at once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection

import trio
from attrs import frozen

from trioha.recording.events import PutStatus
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.command import RemotingCommand, SerializeType
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    send_request,
    send_response,
)
from trioha.remoting.server import Handler, Peer, RemotingServer

BODY = b"x" * 100


def ready(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
    header = SendMessageRequestHeader.of(asked)
    stored = SendMessageResponseHeader("7F0000010000A8670000000000003494", header.queue_id, 12345)
    return send_response(asked, PutStatus.PUT_OK, header=stored)


async def waiting(asked: RemotingCommand, peer: Peer) -> RemotingCommand:
    await trio.lowlevel.checkpoint()
    return ready(asked, peer)


HANDLERS: dict[str, Handler] = {"ready": ready, "waiting": waiting}


def run_server(name: str, pipe: Connection) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(
                lambda task_status: RemotingServer(HANDLERS[name]).serve(
                    host="127.0.0.1", port=0, task_status=task_status
                )
            )
            cpu_start_s = time.process_time()
            pipe.send(addresses[0][1])
            await trio.to_thread.run_sync(pipe.recv)
            pipe.send(time.process_time() - cpu_start_s)
            nursery.cancel_scope.cancel()

    trio.run(main)


async def send_for(
    port: int, *, seconds: float, in_flight: int, connections: int, type_: SerializeType
) -> list[int]:
    """Latencies in ns of what was sent in `seconds`."""
    latencies_ns: list[int] = []
    end_s = trio.current_time() + seconds
    header = SendMessageRequestHeader(
        "PG_BENCH",
        "TopicBench",
        DEFAULT_TOPIC,
        4,
        1,
        0,
        1795234734922,
        0,
        "UNIQ_KEY\x01FD00000000000000000000000000000221C14E0E2F2A67EC3B4A0000\x02WAIT\x01true\x02",
    )

    async def sender(client: RemotingClient) -> None:
        while trio.current_time() < end_s:
            start_ns = time.perf_counter_ns()
            answer = await client.request(send_request(header, BODY, serialize_type=type_))
            latencies_ns.append(time.perf_counter_ns() - start_ns)
            assert answer.code == 0, answer

    async def connection() -> None:
        async with open_client(f"127.0.0.1:{port}") as client, trio.open_nursery() as nursery:
            for _ in range(in_flight // connections):
                nursery.start_soon(sender, client)

    async with trio.open_nursery() as nursery:
        for _ in range(connections):
            nursery.start_soon(connection)
    return latencies_ns


@frozen
class Figures:
    """What one measurement gave."""

    sends_per_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float
    """For a request."""
    client_cpu_us: float


def measure(name: str, *, seconds: float, in_flight: int, connections: int, type_: SerializeType) -> Figures:
    """Have a server process answer for some seconds."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=run_server, args=(name, theirs))
    server.start()
    port = ours.recv()
    start_s, cpu_start_s = time.perf_counter(), time.process_time()

    async def main() -> list[int]:
        return await send_for(
            port, seconds=seconds, in_flight=in_flight, connections=connections, type_=type_
        )

    latencies_ns = trio.run(main)
    elapsed_s, cpu_s = time.perf_counter() - start_s, time.process_time() - cpu_start_s
    ours.send(None)
    server_cpu_s = ours.recv()
    server.join()
    cuts = statistics.quantiles(latencies_ns, n=1000)
    count = len(latencies_ns)
    return Figures(
        sends_per_s=count / elapsed_s,
        p50_ms=cuts[499] / 1e6,
        p99_ms=cuts[989] / 1e6,
        server_cpu_us=server_cpu_s / count * 1e6,
        client_cpu_us=cpu_s / count * 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--connections", type=int, nargs="+", default=[1])
    parser.add_argument("--handlers", choices=sorted(HANDLERS), nargs="+", default=sorted(HANDLERS))
    args = parser.parse_args()
    print("handler  header    conn in-flight    sends/s   p50 ms   p99 ms  srv us/r  cli us/r")
    for name in args.handlers:
        for type_ in SerializeType:
            for connections in args.connections:
                for in_flight in args.in_flight:
                    found = measure(
                        name, seconds=args.seconds, in_flight=in_flight, connections=connections, type_=type_
                    )
                    print(
                        f"{name:8} {type_.name:9} {connections:4} {in_flight:9} {found.sends_per_s:10,.0f} "
                        f"{found.p50_ms:8.3f} {found.p99_ms:8.3f} "
                        f"{found.server_cpu_us:8.1f} {found.client_cpu_us:8.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
