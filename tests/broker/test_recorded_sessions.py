"""All recorded sessions of brokers: every request gets an answer like the real broker's, or is in a table.

Sends, pulls, access control and mqadmin's sessions have tests of their own, which also compare values:
`test_recorded_sends`, `test_recorded_consumers`, `test_acl`, `test_recorded_admin`. Sessions of name servers
are in `tests/namesrv/test_recordings.py`. Here each session is played whole, all other answers are compared,
and the last tests count: no recorded request is left out.
"""

import inspect
from collections import Counter
from functools import partial

import pytest
import trio

from tests.broker import test_recorded_admin, test_recorded_consumers, test_recorded_sends
from tests.broker.consuming import PEER
from tests.broker.test_recorded_admin import TOPIC, Master, here, recorded, shape
from tests.namesrv import test_recordings
from tests.remoting.recorded import VECTORS
from trioha.config.broker import BrokerRole
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, response_to
from trioha.remoting.fastjson import parse_json

SESSIONS = sorted(
    str(path.relative_to(VECTORS)).removesuffix(".c2s.bin")
    for path in VECTORS.glob("remoting-*/*.c2s.bin")
    if not path.name.endswith("--ns.c2s.bin")
)
PULLS = test_recorded_consumers.PULLS

NOT_OFFERED = {
    906: "EXCHANGE_BROKER_HA_INFO: controller mode is not offered",
    307: "GET_CONSUMER_RUNNING_INFO: the broker does not ask consumers for mqadmin",
}
"""Requests that RocketMQ's brokers serve and trioha's do not, each with its reason: answered with 3."""

OFFERED_TO_ALL = {
    RequestCode.GET_TOPIC_CONFIG: "4.9 does not have it; the answer is 5.x's",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "4.9 does not have it; the answer is 5.x's",
    RequestCode.GET_BROKER_HA_STATUS: "4.9 does not have it; the answer is 5.x's",
    RequestCode.GET_TIMER_CHECK_POINT: "as GET_BROKER_HA_STATUS",
    RequestCode.GET_TIMER_METRICS: "as GET_BROKER_HA_STATUS",
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: "as GET_BROKER_HA_STATUS",
}
"""Requests that 4.9.7 does not know; trioha serves them to clients of every version."""

OTHER_MEMBERS = {
    RequestCode.GET_BROKER_RUNTIME_INFO: "the table has trioha's figures; mqadmin's are in test_processor",
    RequestCode.GET_BROKER_HA_STATUS: "trioha has more members",
    RequestCode.GET_BROKER_CONFIG: "the settings are trioha's",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "a group has no retry policy and no attributes of 5.3",
    RequestCode.GET_ALL_TOPIC_CONFIG: "copied tables have their members: test_metadata_processor",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "as GET_ALL_TOPIC_CONFIG",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "as GET_ALL_TOPIC_CONFIG",
    RequestCode.GET_ALL_DELAY_OFFSET: "as GET_ALL_TOPIC_CONFIG",
}
"""Answers whose bodies have other members than the real broker's."""

OTHER_FIELDS = {
    "transactionId": "5.x answers each send with its UNIQ_KEY; no client reads it there",
    "IS_SUB_CHANGE": "the second form of heartbeats is not offered",
    "IS_SUPPORT_HEART_BEAT_V2": "the second form of heartbeats is not offered",
}
"""Fields of 5.x's answers that trioha's have not."""

SENDS_TO_A_SLAVE = {2, 14}
"""4.9 answers a send to a slave with SERVICE_NOT_AVAILABLE and figures of its disk, 5.3 with SYSTEM_BUSY;
trioha with SERVICE_NOT_AVAILABLE and "this broker is a slave"."""


def is_proven_elsewhere(session, command, *, of_consumers):
    """Whether another test compares the answer to a request of a session."""
    if session in test_recorded_admin.SESSIONS or session.endswith(("113-acl--master", "115-acl--master")):
        return True
    if session in test_recorded_consumers.SESSIONS and command.code in of_consumers:
        return True
    return session in test_recorded_sends.WITH_SENDS and command.code in test_recorded_sends.SENDS


class Session:
    """A recorded session and the broker that it is played to."""

    def __init__(self, tmp_path, session):
        self.name = session
        self.asked, self.real = recorded(session)
        slave = {"broker_role": BrokerRole.SLAVE, "broker_id": 1} if session.endswith("--slave") else {}
        self.broker = Master(tmp_path, **slave)
        self.of_consumers = frozenset(self.broker.room.consumers.handlers)

    def prepare(self):
        """Store a message, and what the real answers tell of the real broker."""
        self.offset = self.broker.put(TOPIC, KEYS="key1")
        for command in self.asked:
            if command.opaque in self.real:
                self.broker.prepare(command, self.real[command.opaque])

    def adapted(self, command):
        """The request, about a message of this log instead of one of the real broker's."""
        real = self.real.get(command.opaque)
        if real is not None and real.code == ResponseCode.SUCCESS:
            match command.code:
                case RequestCode.VIEW_MESSAGE_BY_ID | RequestCode.CONSUMER_SEND_MSG_BACK:
                    command.ext_fields["offset"] = str(self.offset)
        return command

    async def play(self, nursery):
        """The answers by opaque; pulls wait as long as they do."""
        given = {}

        async def wait(command, answer):
            try:
                given[command.opaque] = await answer
            except BadRequestError as error:
                given[command.opaque] = response_to(command, error.code, remark=error.reason)

        for command in map(self.adapted, self.asked):
            try:
                answer = self.broker.room.server.handler(command, PEER)
            except BadRequestError as error:
                answer = response_to(command, error.code, remark=error.reason)
            if not inspect.isawaitable(answer):
                given[command.opaque] = answer
            elif command.code in PULLS:
                nursery.start_soon(wait, command, answer)
            else:
                await wait(command, answer)
        return given


def assert_alike(command, theirs, ours):
    """Code, remark of a refusal, names of fields and shape of the body, but for the listed differences."""
    shown = (command, theirs, ours)
    assert ours.serialize_type == command.serialize_type, shown
    if command.code in NOT_OFFERED:
        assert ours.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, shown
        return
    if command.code in OFFERED_TO_ALL and theirs.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        assert ours.code == ResponseCode.SUCCESS, shown
        return
    if command.code in test_recorded_sends.SENDS and theirs.code in SENDS_TO_A_SLAVE:
        assert (ours.code, ours.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave")
        return
    assert ours.code == test_recorded_consumers.expected_code(command, theirs), shown
    ours_fields, their_fields = set(ours.ext_fields), set(theirs.ext_fields)
    assert ours_fields == their_fields - OTHER_FIELDS.keys(), shown
    if theirs.code:
        assert first_line(ours.remark) == first_line(theirs.remark), shown
    body, other = bytes(theirs.body), bytes(ours.whole_body)
    assert bool(other) == bool(body), shown
    if not body.startswith(b"{"):
        return
    value, mine = parse_json(body), parse_json(other)
    if command.code in OTHER_MEMBERS:
        assert type(mine) is type(value), shown
    else:
        assert shape(mine) == shape(value), shown


def first_line(remark):
    """Without the peer's address and where the documentation is."""
    return (remark or "").split("\n")[0].split("consumer:")[0].split(" Producer: ")[0]


@pytest.mark.parametrize("session", SESSIONS)
async def test_every_answer_has_the_code_and_shape_of_the_real_brokers(tmp_path, nursery, session):
    played = Session(tmp_path, session)
    nursery.start_soon(partial(played.broker.metadata.run, in_thread=here))
    played.prepare()
    await trio.testing.wait_all_tasks_blocked()
    given = await played.play(nursery)
    for command in played.asked:
        if command.is_oneway or is_proven_elsewhere(session, command, of_consumers=played.of_consumers):
            continue
        assert_alike(command, played.real[command.opaque], given[command.opaque])


# -- nothing is left out -------------------------------------------------------------------------------------


def test_every_session_of_the_recordings_is_played():
    """Of the numbers 1 to 117 and 1 to 90, some are not in the recordings: they were taken anew."""
    of_brokers = Counter(session.split("/")[0] for session in SESSIONS)
    of_name_servers = Counter(path.parent.name for path in test_recordings.SESSIONS)
    assert of_brokers == {"remoting-4.9.7": 67, "remoting-5.3.3": 49}
    assert of_name_servers == {"4.9.7": 41, "5.3.3": 32}


async def test_every_recorded_request_is_compared_or_listed(tmp_path):
    """How many requests are compared where; a new recording must change these figures."""
    kinds = Counter()
    codes = set()
    of_consumers = Session(tmp_path, SESSIONS[0]).of_consumers
    for session in SESSIONS:
        asked, _ = recorded(session)
        for command in asked:
            codes.add(command.code)
            if command.is_oneway:
                kinds["one-way"] += 1
            elif is_proven_elsewhere(session, command, of_consumers=of_consumers):
                kinds["compared in the test of its kind"] += 1
            elif command.code in NOT_OFFERED:
                kinds["not offered"] += 1
            else:
                kinds["compared here"] += 1
    assert kinds == {
        "compared here": 284,
        "compared in the test of its kind": 609,
        "not offered": 6,
        "one-way": 116,
    }
    # Each row of a table is about a request that was recorded.
    assert codes >= {*NOT_OFFERED, *OFFERED_TO_ALL, *OTHER_MEMBERS}
    fields = {
        name for session in SESSIONS for answer in recorded(session)[1].values() for name in answer.ext_fields
    }
    assert fields >= OTHER_FIELDS.keys()
    assert set(test_recorded_consumers.SESSIONS) | set(test_recorded_sends.SESSIONS) <= set(SESSIONS)
