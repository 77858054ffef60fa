"""The codec of controller mode, against recorded sessions of real stores, whole and cut anywhere."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trioha.errors import LocalProtocolError, RemoteProtocolError
from trioha.ha.autoswitch.frames import (
    BODY_BYTES_MAX,
    ENTRY_BYTES,
    EPOCHS_MAX,
    MASTER_HANDSHAKE,
    NO_OFFSET,
    SLAVE_HANDSHAKE,
    TRANSFER_HEADER,
    MasterHandshake,
    MasterStreamDecoder,
    SlaveHandshake,
    SlaveReport,
    SlaveStreamDecoder,
    TransferHeader,
    encode_master_handshake,
    encode_slave_handshake,
    encode_slave_report,
    encode_transfer_header,
)
from trioha.ha.bodies import BodyPart
from trioha.store.epochs import EpochEntry

VECTORS = Path(__file__).parents[2] / "vectors" / "ha-autoswitch"
RECORDINGS = (
    "a-empty-master-then-puts",
    "b-master-epoch2",
    "c-new-slave-joins-at-epoch2",
    "d-old-master-truncates",
)
I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.integers(0, 2**63 - 1)
CUTS = st.lists(st.integers(0, 60), max_size=30)
HANDSHAKES = st.builds(
    MasterHandshake,
    OFFSETS,
    st.integers(-1, 2**31 - 1),
    st.lists(st.builds(EpochEntry, I32, I64), max_size=5).map(tuple),
)


def cut(data, sizes):
    position = 0
    for size in sizes:
        yield data[position : position + size]
        position += size
    yield data[position:]


def from_master(pieces, **options):
    """The handshake, and header and body of each frame."""
    decoder = MasterStreamDecoder(**options)
    frames = []
    for piece in pieces:
        decoder.feed(piece)
        while (event := decoder.next_event()) is not None:
            if isinstance(event, BodyPart):
                frames[-1][1].extend(event.data)
            else:
                frames.append((event, bytearray()))
    return [(event, bytes(body)) for event, body in frames]


def to_bytes(frames):
    return b"".join(
        (encode_master_handshake if isinstance(event, MasterHandshake) else encode_transfer_header)(event)
        + body
        for event, body in frames
    )


def from_slave(pieces):
    decoder = SlaveStreamDecoder()
    return [frame for piece in pieces for frame in decoder.feed(piece)]


def slave_bytes(frames):
    return b"".join(
        encode_slave_handshake(frame)
        if isinstance(frame, SlaveHandshake)
        else encode_slave_report(frame.max_offset)
        for frame in frames
    )


def read(name):
    return (VECTORS / name).read_bytes()


@pytest.mark.parametrize("name", RECORDINGS)
def test_recorded_sessions_decode_and_encode_to_the_same_bytes_however_they_are_cut(name):
    for suffix, decode, encode in (("m2s", from_master, to_bytes), ("s2m", from_slave, slave_bytes)):
        data = read(f"{name}.{suffix}.bin")
        whole = decode([data])
        assert encode(whole) == data
        assert decode(data[at : at + 1] for at in range(len(data))) == whole
        assert all(decode([data[:at], data[at:]]) == whole for at in range(len(data)))


def test_an_empty_masters_recording_reads_as_what_happened():
    frames = from_master([read("a-empty-master-then-puts.m2s.bin")])
    assert [frame for frame, _ in frames] == [
        MasterHandshake(0, 1, (EpochEntry(1, 0),)),
        TransferHeader(NO_OFFSET, 0, 1, 0, 0),
        TransferHeader(0, 639, 1, 0, 639),
        TransferHeader(639, 0, 1, 0, 639),
    ]
    assert from_slave([read("a-empty-master-then-puts.s2m.bin")]) == [
        SlaveHandshake(is_sync_from_last_file=False, is_async_learner=False, broker_id=2),
        SlaveReport(0),
        SlaveReport(639),
        SlaveReport(639),
    ]


def test_the_recorded_chunk_that_ends_an_epoch_names_the_next_one():
    frames = from_master([read("c-new-slave-joins-at-epoch2.m2s.bin")])
    assert [frame for frame, _ in frames] == [
        MasterHandshake(1278, 2, (EpochEntry(1, 0), EpochEntry(2, 639))),
        TransferHeader(0, 0, 1, 0, 1278),
        TransferHeader(0, 639, 2, 639, 1278),
        TransferHeader(639, 639, 2, 639, 1278),
    ]


@given(
    HANDSHAKES,
    st.lists(
        st.tuples(OFFSETS, st.binary(max_size=40), I32, I64, I64),
        max_size=6,
    ),
    CUTS,
)
def test_frames_of_masters_survive_any_cut(handshake, frames, sizes):
    whole = [(handshake, b"")] + [
        (TransferHeader(offset, len(body), *numbers), body) for offset, body, *numbers in frames
    ]
    assert from_master(cut(to_bytes(whole), sizes)) == whole


@given(
    st.lists(
        st.one_of(
            st.builds(SlaveHandshake, st.booleans(), st.booleans(), OFFSETS),
            st.builds(SlaveReport, I64),
        ),
        max_size=8,
    ),
    CUTS,
)
def test_frames_of_slaves_survive_any_cut(frames, sizes):
    assert from_slave(cut(slave_bytes(frames), sizes)) == frames


def place(steps):
    """Frames that mostly continue each other; a few are elsewhere or of another epoch."""
    offset, epoch, confirm_offset, frames = 100, 1, 0, []
    for offset_step, epoch_step, body in steps:
        offset += offset_step
        epoch += epoch_step
        confirm_offset += 5
        frames.append((TransferHeader(offset, len(body), epoch, 10 * epoch, confirm_offset), body))
        offset += len(body)
    return frames


@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, 0, 1, 7]), st.sampled_from([0, 0, 0, 0, 1]), st.binary(max_size=40)
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 200), max_size=20),
    st.sampled_from([0, 1, 16, 64, 1 << 20]),
)
def test_joined_bodies_are_the_frames_bytes_in_their_epochs_at_any_cut(steps, sizes, file_bytes):
    frames = place(steps)
    data = to_bytes([(MasterHandshake(0, 1, ()), b""), *frames])
    decoder = MasterStreamDecoder(joined_within_bytes=file_bytes)
    received, ended, offset, epoch = [], [], 0, 0
    for piece in cut(data, sizes):
        decoder.feed(bytearray(piece))
        while (event := decoder.next_event()) is not None:
            if isinstance(event, MasterHandshake):
                continue
            if isinstance(event, TransferHeader):
                offset, epoch = event.offset, event.epoch
                ended += [] if event.body_bytes else [event]
                continue
            received += [(at, byte, epoch) for at, byte in enumerate(event.data, offset)]
            offset += len(event.data)
            ended += event.ended
            for joined in event.ended[1:]:
                assert 0 < joined.offset % file_bytes <= file_bytes - joined.body_bytes
            if event.ended:
                assert event.newest.confirm_offset in {
                    event.ended[-1].confirm_offset,
                    event.ended[-1].confirm_offset + 5,
                }
    assert received == [
        (at, byte, header.epoch) for header, body in frames for at, byte in enumerate(body, header.offset)
    ]
    assert ended == [header for header, _ in frames]


def test_bodies_that_continue_each_other_are_joined_in_a_writable_buffer():
    headers = [TransferHeader(7, 3, 1, 0, 4), TransferHeader(10, 4, 1, 0, 5), TransferHeader(14, 2, 1, 0, 6)]
    data = to_bytes([(MasterHandshake(16, 1, ()), b""), *zip(headers, [b"abc", b"defg", b"hi"], strict=True)])
    decoder = MasterStreamDecoder(joined_within_bytes=100)
    decoder.feed(bytearray(data[:-1]))
    assert decoder.next_event() == MasterHandshake(16, 1, ())
    assert decoder.next_event() == headers[0]
    assert decoder.next_event() == BodyPart(
        memoryview(b"abcdefgh"), ended=(headers[0], headers[1]), newest=headers[2]
    )
    assert decoder.next_event() is None
    decoder.feed(data[-1:])
    assert decoder.next_event() == BodyPart(memoryview(b"i"), ended=(headers[2],), newest=headers[2])
    assert decoder.next_event() is None


@pytest.mark.parametrize(
    "header",
    [
        TransferHeader(10, 4, 2, 0, 0),
        TransferHeader(10, 4, 1, 10, 0),
        TransferHeader(11, 4, 1, 0, 0),
        TransferHeader(10, 0, 1, 0, 0),
        TransferHeader(10, 91, 1, 0, 0),
    ],
    ids=["epoch", "start of the epoch", "gap", "heartbeat", "crosses a file's end"],
)
def test_a_frame_that_does_not_continue_the_one_before_is_not_joined(header):
    first = TransferHeader(7, 3, 1, 0, 0)
    decoder = MasterStreamDecoder(joined_within_bytes=100)
    decoder.feed(bytearray(to_bytes([(MasterHandshake(16, 1, ()), b""), (first, b"abc"), (header, b"")])))
    assert decoder.next_event() == MasterHandshake(16, 1, ())
    assert decoder.next_event() == first
    assert decoder.next_event() == BodyPart(memoryview(b"abc"), ended=(first,), newest=first)
    assert decoder.next_event() == header


@pytest.mark.parametrize(
    "data",
    [
        MASTER_HANDSHAKE.pack(2, 0, 0, -1),
        MASTER_HANDSHAKE.pack(0, 0, 0, -1),
        MASTER_HANDSHAKE.pack(1, -ENTRY_BYTES, 0, -1),
        MASTER_HANDSHAKE.pack(1, 1, 0, -1),
        MASTER_HANDSHAKE.pack(1, (EPOCHS_MAX + 1) * ENTRY_BYTES, 0, -1),
        MASTER_HANDSHAKE.pack(1, 2**31 - 4, 0, -1),
        MASTER_HANDSHAKE.pack(1, 0, -1, -1),
        MASTER_HANDSHAKE.pack(1, 0, 0, -2),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_a_handshake_that_no_master_sends_is_refused_before_its_body(data):
    decoder = MasterStreamDecoder()
    decoder.feed(data)
    with pytest.raises(RemoteProtocolError):
        decoder.next_event()


@pytest.mark.parametrize(
    "data",
    [
        TRANSFER_HEADER.pack(1, 0, 0, 1, 0, 0),
        TRANSFER_HEADER.pack(4, 0, 0, 1, 0, 0),
        TRANSFER_HEADER.pack(2, -1, 0, 1, 0, 0),
        TRANSFER_HEADER.pack(2, BODY_BYTES_MAX + 1, 0, 1, 0, 0),
        TRANSFER_HEADER.pack(2, 0, -2, 1, 0, 0),
        TRANSFER_HEADER.pack(2, 1, -1, 1, 0, 0),
    ],
)
def test_a_header_that_no_master_sends_is_refused_before_its_body(data):
    decoder = MasterStreamDecoder()
    decoder.feed(encode_master_handshake(MasterHandshake(0, -1, ())) + data)
    assert decoder.next_event() == MasterHandshake(0, -1, ())
    with pytest.raises(RemoteProtocolError):
        decoder.next_event()


@pytest.mark.parametrize(
    "data",
    [
        SLAVE_HANDSHAKE.pack(1, 2, 0, 1),
        SLAVE_HANDSHAKE.pack(1, 0, -1, 1),
        SLAVE_HANDSHAKE.pack(1, 0, 0, -1),
        bytes(12),
        b"GET / HTTP/1.1\r\n",
    ],
)
def test_a_frame_that_no_slave_sends_is_refused(data):
    with pytest.raises(RemoteProtocolError):
        SlaveStreamDecoder().feed(data)


def test_the_longest_list_of_epochs_is_decoded():
    epochs = tuple(EpochEntry(number, number) for number in range(EPOCHS_MAX))
    handshake = MasterHandshake(EPOCHS_MAX, EPOCHS_MAX - 1, epochs)
    assert from_master(cut(encode_master_handshake(handshake), [7000] * 20)) == [(handshake, b"")]


@given(st.binary(max_size=200), CUTS)
def test_garbage_is_refused_or_waits_for_more_and_never_fails_otherwise(data, sizes):
    for decode, start in (
        (from_master, b""),
        (from_master, encode_master_handshake(MasterHandshake(0, -1, ()))),
        (from_slave, b""),
    ):
        try:
            decode(cut(start + data, sizes))
        except RemoteProtocolError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either outcome is right


def test_feeding_before_the_last_bytes_are_decoded_is_a_local_error():
    decoder = MasterStreamDecoder()
    decoder.feed(b"1")
    with pytest.raises(LocalProtocolError):
        decoder.feed(b"c")


def test_whether_a_slaves_frame_is_incomplete_is_known():
    decoder = SlaveStreamDecoder()
    report = encode_slave_report(5)
    assert not decoder.feed(report[:11])
    assert not decoder.is_between_frames
    assert decoder.feed(report[11:]) == [SlaveReport(5)]
    assert decoder.is_between_frames
