"""The consuming side of `trioha load`: receives what it sends, and measures the time from end to end."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import Mapping
from typing import Final

import trio
from attrs import frozen

from trioha.client.cluster import open_cluster
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.client.messages import ReceivedMessage
from trioha.client.routes import SingleBroker
from trioha.errors import PeerError
from trioha.remoting.client import ClientSecurity

LOAD_PROPERTY: Final = "LOAD"
"""Which load sent a message, its number, and when: perf_counter in ns of this process."""


@frozen
class Consumption:
    """Figures of the consuming side."""

    received: int
    """Different messages of this load."""
    duplicates: int
    lost: int
    """Messages that the broker stored, by its own answer, and that were not received."""
    latency_ms: Mapping[str, float]
    """Percentiles of the time from the request to send to the receipt by the consumer."""

    def to_json(self) -> dict[str, object]:
        """The object that `--json` prints."""
        return {
            "received": self.received,
            "duplicates": self.duplicates,
            "lost": self.lost,
            "endToEndMs": {name: round(value, 3) for name, value in self.latency_ms.items()},
        }


class LoadConsumer:
    """Receives the messages of one load."""

    def __init__(self, count: int) -> None:
        self._id = secrets.token_hex(4)
        self._received = bytearray(count)
        self._stored = bytearray(count)
        self.latencies_ns = array("q")
        self.duplicates = 0
        self._news = trio.Event()
        self.started = trio.Event()
        """Set when each message that is sent from now on will be received."""

    def property_of(self, number: int) -> str:
        """The property of the message `number`, from 0, which is sent now."""
        return f"{self._id}-{number}-{time.perf_counter_ns()}"

    def note_stored(self, number: int) -> None:
        """The broker has answered that it stored the message."""
        self._stored[number] = 1

    @property
    def received(self) -> int:
        """Different messages so far."""
        return len(self.latencies_ns)

    @property
    def lost(self) -> int:
        """Stored messages that were not received so far."""
        return sum(
            stored and not received for stored, received in zip(self._stored, self._received, strict=True)
        )

    async def run(self, address: str, *, topic: str, queues: int, security: ClientSecurity) -> None:
        """Receive until cancelled. Raises PeerError."""
        settings = ConsumerSettings(
            topic, start_at=StartAt(Start.LAST), unacknowledged_max=1 << 20, suspend_s=15.0
        )
        async with (
            open_cluster(broker=SingleBroker(address, queues), security=security) as cluster,
            Consumer(cluster, settings) as consumer,
        ):
            await consumer.positioned.wait()
            self.started.set()
            async for batch in consumer:
                now_ns = time.perf_counter_ns()
                for message in batch:
                    self._receive(message, now_ns)
                consumer.acknowledge(batch)
                self._news.set()

    async def wait_all(self, *, timeout_s: float) -> None:
        """Wait until all stored messages were received, or none has come for `timeout_s`."""
        while self.lost:
            self._news = trio.Event()
            with trio.move_on_after(timeout_s) as waiting:
                await self._news.wait()
            if waiting.cancelled_caught:
                return

    async def wait_started(self, address: str, *, timeout_s: float) -> None:
        """Wait until it has its start offsets. Raises PeerError if it does not get them in time."""
        with trio.move_on_after(timeout_s):
            await self.started.wait()
            return
        raise PeerError(f"no start offsets of its queues within {timeout_s:g} s", address=address)

    def _receive(self, message: ReceivedMessage, now_ns: int) -> None:
        load_id, _, rest = message.properties.get(LOAD_PROPERTY, "").partition("-")
        if load_id != self._id:
            return
        number_text, _, sent_ns_text = rest.partition("-")
        number = int(number_text)
        if self._received[number]:
            self.duplicates += 1
            return
        self._received[number] = 1
        self.latencies_ns.append(now_ns - int(sent_ns_text))
