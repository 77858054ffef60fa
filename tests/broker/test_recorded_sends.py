"""Requests of real producers get answers of the same code and shape as those of the real broker.

The differences, each on purpose:

- Parameters that 5.x refuses as INVALID_PARAMETER (29) are SYSTEM_ERROR for senders of 4.9, as in 4.9.
- Where the real broker answers with a Java exception, the remark here says what is wrong.
- Brokers of 5.x answer every send with its UNIQ_KEY as transactionId.
"""

import pytest

from tests.broker.sending import Sending
from tests.remoting.recorded import VECTORS, commands
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode, ResponseCode, Version

SESSIONS = [
    path.relative_to(VECTORS).as_posix().removesuffix(".c2s.bin")
    for path in sorted(VECTORS.glob("remoting-*/*--master.c2s.bin"))
]
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}


def recorded_sends(session):
    """Each send of a session, with the real broker's answer."""
    said = {one.opaque: one for one in commands(VECTORS / f"{session}.s2c.bin") if one.is_response}
    return [
        (command, said[command.opaque])
        for command in commands(VECTORS / f"{session}.c2s.bin")
        if not command.is_response and command.code in SENDS and command.opaque in said
    ]


WITH_SENDS = [session for session in SESSIONS if recorded_sends(session)]


@pytest.mark.parametrize("session", WITH_SENDS)
async def test_recorded_sends_get_the_answers_of_the_real_broker(tmp_path, wall, autojump_clock, session):
    broker = Sending(tmp_path, wall)
    broker.topics.put(TopicConfig("TopicSpec", 4, 4))
    for command, real in recorded_sends(session):
        answer = await broker.ask(command)
        code = real.code
        if code == ResponseCode.INVALID_PARAMETER and command.version < Version.V5_0_0:
            code = ResponseCode.SYSTEM_ERROR
        assert answer.code == code, (command, real, answer)
        assert answer.serialize_type == command.serialize_type
        if (real.remark or "").startswith("java.lang."):
            assert "is missing" in answer.remark
            continue
        assert answer.ext_fields.keys() == real.ext_fields.keys() - {"transactionId"}
        assert without_peer(answer.remark) == without_peer(real.remark)
        queue_id = command.ext_fields.get("e", command.ext_fields.get("queueId"))
        if real.code == ResponseCode.SUCCESS and queue_id != "-1":
            assert answer.ext_fields["queueId"] == real.ext_fields["queueId"] == queue_id


def without_peer(remark):
    """Without the producer's address, what 5.x says of attributes, and where the documentation is."""
    text = (remark or "").split("\n")[0].split(" Producer: ")[0]
    return text.replace(", attributes={}", "")


def test_the_recordings_have_every_kind_of_send():
    sends = [command for session in WITH_SENDS for command, _ in recorded_sends(session)]
    properties = [command.ext_fields.get("i", "") for command in sends]
    assert {command.code for command in sends} == SENDS
    assert any("DELAY\x01" in text for text in properties)
    assert any(int(command.ext_fields.get("f", 0)) & 1 for command in sends)
