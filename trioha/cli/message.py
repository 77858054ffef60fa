"""`trioha message`: single messages of a cluster, trioha's or RocketMQ's."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Final

from cyclopts import App, Parameter

from trioha.cli import COMMANDS
from trioha.cli.clients import NO_CLUSTER_OPTIONS, ClusterOptions, message_to_json
from trioha.cli.console import err, out, print_json
from trioha.cli.security import NO_SECURITY_OPTIONS, SecurityOptions
from trioha.cli.tables import Column, number, table, text
from trioha.cli.times import time_option_ms
from trioha.client.cluster import Cluster
from trioha.client.lookups import (
    QUERY_MESSAGES_MAX,
    message_at,
    message_by_id,
    message_by_offset_id,
    messages_by_key,
)
from trioha.client.messages import ReceivedMessage
from trioha.errors import ConfigError
from trioha.numbers import NATURAL32, NATURAL64, parse_int
from trioha.remoting.route import MessageQueue
from trioha.store.record import parse_offset_message_id
from trioha.times import time_text

message: Final = App(name="message", help=COMMANDS["message"])

NOT_FOUND: Final = 1
"""Exit code where there is no such message."""
_PLACE: Final = re.compile(r"([^@]+)@(.+):([0-9]+):([0-9]+)")
_MESSAGES: Final[Sequence[Column[ReceivedMessage]]] = (
    text("stored", lambda row: time_text(row.store_timestamp_ms)),
    text("broker", lambda row: row.queue.broker_name),
    number("queue", lambda row: row.queue.queue_id),
    number("offset", lambda row: row.queue_offset),
    text("message id", lambda row: row.message_id),
    text("tag", lambda row: row.tag),
    text("keys", lambda row: " ".join(row.keys)),
    number("body bytes", lambda row: len(row.body)),
)


def place_of(text: str) -> tuple[MessageQueue, int] | None:
    """The queue and the offset of TOPIC@BROKER:QUEUE:OFFSET; None for another text. Raises ConfigError."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    try:
        queue_id, offset = parse_int(found[3], NATURAL32), parse_int(found[4], NATURAL64)
    except ValueError as error:
        raise ConfigError(str(error), key="ID") from None
    return MessageQueue(found[1], found[2], queue_id), offset


@message.command
def get(
    id_: Annotated[str, Parameter(name="ID")],
    /,
    *,
    topic: str | None = None,
    raw_body: bool = False,
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Show one message.

    Exit code 1 if there is no such message (any more).

    Parameters
    ----------
    id_
        Its place, TOPIC@BROKER:QUEUE:OFFSET; or its offset message id, by which it is read from the broker
        whose address is in it; or with --topic the message id that its producer gave it.
    topic
        The topic of a message id.
    raw_body
        Print the body only, byte for byte. A terminal obeys control characters in it.
    json
        Print one JSON object, as trioha consume does.
    """
    place = place_of(id_)
    if place is None and topic is None:
        try:
            parse_offset_message_id(id_)
        except ValueError as error:
            raise ConfigError(
                str(error), key="ID", hint="or write TOPIC@BROKER:QUEUE:OFFSET, or give --topic"
            ) from None

    async def find(client: Cluster) -> ReceivedMessage | None:
        if place is not None:
            return await message_at(client, *place)
        if topic is not None:
            return await message_by_id(client, topic, id_)
        return await message_by_offset_id(client, id_)

    found = cluster.read(security).run(find)
    if found is None:
        err().print(f"trioha: there is no message {id_}", soft_wrap=True)
        return NOT_FOUND
    if raw_body:
        sys.stdout.buffer.write(found.body)
        sys.stdout.buffer.flush()
    elif json:
        print_json(message_to_json(found))
    else:
        for name, value in _lines(found):
            out().print(f"{name:<15} {value}", soft_wrap=True)
    return 0


@message.command
def query(
    topic: str,
    key: str,
    /,
    *,
    from_: Annotated[str | None, Parameter(name="--from")] = None,
    to: str | None = None,
    limit: int = 32,
    json: bool = False,
    cluster: ClusterOptions = NO_CLUSTER_OPTIONS,
    security: SecurityOptions = NO_SECURITY_OPTIONS,
) -> int:
    """Find the newest messages of a topic with a key, or with a message id.

    Exit code 1 if there is none.

    Parameters
    ----------
    topic
        The topic.
    key
        The key, or a message id.
    from_
        Only messages that were stored at this time or later.
    to
        Only messages that were stored at this time or before.
    limit
        At most so many, 64 or fewer.
    json
        Print a JSON object a line, as trioha consume does.
    """
    if not 1 <= limit <= QUERY_MESSAGES_MAX:
        raise ConfigError(f"{limit} is not from 1 to {QUERY_MESSAGES_MAX}", key="--limit")
    begin_ms = 0 if from_ is None else time_option_ms(from_, key="--from")
    end_ms = NATURAL64.high if to is None else time_option_ms(to, key="--to")

    async def find(client: Cluster) -> tuple[ReceivedMessage, ...]:
        return await messages_by_key(client, topic, key, begin_ms=begin_ms, end_ms=end_ms, limit=limit)

    found = cluster.read(security).run(find)
    if not found:
        err().print(f"trioha: there is no message of {topic} with the key {key}", soft_wrap=True)
        return NOT_FOUND
    if json:
        for one in found:
            print_json(message_to_json(one))
    else:
        out().print(table(f"Messages of {topic} with the key {key}", _MESSAGES, found))
    return 0


def _lines(found: ReceivedMessage) -> list[tuple[str, str]]:
    """What is shown of a message: a name and a value each."""
    lines = [
        ("place", f"{found.queue}:{found.queue_offset}"),
        ("message id", found.message_id),
        ("offset id", found.offset_message_id),
        ("born", time_text(found.born_timestamp_ms)),
        ("stored", time_text(found.store_timestamp_ms)),
        ("consumed again", f"{found.reconsume_times:,} times"),
        ("tag", found.tag or ""),
        ("keys", " ".join(found.keys)),
    ]
    shown = message_to_json(found)
    properties = shown["properties"]
    assert isinstance(properties, dict), "made above"
    lines += [(f"property {name}", value) for name, value in properties.items()]
    if found.compression is not None:
        lines.append(("compression", found.compression))
    lines.append(("body", f"{len(found.body):,} bytes"))
    lines.append(("", found.body.decode(errors="backslashreplace")))
    return [(name, value) for name, value in lines if value]
