"""`trioha copy`: send the messages of a topic to another cluster, or to another topic.

Theory of operation. A consumer of a group reads the source. Messages of one queue are sent in their order,
one after the other, to one queue of the target; queues are copied side by side. A message is acknowledged in
its group when a broker of the target has answered that it is stored: whatever ends the copy, the next one
goes on at the first message that was not. A message whose answer was lost is sent again, with the same id.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import trio
from cyclopts import Parameter

from trioha.cli.clients import SHOWN_APART, ClusterAddress, check_tags, message_to_json, run_with_signals
from trioha.cli.console import err, json_line, out, print_json
from trioha.cli.consume import parse_start
from trioha.cli.produce import ATTEMPT_TIMEOUT_S, INVALID, NOT_SENT, PUT_OK, lines_given_up, remind
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.client.consumer import Consumer, ConsumerSettings, Start
from trioha.client.messages import Message, ReceivedMessage
from trioha.client.producer import Producer, ProducerSettings, SendError
from trioha.errors import ConfigError, LocalProtocolError, PeerError
from trioha.node.logs import configure_logs
from trioha.remoting.route import MessageQueue

BATCHES_WAITING_MAX: Final = 2
"""Batches of one queue that wait until those before them are sent: the others stay at the source."""

Batch = tuple[ReceivedMessage, ...]


def message_of(received: ReceivedMessage, *, topic: str) -> Message:
    """The message to send for one that was received. Raises ValueError if its body cannot be had."""
    if received.compression is not None:
        raise ValueError(f"its body is compressed with {received.compression} and cannot be decompressed")
    return Message(
        topic,
        received.body,
        tag=received.tag,
        keys=received.keys,
        properties={name: value for name, value in received.properties.items() if name not in SHOWN_APART},
        flag=received.flag,
    )


class Copy:
    """A copy that runs."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        *,
        topic: str,
        give_up: Callable[[bytes], None] | None,
    ) -> None:
        """`topic` is that of the target. `give_up` keeps a message that the target does not store, as JSON;
        without it, such a message ends the copy."""
        self._consumer = consumer
        self._producer = producer
        self._topic = topic
        self._give_up = give_up
        self._reading = trio.CancelScope()
        self._sending = trio.CancelScope()
        self._is_ended = False
        self.statuses: Counter[str] = Counter()
        """Messages by put status."""
        self.remarks: dict[str, str] = {}
        """The first error of each status."""

    def stop(self) -> None:
        """Receive no more messages; those in flight have the time of one attempt."""
        self._end()
        self._sending.deadline = trio.current_time() + ATTEMPT_TIMEOUT_S

    def _end(self) -> None:
        self._is_ended = True
        self._reading.cancel()

    async def run(self, *, limit: int | None) -> None:
        """Copy until the consumer ends, `limit` messages were received, or `stop`."""
        queues: dict[MessageQueue, trio.MemorySendChannel[Batch]] = {}
        async with trio.open_nursery() as reminder:
            reminder.start_soon(remind, self._producer)
            with self._sending:
                async with trio.open_nursery() as senders:
                    with self._reading:
                        async for batch in self._batches(limit):
                            queue = batch[0].queue
                            if queue not in queues:
                                queues[queue], batches = trio.open_memory_channel[Batch](BATCHES_WAITING_MAX)
                                senders.start_soon(self._copy_queue, batches)
                            await queues[queue].send(batch)
                    for into in queues.values():
                        into.close()
            reminder.cancel_scope.cancel()

    async def _batches(self, limit: int | None) -> AsyncIterator[Batch]:
        received = 0
        while limit is None or received < limit:
            try:
                batch = await self._consumer.receive()
            except trio.EndOfChannel:
                return
            if limit is not None:
                batch = batch[: limit - received]
            received += len(batch)
            yield batch

    async def _copy_queue(self, batches: trio.MemoryReceiveChannel[Batch]) -> None:
        async for batch in batches:
            for message in batch:
                if self._is_ended:
                    return
                await self._copy(message)

    async def _copy(self, received: ReceivedMessage) -> None:
        """Send one message, and acknowledge it if it is stored."""
        try:
            message = message_of(received, topic=self._topic)
            result = await self._producer.send(message, sharding_key=str(received.queue))
        except (ValueError, LocalProtocolError) as error:
            self._fail(INVALID, received, str(error))
        except SendError as error:
            self._fail(error.status, received, str(error))
        except PeerError as error:
            self._fail(NOT_SENT, received, str(error))
        else:
            self.statuses[result.status] += 1
            self._consumer.acknowledge((received,))

    def _fail(self, status: str, received: ReceivedMessage, reason: str) -> None:
        self.statuses[status] += 1
        where = f"message {received.queue_offset} of {received.queue}"
        self.remarks.setdefault(status, f"{where}: {reason}")
        if self._give_up is None:
            self._end()
            return
        self._give_up(json_line(message_to_json(received)).encode())
        self._consumer.acknowledge((received,))


def copy(
    *,
    topic: str,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    to: str | None = None,
    to_topic: str | None = None,
    group: str = "trioha-copy",
    tags: str = "*",
    start: str = Start.FIRST.value,
    follow: bool = False,
    limit: int | None = None,
    timeout: float = math.inf,
    failed: Path | None = None,
    json: bool = False,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Send the messages of a topic to another cluster, or to another topic.

    Continues at the offsets of its group and commits a message when the target has answered that it is
    stored: whatever ends it, nothing is lost, and the next run goes on there. Messages of a queue stay in
    their order; bodies, tags, keys, properties and flags are copied. Ends at the ends that the queues had at
    first; with --follow it waits for new messages until Ctrl-C.

    A send that fails is tried again until --timeout, and every 10 s a line on stderr says why. A message that
    the target refuses, or that takes too long, ends the copy, or with --failed goes to a file. Exit code 1 if
    any message did not end with PUT_OK.

    Parameters
    ----------
    topic
        The topic to copy.
    from_
        Name servers of the source, HOST:PORT with ; between them; NAMESRV_ADDR, or 127.0.0.1:9876, if not
        given.
    to
        Name servers of the target; those of the source if not given.
    to_topic
        The topic at the target; the same if not given.
    group
        The group of consumers at the source whose offsets say what is copied.
    tags
        Tags of the wanted messages, with || between them.
    start
        Where to start in queues without an offset of the group: first, last, or a time.
    follow
        Wait for new messages.
    limit
        End after so many messages.
    timeout
        Seconds for a message, with all attempts; without it there is no limit.
    failed
        A file to which messages are appended that were not stored as far as is known, as `trioha produce
        --ndjson` reads them. They count as copied.
    json
        Print the counts as one JSON object.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"{limit} is too few", key="--limit", hint="at least 1")
    if not timeout > 0:
        raise ConfigError(f"{timeout:g} is not more than 0", key="--timeout")
    if to is None and to_topic in {None, topic}:
        raise ConfigError(
            "is missing", key="--to", hint="a topic is not copied to itself; or give --to-topic"
        )
    check_tags(topic, tags)
    source = ClusterAddress.of(namesrv=from_, broker=None, queues=1, security=security)
    target = ClusterAddress.of(namesrv=to or from_, broker=None, queues=1, security=security)
    reading = ConsumerSettings(
        topic, expression=tags, group=group, start_at=parse_start(start), follow=follow
    )
    sending = ProducerSettings(
        group=group,
        timeout_s=timeout,
        attempt_timeout_s=min(timeout, ATTEMPT_TIMEOUT_S),
        attempts_max=0,
    )
    configure_logs(as_json=False)
    statuses: Counter[str] = Counter()
    remarks: dict[str, str] = {}
    running: list[Copy] = []
    starting = trio.CancelScope()

    def stop() -> None:
        if running:
            running[0].stop()
        else:
            starting.cancel()

    async def run(give_up: Callable[[bytes], None] | None) -> None:
        with starting:
            async with (
                source.open() as from_cluster,
                target.open() as to_cluster,
                Producer(to_cluster, sending) as producer,
                Consumer(from_cluster, reading) as consumer,
            ):
                copying = Copy(consumer, producer, topic=to_topic or topic, give_up=give_up)
                running.append(copying)
                await copying.run(limit=limit)
                statuses.update(copying.statuses)
                remarks.update(copying.remarks)

    async def main(give_up: Callable[[bytes], None] | None) -> None:
        await run_with_signals(partial(run, give_up), on_signal=stop)

    with lines_given_up(failed) as give_up:
        trio.run(main, give_up if failed else None)
    if json:
        print_json({"statuses": dict(statuses)})
    else:
        for status, number in statuses.most_common():
            out().print(f"{status}: {number:,}")
    for status, remark in remarks.items():
        err().print(f"{status}: {remark}")
    return 0 if set(statuses) <= {PUT_OK} else 1
