"""`trioha consume`: print the messages of a topic."""

from __future__ import annotations

import errno
import fcntl
import io
import math
import os
import select
import stat
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, BinaryIO, Final

import trio
from cyclopts import Parameter

from trioha.cli.clients import ClusterAddress, check_tags, message_to_json, run_with_signals
from trioha.cli.console import json_line
from trioha.cli.message_format import parse_format
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.cli.times import time_option_ms
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt
from trioha.client.messages import ReceivedMessage
from trioha.errors import ConfigError
from trioha.node.logs import configure_logs
from trioha.numbers import I64, parse_int
from trioha.times import TIME_HINT

WRITE_GRACE_S: Final = 1.0
"""How long the reader of the output may take after a signal."""
_OFFSET_WORDS: Final = {
    "beginning": Start.FIRST, "first": Start.FIRST, "end": Start.LAST, "last": Start.LAST
}  # fmt: skip
TAKEN_INTERVAL_S: Final = 0.1
"""How often a pipe is asked whether its reader has taken what was written: no event says it."""


def parse_start(text: str, *, key: str = "--from") -> StartAt:
    """Of an option `key` that is a word or a time. Raises ConfigError."""
    if text in {Start.FIRST.value, Start.LAST.value}:
        return StartAt(Start(text))
    return StartAt(Start.TIME, time_option_ms(text, key=key, hint=f"write first, last, {TIME_HINT}"))


def parse_offset(text: str) -> StartAt:
    """Of the option `--offset`, with kcat's words. Raises ConfigError."""
    if text in _OFFSET_WORDS:
        return StartAt(_OFFSET_WORDS[text])
    try:
        number = parse_int(text, I64)
    except ValueError as error:
        hint = "write beginning, end, an offset, or -N for the last N messages of each queue"
        raise ConfigError(str(error), key="--offset", hint=hint) from None
    return StartAt(Start.OFFSET if number >= 0 else Start.BEFORE_END, offset=abs(number))


class Output:
    """Where messages are written: a stream, of a pipe with what its reader has not taken yet."""

    def __init__(
        self, stream: BinaryIO, *, to_bytes: Callable[[ReceivedMessage], bytes] | None = None
    ) -> None:
        """`to_bytes` makes what is written of a message; by default a line of JSON."""
        self._stream = stream
        self._to_bytes = to_bytes or _json_line
        self._pipe_fd: int | None = None
        """Of a pipe."""
        self._ends = select.poll()
        with suppress(io.UnsupportedOperation):  # a stream without a descriptor
            if stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
                self._pipe_fd = stream.fileno()
                # Nothing is asked for: POLLERR, the end of the reader, is always reported.
                self._ends.register(self._pipe_fd, 0)

    def write(self, batch: Sequence[ReceivedMessage]) -> int:
        """Write messages; how many bytes. Blocks. Raises BrokenPipeError."""
        data = b"".join(map(self._to_bytes, batch))
        self._stream.write(data)
        self._stream.flush()
        return len(data)

    def untaken_bytes(self) -> int:
        """Bytes in a pipe that its reader has not read yet. Raises BrokenPipeError if the reader has ended.

        0 where that is not known: for files and terminals, and where the system does not say it.
        """
        if self._pipe_fd is None:
            return 0
        try:
            answer = fcntl.ioctl(self._pipe_fd, termios.FIONREAD, bytes(4))
        except OSError as error:
            if error.errno not in {errno.ENOTTY, errno.EINVAL, errno.ENOTSUP}:
                raise
            self._pipe_fd = None
            return 0
        untaken = int.from_bytes(answer, sys.byteorder)
        if untaken and any(events & select.POLLERR for _, events in self._ends.poll(0)):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        return untaken


def _json_line(message: ReceivedMessage) -> bytes:
    return json_line(message_to_json(message)).encode() + b"\n"


def _raw_line(message: ReceivedMessage) -> bytes:
    return message.body + b"\n"


class Printing:
    """Writes the batches of a consumer and acknowledges those that the reader of the output has taken."""

    def __init__(self, consumer: Consumer, output: Output) -> None:
        self._consumer = consumer
        self._output = output
        self._written_bytes = 0
        self._untaken: deque[tuple[int, Sequence[ReceivedMessage]]] = deque()
        """Batches that were written, each with the number of bytes written up to its end."""
        self._grace_ends_s = math.inf
        self._grace_scope = trio.CancelScope()
        """Of the part that goes on after a cancellation."""

    async def run(self, *, limit: int | None) -> int:
        """Write until the consumer ends or `limit` messages were written; returns how many.

        Ends when everything is taken. After a cancellation the reader has `WRITE_GRACE_S` for that: what was
        printed and is not acknowledged is printed again at the next start.
        """
        written = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._limit_grace)
            nursery.start_soon(self._acknowledge_regularly)
            try:
                while limit is None or written < limit:
                    batch = await self._consumer.receive()
                    if limit is not None:
                        batch = batch[: limit - written]
                    with self._grace():
                        # In a thread, since the reader of the output may be slow.
                        self._written_bytes += await trio.to_thread.run_sync(
                            self._output.write, batch, abandon_on_cancel=True
                        )
                        self._untaken.append((self._written_bytes, batch))
                        self._acknowledge_taken()
                    written += len(batch)
            except trio.EndOfChannel:
                pass
            finally:
                with self._grace():
                    while self._untaken:
                        await trio.sleep(TAKEN_INTERVAL_S)
                        self._acknowledge_taken()
            nursery.cancel_scope.cancel()
        return written

    @contextmanager
    def _grace(self) -> Iterator[None]:
        """A part that goes on after a cancellation, for `WRITE_GRACE_S`."""
        with trio.CancelScope(shield=True, deadline=self._grace_ends_s) as self._grace_scope:
            yield

    async def _limit_grace(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._grace_scope.deadline = self._grace_ends_s = trio.current_time() + WRITE_GRACE_S

    async def _acknowledge_regularly(self) -> None:
        while True:
            await trio.sleep(TAKEN_INTERVAL_S)
            self._acknowledge_taken()

    def _acknowledge_taken(self) -> None:
        """Raises BrokenPipeError if nobody reads any more."""
        if self._untaken:
            taken_bytes = self._written_bytes - self._output.untaken_bytes()
            while self._untaken and self._untaken[0][0] <= taken_bytes:
                self._consumer.acknowledge(self._untaken.popleft()[1])


def consume(
    topic: str,
    /,
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    queues: int = 4,
    group: str | None = None,
    tags: str = "*",
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    offset: Annotated[str | None, Parameter(name=("--offset", "-o"), allow_leading_hyphen=True)] = None,
    follow: bool = False,
    exit_: Annotated[bool, Parameter(name=("--exit", "-e"))] = False,
    limit: Annotated[int | None, Parameter(name=("--limit", "-c"))] = None,
    format_: Annotated[str | None, Parameter(name=("--format", "-f"))] = None,
    raw_bodies: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Print the messages of a topic, a JSON object a line, control characters escaped.

    Ends at the ends that the queues had when they were first read; with --follow it waits for new messages
    until Ctrl-C. Messages of one queue are in order. A body that is not UTF-8 is given as bodyBase64.

    Parameters
    ----------
    topic
        The topic.
    namesrv
        Name servers, HOST:PORT with ; between them; NAMESRV_ADDR, or 127.0.0.1:9876, if not given.
    broker
        A broker's listen address, to read from it without a name server.
    queues
        With --broker: queues of the topic.
    group
        Be a member of this consumer group: share its queues, continue at its offsets, and commit what was
        printed, in a pipe what its reader has read. Without it all queues are read and nothing is committed.
    tags
        Tags of the wanted messages, with || between them.
    from_
        Where to start in queues without an offset of the group: first, last, or a time. By default last.
    offset
        The same as kcat says it: beginning, end, an offset, or -N for the last N messages of each queue.
    follow
        Wait for new messages.
    exit_
        End at the ends of the queues, as without --follow.
    limit
        End after so many messages.
    format_
        Print this of each message instead of JSON: text with %s (body), %k (keys), %t (topic), %p (queue), %o
        (offset), %b (broker), %i (message id), %g (tag), %T (when it was stored, ms), %h (properties), %S and
        %K (lengths of body and keys), and \\n, \\t, \\xNN.
    raw_bodies
        Print bodies instead, one a line, byte for byte; with --format its %s. A terminal obeys control
        characters in them.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"{limit} is too few", key="--limit", hint="at least 1")
    if follow and exit_:
        raise ConfigError("is the opposite of --follow", key="--exit", hint="use one of them")
    if offset is not None and from_ is not None:
        raise ConfigError("is given beside --from", key="--offset", hint="use one of them")
    start_at = parse_start(from_ or Start.LAST.value) if offset is None else parse_offset(offset)
    to_bytes: Callable[[ReceivedMessage], bytes] = _raw_line if raw_bodies else _json_line
    if format_ is not None:
        to_bytes = parse_format(format_, raw_bodies=raw_bodies)
    address = ClusterAddress.of(namesrv=namesrv, broker=broker, queues=queues, security=security)
    check_tags(topic, tags)
    settings = ConsumerSettings(topic, expression=tags, group=group, start_at=start_at, follow=follow)
    configure_logs(as_json=False)
    scope = trio.CancelScope()
    output = Output(sys.stdout.buffer, to_bytes=to_bytes)

    async def run() -> None:
        # The scope is within the cluster: a signal leaves the time to commit.
        async with address.open() as cluster:
            with scope:
                async with Consumer(cluster, settings) as consumer:
                    await Printing(consumer, output).run(limit=limit)

    async def main() -> None:
        await run_with_signals(run, on_signal=scope.cancel)

    trio.run(main)
    return 0
