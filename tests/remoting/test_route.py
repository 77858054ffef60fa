"""Routes: what is read of an answer, and where messages go to and come from."""

import json

import pytest

from tests.client.fakes import route_body
from trioha.errors import RemoteProtocolError
from trioha.remoting.route import BROKERS_MAX, MessageQueue, TopicRoute, parse_route

BARE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a",'
    b'"cluster":"C","enableActingMaster":false},{"brokerAddrs":{1:"10.0.0.3:10911"},"brokerName":"b",'
    b'"cluster":"C"}],"filterServerTable":{},"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,'
    b'"topicSysFlag":0,"writeQueueNums":1},{"brokerName":"a","perm":6,"readQueueNums":3,"topicSysFlag":0,'
    b'"writeQueueNums":2}]}'
)


def queues(*pairs):
    return tuple(MessageQueue("T", name, number) for name, number in pairs)


def test_a_route_with_bare_broker_ids_is_read():
    route = parse_route(BARE)
    assert route.master("a") == "10.0.0.1:10911"
    assert route.read_queues("T") == queues(("a", 0), ("a", 1), ("a", 2), ("b", 0))
    assert list(route.addresses()) == ["10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"]
    assert list(route.addresses(masters_only=True)) == ["10.0.0.1:10911"]


def test_messages_are_sent_to_brokers_with_a_master_and_pulled_from_any():
    route = parse_route(BARE)
    assert route.write_queues("T") == queues(("a", 0), ("a", 1))
    assert route.pull_address("a") == "10.0.0.1:10911"
    assert route.pull_address("a", broker_id=1) == "10.0.0.2:10911"
    assert route.pull_address("a", broker_id=7) == "10.0.0.1:10911"
    assert route.pull_address("b") == "10.0.0.3:10911"
    assert route.pull_address("c") is None


def test_a_broker_that_does_not_answer_is_avoided_where_there_is_another():
    route = parse_route(BARE)
    master, slave, alone = route.addresses()
    assert route.pull_address("a", avoided={master}) == slave
    assert route.pull_address("a", broker_id=1, avoided={slave}) == master
    assert route.pull_address("a", avoided={master, slave}) == master
    assert route.pull_address("b", avoided={alone}) == alone


@pytest.mark.parametrize(("perm", "writes", "reads"), [(6, 4, 4), (4, 0, 4), (2, 4, 0), (0, 0, 0)])
def test_permissions_of_a_topic_are_kept(perm, writes, reads):
    route = parse_route(route_body({"a": 4}, perm=perm))
    assert (len(route.write_queues("T")), len(route.read_queues("T"))) == (writes, reads)


def test_an_answer_without_brokers_is_an_empty_route():
    assert parse_route(b"{}") == TopicRoute({}, ())


def broker(**changes):
    return {"brokerAddrs": {"0": "h:1"}, "brokerName": "a", "cluster": "C", **changes}


def queue(**changes):
    return {"brokerName": "a", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4, **changes}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"brokerDatas":5}',
        b'{"brokerDatas":[5]}',
        *(
            json.dumps({"brokerDatas": brokers, "queueDatas": datas}).encode()
            for brokers, datas in (
                ([broker(brokerName=None)], []),
                ([broker(brokerAddrs=[])], []),
                ([broker(brokerAddrs={"x": "h:1"})], []),
                ([broker(brokerAddrs={"0": 1})], []),
                ([broker(brokerAddrs={"-1": "h:1"})], []),
                ([broker(brokerAddrs={str(n): "h:1" for n in range(BROKERS_MAX + 1)})], []),
                ([], [queue(readQueueNums=-1)]),
                ([], [queue(readQueueNums=1 << 20)]),
                ([], [queue(perm="x")]),
                ([], [queue(brokerName=str(n), readQueueNums=60000) for n in range(2)]),
            )
        ),
    ],
)
def test_an_answer_that_is_not_a_route_is_refused(body):
    with pytest.raises(RemoteProtocolError):
        parse_route(body)
