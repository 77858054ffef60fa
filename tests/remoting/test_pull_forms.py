"""Pulls of known forms: they are read as the plain reader reads them, and nothing else is."""

import json

import pytest
from attrs import asdict, evolve
from hypothesis import example, given
from hypothesis import strategies as st

from tests.remoting.recorded import STREAMS, frames
from trioha.errors import LocalProtocolError
from trioha.remoting.codec import FrameDecoder, encode, encode_head
from trioha.remoting.codes import LanguageCode
from trioha.remoting.command import RemotingCommand, SerializeType, request
from trioha.remoting.pull_forms import FORM_BYTES_MAX, KnownPull, PullForms

FIELDS = {
    "queueId": "3", "maxMsgBytes": "262144", "maxMsgNums": "32", "sysFlag": "2",
    "suspendTimeoutMillis": "15000", "commitOffset": "0", "bname": "broker-a", "topic": "TopicSpec",
    "queueOffset": "0", "expressionType": "TAG", "subVersion": "1795234352702",
    "consumerGroup": "CG_SPEC_push",
}  # fmt: skip
OFFSETS = st.integers(0, 10**18 - 1)
TEXT = st.text(max_size=30)


def pull(*, code=11, opaque=7, **fields):
    """The frame of a pull, as a Java consumer's."""
    texts = {name: str(value) for name, value in {**FIELDS, **fields}.items() if value is not None}
    return encode(
        evolve(request(code, ext_fields=texts), language=LanguageCode.JAVA, version=479), opaque=opaque
    )


def framed(header):
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def read(frame, forms=None):
    decoder = FrameDecoder(forms=forms)
    decoder.feed(frame)
    command = decoder.next_command()
    assert command is not None
    return command


def fields_of(command):
    known = asdict(command)
    return {name: known[name] for name in asdict(RemotingCommand(0))}


def check(frame, forms):
    """Whether a frame is read by its form; it must be read as the plain reader reads it."""
    found = read(frame, forms)
    assert fields_of(found) == fields_of(read(frame))
    return type(found) is KnownPull


def check_next(frame, forms):
    """Whether the decoder finds the pull of a known form, taken or left; the frame behind it stays whole."""
    plain = fields_of(read(frame))
    follower = encode(request(35), opaque=4711)
    outcomes = set()
    for is_taken in (True, False):
        decoder = FrameDecoder(forms=forms)
        decoder.feed(frame + follower)
        found = decoder.pull()
        outcomes.add(found is not None)
        if found is not None and is_taken:
            assert fields_of(found.command()) == plain
            assert found.frame_bytes == len(frame)
            decoder.skip_pull(found)
        else:
            command = decoder.next_command()
            assert command is not None
            assert fields_of(command) == plain
            assert (decoder.frame_bytes, decoder.header_bytes) == (
                len(frame),
                len(frame) - 8 - len(command.body),
            )
        assert decoder.pull() is None
        following = decoder.next_command()
        assert (following.code, following.opaque, decoder.buffered_bytes) == (35, 4711, 0)
    assert len(outcomes) == 1
    return outcomes.pop()


def test_the_second_pull_of_a_form_is_found_as_such():
    forms = PullForms()
    read(pull(), forms)
    assert check_next(pull(opaque=8, queueOffset=32, commitOffset=31), forms)
    assert check_next(pull(commitOffset=5), forms)
    decoder = FrameDecoder(forms=forms)
    decoder.feed(pull(queueId=2))
    assert decoder.pull() is None
    assert not check_next(encode(request(34, ext_fields=FIELDS)), forms)
    binary = request(11, ext_fields=FIELDS, serialize_type=SerializeType.ROCKETMQ)
    assert not check_next(encode(binary), forms)
    with_body = pull()
    with_body = (int.from_bytes(with_body[:4], "big") + 4).to_bytes(4, "big") + with_body[4:] + b"body"
    assert not check_next(with_body, forms)


def test_no_pull_is_found_before_its_frame_is_whole():
    forms = PullForms()
    frame = pull()
    read(frame, forms)
    for size in range(len(frame)):
        decoder = FrameDecoder(forms=forms)
        decoder.feed(frame[:size])
        assert decoder.pull() is None
        assert decoder.next_command() is None
        decoder.feed(frame[size:])
        command = decoder.next_command()
        assert command is not None
        assert fields_of(command) == fields_of(read(frame))


@pytest.mark.parametrize("limit", ["frame_bytes_max", "header_bytes_max"])
def test_no_pull_is_found_beyond_a_limit(limit):
    forms = PullForms()
    frame = pull()
    read(frame, forms)
    size = len(frame) if limit == "frame_bytes_max" else len(frame) - 8
    for allowed, is_found in ((size, True), (size - 1, False)):
        decoder = FrameDecoder(forms=forms, **{limit: allowed})
        decoder.feed(frame)
        assert (decoder.pull() is not None) is is_found


@given(data=st.binary(max_size=40), at=st.integers(0, 11))
def test_a_pull_is_found_only_where_the_plain_reader_reads_one(data, at):
    forms = PullForms()
    frame = pull()
    read(frame, forms)
    changed = frame[:at] + data + frame[at + len(data) :]
    decoder = FrameDecoder(forms=forms)
    decoder.feed(changed)
    found = decoder.pull()
    if found is not None:
        assert fields_of(found.command()) == fields_of(read(changed[: found.frame_bytes]))


def test_the_second_pull_of_a_form_is_read_by_it():
    forms = PullForms()
    assert not check(pull(), forms)
    assert check(pull(opaque=8, queueOffset=32, commitOffset=31), forms)
    assert not check(pull(queueId=2), forms)
    assert not check(pull(code=361), forms)
    assert check(pull(code=361, queueOffset=1 << 40), forms)
    assert len(forms) == 3


def test_a_known_pull_has_its_numbers():
    forms = PullForms()
    read(pull(), forms)
    found = read(pull(opaque=9, queueOffset=64, commitOffset=5), forms)
    assert isinstance(found, KnownPull)
    assert (found.opaque, found.queue_offset, found.commit_offset) == (9, 64, 5)
    for _ in range(2):
        found = read(pull(commitOffset=-1, queueOffset=4), forms)
    assert isinstance(found, KnownPull)
    assert (found.commit_offset, found.ext_fields["commitOffset"]) == (None, "-1")
    read(pull(commitOffset=None), forms)
    found = read(pull(commitOffset=None, queueOffset=3), forms)
    assert isinstance(found, KnownPull)
    assert (found.queue_offset, found.commit_offset) == (3, None)


@given(
    fields=st.dictionaries(st.sampled_from([*FIELDS, "x", "queueOffse", ""]), TEXT | OFFSETS.map(str)),
    offsets=st.tuples(OFFSETS, OFFSETS, st.integers(0, 2**31 - 1)),
)
def test_pulls_of_any_fields_are_read_as_the_plain_reader_reads_them(fields, offsets):
    queue_offset, commit_offset, opaque = offsets
    forms = PullForms()
    first = pull(**fields)
    check(first, forms)
    check(first, forms)
    check(
        pull(opaque=opaque, **fields, **({} if "queueOffset" in fields else {"queueOffset": queue_offset})),
        forms,
    )
    check(pull(**{**fields, "queueOffset": queue_offset, "commitOffset": commit_offset}), forms)


HEADER = pull()[8:]


@given(at=st.integers(0, len(HEADER) - 1), to=st.integers(0, len(HEADER)), put=st.binary(max_size=12))
@example(at=HEADER.index(b'"topic"'), to=HEADER.index(b'"topic"'), put=b'"commitOffset":"-1",')
@example(at=HEADER.index(b'"queueOffset"'), to=HEADER.index(b'"queueOffset"'), put=b'"queueOffset":"5",')
@example(at=HEADER.index(b'"0"') + 1, to=HEADER.index(b'"0"') + 2, put=b"")
@example(at=HEADER.index(b'"0"') + 1, to=HEADER.index(b'"0"') + 2, put=b"007")
@example(at=HEADER.index(b'"0"') + 1, to=HEADER.index(b'"0"') + 2, put=b"-1")
@example(at=HEADER.index(b'"0"') + 1, to=HEADER.index(b'"0"') + 2, put=b"9" * 30)
@example(at=HEADER.index(b'"TopicSpec"') + 1, to=HEADER.index(b'"TopicSpec"') + 1, put=b"\\u0022")
@example(at=HEADER.index(b'"queueOffset"'), to=HEADER.index(b'"queueOffset"'), put=b'"x\\')
@example(at=HEADER.index(b'"topic"'), to=HEADER.index(b'"topic"'), put=b'"x":{"commitOffset":"7"},')
@example(at=1, to=1, put=b'"opaque":5,')
@example(at=12, to=12, put=b'"opaque":5,')
@example(at=HEADER.index(b'"flag":0') + 7, to=HEADER.index(b'"flag":0') + 8, put=b"1")
@example(at=len(HEADER) - 1, to=len(HEADER) - 1, put=b',"remark":"x"')
def test_changed_headers_are_read_as_the_plain_reader_reads_them(at, to, put):
    forms = PullForms()
    read(pull(queueOffset=99), forms)
    changed = framed(HEADER[:at] + put + HEADER[max(at, to) :])
    outcomes = []
    for known in (forms, forms, None):
        try:
            outcomes.append(fields_of(read(changed, known)))
        except Exception as error:  # noqa: BLE001 - both readers are to refuse it alike
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] == outcomes[2]


def test_pulls_of_real_consumers_are_read_by_their_form():
    pulls = known = 0
    forms = PullForms()
    for path in STREAMS:
        for frame in frames(path):
            command = read(frame)
            if (
                not command.is_response
                and command.code in {11, 361}
                and command.serialize_type is SerializeType.JSON
                and command.language is LanguageCode.JAVA
            ):
                pulls += 1
                check(frame, forms)
                known += check(frame, forms)
    assert pulls > 20
    assert known == pulls


def test_forms_are_bounded():
    forms = PullForms(forms_max=3)
    for queue_id in range(10):
        check(pull(queueId=queue_id), forms)
        assert len(forms) <= 3
        assert check(pull(queueId=queue_id, queueOffset=1), forms)
    long = pull(subscription="x" * FORM_BYTES_MAX)
    before = len(forms)
    assert not check(long, forms)
    assert not check(long, forms)
    assert len(forms) == before


def test_a_pull_with_a_body_is_read_plainly():
    forms = PullForms()
    frame = pull()
    with_body = (int.from_bytes(frame[:4], "big") + 4).to_bytes(4, "big") + frame[4:] + b"body"
    assert not check(with_body, forms)
    assert not check(with_body, forms)
    assert len(forms) == 0


# -- headers of answers --------------------------------------------------------------------------------------


@given(
    code=st.integers(-(2**31), 2**31 - 1),
    fields=st.dictionaries(TEXT, TEXT, max_size=5),
    flag=st.integers(0, 3),
    opaque=st.integers(-(2**31), 2**31 - 1),
    remark=st.none() | TEXT,
    body=st.binary(max_size=20),
)
@example(code=0, fields={"a": '"'}, flag=1, opaque=1, remark=None, body=b"")
@example(code=0, fields={"\\": "x"}, flag=1, opaque=1, remark="\x7f", body=b"")
@example(code=0, fields={"a": "\ud800"}, flag=1, opaque=1, remark="\udfff", body=b"")
def test_headers_of_answers_are_json_in_javas_order(*, code, fields, flag, opaque, remark, body):
    command = RemotingCommand(code, opaque, flag, remark, fields, body)
    header = {
        "code": code, "extFields": fields, "flag": flag, "language": command.language.name, "opaque": opaque,
        "remark": remark, "serializeTypeCurrentRPC": "JSON", "version": command.version,
    }  # fmt: skip
    if not fields:
        del header["extFields"]
    if remark is None:
        del header["remark"]
    text = json.dumps(header, separators=(",", ":")).encode()
    for one, body_bytes in (
        (command, len(body)),
        (evolve(command, slices=(memoryview(b"slice"),)), len(body) + 5),
    ):
        head = encode_head(one)
        assert head[8:] == text
        assert head[:8] == (4 + len(text) + body_bytes).to_bytes(4, "big") + len(text).to_bytes(4, "big")


@pytest.mark.parametrize("remark", [5, b"x"])
def test_an_answer_that_no_header_can_hold_is_refused(remark):
    with pytest.raises(LocalProtocolError, match="must be strings"):
        encode_head(RemotingCommand(0, remark=remark))
    with pytest.raises(LocalProtocolError, match="must be strings"):
        encode_head(RemotingCommand(0, ext_fields={"a": remark}))
