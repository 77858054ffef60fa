"""A load that pops, and one of timers: what is acknowledged does not come again, and nothing else is lost.

One task sends messages and timers, pops and acknowledges, one request after the other, to the master. Most
messages are acknowledged, some are left, and come again in the retry topic.

An acknowledgement counts if it was answered 0 before the message's time was over, seen from here: from the
moment before the pop was sent. Such a message must be in no answer to a pop that was sent later. In the end
an acknowledgement was sent of all that the master promised. Timers are counted in the log: each that was
promised is there once, no other more than once, and none before its time.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path

import trio

from tests.faults.producer import KEY_PROPERTY, PUT_OK
from tests.interop.popping import BROKER, PoppedMessage, messages_of
from trioha.errors import PeerError
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    SendMessageRequestHeader,
    put_status_name,
    send_request,
)
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Record

TOPIC, TIMED_TOPIC, GROUP = "TopicPopped", "TopicTimed", "poppers"
QUEUES = 2
INVISIBLE_S = 2.0
DELIVERED_PROPERTY = "TIMER_DELIVER_MS"
ANSWER_TIMEOUT_S = 4.0
PAUSE_S = 0.05
DRAINED_WITHIN_S = 60.0
"""Messages come again each 4 to 7 s until they are acknowledged."""
SEEN_AFTER_S = 8.0
"""A message that is not acknowledged comes again 2 to 5 s after its time: so long after the last
acknowledgement it is seen whether one was in vain, and nothing waits for its time any more."""
ACKNOWLEDGED = 0.8
"""Of the messages that come while there are faults."""


class PopLoad:
    """Sends, pops and acknowledges for as long as `run` lives, at whichever address is in use."""

    def __init__(self, *, seed: int, broker: str = BROKER, master_stays: bool = True) -> None:
        """`broker`: the name of the nodes. `master_stays`: the master comes back with its log, so that an
        acknowledgement counts that no slave has."""
        self._broker = broker
        self._master_stays = master_stays
        self._chance = random.Random(f"pops {seed}")
        self._seed = seed
        self._sent = 0
        self._address: str | None = None
        self._address_known = trio.Event()
        self._is_stopped = False
        self._drained = trio.Event()
        self.promised: set[str] = set()
        """Keys of messages that were answered PUT_OK."""
        self.timers: dict[str, int] = {}
        """When timers are due whose sends were answered PUT_OK, ms since 1970, by key."""
        self.tried: set[str] = set()
        """Keys of messages of which an acknowledgement was sent. Those that are not in `acknowledged`, as it
        had another answer, none, or a late one, may come again, and need not."""
        self.acknowledged: dict[str, float] = {}
        """By key, when an acknowledgement that counts was answered."""
        self.came_again: Counter[str] = Counter()
        """Keys of messages that came although they were acknowledged, and how often."""
        self._tried_s = 0.0
        """When the last acknowledgement was sent."""
        self.popped = 0
        self.given_again = 0
        """Messages that came from the retry topic."""

    def use(self, address: str | None) -> None:
        """Go on at `address`; None while the master is down."""
        self._address = address
        if address is not None:
            self._address_known.set()
        elif self._address_known.is_set():
            self._address_known = trio.Event()

    @property
    def missing(self) -> set[str]:
        """Keys of promised messages of which no acknowledgement was sent."""
        return self.promised - self.tried

    def stop(self) -> None:
        """Send nothing more; `run` returns when all that is left is acknowledged."""
        self._is_stopped = True

    async def drain(self) -> None:
        """As `stop`; returns when `run` does."""
        self.stop()
        await self._drained.wait()

    async def run(self) -> None:
        while not self._is_done:
            address = self._address
            if address is None:
                await self._address_known.wait()
                continue
            try:
                async with open_client(address) as client:
                    await self._serve(client, address)
            except PeerError:
                pass  # the master has ended, or does not answer: tried again below
            await trio.sleep(PAUSE_S)
        self._drained.set()

    @property
    def _is_done(self) -> bool:
        is_seen = trio.current_time() > self._tried_s + SEEN_AFTER_S
        return self._is_stopped and is_seen and not self.missing

    async def _serve(self, client: RemotingClient, address: str) -> None:
        await self._make_topics(client)
        while address == self._address and not self._is_done:
            if not self._is_stopped:
                await self._send(client)
            await self._consume(client)
            await trio.sleep(PAUSE_S)

    async def _make_topics(self, client: RemotingClient) -> None:
        for topic in (TOPIC, TIMED_TOPIC):
            fields = {
                "topic": topic, "defaultTopic": DEFAULT_TOPIC, "readQueueNums": str(QUEUES),
                "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0", "order": "false",
            }  # fmt: skip
            await self._ask(client, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields))
        group = json.dumps({"groupName": GROUP}).encode()
        await self._ask(client, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group))

    async def _ask(self, client: RemotingClient, command: RemotingCommand) -> RemotingCommand:
        return await client.request(command, timeout_s=ANSWER_TIMEOUT_S)

    async def _send(self, client: RemotingClient) -> None:
        self._sent += 1
        key, now_ms = f"P{self._seed:07X}{self._sent:08X}", time.time_ns() // 1_000_000
        properties, topic, due_ms = {KEY_PROPERTY: key}, TOPIC, 0
        if self._sent % 4 == 0:
            topic, due_ms = TIMED_TOPIC, now_ms + self._chance.randint(500, 4000)
            properties[DELIVERED_PROPERTY] = str(due_ms)
        header = SendMessageRequestHeader(
            producer_group="faults",
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=QUEUES,
            queue_id=self._sent % QUEUES,
            sys_flag=0,
            born_timestamp_ms=now_ms,
            flag=0,
            properties=encode_properties(properties).decode(),
        )
        answer = await self._ask(client, send_request(header, self._chance.randbytes(100)))
        if put_status_name(answer) == PUT_OK:
            if due_ms:
                self.timers[key] = due_ms
            else:
                self.promised.add(key)

    async def _consume(self, client: RemotingClient) -> None:
        asked_s = trio.current_time()
        fields = {
            "consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "8",
            "invisibleTime": str(round(1000 * INVISIBLE_S)), "pollTime": "0", "bornTime": "0",
            "initMode": "0", "order": "false",
        }  # fmt: skip
        answer = await self._ask(client, request(RequestCode.POP_MESSAGE, ext_fields=fields))
        if answer.code != ResponseCode.SUCCESS:
            return
        messages = messages_of(answer, TOPIC, GROUP, broker=self._broker)
        for message in messages:
            self.given_again += message.real_topic != TOPIC
            self.note(message.properties[KEY_PROPERTY], asked_s=asked_s)
        kept = [one for one in messages if self._is_stopped or self._chance.random() < ACKNOWLEDGED]
        async with trio.open_nursery() as nursery:
            for message in kept:
                nursery.start_soon(self._acknowledge, client, message, asked_s)

    def note(self, key: str, *, asked_s: float) -> None:
        """A message has come with the answer to a pop that was sent then."""
        self.popped += 1
        if self.acknowledged.get(key, asked_s) < asked_s:
            self.came_again[key] += 1

    async def _acknowledge(self, client: RemotingClient, message: PoppedMessage, asked_s: float) -> None:
        key = message.properties[KEY_PROPERTY]
        self.tried.add(key)
        self._tried_s = trio.current_time()
        try:
            answer = await self._ask(client, request(RequestCode.ACK_MESSAGE, ext_fields=message.fields()))
        except PeerError:
            return
        answered_s = trio.current_time()
        counts = answer.code == ResponseCode.SUCCESS and (answer.remark is None or self._master_stays)
        if counts and answered_s - asked_s < INVISIBLE_S:
            self.acknowledged.setdefault(key, answered_s)

    def figures(self) -> dict[str, int]:
        """What was done."""
        return {"popped": self.popped, "given_again": self.given_again, "timers": len(self.timers)}

    def violations(self, store: Path) -> list[str]:
        """What does not hold at the end; timers are counted in the log of `store`. Raises StoreError."""
        found = [
            f"{key} is acknowledged, and came {times} more times" for key, times in self.came_again.items()
        ]
        found += [f"{key} was sent with PUT_OK, and never came" for key in sorted(self.missing)]
        return found + self._wrong_timers(store)

    def _wrong_timers(self, store: Path) -> list[str]:
        log, delivered = ReadOnlyCommitLog.open(store), Counter[str]()
        found = []
        for record in log.records(log.min_offset):
            if not isinstance(record, Record) or record.topic != TIMED_TOPIC:
                continue
            properties = parse_properties(record.properties_raw)
            key, due_ms = properties[KEY_PROPERTY], int(properties[DELIVERED_PROPERTY])
            delivered[key] += 1
            if record.store_timestamp_ms < due_ms:
                found.append(f"timer {key} was delivered {due_ms - record.store_timestamp_ms} ms early")
        found += [f"timer {key} was delivered {times} times" for key, times in delivered.items() if times > 1]
        found += [f"timer {key} was not delivered" for key in sorted(self.timers.keys() - delivered.keys())]
        return found
