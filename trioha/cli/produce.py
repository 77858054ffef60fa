"""`trioha produce`: send the lines of stdin as messages."""

from __future__ import annotations

import io
import json as json_module
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from trioha.cli.clients import ClusterAddress, message_of_json, run_with_signals
from trioha.cli.console import err, out, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.client.messages import BODY_BYTES_MAX, Message
from trioha.client.producer import Producer, ProducerSettings, SendError
from trioha.errors import ConfigError, LocalProtocolError, PeerError
from trioha.node.logs import configure_logs

LINE_BYTES_MAX: Final = 2 * BODY_BYTES_MAX
"""Longer lines are refused: no message in JSON needs one."""
READ_BYTES: Final = 64 * 1024
INVALID: Final = "INVALID"
"""Not RocketMQ's: a line that is not a message."""
NOT_SENT: Final = "NOT_SENT"
"""Not RocketMQ's: no broker has or creates the topic, or the command was ended before the answer."""
PUT_OK: Final = "PUT_OK"
ATTEMPT_TIMEOUT_S: Final = 4.0
"""For one attempt: longer than a broker waits for its slaves."""
REMIND_INTERVAL_S: Final = 10.0

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
        self._failure: ConfigError | None = None
        """What is behind the lines that were read."""

    def rest(self) -> Iterator[tuple[int, bytes]]:
        """Lines that were read and not returned yet, each with its number; the last one may not be whole."""
        if self._rest:
            self._lines.insert(0, self._rest)
            self._rest = b""
        while (line := self._next_read()) is not None:
            yield line

    async def next(self) -> tuple[int, bytes] | None:
        """The next line and its number, from 1; None at the end.

        Raises ConfigError for a line that is too long. After a cancellation no more lines can be read.
        """
        while (line := self._next_read()) is None:
            if self._failure is not None:
                raise self._failure
            if self._is_ended:
                return None
            # A thread, since stdin may be a file or a terminal, which cannot be waited for.
            data = await trio.to_thread.run_sync(os.read, self._fd, self._read_bytes, abandon_on_cancel=True)
            *lines, self._rest = (self._rest + data).split(b"\n")
            if not data:
                self._is_ended = True
                lines, self._rest = [self._rest], b""
            elif len(self._rest) > LINE_BYTES_MAX:
                number = self._number + len(lines) + 1
                self._failure = ConfigError(
                    f"line {number} is longer than {LINE_BYTES_MAX} bytes", file="stdin"
                )
                self._rest = b""
            self._lines = lines[::-1]
        return line

    def _next_read(self) -> tuple[int, bytes] | None:
        while self._lines:
            self._number += 1
            if line := self._lines.pop().rstrip(b"\r"):
                return self._number, line
        return None


class Production:
    """Sends lines until their end or until `stop`.

    A send that fails is tried again for as long as the producer's settings say. Meanwhile its sender has no
    other line: while all sends fail, nothing is read.
    """

    def __init__(
        self,
        reader: LineReader,
        *,
        to_message: Callable[[bytes], tuple[Message, str | None]],
        report: Report,
        give_up: Callable[[bytes], None],
    ) -> None:
        """`give_up` is called with each line that was not stored."""
        self._reader = reader
        self._to_message = to_message
        self._report = report
        self._give_up = give_up
        self._reading = trio.CancelScope()
        self._sending: set[trio.CancelScope] = set()
        self._is_stopped = False
        self.statuses: Counter[str] = Counter()
        """Lines by put status; INVALID for lines that are not messages."""
        self.remarks: dict[str, str] = {}
        """The first error of each status."""

    def stop(self) -> None:
        """Send no more lines; messages in flight have the time of one attempt."""
        self._is_stopped = True
        self._reading.cancel()
        for scope in self._sending:
            scope.deadline = min(scope.deadline, trio.current_time() + ATTEMPT_TIMEOUT_S)

    async def run(self, producer: Producer, *, concurrency: int) -> None:
        """Send, so many messages at a time.

        Raises ConfigError for a line that is too long, when the lines before it are sent.
        """
        into, lines = trio.open_memory_channel[tuple[int, bytes]](0)
        async with trio.open_nursery() as reminder:
            reminder.start_soon(remind, producer)
            async with trio.open_nursery() as senders:
                for _ in range(concurrency):
                    senders.start_soon(self._send_lines, producer, lines.clone())
                lines.close()
                async with into:
                    failure = await self._read(into)
            reminder.cancel_scope.cancel()
        for number, line in self._reader.rest():
            self._count(NOT_SENT, number, "the command was ended", line=line)
        if failure is not None:
            raise failure

    async def _read(self, into: trio.MemorySendChannel[tuple[int, bytes]]) -> ConfigError | None:
        """Hand lines to senders until their end or `stop`; the error of a line that is too long."""
        try:
            with self._reading:
                while (line := await self._reader.next()) is not None:
                    await self._hand_over(into, *line)
        except ConfigError as error:
            return error
        return None

    async def _hand_over(
        self, into: trio.MemorySendChannel[tuple[int, bytes]], number: int, line: bytes
    ) -> None:
        """Wait for a sender; the line is given up if the command is ended before there is one."""
        try:
            await into.send((number, line))
        except trio.Cancelled:
            self._count(NOT_SENT, number, "the command was ended", line=line)
            raise

    async def _send_lines(
        self, producer: Producer, lines: trio.MemoryReceiveChannel[tuple[int, bytes]]
    ) -> None:
        async with lines:
            async for number, line in lines:
                with trio.CancelScope() as scope:
                    self._sending.add(scope)
                    if self._is_stopped:
                        scope.deadline = trio.current_time() + ATTEMPT_TIMEOUT_S
                    await self._send(producer, number, line)
                self._sending.discard(scope)
                if scope.cancelled_caught:
                    self._count(NOT_SENT, number, "the command was ended while it was sent", line=line)

    async def _send(self, producer: Producer, number: int, line: bytes) -> None:
        try:
            message, sharding_key = self._to_message(line)
            result = await producer.send(message, sharding_key=sharding_key)
        except (ValueError, LocalProtocolError) as error:
            self._count(INVALID, number, str(error), line=line)
        except SendError as error:
            self._count(error.status, number, str(error), line=line, attempts=error.attempts)
        except PeerError as error:
            self._count(NOT_SENT, number, str(error), line=line)
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

    def _count(
        self, status: str, number: int, reason: str, *, line: bytes, attempts: int | None = None
    ) -> None:
        """A line that was not stored, as far as is known."""
        self.statuses[status] += 1
        self.remarks.setdefault(status, f"line {number}: {reason}")
        self._give_up(line)
        fields: dict[str, Any] = {"line": number, "status": status, "error": reason}
        if attempts is not None:
            fields["attempts"] = attempts
        self._report(fields)


async def remind(producer: Producer) -> None:
    """A line on stderr every `REMIND_INTERVAL_S` while sends are tried again, until cancelled."""
    while True:
        await trio.sleep(REMIND_INTERVAL_S)
        if failing := [str(error) for error in producer.failing]:
            reason = failing[0]
            err().print(f"trying again to send {len(failing):,} messages: {reason}")


@contextmanager
def lines_given_up(file: Path | None) -> Iterator[Callable[[bytes], None]]:
    """Appends lines to `file`, each as soon as it is given up. Raises ConfigError."""
    if file is None:
        yield _ignore
        return
    try:
        stream = file.open("ab", buffering=0)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", key="--failed", file=file) from None
    with stream:
        yield lambda line: _write_line(stream, line)


def _write_line(stream: io.FileIO, line: bytes) -> None:
    stream.write(line + b"\n")


def produce(
    topic: str | None = None,
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    queues: int = 4,
    ndjson: bool = False,
    tag: str | None = None,
    concurrency: int = 1,
    attempts: int = 0,
    timeout: float = math.inf,
    failed: Path | None = None,
    group: str = "trioha-produce",
    json: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Send each line of stdin as a message.

    A line is a body, or with --ndjson an object: body or bodyBase64, and if wanted topic, tags, keys,
    properties, shardingKey, delayLevel, flag. What `trioha consume` prints is such an object. Prints the
    counts of put statuses, or with --json a result for each line. Exit code 1 if any message did not end with
    PUT_OK.

    A send that fails is tried again until --timeout. Meanwhile no more lines are read than --concurrency, and
    every 10 s a line on stderr says why. Lines that are given up go to the file of --failed: those that are
    not messages, that a broker refuses, that take too long, or that are not answered 4 s after Ctrl-C.

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
        How often a message is tried at most; 0 for no limit.
    timeout
        Seconds for a message, with all attempts; without it there is no limit.
    failed
        A file to which lines are appended, as they were read, that were not stored as far as is known.
    group
        The group of producers.
    json
        Print a JSON object for each line, as it is answered.
    """
    if topic is None and not ndjson:
        raise ConfigError("is missing", key="--topic", hint="lines that are bodies need a topic")
    for option, number, low in (("--concurrency", concurrency, 1), ("--attempts", attempts, 0)):
        if number < low:
            raise ConfigError(f"{number} is too few", key=option, hint=f"at least {low}")
    if not timeout > 0:
        raise ConfigError(f"{timeout:g} is not more than 0", key="--timeout")
    address = ClusterAddress.of(namesrv=namesrv, broker=broker, queues=queues, security=security)
    settings = ProducerSettings(
        group=group,
        timeout_s=timeout,
        attempt_timeout_s=min(timeout, math.inf if attempts == 1 else ATTEMPT_TIMEOUT_S),
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
    with lines_given_up(failed) as give_up:
        production = Production(
            LineReader(sys.stdin.fileno()),
            to_message=to_message,
            report=print_json if json else _ignore,
            give_up=give_up,
        )

        async def run() -> None:
            async with address.open() as cluster, Producer(cluster, settings) as producer:
                await production.run(producer, concurrency=concurrency)

        async def main() -> None:
            await run_with_signals(run, on_signal=production.stop)

        trio.run(main)
    if not json:
        for status, number in production.statuses.most_common():
            out().print(f"{status}: {number:,}")
    for status, remark in production.remarks.items():
        err().print(f"{status}: {remark}")
    return 0 if set(production.statuses) <= {PUT_OK} else 1


def _parsed(line: bytes) -> object:
    try:
        return json_module.loads(line)
    except RecursionError:
        raise ValueError("a JSON value that is nested too deeply") from None


def _ignore(_result: object) -> None:
    """Results that are not printed, lines that are not kept."""
