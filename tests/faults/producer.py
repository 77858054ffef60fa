"""A load that remembers what the master promised: which message, where, and with which answer."""

from __future__ import annotations

import random
import time
from collections import Counter
from zlib import crc32

import trio
from attrs import frozen

from trioha.errors import PeerError
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
    put_status_name,
    send_request,
)
from trioha.store.message_properties import encode_properties

PUT_OK = "PUT_OK"
NO_ANSWER = "NO_ANSWER"
"""Not RocketMQ's: the connection ended, or nothing came in time. The message may be stored."""
ANSWER_TIMEOUT_S = 4.0
RECONNECT_PAUSE_S = 0.02
TOPICS = ("TopicFault", "TopicFault-longer_name")
QUEUES = 4
KEY_PROPERTY = "UNIQ_KEY"


@frozen
class LoadSettings:
    """What a producer sends."""

    concurrency: int
    """Messages in flight at a time."""
    rate: float
    """Messages per second, all senders together."""
    body_bytes_max: int
    """Bodies are mostly short; the longest have this length."""
    topics: tuple[str, ...] = TOPICS
    answer_timeout_s: float = ANSWER_TIMEOUT_S
    """How long an answer may take."""


@frozen
class Promise:
    """A message that was answered PUT_OK."""

    key: str
    physical_offset: int
    body_crc32: int


class Producer:
    """Sends for as long as `run` lives, to whichever address is in use."""

    def __init__(self, settings: LoadSettings, *, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._chance = random.Random(f"producer {seed}")
        self._pool = self._chance.randbytes(64 * 1024 + settings.body_bytes_max)
        self._sent = 0
        self._address: str | None = None
        self._address_known = trio.Event()
        self._client: RemotingClient | None = None
        self._lost = trio.Event()
        self._lost.set()
        self._connected = trio.Event()
        self._stopped = False
        self.promises: list[Promise] = []
        """In the order of their answers."""
        self.statuses: Counter[str] = Counter()
        self.slowest_s = 0.0
        """Of all answers that came."""

    def use(self, address: str | None) -> None:
        """Send to `address` from now on; None while the master is down."""
        self._address = address
        if address is not None:
            self._address_known.set()
        elif self._address_known.is_set():
            # Not twice: all waiting tasks wait for the next address already.
            self._address_known = trio.Event()

    def forget(self) -> None:
        """What was promised is void: the log that held it is gone, on purpose."""
        self.promises.clear()

    async def wait_lost(self) -> None:
        """Return when there is no connection, and no answer to come any more."""
        await self._lost.wait()

    def stop(self) -> None:
        """Send nothing more; `run` returns when all answers are there."""
        self._stopped = True

    async def run(self) -> None:
        """Send until `stop`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stay_connected)
            async with trio.open_nursery() as senders:
                for _ in range(self._settings.concurrency):
                    senders.start_soon(self._send)
            nursery.cancel_scope.cancel()

    async def _stay_connected(self) -> None:
        while True:
            address = self._address
            if address is None:
                await self._address_known.wait()
                continue
            try:
                async with open_client(address) as client:
                    self._lost = trio.Event()
                    self._client = client
                    self._connected.set()
                    await client.wait_lost()
            except PeerError:
                pass  # not up, or down again: tried again below
            finally:
                self._client = None
                self._connected = trio.Event()
                self._lost.set()
            await trio.sleep(RECONNECT_PAUSE_S)

    async def _send(self) -> None:
        pause_s = self._settings.concurrency / self._settings.rate
        while not self._stopped:
            with trio.move_on_after(0.1):
                await self._connected.wait()
            client = self._client
            if client is not None:
                await self._send_one(client)
            await trio.sleep(pause_s * self._chance.uniform(0.5, 1.5))

    async def _send_one(self, client: RemotingClient) -> None:
        self._sent += 1
        key = f"{self._seed:08X}{self._sent:08X}"
        body = self._body()
        header = SendMessageRequestHeader(
            producer_group="faults",
            topic=self._chance.choice(self._settings.topics),
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=QUEUES,
            queue_id=self._sent % QUEUES,
            sys_flag=0,
            born_timestamp_ms=time.time_ns() // 1_000_000,
            flag=0,
            properties=encode_properties({KEY_PROPERTY: key, "WAIT": "true"}).decode(),
        )
        began_s = trio.current_time()
        try:
            answer = await client.request(
                send_request(header, body), timeout_s=self._settings.answer_timeout_s
            )
        except PeerError:
            self.statuses[NO_ANSWER] += 1
            return
        self.slowest_s = max(self.slowest_s, trio.current_time() - began_s)
        status = put_status_name(answer)
        self.statuses[status] += 1
        if status == PUT_OK:
            message_id = SendMessageResponseHeader.of(answer).msg_id
            # Store host and physical offset, in hex (spec store 2.7).
            self.promises.append(Promise(key, int(message_id[-16:], 16), crc32(body)))

    def _body(self) -> bytes:
        longest = self._settings.body_bytes_max
        # One in twenty is long, so that records end all over frames and files.
        size = self._chance.randint(1, longest if self._chance.random() < 0.05 else min(longest, 2000))
        start = self._chance.randrange(64 * 1024)
        return self._pool[start : start + size]
