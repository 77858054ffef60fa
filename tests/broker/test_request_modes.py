"""Modes and assignments of groups, as a 5.5.0 broker was asked and answered."""

import inspect
import json

import pytest
from attrs import evolve

from tests.broker.consuming import PEER, Broker
from tests.remoting.recorded import VECTORS, commands
from trioha.broker.request_modes import RequestModeProcessor, own_queues
from trioha.broker.retries import Retries
from trioha.errors import PeerError
from trioha.metadata.topics import TopicConfig
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import BadRequestError, request, response_to
from trioha.remoting.route import MessageQueue

STEP = VECTORS / "pop-5.5.0" / "frames" / "49-assignment"
GROUPS_MAX = 50


class Modes:
    """A broker's modes, asked without a server."""

    def __init__(self, broker, **options):
        self.broker = broker
        self.queues = None
        """By topic, what name servers say; None for the broker's own."""
        self.processor = RequestModeProcessor(
            broker.metadata,
            broker.consumers.clients,
            Retries(broker.metadata.topics, broker.metadata.groups),
            route=self._route,
            groups_max=GROUPS_MAX,
            is_slave=options.get("is_slave", False),
        )

    async def _route(self, topic):
        if self.queues is None:
            return own_queues(self.broker.metadata.topics, "broker-r", topic)
        return self.queues[topic]

    async def ask(self, command):
        """The answer. The table is written meanwhile, as its task does."""
        try:
            answer = self.processor.handlers[command.code](command, PEER)
            if inspect.isawaitable(answer):
                table = self.broker.metadata.request_modes
                table.written.advance(table.changes.offset)
                answer = await answer
        except BadRequestError as error:
            answer = response_to(command, error.code, remark=error.reason)
        return answer

    async def set(self, **body):
        given = {"topic": "PR", "consumerGroup": "RH", "mode": "POP", "popShareQueueNum": -1, **body}
        return await self.ask(request(401, body=json.dumps(given).encode()))

    async def assigned(self, client_id, **body):
        """Queues of a client and their modes; None for no answer."""
        given = {
            "topic": "PR", "consumerGroup": "RH", "clientId": client_id, "strategyName": "AVG",
            "messageModel": "CLUSTERING", **body,
        }  # fmt: skip
        answer = await self.ask(request(400, body=json.dumps(given).encode()))
        assert answer.code == 0, answer
        found = json.loads(answer.body)
        if not found:
            return None
        return [
            (each["messageQueue"]["brokerName"], each["messageQueue"]["queueId"], each["mode"])
            for each in found["messageQueueAssignments"]
        ]


@pytest.fixture
async def broker(tmp_path):
    made = Broker(tmp_path)
    made.metadata.topics.put(TopicConfig("PR", 1, 1))
    made.metadata.topics.put(TopicConfig("%RETRY%RH", 1, 1))
    yield made
    made.store.close()


@pytest.fixture
async def modes(broker):
    return Modes(broker)


async def test_the_recorded_requests_are_answered_as_the_broker_did(broker, modes):
    asked = [one for one in commands(STEP.with_name("49-assignment.c2s.bin")) if not one.is_response]
    answers = {
        one.opaque: one for one in commands(STEP.with_name("49-assignment.s2c.bin")) if one.is_response
    }
    compared = 0
    for command in asked:
        if command.code == RequestCode.HEART_BEAT:
            broker.consumers.handlers[command.code](command, PEER)
        if command.code not in modes.processor.handlers:
            continue
        ours, theirs = await modes.ask(command), answers[command.opaque]
        assert (ours.code, ours.remark, bytes(ours.body)) == (theirs.code, theirs.remark, bytes(theirs.body))
        compared += 1
    assert compared == 10


async def join(broker, *clients, group="RH"):
    for number, client_id in enumerate(clients):
        await broker.heartbeat(
            client_id, peer=evolve(PEER, connection=number + 1), group=group, topics=("PR",)
        )


QUEUES = [MessageQueue("PR", name, number) for name in ("a", "b") for number in range(2)]


async def test_members_that_pull_share_the_queues_of_all_brokers(broker, modes):
    await join(broker, "c1", "c2", "c3")
    modes.queues = {"PR": QUEUES}
    assert await modes.assigned("c1") == [("a", 0, "PULL"), ("a", 1, "PULL")]
    assert await modes.assigned("c3") == [("b", 1, "PULL")]
    assert await modes.assigned("c3", strategyName="AVG_BY_CIRCLE") == [("b", 0, "PULL")]
    assert await modes.assigned("c1", messageModel="BROADCASTING") == [
        (queue.broker_name, queue.queue_id, "PULL") for queue in QUEUES
    ]


@pytest.mark.parametrize("sharers", [-1, 0, 2, 3])
async def test_members_that_pop_without_shares_have_each_broker_as_one_queue(broker, modes, sharers):
    await join(broker, "c1", "c2", "c3")
    modes.queues = {"PR": QUEUES}
    await modes.set(popShareQueueNum=sharers)
    assert await modes.assigned("c2") == [("a", -1, "POP"), ("b", -1, "POP")]


async def test_members_that_share_pop_their_own_queues_and_those_of_the_next(broker, modes):
    await join(broker, "c1", "c2", "c3")
    modes.queues = {"PR": QUEUES}
    await modes.set(popShareQueueNum=1)
    assert await modes.assigned("c2") == [("b", 0, "POP"), ("b", 1, "POP")]
    assert await modes.assigned("c3") == [("b", 1, "POP"), ("a", 0, "POP"), ("a", 1, "POP")]


async def test_without_a_route_or_a_member_nothing_is_assigned(broker, modes):
    assert await modes.assigned("c1") is None
    await join(broker, "c1")
    assert await modes.assigned("stranger") == []

    async def lost(_topic):
        raise PeerError("no name server answers", address="names")

    modes.processor._route = lost
    assert await modes.assigned("c1") is None


async def test_a_slave_sets_no_mode(broker):
    answer = await Modes(broker, is_slave=True).set()
    assert answer.code == 1
    assert "slave broker" in answer.remark


async def test_there_are_no_more_modes_than_groups(broker, modes):
    for number in range(GROUPS_MAX):
        assert (await modes.set(consumerGroup=f"g{number}")).code == 0
    assert (await modes.set(consumerGroup="g0", mode="PULL")).code == 0
    refused = await modes.set(consumerGroup="one-more")
    assert refused.code == 1
    assert "as many as there may be consumer groups" in refused.remark


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": None},
        {"topic": 5},
        {"consumerGroup": []},
        {"consumerGroup": "x" * 300},
        {"consumerGroup": "a/b"},
        {"mode": "PUSH"},
        {"popShareQueueNum": "x"},
        {"popShareQueueNum": 2**40},
    ],
)
async def test_a_mode_of_another_shape_is_refused(broker, modes, changes):
    assert (await modes.set(**changes)).code in {1, 26}
    assert broker.metadata.request_modes.modes == {}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a":' * 5000, b"{" + b" " * 20_000 + b"}"])
@pytest.mark.parametrize("code", [400, 401])
async def test_a_body_of_another_shape_is_refused(modes, code, body):
    assert (await modes.ask(request(code, body=body))).code == 1
