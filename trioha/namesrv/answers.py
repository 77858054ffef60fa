"""Bodies of a name server's answers, for clients of RocketMQ 4 and 5.

See docs/protocol/remoting.md#json-of-fastjson, docs/protocol/remoting.md#route.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from attrs import evolve

from trioha.namesrv.registry import MASTER_ID, BrokerGroup, QueueData, Route
from trioha.remoting.codes import Version
from trioha.remoting.fastjson import format_json


def in_zone(route: Route, zone_name: str) -> Route:
    """The part of a route that a client of that zone uses: groups of its zone, and those without a master."""
    groups = tuple(
        group
        for group in route.groups
        if MASTER_ID not in group.addresses or group.zone_name.lower() == zone_name.lower()
    )
    names = {group.broker_name for group in groups}
    addresses = {address for group in groups for address in group.addresses.values()}
    return evolve(
        route,
        groups=groups,
        queues={name: data for name, data in route.queues.items() if name in names},
        filter_servers={
            address: servers for address, servers in route.filter_servers.items() if address in addresses
        },
    )


def route_body(route: Route, *, version: int, is_strict: bool, order_conf: str | None) -> bytes:
    """TopicRouteData; `is_strict`: with quotes around the broker ids."""
    body: dict[str, object] = {
        "brokerDatas": [_group(group, version=version) for group in route.groups],
        "filterServerTable": {address: list(servers) for address, servers in route.filter_servers.items()},
    }
    if order_conf is not None:
        body["orderTopicConf"] = order_conf
    body["queueDatas"] = [
        {
            "brokerName": name,
            "perm": data.perm,
            "readQueueNums": data.read_queues,
            "topicSysFlag": data.sys_flag,
            "writeQueueNums": data.write_queues,
        }
        for name, data in route.queues.items()
    ]
    if route.mappings and version >= Version.V5_0_0:
        body["topicQueueMappingByBroker"] = route.mappings
    return _encoded(format_json(body, bare_keys=not is_strict))


def cluster_body(
    groups: Iterable[BrokerGroup], clusters: Mapping[str, Iterable[str]], *, version: int
) -> bytes:
    """ClusterInfo."""
    body = {
        "brokerAddrTable": {group.broker_name: _group(group, version=version) for group in groups},
        "clusterAddrTable": {cluster: list(names) for cluster, names in clusters.items()},
    }
    return _encoded(format_json(body, bare_keys=True))


def member_group_body(cluster_name: str, broker_name: str, addresses: Mapping[int, str]) -> bytes:
    """BrokerMemberGroup, in the object that the answer has it in."""
    group = {"brokerAddrs": addresses, "brokerName": broker_name, "cluster": cluster_name}
    return _encoded(format_json({"brokerMemberGroup": group}, bare_keys=True))


def topic_list_body(topics: Iterable[str], *, broker_address: str | None = None) -> bytes:
    """TopicList."""
    address = {} if broker_address is None else {"brokerAddr": broker_address}
    body = {**address, "topicList": list(topics)}
    return _encoded(json.dumps(body, separators=(",", ":"), ensure_ascii=False))


def kv_table_body(table: Mapping[str, str]) -> bytes:
    """KVTable."""
    return _encoded(json.dumps({"table": dict(table)}, separators=(",", ":"), ensure_ascii=False))


def parse_queue_datas(value: object) -> dict[str, QueueData]:
    """The queues of a TopicRouteData by broker name; what is not one is left out."""
    found = {}
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, dict) or not isinstance(name := item.get("brokerName"), str):
            continue
        numbers = [item.get(key, 0) for key in ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")]
        if all(type(number) is int and 0 <= number < 1 << 31 for number in numbers):
            found[name] = QueueData(*numbers)
    return found


def _group(group: BrokerGroup, *, version: int) -> dict[str, object]:
    data: dict[str, object] = {
        "brokerAddrs": group.addresses,
        "brokerName": group.broker_name,
        "cluster": group.cluster_name,
    }
    if version >= Version.V5_0_0:
        data["enableActingMaster"] = group.acting_master
        if group.zone_name:
            data["zoneName"] = group.zone_name
    return data


def _encoded(text: str) -> bytes:
    # A text from JSON may have half of a pair that UTF-16 writes a character with.
    return text.encode("utf-8", "replace")
