"""Every request that a name server answers, and every field that it may have: one row each.

`test_name_server.py` finds a missing one.
"""

from __future__ import annotations

import json
import random
from typing import Final

from tests.hostile.requests import Field, Request, Type, damaged
from trioha.metadata.registration import encode_registration
from trioha.remoting.codes import RequestCode

_CLUSTER: Final = Field("clusterName", Type.TEXT, ("HostileCluster", "DefaultCluster"))
_BROKER: Final = Field("brokerName", Type.TEXT, ("hostile-a", "hostile-b"))
_ADDRESS: Final = Field("brokerAddr", Type.TEXT, ("192.0.2.1:10911", "192.0.2.2:10911"))
_BROKER_ID: Final = Field("brokerId", Type.COUNT, ("0", "1"))
_IDENTITY: Final = (_BROKER, _ADDRESS, _CLUSTER, _BROKER_ID)
_TOPIC: Final = Field("topic", Type.TEXT, ("HostileTopic", "HostileTopic-2", "NoSuchTopic"))
_NAMESPACE: Final = Field("namespace", Type.TEXT, ("ORDER_TOPIC_CONFIG", "N"))
_KEY: Final = Field("key", Type.TEXT, ("HostileTopic", "k"))


def _data_version(chance: random.Random) -> dict[str, object]:
    return {"timestamp": 1, "counter": chance.randrange(3), "stateVersion": chance.choice((0, 0, 5))}


def _registration(chance: random.Random) -> bytes:
    topic = {
        "readQueueNums": chance.choice((4, 0, 2**31 - 1)),
        "writeQueueNums": 4,
        "perm": chance.choice((6, 0, 255)),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": chance.choice((0, 1, 2, 3)),
        "order": False,
    }
    names = [f"HostileTopic-{number}" for number in range(chance.choice((0, 1, 2, 2, 800)))]
    body = encode_registration(dict.fromkeys(names, topic), data_version=_data_version(chance))
    return damaged(body, chance)


def _version(chance: random.Random) -> bytes:
    return damaged(json.dumps(_data_version(chance)).encode(), chance)


def _queues(chance: random.Random) -> bytes:
    queues = [
        {"brokerName": "hostile-a", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "topicSysFlag": 0}
        for _ in range(chance.choice((0, 1, 3)))
    ]
    return damaged(json.dumps({"queueDatas": queues}).encode(), chance)


def _settings(chance: random.Random) -> bytes:
    lines = (
        "orderMessageEnable=true\n",
        "supportActingMaster=maybe\n",
        "listenPort=1\n",
        "kvConfigPath=/etc/passwd\n",
        "configStorePath=/tmp/x\n",
        "unknown=\\u00\n",
        "=\n",
        "x" * 60_000,
    )
    return damaged("".join(chance.sample(lines, chance.choice((1, 1, 2)))).encode(), chance)


NAME_SERVER_REQUESTS: Final = (
    Request(
        RequestCode.REGISTER_BROKER,
        (
            *_IDENTITY,
            Field("haServerAddr", Type.TEXT, ("192.0.2.1:10912",), required=False),
            Field("compressed", Type.BOOLEAN, ("false", "true"), required=False),
            Field("bodyCrc32", Type.COUNT, ("0", "1"), required=False),
            Field("enableActingMaster", Type.BOOLEAN, ("true", "false"), required=False),
            Field("heartbeatTimeoutMillis", Type.COUNT, ("120000", "1"), required=False),
            Field("__ZONE_NAME", Type.TEXT, ("z",), required=False),
        ),
        _registration,
    ),
    Request(RequestCode.UNREGISTER_BROKER, _IDENTITY),
    Request(
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        (
            _TOPIC,
            Field("acceptStandardJsonOnly", Type.BOOLEAN, ("true", "false"), required=False),
            Field("__ZONE_MODE", Type.BOOLEAN, ("true",), required=False),
            Field("__ZONE_NAME", Type.TEXT, ("z",), required=False),
        ),
    ),
    Request(RequestCode.GET_BROKER_CLUSTER_INFO),
    Request(RequestCode.QUERY_DATA_VERSION, _IDENTITY, _version),
    Request(
        RequestCode.BROKER_HEARTBEAT,
        (
            _CLUSTER,
            _ADDRESS,
            _BROKER,
            Field("brokerId", Type.TEXT, ("0",), required=False),
            Field("heartbeatTimeoutMills", Type.COUNT, ("10000", "0"), required=False),
        ),
    ),
    Request(RequestCode.GET_BROKER_MEMBER_GROUP, (_CLUSTER, _BROKER)),
    Request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
    Request(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        (Field("cluster", Type.TEXT, ("HostileCluster", "DefaultCluster")),),
    ),
    Request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS),
    Request(RequestCode.GET_UNIT_TOPIC_LIST),
    Request(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST),
    Request(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    Request(
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        (_TOPIC, Field("clusterName", Type.TEXT, ("HostileCluster",), required=False)),
    ),
    Request(RequestCode.REGISTER_TOPIC_IN_NAMESRV, (_TOPIC,), _queues),
    Request(RequestCode.WIPE_WRITE_PERM_OF_BROKER, (_BROKER,)),
    Request(RequestCode.ADD_WRITE_PERM_OF_BROKER, (_BROKER,)),
    Request(RequestCode.PUT_KV_CONFIG, (_NAMESPACE, _KEY, Field("value", Type.TEXT, ("hostile-a:4", "v")))),
    Request(RequestCode.GET_KV_CONFIG, (_NAMESPACE, _KEY)),
    Request(RequestCode.DELETE_KV_CONFIG, (_NAMESPACE, _KEY)),
    Request(RequestCode.GET_KVLIST_BY_NAMESPACE, (_NAMESPACE,)),
    Request(RequestCode.UPDATE_NAMESRV_CONFIG, body=_settings),
    Request(RequestCode.GET_NAMESRV_CONFIG),
)
"""What `trioha.namesrv.processor` answers otherwise than with "not supported"."""
