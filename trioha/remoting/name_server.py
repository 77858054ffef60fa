"""The brokers that a name server knows, requested as by any client (docs/protocol/remoting.md#name-server).

GET_BROKER_CLUSTER_INFO (106) lists every broker of every cluster with the addresses of master and slaves, in
fastjson's dialect: broker ids are bare map keys. A broker that died stays in the list until its connection to
the name server is closed or it was silent for two minutes.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from trioha.errors import PeerError, RemoteProtocolError
from trioha.numbers import NATURAL64, parse_int
from trioha.remoting.client import RemotingClient
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import request
from trioha.remoting.fastjson import as_text, parse_json, shown
from trioha.remoting.wrong_port import check_kind

BROKERS_MAX = 1024
"""Addresses that are read from one answer."""


@frozen
class BrokerGroup:
    """The brokers of one name: a master and its slaves."""

    cluster_name: str
    broker_name: str
    addresses: Mapping[int, str]
    """`host:port` by broker id; 0 is the master."""


async def fetch_broker_groups(client: RemotingClient, *, timeout_s: float = 3.0) -> tuple[BrokerGroup, ...]:
    """Every broker that the name server knows, by cluster, broker name and id.

    Raises PeerError if it cannot be reached, does not answer in time or refuses (`code` is its response
    code), RemoteProtocolError if its answer makes no sense.
    """
    answer = await client.request(request(RequestCode.GET_BROKER_CLUSTER_INFO), timeout_s=timeout_s)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        await check_kind(client, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise PeerError(
            f"GET_BROKER_CLUSTER_INFO was answered with {response_code_name(answer.code)} ({answer.code})",
            address=client.address,
            code=answer.code,
        )
    return parse_broker_groups(answer.body)


def parse_broker_groups(body: bytes | memoryview) -> tuple[BrokerGroup, ...]:
    """The groups of an answer to GET_BROKER_CLUSTER_INFO, by cluster and broker name.

    Raises RemoteProtocolError for any other body.
    """
    whole = parse_json(body)
    table = whole.get("brokerAddrTable") if isinstance(whole, dict) else None
    if table is None and isinstance(whole, dict):
        table = {}
    if not isinstance(table, dict):
        raise RemoteProtocolError("cluster info: no brokerAddrTable in it")
    groups = []
    left = BROKERS_MAX
    for name, group in table.items():
        if not isinstance(group, dict) or not isinstance(addresses := group.get("brokerAddrs"), dict):
            raise RemoteProtocolError(f"cluster info: no brokerAddrs of broker {shown(name)}")
        by_id: dict[int, str] = {}
        for number, address in addresses.items():
            try:
                broker_id = parse_int(number, NATURAL64)
            except ValueError as error:
                raise RemoteProtocolError(f"cluster info: no broker id: {error}") from None
            if not isinstance(address, str):
                raise RemoteProtocolError(
                    f"cluster info: no address of broker id {broker_id}: {shown(address)}"
                )
            if left > 0:
                left -= 1
                by_id[broker_id] = address
        cluster = group.get("cluster")
        groups.append(
            BrokerGroup(
                "" if cluster is None else as_text(cluster), as_text(name), dict(sorted(by_id.items()))
            )
        )
    return tuple(sorted(groups, key=lambda group: (group.cluster_name, group.broker_name)))
