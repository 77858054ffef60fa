"""Half messages and op records, as RocketMQ keeps them.

See docs/protocol/store.md#delayed-transactional-and-retried-messages, docs/protocol/remoting.md#transactions.

| record | topic | differs from the message that the producer sent in |
|---|---|---|
| half message | RMQ_SYS_TRANS_HALF_TOPIC | queue 0, REAL_TOPIC, REAL_QID, no transaction bits in sysFlag |
| half message, checked | the same | also TRANSACTION_CHECK_TIMES, counted up |
| committed message | REAL_TOPIC | sysFlag 8, preparedTransactionOffset: where the half message is |
| given up | TRANS_CHECK_MAX_TIME_TOPIC | as the half message |
| op record | RMQ_SYS_TRANS_OP_HALF_TOPIC | tag d; body: queue offsets of decided half messages |

The body of an op record is one decimal number in 4.9, and numbers with a comma after each in 5.x. Readers
accept both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve, field, frozen

from trioha.broker.delayed_messages import DELAY, delay_level
from trioha.broker.timer_messages import SENT, TimerMessages
from trioha.broker.timer_records import REAL_QUEUE_ID, REAL_TOPIC
from trioha.numbers import I64, NATURAL32, NATURAL64, parse_int
from trioha.remoting.codes import ResponseCode
from trioha.remoting.command import BadRequestError
from trioha.remoting.end_transaction import Decision
from trioha.store.message_properties import encode_properties, parse_properties
from trioha.store.messages import Message
from trioha.store.record import Host, Record, RecordError, decode_record, encode_record
from trioha.store.record_layout import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX_V1,
    TRANSACTION_MASK,
)
from trioha.store.topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The consumer group whose offsets in the half topic and the op topic say where reading begins."""
QUEUE_ID: Final = 0
"""The one queue of each of these topics."""
OP_PROPERTIES: Final = encode_properties({"WAIT": "true", "TAGS": "d"})

_TRAN_MSG: Final = b"TRAN_MSG\x01"
_GROUP: Final = "PGROUP"
_UNIQUE_KEY: Final = "UNIQ_KEY"
_TRANSACTION_ID: Final = "__transactionId__"
_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
_FIRST_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
_IMMUNITY: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
_HOST_BITS: Final = BORN_HOST_V6 | STORE_HOST_V6


def is_half_message(properties: bytes, *, reconsume_times: int) -> bool:
    """Whether a send begins a transaction: it has TRAN_MSG, and is not a retry of a client before 4.6.1."""
    if _TRAN_MSG not in properties:
        return False
    parsed = parse_properties(properties)
    is_retry = reconsume_times > 0 and _number(parsed.get(DELAY), 0) > 0
    return parsed.get("TRAN_MSG", "").lower() == "true" and not is_retry


def half_message(message: Message, timers: TimerMessages) -> Message:
    """How the broker keeps a message that begins a transaction.

    A delay level is dropped, as RocketMQ's own producers drop it: its brokers delay the half message, and
    lose it when it is due. A time of delivery is kept, and counts when the transaction is committed. Raises
    BadRequestError for a delay that is not a level and for a time that `timers` refuses now, ValueError for
    properties that cannot be encoded.
    """
    properties = parse_properties(message.properties)
    if delay_level(properties.pop(DELAY, "0")) <= 0:
        timers.stored(message, properties)
    else:
        for name in SENT:
            properties.pop(name, None)
    properties.pop(_CHECK_TIMES, None)
    properties.pop(_FIRST_OFFSET, None)
    if unique_key := properties.get(_UNIQUE_KEY):
        properties[_TRANSACTION_ID] = unique_key
    properties |= {REAL_TOPIC: message.topic, REAL_QUEUE_ID: str(message.queue_id)}
    return evolve(
        message,
        topic=HALF_TOPIC,
        queue_id=QUEUE_ID,
        properties=encode_properties(properties),
        sys_flag=message.sys_flag & ~TRANSACTION_MASK,
    )


def op_body(half_offsets: Iterable[int]) -> bytes:
    """The body of an op record of 5.x."""
    return "".join(f"{offset}," for offset in half_offsets).encode()


def op_offsets(body: bytes) -> list[int]:
    """The half offsets that an op record names. Text that is not a number is ignored."""
    offsets = []
    for text in body.decode("ascii", "replace").split(","):
        try:
            offsets.append(parse_int(text.strip(), NATURAL64))
        except ValueError:
            continue
    return offsets


def op_message(body: bytes, *, now_ms: int, host: Host) -> Message:
    """An op record."""
    return Message(
        OP_TOPIC,
        QUEUE_ID,
        body,
        OP_PROPERTIES,
        born_timestamp_ms=now_ms,
        born_host=host,
    )


def refuse_own_group(group: str) -> None:
    """Raises BadRequestError for the group whose offsets only the broker commits."""
    if group == TRANSACTION_GROUP:
        raise BadRequestError(f"the offsets of {group} are the broker's own", code=ResponseCode.NO_PERMISSION)


@frozen
class HalfMessage:
    """A half message in the log."""

    record: Record
    properties: dict[str, str] = field(repr=False)

    @classmethod
    def of(cls, view: memoryview | None) -> HalfMessage | None:
        """The half message in a record's bytes; None if the record is not one of the half topic."""
        if view is None:
            return None
        try:
            record = decode_record(view, check_crc=False)
        except RecordError:
            return None
        if not isinstance(record, Record) or record.topic != HALF_TOPIC:
            return None
        return cls(record, parse_properties(record.properties_raw))

    @property
    def queue_offset(self) -> int:
        """In the half topic."""
        return self.record.queue_offset

    @property
    def producer_group(self) -> str:
        """Empty if the producer gave none."""
        return self.properties.get(_GROUP, "")

    @property
    def unique_key(self) -> str | None:
        """The producer's id of the message."""
        return self.properties.get(_UNIQUE_KEY)

    @property
    def real_topic(self) -> str:
        """The topic that the producer sent it to; empty in a damaged record."""
        return self.properties.get(REAL_TOPIC, "")

    @property
    def real_queue_id(self) -> int:
        """The queue that it was sent to; 0 in a damaged record."""
        return _queue_id(self.properties)

    @property
    def check_times(self) -> int:
        """TRANSACTION_CHECK_TIMES: number of checks so far."""
        return max(0, _number(self.properties.get(_CHECK_TIMES), 0))

    @property
    def first_offset(self) -> int | None:
        """Queue offset of the transaction's first copy, where the record names it."""
        offset = _number(self.properties.get(_FIRST_OFFSET), -1)
        return offset if offset >= 0 else None

    @property
    def is_copy(self) -> bool:
        """Whether the broker put it as a copy of an older record, which is void then."""
        return self.check_times > 0 or self.first_offset is not None

    @property
    def identity(self) -> int | None:
        """Equal for all copies of one half message, and for few others; None without UNIQ_KEY."""
        if self.unique_key is None:
            return None
        record = self.record
        return hash((self.unique_key, record.born_timestamp_ms, record.born_host.packed, self.producer_group))

    def immunity_ms(self, *, default_ms: int) -> int:
        """How long after its birth it is not checked: at least `default_ms`."""
        return max(default_ms, 1000 * _number(self.properties.get(_IMMUNITY), 0))

    def age_ms(self, now_ms: int) -> int:
        """Since the producer made it; by the broker's clock if the producer's is ahead of it."""
        record = self.record
        born_ms = record.born_timestamp_ms
        if not 0 < born_ms <= record.store_timestamp_ms:
            born_ms = record.store_timestamp_ms
        return max(0, now_ms - born_ms)

    # -- messages made of it -----------------------------------------------------------------------------

    def committed(self) -> Message:
        """The message that consumers get."""
        return self._message(
            topic=self.real_topic,
            queue_id=self.real_queue_id,
            properties=self.record.properties_raw,
            transaction_bits=int(Decision.COMMIT),
            prepared_transaction_offset=self.record.physical_offset,
        )

    def checked_again(self) -> Message:
        """Its copy for one more check."""
        return self._copy({_CHECK_TIMES: str(self.check_times + 1)})

    def moved(self, *, first_offset: int) -> Message:
        """Its copy at the half topic's end, not checked yet."""
        return self._copy({_FIRST_OFFSET: str(first_offset)})

    def given_up(self) -> Message:
        """The message for the topic of transactions without a decision."""
        return self._message(topic=GIVEN_UP_TOPIC, queue_id=QUEUE_ID, properties=self.record.properties_raw)

    def with_real_topic(self) -> bytes:
        """Its record with the real topic. Raises RecordError for a topic that no record can hold."""
        topic = self.real_topic
        magic = MAGIC_V2 if len(topic.encode()) > TOPIC_BYTES_MAX_V1 else MAGIC_V1
        return encode_record(evolve(self.record, topic=topic, queue_id=self.real_queue_id, magic=magic))

    def _copy(self, more: dict[str, str]) -> Message:
        return self._message(
            topic=HALF_TOPIC, queue_id=QUEUE_ID, properties=encode_properties(self.properties | more)
        )

    def _message(
        self,
        *,
        topic: str,
        queue_id: int,
        properties: bytes,
        transaction_bits: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Message:
        record = self.record
        return Message(
            topic,
            queue_id,
            record.body,
            properties,
            record.flag,
            record.sys_flag & ~(_HOST_BITS | TRANSACTION_MASK) | transaction_bits,
            record.born_timestamp_ms,
            record.born_host,
            record.reconsume_times,
            prepared_transaction_offset,
        )


def _queue_id(properties: Mapping[str, str]) -> int:
    try:
        return parse_int(properties.get(REAL_QUEUE_ID), NATURAL32)
    except ValueError:
        return 0


def _number(text: str | None, default: int) -> int:
    """A property that is a number; `default` if it is missing or none."""
    try:
        return default if text is None else parse_int(text, I64)
    except ValueError:
        return default
