"""What clients are told of an address of another kind: the same words for every way to ask."""

import re

import pytest

from tests.remoting.serving import serving
from trioha.client.connections import Connections
from trioha.client.routes import NameServers
from trioha.errors import PeerError
from trioha.remoting.client import open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request, response_to
from trioha.remoting.name_server import fetch_broker_groups
from trioha.remoting.status_reader import fetch_status

NAME_SERVER = "this is a name server (its option is --namesrv): a broker was expected"
BROKER = "this is a broker: a name server was expected"
CONTROLLER = "this is a controller: a broker was expected"
UNKNOWN = "this is neither a broker nor a name server nor a controller"


def knowing(*codes):
    def handle(asked, _peer):
        known = asked.code in codes
        return response_to(asked, ResponseCode.SUCCESS if known else ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

    return handle


async def status(address, _nursery):
    async with open_client(address) as client:
        await fetch_status(client)


async def broker_list(address, _nursery):
    async with open_client(address) as client:
        await fetch_broker_groups(client)


async def send(address, nursery):
    await Connections(nursery).request(address, request(RequestCode.SEND_MESSAGE_V2))


async def route(address, nursery):
    await NameServers(Connections(nursery), [address]).fetch("T")


@pytest.mark.parametrize(
    ("known", "ask", "words"),
    [
        (RequestCode.GET_BROKER_CLUSTER_INFO, status, NAME_SERVER),
        (RequestCode.GET_BROKER_CLUSTER_INFO, send, NAME_SERVER),
        (RequestCode.GET_BROKER_RUNTIME_INFO, broker_list, BROKER),
        (RequestCode.GET_BROKER_RUNTIME_INFO, route, BROKER),
        (RequestCode.CONTROLLER_GET_METADATA_INFO, status, CONTROLLER),
        (RequestCode.SEND_MESSAGE, send, UNKNOWN),
    ],
)
async def test_a_server_of_another_kind_is_named(known, ask, words, nursery):
    async with serving(knowing(known)) as (_, address):
        with pytest.raises(PeerError, match=f"^{re.escape(address)}: {re.escape(words)}$") as caught:
            await ask(address, nursery)
        assert caught.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_server_of_the_right_kind_that_does_not_know_a_request_is_not_misnamed(nursery):
    async with serving(knowing(RequestCode.GET_BROKER_RUNTIME_INFO)) as (_, address):
        answer = await Connections(nursery).request(address, request(RequestCode.SEND_MESSAGE_V2))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
