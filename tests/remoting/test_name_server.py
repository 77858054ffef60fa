"""Answers of name servers, in fastjson's dialect."""

import pytest

from tests.remoting.serving import client_of
from trioha.errors import PeerError, RemoteProtocolError
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import response_to
from trioha.remoting.name_server import BROKERS_MAX, BrokerGroup, fetch_broker_groups, parse_broker_groups

BODY = (
    b'{"brokerAddrTable":{"broker-b":{"brokerAddrs":{0:"10.0.0.3:10911"},"brokerName":"broker-b",'
    b'"cluster":"C","enableActingMaster":false},"broker-a":{"brokerAddrs":{1:"10.0.0.2:10911",'
    b'0:"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C"}},'
    b'"clusterAddrTable":{"C":["broker-a","broker-b"]}}'
)
GROUPS = (
    BrokerGroup("C", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}),
    BrokerGroup("C", "broker-b", {0: "10.0.0.3:10911"}),
)


def test_groups_are_read_with_bare_broker_ids_as_keys():
    assert parse_broker_groups(BODY) == GROUPS
    assert list(parse_broker_groups(BODY)[0].addresses) == [0, 1]


@pytest.mark.parametrize("body", [b"{}", b'{"brokerAddrTable":{}}', b'{"brokerAddrTable":null}'])
def test_a_name_server_without_brokers_lists_none(body):
    assert parse_broker_groups(body) == ()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"brokerAddrTable":5}',
        b'{"brokerAddrTable":{"b":5}}',
        b'{"brokerAddrTable":{"b":{"brokerAddrs":[]}}}',
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{"x":"h:1"}}}}',
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{"0":1}}}}',
    ],
)
def test_an_invalid_cluster_info_is_refused(body):
    with pytest.raises(RemoteProtocolError):
        parse_broker_groups(body)


def test_the_number_of_addresses_is_limited():
    many = ",".join(f'{number}:"h:{number}"' for number in range(BROKERS_MAX + 50))
    (group,) = parse_broker_groups(f'{{"brokerAddrTable":{{"b":{{"brokerAddrs":{{{many}}}}}}}}}'.encode())
    assert len(group.addresses) == BROKERS_MAX


async def test_groups_are_fetched_over_a_connection_and_a_refusal_has_its_code():
    codes = iter((ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR))

    async def handler(asked, peer):
        assert asked.code == RequestCode.GET_BROKER_CLUSTER_INFO
        return response_to(asked, next(codes), body=BODY)

    async with client_of(handler) as client:
        assert await fetch_broker_groups(client) == GROUPS
        with pytest.raises(PeerError, match="SYSTEM_ERROR") as caught:
            await fetch_broker_groups(client)
    assert caught.value.code == 1
