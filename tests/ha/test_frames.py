"""The HA codec, against recorded sessions of real brokers, whole and byte by byte."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.errors import LocalProtocolError, RemoteProtocolError
from trioha.ha.bodies import BodyPart
from trioha.ha.frames import (
    BODY_BYTES_MAX,
    FrameHeader,
    ReportDecoder,
    TransferDecoder,
    encode_header,
    encode_report,
)

VECTORS = Path(__file__).parent.parent / "vectors"
RECORDINGS = sorted((VECTORS / "ha-wire").glob("*/*.m2s.bin"))


def frames_of(pieces):
    decoder = TransferDecoder()
    frames = []
    for piece in pieces:
        decoder.feed(piece)
        while (event := decoder.next_event()) is not None:
            if isinstance(event, FrameHeader):
                frames.append((event.offset, bytearray()))
                assert event.body_bytes >= 0
            else:
                frames[-1][1].extend(event.data)
    return [(offset, bytes(body)) for offset, body in frames]


def cut(data, sizes):
    position = 0
    for size in sizes:
        yield data[position : position + size]
        position += size
    yield data[position:]


@pytest.mark.parametrize("piece_bytes", [7, 4096, pytest.param(1, marks=pytest.mark.full)])
def test_recorded_streams_decode_to_contiguous_frames_however_they_are_cut(piece_bytes):
    assert {path.parent.name for path in RECORDINGS} == {"4.9.7", "5.3.3"}
    for path in RECORDINGS:
        data = path.read_bytes()
        whole = frames_of([data])
        assert b"".join(encode_header(offset, len(body)) + body for offset, body in whole) == data
        pieces = (data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes))
        assert frames_of(pieces) == whole, path
        for (offset, body), (following, _) in pairwise(whole):
            assert following == offset + len(body), path


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 1), st.binary(max_size=40)), max_size=6),
    st.lists(st.integers(0, 30), max_size=20),
)
def test_frames_survive_any_cut(frames, sizes):
    data = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    assert frames_of(cut(data, sizes)) == frames


def place(steps_and_bodies):
    """Frames that mostly continue each other, and a few at other offsets."""
    offset, frames = 100, []
    for step, body in steps_and_bodies:
        offset += step
        frames.append((offset, body))
        offset += len(body)
    return frames


@given(
    st.lists(st.tuples(st.sampled_from([0, 0, 0, 1, 7]), st.binary(max_size=40)), max_size=12),
    st.lists(st.integers(0, 120), max_size=20),
    st.sampled_from([0, 1, 16, 64, 1 << 20]),
)
def test_joined_bodies_are_the_frames_bytes_at_their_offsets_at_any_cut(steps, sizes, stretch_bytes):
    frames = place(steps)
    data = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    decoder = TransferDecoder(joined_within_bytes=stretch_bytes)
    received, ended, offset = [], [], 0
    for piece in cut(data, sizes):
        decoder.feed(bytearray(piece))
        while (event := decoder.next_event()) is not None:
            if isinstance(event, FrameHeader):
                offset = event.offset
                ended += [] if event.body_bytes else [event]
                continue
            received += enumerate(event.data, offset)
            offset += len(event.data)
            ended += event.ended
            for joined in event.ended[1:]:
                assert 0 < joined.offset % stretch_bytes <= stretch_bytes - joined.body_bytes
    assert received == [at for offset, body in frames for at in enumerate(body, offset)]
    assert ended == [FrameHeader(offset, len(body)) for offset, body in frames]


def test_bodies_that_continue_each_other_are_joined_in_a_writable_buffer():
    frames = [(7, b"abc"), (10, b"defg"), (14, b"hi")]
    data = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    decoder = TransferDecoder(joined_within_bytes=100)
    decoder.feed(bytearray(data[:-1]))
    assert decoder.next_event() == FrameHeader(7, 3)
    assert decoder.next_event() == BodyPart(
        memoryview(b"abcdefgh"), ended=(FrameHeader(7, 3), FrameHeader(10, 4)), newest=FrameHeader(14, 2)
    )
    assert decoder.next_event() is None
    decoder.feed(data[-1:] + encode_header(16, 0))
    assert decoder.next_event() == BodyPart(
        memoryview(b"i"), ended=(FrameHeader(14, 2),), newest=FrameHeader(14, 2)
    )
    assert decoder.next_event() == FrameHeader(16, 0)
    assert decoder.next_event() is None


@pytest.mark.parametrize(
    ("offset", "size"),
    [(11, 4), (9, 4), (10, -1), (10, 0), (10, BODY_BYTES_MAX + 1), (10, 91)],
    ids=["gap", "overlap", "negative", "heartbeat", "too long", "crosses a file's end"],
)
def test_a_frame_that_does_not_continue_the_one_before_is_not_joined(offset, size):
    decoder = TransferDecoder(joined_within_bytes=100)
    decoder.feed(bytearray(encode_header(7, 3) + b"abc" + encode_header(offset, size)))
    assert decoder.next_event() == FrameHeader(7, 3)
    assert decoder.next_event() == BodyPart(
        memoryview(b"abc"), ended=(FrameHeader(7, 3),), newest=FrameHeader(7, 3)
    )
    if 0 <= size <= BODY_BYTES_MAX:
        assert decoder.next_event() == FrameHeader(offset, size)
    else:
        with pytest.raises(RemoteProtocolError):
            decoder.next_event()


@given(st.binary(max_size=200), st.lists(st.integers(0, 30), max_size=20))
def test_garbage_is_refused_or_waits_for_more_and_never_fails_otherwise(data, sizes):
    try:
        frames_of(cut(data, sizes))
    except RemoteProtocolError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("offset", "size"), [(0, -1), (0, -(2**31)), (0, BODY_BYTES_MAX + 1), (-1, 0), (-5, 5)]
)
def test_an_invalid_size_or_offset_is_refused_at_the_header(offset, size):
    decoder = TransferDecoder()
    decoder.feed(encode_header(offset, size))
    with pytest.raises(RemoteProtocolError):
        decoder.next_event()


def test_a_body_comes_in_parts_and_the_last_is_marked():
    decoder = TransferDecoder()
    decoder.feed(encode_header(7, 5) + b"ab")
    assert decoder.next_event() == FrameHeader(7, 5)
    assert decoder.next_event() == BodyPart(memoryview(b"ab"), ended=(), newest=FrameHeader(7, 5))
    assert decoder.next_event() is None
    decoder.feed(b"cde" + encode_header(12, 0))
    assert decoder.next_event() == BodyPart(
        memoryview(b"cde"), ended=(FrameHeader(7, 5),), newest=FrameHeader(7, 5)
    )
    assert decoder.next_event() == FrameHeader(12, 0)
    assert decoder.next_event() is None


def test_feeding_before_the_last_bytes_are_decoded_is_a_local_error():
    decoder = TransferDecoder()
    decoder.feed(encode_header(7, 5) + b"ab")
    with pytest.raises(LocalProtocolError):
        decoder.feed(b"c")


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8),
    st.lists(st.integers(0, 20), max_size=20),
)
def test_of_reports_that_arrive_together_the_last_whole_one_counts(reports, sizes):
    data = b"".join(map(encode_report, reports))
    decoder = ReportDecoder()
    received = 0
    for piece in cut(data, sizes):
        before = received // 8
        received += len(piece)
        latest = decoder.feed(piece)
        assert latest == (reports[received // 8 - 1] if received // 8 > before else None)


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
def test_reports_of_a_real_slave_are_read_as_they_were_sent(version):
    data = (VECTORS / "ha-wire" / version / "a-fresh-slave.s2m.bin").read_bytes()
    decoder = ReportDecoder()
    reports = [decoder.feed(data[at : at + 8]) for at in range(0, len(data), 8)]
    assert reports[0] == 0
    assert reports == sorted(reports)
