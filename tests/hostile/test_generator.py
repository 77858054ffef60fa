"""The generator: the same pair of seed and index is the same frame, and no kind or field is left out."""

import random
from collections import defaultdict

import pytest

from tests.hostile import reporting, requesting, transferring
from tests.hostile.frame import Lane, Outcome
from tests.hostile.generator import frame_of, transfer_of
from tests.hostile.requests import REQUESTS, SERVED, UNSERVED, Field, Type
from tests.hostile.transferring import Place
from tests.store.support import open_log
from trioha.remoting.codec import FrameDecoder
from trioha.store.messages import Message

FRAMES = 7_000


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
    assert {frame.lane for frame in frames} == set(Lane)
    transfer = next(frame for frame in frames if frame.lane is Lane.TRANSFER)
    place = Place(1000, bytes(200), 65536)
    assert transfer_of(transfer, place) == transfer_of(transfer, place)


def test_every_field_of_every_request_meets_hostile_values(frames):
    met = defaultdict(set)
    for frame in frames:
        if frame.kind == "field" and frame.outcome is Outcome.ANSWERED:
            command = decoded(frame.data)
            met[command.code].update(command.ext_fields.items())
    for row in REQUESTS:
        for field in row.fields:
            values = {value for name, value in met[row.code] if name == field.name}
            assert len(values - set(field.good)) >= 5, (row.code, field.name)


def test_every_kind_can_be_drawn():
    for number in range(6):
        for name, draw, _ in requesting.KINDS:
            assert draw(random.Random(number), number).detail, name
        for name, draw, _ in reporting.KINDS:
            assert draw(random.Random(number)).detail, name


def test_a_transfer_is_never_what_a_slave_should_append(tmp_path):
    log, _ = open_log(tmp_path / "log")
    for number in range(3):
        offset = log.append(Message(topic="Topic", queue_id=0, body=bytes([number]) * 300)).physical_offset
    place = Place(offset, bytes(log.read(offset, 65536)), 65536)
    whole = transferring.HEADER.pack(offset, len(place.record)) + place.record
    for kind, draw, _ in transferring.KINDS:
        for number in range(300):
            assert not draw(random.Random(number), place)[1].startswith(whole), kind
    log.close()


def test_what_must_be_refused_is_known_without_the_reader_of_numbers():
    assert not SERVED & set(UNSERVED)
    for row in REQUESTS:
        assert not any(field.must_be_refused(value) for field in row.fields for value in field.good)
    refused = {
        Type.I32: ("--5", "+5", "\u0665", "5\n", "2147483648", "9" * 5001),
        Type.I64: ("9223372036854775808",),
        Type.COUNT: ("-1",),
        Type.TOPIC: ("a b", "a" * 256, ""),
    }
    taken = {Type.I32: "-2147483648", Type.I64: "-9223372036854775808", Type.TEXT: "\0", Type.BOOLEAN: "--5"}
    for type_, values in refused.items():
        assert all(Field("x", type_, ("0",)).must_be_refused(value) for value in values), type_
    for type_, value in taken.items():
        assert not Field("x", type_, ("0",)).must_be_refused(value), type_
