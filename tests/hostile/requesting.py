"""Hostile requests to a broker's listen port."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import accumulate
from struct import pack

from attrs import define, evolve, field

from tests.hostile.frame import Manner, Outcome
from tests.hostile.requests import BINARY_ROWS, REQUESTS, SERVED, UNSERVED, Request
from tests.hostile.values import deep, json_value, quoted, text_value
from tests.hostile.wire import (
    BINARY,
    JSON,
    ONEWAY,
    RESPONSE,
    binary_ext,
    binary_head,
    frame,
    json_head,
    json_object,
)
from tests.mutations.mutate import mutants
from trioha.remoting.codec import FRAME_BYTES_MAX
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import request
from trioha.remoting.signature import Credentials, signed

SURE_HEADER_BYTES = 512 * 1024
"""A header up to this length is within every reader's limit."""
OPAQUES = (0, 1, -1, 2**31 - 1, -(2**31), 255, 65536)
WITH_FIELDS = tuple(row for row in REQUESTS if row.fields)
CODES = (-(2**31), -(2**15), -1, 0, 1, 2, 999, 2**15 - 1, 2**15, 2**31 - 1)


@define
class Draft:
    """A frame before it has its place: see `Frame`."""

    data: bytes
    detail: str
    outcome: Outcome = Outcome.ANY
    opaque: int = 0
    manner: Manner = Manner.WHOLE
    must_be_refused: bool = False
    call: Call | None = None
    """The request that `data` is, if it may also be signed."""

    def signed_data(self, user: Credentials) -> bytes:
        """`data`, with a signature of the user where it is a request with all its parts in place."""
        return self.data if self.call is None else self.call.signed(user).encode()


@define
class Call:
    """A request, field by field."""

    code: int
    opaque: int
    serialization: int
    ext: list[tuple[str, str]] = field(factory=list)
    body: bytes = b""
    flag: int = 0

    def signed(self, user: Credentials) -> Call:
        """The same with the fields of a signature."""
        fields = signed(request(self.code, ext_fields=dict(self.ext), body=self.body), user).ext_fields
        return evolve(self, ext=list(fields.items()))

    def encode(self) -> bytes:
        if self.serialization == JSON:
            members = json_head(
                str(self.code),
                str(self.opaque),
                ext=[(name, quoted(value)) for name, value in self.ext],
                flag=str(self.flag),
            )
            return frame(json_object(members).encode(), self.body)
        head = binary_head(self.code, self.opaque, ext=binary_ext(self.ext), flag=self.flag)
        return frame(head, self.body, serialization=BINARY)


def draw_request(chance: random.Random, index: int) -> tuple[str, Draft]:
    """One hostile frame and its kind."""
    kind, draw = chance.choices(_NAMED, cum_weights=_WEIGHTS)[0]
    return kind, draw(chance, index)


def good_call(chance: random.Random, index: int, *, row: Request | None = None) -> Call:
    """A request as a client would send it."""
    if row is None:
        row = chance.choice(REQUESTS)
    ext = [
        (each.name, chance.choice(each.good)) for each in row.fields if each.required or chance.random() < 0.5
    ]
    opaque = index & 0x7FFFFFFF if chance.random() < 0.9 else chance.choice(OPAQUES)
    serialization = chance.choice((JSON, JSON, BINARY)) if row.fits_binary else JSON
    return Call(row.code, opaque, serialization, ext, row.body(chance))


def _good(chance: random.Random, index: int) -> Draft:
    call = good_call(chance, index)
    manner = Manner.DRIBBLE if chance.random() < 0.02 else Manner.WHOLE
    return Draft(call.encode(), f"request {call.code}", Outcome.ANSWERED, call.opaque, manner, call=call)


def _field(chance: random.Random, index: int) -> Draft:
    """Right frames with wrong values: each must be answered."""
    row = chance.choice(WITH_FIELDS)
    call = good_call(chance, index, row=row)
    values = dict(call.ext)
    number = chance.choice((1, 1, 1, 1, 2, 2, 3, len(row.fields)))
    chosen = chance.sample(row.fields, min(number, len(row.fields)))
    is_refused = False
    for each in chosen:
        if each.required and chance.random() < 0.05:
            values.pop(each.name, None)
            is_refused |= row.stores
        else:
            value = values[each.name] = each.hostile(chance)
            is_refused |= each.must_be_refused(value)
    call.ext = list(values.items())
    data = call.encode()
    shown = ", ".join(f"{each.name}={values.get(each.name)!r:.30}" for each in chosen[:3])
    if len(data) - len(call.body) > SURE_HEADER_BYTES:
        return Draft(data, f"request {row.code}, {shown}", manner=Manner.WHOLE)
    manner = Manner.DRIBBLE if chance.random() < 0.005 and len(data) < 4096 else Manner.WHOLE
    return Draft(
        data, f"request {row.code}, {shown}", Outcome.ANSWERED, call.opaque, manner, is_refused, call
    )


def _literal(chance: random.Random, index: int) -> Draft:
    """Fields whose values are JSON of any type, and JSON of none."""
    row = chance.choice(WITH_FIELDS)
    call = good_call(chance, index, row=row)
    chosen = chance.choice(row.fields).name
    value = json_value(chance)
    ext = [(name, quoted(text)) for name, text in call.ext if name != chosen] + [(chosen, value)]
    if chance.random() < 0.2:
        ext.append((chosen, json_value(chance)))
    text = json_object(json_head(str(call.code), str(call.opaque), ext=ext))
    return Draft(frame(_utf8(text), call.body), f"request {row.code}, {chosen}: {value:.40}")


def _keys(chance: random.Random, index: int) -> Draft:
    """Unknown fields: each request must be answered all the same."""
    call = good_call(chance, index)
    known = {name for name, _ in call.ext} | {each.name for row in REQUESTS for each in row.fields}
    strange = []
    for _ in range(chance.choice((1, 1, 2, 2, 5, 50))):
        key = text_value(chance)
        if key and len(key) < 8000 and key not in known:
            strange.append((key, chance.choice(("", "5", "\0", text_value(chance)[:1000]))))
    call.ext = [*strange, *call.ext] if chance.random() < 0.5 else [*call.ext, *strange]
    data = call.encode()
    if len(data) > SURE_HEADER_BYTES:
        return Draft(data, f"request {call.code}, {len(strange)} unknown fields")
    said = f"request {call.code}, {len(strange)} unknown fields"
    return Draft(data, said, Outcome.ANSWERED, call.opaque, call=call)


def _unserved(chance: random.Random, index: int) -> Draft:
    code = chance.choice(UNSERVED) if chance.random() < 0.7 else chance.choice(CODES)
    if chance.random() < 0.1:
        code = chance.randint(-(2**31), 2**31 - 1)
    if code in SERVED:
        code = -code
    call = good_call(chance, index)
    call.code = code
    if not -(2**15) <= code < 2**15:
        call.serialization = JSON
    return Draft(
        call.encode(), f"code {code}", Outcome.ANSWERED, call.opaque, Manner.WHOLE, must_be_refused=True
    )


def _oneway(chance: random.Random, index: int) -> Draft:
    call = good_call(chance, index)
    call.flag = ONEWAY | chance.choice((0, 0, 4, 0x7FFFFFFC))
    return Draft(call.encode(), f"one-way request {call.code}", Outcome.SILENT, call=call)


def _response(chance: random.Random, index: int) -> Draft:
    call = good_call(chance, index)
    call.flag = RESPONSE | chance.choice((0, 0, ONEWAY, 0x7FFFFFFC))
    return Draft(call.encode(), f"response {call.code}, never asked for", Outcome.SILENT)


_HEADER_FIELDS = ("code", "opaque", "flag", "version", "language", "remark", "extFields", "other")


def _head(chance: random.Random, index: int) -> Draft:
    """Wrong values of the header's own fields."""
    call = good_call(chance, index)
    name = chance.choice(_HEADER_FIELDS)
    value = json_value(chance)
    members = json_head(str(call.code), str(call.opaque), ext=[(key, quoted(text)) for key, text in call.ext])
    if chance.random() < 0.8:
        members = [pair for pair in members if pair[0] != name]
    if chance.random() < 0.95:
        members.insert(chance.randint(0, len(members)), (name, value))
    if chance.random() < 0.2:
        members.append((chance.choice(_HEADER_FIELDS), json_value(chance)))
    return Draft(frame(_utf8(json_object(members)), call.body), f"request {call.code}, {name}: {value:.40}")


def _soft_head(chance: random.Random, index: int) -> Draft:
    """Header fields that mean nothing here: each request must be answered all the same."""
    call = good_call(chance, index)
    members = json_head(str(call.code), str(call.opaque), ext=[(key, quoted(text)) for key, text in call.ext])
    name = chance.choice(("language", "remark", "serializeTypeCurrentRPC", "other", "version"))
    members = [pair for pair in members if pair[0] != name]
    value = chance.choice(("null", "5", '"5"', '""', r'"\u0000"', '"PYTHON"', '"JAVA "', r'"\ud83d\ude00"'))
    if name == "version":
        value = chance.choice(("0", "37", "407", "479", "32767", "2147483647"))
    members.append((name, value))
    data = frame(json_object(members).encode(), call.body)
    return Draft(data, f"request {call.code}, {name}: {value}", Outcome.ANSWERED, call.opaque)


def _json(chance: random.Random, index: int) -> Draft:
    """Headers that are no JSON object, or none that should be read."""
    call = good_call(chance, index)
    whole = json_object(
        json_head(str(call.code), str(call.opaque), ext=[(key, quoted(text)) for key, text in call.ext])
    )
    kind = chance.randrange(14)
    match kind:
        case 0:
            raw = _utf8(json_value(chance))
        case 1:
            raw = _utf8(deep(chance.choice((10, 100, 1000, 100_000))))
        case 2:
            raw = b"\xef\xbb\xbf" + whole.encode()
        case 3:
            raw = whole.encode() + _utf8(chance.choice(("}", "\n", " ", "\0", ",", whole, "//x", "null")))
        case 4:
            raw = whole.encode(chance.choice(("utf-16", "utf-16-le", "utf-32")))
        case 5:
            raw = whole.encode().replace(b"JAVA", chance.choice((b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\x80")))
        case 6:
            raw = b""
        case 7:
            raw = chance.choice((b" ", b"\n\n", b"\0", b"\t" * 1000))
        case 8:
            raw = whole.replace('"', "'").encode()
        case 9:
            raw = whole.replace('"', "").encode()
        case 10:
            members = ",".join(f'"k{number}":{number}' for number in range(chance.choice((100, 30_000))))
            raw = f'{whole[:-1]},"extFields":{{{members}}}}}'.encode()
        case 11:
            raw = whole[: chance.randrange(len(whole))].encode()
        case 12:
            raw = (whole[:-1] + f",{whole[1:-1]}" * chance.choice((1, 3, 100)) + "}").encode()
        case _:
            levels = chance.choice((50, 900, 5000))
            raw = (whole[:-1] + ',"remark":' + deep(levels, '{"a":', "}") + "}").encode()
    return Draft(frame(raw, call.body), f"header text {kind}: {raw[:30]!r}")


def _binary(chance: random.Random, index: int) -> Draft:
    """Binary headers whose lengths lie, or that end early."""
    call = good_call(chance, index, row=chance.choice(BINARY_ROWS))
    ext = binary_ext(call.ext)
    length = chance.choice((-1, -(2**31), 0, 1, 4, len(ext) - 1, len(ext) + 1, 65536, 2**31 - 1))
    kind = chance.randrange(7)
    match kind:
        case 0:
            raw = binary_head(call.code, call.opaque, ext=ext, ext_length=length)
        case 1:
            raw = binary_head(call.code, call.opaque, ext=ext, remark=b"remark", remark_length=length)
        case 2:
            bad = pack(">h", chance.choice((-1, -(2**15), 2**15 - 1, 0))) + b"a" + pack(">i", length) + b"b"
            raw = binary_head(call.code, call.opaque, ext=ext + bad)
        case 3:
            bad = b"\0\x01a" + pack(">i", length) + b"b"
            raw = binary_head(call.code, call.opaque, ext=bad + ext)
        case 4:
            whole = binary_head(call.code, call.opaque, ext=ext)
            raw = whole[: chance.randrange(len(whole))]
        case 5:
            raw = binary_head(
                chance.choice((-1, -(2**15), 2**15 - 1)),
                chance.choice(OPAQUES),
                ext=ext,
                flag=chance.choice((-1, 1, -(2**31), 2**31 - 1, 4)),
                language=chance.choice((-1, -128, 127, 14)),
                version=chance.choice((-1, -(2**15), 2**15 - 1)),
                remark=chance.choice((b"\xff\xfe\xed\xa0\x80", b"\0" * 1000, b"")),
            )
        case _:
            raw = binary_head(call.code, call.opaque, ext=ext) + chance.randbytes(chance.choice((1, 4, 100)))
    return Draft(frame(raw, call.body, serialization=BINARY), f"binary header {kind}, length {length}")


def _mutated(chance: random.Random, index: int) -> Draft:
    """Right frames with bytes changed, moved, cut out or put in."""
    calls = [good_call(chance, index).encode() for _ in range(2)]
    (data,) = mutants(chance.getrandbits(32), calls, 1)
    if chance.random() < 0.5 and len(data) > 4:
        # The length is right again: the fault comes after it.
        data = pack(">I", len(data) - 4) + data[4:]
    return Draft(data, f"{len(data)} bytes")


def _lengths(chance: random.Random, index: int) -> Draft:
    """Lengths that lie, of the frame and of its header."""
    whole = good_call(chance, index).encode()
    limit = FRAME_BYTES_MAX
    if chance.random() < 0.5:
        length = chance.choice(
            (0, 1, 2, 3, 4, 5, 8, len(whole) - 5, len(whole) - 3, 65536, limit - 4, limit - 3, limit, 2**24,
             2**31 - 1, 2**31, 2**32 - 1)
        )  # fmt: skip
        outcome = Outcome.ANY if 4 <= length <= limit - 4 else Outcome.CLOSED
        return Draft(pack(">I", length) + whole[4:], f"frame length {length}", outcome)
    header_bytes = chance.choice((0, 1, 20, len(whole) - 7, len(whole), 2**16, 2**20, 2**24 - 1))
    # Beyond its frame, which is all there.
    outcome = Outcome.CLOSED if header_bytes > len(whole) - 8 else Outcome.ANY
    data = whole[:5] + header_bytes.to_bytes(3, "big") + whole[8:]
    return Draft(data, f"header length {header_bytes} in a frame of {len(whole)}", outcome)


def _serialization(chance: random.Random, index: int) -> Draft:
    whole = good_call(chance, index).encode()
    number = chance.randint(2, 255)
    return Draft(whole[:4] + bytes((number,)) + whole[5:], f"header serialization {number}", Outcome.CLOSED)


_FOREIGN = (
    ("TLS hello", bytes.fromhex("1603010200010001fc0303") + b"\x5a" * 505),
    ("HTTP GET", b"GET / HTTP/1.1\r\nHost: broker\r\nUser-Agent: curl/8\r\nAccept: */*\r\n\r\n"),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("SSH", b"SSH-2.0-OpenSSH_9.6\r\n"),
    ("Redis", b"*1\r\n$4\r\nPING\r\n"),
    ("PROXY v1", b"PROXY TCP4 10.0.0.1 10.0.0.2 5 6\r\n"),
    ("PROXY v2", bytes.fromhex("0d0a0d0a000d0a515549540a21110004") + b"\x7f\0\0\x01"),
    ("memcached", b"stats\r\n"),
    ("SMB", b"\x00\x00\x00\x85\xffSMBr\0\0\0\0\x18S\xc8" + bytes(120)),
)


def _foreign(chance: random.Random, index: int) -> Draft:
    """Other protocols."""
    name, data = chance.choice(_FOREIGN)
    return Draft(data, name, Outcome.CLOSED if data[0] else Outcome.ANY)


def _noise(chance: random.Random, index: int) -> Draft:
    data = chance.randbytes(chance.choice((1, 3, 4, 8, 100, 10_000)))
    if chance.random() < 0.3:
        data = bytes(chance.choice((4, 8, 1000)))
    is_too_long = len(data) >= 4 and data[0] != 0
    return Draft(data, f"{len(data)} bytes", Outcome.CLOSED if is_too_long else Outcome.ANY)


def _truncated(chance: random.Random, index: int) -> Draft:
    whole = good_call(chance, index).encode()
    cut = chance.randrange(len(whole))
    return Draft(whole[:cut], f"{cut} of {len(whole)} bytes")


def _reset(chance: random.Random, index: int) -> Draft:
    whole = good_call(chance, index).encode() * chance.choice((1, 1, 20))
    data = whole[: chance.choice((0, 1, len(whole) // 2, len(whole)))]
    return Draft(data, f"reset after {len(data)} bytes", manner=Manner.RESET)


def _probe(chance: random.Random, index: int) -> Draft:
    return Draft(b"", "connects and closes")


def _idle(chance: random.Random, index: int) -> Draft:
    whole = good_call(chance, index).encode()
    data = whole[: chance.choice((0, 0, 1, 3, len(whole) - 1))]
    return Draft(data, f"silent after {len(data)} bytes", manner=Manner.IDLE)


def _deaf(chance: random.Random, index: int) -> Draft:
    code = chance.choice((RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_HA_STATUS))
    data = Call(code, index & 0x7FFFFFFF, chance.choice((JSON, BINARY))).encode()
    return Draft(data * 50, f"request {code}, again and again, answers not read", manner=Manner.DEAF)


def _huge(chance: random.Random, index: int) -> Draft:
    call = good_call(chance, index)
    call.body = bytes(chance.choice((1 << 20, 4 << 20, (16 << 20) - 4096)))
    data = call.encode()
    if chance.random() < 0.3:
        data = data[: len(data) // 2]
    return Draft(data, f"request {call.code}, body of {len(call.body)} bytes")


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


KINDS: tuple[tuple[str, Callable[[random.Random, int], Draft], float], ...] = (
    ("good", _good, 14),
    ("field", _field, 46),
    ("keys", _keys, 4),
    ("unserved", _unserved, 10),
    ("one-way", _oneway, 4),
    ("response", _response, 3),
    ("header-unused", _soft_head, 5),
    ("literal", _literal, 3),
    ("header", _head, 3.5),
    ("json", _json, 2),
    ("binary", _binary, 2),
    ("mutated", _mutated, 2),
    ("length", _lengths, 0.8),
    ("serialization", _serialization, 0.3),
    ("foreign", _foreign, 0.2),
    ("noise", _noise, 0.3),
    ("truncated", _truncated, 0.4),
    ("reset", _reset, 0.2),
    ("probe", _probe, 0.1),
    ("idle", _idle, 0.05),
    ("deaf", _deaf, 0.02),
    ("huge", _huge, 0.01),
)
"""Every kind of request, and how often it is drawn."""
_NAMED = [(name, draw) for name, draw, _ in KINDS]
_WEIGHTS = list(accumulate(weight for _, _, weight in KINDS))
