"""Pops of a SYNC pair: how fast messages are popped and acknowledged, each by a request of its own.

By a raw client, and by RocketMQ's Java SDK of gRPC through RocketMQ's proxy, the same one before each system.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from typing import Final

from attrs import evolve, frozen

from tests.benchmarks.bench import Bench
from tests.benchmarks.clients import SETTLE_S
from tests.benchmarks.machine import Meter, standing_still
from tests.benchmarks.raw import BATCH, RECEIVE_BYTES, WITHIN_S, batches, drive, send
from tests.benchmarks.systems import (
    JVM_FLAGS,
    SETTINGS,
    BenchmarkError,
    Pair,
    System,
    await_success,
    pair_of,
)
from tests.benchmarks.table import Line
from tests.interop.proxy import Proxy, grpc_proxy
from tests.interop.sdks import Sdk, opened_sdk
from tests.node.client import endpoint
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request

IN_FLIGHT: Final = 8
"""Pops at a time, on one connection: after each come the acknowledgements of its messages, and one more."""
INVISIBLE_MS: Final = 600_000
GROUP: Final = "bench"
BROKER: Final = "bench"
CLUSTER: Final = str(SETTINGS["brokerClusterName"])
A_THOUSAND: Final = "1,000 messages"


def pops(bench: Bench) -> None:
    """Messages that are there, popped 32 at a time and acknowledged one by one."""
    number = bench.sizes.pops // BATCH * BATCH
    line = Line("raw client: pops 32, acknowledges each", "messages/s", A_THOUSAND)
    with ExitStack() as running:
        pairs = [_pair(bench, system, running) for system in (bench.ours, bench.theirs)]
        for pair, note in bench.turns("pops", pairs, name_of=lambda pair: pair.system.name):
            topic = _backlog(bench, pair, number)
            others = [pid for other in pairs if other is not pair for pid in other.pids]
            with standing_still(others), Meter(pair.pids) as meter:
                seconds = _consume(pair.master.address, topic, number)
            note(line, pair.system.name, number / seconds, meter, units=number / 1000)


@frozen
class _Proxied:
    """A pair, the proxy before it, and a JVM with the SDK."""

    pair: Pair
    proxy: Proxy
    sdk: Sdk


def proxied_pops(bench: Bench) -> None:
    """The same by a simple consumer of the Java SDK. CPU time is that of the brokers, not of the proxy."""
    number = bench.sizes.pops // BATCH * BATCH
    line = Line("Java SDK through the proxy: receives, acknowledges each", "messages/s", A_THOUSAND)
    with ExitStack() as running:
        sides = [_proxied(bench, system, running) for system in (bench.ours, bench.theirs)]
        for side, note in bench.turns("proxied pops", sides, name_of=lambda side: side.pair.system.name):
            topic = _backlog(bench, side.pair, number)
            side.sdk("simple", name=topic, group=bench.new_name("group"), topic=topic)
            others = [
                pid for other in sides if other is not side for pid in (*other.pair.pids, other.proxy.pid)
            ]
            with standing_still(others), Meter(side.pair.pids) as meter:
                seconds = side.sdk(
                    "drain", name=topic, number=number, in_flight=IN_FLIGHT, invisible_s=INVISIBLE_MS // 1000
                )
            note(line, side.pair.system.name, number / seconds, meter, units=number / 1000)
            side.sdk("end", name=topic)


def _pair(bench: Bench, system: System, running: ExitStack) -> Pair:
    with_timers = evolve(system, settings={**system.settings, "timerWheelEnable": "true"})
    return running.enter_context(pair_of(with_timers, bench.new_folder("pops")))


def _proxied(bench: Bench, system: System, running: ExitStack) -> _Proxied:
    pair, folder = _pair(bench, system, running), bench.new_folder("proxy")
    proxy = running.enter_context(
        grpc_proxy(bench.rocketmq_version, pair.name_server, folder=folder, cluster=CLUSTER, flags=JVM_FLAGS)
    )
    return _Proxied(
        pair, proxy, running.enter_context(opened_sdk("java", proxy.endpoints, log=folder / "sdk.log"))
    )


def _backlog(bench: Bench, pair: Pair, number: int) -> str:
    """Make a topic and store `number` messages in it; the name of the topic."""
    topic = bench.new_name("pops")
    await_success(send(topic), pair.master.address, what=pair.system.name)
    drive(pair.master.address, batches(topic), in_flight=4, count=number // BATCH)
    time.sleep(SETTLE_S)
    return topic


def _consume(address: str, topic: str, number: int) -> float:
    """Pop and acknowledge so many messages; the seconds that it takes. Raises BenchmarkError."""
    decoder, popped, acknowledged, waits = FrameDecoder(), 0, 0, 0
    with socket.create_connection(endpoint(address), timeout=WITHIN_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        began_s = time.perf_counter()
        out = [_pop(topic)] * min(IN_FLIGHT, number // BATCH)
        while acknowledged < number:
            peer.sendall(b"".join(out))
            out = []
            data = peer.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError(f"{address} has ended the connection")
            decoder.feed(data)
            while (answer := decoder.next_command()) is not None:
                if "popTime" not in answer.ext_fields:
                    if answer.code != ResponseCode.SUCCESS:
                        raise BenchmarkError(f"not acknowledged: {answer}")
                    acknowledged += 1
                    continue
                acks = _acks(topic, answer)
                waits += not acks
                if waits > number:
                    raise BenchmarkError(f"{popped} of {number} messages were popped")
                popped += len(acks)
                out += acks
                if popped < number:
                    out.append(_pop(topic))
        return time.perf_counter() - began_s


def _pop(topic: str) -> bytes:
    fields = {
        "consumerGroup": GROUP, "topic": topic, "queueId": "-1", "maxMsgNums": str(BATCH),
        "invisibleTime": str(INVISIBLE_MS), "pollTime": "0", "bornTime": "0", "initMode": "0",
        "expType": "TAG", "exp": "*", "order": "false",
    }  # fmt: skip
    return encode(request(RequestCode.POP_MESSAGE, ext_fields=fields))


def _acks(topic: str, answer: RemotingCommand) -> list[bytes]:
    """The frames that acknowledge what an answer has, as a client makes them of its texts."""
    fields, frames = answer.ext_fields, []
    starts = [entry.split(" ") for entry in fields.get("startOffsetInfo", "").split(";") if entry]
    listed = [entry.split(" ") for entry in fields.get("msgOffsetInfo", "").split(";") if entry]
    for (source, queue_id, start), (_, _, offsets) in zip(starts, listed, strict=True):
        head = (
            f"{start} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} {source} {BROKER}"
        )
        for offset in offsets.split(","):
            asked = {
                "consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "offset": offset,
                "extraInfo": f"{head} {queue_id} {offset} 0",
            }  # fmt: skip
            frames.append(encode(request(RequestCode.ACK_MESSAGE, ext_fields=asked)))
    return frames
