"""Whole connections for two nodes that must do the same: what is sent, in which pieces, from a seed.

Each connection is of one kind, since what a node answers may depend on when its queues have what was stored:

| kind | what is sent |
|---|---|
| WRITING | sends to a topic: runs as Java's clients send them, batches, V1, wrong values; reads of another |
| READING | pulls of one form, and other requests that store nothing |
| ALONE | one request of any kind, also of those in `TASKS` |
| WILD | reads, and then one frame that may end the connection |

A node is asked for nothing that is a figure of its process, or of its disk's speed (`FIGURES`), and for no
queue that it chooses at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

from attrs import evolve, frozen

from tests.hostile.requesting import KINDS, Call, good_call
from tests.hostile.requests import REQUESTS, Request, Type
from tests.hostile.wire import JSON, ONEWAY
from trioha.errors import RemoteProtocolError
from trioha.remoting.codec import FrameDecoder
from trioha.remoting.codes import RequestCode

TOPICS: Final = ("TopicHostile", "TopicHostile-2")
FIGURES: Final = frozenset(
    (
        # Memory, counters, rates by monotonic time, the kernel's name.
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.VIEW_BROKER_STATS_DATA,
        # The address that it is bound to, and its folder.
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.UPDATE_BROKER_CONFIG,
        # The group's offset follows when the disk has the check point.
        RequestCode.POP_MESSAGE,
    )
)
TASKS: Final = frozenset(
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_ALL_DELAY_OFFSET,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_METRICS,
        RequestCode.GET_TIMER_CHECK_POINT,
        # They store records with the time.
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        # Until a moment of its own.
        RequestCode.NOTIFICATION,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        # Each waits for the disk.
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    )
)
"""Handled by tasks of their own, or of whole tables: the next requests may be handled before."""
PULLS: Final = frozenset((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
WAITS: Final = 2
"""The bit of a pull's sysFlag with which it waits for messages, until a moment of its own."""
LONGEST_TEXT: Final = 65536
"""Of a field: its header is within every limit, so that the request is answered."""
_SENDS: Final = tuple(row for row in REQUESTS if row.stores)
_READS: Final = tuple(row for row in REQUESTS if not row.stores and row.code not in FIGURES)
_BY_CODE: Final = {row.code: row for row in REQUESTS}
_WILD: Final = tuple(
    draw
    for name, draw, _ in KINDS
    if name in {"literal", "header", "json", "binary", "mutated", "length", "serialization", "noise"}
)
_NUMBERS: Final = ("", "0", "1", "5", "-1", "007", "100", str(10**18 - 1), str(10**18), str(2**63), "x")
"""Offsets of pulls."""


class Kind(StrEnum):
    """What a connection is for."""

    WRITING = "writing"
    READING = "reading"
    ALONE = "alone"
    WILD = "wild"


@frozen
class Piece:
    """Bytes that are sent at once."""

    data: bytes
    is_read_alone: bool
    """Whether the node has read it before the next one is sent."""


@frozen
class Connection:
    """All that one client sends."""

    name: str
    """SEED:NUMBER, which always gives the same one."""
    kind: Kind
    pieces: tuple[Piece, ...]
    answers: int
    """To `pieces`."""
    last: bytes
    """Sent when these have come; it may be answered, or end the connection."""


def preloaded() -> Connection:
    """Messages with tags and keys in all queues of both topics."""
    chance = random.Random(0)
    calls = []
    for number in range(160):
        call = good_call(chance, number, row=_BY_CODE[RequestCode.SEND_MESSAGE_V2])
        ext = {
            **dict(call.ext), "b": TOPICS[number % 2], "d": "4", "e": str(number // 2 % 4), "f": "0",
            "i": "TAGS\x01tag\x02KEYS\x01a b\x02",
        }  # fmt: skip
        calls.append(evolve(call, opaque=number, serialization=JSON, ext=list(ext.items())))
    data = b"".join(call.encode() for call in calls)
    return Connection("preloaded", Kind.WRITING, (Piece(data, is_read_alone=False),), len(calls), b"")


def connection_of(seed: int, number: int) -> Connection:
    """A connection of a seed."""
    chance = random.Random(seed << 40 | number)
    kind = chance.choice((Kind.WRITING, Kind.WRITING, Kind.READING, Kind.READING, Kind.WILD, Kind.ALONE))
    written, read = chance.sample(TOPICS, 2)
    count = chance.choice((1, 3, 10, 40))
    calls: list[Call] = []
    if kind is Kind.ALONE:
        count = 1
        calls.append(good_call(chance, number, row=chance.choice((*_SENDS, *_READS))))
        _calm(calls[0], written)
    while len(calls) < count:
        if kind is Kind.WRITING and chance.random() < 0.8:
            calls += _sends(chance, len(calls), written)
        else:
            calls += _reads(chance, len(calls), read)
    frames = [call.encode() for call in calls]
    return Connection(
        f"{seed}:{number}",
        kind,
        tuple(_pieces(chance, frames)),
        sum(not call.flag & ONEWAY for call in calls),
        _wild(chance) if kind is Kind.WILD else b"",
    )


def _sends(chance: random.Random, index: int, topic: str) -> Iterator[Call]:
    """One send, or several as a producer with many threads sends them."""
    row = chance.choice((*_SENDS, *(_BY_CODE[RequestCode.SEND_MESSAGE_V2],) * 4))
    first = good_call(chance, index, row=row)
    if chance.random() < 0.1:
        first.flag = ONEWAY
    for place in range(chance.choice((1, 1, 4, 30))):
        call = good_call(chance, index + place, row=row)
        call.serialization, call.flag = first.serialization, first.flag
        if chance.random() < 0.2:
            _spoil(chance, call, row)
        _calm(call, topic)
        yield call


def _reads(chance: random.Random, index: int, topic: str) -> Iterator[Call]:
    """One request, or several pulls of one form."""
    row = chance.choice([row for row in _READS if row.code not in TASKS])
    if chance.random() < 0.4:
        row = _BY_CODE[chance.choice(sorted(PULLS))]
    first = good_call(chance, index, row=row)
    if chance.random() < 0.3:
        _spoil(chance, first, row)
    for place in range(chance.choice((1, 4, 10)) if row.code in PULLS else 1):
        call = evolve(first, opaque=index + place, ext=list(first.ext))
        if place:
            call.ext = [
                (name, chance.choice(_NUMBERS) if name in {"queueOffset", "commitOffset"} else value)
                for name, value in call.ext
            ]
        _calm(call, topic)
        yield call


def _calm(call: Call, topic: str) -> None:
    """Have a call write to or look at this topic alone, wait for nothing, and leave no choice to the node."""
    row = _BY_CODE[call.code]
    types = {field.name: field.type for field in row.fields}
    for place, (name, value) in enumerate(call.ext):
        new = value
        if row.stores:
            if types[name] is Type.TOPIC and value in TOPICS:
                new = topic
            elif name in {"e", "queueId"} and value.startswith("-"):
                new = "0"
        elif (
            name == "sysFlag" and value.isascii() and value.removeprefix("-").isdecimal() and len(value) < 20
        ):
            new = str(int(value) & ~WAITS)
        elif (
            name in {"topic", "topicList"}
            and types[name] is Type.TEXT
            and value not in {topic, "NoSuchTopic"}
        ):
            new = topic
        call.ext[place] = (name, new)


def _spoil(chance: random.Random, call: Call, row: Request) -> None:
    """Give a field any value, or take it away."""
    if not row.fields:
        return
    field = chance.choice(row.fields)
    values = dict(call.ext)
    values.pop(field.name, None)
    if chance.random() < 0.9:
        values[field.name] = field.hostile(chance)[:LONGEST_TEXT]
    call.ext = list(values.items())


def _wild(chance: random.Random) -> bytes:
    """A frame that may end the connection; no pull, which might wait, and no send to any queue."""
    while True:
        data = chance.choice(_WILD)(chance, 1).data
        decoder = FrameDecoder()
        decoder.feed(data)
        try:
            command = decoder.next_command()
        except RemoteProtocolError:
            return data
        if command is None:
            return data
        queue_id = command.ext_fields.get("queueId", command.ext_fields.get("e", ""))
        if command.code not in {*PULLS, *FIGURES} and not queue_id.startswith("-"):
            return data


def _pieces(chance: random.Random, frames: list[bytes]) -> Iterator[Piece]:
    """The frames in pieces: all at once, or cut anywhere, also within the length of a frame."""
    data = b"".join(frames)
    starts, start = [], 0
    for frame in frames:
        starts.append(start)
        start += len(frame)
    cuts = {chance.choice(starts) + chance.randrange(9) for _ in range(chance.choice((0, 0, 2, 8)))}
    cuts |= {chance.randrange(len(data)) for _ in range(chance.choice((0, 0, 2, 8)))}
    at = 0
    for cut in sorted({*cuts, len(data)}):
        if at < cut <= len(data):
            yield Piece(data[at:cut], is_read_alone=chance.random() < 0.7)
            at = cut
