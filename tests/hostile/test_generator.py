"""The generator: the same pair of seed and index is the same frame, and no kind or field is left out."""

import random
from collections import defaultdict

import pytest

from tests.hostile import answering, reporting, requesting, transferring
from tests.hostile.frame import Lane, Manner, Outcome
from tests.hostile.generator import answer_of, frame_of, transfer_of
from tests.hostile.requests import REQUESTS, SERVED, UNSERVED, Field, Type
from tests.hostile.strangers import Batches
from tests.hostile.transferring import Place
from tests.store.support import open_log
from trioha.errors import RemoteProtocolError
from trioha.remoting.codec import FrameDecoder
from trioha.store.messages import Message

FRAMES = 10_000


@pytest.fixture(scope="module")
def frames():
    return [frame_of(7, index) for index in range(FRAMES)]


def decoded(data):
    decoder = FrameDecoder()
    decoder.feed(data)
    return decoder.next_command()


def test_the_same_seed_and_index_are_the_same_frame_and_others_are_others(frames):
    assert [frame_of(7, index) for index in range(0, FRAMES, 50)] == frames[::50]
    assert len({frame.steps for frame in (frame_of(seed, 3) for seed in range(200))}) > 150


def test_every_lane_is_served(frames):
    assert {frame.lane for frame in frames} == set(Lane)


def test_every_field_of_every_request_meets_hostile_values(frames):
    met = defaultdict(set)
    for frame in frames:
        if frame.kind == "field" and frame.outcome is Outcome.ANSWERED:
            command = decoded(frame.data)
            met[command.code].update(command.ext_fields.items())
    for row in REQUESTS:
        for field in row.fields:
            values = {value for name, value in met[row.code] if name == field.name}
            assert len(values - set(field.good)) >= 10


def test_a_frame_that_must_be_answered_or_passed_over_is_one_to_the_codec(frames):
    sure = [frame for frame in frames if frame.outcome in {Outcome.ANSWERED, Outcome.SILENT}]
    assert len(sure) > FRAMES / 2
    for frame in sure:
        command = decoded(frame.data)
        if frame.outcome is Outcome.ANSWERED:
            assert (command.opaque, command.is_response, command.is_oneway) == (frame.opaque, False, False)
        else:
            assert command.is_response or command.is_oneway


def test_a_frame_that_must_end_its_connection_is_none_to_the_codec(frames):
    ending = [
        frame
        for frame in frames
        if frame.outcome is Outcome.CLOSED and frame.lane in {Lane.MASTER, Lane.SLAVE}
    ]
    assert len(ending) > 20
    for frame in ending:
        with pytest.raises(RemoteProtocolError):
            decoded(frame.data)


def test_frames_of_a_connection_end_with_the_one_that_may_end_it(frames):
    batches = Batches()
    grouped = [group for frame in frames if frame.lane is Lane.MASTER for group in batches.add(frame)]
    grouped += batches.rest()
    assert [frame for group in grouped for frame in group] == [
        frame for frame in frames if frame.lane is Lane.MASTER
    ]
    for group in grouped:
        assert all(frame.outcome in {Outcome.ANSWERED, Outcome.SILENT} for frame in group[:-1])
        opaques = [frame.opaque for frame in group if frame.outcome is Outcome.ANSWERED]
        assert len(set(opaques)) == len(opaques)
        assert len(group) == 1 or all(frame.manner is Manner.WHOLE for frame in group)


@pytest.mark.parametrize("name", [name for name, _, _ in requesting.KINDS])
def test_every_kind_of_request_can_be_drawn(name):
    draw = next(draw for kind, draw, _ in requesting.KINDS if kind == name)
    for number in range(20):
        assert draw(random.Random(number), number).detail


@pytest.mark.parametrize("name", [name for name, _, _ in reporting.KINDS])
def test_every_kind_of_report_can_be_drawn(name):
    draw = next(draw for kind, draw, _ in reporting.KINDS if kind == name)
    assert all(draw(random.Random(number)).detail for number in range(20))


@pytest.mark.parametrize("name", [name for name, _, _ in answering.KINDS])
def test_every_kind_of_answer_can_be_drawn(name):
    draw = next(draw for kind, draw, _ in answering.KINDS if kind == name)
    for asked in answering._ASKED[Lane.CLIENT]:
        assert all(draw(random.Random(number), asked, 5).detail for number in range(20))


def test_a_transfer_is_never_what_a_slave_should_append(tmp_path):
    log, _ = open_log(tmp_path / "log")
    for number in range(3):
        offset = log.append(Message(topic="Topic", queue_id=0, body=bytes([number]) * 300)).physical_offset
    place = Place(offset, bytes(log.read(offset, 65536)), 65536)
    kinds = set()
    for number in range(3000):
        kind, draw, _ = random.Random(number).choice(transferring.KINDS)
        _, data = draw(random.Random(number), place)
        kinds.add(kind)
        whole = transferring.HEADER.pack(offset, len(place.record)) + place.record
        assert not data.startswith(whole)
    assert kinds == {kind for kind, _, _ in transferring.KINDS}
    log.close()


def test_an_answer_has_the_opaque_of_its_request_and_a_transfer_the_place_of_the_log():
    frame = next(
        frame for frame in (frame_of(1, index) for index in range(20_000)) if frame.kind == "answer-good"
    )
    assert decoded(answer_of(frame, 77).data).opaque == 77
    transfer = next(
        frame for frame in (frame_of(1, index) for index in range(20_000)) if frame.lane is Lane.TRANSFER
    )
    named, data = transfer_of(transfer, Place(1000, bytes(200), 65536))
    assert named.kind.startswith("transfer-")
    assert transfer_of(transfer, Place(1000, bytes(200), 65536))[1] == data


def test_requests_are_served_or_not():
    assert not SERVED & set(UNSERVED)
    for row in REQUESTS:
        assert all(field.must_be_refused(value) is False for field in row.fields for value in field.good)


@pytest.mark.parametrize(
    ("type_", "value", "refused"),
    [
        (Type.I32, "--5", True),
        (Type.I32, "+5", True),
        (Type.I32, "\u0665", True),
        (Type.I32, "5\n", True),
        (Type.I32, "2147483648", True),
        (Type.I32, "-2147483648", False),
        (Type.I32, "9" * 5001, True),
        (Type.I64, "9223372036854775808", True),
        (Type.I64, "-9223372036854775808", False),
        (Type.COUNT, "-1", True),
        (Type.TOPIC, "a b", True),
        (Type.TOPIC, "a" * 256, True),
        (Type.TOPIC, "", True),
        (Type.TEXT, "\0", False),
        (Type.BOOLEAN, "--5", False),
    ],
)
def test_what_must_be_refused_is_known_without_the_reader_of_numbers(type_, value, refused):
    assert Field("x", type_, ("0",)).must_be_refused(value) is refused
