"""Check points and acknowledgements of popped messages, as RocketMQ 5 keeps them in the log.

See docs/protocol/pop.md#revive-topic.

A pop moves the group's offset past its messages and puts a check point (tag `ck`) that lists them; each
acknowledgement puts a record (`ack`, or `bAck` for several) that names the check point and the offsets. Both
are timer messages for `rmq_sys_REVIVE_LOG_<cluster>`. Bodies are compact JSON, keys in alphabetical order:

| key | long name | check point | acknowledgement |
|---|---|---|---|
| t, c, q | topic, cid / consumerGroup, queueId | of what was popped | those of its check point |
| so, pt | startOffset, popTime | where the pop began to read, when (ms) | those of its check point |
| bn | brokerName | of the broker | the same |
| it | invisibleTime | ms until it is given again | |
| n, d | num, queueOffsetDiff | messages, and their offsets less `so`; without `d` one after the other | |
| bm | bitMap | bit i: message i was acknowledged before this record | |
| sp | | the messages are given again without being counted as retried | |
| rp | | how often the messages were put off; a text, missing if never | |
| reviveTime, ro | | `pt` + `it`; 0 | |
| ao, aol | ackOffset | | the offset, or the offsets of a `bAck` (`ao` is -1) |

An acknowledgement belongs to the check point with equal t, c, q, so, pt and bn.
"""

from __future__ import annotations

from json import JSONEncoder
from json.encoder import encode_basestring
from typing import Final

from attrs import frozen

from trioha.errors import RemoteProtocolError
from trioha.numbers import NATURAL32, NATURAL64, Range, parse_int
from trioha.remoting.fastjson import JsonLimits, parse_json
from trioha.remoting.pop_message import MESSAGES_MAX

CHECK_POINT, ACK, BATCH_ACK = "ck", "ack", "bAck"
"""Tags."""
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""Its offset in a queue of the revive topic is that of the last check point that the master is done with."""
EARLY_MS: Final = 1000
"""A check point comes to the revive topic so long before its messages are due, and before what acknowledges
them."""
_MESSAGES: Final = Range(0, MESSAGES_MAX)
_BITS: Final = Range(-(2**31), 2**32 - 1)
_LIMITS: Final = JsonLimits(containers_max=16, dialect_chars_max=4096)
_encoder: Final = JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True)
_LONG_NAMES: Final = {
    "t": ("topic",),
    "c": ("cid", "consumerGroup"),
    "q": ("queueId",),
    "so": ("startOffset",),
    "pt": ("popTime",),
    "bn": ("brokerName",),
    "it": ("invisibleTime",),
    "n": ("num",),
    "d": ("queueOffsetDiff",),
    "bm": ("bitMap",),
    "ao": ("ackOffset",),
    "aol": ("ackOffsetList",),
    "sp": ("suspend",),
    "rp": ("rePutTimes",),
}


@frozen
class Pop:
    """One pop of one queue: what a check point and its acknowledgements have in common."""

    topic: str
    """A retry topic for messages that were given again."""
    group: str
    queue_id: int
    broker_name: str
    start_offset: int
    """Where the pop began to read."""
    pop_ms: int
    """When, ms since 1970."""

    def members(self) -> dict[str, object]:
        """Of the body of its records."""
        return {
            "bn": self.broker_name,
            "c": self.group,
            "pt": self.pop_ms,
            "q": self.queue_id,
            "so": self.start_offset,
            "t": self.topic,
        }

    def unique_key(self, offset: int, ending: str) -> str:
        """UNIQ_KEY of a record of it."""
        parts = (self.topic, self.queue_id, offset, self.group, self.pop_ms, self.broker_name, ending)
        return "@".join(map(str, parts))


@frozen
class CheckPoint:
    """Messages that a pop has handed out."""

    pop: Pop
    invisible_ms: int
    """How long after the pop they are to be given again."""
    differences: tuple[int, ...]
    """Queue offsets of the messages less the start offset, ascending."""
    bits: int = 0
    """Bit i: message i was acknowledged before."""
    is_suspended: bool = False
    """Whether the messages are given again without being counted as retried."""
    put_off: int = 0
    """How often they could not be given again."""

    tag = CHECK_POINT

    @property
    def revive_ms(self) -> int:
        """When its messages are due again, ms since 1970."""
        return self.pop.pop_ms + self.invisible_ms

    @property
    def deliver_ms(self) -> int:
        """When its record comes to the revive topic, ms since 1970."""
        return self.revive_ms - EARLY_MS

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of its record."""
        return self.pop.unique_key(self.pop.start_offset, "ck")

    @property
    def left(self) -> tuple[int, ...]:
        """Queue offsets of its messages that were not acknowledged before."""
        start = self.pop.start_offset
        return tuple(start + one for index, one in enumerate(self.differences) if not self.bits >> index & 1)

    @property
    def end_offset(self) -> int:
        """The queue offset after its last message; its start offset if it has none."""
        return self.pop.start_offset + max(self.differences, default=-1) + 1

    def body(self) -> bytes:
        """The body of its record."""
        put_off: dict[str, object] = {"rp": str(self.put_off)} if self.put_off else {}
        return _encode(
            {
                **self.pop.members(),
                "bm": self.bits,
                "d": list(self.differences),
                "it": self.invisible_ms,
                "n": len(self.differences),
                "reviveTime": self.revive_ms,
                "ro": 0,
                "sp": self.is_suspended,
                **put_off,
            }
        )


@frozen
class Acknowledgement:
    """Messages of a pop that are done."""

    pop: Pop
    offsets: tuple[int, ...]
    """Queue offsets of the messages."""
    deliver_ms: int
    """When its record comes to the revive topic, ms since 1970; not in the body."""
    is_batch: bool = False

    @property
    def tag(self) -> str:
        """TAGS of its record."""
        return BATCH_ACK if self.is_batch else ACK

    @property
    def unique_key(self) -> str:
        """UNIQ_KEY of its record."""
        return self.pop.unique_key(-1 if self.is_batch else self.offsets[0], "ack")

    def body(self) -> bytes:
        """The body of its record."""
        # Written by hand: each message that is consumed has one.
        pop, quote = self.pop, encode_basestring
        offsets = f'-1,"aol":[{",".join(map(str, self.offsets))}]' if self.is_batch else self.offsets[0]
        text = (
            f'{{"ao":{offsets},"bn":{quote(pop.broker_name)},"c":{quote(pop.group)},"pt":{pop.pop_ms},'
            f'"q":{pop.queue_id},"so":{pop.start_offset},"t":{quote(pop.topic)}}}'
        )
        return text.encode("utf-8", "replace")


def decode_check_point(body: bytes) -> CheckPoint:
    """The check point of a record's body. Raises RemoteProtocolError, or ValueError for a number."""
    fields = _Fields(body)
    given = fields.numbers("d", NATURAL32)
    if given is None:
        given = list(range(fields.number("n", _MESSAGES)))
    if len(given) > MESSAGES_MAX:
        raise ValueError(f"{len(given)} messages")
    return CheckPoint(
        fields.pop(),
        fields.number("it"),
        tuple(given),
        bits=0 if fields.get("bm") is None else fields.number("bm", _BITS),
        is_suspended=fields.get("sp") is True,
        put_off=0 if fields.get("rp") is None else fields.number("rp", NATURAL32),
    )


def decode_acknowledgement(body: bytes, *, deliver_ms: int = 0) -> Acknowledgement:
    """The acknowledgement of a record's body. Raises as `decode_check_point`."""
    fields = _Fields(body)
    listed = fields.numbers("aol", NATURAL64)
    offsets = (fields.number("ao"),) if listed is None else tuple(listed)
    return Acknowledgement(fields.pop(), offsets, deliver_ms, is_batch=listed is not None)


def _encode(members: dict[str, object]) -> bytes:
    return _encoder.encode(members).encode("utf-8", "replace")


class _Fields:
    """The body of a check point or acknowledgement.

    Its methods raise RemoteProtocolError, or ValueError for a number, if it has another shape.
    """

    def __init__(self, body: bytes) -> None:
        """Raises RemoteProtocolError for what is not JSON."""
        parsed = parse_json(body, limits=_LIMITS)
        if not isinstance(parsed, dict):
            raise RemoteProtocolError("not an object")
        self._members = parsed

    def get(self, name: str) -> object:
        """A member, by its short name or a long one; None if it is missing."""
        for each in (name, *_LONG_NAMES[name]):
            if (value := self._members.get(each)) is not None:
                return value
        return None

    def number(self, name: str, within: Range = NATURAL64) -> int:
        """A member that is a number."""
        return parse_int(self.get(name), within)

    def _text(self, name: str) -> str:
        value = self.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise RemoteProtocolError(f"{name} is not a text")
        return value

    def numbers(self, name: str, within: Range) -> list[int] | None:
        """A member that is a list of numbers; None if it is missing."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise RemoteProtocolError(f"{name} is not a list")
        return [parse_int(one, within) for one in value]

    def pop(self) -> Pop:
        """The pop that the record is of."""
        return Pop(
            self._text("t"),
            self._text("c"),
            self.number("q", NATURAL32),
            self._text("bn"),
            self.number("so"),
            self.number("pt"),
        )
