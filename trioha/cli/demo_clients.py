"""The demo's producer and consumer: RocketMQ's own in a JVM where Maven and a JDK are there, else trioha's.

Both do the same: the producer sends numbered messages one after the other at an even rate, the consumer is a
member of a group and receives them in order. A `ClientLedger` keeps what each of them reported. They begin
when the nodes replicate, and go on while the demo breaks things.
"""

from __future__ import annotations

import math
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import trio
from attrs import define, field

from trioha.cli.load import PUT_OK
from trioha.cli.parent_death_pipe import stop
from trioha.cli.patience import patience
from trioha.cli.rocketmq_jars import JDK_MAJOR_MIN, VERSION, JarsError, client_jars, java_tool
from trioha.client.cluster import Cluster, in_background, open_cluster
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.client.messages import Message
from trioha.client.producer import Producer, ProducerSettings, SendError
from trioha.errors import PeerError, TriohaError
from trioha.metadata.topics import DEFAULT_TOPIC
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

TOPIC: Final = "TopicDemoClients"
GROUP: Final = "demo-consumer"
RATE: Final = 100.0
"""Messages per second."""
QUEUES: Final = 4
RECEIVE_TIMEOUT_S: Final = 60.0
"""Without a further message, while the consumer lacks some that were stored."""
POLL_INTERVAL_S: Final = 0.1
END_TIMEOUT_S: Final = 10.0
NO_ANSWER: Final = "NO_ANSWER"
JAVA_SOURCE: Final = Path(__file__).with_name("DemoClients.java")
_LINE_BYTES_MAX = 4096
_JAVA_STATUSES = {"SEND_OK": PUT_OK}
"""Names of put statuses that differ in Java's client."""
_JVM_FLAGS = (
    "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Drocketmq.client.logUseSlf4j=true",
)  # fmt: skip


class ClientKind(Enum):
    """Which producer and consumer the demo uses."""

    AUTO = "auto"
    """RocketMQ's if it can be had, else trioha's."""
    JAVA = "java"
    TRIOHA = "trioha"


@define
class ClientLedger:
    """What producer and consumer reported: statuses of sends and receipts, by the number of the message."""

    sent: dict[int, str] = field(factory=dict)
    """Put status of each answered send."""
    places: dict[int, tuple[int, int]] = field(factory=dict)
    """Queue id and queue offset that the answer to the send gave."""
    receipts: dict[int, tuple[int, int]] = field(factory=dict)
    """Queue id and queue offset at the first receipt."""
    duplicated: int = 0
    """Receipts of messages that had been received before."""
    out_of_order: int = 0
    """First receipts after a later message of the same queue."""
    _last_by_queue: dict[int, int] = field(factory=dict)
    _changed: trio.Event = field(factory=trio.Event)

    def note_sent(self, number: int, status: str, place: tuple[int, int] | None = None) -> None:
        """The send of a message has ended; `place` is its queue id and queue offset if it is stored."""
        self.sent[number] = status
        if place is not None:
            self.places[number] = place
        self._wake()

    def note_received(self, number: int, place: tuple[int, int]) -> None:
        """The consumer received a message from `place`, its queue id and queue offset."""
        if number in self.receipts:
            self.duplicated += 1
        else:
            self.receipts[number] = place
            queue_id, _ = place
            last = self._last_by_queue.get(queue_id, -1)
            self.out_of_order += number < last
            self._last_by_queue[queue_id] = max(number, last)
        self._wake()

    @property
    def produced(self) -> int:
        """Sends that have ended."""
        return len(self.sent)

    @property
    def consumed(self) -> int:
        """Different messages that were received."""
        return len(self.receipts)

    @property
    def lost(self) -> int:
        """Messages that were stored, by the answer to their send, and not received so far."""
        return len(self.places.keys() - self.receipts.keys())

    @property
    def misplaced(self) -> int:
        """Messages received from another place than the answer to their send gave."""
        return sum(
            place != self.receipts[number] for number, place in self.places.items() if number in self.receipts
        )

    @property
    def queues(self) -> int:
        """Queues with messages that were received."""
        return len(self._last_by_queue)

    @property
    def statuses(self) -> Counter[str]:
        """Sends by put status."""
        return Counter(self.sent.values())

    def to_json(self) -> dict[str, object]:
        """The figures, as `trioha demo --json` prints them."""
        return {
            "produced": self.produced,
            "statuses": dict(self.statuses),
            "consumed": self.consumed,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "outOfOrder": self.out_of_order,
        }

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def wait(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait until `condition`, which depends on this ledger, holds; whether it does within `timeout_s`."""
        with trio.move_on_after(timeout_s):
            while not condition():
                await self._changed.wait()
        return condition()

    async def wait_received(self) -> None:
        """Wait until all stored messages are received, or none comes for `RECEIVE_TIMEOUT_S`."""
        goes_on = True
        while self.lost and goes_on:
            consumed = self.consumed
            goes_on = await self.wait(lambda: self.consumed > consumed, timeout_s=RECEIVE_TIMEOUT_S)  # noqa: B023


class DemoClients(Protocol):
    """A running producer and consumer."""

    async def finish(self) -> None:
        """End the producer; return when all that it was answered about is in the ledger."""
        ...


async def chosen_clients(kind: ClientKind, *, log: Callable[[str], None]) -> Path | None:
    """The jars of RocketMQ's client, or None for trioha's own clients; `log` gets which and why.

    Raises JarsError if RocketMQ's must be used and cannot.
    """
    if kind is not ClientKind.TRIOHA:
        try:
            jars = await client_jars(log=log)
        except JarsError as error:
            why = f"RocketMQ's clients need Maven and a JDK of {JDK_MAJOR_MIN} or newer, but {error}"
            if kind is ClientKind.JAVA:
                raise JarsError(why) from None
            log(f"producer and consumer: trioha's own; {why}")
            return None
        log(f"producer and consumer: {clients_name(jars)}")
        return jars
    log(f"producer and consumer: {clients_name(None)}")
    return None


def clients_name(jars: Path | None) -> str:
    """The name of the clients that are used with `jars`."""
    return "trioha's own" if jars is None else f"RocketMQ {VERSION}'s own, in Java"


async def make_topic(cluster: Cluster, *, log: Callable[[str], None]) -> None:
    """Make the topic of the clients at the brokers that are registered, and wait until it has a route.

    A topic that a first send makes would depend on one send, and Java's consumer looks again for an unknown
    one after 30 s only. Raises TriohaError if there is no route after `PATIENCE_S`.
    """
    fields = {
        "topic": TOPIC, "defaultTopic": DEFAULT_TOPIC, "readQueueNums": str(QUEUES),
        "writeQueueNums": str(QUEUES), "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0",
        "order": "false",
    }  # fmt: skip
    made: set[str] = set()
    async with patience(f"the name server to have {TOPIC}", log=log):
        while True:
            # A name server or broker that does not answer yet is asked again.
            with suppress(PeerError):
                await cluster.routes.fetch(TOPIC)
                return
            with suppress(PeerError):
                route = await cluster.routes.fetch(DEFAULT_TOPIC)
                for address in {*route.addresses(masters_only=True)} - made:
                    answer = await cluster.request(
                        address, request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=fields)
                    )
                    if answer.code == ResponseCode.SUCCESS:
                        made.add(address)
            await trio.sleep(POLL_INTERVAL_S)


@asynccontextmanager
async def open_clients(
    ledger: ClientLedger,
    *,
    jars: Path | None,
    name_server: str,
    folder: Path,
    log: Callable[[str], None],
    rate: float = RATE,
) -> AsyncIterator[DemoClients]:
    """Producer and consumer, until the end of the block; the consumer has received the first message.

    The topic has a route. `jars` are those of `chosen_clients`, `folder` is for the logs of a JVM, which
    compiles its program first. Raises TriohaError if they do not start.
    """
    if jars is None:
        clients = _trioha_clients(ledger, name_server=name_server, rate=rate)
    else:
        clients = _java_clients(ledger, jars=jars, name_server=name_server, folder=folder, rate=rate)
    async with clients as running:
        async with patience("the consumer's first message", log=log):
            await ledger.wait(lambda: ledger.consumed > 0, timeout_s=math.inf)
        yield running


# -- trioha's ------------------------------------------------------------------------------------------------


class _TriohaClients:
    def __init__(self, ledger: ClientLedger, producer: Producer, *, rate: float) -> None:
        self._ledger = ledger
        self._producer = producer
        self._rate = rate
        self._is_stopping = False
        self._stopped = trio.Event()

    async def produce(self) -> None:
        start_s = trio.current_time()
        number = 0
        while not self._is_stopping:
            await trio.sleep_until(start_s + number / self._rate)
            try:
                result = await self._producer.send(Message(TOPIC, str(number).encode()))
            except SendError as error:
                self._ledger.note_sent(number, error.status)
            else:
                place = result.queue.queue_id, result.queue_offset
                self._ledger.note_sent(number, result.status, place)
            number += 1
        self._stopped.set()

    async def finish(self) -> None:
        self._is_stopping = True
        await self._stopped.wait()


@asynccontextmanager
async def _trioha_clients(
    ledger: ClientLedger, *, name_server: str, rate: float
) -> AsyncIterator[DemoClients]:
    # Each message is sent once: an answer is the only word about it.
    sending = ProducerSettings(attempts_max=1, attempt_timeout_s=10.0)
    receiving = ConsumerSettings(TOPIC, group=GROUP, start_at=StartAt(Start.FIRST))
    async with (
        open_cluster(name_servers=(name_server,)) as cluster,
        Producer(cluster, sending) as producer,
        Consumer(cluster, receiving) as consumer,
    ):

        async def consume() -> None:
            async for batch in consumer:
                for message in batch:
                    ledger.note_received(int(message.body), (message.queue.queue_id, message.queue_offset))
                consumer.acknowledge(batch)

        clients = _TriohaClients(ledger, producer, rate=rate)
        async with in_background(clients.produce, consume):
            yield clients


# -- RocketMQ's ----------------------------------------------------------------------------------------------


class _JavaClients:
    def __init__(self, ledger: ClientLedger, process: trio.Process) -> None:
        self._ledger = ledger
        self._process = process
        self._stopped = trio.Event()

    async def read_events(self, log: Path) -> None:
        """Put the events that the driver prints into the ledger. Raises TriohaError when it ends."""
        stdout = self._process.stdout
        assert stdout is not None, "asked for as a pipe"
        rest = b""
        async for part in stdout:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._note(line.decode())
            if len(rest) > _LINE_BYTES_MAX:
                break
        tail = "\n".join((await trio.Path(log).read_text(errors="replace")).splitlines()[-10:])
        raise TriohaError(f"RocketMQ's clients ended; their log ends:\n{tail}")

    def _note(self, line: str) -> None:
        match line.split():
            case ["sent", number, status, queue_id, queue_offset]:
                place = int(queue_id), int(queue_offset)
                self._ledger.note_sent(int(number), _JAVA_STATUSES.get(status, status), place)
            case ["failed", number]:
                self._ledger.note_sent(int(number), NO_ANSWER)
            case ["received", number, queue_id, queue_offset]:
                self._ledger.note_received(int(number), (int(queue_id), int(queue_offset)))
            case ["stopped"]:
                self._stopped.set()
            case _:
                raise TriohaError(f"RocketMQ's clients printed {line[:200]!r}")

    async def command(self, text: str) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "asked for as a pipe"
        await stdin.send_all(text.encode() + b"\n")

    async def finish(self) -> None:
        await self.command("stop")
        await self._stopped.wait()


@asynccontextmanager
async def _java_clients(
    ledger: ClientLedger, *, jars: Path, name_server: str, folder: Path, rate: float
) -> AsyncIterator[DemoClients]:
    log = folder / "clients.log"
    with log.open("ab") as stderr:
        # It ends with its stdin, so it does not outlive the demo.
        process = await trio.lowlevel.open_process(
            [
                java_tool("java"), *_JVM_FLAGS, f"-Duser.home={folder}", "-cp", f"{jars}/*",
                str(JAVA_SOURCE), name_server, TOPIC, GROUP, str(rate),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
        )  # fmt: skip
    try:
        clients = _JavaClients(ledger, process)
        async with in_background(partial(clients.read_events, log)):
            yield clients
        with trio.move_on_after(END_TIMEOUT_S):
            await clients.command("end")
            await process.wait()
    finally:
        await stop(process)
        for stream in (process.stdin, process.stdout):
            assert stream is not None, "asked for as pipes"
            await trio.aclose_forcefully(stream)
