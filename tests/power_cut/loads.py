"""What is sent to the nodes of a scenario, and what they acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

import trio

from tests.faults.metadata import Offsets, last_write_s
from tests.faults.producer import KEY_PROPERTY, LoadSettings, Producer
from tests.faults.trio_thread import TrioThread
from trioha.broker.delayed_messages import DELAY
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    SendMessageRequestHeader,
    send_request,
)
from trioha.store.message_properties import encode_properties

SEEN_EVERY_S: Final = 0.02
PRODUCED_WITHIN_S: Final = 60.0
ANSWERED_WITHIN_S: Final = 30.0


class Load(TrioThread):
    """The producer of the fault runs, which commits offsets, too, and watches their file."""

    def __init__(self, settings: LoadSettings, *, seed: int, store: Path | None = None) -> None:
        """`store`: where the file of consumer offsets is watched."""
        self.producer = Producer(settings, seed=seed, commits=store is not None)
        self._store = store
        self._produced = trio.Event()
        super().__init__()

    async def _begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._produce)
        if self._store is not None:
            nursery.start_soon(self._watch_writes, self._store)

    async def _produce(self) -> None:
        await self.producer.run()
        self._produced.set()

    async def _watch_writes(self, store: Path) -> None:
        while True:
            if (written_s := last_write_s(store)) is not None:
                self.producer.ledger.note_write(written_s)
            await trio.sleep(SEEN_EVERY_S)

    def use(self, address: str | None) -> None:
        self.call(self.producer.use, address)

    def finish(self) -> None:
        """Send nothing more, and wait until all is answered and all offsets are committed."""
        self.producer.stop()
        self.run(self._produced.wait, within_s=PRODUCED_WITHIN_S)

    def written_offsets(self) -> Offsets:
        """The offsets that a power cut now may not take."""
        return self.call(self.producer.ledger.surely_written)


class Requests(TrioThread):
    """Asks one node one thing after the other, and remembers what was answered with success."""

    def __init__(self, address: str, make: Callable[[int], tuple[str, RemotingCommand]]) -> None:
        """`make` gives a name and a request for each number from 1 on."""
        self._address = address
        self._make = make
        self.acknowledged: list[str] = []
        """Names of the requests that were answered with success."""
        super().__init__()

    async def _begin(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._ask)

    async def _ask(self) -> None:
        async with open_client(self._address) as client:
            for number in count(1):
                name, command = self._make(number)
                answer = await client.request(command, timeout_s=ANSWERED_WITHIN_S)
                assert answer.code == ResponseCode.SUCCESS, f"{name}: {answer.code} {answer.remark}"
                self.acknowledged.append(name)


def topic_or_group(number: int) -> tuple[str, RemotingCommand]:
    """A request that makes a topic, or a group."""
    if number % 2:
        name = f"Topic{number}"
        fields = {"topic": name, "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
        return name, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
    name = f"group{number}"
    body = f'{{"groupName":"{name}"}}'.encode()
    return name, request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def delayed_message(topic: str) -> Callable[[int], tuple[str, RemotingCommand]]:
    """What makes requests that send messages of the first delay level."""

    def make(number: int) -> tuple[str, RemotingCommand]:
        key = f"D{number}"
        header = SendMessageRequestHeader(
            producer_group="power-cut",
            topic=topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=4,
            queue_id=number % 4,
            sys_flag=0,
            born_timestamp_ms=time.time_ns() // 1_000_000,
            flag=0,
            properties=encode_properties({KEY_PROPERTY: key, DELAY: "1", "WAIT": "true"}).decode(),
        )
        return key, send_request(header, b"delayed")

    return make
