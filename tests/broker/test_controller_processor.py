"""Answers of a broker in controller mode, as real brokers give them."""

from __future__ import annotations

from typing import cast

import pytest
from attrs import define, field

from tests.controller.test_protocol import recorded
from trioha.broker.controller_processor import ControllerProcessor
from trioha.controller.agent import ControllerAgent
from trioha.controller.role import Role
from trioha.errors import RemoteProtocolError
from trioha.remoting.address import Address
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, RemotingCommand, request
from trioha.remoting.serving import Peer
from trioha.store.epochs import EpochEntry, EpochTable

PEER = Peer(Address("192.0.2.1", 1), 1)


@define
class Agent:
    """In place of the agent."""

    broker_id: int | None = 1
    role: Role | None = None
    notices: list[object] = field(factory=list)

    def role_changed(self, ext_fields, body):
        if not body:
            raise RemoteProtocolError("masterEpoch: 'x' is not a whole number")
        self.notices.append((ext_fields, body))


def processor(agent, *epochs):
    return ControllerProcessor(
        cast("ControllerAgent", agent),
        cluster_name="check",
        broker_name="broker-x",
        epochs=lambda: EpochTable(epochs),
        max_offset=lambda: 49_380,
        ha_address="192.0.2.9:10912",
    )


def ask(asked, command):
    answer = asked.handlers[command.code](command, PEER)
    assert isinstance(answer, RemotingCommand)
    return answer


def role(*, is_master):
    return Role(
        is_master=is_master,
        epoch=1,
        broker_id=2,
        master_id=2 if is_master else 1,
        master_address="192.0.2.9:10911",
        sync_state_set=frozenset((1, 2)),
        sync_state_set_epoch=2,
    )


@pytest.mark.parametrize(
    ("agent", "broker_id"),
    [
        (Agent(None, None), -1),
        (Agent(2, None), 2),
        (Agent(2, role(is_master=False)), 2),
        (Agent(2, role(is_master=True)), 0),
    ],
)
def test_epochs_are_answered_as_real_brokers_answer_them(agent, broker_id):
    code = RequestCode.GET_BROKER_EPOCH_CACHE
    answer = ask(processor(agent, EpochEntry(1, 0)), request(code))
    real = {
        bytes(each.body)
        for recorded_code, is_answer, each in recorded()
        if is_answer and recorded_code == code
    }
    ours = bytes(answer.body)
    assert (ours in real) is (broker_id in {0, 2})
    assert ours.startswith(b'{"brokerId":%d,' % broker_id)


def test_each_epoch_ends_where_the_next_one_begins():
    answer = ask(
        processor(Agent(), EpochEntry(1, 0), EpochEntry(4, 300)), request(RequestCode.GET_BROKER_EPOCH_CACHE)
    )
    assert (
        b'"epochList":[{"endOffset":300,"epoch":1,"startOffset":0},'
        b'{"endOffset":9223372036854775807,"epoch":4,"startOffset":300}]'
    ) in bytes(answer.body)


def test_notices_reach_the_agent():
    agent = Agent()
    (notice,) = (each for code, _, each in recorded() if code == RequestCode.NOTIFY_BROKER_ROLE_CHANGED)
    assert ask(processor(agent), notice).code == ResponseCode.SUCCESS
    assert agent.notices == [(notice.ext_fields, notice.body)]


def test_notice_that_does_not_read_is_refused():
    with pytest.raises(BadRequestError, match="masterEpoch"):
        ask(processor(Agent()), request(RequestCode.NOTIFY_BROKER_ROLE_CHANGED))


def test_a_master_says_its_ha_address_and_others_do_not():
    code = RequestCode.EXCHANGE_BROKER_HA_INFO
    answer = ask(processor(Agent(2, role(is_master=True))), request(code))
    assert answer.ext_fields == {
        "masterHaAddress": "192.0.2.9:10912",
        "masterFlushOffset": "0",
        "masterAddress": "192.0.2.9:10911",
    }
    for agent in (Agent(2, role(is_master=False)), Agent(None, None)):
        assert ask(processor(agent), request(code)).ext_fields == {}
    pushed = request(code, ext_fields={"masterHaAddress": "192.0.2.66:1"})
    assert ask(processor(Agent(2, role(is_master=True))), pushed).ext_fields == {}
