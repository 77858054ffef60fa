"""Hostile requests to a live `trioha namesrv`: each is answered, and honest peers go on undisturbed."""

import random
import socket
from contextlib import suppress
from typing import Final

import pytest

from tests.hostile.frame import Manner
from tests.hostile.name_server_requests import NAME_SERVER_REQUESTS
from tests.hostile.requesting import draw_request, good_call
from tests.hostile.wire import BINARY, JSON
from tests.interop.name_server import trioha_name_server
from tests.node.client import Connection
from trioha.metadata.registration import encode_registration
from trioha.remoting.codec import encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.full, pytest.mark.process]

SEED: Final = 13
FRAMES_PER_ROW: Final = 200
BATCH: Final = 40
STRANGE_FRAMES: Final = 1000
TIMEOUT_S: Final = 30.0


class Peer(Connection):
    """A blocking connection to the name server."""

    def __init__(self, address):
        super().__init__(address, timeout_s=TIMEOUT_S)

    def ask(self, frames, number):
        """Send bytes; the next `number` answers."""
        self._socket.sendall(frames)
        answers = [self.next_command() for _ in range(number)]
        assert None not in answers, f"closed before {number} answers"
        return answers

    def pass_by(self, data):
        """Send bytes, and wait for the server to close."""
        with suppress(ConnectionError):
            self._socket.sendall(data)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1 << 16):
                pass


class HonestBroker:
    """A broker whose registration and route must stay as they are."""

    def __init__(self, connection):
        self._connection = connection
        topic = {"readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        body = encode_registration({"Honest": topic, "Honest-2": topic}, data_version={"counter": 1})
        who = {"brokerName": "honest", "brokerAddr": "h:1", "clusterName": "Honest", "brokerId": "0"}
        assert self._ask(request(RequestCode.REGISTER_BROKER, ext_fields=who, body=body)).code == 0
        self._route = self.route()
        assert b"honest" in self._route

    def _ask(self, asked):
        (answer,) = self._connection.ask(encode(asked), 1)
        return answer

    def route(self):
        answer = self._ask(request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": "Honest"}))
        assert answer.code == ResponseCode.SUCCESS
        return bytes(answer.body)

    def check(self):
        assert self.route() == self._route


@pytest.fixture
def names(tmp_path):
    with trioha_name_server(tmp_path) as address:
        yield address
    assert "a fault of this program" not in (tmp_path / "namesrv.log").read_text()


def hostile_call(chance, row, opaque, serialization):
    """A request with some of its fields wrong or missing, or with a damaged body."""
    call = good_call(chance, opaque, row=row)
    call.opaque, call.serialization = opaque, serialization
    values = dict(call.ext)
    for each in chance.sample(row.fields, chance.randint(0, len(row.fields))):
        if chance.random() < 0.1:
            values.pop(each.name, None)
        else:
            # A header is at most a megabyte: longer values are the broker's part.
            values[each.name] = each.hostile(chance)[:20_000]
    call.ext = list(values.items())
    return call


def test_every_request_that_a_name_server_answers_has_its_row(names):
    served = set()
    with Peer(names) as connection:
        for code in sorted({*range(1000), *map(int, RequestCode)}):
            (answer,) = connection.ask(encode(request(code)), 1)
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                served.add(code)
    assert served == {row.code for row in NAME_SERVER_REQUESTS}


@pytest.mark.parametrize("serialization", [JSON, BINARY], ids=["json", "binary"])
def test_hostile_values_are_answered_and_change_nothing_of_others(names, serialization):
    chance = random.Random(f"{SEED}-{serialization}")
    calls = [
        hostile_call(chance, row, 1000 + number * len(NAME_SERVER_REQUESTS) + place, serialization)
        for number in range(FRAMES_PER_ROW)
        for place, row in enumerate(NAME_SERVER_REQUESTS)
    ]
    codes = {row.code: set() for row in NAME_SERVER_REQUESTS}
    with Peer(names) as honest, Peer(names) as hostile:
        broker = HonestBroker(honest)
        for start in range(0, len(calls), BATCH):
            batch = {call.opaque: call for call in calls[start : start + BATCH]}
            frames = b"".join(call.encode() for call in batch.values())
            for answer in hostile.ask(frames, len(batch)):
                codes[batch.pop(answer.opaque).code].add(answer.code)
            assert batch == {}
            broker.check()
        broker.check()
    # Every request was understood at least once, and every one with a required field refused.
    assert {code for code, seen in codes.items() if not seen & {0, 17, 22}} == set()
    refusing = {row.code for row in NAME_SERVER_REQUESTS if any(each.required for each in row.fields)}
    assert {code for code in refusing if codes[code] == {0}} == set()


def test_frames_that_no_peer_should_send_end_their_own_connection_at_most(names):
    """Those of a broker's strangers: broken headers, lengths, JSON, noise."""
    with Peer(names) as honest:
        broker = HonestBroker(honest)
        for index in range(STRANGE_FRAMES):
            _, draft = draw_request(random.Random(f"{SEED}-{index}"), index)
            if draft.manner in {Manner.IDLE, Manner.DEAF, Manner.DRIBBLE}:
                continue
            with Peer(names) as stranger:
                stranger.pass_by(draft.data)
            if index % 50 == 0:
                broker.check()
        broker.check()
