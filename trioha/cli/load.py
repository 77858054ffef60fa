"""`trioha load`: send messages to a broker, receive them if wanted, count and measure latencies."""

from __future__ import annotations

import math
import os
import random
import signal
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from ipaddress import ip_address
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Final

import trio
from attrs import field, frozen
from attrs.validators import ge
from cyclopts import Parameter
from rich.progress import MofNCompleteColumn, TextColumn
from rich.table import Table

from trioha.cli.clients import find_master, name_servers_of
from trioha.cli.console import err, out, print_json
from trioha.cli.load_consumption import LOAD_PROPERTY, Consumption, LoadConsumer
from trioha.cli.progress import bars
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.client.cluster import in_background
from trioha.distribution import nearest_rank
from trioha.errors import ConfigError, PeerError
from trioha.node.logs import configure_logs
from trioha.numbers import NATURAL32, parse_int
from trioha.palette import put_status
from trioha.remoting.address import Address, parse_address
from trioha.remoting.client import (
    NO_SECURITY,
    ClientSecurity,
    ConnectionLostError,
    RemotingClient,
    RequestTimeoutError,
    open_client,
)
from trioha.remoting.send_message import (
    DEFAULT_TOPIC,
    PUT_STATUS_CODES,
    STORED_STATUSES,
    SendMessageRequestHeader,
    put_status_name,
    send_request,
)
from trioha.remoting.unique_key import UniqueKeys
from trioha.store.message_properties import encode_properties

PUT_OK: Final = "PUT_OK"
TIMEOUT: Final = "TIMEOUT"
"""Not RocketMQ's: the broker did not answer in time."""
CONNECTION_LOST: Final = "CONNECTION_LOST"
"""Not RocketMQ's: the connection ended before the answer; whether the message is stored is not known."""

PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
BODY_BYTES_MAX: Final = 16 * 1024 * 1024 - 64 * 1024
"""Largest body that fits a remoting frame with its header."""
RECONNECT_PAUSE_FIRST_S: Final = 0.05
RECONNECT_PAUSE_MAX_S: Final = 1.0
PROGRESS_INTERVAL_S: Final = 0.1
COUNT_DEFAULT: Final = 10_000
_BODY_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_POOL_BYTES = 64 * 1024
_STORED_CODES = frozenset(int(PUT_STATUS_CODES[status]) for status in STORED_STATUSES)


@frozen
class LoadPlan:
    """Messages to send, their broker and their rate."""

    broker: Address
    topic: str
    count: int = field(validator=ge(0))
    """Messages."""
    size_bytes_min: int = field(default=1024, validator=ge(0))
    size_bytes_max: int = field(default=1024, validator=ge(0))
    """Sizes of bodies are uniformly distributed between the two, both included."""
    concurrency: int = field(default=16, validator=ge(1))
    """Messages in flight at a time, over one connection."""
    rate: float | None = None
    """Messages per second at most; None for no limit."""
    lines: tuple[bytes, ...] | None = None
    """Bodies to send instead of generated ones, repeated up to `count`."""
    queues: int = field(default=4, validator=ge(1))
    """Queue ids 0 to `queues - 1`, in turn."""
    timeout_s: float = 10.0
    """For each answer; longer than a broker waits for slaves and disk, so that its status arrives."""
    reconnect_timeout_s: float = 30.0
    """How long a broker may be unreachable before the load ends."""
    seed: int = 0
    """The same seed gives the same sizes and bodies in the same order."""
    consume: bool = False
    """Receive the messages, too."""
    security: ClientSecurity = NO_SECURITY
    """Account and TLS of the connections."""


@frozen
class LoadResult:
    """Figures of a load."""

    statuses: Mapping[str, int]
    """Messages by put status, the most frequent first."""
    remarks: Mapping[str, str]
    """For each status that is not PUT_OK: the remark of its first answer, or the text of its first error."""
    latency_ms: Mapping[str, float]
    """Percentiles of the time from a request to its answer; empty without an answer."""
    count: int
    """Messages that ended, with any status."""
    seconds: float
    bytes: int
    """Bodies of those messages."""
    reconnects: int
    complete: bool
    """Whether all messages of the plan have ended."""
    consumption: Consumption | None = None
    """With `consume`: what was received."""

    @property
    def all_ok(self) -> bool:
        """Whether every message of the plan ended with PUT_OK and, with `consume`, was received."""
        is_received = self.consumption is None or not self.consumption.lost
        return self.complete and set(self.statuses) <= {PUT_OK} and is_received

    def to_json(self) -> dict[str, object]:
        """The object that `--json` prints."""
        consumed = {} if self.consumption is None else {"consumed": self.consumption.to_json()}
        return {
            "statuses": dict(self.statuses),
            "latencyMs": {name: round(value, 3) for name, value in self.latency_ms.items()},
            "count": self.count,
            "seconds": round(self.seconds, 3),
            "messagesPerSecond": round(_per_second(self.count, self.seconds), 1),
            "bytes": self.bytes,
            "reconnects": self.reconnects,
            "complete": self.complete,
            "remarks": dict(self.remarks),
            **consumed,
        }


class Load:
    """One load: its senders share one connection, which is replaced when it is lost.

    A message that was in flight when the connection ended counts as CONNECTION_LOST and is not sent again: it
    may be stored. Unsent messages wait for the new connection.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._bodies = enumerate(islice(_bodies(plan), plan.count))
        self._client: RemotingClient | None = None
        self._connected = trio.Event()
        self._keys: UniqueKeys | None = None
        self._latencies_ns = array("q")
        self._statuses: Counter[str] = Counter()
        self._remarks: dict[str, str] = {}
        self._bytes = 0
        self._reconnects = 0
        self._start_s = self._end_s = 0.0
        self._consumer = LoadConsumer(plan.count) if plan.consume else None

    @property
    def ended(self) -> int:
        """Messages that have ended so far."""
        return self._statuses.total()

    @property
    def failed(self) -> int:
        """Messages that ended with another status than PUT_OK."""
        return self._statuses.total() - self._statuses[PUT_OK]

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to the broker now."""
        return self._connected.is_set()

    def result(self) -> LoadResult:
        """The figures so far; they stay usable after `run` was cancelled."""
        return LoadResult(
            statuses=dict(self._statuses.most_common()),
            remarks=dict(self._remarks),
            latency_ms=percentiles_ms(self._latencies_ns),
            count=self.ended,
            seconds=self._end_s - self._start_s,
            bytes=self._bytes,
            reconnects=self._reconnects,
            complete=self.ended == self._plan.count,
            consumption=None if self._consumer is None else _consumption(self._consumer),
        )

    async def run(self) -> None:
        """Send all messages, and receive them with `consume`; returns early if the broker is unreachable for
        `reconnect_timeout_s`.

        Raises PeerError if the first connection fails, or if the consumer does not start.
        """
        consumer, plan = self._consumer, self._plan
        if consumer is None:
            await self._send_all()
            return
        address = str(plan.broker)
        receive = partial(consumer.run, address, topic=plan.topic, queues=plan.queues, security=plan.security)
        async with in_background(receive):
            await consumer.wait_started(address, timeout_s=plan.timeout_s)
            await self._send_all()
            await consumer.wait_all(timeout_s=plan.timeout_s)

    async def _send_all(self) -> None:
        plan = self._plan
        self._start_s = trio.current_time()
        try:
            async with self._connecting() as first:
                self._start_s = self._end_s = trio.current_time()
                self._use(first)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._stay_connected, first, nursery.cancel_scope)
                    async with trio.open_nursery() as senders:
                        for _ in range(plan.concurrency):
                            senders.start_soon(self._send)
                    nursery.cancel_scope.cancel()
        finally:
            self._end_s = trio.current_time()

    def _connecting(self) -> AbstractAsyncContextManager[RemotingClient]:
        plan = self._plan
        return open_client(plan.broker, connect_timeout_s=plan.timeout_s, security=plan.security)

    def _use(self, client: RemotingClient) -> None:
        if self._keys is None:
            local = client.local_address
            ip = ip_address("127.0.0.1" if local is None else local.host.partition("%")[0])
            self._keys = UniqueKeys(ip=ip.packed, pid=os.getpid(), salt=id(self))
        self._client = client
        self._connected.set()

    async def _stay_connected(self, first: RemotingClient, load: trio.CancelScope) -> None:
        await first.wait_lost()
        while True:
            self._client = None
            self._connected = trio.Event()
            give_up_s = trio.current_time() + self._plan.reconnect_timeout_s
            pause_s = RECONNECT_PAUSE_FIRST_S
            while self._client is None:
                try:
                    async with self._connecting() as client:
                        self._reconnects += 1
                        self._use(client)
                        await client.wait_lost()
                except ConnectionLostError as error:
                    if trio.current_time() >= give_up_s:
                        self._remarks.setdefault(CONNECTION_LOST, error.reason)
                        load.cancel()
                    await trio.sleep(pause_s)
                    pause_s = min(2 * pause_s, RECONNECT_PAUSE_MAX_S)

    async def _send(self) -> None:
        plan = self._plan
        for number, body in self._bodies:
            if plan.rate is not None:
                await trio.sleep_until(self._start_s + number / plan.rate)
            while (client := self._client) is None or not client.is_connected:
                await self._connected.wait()
                await trio.lowlevel.checkpoint()
            command = send_request(self._header(number), body)
            start_ns = time.perf_counter_ns()
            try:
                answer = await client.request(command, timeout_s=plan.timeout_s)
            except RequestTimeoutError as error:
                self._count(TIMEOUT, body, error.reason)
            except ConnectionLostError as error:
                self._count(CONNECTION_LOST, body, error.reason)
            else:
                self._latencies_ns.append(time.perf_counter_ns() - start_ns)
                if self._consumer is not None and answer.code in _STORED_CODES:
                    self._consumer.note_stored(number)
                self._count(put_status_name(answer), body, answer.remark)

    def _header(self, number: int) -> SendMessageRequestHeader:
        assert self._keys is not None, "made with the first connection"
        now_ms = time.time_ns() // 1_000_000
        fields = {"UNIQ_KEY": self._keys.next_key(now_ms), "WAIT": "true"}
        if self._consumer is not None:
            fields[LOAD_PROPERTY] = self._consumer.property_of(number)
        properties = encode_properties(fields)
        return SendMessageRequestHeader(
            producer_group="trioha-load",
            topic=self._plan.topic,
            default_topic=DEFAULT_TOPIC,
            default_topic_queue_nums=self._plan.queues,
            queue_id=number % self._plan.queues,
            sys_flag=0,
            born_timestamp_ms=now_ms,
            flag=0,
            properties=properties.decode(),
        )

    def _count(self, status: str, body: bytes, remark: str | None) -> None:
        self._statuses[status] += 1
        self._bytes += len(body)
        if status != PUT_OK and remark and status not in self._remarks:
            self._remarks[status] = remark.strip()


def _consumption(consumer: LoadConsumer) -> Consumption:
    return Consumption(
        received=consumer.received,
        duplicates=consumer.duplicates,
        lost=consumer.lost,
        latency_ms=percentiles_ms(consumer.latencies_ns),
    )


def percentiles_ms(latencies_ns: array[int]) -> dict[str, float]:
    """`PERCENTILES` of latencies in ns, in ms, by nearest rank; empty for none."""
    if not latencies_ns:
        return {}
    ordered = sorted(latencies_ns)
    return {name: nearest_rank(ordered, part) / 1e6 for name, part in PERCENTILES.items()}


def parse_size(text: str) -> tuple[int, int]:
    """The smallest and the largest body size in bytes of `A..B` or `A`. Raises ConfigError otherwise."""
    low_text, dots, high_text = text.partition("..")
    parts = (low_text, high_text if dots else low_text)
    try:
        low, high = (parse_int(part, NATURAL32) for part in parts)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a size", key="--size", hint="write A..B or A in bytes, as in 100..2000"
        ) from None
    if low > high:
        raise ConfigError(f"{low} is more than {high}", key="--size", hint="write the smaller size first")
    if high > BODY_BYTES_MAX:
        raise ConfigError(f"{high} bytes do not fit a frame", key="--size", hint=f"at most {BODY_BYTES_MAX}")
    return low, high


def read_lines(path: Path) -> tuple[bytes, ...]:
    """The lines of a file without their ends and without blank lines, which no client may send.

    Raises ConfigError for a file that cannot be read or has no line.
    """
    try:
        lines = tuple(line for line in path.read_bytes().splitlines() if line)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=path, key="--from") from error
    if not lines:
        raise ConfigError("has no line to send", file=path, key="--from")
    longest = max(map(len, lines))
    if longest > BODY_BYTES_MAX:
        raise ConfigError(
            f"has a line of {longest} bytes; at most {BODY_BYTES_MAX} fit a frame", file=path, key="--from"
        )
    return lines


def _bodies(plan: LoadPlan) -> Iterator[bytes]:
    if plan.lines is not None:
        return cycle(plan.lines)
    return _generated_bodies(plan)


def _generated_bodies(plan: LoadPlan) -> Iterator[bytes]:
    """Bodies cut from a pool of random letters: different, printable, and cheap."""
    generator = random.Random(plan.seed)
    pool = bytes(generator.choices(_BODY_ALPHABET, k=_POOL_BYTES))
    pool *= 1 + math.ceil(plan.size_bytes_max / _POOL_BYTES)
    while True:
        size_bytes = generator.randint(plan.size_bytes_min, plan.size_bytes_max)
        start = generator.randrange(_POOL_BYTES)
        yield pool[start : start + size_bytes]


async def run_load(plan: LoadPlan, *, on_tick: Callable[[Load], None] | None = None) -> LoadResult:
    """Run `plan` and return its figures; SIGINT and SIGTERM end it early with the figures so far.

    `on_tick` is called ten times a second and at the end. Must run in the main thread, as signals do. Raises
    PeerError if the first connection fails.
    """
    load = Load(plan)
    failure: PeerError | None = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def stop_on_signal() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            async def tick() -> None:
                while on_tick is not None:
                    on_tick(load)
                    await trio.sleep(PROGRESS_INTERVAL_S)

            nursery.start_soon(stop_on_signal)
            nursery.start_soon(tick)
            try:
                await load.run()
            except PeerError as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if on_tick is not None:
        on_tick(load)
    return load.result()


def load(
    *,
    broker: str | None = None,
    namesrv: str | None = None,
    topic: str = "TopicLoad",
    count: int | None = None,
    size: str = "1024",
    concurrency: int = 16,
    rate: float | None = None,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    queues: int = 4,
    timeout: float = 10.0,
    reconnect: float = 30.0,
    seed: int = 0,
    consume: bool = False,
    json: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Send messages to a broker and measure it.

    Prints counts per put status and latency percentiles; exit code 1 if any put was not PUT_OK. If the
    connection is lost, messages in flight count as CONNECTION_LOST, and the rest waits for a new connection.
    Ctrl-C ends the load with the figures so far.

    Parameters
    ----------
    broker
        The broker's listen address, HOST:PORT, or a brokerName whose master the name servers tell; not needed
        where they list one master only.
    namesrv
        Name servers, HOST:PORT with ; between them; NAMESRV_ADDR, or 127.0.0.1:9876, if not given.
    topic
        The topic to send to.
    count
        How many messages; 10000, or each line of --from once, if not given.
    size
        Body sizes in bytes, A..B or A.
    concurrency
        Messages in flight at a time.
    rate
        Messages per second at most.
    from_
        Send the lines of this file (without blank ones) instead of generated bodies: each once, or repeated
        up to --count.
    queues
        Queues of the topic to spread the messages over, from 0.
    timeout
        Seconds to wait for a connection or an answer. Should be longer than the broker's slaveTimeout and
        syncFlushTimeout, or its answer comes too late.
    reconnect
        Seconds that the broker may be unreachable before the load ends.
    seed
        The same seed gives the same bodies.
    consume
        Receive the messages, too: prints percentiles of the latency from end to end, and how many stored
        messages were not received, which is exit code 1.
    json
        Print one JSON object instead of tables.
    """
    for option, number in (("--concurrency", concurrency), ("--queues", queues)):
        if number < 1:
            raise ConfigError(f"{number} is too few", key=option, hint="at least 1")
    if count is not None and count < 1:
        raise ConfigError(f"{count} is too few", key="--count", hint="at least 1")
    for option, seconds in (("--timeout", timeout), ("--rate", rate)):
        if seconds is not None and not 0 < seconds < math.inf:
            raise ConfigError(f"{seconds:g} is not more than 0", key=option)
    if not 0 <= reconnect < math.inf:
        raise ConfigError(f"{reconnect:g} is not a time", key="--reconnect", hint="seconds, 0 or more")
    lines = None if from_ is None else read_lines(from_)
    if count is None:
        count = COUNT_DEFAULT if lines is None else len(lines)
    size_bytes_min, size_bytes_max = parse_size(size)
    client_security = security.read()
    plan = LoadPlan(
        broker=_address_of(broker, namesrv, timeout_s=timeout, security=client_security),
        topic=topic,
        count=count,
        size_bytes_min=size_bytes_min,
        size_bytes_max=size_bytes_max,
        concurrency=concurrency,
        rate=rate,
        lines=lines,
        queues=queues,
        timeout_s=timeout,
        reconnect_timeout_s=reconnect,
        seed=seed,
        consume=consume,
        security=client_security,
    )
    if consume:
        # Consumers log what they retry.
        configure_logs(as_json=False)
    result = _run_with_progress(plan)
    if json:
        print_json(result.to_json())
    else:
        _print_tables(result)
    for status, remark in result.remarks.items():
        err().print(f"{status}: {remark}")
    if not result.complete:
        err().print(f"ended early: {result.count} of {plan.count} messages were sent")
    return 0 if result.all_ok else 1


def _address_of(
    broker: str | None, namesrv: str | None, *, timeout_s: float, security: ClientSecurity
) -> Address:
    """The address of the options `--broker` and `--namesrv`. Raises TriohaError."""
    if broker is not None and ":" in broker:
        if namesrv is not None:
            raise ConfigError("is an address, and --namesrv is given", key="--broker", hint="use one of them")
        return parse_address(broker)
    name_servers = name_servers_of(() if namesrv is None else (namesrv,))
    return trio.run(partial(find_master, name_servers, broker, timeout_s=timeout_s, security=security))


def _run_with_progress(plan: LoadPlan) -> LoadResult:
    if not err().is_terminal:
        return trio.run(run_load, plan)
    with bars(MofNCompleteColumn(), TextColumn("{task.fields[note]}")) as progress:
        bar = progress.add_task(f"sending to {plan.broker}", total=plan.count, note="")

        def show(load: Load) -> None:
            note = f"{load.failed} not PUT_OK" if load.failed else ""
            progress.update(bar, completed=load.ended, note=note if load.is_connected else "reconnecting")

        async def main() -> LoadResult:
            return await run_load(plan, on_tick=show)

        return trio.run(main)


def _print_tables(result: LoadResult) -> None:
    statuses = Table("put status", title=None, box=None)
    statuses.add_column("messages", justify="right")
    for status, number in result.statuses.items():
        statuses.add_row(status, f"{number:,}", style=put_status(status).terminal)
    out().print(statuses)
    if result.latency_ms:
        latencies = Table("latency", box=None)
        latencies.add_column("ms", justify="right")
        for name, value in result.latency_ms.items():
            latencies.add_row(name, f"{value:,.3f}")
        out().print(latencies)
    if result.consumption is not None:
        _print_consumption(result.consumption)
    out().print(
        f"{result.count:,} messages, {result.bytes:,} bytes in {result.seconds:.2f} s: "
        f"{_per_second(result.count, result.seconds):,.0f} messages/s, "
        f"{_per_second(result.bytes, result.seconds) / 1e6:,.2f} MB/s"
    )


def _print_consumption(consumption: Consumption) -> None:
    if consumption.latency_ms:
        latencies = Table("end to end", box=None)
        latencies.add_column("ms", justify="right")
        for name, value in consumption.latency_ms.items():
            latencies.add_row(name, f"{value:,.3f}")
        out().print(latencies)
    out().print(
        f"{consumption.received:,} messages received, {consumption.duplicates:,} twice, "
        f"{consumption.lost:,} lost"
    )


def _per_second(number: int, seconds: float) -> float:
    return number / seconds if seconds > 0 else 0.0
