"""Node processes: a slave that is read, and a master that holds messages back until its slave has them."""

import json

import pytest

from tests.node.wire import Wire, bodies_of, pull_from, send_to
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

TOPIC, GROUP = "Orders", "readers"


@pytest.fixture
def start(start_node, tmp_path):
    """Starts nodes on stores that have the topic, by name."""

    def start(name, **settings):
        config = tmp_path / name / "config"
        if not config.exists():
            config.mkdir(parents=True)
            topic = {"topicName": TOPIC, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
            (config / "topics.json").write_text(json.dumps({"topicConfigTable": {TOPIC: topic}}))
        return start_node(name, **settings)

    return start


def send(body):
    return send_to(TOPIC, body)


def pull(offset, *, suspend_ms=0):
    return pull_from(TOPIC, offset, group=GROUP, suspend_ms=suspend_ms)


def test_a_slave_is_read_and_refuses_writes_while_its_master_is_dead(start):
    master = start("master", role="SYNC_MASTER")
    slave = start("slave", slave_of=master, slaveReadEnable="true")
    master.wait(connections=1)
    with Wire(master.listen_address) as wire:
        for body in (b"a", b"b"):
            assert wire.ask(send(body)).code == ResponseCode.SUCCESS
    slave.wait(max_offset=master.max_offset)
    master.kill()
    with Wire(slave.listen_address) as wire:
        answer = wire.ask(pull(0, suspend_ms=10_000))
        assert bodies_of(answer) == [b"a", b"b"]
        # With the first pull after its return consumers are at the master again.
        assert answer.ext_fields["suggestWhichBrokerId"] == "0"
        commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "2"}
        assert wire.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=commit)).code == 0
        asked = wire.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, ext_fields=commit))
        assert asked.ext_fields == {"offset": "2"}
        assert wire.ask(send(b"c")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        back = {"offset": "0", "group": GROUP, "delayLevel": "1"}
        refused = wire.ask(request(RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=back))
        assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "SERVICE_NOT_AVAILABLE")
        made = {
            "topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        refused = wire.ask(request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=made))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark.startswith("Can't modify topic or subscription group from slave broker")


def test_a_master_gives_consumers_what_its_slave_has_also_after_it_was_killed(start):
    guarded = {"trioha.consumeReplicatedOnly": "true", "flushDiskType": "SYNC_FLUSH"}
    master = start("master", role="SYNC_MASTER", **guarded)
    with Wire(master.listen_address) as wire:
        assert wire.ask(send(b"a")).code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert wire.ask(pull(0)).code == ResponseCode.PULL_NOT_FOUND
    master.kill()
    master = start("master", role="SYNC_MASTER", **guarded)
    with Wire(master.listen_address) as wire:
        assert wire.ask(pull(0)).code == ResponseCode.PULL_NOT_FOUND
        waiting = wire.start(pull(0, suspend_ms=60_000))
        slave = start("slave", slave_of=master)
        slave.wait(max_offset=master.max_offset)
        assert bodies_of(wire.answers(waiting)[waiting[0]]) == [b"a"]
    # The checkpoint keeps it: after another kill the message is received without a slave.
    slave.kill()
    master.wait(connections=0)
    with Wire(master.listen_address) as wire:
        assert wire.ask(send(b"b")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    master.stop()
    master = start("master", role="SYNC_MASTER", **guarded)
    with Wire(master.listen_address) as wire:
        assert bodies_of(wire.ask(pull(0))) == [b"a"]
        assert wire.ask(pull(1)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.full
def test_a_slave_that_is_promoted_gives_consumers_all_that_it_has(start):
    guarded = {"trioha.consumeReplicatedOnly": "true"}
    master = start("master", role="SYNC_MASTER", **guarded)
    slave = start("slave", slave_of=master, **guarded)
    master.wait(connections=1)
    with Wire(master.listen_address) as wire:
        assert wire.ask(send(b"a")).code == ResponseCode.SUCCESS
    slave.wait(max_offset=master.max_offset)
    master.kill()
    slave.stop()
    promoted = start("slave", role="SYNC_MASTER", **guarded)
    with Wire(promoted.listen_address) as wire:
        assert bodies_of(wire.ask(pull(0))) == [b"a"]
