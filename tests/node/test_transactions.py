"""Transactions on a node process that is killed between half messages and decisions."""

import json
import random
from collections import Counter
from functools import partial
from itertools import count

import pytest

from tests.node.wire import Wire, bodies_of, pull_from, send_to
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import request
from trioha.remoting.end_transaction import Decision
from trioha.remoting.send_message import SendMessageResponseHeader
from trioha.remoting.signature import Credentials, signed
from trioha.store.message_properties import encode_properties

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPIC, GROUP = "Orders", "producers"
marks = count()
FAST_CHECKS = {"transactionTimeOut": 50, "transactionCheckInterval": 100, "transactionCheckMax": 1000}
NO_CHECKS = {"transactionTimeOut": 50, "transactionCheckInterval": 3_600_000}


@pytest.fixture
def start(start_node):
    return partial(start_node, role="ASYNC_MASTER", flushConsumerOffsetInterval=100)


def half_message(body):
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": body.decode()}
    return send_to(TOPIC, body, group=GROUP, sys_flag=4, properties=encode_properties(properties).decode())


def end_of(queue_offset, physical_offset, decision):
    return request(
        RequestCode.END_TRANSACTION,
        ext_fields={
            "producerGroup": GROUP,
            "tranStateTableOffset": str(queue_offset),
            "commitLogOffset": str(physical_offset),
            "commitOrRollback": str(int(decision)),
            "fromTransactionCheck": "false",
            "msgId": "x",
        },
    )


def place_of(answer):
    """Queue offset and physical offset of a half message."""
    assert answer.code == ResponseCode.SUCCESS, answer
    header = SendMessageResponseHeader.of(answer)
    return header.queue_offset, int(header.msg_id[16:], 16)


def heart_beat():
    body = {"clientID": "c", "producerDataSet": [{"groupName": GROUP}], "consumerDataSet": []}
    return request(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


def delivered(node, account=None):
    """Bodies that consumers get: all before a message that is sent now."""
    found = []
    mark = b"mark-%d" % next(marks)
    with Wire(node.listen_address) as wire:

        def ask(command):
            answer = wire.ask(command if account is None else signed(command, account))
            assert answer.code == ResponseCode.SUCCESS, answer
            return answer

        ask(send_to(TOPIC, mark))
        while mark not in found:
            found += bodies_of(ask(pull_from(TOPIC, len(found), suspend_ms=20_000)))
    return Counter(body for body in found if not body.startswith(b"mark-"))


def decide_by_checks(node, decisions, undecided):
    """Answer checks until all of `undecided` are decided; gives the bodies that checks have named."""
    checked = set()
    with Wire(node.listen_address) as producer, Wire(node.listen_address) as wire:
        producer.ask(heart_beat())
        while not checked >= undecided:
            check = producer.next_command()
            assert check is not None, node.log()
            assert check.code == RequestCode.CHECK_TRANSACTION_STATE
            body = check.ext_fields["transactionId"].encode()
            fields = check.ext_fields
            answer = wire.ask(
                end_of(fields["tranStateTableOffset"], fields["commitLogOffset"], decisions[body])
            )
            if answer.code == ResponseCode.SUCCESS:
                checked.add(body)
            else:
                # The next round had begun: this is the same transaction, decided a moment before.
                assert (answer.remark, body in checked) == ("the transaction is not open any more", True)
    return checked


@pytest.mark.parametrize("op_interval_ms", [0, pytest.param(3000, marks=pytest.mark.full)])
def test_transactions_go_on_after_a_kill_between_half_message_and_decision(start, op_interval_ms):
    """As often as the node is killed, no half message that was acknowledged stays without a decision.

    A decision that was answered holds, where each has its op record at once (transactionOpBatchInterval=0);
    one that was gathered or not answered may be asked for again.
    """
    settings = {**NO_CHECKS, "transactionOpBatchInterval": op_interval_ms}
    choice = random.Random(op_interval_ms)
    decisions, places = {}, {}
    ended, unsure = set(), set()
    node = start(**settings)
    for life in range(3):
        bodies = [b"%d-%d" % (life, number) for number in range(24)]
        with Wire(node.listen_address) as wire:
            opaques = wire.start(*map(half_message, bodies))
            answers = wire.answers(opaques)
            for opaque, body in zip(opaques, bodies, strict=True):
                places[body] = place_of(answers[opaque])
                decisions[body] = choice.choice((Decision.COMMIT, Decision.ROLLBACK))
            # Some of this life, and some that were open already.
            tried = choice.sample(sorted(set(places) - ended - unsure), 16)
            opaques = wire.start(*(end_of(*places[body], decisions[body]) for body in tried))
            answers = wire.answers(opaques[:8])
            node.kill()
            answers |= wire.answers(opaques)
        for opaque, body in zip(opaques, tried, strict=True):
            if opaque in answers and op_interval_ms == 0:
                assert answers[opaque].code == ResponseCode.SUCCESS
                ended.add(body)
            else:
                unsure.add(body)
        node = start(**settings)
    node.kill()
    node = start(**{**settings, **FAST_CHECKS})
    checked = decide_by_checks(node, decisions, decisions.keys() - ended - unsure)
    assert not checked & ended
    # What is unsure was decided before a kill, or by a check: a last decision tells that none is open.
    with Wire(node.listen_address) as wire:
        for body, decision in decisions.items():
            if body not in checked:
                wire.ask(end_of(*places[body], decision))
            answer = wire.ask(end_of(*places[body], decision))
            assert answer.remark == "the transaction is not open any more", body
    found = delivered(node)
    assert {body for body in decisions if decisions[body] is Decision.COMMIT} == set(found)
    assert all(number == 1 for body, number in found.items() if body not in unsure), found
    node.stop()
    node = start(**settings)
    with Wire(node.listen_address) as wire:
        for body, place in places.items():
            answer = wire.ask(end_of(*place, decisions[body]))
            assert answer.remark == "the transaction is not open any more", body
    assert delivered(node) == found


ACCOUNTS = """\
accounts:
- {accessKey: account-1, secretKey: secret-1, topicPerms: [Orders=PUB|SUB], groupPerms: [readers=SUB]}
"""


@pytest.mark.full
def test_decisions_need_a_signature_where_access_is_controlled(start, tmp_path):
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(ACCOUNTS)
    node = start(**NO_CHECKS, aclEnable="true", **{"trioha.aclFile": rules})
    account = Credentials("account-1", "secret-1")
    with Wire(node.listen_address) as wire:
        assert wire.ask(half_message(b"hello")).remark.endswith("No accessKey is configured")
        place = place_of(wire.ask(signed(half_message(b"hello"), account)))
        for decision in (Decision.ROLLBACK, Decision.COMMIT):
            refused = wire.ask(end_of(*place, decision))
            assert refused.remark.endswith("No accessKey is configured")
        stranger = Credentials("account-2", "secret-1")
        assert "No acl config for account-2" in wire.ask(signed(end_of(*place, decision), stranger)).remark
        assert wire.ask(signed(end_of(*place, Decision.COMMIT), account)).code == ResponseCode.SUCCESS
    assert delivered(node, account) == Counter([b"hello"])
    assert "Traceback" not in node.log()


@pytest.mark.full
def test_clients_do_not_move_the_position_of_open_transactions(start):
    node = start(**NO_CHECKS)
    group, topic, later = "CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", "1"
    queue = {"consumerGroup": group, "topic": topic, "queueId": "0"}
    pull = {**pull_from(topic, 0, group=group).ext_fields, "sysFlag": "7", "commitOffset": later}
    reset = {"group": group, "topic": topic, "timestamp": "-1", "isForce": "true"}
    with Wire(node.listen_address) as wire:
        place = place_of(wire.ask(half_message(b"hello")))
        for code, fields in (
            (RequestCode.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": later}),
            (RequestCode.PULL_MESSAGE, pull),
            (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset),
        ):
            refused = wire.ask(request(code, ext_fields=fields))
            assert (refused.code, refused.remark) == (
                ResponseCode.NO_PERMISSION,
                "the offsets of CID_RMQ_SYS_TRANS are the broker's own",
            )
    node.kill()
    node = start(**NO_CHECKS)
    with Wire(node.listen_address) as wire:
        assert wire.ask(end_of(*place, Decision.COMMIT)).code == ResponseCode.SUCCESS
    assert delivered(node) == Counter([b"hello"])
