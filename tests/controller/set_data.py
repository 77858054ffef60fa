"""GET_SYNC_STATE_DATA as controllers read and answer it."""

import json
from collections.abc import Mapping

from trioha.controller.protocol import Replica, ReplicaSetInfo


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
