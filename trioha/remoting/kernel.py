"""Runs of sends, pulls and headers of answers, in the form that mypyc compiles to machine code.

A producer with many threads shares one connection, so sends arrive several at a time. Read one by one, each
costs the broker a dict of header fields and a dozen objects. `read_sends` reads all that have arrived into
columns of numbers, `store.kernel.encode_run` makes their records, and `encode_answers` their answers.

The build (`hatch_build.py`) compiles this file as `trioha.remoting._kernel`; `remoting.compiled` imports that
module if it fits this file, and nothing imports this file itself. A run consists of common sends: whole
frames of SEND_MESSAGE_V2 with a JSON header as Java's clients write it (keys in order, no white space), ASCII
only, every field once and within its range, no batch, no transaction, all of one topic, either all one-way or
none. `read_sends` stops before any other frame, which the plain code reads, and refuses where it is wrong.

Columns of a run, `store.messages.SEND_BYTES` for each send, as i64: opaque, queue id, sysFlag, flag, born
timestamp in ms, reconsumeTimes, where the body starts and ends in the block that was read, where the
properties end in the properties of the run.

A consumer's pulls of a queue differ in three numbers only. `read_pull` cuts them out of a pull's header; what
is left is the form of the pull, whose fields the plain code reads once (`remoting.pull_forms`).
"""

from __future__ import annotations

from typing import Final, final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

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
CUT: Final = 0
"""Stands in a form for the digits that were cut out: no header that is read by its form has this byte."""
QUOTE: Final = 34
BACKSLASH: Final = 92


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
    topic_at: i64 = 0
    topic_end: i64 = 0
    count: i64 = 0
    # Of queue ids, those that were seen: most runs have few of them.
    queue_ids: list[int] = []
    last_queue_id: i64 = -1
    while count < sends_max and end - at >= 8:
        length: i64 = i64(read_i32_be(data, at))
        header_bytes: i64 = i64(read_i32_be(data, at + 4))
        # The byte of the serialization, 0 for JSON, stands before the header's length.
        if length < 4 or length + 4 > frame_bytes_max or header_bytes < 0 or header_bytes > header_bytes_max:
            break
        frame_end: i64 = at + 4 + length
        header_end: i64 = at + 8 + header_bytes
        if frame_end > end or header_end > frame_end or not _read_header(data, at + 8, header_end, send):
            break
        if count == 0:
            topic_at = send.topic_at
            topic_end = send.topic_end
            found.is_oneway = send.is_oneway
        elif send.is_oneway != found.is_oneway or not _same(
            data, topic_at, topic_end, send.topic_at, send.topic_end
        ):
            break
        before: i64 = properties_bytes
        added = _unescape(data, send.properties_at, send.properties_end, properties)
        if added < 0:
            properties.truncate(before)
            break
        properties_bytes += added
        if added > 0 and shared_bytes > 0 and i64(properties[properties_bytes - 1]) != SEPARATOR:
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
        found.topic = data[topic_at:topic_end]
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
        letter: i64 = i64(data[at + 1]) - 97
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
    while at < end and 65 <= i64(data[at]) <= 90:
        # The language's name, in capitals.
        at += 1
    return at + len(OPAQUE) if _starts(data, at, end, OPAQUE) else -1


def _digits_end(data: bytes, at: i64, end: i64) -> i64:
    while at < end and 48 <= i64(data[at]) <= 57:
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
            high: i64 = i64(data[at + 4]) - 48
            low = _hex_digit(i64(data[at + 5]))
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
        digit: i64 = i64(data[at]) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
        at += 1
    return value


def _starts(data: bytes, at: i64, end: i64, text: bytes) -> bool:
    """Whether `data[at:end]` starts with `text`."""
    size: i64 = len(text)
    if end - at < size:
        return False
    for index in range(size):  # noqa: SIM110 - a generator is not compiled to a loop
        if data[at + index] != text[index]:
            return False
    return True


def _same(data: bytes, at: i64, end: i64, other_at: i64, other_end: i64) -> bool:
    """Whether two parts of `data` are equal."""
    size: i64 = end - at
    if other_end - other_at != size:
        return False
    for index in range(size):  # noqa: SIM110 - as above
        if data[at + index] != data[other_at + index]:
            return False
    return True


def encode_answers(columns: bytes, places: bytes, host: bytes, parts: list[bytes]) -> bytes:
    """Frames of the answers to a run whose sends were all stored, in order.

    `places` has physical offset and queue offset of each record as i64. `host` is the store host in
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
        queue_offset = _decimal(read_i64_be(places, place + 8))
        opaque = _decimal(read_i64_be(columns, at))
        header_bytes: i64 = fixed_bytes + len(queue_id) + len(queue_offset) + len(opaque)
        write_i32_be(answers, i32(header_bytes + 4))
        # JSON is serialization 0.
        write_i32_be(answers, i32(header_bytes))
        answers.write(before_id)
        answers.write(host)
        _write_hex(answers, read_i64_be(places, place))
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


def _write_hex(out: BytesWriter, value: i64) -> None:
    """16 hexadecimal digits, in capitals."""
    shift: i64 = 60
    while shift >= 0:
        digit = value >> shift & 15
        out.append(digit + (48 if digit < 10 else 55))
        shift -= 4


def _decimal(value: i64) -> bytes:
    """A natural number in decimal digits."""
    return str(value).encode()


# -- pulls ---------------------------------------------------------------------------------------------------

PULL_START: Final = b'{"code":11,"extFields":{'
LITE_PULL_START: Final = b'{"code":361,"extFields":{'
PULL_FIELDS_END: Final = b'},"flag":0'
QUEUE_OFFSET: Final = b"queueOffset"
COMMIT_OFFSET: Final = b"commitOffset"
OFFSET_DIGITS_MAX: Final = 18


@final
class Pull:
    """A pull, as `read_pull` found it."""

    def __init__(self) -> None:
        self.form: bytes = b""
        """The header with `CUT` for the digits of opaque, queueOffset and commitOffset."""
        self.opaque: i64 = 0
        self.queue_offset: i64 = 0
        self.commit_offset: i64 = -1
        """-1 for that of the form, if it has one."""
        self.header_bytes: i64 = 0
        """Length of the header."""


def read_pull_at(data: bytes, at: i64, frame_bytes_max: i64, header_bytes_max: i64) -> Pull | None:
    """The pull whose frame begins at `at`; None if none is there to its end, or `read_pull` does not read it.

    The limits are those of a frame and of its header. A pull has no body.
    """
    header_at = at + 8
    if len(data) < header_at:
        return None
    size: i64 = i64(read_i32_be(data, at))
    # JSON headers have the type 0.
    header_bytes: i64 = i64(read_i32_be(data, at + 4))
    end = header_at + header_bytes
    if (
        header_bytes < 0
        or header_bytes > header_bytes_max
        or size != header_bytes + 4
        or size > frame_bytes_max - 4
        or end > len(data)
    ):
        return None
    return read_pull(data[header_at:end])


def read_pull(header: bytes) -> Pull | None:
    """The parts of a pull's header; None if it is not as Java's clients write one.

    Two headers of the same form have the same fields, but for the three numbers.
    """
    end: i64 = len(header)
    at: i64 = 0
    if _starts(header, 0, end, PULL_START):
        at = len(PULL_START)
    elif _starts(header, 0, end, LITE_PULL_START):
        at = len(LITE_PULL_START)
    else:
        return None
    pull = Pull()
    pull.header_bytes = end
    form = BytesWriter()
    copied: i64 = 0
    has_queue_offset = False
    has_commit_offset = False
    while True:
        # "name":"value"
        if at >= end or header[at] != QUOTE:
            return None
        name_at: i64 = at + 1
        name_end = _string_end(header, name_at, end)
        if name_end < 0 or end - name_end < 4 or header[name_end + 1] != 58 or header[name_end + 2] != QUOTE:
            return None
        value_at: i64 = name_end + 3
        at = _string_end(header, value_at, end)
        if at < 0:
            return None
        is_queue_offset = _is_text(header, name_at, name_end, QUEUE_OFFSET)
        if is_queue_offset or _is_text(header, name_at, name_end, COMMIT_OFFSET):
            if has_queue_offset if is_queue_offset else has_commit_offset:
                return None
            number = _plain_number(header, value_at, at, OFFSET_DIGITS_MAX)
            if is_queue_offset:
                if number < 0:
                    return None
                has_queue_offset = True
                pull.queue_offset = number
            else:
                has_commit_offset = True
                pull.commit_offset = number
            # Another text, as -1 for none, belongs to the form.
            if number >= 0:
                form.write(header[copied:value_at])
                form.append(CUT)
                copied = at
        at += 1
        if at >= end:
            return None
        if header[at] != 44:
            break
        at += 1
    if not has_queue_offset or not _starts(header, at, end, PULL_FIELDS_END):
        return None
    start = _opaque_at(header, at + len(PULL_FIELDS_END), end)
    if start < 0:
        return None
    at = _digits_end(header, start, end)
    pull.opaque = _plain_number(header, start, at, NUMBER_DIGITS_MAX)
    if pull.opaque < 0 or pull.opaque > NUMBER_MAX or not _is_end(header, at, end):
        return None
    form.write(header[copied:start])
    form.append(CUT)
    form.write(header[at:])
    pull.form = form.getvalue()
    return pull


def _string_end(data: bytes, at: i64, end: i64) -> i64:
    """Where the string of ASCII that starts at `at` has its closing quote; -1 if it has escapes or none."""
    while at < end:
        unit: i64 = data[at]
        if unit == QUOTE:
            return at
        if unit < 32 or unit > 126 or unit == BACKSLASH:
            return -1
        at += 1
    return -1


def _plain_number(data: bytes, at: i64, end: i64, digits_max: i64) -> i64:
    """As `_number`, without leading zeros: digits that are equal where the numbers are."""
    if end - at > 1 and data[at] == 48:
        return -1
    return _number(data, at, end, digits_max)


def _is_text(data: bytes, at: i64, end: i64, text: bytes) -> bool:
    return end - at == i64(len(text)) and _starts(data, at, end, text)


# -- headers of answers --------------------------------------------------------------------------------------

HEADER_BYTES_MAX: Final = 0xFFFFFF


def encode_json_head(  # noqa: PLR0917 - keywords would cost a call more
    code: i64,
    fields: dict[str, str],
    flag: i64,
    language: str,
    opaque: i64,
    remark: str | None,
    version: i64,
    body_bytes: i64,
) -> bytes:
    """The frame of a command without its body, with its header in Java's order of keys.

    b"" if a text needs escapes: the plain code encodes it, or refuses it.
    """
    header = BytesWriter()
    header.write(b'{"code":')
    header.write(str(code).encode())
    if fields:
        header.write(b',"extFields":{')
        is_first = True
        for key, value in fields.items():
            if not is_first:
                header.append(44)
            is_first = False
            if not _write_text(header, key):
                return b""
            header.append(58)
            if not _write_text(header, value):
                return b""
        header.append(125)
    header.write(b',"flag":')
    header.write(str(flag).encode())
    header.write(b',"language":"')
    header.write(language.encode())
    header.write(b'","opaque":')
    header.write(str(opaque).encode())
    if remark is not None:
        header.write(b',"remark":')
        if not _write_text(header, remark):
            return b""
    header.write(b',"serializeTypeCurrentRPC":"JSON","version":')
    header.write(str(version).encode())
    header.append(125)
    text = header.getvalue()
    header_bytes: i64 = len(text)
    if header_bytes > HEADER_BYTES_MAX or body_bytes > NUMBER_MAX - 4 - header_bytes:
        return b""
    frame = BytesWriter()
    write_i32_be(frame, i32(4 + header_bytes + body_bytes))
    write_i32_be(frame, i32(header_bytes))
    frame.write(text)
    return frame.getvalue()


def _write_text(out: BytesWriter, text: str) -> bool:
    """Append a string of JSON; False, with nothing appended, if it needs escapes."""
    raw = text.encode()
    for index in range(i64(len(raw))):
        unit: i64 = raw[index]
        if unit < 32 or unit > 126 or unit == QUOTE or unit == BACKSLASH:  # noqa: PLR1714, SIM109 - no set
            return False
    out.append(QUOTE)
    out.write(raw)
    out.append(QUOTE)
    return True
