"""Answers made of what those of one form have in common are the answers that the codec encodes."""

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trioha.remoting.codec import encode_head
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request, response_to
from trioha.remoting.found_head import FoundHead
from trioha.remoting.pull_message import PullResponseHeader

NUMBERS = st.integers(-(2**63), 2**63 - 1)


def asked(version):
    """A pull of a client of that version."""
    return evolve(request(RequestCode.PULL_MESSAGE), version=version)


@pytest.mark.parametrize("version", [401, 479])
@given(
    numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS),
    opaque=st.integers(-(2**31), 2**31 - 1),
    body=st.binary(max_size=10),
)
def test_a_frame_is_the_one_that_the_codec_encodes(version, numbers, opaque, body):
    header = PullResponseHeader(*numbers)
    answer = response_to(
        evolve(asked(version), opaque=opaque),
        ResponseCode.SUCCESS,
        remark="FOUND",
        ext_fields=header.to_ext_fields(version=version),
        body=body,
    )
    frame = FoundHead(asked(version), remark="FOUND").frame(*numbers, opaque=opaque, body_bytes=len(body))
    assert frame == encode_head(answer)
    assert (b"topicSysFlag" in frame) == (version == 479)
