"""Requests of real consumers get answers of the same code and shape as those of the real broker.

The differences, each on purpose:

- NEWER_SUBSCRIPTION: the real broker refuses a pull whose subscription is newer than the last heartbeat's
  (25); here it is answered, so that a consumer starts without the wait for its next heartbeat.
- RETRY: messages that a consumer sent back (36, which this room of a node does not serve) come to its retry
  topic.
- HEARTBEAT_V2: brokers of 5.x offer the second form of heartbeats in the answer to a heartbeat; here it is
  not offered, and clients use the first.
"""

import json
from collections import Counter

import pytest
import trio

from tests.broker.consuming import PEER, AwaitedAnswer, Broker, Waiting, records_of
from tests.ha.support import settled
from tests.remoting.recorded import VECTORS, commands
from tests.store.support import message
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, response_to
from trioha.remoting.serving import WaitingAnswer
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.tags import java_hash

SESSIONS = [
    "remoting-4.9.7/010-push--master",
    "remoting-4.9.7/013-orderly--master",
    "remoting-4.9.7/022-lite--master",
    "remoting-4.9.7/098-probe--master",
    "remoting-4.9.7/106-ser-rocketmq-push--master",
    "remoting-5.3.3/008-push--master",
    "remoting-5.3.3/012-orderly--master",
    "remoting-5.3.3/018-lite--master",
    "remoting-5.3.3/070-probe--master",
    "remoting-5.3.3/077-ser-rocketmq-push--master",
]
PULLS = {RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE}
NEWER_SUBSCRIPTION, RETRY, HEARTBEAT_V2 = "newer subscription", "retry", "heartbeat v2"


def recorded(session):
    """Requests in order, and the answers by opaque."""
    asked = [command for command in commands(VECTORS / f"{session}.c2s.bin") if not command.is_response]
    said = [command for command in commands(VECTORS / f"{session}.s2c.bin") if command.is_response]
    return asked, {command.opaque: command for command in said}


def max_offset_of(answer):
    """Of an answer to a pull; 0 if it does not say."""
    return 0 if answer is None else int(answer.ext_fields.get("maxOffset", 0))


class Messages:
    """The messages that the real broker had: those that were pulled, and others between them."""

    def __init__(self, broker, asked, answers):
        self._broker = broker
        self._records = {}
        self._stored = Counter()
        for command in asked:
            answer = answers.get(command.opaque)
            if command.code in PULLS and answer is not None and answer.code == ResponseCode.SUCCESS:
                for record in records_of(answer.body):
                    self._records[record.topic, record.queue_id, record.queue_offset] = record

    def store_first(self, command, answer):
        """The same for the first of a queue's pulls."""
        if not self._stored[command.ext_fields["topic"], int(command.ext_fields["queueId"])]:
            self.store_until(command, answer)

    def store_until(self, command, answer):
        """Store what the queue of a pull had when the real broker answered it."""
        topic, queue_id = command.ext_fields["topic"], int(command.ext_fields["queueId"])
        if topic.startswith("%RETRY%"):
            return
        while self._stored[topic, queue_id] < max_offset_of(answer):
            record = self._records.get((topic, queue_id, self._stored[topic, queue_id]))
            self._broker.store.commit_log.append(
                message(
                    b"" if record is None else record.body,
                    topic=topic,
                    queue_id=queue_id,
                    properties=b"KEYS\x01key0\x02" if record is None else record.properties_raw,
                )
            )
            self._stored[topic, queue_id] += 1
        dispatch_to_end(self._broker.store.dispatcher, self._broker.store.commit_log)


def commit_offsets(broker, asked, answers):
    """Commit what groups had consumed before the session: the answer to the first question for each queue."""
    seen = set()
    for command in asked:
        if command.code != RequestCode.QUERY_CONSUMER_OFFSET:
            continue
        fields = command.ext_fields
        key = fields["consumerGroup"], fields["topic"], int(fields["queueId"])
        answer = answers.get(command.opaque)
        if key not in seen and answer is not None and answer.code == ResponseCode.SUCCESS:
            offset = int(answer.ext_fields["offset"])
            if offset:  # 0 is also the answer to a question with setZeroIfNotFound
                broker.metadata.consumer_offsets.commit(*key, offset)
        seen.add(key)


def difference(command, real):
    """Which of the listed differences a request is about; None if the answers must be alike."""
    if real.code == ResponseCode.SUBSCRIPTION_NOT_LATEST:
        return NEWER_SUBSCRIPTION
    if command.code in PULLS and command.ext_fields["topic"].startswith("%RETRY%"):
        return RETRY
    if command.code == RequestCode.HEART_BEAT and real.ext_fields:
        return HEARTBEAT_V2
    return None


@pytest.mark.parametrize("session", SESSIONS)
async def test_answers_have_the_code_and_shape_of_the_real_brokers(
    tmp_path, nursery, autojump_clock, session
):
    asked, real = recorded(session)
    broker = Broker(tmp_path)
    broker.metadata.topics.put(TopicConfig("TopicSpec", 4, 4))
    messages = Messages(broker, asked, real)
    # What was there before the session; all of it for the probes, who ask for it in other ways before.
    for command in sorted(
        (command for command in asked if command.code in PULLS),
        key=lambda command: max_offset_of(real.get(command.opaque)),
        reverse="probe" in session,
    ):
        messages.store_first(command, real.get(command.opaque))
    commit_offsets(broker, asked, real)
    nursery.start_soon(broker.consumers.run)
    await settled()
    waiting = Waiting(nursery)
    mine = {}
    compared = Counter()
    for command in asked:
        handler = broker.consumers.handlers.get(command.code)
        if handler is None:
            continue
        if command.code in PULLS:
            messages.store_until(command, real.get(command.opaque))
            await settled()
        try:
            answer = handler(command, PEER)
        except BadRequestError as error:
            answer = response_to(command, error.code, remark=error.reason)
        if isinstance(answer, WaitingAnswer):
            waiting.add(command.opaque, AwaitedAnswer(answer))
        else:
            mine[command.opaque] = answer
    await trio.sleep(100)
    mine |= {opaque: answer for opaque, (answer, _) in waiting.answers.items()}
    for command in asked:
        if command.opaque not in mine or command.opaque not in real or command.is_oneway:
            continue
        theirs, ours = real[command.opaque], mine[command.opaque]
        compared[command.code] += 1
        found = difference(command, theirs)
        if found is NEWER_SUBSCRIPTION:
            assert ours.code in {0, ResponseCode.PULL_NOT_FOUND}, command
            continue
        if found is RETRY:
            # At an offset that it has not, where the consumer was given one by the real broker.
            moved = command.ext_fields["queueOffset"] != "0"
            assert ours.code == (ResponseCode.PULL_OFFSET_MOVED if moved else ResponseCode.PULL_NOT_FOUND)
            continue
        assert ours.code == expected_code(command, theirs), (command, theirs, ours)
        if found is not HEARTBEAT_V2:
            assert ours.ext_fields.keys() == theirs.ext_fields.keys(), (command, theirs, ours)
        assert ours.serialize_type == command.serialize_type
        if command.code in PULLS:
            assert_same_pull(theirs, ours)
        elif command.code in {RequestCode.GET_CONSUMER_LIST_BY_GROUP, RequestCode.LOCK_BATCH_MQ}:
            assert set_of(ours) == set_of(theirs)
        else:
            assert bool(ours.body) == bool(theirs.body)
        if theirs.code and command.code not in PULLS:
            assert ours.remark == theirs.remark
    assert compared[RequestCode.HEART_BEAT] >= 1
    assert sum(compared[code] for code in PULLS) >= 4


def set_of(answer):
    """The one member of a body, which is a Java set in any order."""
    ((name, items),) = json.loads(bytes(answer.body) or b'{"":[]}').items()
    return name, sorted(map(str, items))


def expected_code(command, theirs):
    """The real broker's, in our range of codes: 5.x has one more for parameters."""
    if theirs.code == ResponseCode.INVALID_PARAMETER:
        return ResponseCode.SYSTEM_ERROR
    return theirs.code


def assert_same_pull(theirs, ours):
    """Equal but for where the messages are in the log, and for where the documentation is."""
    assert ours.ext_fields == theirs.ext_fields
    assert (ours.remark or "").split("\n")[0].split("consumer:")[0] == (theirs.remark or "").split("\n")[
        0
    ].split("consumer:")[0]
    if theirs.code:
        return

    def places(answer):
        return [
            (record.topic, record.queue_id, record.queue_offset, bytes(record.body), record.properties_raw)
            for record in records_of(answer.whole_body)
        ]

    assert places(ours) == places(theirs)


def test_hashes_of_recorded_heartbeats_are_ours():
    """codeSet is Java's hash of the tags in tagsSet."""
    found = 0
    for session in SESSIONS:
        for command in recorded(session)[0]:
            if command.code != RequestCode.HEART_BEAT:
                continue
            for data in json.loads(bytes(command.body)).get("consumerDataSet", ()):
                for subscription in data["subscriptionDataSet"]:
                    codes = sorted(map(java_hash, subscription["tagsSet"]))
                    assert sorted(subscription["codeSet"]) == codes
                    found += len(codes)
    assert found
