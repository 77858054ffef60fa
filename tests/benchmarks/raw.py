"""Clients and a master that do nothing but send, so that the other side is the limit.

Requests have the bytes that a Java client of 5.x sends (JSON headers), made beforehand. `drive` keeps some in
flight over one connection: for each answer the next request goes out, and what was answered together is sent
together. `RawMaster` maps one file of a log and sends slices of the map, as a program in C would; reports of
its slave are read only for their last offset.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle, islice, product
from pathlib import Path
from typing import Final

from attrs import evolve

from tests.benchmarks.systems import QUEUES, BenchmarkError
from tests.node.client import endpoint
from tests.node.wire import Wire
from tests.remoting.batches import encode_batch_body
from trioha.ha.frames import REPORT_BYTES, ReportDecoder, encode_header
from trioha.net.transport import drop_sent
from trioha.remoting.codec import encode
from trioha.remoting.codes import LanguageCode, RequestCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.send_message import DEFAULT_TOPIC, SendMessageRequestHeader
from trioha.store.messages import BatchItem

BODY: Final = bytes(range(256)) * 4
BATCH: Final = 32
KEYS: Final = 2048
FIRST_OPAQUE: Final = 100_000
WITHIN_S: Final = 60.0
RECEIVE_BYTES: Final = 1 << 20
FRAME_BYTES: Final = 1 << 20
PULLS_MAX: Final = 2000


def properties(number: int, *, with_tag: bool = False) -> str:
    """Of a message as a producer makes them, with a UNIQ_KEY, maybe a tag and a key, too."""
    tag = f"TAGS\x01Tag{number % 16}\x02KEYS\x01order-{number:06}\x02" if with_tag else ""
    return f"{tag}UNIQ_KEY\x017F00000100002A139A55{number:012X}\x02WAIT\x01true\x02"


def send(topic: str, number: int = 0) -> RemotingCommand:
    """A send of a Java producer, to one of the topic's queues."""
    return _java_request(_header(topic, number), RequestCode.SEND_MESSAGE_V2, BODY)


def sends(topic: str) -> Iterator[bytes]:
    """Frames of sends to all queues in turn, the same `KEYS` again and again."""
    return cycle(
        [encode(evolve(send(topic, number), opaque=FIRST_OPAQUE + number)) for number in range(KEYS)]
    )


def batches(topic: str) -> Iterator[bytes]:
    """Frames of batches to all queues in turn, the same `KEYS` messages again and again."""
    return cycle([batch(topic, number) for number in range(KEYS // BATCH)])


def batch(topic: str, number: int, *, with_tag: bool = False) -> bytes:
    """The frame of a batch of `BATCH` messages, whose keys no batch of another number has."""
    items = [
        BatchItem(BODY, properties(number * BATCH + index, with_tag=with_tag).encode())
        for index in range(BATCH)
    ]
    header = _header(topic, number, batch=True)
    asked = _java_request(header, RequestCode.SEND_BATCH_MESSAGE, encode_batch_body(items))
    return encode(evolve(asked, opaque=FIRST_OPAQUE + number))


def pulls(address: str, topic: str) -> Iterator[bytes]:
    """Frames of pulls of a push consumer, each queue of a topic from its start on and again."""
    with Wire(address) as asking:
        end = min(
            int(asking.ask(max_offset(topic, queue_id)).ext_fields["offset"]) for queue_id in range(QUEUES)
        )
    if end < BATCH:
        raise BenchmarkError(f"{topic} has too few messages to pull: {end}")
    steps = range(min(end // BATCH, PULLS_MAX // QUEUES))
    places = product(steps, range(QUEUES))
    return cycle([encode(pull(topic, queue_id, step * BATCH)) for step, queue_id in places])


def max_offset(topic: str, queue_id: int) -> RemotingCommand:
    """The question where a queue ends."""
    return request(RequestCode.GET_MAX_OFFSET, ext_fields={"topic": topic, "queueId": str(queue_id)})


def pull(topic: str, queue_id: int, offset: int) -> RemotingCommand:
    """A pull as a push consumer sends it, which waits at the end of a queue."""
    fields = {
        "consumerGroup": "bench", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": str(BATCH), "sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "60000",
        "subscription": "*", "subVersion": "1795234734922", "expressionType": "TAG",
        "maxMsgBytes": "2147483647", "bname": "bench",
    }  # fmt: skip
    return _as_java(request(RequestCode.PULL_MESSAGE, ext_fields=fields))


def _header(topic: str, number: int, *, batch: bool = False) -> SendMessageRequestHeader:
    return SendMessageRequestHeader(
        producer_group="bench", topic=topic, default_topic=DEFAULT_TOPIC, default_topic_queue_nums=QUEUES,
        queue_id=number % QUEUES, sys_flag=0, born_timestamp_ms=1_795_234_734_922, flag=0,
        properties=properties(number), batch=batch, broker_name="bench",
    )  # fmt: skip


def _java_request(header: SendMessageRequestHeader, code: RequestCode, body: bytes) -> RemotingCommand:
    return _as_java(request(code, ext_fields=header.to_ext_fields(), body=body))


def _as_java(asked: RemotingCommand) -> RemotingCommand:
    return evolve(asked, language=LanguageCode.JAVA, version=475)


def drive(
    address: str,
    frames: Iterator[bytes],
    *,
    in_flight: int,
    seconds: float = math.inf,
    count: float = math.inf,
) -> tuple[int, float]:
    """Send frames for a time or up to a count: the number of requests, and their seconds.

    Raises BenchmarkError for an answer that is not SUCCESS, OSError for a connection that fails or ends.
    """
    with socket.create_connection(endpoint(address), timeout=WITHIN_S) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        began_s = time.perf_counter()
        until_s = began_s + seconds
        sent = answered = 0
        buffer = bytearray()
        wanted = in_flight
        while True:
            # No more after the time, or the count.
            wanted = min(wanted, count - sent) if time.perf_counter() < until_s else 0
            if wanted > 0:
                peer.sendall(b"".join(islice(frames, int(wanted))))
                sent += int(wanted)
            if answered == sent:
                return answered, time.perf_counter() - began_s
            data = peer.recv(RECEIVE_BYTES)
            if not data:
                raise ConnectionError(f"{address} has ended the connection")
            buffer += data
            wanted = drop_answers(buffer)
            answered += wanted


def drop_answers(buffer: bytearray) -> int:
    """Remove the whole answers at the start of `buffer`: how many. Raises BenchmarkError for a failure."""
    at, found = 0, 0
    while len(buffer) >= at + 4 and len(buffer) >= (end := at + 4 + int.from_bytes(buffer[at : at + 4])):
        if buffer.find(b'"code":0,', at, at + 40) < 0:
            raise BenchmarkError(f"not SUCCESS: {bytes(buffer[at : min(end, at + 500)])!r}")
        found += 1
        at = end
    del buffer[:at]
    return found


class RawMaster:
    """A master that sends the first bytes of a log's file: what a slave receives at most."""

    pid = os.getpid()

    def __init__(self, log: Path, *, log_bytes: int) -> None:
        with log.open("rb") as file:
            self._log = memoryview(mmap.mmap(file.fileno(), log_bytes, prot=mmap.PROT_READ))
        self._peer: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WITHIN_S)
        self.ha_port: int = self._listener.getsockname()[1]
        self.log_bytes = log_bytes

    def expect(self) -> None:
        """Wait until the slave of the last round has hung up; one whose connection ends would dial again."""
        if self._peer is not None:
            # Its socket may end with a reset.
            with self._peer as peer, suppress(ConnectionResetError):
                while peer.recv(RECEIVE_BYTES):
                    pass
            self._peer = None

    def transfer(self, _slaves: int) -> None:
        """Send the whole log to the one slave that has asked, until it has acknowledged it."""
        peer, _ = self._listener.accept()
        self._peer = peer
        peer.settimeout(WITHIN_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        peer.recv(REPORT_BYTES, socket.MSG_WAITALL)
        log, offset, ack_offset = self._log, 0, 0
        decoder = ReportDecoder()
        while ack_offset < self.log_bytes:
            parts: list[bytes | memoryview] = []
            if body := log[offset : offset + FRAME_BYTES]:
                parts += (encode_header(offset, len(body)), body)
                offset += len(body)
            while parts:
                drop_sent(parts, peer.sendmsg(parts))
            try:
                reports = peer.recv(RECEIVE_BYTES, 0 if offset == self.log_bytes else socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            if not reports:
                raise ConnectionError(f"the slave has ended the connection at {ack_offset}")
            ack_offset = decoder.feed(reports) or ack_offset

    def rest(self) -> None:
        """Nothing: it does nothing between transfers."""

    def close(self) -> None:
        """End the listener and the last connection."""
        self._listener.close()
        if self._peer is not None:
            self._peer.close()
