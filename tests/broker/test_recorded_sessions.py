"""All recorded sessions of brokers: every request gets an answer like the real broker's, or is in a table.

Pulls and access control have tests of their own, which also compare values: `test_recorded_consumers` and
`test_acl`. Sessions of name servers are in `tests/namesrv/test_recordings.py`. Here each session is played
whole, all other answers are compared, and the last test counts: no recorded request is left out.
"""

import inspect
from collections import Counter
from functools import partial

import pytest
import trio

from tests.broker import test_recorded_consumers
from tests.broker.consuming import PEER, records_of
from tests.broker.recorded_broker import TOPIC, Master, here, recorded
from tests.descriptors import resources_closed
from tests.namesrv import test_recordings
from tests.remoting.recorded import VECTORS
from trioha.config.broker import BrokerRole
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import BadRequestError, response_to
from trioha.remoting.fastjson import parse_json

SESSIONS = sorted(
    str(path.relative_to(VECTORS)).removesuffix(".c2s.bin")
    for path in VECTORS.glob("remoting-*/*.c2s.bin")
    if not path.name.endswith("--ns.c2s.bin")
)
PULLS = test_recorded_consumers.PULLS
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
MAPS = {"subscriptionTable", "offsetTable", "attributes", "consumeStatsList[]"}
"""Members that are maps: their keys are not part of a shape."""

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
    if session.endswith(("113-acl--master", "115-acl--master")):
        return True
    return session in test_recorded_consumers.SESSIONS and command.code in of_consumers


class Session:
    """A recorded session and the broker that it is played to."""

    def __init__(self, tmp_path, session):
        self.name = session
        self.asked, self.real = recorded(session)
        slave = {"broker_role": BrokerRole.SLAVE, "broker_id": 1} if session.endswith("--slave") else {}
        tmp_path.mkdir(exist_ok=True)
        self.broker = Master(tmp_path, **slave)
        self.of_consumers = frozenset(self.broker.service.consumers.handlers)

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
                answer = self.broker.service.server.handler(command, PEER)
            except BadRequestError as error:
                answer = response_to(command, error.code, remark=error.reason)
            if not inspect.isawaitable(answer):
                given[command.opaque] = answer
            elif command.code in PULLS:
                nursery.start_soon(wait, command, answer)
            else:
                await wait(command, answer)
        return given


def assert_alike(session, command, theirs, ours):
    """Code, remark of a refusal, names of fields and shape of the body, but for the listed differences."""
    shown = (session, command, theirs, ours)
    assert ours.serialize_type == command.serialize_type, shown
    if command.code in NOT_OFFERED:
        assert ours.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, shown
        return
    if command.code in OFFERED_TO_ALL and theirs.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        assert ours.code == ResponseCode.SUCCESS, shown
        return
    if command.code in SENDS and theirs.code in SENDS_TO_A_SLAVE:
        assert (ours.code, ours.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is a slave")
        return
    # Senders of 5.x know the code for a parameter.
    is_new_sender = command.code in SENDS and command.version >= Version.V5_0_0
    code = theirs.code if is_new_sender else test_recorded_consumers.expected_code(command, theirs)
    assert ours.code == code, shown
    if (theirs.remark or "").startswith("java.lang."):
        assert "is missing" in ours.remark, shown
        return
    if command.code in SENDS and theirs.code == ResponseCode.SUCCESS:
        queue_id = command.ext_fields.get("e", command.ext_fields.get("queueId"))
        assert queue_id == "-1" or ours.ext_fields["queueId"] == theirs.ext_fields["queueId"], shown
    ours_fields, their_fields = set(ours.ext_fields), set(theirs.ext_fields)
    assert ours_fields == their_fields - OTHER_FIELDS.keys(), shown
    if theirs.code:
        assert first_line(ours.remark) == first_line(theirs.remark), shown
    body, other = bytes(theirs.body), bytes(ours.whole_body)
    assert bool(other) == bool(body), shown
    if command.code in {RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE} and body:
        assert records_of(body)
        assert {record.topic for record in records_of(other)} == {TOPIC}, shown
    if not body.startswith(b"{"):
        return
    value, mine = parse_json(body), parse_json(other)
    if command.code in OTHER_MEMBERS:
        assert type(mine) is type(value), shown
    else:
        assert shape(mine) == shape(value), shown


def first_line(remark):
    """Without the peer's address, what 5.x says of attributes, and where the documentation is."""
    line = (remark or "").split("\n")[0].split("consumer:")[0].split(" Producer: ")[0]
    return line.replace(", attributes={}", "")


def shape(value, name=""):
    """The types in a JSON value: one of each list and map, all members of objects."""
    if isinstance(value, dict):
        if name in MAPS or any(not isinstance(key, str) for key in value):
            kinds = {shape(dict(key) if isinstance(key, tuple) else key) for key in value}
            return ("map", frozenset(kinds), frozenset(shape(one) for one in value.values()))
        return tuple(sorted((key, shape(one, key)) for key, one in value.items()))
    if isinstance(value, list):
        return ("list", frozenset(shape(one, f"{name}[]") for one in value))
    return type(value).__name__


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3"])
async def test_every_answer_has_the_code_and_shape_of_the_real_brokers(tmp_path, version):
    for number, session in enumerate(one for one in SESSIONS if version in one):
        with resources_closed():
            played = Session(tmp_path / str(number), session)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(played.broker.metadata.run, in_thread=here))
                played.prepare()
                await trio.testing.wait_all_tasks_blocked()
                given = await played.play(nursery)
                nursery.cancel_scope.cancel()
            for command in played.asked:
                if not command.is_oneway and not is_proven_elsewhere(
                    session, command, of_consumers=played.of_consumers
                ):
                    assert_alike(session, command, played.real[command.opaque], given[command.opaque])


async def test_every_recorded_request_is_compared_or_listed(tmp_path):
    """How many requests are compared where; a new recording must change these figures.

    Of the numbers 1 to 117 and 1 to 90, some are not in the recordings: they were taken anew.
    """
    of_brokers = Counter(session.split("/")[0] for session in SESSIONS)
    of_name_servers = Counter(path.parent.name for path in test_recordings.SESSIONS)
    assert of_brokers == {"remoting-4.9.7": 67, "remoting-5.3.3": 49}
    assert of_name_servers == {"4.9.7": 41, "5.3.3": 32}
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
        "compared here": 525,
        "compared in the test of its kind": 368,
        "not offered": 6,
        "one-way": 116,
    }
    # Each row of a table is about a request that was recorded.
    assert codes >= {*NOT_OFFERED, *OFFERED_TO_ALL, *OTHER_MEMBERS}
    fields = {
        name for session in SESSIONS for answer in recorded(session)[1].values() for name in answer.ext_fields
    }
    assert fields >= OTHER_FIELDS.keys()
    assert set(test_recorded_consumers.SESSIONS) <= set(SESSIONS)
