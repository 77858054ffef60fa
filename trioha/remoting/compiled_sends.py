"""Runs of sends: their headers as columns of numbers, and their answers.

A producer with many threads shares one connection, so sends arrive several at a time. Read one by one, each
costs the broker a dict of header fields and a dozen objects. `read_sends` reads all that have arrived into
columns, `store.compiled_runs.encode_run` makes their records, and `encode_answers` their answers.

Compiled by mypyc where that is possible (`trioha.compiled`). A run consists of common sends: whole frames of
SEND_MESSAGE_V2 with a JSON header as Java's clients write it (keys in order, no white space), ASCII only,
every field once and within its range, no batch, no transaction, all of one topic, either all one-way or
none. `read_sends` stops before any other frame, which `remoting.codec` reads, and refuses where it is
wrong.

Columns of a run, `SEND_BYTES` for each send, as i64: opaque, queue id, sysFlag, flag, born timestamp in ms,
reconsumeTimes, where the body starts and ends in the block that was read, where the properties end in the
properties of the run.
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i64_be, write_i64_be
from mypy_extensions import i64

from trioha.compiled import use_compiled

SOURCE_SHA256: Final = ""
"""Of this file; the build sets it in the copy that it compiles."""

HEADER_START: Final = b'{"code":310,"extFields":{'
FIELDS_END: Final = b'},"flag":'
FLAG_END: Final = b',"language":"'
OPAQUE: Final = b'","opaque":'
VERSION: Final = b',"serializeTypeCurrentRPC":"JSON","version":'
SYS_FLAG_REFUSED: Final = 0xFC
"""Bits of sysFlag that a common send does not have: hosts of IPv6, transactions, inner batches."""
NUMBER_MAX: Final = 0x7FFFFFFF
NUMBER_DIGITS_MAX: Final = 10
TIME_DIGITS_MAX: Final = 18
SEND_BYTES: Final = 72
REQUIRED_FIELDS: Final = 0xFF
"""Bits of the fields a to h."""
SEPARATOR: Final = 2
QUOTE: Final = 34
BACKSLASH: Final = 92
MASK_32: Final = 0xFFFFFFFF


@final
class Sends:
    """A run of sends, as `read_sends` found it."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self.next_at: i64 = 0
        """Index after the last frame."""
        self.header_bytes: i64 = 0
        """Of all headers."""
        self.topic: bytes = b""
        self.columns: bytes = b""
        self.properties: bytes = b""
        """Those of all sends, one after the other, each with the shared properties at its end."""
        self.body_bytes: i64 = 0
        """Of all bodies."""
        self.body_bytes_max: i64 = 0
        """Of the longest body."""
        self.properties_bytes_max: i64 = 0
        """Of the longest properties, the shared ones included."""
        self.queue_ids: list[int] = []
        """Each one once."""
        self.is_oneway: bool = False
        """Whether none of them is to be answered."""


@final
class _Send:
    """Fields of one send."""

    def __init__(self) -> None:
        self.topic_at: i64 = 0
        self.topic_end: i64 = 0
        self.queue_id: i64 = 0
        self.sys_flag: i64 = 0
        self.flag: i64 = 0
        self.born_ms: i64 = 0
        self.reconsume_times: i64 = 0
        self.opaque: i64 = 0
        self.properties_at: i64 = 0
        self.properties_end: i64 = 0
        self.is_oneway: bool = False


def read_sends(  # noqa: PLR0917 - keywords would cost a call more
    data: bytes, at: i64, sends_max: i64, frame_bytes_max: i64, header_bytes_max: i64, shared: bytes
) -> Sends:
    """The run of common sends from `data[at]` on, the start of a frame; at most `sends_max`, perhaps none.

    `shared` are properties that follow those of each send.
    """
    found = Sends()
    send = _Send()
    columns = BytesWriter()
    properties = BytesWriter()
    properties_bytes: i64 = 0
    shared_bytes: i64 = len(shared)
    end: i64 = len(data)
    topic = b""
    count: i64 = 0
    # Of queue ids, those that were seen: most runs have few of them.
    queue_ids: list[int] = []
    last_queue_id: i64 = -1
    while count < sends_max and end - at >= 8:
        word = read_i64_be(data, at)
        length: i64 = word >> 32
        # The byte of the serialization, 0 for JSON, stands before the header's length.
        header_bytes: i64 = word & MASK_32
        if length < 4 or length + 4 > frame_bytes_max or header_bytes > header_bytes_max:
            break
        frame_end: i64 = at + 4 + length
        header_end: i64 = at + 8 + header_bytes
        if frame_end > end or header_end > frame_end or not _read_header(data, at + 8, header_end, send):
            break
        if count == 0:
            topic = data[send.topic_at : send.topic_end]
            found.is_oneway = send.is_oneway
        elif send.is_oneway != found.is_oneway or data[send.topic_at : send.topic_end] != topic:
            break
        before: i64 = properties_bytes
        added = _unescape(data, send.properties_at, send.properties_end, properties)
        if added < 0:
            properties.truncate(before)
            break
        properties_bytes += added
        if added > 0 and shared_bytes > 0 and properties[properties_bytes - 1] != SEPARATOR:
            properties.append(SEPARATOR)
            properties_bytes += 1
        properties.write(shared)
        properties_bytes += shared_bytes
        body_bytes: i64 = frame_end - header_end
        found.body_bytes_max = max(found.body_bytes_max, body_bytes)
        found.properties_bytes_max = max(found.properties_bytes_max, properties_bytes - before)
        found.body_bytes += body_bytes
        found.header_bytes += header_bytes
        if send.queue_id != last_queue_id:
            last_queue_id = send.queue_id
            boxed = int(last_queue_id)
            if boxed not in queue_ids:
                queue_ids.append(boxed)
        write_i64_be(columns, send.opaque)
        write_i64_be(columns, send.queue_id)
        write_i64_be(columns, send.sys_flag)
        write_i64_be(columns, send.flag)
        write_i64_be(columns, send.born_ms)
        write_i64_be(columns, send.reconsume_times)
        write_i64_be(columns, header_end)
        write_i64_be(columns, frame_end)
        write_i64_be(columns, properties_bytes)
        count += 1
        at = frame_end
    found.count = count
    found.next_at = at
    if count > 0:
        found.topic = topic
        found.columns = columns.getvalue()
        found.properties = properties.getvalue()
        found.queue_ids = queue_ids
    return found


def _read_header(data: bytes, at: i64, end: i64, send: _Send) -> bool:
    """Read a header into `send`; False if it is not that of a common send."""
    if not _starts(data, at, end, HEADER_START):
        return False
    at += len(HEADER_START)
    seen: i64 = 0
    send.properties_at = 0
    send.properties_end = 0
    send.reconsume_times = 0
    while True:
        # "x":"
        if end - at < 6 or data[at] != QUOTE or data[at + 2] != QUOTE or data[at + 3] != 58:
            return False
        if data[at + 4] != QUOTE:
            return False
        letter: i64 = data[at + 1]
        letter -= 97
        if letter < 0 or letter > 13 or seen >> letter & 1 != 0:
            return False
        seen |= 1 << letter
        at += 5
        start: i64 = at
        has_escapes = False
        while at < end:
            unit: i64 = data[at]
            if unit == QUOTE:
                break
            if unit == BACKSLASH:
                has_escapes = True
                at += 1
            elif unit < 32 or unit > 126:
                return False
            at += 1
        if at >= end:
            return False
        if letter == 8:
            send.properties_at = start
            send.properties_end = at
        elif has_escapes:
            return False
        elif letter == 1:
            send.topic_at = start
            send.topic_end = at
        elif letter == 3 or letter == 4 or letter == 5 or letter == 7 or letter == 9 or letter == 11:  # noqa: PLR1714
            number = _number(data, start, at, NUMBER_DIGITS_MAX)
            if number < 0 or number > NUMBER_MAX:
                return False
            if letter == 4:
                send.queue_id = number
            elif letter == 5:
                if number & SYS_FLAG_REFUSED != 0:
                    return False
                send.sys_flag = number
            elif letter == 7:
                send.flag = number
            elif letter == 9:
                send.reconsume_times = number
        elif letter == 6:
            send.born_ms = _number(data, start, at, TIME_DIGITS_MAX)
            if send.born_ms < 0:
                return False
        elif letter == 12 and not (at - start == 5 and _starts(data, start, at, b"false")):
            return False
        at += 1
        if at >= end:
            return False
        if data[at] != 44:
            break
        at += 1
    if seen & REQUIRED_FIELDS != REQUIRED_FIELDS or not _starts(data, at, end, FIELDS_END):
        return False
    at += len(FIELDS_END)
    # 0, or 2 for one-way.
    if at >= end or (data[at] != 48 and data[at] != 50):
        return False
    send.is_oneway = data[at] == 50
    at += 1
    start = _opaque_at(data, at, end)
    if start < 0:
        return False
    at = _digits_end(data, start, end)
    send.opaque = _plain_number(data, start, at, NUMBER_DIGITS_MAX)
    return 0 <= send.opaque <= NUMBER_MAX and _is_end(data, at, end)


def _opaque_at(data: bytes, at: i64, end: i64) -> i64:
    """Where opaque starts in a header whose flag ends at `at`; -1 if its language does not stand between."""
    if not _starts(data, at, end, FLAG_END):
        return -1
    at += len(FLAG_END)
    while at < end and 65 <= data[at] <= 90:
        # The language's name, in capitals.
        at += 1
    return at + len(OPAQUE) if _starts(data, at, end, OPAQUE) else -1


def _digits_end(data: bytes, at: i64, end: i64) -> i64:
    while at < end and 48 <= data[at] <= 57:
        at += 1
    return at


def _is_end(data: bytes, at: i64, end: i64) -> bool:
    """Whether `data[at:end]` is what follows opaque in a header of JSON."""
    if not _starts(data, at, end, VERSION):
        return False
    at += len(VERSION)
    if end - at < 2 or data[end - 1] != 125:
        return False
    number = _plain_number(data, at, end - 1, NUMBER_DIGITS_MAX)
    return 0 <= number <= NUMBER_MAX


def _unescape(data: bytes, at: i64, end: i64, out: BytesWriter) -> i64:
    r"""Append a string of JSON to `out`; returns its bytes, -1 for an escape other than `\u00XX` of ASCII."""
    added: i64 = 0
    while at < end:
        start: i64 = at
        while at < end and data[at] != BACKSLASH:
            at += 1
        if at > start:
            out.write(data[start:at])
            added += at - start
        if at < end:
            # \u00XX
            if end - at < 6 or data[at + 1] != 117 or data[at + 2] != 48 or data[at + 3] != 48:
                return -1
            high: i64 = data[at + 4]
            high -= 48
            low = _hex_digit(data[at + 5])
            if high < 0 or high > 7 or low < 0:
                return -1
            out.append(high * 16 + low)
            added += 1
            at += 6
    return added


def _hex_digit(unit: i64) -> i64:
    if 48 <= unit <= 57:
        return unit - 48
    if 97 <= unit <= 102:
        return unit - 87
    if 65 <= unit <= 70:
        return unit - 55
    return -1


def _number(data: bytes, at: i64, end: i64, digits_max: i64) -> i64:
    """A number of decimal digits; -1 for anything else."""
    if at >= end or end - at > digits_max:
        return -1
    value: i64 = 0
    while at < end:
        digit: i64 = data[at]
        digit -= 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
        at += 1
    return value


def _plain_number(data: bytes, at: i64, end: i64, digits_max: i64) -> i64:
    """As `_number`, without leading zeros: digits that are equal where the numbers are."""
    if end - at > 1 and data[at] == 48:
        return -1
    return _number(data, at, end, digits_max)


def _starts(data: bytes, at: i64, end: i64, text: bytes) -> bool:
    """Whether `data[at:end]` starts with `text`."""
    stop: i64 = at + len(text)
    return stop <= end and data[at:stop] == text


def encode_answers(columns: bytes, put_offsets: bytes, host: bytes, parts: list[bytes]) -> bytes:
    """Frames of the answers to a run whose sends were all stored, in order.

    `put_offsets` has physical offset and queue offset of each record as i64. `host` is the store host in
    hexadecimal, as message ids start. `parts` are the pieces of the header around message id, queue id, queue
    offset and opaque: five.
    """
    answers = BytesWriter()
    before_id = parts[0]
    before_queue = parts[1]
    before_offset = parts[2]
    before_opaque = parts[3]
    after_opaque = parts[4]
    fixed_bytes: i64 = (
        len(before_id)
        + len(host)
        + 16
        + len(before_queue)
        + len(before_offset)
        + len(before_opaque)
        + len(after_opaque)
    )
    at: i64 = 0
    place: i64 = 0
    end: i64 = len(columns)
    while at < end:
        queue_id = _decimal(read_i64_be(columns, at + 8))
        queue_offset = _decimal(read_i64_be(put_offsets, place + 8))
        opaque = _decimal(read_i64_be(columns, at))
        header_bytes: i64 = fixed_bytes + len(queue_id) + len(queue_offset) + len(opaque)
        # JSON is serialization 0.
        write_i64_be(answers, (header_bytes + 4) << 32 | header_bytes)
        answers.write(before_id)
        answers.write(host)
        answers.write(f"{int(read_i64_be(put_offsets, place)):016X}".encode())
        answers.write(before_queue)
        answers.write(queue_id)
        answers.write(before_offset)
        answers.write(queue_offset)
        answers.write(before_opaque)
        answers.write(opaque)
        answers.write(after_opaque)
        at += SEND_BYTES
        place += 16
    return answers.getvalue()


def _decimal(value: i64) -> bytes:
    """A natural number in decimal digits."""
    return str(value).encode()


use_compiled(__name__)
