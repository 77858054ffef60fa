"""Bodies that only controllers read and write: of GET_SYNC_STATE_DATA, and of the answer to ELECT_MASTER."""

import json
from collections.abc import Iterable, Mapping

from trioha.controller.bodies import Replica, ReplicaSetInfo
from trioha.remoting.fastjson import format_json


def parse_broker_names(body: bytes | memoryview) -> list[str]:
    """The names that the body of a request asks for."""
    names = json.loads(bytes(body))
    assert all(isinstance(name, str) for name in names)
    return list(names)


def set_data_body(groups: Mapping[str, ReplicaSetInfo]) -> bytes:
    """The body of an answer, byte by byte as RocketMQ's controllers write it."""
    table = {}
    for name, group in groups.items():
        fields = {
            "inSyncReplicas": [_replica(replica) for replica in group.in_sync],
            "masterAddress": group.master_address,
            "masterBrokerId": group.master_id,
            "masterEpoch": group.master_epoch,
            "notInSyncReplicas": [_replica(replica) for replica in group.not_in_sync],
            "syncStateSetEpoch": group.set_epoch,
        }
        table[name] = {key: value for key, value in fields.items() if value is not None}
    return json.dumps({"replicasInfoTable": table}, separators=(",", ":")).encode()


def _replica(replica: Replica) -> dict[str, object]:
    return {
        "alive": replica.is_alive,
        "brokerAddress": replica.address,
        "brokerId": replica.broker_id,
        "brokerName": replica.broker_name,
    }


def elected_body(
    cluster_name: str, broker_name: str, addresses: Mapping[int, str], members: Iterable[int]
) -> bytes:
    """The body of an answer to ELECT_MASTER; `addresses` of all brokers of the group, by broker id."""
    group = {
        "brokerAddrs": dict(sorted(addresses.items())),
        "brokerName": broker_name,
        "cluster": cluster_name,
    }
    value = {"brokerMemberGroup": group, "syncStateSet": sorted(members)}
    return format_json(value, bare_keys=True).encode()
