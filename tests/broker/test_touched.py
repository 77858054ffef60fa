"""The table of what each request touches: whole, and as real brokers have it but for listed differences."""

import json

import pytest

from tests.hostile.requests import SERVED
from trioha.broker.touched import TABLE, Around, needs_admin, touches_of
from trioha.remoting.codes import RequestCode
from trioha.remoting.command import BadRequestError, request

AROUND = Around("C", {7: "There", 8: "%RETRY%g"}.get)
CONTROLLED = {
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.EXCHANGE_BROKER_HA_INFO,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
}
"""Served in controller mode only."""
FIELDS = {
    "topic": "T",
    "b": "T",
    "group": "G",
    "groupName": "G",
    "consumerGroup": "G",
    "a": "G",
    "offset": "7",
    "commitLogOffset": "7",
    "topicList": "U;V",
}


def heartbeat(group, *topics):
    subscriptions = [{"topic": topic, "subString": "*", "subVersion": 1} for topic in topics]
    consumers = [{"groupName": group, "subscriptionDataSet": subscriptions}]
    return json.dumps({"clientID": "c1", "producerDataSet": [], "consumerDataSet": consumers}).encode()


def locks(group, topic):
    queues = [{"topic": topic, "brokerName": "b", "queueId": queue} for queue in (0, 1)]
    return json.dumps({"consumerGroup": group, "clientId": "c", "mqSet": queues}).encode()


BODIES = {
    RequestCode.HEART_BEAT: heartbeat("G", "T", "%RETRY%G"),
    RequestCode.LOCK_BATCH_MQ: locks("G", "T"),
    RequestCode.UNLOCK_BATCH_MQ: locks("G", "T"),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: b'{"groupName":"G"}',
    RequestCode.BATCH_ACK_MESSAGE: json.dumps(
        {
            "brokerName": "b",
            "acks": [{"c": "G", "t": "T", "r": "1", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 2, "b": "AQ=="}],
        }
    ).encode(),
}


def touched(code, **fields):
    asked = request(code, ext_fields={**FIELDS, **fields}, body=BODIES.get(code, b""))
    return [
        f"{'|'.join(sorted(action.wire_name for action in touch.actions))} {touch.resource}"
        for touch in touches_of(asked, AROUND)
    ]


def test_every_request_that_is_served_has_a_row():
    """A new request code needs a row in `trioha.broker.touched.TABLE`, and a decision in `TOUCHES` and
    `PERMISSIONS` below."""
    missing = sorted((SERVED | CONTROLLED) - TABLE.keys())
    assert missing == [], "requests without a row in trioha.broker.touched.TABLE"
    assert sorted(TABLE.keys() - SERVED - CONTROLLED) == [], "rows of requests that nobody serves"


def each(codes, touches):
    return {code: list(touches) for code in codes}


CLUSTER_GET, CLUSTER_UPDATE = ["Get Cluster:C"], ["Update Cluster:C"]
TOUCHES = {
    **each((10, 310, 320, 370), ["Pub Topic:T"]),
    **each((11, 361, *range(200050, 200056), 200151), ["Sub Topic:T", "Sub Group:G"]),
    12: ["Get|Sub Topic:T"],
    14: ["Get|Sub Topic:T", "Get|Sub Group:G"],
    15: ["Sub|Update Topic:T", "Sub|Update Group:G"],
    17: ["Create Topic:T"],
    **each((25, 401), CLUSTER_UPDATE),
    33: ["Get|Sub Topic:There"],
    34: ["Sub Group:G", "Sub Topic:T", "Sub Group:G"],
    35: ["Sub Group:G"],
    36: ["Sub Topic:There", "Sub Group:G"],
    37: ["Pub Topic:There"],
    38: ["Get|Sub Group:G"],
    **each((41, 42), ["Sub Group:G", "Sub Topic:T"]),
    200: ["Create Group:G"],
    207: ["Delete Group:G"],
    208: ["Get Group:G", "Get Topic:T", "Get Topic:U", "Get Topic:V"],
    215: ["Delete Topic:T"],
    222: ["Update Group:G", "Update Topic:T"],
    **each((29, 30, 31, 32, 202, 300, 351), ["Get Topic:T"]),
    **each((203, 352), ["Get Group:G"]),
    **each((204, 315, 317, 3004, 3005, 3009, 3010), CLUSTER_GET),
    **each((906, 3001, 3002, 3003, 3006, 3007, 3008), CLUSTER_UPDATE),
    **each((21, 26, 28, 43, 45, 46, 60, 61, 201, 305, 400, 402, 907, 1007, 1008), []),
}
"""What a real 5.5.0 broker asks for, one action of several. On purpose otherwise: 25, 200 and 401 (it asks
for nothing), 33, 36 and 37 (for the topic that the request names, if it names one), 361 (not served)."""


@pytest.mark.parametrize("code", sorted(TABLE))
def test_each_request_touches_what_is_listed(code):
    assert touched(code) == TOUCHES[code]


PERMISSIONS = {
    **dict.fromkeys((10, 310, 320, 370), "PUB Topic:T"),
    **dict.fromkeys((11, 15, 361, *range(200050, 200056), 200151), "SUB Topic:T, SUB Group:G"),
    12: "SUB Topic:T",
    33: "SUB Topic:There",
    36: "SUB Topic:There, SUB Group:G",
    37: "PUB Topic:There",
    222: "SUB Group:G, SUB Topic:T",
    **dict.fromkeys((35, 38, 41, 42), "SUB Group:G"),
    34: "SUB Group:G, SUB Topic:T, SUB Group:G",
    **dict.fromkeys((17, 25, 200, 207, 215, 401, *range(3001, 3011)), "admin"),
    **dict.fromkeys(
        (
            14, 21, 26, 28, 29, 30, 31, 32, 43, 45, 46, 60, 61, 201, 202, 203, 204, 208, 300, 305, 315, 317,
            351, 352, 400, 402, 906, 907, 1007, 1008,
        ),
        "a signature",
    ),
}  # fmt: skip
"""What a real 4.9.7 broker asks for, but for 320 and 361, which are as sends and pulls, and for 33, 36, 37,
41, 42 and 222, which it gives to any account: a message named by its offset needs its own topic."""


@pytest.mark.parametrize("code", sorted(TABLE))
def test_each_request_needs_the_listed_permissions_of_a_plain_acl(code):
    asked = request(code, ext_fields=FIELDS, body=BODIES.get(code, b""))
    needs = [
        f"{touch.permission.name} {touch.resource}"
        for touch in touches_of(asked, AROUND)
        if touch.permission is not None
    ]
    found = "admin" if needs_admin(code) else ", ".join(needs) or "a signature"
    assert found == PERMISSIONS[code]


def test_a_message_of_a_retry_topic_of_pops_is_one_of_its_topic():
    for topic in ("%RETRY%G_T", "%RETRY%G+T"):
        assert touched(200051, topic=topic) == ["Sub Topic:T", "Sub Group:G"]
    # Of another group: that must be allowed, too.
    assert touched(200051, topic="%RETRY%H_T") == ["Sub Group:H_T", "Sub Group:G"]


def test_a_retry_topic_is_its_group():
    assert touched(310, b="%RETRY%g") == ["Sub Group:g"]
    assert touched(11, topic="%RETRY%g") == ["Sub Group:g", "Sub Group:G"]
    assert touched(33, offset="8") == ["Get|Sub Group:g"]


def test_what_a_request_lacks_touches_nothing():
    for code in sorted(TABLE.keys() - BODIES.keys()):
        found = list(touches_of(request(code), AROUND))
        assert [touch for touch in found if touch.resource.kind.wire_name != "Cluster"] == []
    assert touched(33, offset="9") == []


@pytest.mark.parametrize("code", sorted(BODIES))
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff" * 100, b"[" * 10_000])
def test_a_body_that_cannot_be_read_refuses_the_request(code, body):
    if (code, body) == (RequestCode.BATCH_ACK_MESSAGE, b""):
        assert list(touches_of(request(code), AROUND)) == [], "it acknowledges nothing"
        return
    with pytest.raises(BadRequestError):
        list(touches_of(request(code, body=body), AROUND))
