"""A load that remembers what the master promised: which message, where, and with which answer."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from zlib import crc32

import trio
from attrs import frozen

from tests.faults.metadata import GROUP, CommitLedger, Queue
from trioha.errors import PeerError
from trioha.remoting.client import NO_SECURITY, ClientSecurity, RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
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
COMMIT_INTERVAL_S = 0.1
COMMITTED_WITHIN_S = 30.0
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
    answered_by: str = ""
    """`host:port` of the node that did."""


class Producer:
    """Sends for as long as `run` lives, to whichever address is in use."""

    def __init__(
        self,
        settings: LoadSettings,
        *,
        seed: int,
        commits: bool = True,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`commits`: whether it also commits offsets, as a consumer of all that was promised."""
        self._commits = commits
        self._security = security
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
        self._leaving = trio.Event()
        self._stopped = False
        self._has_sent_all = False
        self._all_committed = trio.Event()
        self.promises: list[Promise] = []
        """In the order of their answers."""
        self.statuses: Counter[str] = Counter()
        self.consumed: dict[Queue, int] = {}
        """Ends of the queues as far as they are promised: where `GROUP` goes on."""
        self._committed: dict[Queue, int] = {}
        """Those whose commit was answered on this connection."""
        self.ledger = CommitLedger()
        """All commits that were answered."""
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

    def leave(self) -> None:
        """Connect anew, to the address in use; answers that are under way are lost."""
        if self._client is not None:
            self._leaving.set()

    def forget(self) -> None:
        """What was promised is void: the log that held it is gone, on purpose."""
        self.promises.clear()
        self.consumed.clear()
        self._committed.clear()
        self.ledger.restart({})

    async def wait_lost(self) -> None:
        """Return when there is no connection, and no answer to come any more."""
        await self._lost.wait()

    def stop(self) -> None:
        """Send nothing more; `run` returns when all answers are there."""
        self._stopped = True

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stay_connected)
            if self._commits:
                nursery.start_soon(self._commit)
            async with trio.open_nursery() as senders:
                for _ in range(self._settings.concurrency):
                    senders.start_soon(self._send)
            # All that was promised is committed in the end, unless the master refuses it.
            self._has_sent_all = True
            if self._commits:
                with trio.move_on_after(COMMITTED_WITHIN_S):
                    await self._all_committed.wait()
            nursery.cancel_scope.cancel()

    async def _stay_connected(self) -> None:
        while True:
            address = self._address
            if address is None:
                await self._address_known.wait()
                continue
            try:
                async with open_client(address, security=self._security) as client:
                    self._lost = trio.Event()
                    self._client = client
                    # A master that was killed does not have the last commits: all follow again.
                    self._committed.clear()
                    self._connected.set()
                    async with trio.open_nursery() as waiting:
                        self._leaving = trio.Event()
                        if address != self._address:
                            self._leaving.set()  # it has changed since this one was dialled
                        waiting.start_soon(self._wait_leaving, waiting.cancel_scope)
                        await client.wait_lost()
                        waiting.cancel_scope.cancel()
            except PeerError:
                pass  # not up, or down again: tried again below
            finally:
                self._client = None
                self._connected = trio.Event()
                self._lost.set()
            await trio.sleep(RECONNECT_PAUSE_S)

    async def _wait_leaving(self, scope: trio.CancelScope) -> None:
        await self._leaving.wait()
        scope.cancel()

    async def _commit(self) -> None:
        """Commit offsets of a group that has consumed all that was promised."""
        while True:
            await trio.sleep(COMMIT_INTERVAL_S)
            for queue, offset in list(self.consumed.items()):
                client = self._client
                if client is not None and self._committed.get(queue) != offset:
                    await self._commit_one(client, queue, offset)
            if self._has_sent_all and self._committed == self.consumed:
                self._all_committed.set()

    async def _commit_one(self, client: RemotingClient, queue: Queue, offset: int) -> None:
        topic, queue_id = queue
        fields = {
            "topic": topic,
            "consumerGroup": GROUP,
            "queueId": str(queue_id),
            "commitOffset": str(offset),
        }
        commit = request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields)
        timeout_s = self._settings.answer_timeout_s
        try:
            answer = await client.request(commit, timeout_s=timeout_s)
            if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                # At the start, and at a master that has lost its store.
                body = json.dumps({"groupName": GROUP}).encode()
                group = request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
                await client.request(group, timeout_s=timeout_s)
                return
        except PeerError:
            return
        # The master may have ended since, and its log be lost with all offsets.
        if answer.code == ResponseCode.SUCCESS and client is self._client and queue in self.consumed:
            self._committed[queue] = offset
            self.ledger.acknowledge(queue, offset)

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
            stored = SendMessageResponseHeader.of(answer)
            message_id = stored.msg_id
            queue = (header.topic, stored.queue_id)
            self.consumed[queue] = max(self.consumed.get(queue, 0), stored.queue_offset + 1)
            # Store host and physical offset, in hex (docs/protocol/store.md#ids-and-hashes).
            self.promises.append(
                Promise(key, int(message_id[-16:], 16), crc32(body), answered_by=client.address)
            )

    def _body(self) -> bytes:
        longest = self._settings.body_bytes_max
        # One in twenty is long, so that records end all over frames and files.
        size = self._chance.randint(1, longest if self._chance.random() < 0.05 else min(longest, 2000))
        start = self._chance.randrange(64 * 1024)
        return self._pool[start : start + size]
