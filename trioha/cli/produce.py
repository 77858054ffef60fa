"""`trioha produce`: send the lines of stdin as messages."""

from __future__ import annotations

import json as json_module
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import trio

from trioha.cli.clients import ClusterAddress, message_of_json, run_with_signals
from trioha.cli.console import err, out, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.client.messages import BODY_BYTES_MAX, Message
from trioha.client.producer import Producer, ProducerSettings, SendError, open_producer
from trioha.errors import ConfigError, LocalProtocolError, PeerError
from trioha.node.logs import configure_logs

LINE_BYTES_MAX: Final = 2 * BODY_BYTES_MAX
"""Longer lines are refused: no message in JSON needs one."""
READ_BYTES: Final = 64 * 1024
INVALID: Final = "INVALID"
"""Not RocketMQ's: a line that is not a message."""
PUT_OK: Final = "PUT_OK"

Report = Callable[[dict[str, Any]], None]


class LineReader:
    """Lines of a file descriptor, without their ends; blank lines are left out."""

    def __init__(self, fd: int, *, read_bytes: int = READ_BYTES) -> None:
        self._fd = fd
        self._read_bytes = read_bytes
        self._rest = b""
        self._lines: list[bytes] = []
        self._number = 0
        self._is_ended = False

    async def next(self) -> tuple[int, bytes] | None:
        """The next line and its number, from 1; None at the end.

        Raises ConfigError for a line that is too long. After a cancellation no more lines can be read.
        """
        while True:
            while self._lines:
                self._number += 1
                if line := self._lines.pop().rstrip(b"\r"):
                    return self._number, line
            if self._is_ended:
                return None
            # A thread, since stdin may be a file or a terminal, which cannot be waited for.
            data = await trio.to_thread.run_sync(os.read, self._fd, self._read_bytes, abandon_on_cancel=True)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not data:
                self._is_ended = True
                lines = [self._rest]
            elif len(self._rest) > LINE_BYTES_MAX:
                raise ConfigError(
                    f"line {self._number + len(lines) + 1} is longer than {LINE_BYTES_MAX} bytes",
                    file="stdin",
                )
            self._lines = lines[::-1]


class Production:
    """Sends lines until their end or until `stop`."""

    def __init__(
        self, reader: LineReader, *, to_message: Callable[[bytes], tuple[Message, str | None]], report: Report
    ) -> None:
        self._reader = reader
        self._to_message = to_message
        self._report = report
        self._reading = trio.CancelScope()
        self.statuses: Counter[str] = Counter()
        """Lines by put status; INVALID for lines that are not messages."""
        self.remarks: dict[str, str] = {}
        """The first error of each status."""

    def stop(self) -> None:
        """Send no more lines; messages in flight are awaited."""
        self._reading.cancel()

    async def run(self, producer: Producer, *, concurrency: int) -> None:
        """Send, so many messages at a time. Raises ConfigError for a line that is too long."""
        into, lines = trio.open_memory_channel[tuple[int, bytes]](0)
        async with trio.open_nursery() as senders:
            for _ in range(concurrency):
                senders.start_soon(self._send, producer, lines)
            async with into:
                with self._reading:
                    while (line := await self._reader.next()) is not None:
                        await into.send(line)

    async def _send(self, producer: Producer, lines: trio.MemoryReceiveChannel[tuple[int, bytes]]) -> None:
        async for number, line in lines:
            try:
                message, sharding_key = self._to_message(line)
                result = await producer.send(message, sharding_key=sharding_key)
            except (ValueError, LocalProtocolError) as error:
                self._count(INVALID, number, str(error))
            except SendError as error:
                self._count(error.status, number, str(error), attempts=error.attempts)
            except PeerError as error:
                self._count("NOT_SENT", number, str(error))
            else:
                self.statuses[result.status] += 1
                self._report(
                    {
                        "line": number,
                        "status": result.status,
                        "topic": result.queue.topic,
                        "brokerName": result.queue.broker_name,
                        "queueId": result.queue.queue_id,
                        "queueOffset": result.queue_offset,
                        "msgId": result.message_id,
                        "offsetMsgId": result.offset_message_id,
                        "attempts": result.attempts,
                    }
                )

    def _count(self, status: str, number: int, reason: str, *, attempts: int | None = None) -> None:
        self.statuses[status] += 1
        self.remarks.setdefault(status, f"line {number}: {reason}")
        fields: dict[str, Any] = {"line": number, "status": status, "error": reason}
        if attempts is not None:
            fields["attempts"] = attempts
        self._report(fields)


def produce(
    topic: str | None = None,
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    queues: int = 4,
    ndjson: bool = False,
    tag: str | None = None,
    concurrency: int = 1,
    attempts: int = 3,
    timeout: float = 10.0,
    group: str = "trioha-produce",
    json: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Send each line of stdin as a message.

    A line is a body, or with --ndjson an object: body or bodyBase64, and if wanted topic, tags, keys,
    properties, shardingKey, delayLevel, flag. What `trioha consume` prints is such an object. Prints the
    counts of put statuses, or with --json a result for each line. Exit code 1 if any message did not end with
    PUT_OK. After Ctrl-C no more lines are sent, and messages in flight are awaited.

    Parameters
    ----------
    topic
        The topic; may be left out with --ndjson if each object has one.
    namesrv
        Name servers, HOST:PORT with ; between them; NAMESRV_ADDR, or 127.0.0.1:9876, if not given.
    broker
        A broker's listen address, to send to it without a name server.
    queues
        Queues of a new topic on each broker; with --broker of every topic.
    ndjson
        Each line is a JSON object.
    tag
        The tag of lines that are bodies.
    concurrency
        Messages in flight at a time. With more than one, messages of a queue may change their order.
    attempts
        How often a message is tried at most.
    timeout
        Seconds for a message, with all attempts.
    group
        The group of producers.
    json
        Print a JSON object for each line, as it is answered.
    """
    if topic is None and not ndjson:
        raise ConfigError("is missing", key="--topic", hint="lines that are bodies need a topic")
    for option, number in (("--concurrency", concurrency), ("--attempts", attempts)):
        if number < 1:
            raise ConfigError(f"{number} is too few", key=option, hint="at least 1")
    if not 0 < timeout < math.inf:
        raise ConfigError(f"{timeout:g} is not more than 0", key="--timeout")
    address = ClusterAddress.of(namesrv=namesrv, broker=broker, queues=queues, security=security)
    settings = ProducerSettings(
        group=group,
        timeout_s=timeout,
        attempt_timeout_s=timeout if attempts == 1 else min(timeout, 4.0),
        attempts_max=attempts,
        in_flight_max=concurrency,
        default_topic_queues=queues,
    )

    def to_message(line: bytes) -> tuple[Message, str | None]:
        if ndjson:
            return message_of_json(_parsed(line), topic=topic)
        assert topic is not None, "lines that are bodies have a topic"
        return Message(topic, line, tag=tag), None

    configure_logs(as_json=False)
    production = Production(
        LineReader(sys.stdin.fileno()), to_message=to_message, report=print_json if json else _ignore
    )

    async def run() -> None:
        async with address.open() as cluster, open_producer(cluster, settings) as producer:
            await production.run(producer, concurrency=concurrency)

    async def main() -> None:
        await run_with_signals(run, on_signal=production.stop)

    trio.run(main)
    if not json:
        for status, number in production.statuses.most_common():
            out().print(f"{status}: {number:,}", markup=False)
    for status, remark in production.remarks.items():
        err().print(f"{status}: {remark}", markup=False)
    return 0 if set(production.statuses) <= {PUT_OK} else 1


def _parsed(line: bytes) -> object:
    try:
        return json_module.loads(line)
    except RecursionError:
        raise ValueError("a JSON value that is nested too deeply") from None


def _ignore(_result: dict[str, Any]) -> None:
    """Results that are not printed."""
