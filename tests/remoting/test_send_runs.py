"""Runs of sends: the compiled reader accepts nothing that the plain one reads otherwise."""

import struct

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from trioha.errors import RemoteProtocolError
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import LanguageCode, RequestCode
from trioha.remoting.command import BadRequestError, SerializeType, request
from trioha.remoting.send_message import SendMessageRequestHeader
from trioha.store.message_properties import join_properties

SHARED = b"CLUSTER\x01c\x02"
COLUMNS = struct.Struct(">9q")
I32 = st.integers(0, 2**31 - 1)
TEXT = st.text(st.characters(min_codepoint=1, max_codepoint=126), max_size=40)


def send(*, body=b"body", opaque=7, code=RequestCode.SEND_MESSAGE_V2, oneway=False, **changes):
    """The frame of a send, as a Java producer's."""
    fields: dict[str, object] = {
        "producer_group": "group",
        "topic": "Orders",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 2,
        "sys_flag": 0,
        "born_timestamp_ms": 1_795_234_734_922,
        "flag": 5,
        "properties": "TAGS\x01a\x02",
        "broker_name": "broker-a",
    }
    header = SendMessageRequestHeader(**fields | changes)
    asked = request(code, ext_fields=header.to_ext_fields(), body=body, oneway=oneway)
    return encode(evolve(asked, language=LanguageCode.JAVA, version=475), opaque=opaque)


def plain(data):
    """All sends of `data` as the plain reader gives them."""
    decoder, found = FrameDecoder(), []
    decoder.feed(data)
    while (command := decoder.next_command()) is not None:
        found.append((command, SendMessageRequestHeader.of(command)))
    return found


def check(data, *, sends_max=16):
    """Compare the run at the start of `data` with the plain reader's sends; returns how many it has."""
    decoder = FrameDecoder()
    decoder.feed(data)
    run = decoder.sends(sends_max, shared=SHARED)
    if run is None:
        return 0
    sends = run.sends
    expected = plain(data[: run.frame_bytes])
    assert sends.count == len(expected) <= sends_max
    properties_at = header_bytes = 0
    for column, (command, header) in zip(COLUMNS.iter_unpack(sends.columns), expected, strict=True):
        *numbers, body_at, body_end, properties_end = column
        assert numbers == [
            command.opaque,
            header.queue_id,
            header.sys_flag,
            header.flag,
            header.born_timestamp_ms,
            header.reconsume_times,
        ]
        assert (command.code, command.flag, command.serialize_type) == (
            310,
            2 if sends.is_oneway else 0,
            SerializeType.JSON,
        )
        assert not header.batch
        assert header.topic == sends.topic
        assert run.data[body_at:body_end] == command.body
        assert sends.properties[properties_at:properties_end] == join_properties(
            header.properties.encode(), SHARED
        )
        properties_at = properties_end
    assert sends.queue_ids == list(dict.fromkeys(header.queue_id for _, header in expected))
    bodies = [len(command.body) for command, _ in expected]
    assert (sends.body_bytes, sends.body_bytes_max) == (sum(bodies), max(bodies))
    # What is left is read as if the run had been read by the plain reader.
    decoder.skip(run)
    assert decoder.buffered_bytes == len(data) - run.frame_bytes
    for command, _ in expected:
        header_bytes += len(encode(command)) - 8 - len(command.body)
    return sends.count


def test_sends_of_a_java_producer_are_a_run_of_at_most_so_many():
    data = b"".join(send(opaque=number, queue_id=number % 3, body=bytes(number)) for number in range(20))
    assert check(data) == 16
    assert check(data, sends_max=3) == 3
    assert check(data[: len(data) // 2]) == 10


def test_a_run_ends_before_an_unfinished_frame_and_is_not_given_amid_one():
    data = send() + send()
    for end in range(len(data)):
        assert check(data[:end]) == end // len(send())
    decoder = FrameDecoder()
    decoder.feed(data[:3])
    assert decoder.next_command() is None
    decoder.feed(data[3:])
    assert decoder.sends(16, shared=SHARED) is None
    assert decoder.next_command() is not None
    run = decoder.sends(16, shared=SHARED)
    assert run.sends.count == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "Other"},
        {"batch": True},
        {"sys_flag": 4},
        {"sys_flag": 0x10},
        {"sys_flag": 0x80},
        {"queue_id": -1},
        {"properties": "KEYS\x01\u00e9\x02"},
        {"properties": 'a\x01"b"\x02'},
        {"properties": "a\x01\\\x02"},
        {"properties": "a\x01line\nend\x02"},
        {"topic": 'a"b'},
        {"code": RequestCode.SEND_MESSAGE},
        {"code": RequestCode.SEND_BATCH_MESSAGE},
        {"opaque": -5},
    ],
)
def test_a_run_ends_before_a_send_that_is_not_common(changes):
    assert check(send() + send(**changes) + send()) == 1


def check_all(data):
    """Compare all runs of `data`; returns count and kind of each. Frames outside of runs are passed over."""
    decoder, found, at = FrameDecoder(), [], 0
    decoder.feed(data)
    while at < len(data):
        run = decoder.sends(16, shared=SHARED)
        if run is None:
            assert decoder.next_command() is not None
            at += decoder.frame_bytes
            continue
        assert check(data[at:]) == run.sends.count
        found.append((run.sends.count, run.sends.is_oneway))
        decoder.skip(run)
        at += run.frame_bytes
    return found


def test_one_way_sends_are_runs_of_their_own():
    kinds = [False] * 3 + [True] * 20 + [False] + [True] * 2 + [False] * 2
    data = b"".join(send(opaque=number, oneway=kind) for number, kind in enumerate(kinds))
    assert check_all(data) == [(3, False), (16, True), (4, True), (1, False), (2, True), (2, False)]


@pytest.mark.parametrize(
    "flag", [b"1", b"3", b"4", b"6", b"02", b"20", b"22", b"-2", b"2.0", b'"2"', b" 2", b""]
)
def test_another_flag_ends_a_run_of_either_kind(flag):
    changed = send().replace(b'"flag":0,', b'"flag":' + flag + b",")
    header = changed[8:-4]
    frame = struct.pack(">ii", 8 + len(header), len(header)) + header + b"body"
    for oneway in (False, True):
        assert check(send(oneway=oneway) + frame) == 1
    decoder = FrameDecoder()
    decoder.feed(frame)
    assert decoder.sends(16, shared=SHARED) is None


def test_signed_sends_and_binary_headers_are_no_runs():
    asked = plain(send())[0][0]
    signed = evolve(asked, ext_fields={**asked.ext_fields, "AccessKey": "a", "Signature": "s"})
    binary = evolve(asked, serialize_type=SerializeType.ROCKETMQ)
    remark = evolve(asked, remark="text")
    for command in (signed, binary, remark):
        for flag in (0, 2):
            assert check(encode(evolve(command, flag=flag))) == 0


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "opaque": I32,
                "oneway": st.booleans(),
                "queue_id": st.integers(0, 9),
                "flag": I32,
                "sys_flag": st.sampled_from([0, 1, 2, 0x301]),
                "born_timestamp_ms": st.integers(0, 10**18 - 1),
                "reconsume_times": I32,
                "max_reconsume_times": st.none() | I32,
                "unit_mode": st.booleans(),
                "broker_name": st.none() | st.just("b"),
                "properties": TEXT,
                "body": st.binary(max_size=30),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_send_is_read_as_by_the_plain_reader_or_left_to_it(sends):
    check_all(b"".join(send(**fields) for fields in sends))


@given(st.data())
def test_a_changed_byte_is_never_read_otherwise_than_by_the_plain_reader(data):
    frame = bytearray(send(properties="A\x01b\x02", body=b"", oneway=data.draw(st.booleans())))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame[at] = data.draw(st.integers(0, 255) | st.sampled_from(b'",:{}0189ua\\'))
    compare(bytes(frame))


@given(st.data())
@example(None)
def test_inserted_and_removed_bytes_are_never_read_otherwise(data):
    oneway = data is not None and data.draw(st.booleans())
    whole = send(properties="A\x01b\x02", body=b"", oneway=oneway)
    header = bytearray(whole[8:])
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(header) - 1))
            if data.draw(st.booleans()):
                header[at:at] = data.draw(
                    st.sampled_from([b'"', b",", b" ", b"0", b"\\u0001", b'"b":"x",', b"{"])
                )
            else:
                del header[at : at + data.draw(st.integers(1, 12))]
    compare(struct.pack(">ii", 4 + len(header), len(header)) + header)


def compare(frame):
    """Whatever is accepted as a run is what the plain reader reads; what it refuses is not accepted."""
    try:
        plain(frame)
    except (RemoteProtocolError, BadRequestError) as error:
        # The plain check of the name comes with the header; runs leave it to the broker.
        if isinstance(error, BadRequestError) and "topic" in error.reason:
            return
        decoder = FrameDecoder()
        decoder.feed(frame)
        assert decoder.sends(16, shared=SHARED) is None, frame
    else:
        check(frame)
