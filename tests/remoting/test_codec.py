"""The frame codec: whole, byte by byte, mutated, and against recorded sessions."""

import json
import random
import tracemalloc
from itertools import pairwise, product
from struct import pack

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.levels import by_level
from tests.remoting.recorded import NAME_SERVER_STREAMS, STREAMS, commands, frames, header_of
from tests.remoting.values import json_values
from trioha.errors import LocalProtocolError, RemoteProtocolError
from trioha.remoting.codec import FrameDecoder, encode, encode_head
from trioha.remoting.codes import LanguageCode
from trioha.remoting.command import RemotingCommand, SerializeType, request, response_to

I16 = st.integers(-(2**15), 2**15 - 1)
I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NON_EMPTY = TEXT.filter(bool)

COMMANDS = st.builds(
    RemotingCommand,
    code=I16,
    opaque=I32,
    flag=I32,
    remark=st.none() | NON_EMPTY,
    ext_fields=st.dictionaries(NON_EMPTY, NON_EMPTY, max_size=6),
    body=st.binary(max_size=200),
    language=st.sampled_from(LanguageCode),
    version=I16,
    serialize_type=st.sampled_from(SerializeType),
)


def decode(*pieces, **limits):
    decoder = FrameDecoder(**limits)
    decoded = []
    for piece in pieces:
        decoder.feed(piece)
        while (command := decoder.next_command()) is not None:
            decoded.append(command)
    return decoded


def json_frame(header, body=b""):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return pack(">II", 4 + len(raw) + len(body), len(raw)) + raw + body


def binary_frame(header, body=b""):
    return pack(">II", 4 + len(header) + len(body), 1 << 24 | len(header)) + header + body


@given(COMMANDS)
def test_an_encoded_command_decodes_to_an_equal_one(command):
    assert decode(encode(command)) == [command]


@given(st.lists(COMMANDS, min_size=1, max_size=4), st.lists(st.integers(0, 1500), max_size=12))
def test_commands_do_not_depend_on_where_the_stream_is_cut(sent, cuts):
    stream = b"".join(map(encode, sent))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    pieces = [stream[start:end] for start, end in pairwise(edges)]
    assert decode(*pieces) == sent


def test_recorded_frames_decode_and_encode_to_the_same_bytes():
    for path in (*STREAMS, *NAME_SERVER_STREAMS):
        recorded = frames(path)
        decoded = commands(path)
        assert len(decoded) == len(recorded) > 0, path
        for frame, command in zip(recorded, decoded, strict=True):
            again = encode(command)
            assert decode(again) == [command], path
            if command.language is LanguageCode.JAVA:
                # Java says {} for "no fields" in some places and nothing in others; we say nothing.
                header = header_of(frame).replace(b'"extFields":{},', b"")
                assert header_of(again) == header, path
                assert again.endswith(bytes(command.body)), path


@pytest.mark.sized
def test_recorded_streams_decode_byte_by_byte():
    for path in STREAMS[:: by_level(32, 4, 1)]:
        raw = path.read_bytes()
        raw = raw[: max(6000, 4 + int.from_bytes(raw[:4], "big"))]
        decoded = decode(*(raw[index : index + 1] for index in range(len(raw))))
        assert decoded == commands(path)[: len(decoded)], path
        assert decoded, path


FIELDS = "code opaque flag version remark extFields language serializeTypeCurrentRPC x"
KEYS = st.sampled_from((*FIELDS.split(), ""))
VALUES = json_values(KEYS | TEXT)


def dialect(value):
    """`value` as fastjson might write it: keys without quotes, single quotes."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key or 0}:{dialect(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dialect, value)) + "]"
    return f"'{value}'" if isinstance(value, str) else json.dumps(value)


def decoded_or_refused(frame):
    """The command of one frame; None for RemoteProtocolError. Other exceptions are raised."""
    try:
        (command,) = decode(frame)
    except RemoteProtocolError:
        return None
    assert all(type(key) is type(value) is str for key, value in command.ext_fields.items())
    assert command.remark is None or type(command.remark) is str
    assert all(
        type(number) is int and -(2**31) <= number < 2**31
        for number in (command.code, command.opaque, command.flag, command.version)
    )
    return command


@given(st.dictionaries(KEYS, VALUES, max_size=9), st.binary(max_size=5))
def test_a_json_header_of_any_values_gives_a_command_or_a_protocol_error(header, body):
    decoded_or_refused(json_frame(header, body))
    whole = {"code": 10, "opaque": 1} | {key: header[key] for key in ("remark", "extFields") if key in header}
    command = decoded_or_refused(json_frame(whole, body))
    if command is not None:
        assert decode(encode(response_to(command, 0, ext_fields=command.ext_fields)))


@given(st.dictionaries(KEYS, VALUES, max_size=9))
def test_a_header_in_the_dialect_of_any_values_gives_a_command_or_a_protocol_error(header):
    text = dialect(header | {"code": 10, "opaque": 1})
    decoded_or_refused(json_frame(text.encode("utf-8", "surrogatepass")))


@given(st.binary(max_size=300))
def test_any_bytes_for_a_header_give_a_command_or_a_protocol_error(header):
    for frame in (
        json_frame(header),
        json_frame(b'{"code":1,"opaque":1,' + header + b"}"),
        binary_frame(header),
    ):
        command = decoded_or_refused(frame)
        if command is not None:
            assert decode(encode(command)) == [command]


@given(
    st.tuples(I16, st.integers(0, 255), I16, I32, I32),
    TEXT | st.binary(max_size=20),
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), max_size=4),
    st.integers(-3, 3),
    st.data(),
)
def test_a_binary_header_with_any_lengths_gives_a_command_or_a_protocol_error(
    fixed, remark, fields, off_by, data
):
    raw_remark = remark.encode() if isinstance(remark, str) else remark

    def wrong(length):
        return data.draw(st.just(length) | st.just(length + off_by) | I16)

    code, language, version, opaque, flag = fixed
    ext = b"".join(
        pack(">h", wrong(len(key))) + key + pack(">i", wrong(len(value))) + value for key, value in fields
    )
    header = pack(">hBhiii", code, language, version, opaque, flag, wrong(len(raw_remark)))
    decoded_or_refused(binary_frame(header + raw_remark + pack(">i", wrong(len(ext))) + ext))


def test_nesting_at_the_edge_of_the_interpreters_recursion_is_refused_or_read():
    for depth, name in product(range(900, 1010, 5), ("code", "remark", "extFields", "x")):
        nested = "[" * depth + "]" * depth
        decoded_or_refused(json_frame(f'{{"code":1,"opaque":1,"{name}":{nested}}}'.encode()))
        decoded_or_refused(json_frame(f'{{"code":1,"opaque":1,"extFields":{{"a":{nested}}}}}'.encode()))


def test_a_key_of_the_dialect_that_is_an_object_becomes_text():
    command = decoded_or_refused(json_frame(b'{"code":1,"opaque":1,"extFields":{{"a":1}:"x"}}'))
    assert command.ext_fields == {'[["a",1]]': "x"}


def test_ext_fields_of_a_binary_header_have_a_maximum():
    def frame(count):
        fields = {str(number): "x" for number in range(count)}
        return encode(request(1, ext_fields=fields, serialize_type=SerializeType.ROCKETMQ))

    assert len(decode(frame(256))) == 1
    with pytest.raises(RemoteProtocolError, match="257 ext fields"):
        decode(frame(257))


def test_values_that_are_not_strings_are_read_as_they_were_written():
    header = {
        "code": 310,
        "opaque": 7,
        "extFields": {"e": 0, "k": False, "x": 1.5, "n": None, "deep": {"a": [1]}, "b": "TopicTest"},
        "unknown": [1, 2],
        "remark": None,
    }
    (command,) = decode(json_frame(json.dumps(header).encode() + b"\n", b"body"))
    assert command.ext_fields == {"e": "0", "k": "false", "x": "1.5", "deep": '{"a":[1]}', "b": "TopicTest"}
    assert (command.code, command.opaque, command.flag, command.remark) == (310, 7, 0, None)
    assert command.body == b"body"


def test_missing_and_null_ext_fields_are_an_empty_mapping():
    headers: list[dict[str, object]] = [
        {"code": 28, "opaque": 1},
        {"code": 28, "opaque": 1, "extFields": None, "flag": None, "version": None},
        {"code": 28, "opaque": 1, "extFields": {}},
    ]
    decoded = decode(*map(json_frame, headers))
    assert len(decoded) == 3
    assert decoded[0] == decoded[1] == decoded[2]


def test_an_unknown_language_is_other_and_numbers_may_be_strings():
    (command,) = decode(
        json_frame({"code": "34", "opaque": "-5", "flag": "1", "language": "COBOL", "version": "9"})
    )
    assert (command.code, command.opaque, command.flag, command.version) == (34, -5, 1, 9)
    assert command.language is LanguageCode.OTHER


def test_a_header_in_fastjson_dialect_is_read():
    (command,) = decode(json_frame(b'{code:11,\'opaque\':3,"extFields":{0:"zero"}}'))
    assert (command.code, command.opaque, command.ext_fields) == (11, 3, {"0": "zero"})


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"opaque": 1}, "field code is not a 32-bit number"),
        ({"code": 10}, "field opaque is not a 32-bit number"),
        ({"code": True, "opaque": 1}, "field code"),
        ({"code": 2**31, "opaque": 1}, "field code"),
        ({"code": 1, "opaque": 1.5}, "field opaque"),
        ({"code": 1, "opaque": 1, "flag": "x"}, "field flag"),
        ({"code": 1, "opaque": 1, "extFields": [1]}, "extFields is not a JSON object"),
        ([1], "header is not a JSON object"),
        (b"", "expected a value"),
        (b"{}x", "goes on behind"),
        (b'{"code":1,"opaque":' + b"1" * 5000 + b"}", "expected a value"),
        (b"[" * 100_000, "levels"),
        ({"code": "--5", "opaque": 1}, "field code is not a 32-bit number: '--5'"),
        ({"code": "\u0665", "opaque": 1}, "field code"),
        ({"code": 1, "opaque": " 1"}, "field opaque"),
        ({"code": 1, "opaque": 1, "flag": []}, "field flag is not a 32-bit number: an array"),
        ({"code": 1, "opaque": 1, "version": "9" * 100}, "field version"),
        (b'{"code":NaN,"opaque":1}', "field code is not a 32-bit number: 'nan'"),
        (b'{"code":1,"opaque":-Infinity}', "field opaque"),
        ({"code": 1, "opaque": 1, "extFields": {str(n): "x" for n in range(257)}}, "257 ext fields"),
    ],
)
def test_an_invalid_header_is_refused_with_its_reason(header, says):
    with pytest.raises(RemoteProtocolError, match=says):
        decode(json_frame(header))


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (pack(">I", 3), "below the smallest"),
        (pack(">I", 0xFFFFFFFF), "beyond the limit"),
        (pack(">I", 16 * 1024 * 1024 - 3), "beyond the limit of 16777216"),
        (bytes.fromhex("1603010200"), "TLS"),
        (pack(">II", 4, 1), "does not fit its frame"),
        (pack(">II", 4, 2 << 24), "unknown header serialization 2"),
        (binary_frame(b"\0" * 20), "cut short"),
        (b"GET / HTTP/1.1\r\n\r\n", "beyond the limit"),
    ],
)
def test_an_invalid_frame_is_refused_as_early_as_possible_and_nothing_is_read_after_it(frame, says):
    decoder = FrameDecoder()
    decoder.feed(frame)
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=says):
            decoder.next_command()


def test_a_frame_at_the_limit_is_accepted_and_one_byte_more_is_refused():
    head = encode_head(request(28))
    fitting = encode(request(28, body=b"x" * (1000 - len(head))))
    assert len(fitting) == 1000
    assert len(decode(fitting, frame_bytes_max=1000)) == 1
    with pytest.raises(RemoteProtocolError):
        decode(fitting, frame_bytes_max=999)


def test_a_header_beyond_its_own_limit_is_refused():
    frame = encode(request(28, ext_fields={"long": "x" * 200}))
    assert len(decode(frame, header_bytes_max=400)) == 1
    with pytest.raises(RemoteProtocolError, match="at most 100"):
        decode(frame, header_bytes_max=100)


def test_a_huge_length_allocates_no_memory():
    decoder = FrameDecoder()
    decoder.feed(pack(">II", 16 * 1024 * 1024 - 4, 100))
    tracemalloc.start()
    try:
        assert decoder.next_command() is None
        assert tracemalloc.get_traced_memory()[1] < 10_000
    finally:
        tracemalloc.stop()


def test_a_large_frame_in_small_chunks_is_copied_once():
    body = random.Random(1).randbytes(8 * 1024 * 1024)
    frame = encode(request(310, body=body))
    pieces = [frame[start : start + 4096] for start in range(0, len(frame), 4096)]
    tracemalloc.start()
    try:
        (command,) = decode(*pieces)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert command.body == body
    # The pieces joined, the frame, and the body; over-allocation of the first.
    assert peak_bytes < 4 * len(frame)


def test_a_lone_surrogate_in_a_header_can_be_answered():
    (command,) = decode(json_frame(b'{"code":10,"opaque":1,"extFields":{"b":"\\ud800"}}'))
    (again,) = decode(encode(command))
    assert again.ext_fields == {"b": "\ud800"}
    (binary,) = decode(encode(evolve(command, serialize_type=SerializeType.ROCKETMQ)))
    assert binary.ext_fields == {"b": "?"}


def test_an_empty_value_of_a_binary_header_is_null():
    command = request(10, ext_fields={"a": "", "b": "T"}, serialize_type=SerializeType.ROCKETMQ)
    (decoded,) = decode(encode(command))
    assert decoded.ext_fields == {"b": "T"}


def test_a_command_that_does_not_fit_the_format_is_a_local_error():
    with pytest.raises(LocalProtocolError):
        encode(RemotingCommand(40_000, serialize_type=SerializeType.ROCKETMQ))
    with pytest.raises(LocalProtocolError):
        encode(RemotingCommand(1, ext_fields={"queueId": 3}))
    with pytest.raises(LocalProtocolError, match="too large"):
        encode(RemotingCommand(1, remark="x" * 17_000_000))


def test_a_response_keeps_opaque_and_serialization():
    for serialize_type in SerializeType:
        asked = evolve(request(28, serialize_type=serialize_type), opaque=77)
        (answer,) = decode(encode(response_to(asked, 3, remark=" request type 28 not supported")))
        assert answer.is_response
        assert (answer.opaque, answer.serialize_type, answer.code) == (77, serialize_type, 3)
        assert answer.remark == " request type 28 not supported"
