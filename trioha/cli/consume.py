"""`trioha consume`: print the messages of a topic."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Final

import trio
from cyclopts import Parameter

from trioha.cli.clients import ClusterAddress, message_to_json, run_with_signals
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.cli.times import TIME_HINT, parse_time_ms
from trioha.client.consumer import Consumer, ConsumerSettings, Start, StartAt, open_consumer
from trioha.client.messages import ReceivedMessage
from trioha.errors import ConfigError
from trioha.node.logs import configure_logs
from trioha.remoting.subscriptions import Subscription

WRITE_GRACE_S: Final = 1.0
"""How long a write may take that a signal interrupts."""


def parse_start(text: str) -> StartAt:
    """Of the option `--from`. Raises ConfigError."""
    if text in {Start.FIRST.value, Start.LAST.value}:
        return StartAt(Start(text))
    return StartAt(Start.TIME, parse_time_ms(text, key="--from", hint=f"write first, last, {TIME_HINT}"))


async def print_messages(
    consumer: Consumer, write: Callable[[tuple[ReceivedMessage, ...]], None], *, limit: int | None
) -> int:
    """Write batches until the consumer ends or `limit` messages were written; returns how many.

    A batch is acknowledged when it was written.
    """
    written = 0
    while limit is None or written < limit:
        try:
            batch = await consumer.receive()
        except trio.EndOfChannel:
            break
        if limit is not None:
            batch = batch[: limit - written]
        await _print_batch(consumer, write, batch)
        written += len(batch)
    return written


async def _print_batch(
    consumer: Consumer,
    write: Callable[[tuple[ReceivedMessage, ...]], None],
    batch: tuple[ReceivedMessage, ...],
) -> None:
    """Write a batch in a thread, since the reader of the output may be slow, and acknowledge it.

    A cancellation in between waits `WRITE_GRACE_S` for the reader: else a batch that was printed would not be
    acknowledged, and be printed again at the next start.
    """
    grace = trio.CancelScope(shield=True)

    async def limit_grace() -> None:
        try:
            await trio.sleep_forever()
        finally:
            grace.deadline = trio.current_time() + WRITE_GRACE_S

    async with trio.open_nursery() as nursery:
        nursery.start_soon(limit_grace)
        with grace:
            await trio.to_thread.run_sync(write, batch, abandon_on_cancel=True)
            consumer.acknowledge(batch)
        nursery.cancel_scope.cancel()


def write_lines(batch: tuple[ReceivedMessage, ...]) -> None:
    """Write messages to stdout as a JSON object a line. Raises BrokenPipeError if nobody reads them."""
    lines = [json.dumps(message_to_json(message), ensure_ascii=False) + "\n" for message in batch]
    sys.stdout.buffer.write("".join(lines).encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def consume(
    topic: str,
    /,
    *,
    namesrv: str | None = None,
    broker: str | None = None,
    queues: int = 4,
    group: str | None = None,
    tags: str = "*",
    from_: Annotated[str, Parameter(name="--from")] = Start.LAST.value,
    follow: bool = False,
    limit: int | None = None,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Print the messages of a topic, a JSON object a line.

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
        printed. Without it all queues are read and nothing is committed.
    tags
        Tags of the wanted messages, with || between them.
    from_
        Where to start in queues without an offset of the group: first, last, or a time.
    follow
        Wait for new messages.
    limit
        End after so many messages.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"{limit} is too few", key="--limit", hint="at least 1")
    address = ClusterAddress.of(namesrv=namesrv, broker=broker, queues=queues, security=security)
    try:
        Subscription.parse(topic, tags)
    except ValueError as error:
        raise ConfigError(str(error), key="--tags", hint="write * or TAG || TAG") from None
    settings = ConsumerSettings(
        topic, expression=tags, group=group, start_at=parse_start(from_), follow=follow
    )
    configure_logs(as_json=False)
    scope = trio.CancelScope()

    async def run() -> None:
        # The scope is within the cluster: a signal leaves the time to commit.
        async with address.open() as cluster:
            with scope:
                async with open_consumer(cluster, settings) as consumer:
                    await print_messages(consumer, write_lines, limit=limit)

    async def main() -> None:
        await run_with_signals(run, on_signal=scope.cancel)

    trio.run(main)
    return 0
