"""Transactions on a master in virtual time: sends, decisions, checks, op records, positions, restarts."""

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.broker.transacting import GROUP, PEER, START_MS, TOPIC, Master
from tests.remoting.test_server import read_command, served_stream
from trioha.broker.half_messages import TRANSACTION_GROUP, HalfMessage
from trioha.broker.late_decisions import DECISION_WAIT_S
from trioha.broker.transaction_processor import TransactionProcessor
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import BadRequestError, request
from trioha.remoting.send_message import SendMessageResponseHeader
from trioha.remoting.server import RemotingServer
from trioha.store.message_properties import parse_properties
from trioha.store.messages import AppendResult
from trioha.store.put_status import PutStatus
from trioha.store.record import Record, decode_record
from trioha.store.topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, TIMER_TOPIC

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


@pytest.fixture
def start(tmp_path, monkeypatch, nursery):
    """Starts a master on the test's folder, as often as it has ended."""

    async def start_master(*, runs=True, **settings):
        master = Master(tmp_path, monkeypatch, **settings)
        if runs:
            master.life = await nursery.start(life, master)
        else:
            master.hold_dispatch()
        return master

    async def life(master, *, task_status):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as inner:
                await inner.start(master.run)
                task_status.started(scope)

    return start_master


async def restarted(start, master, *, clean=True, **settings):
    """The next life of a master, after a clean stop or a kill."""
    master.life.cancel()
    await trio.testing.wait_all_tasks_blocked()
    if clean:
        await master.end_life()
    else:
        master.metadata.close()
        master.store.release()
    return await start(**settings)


def checks(master):
    """Of each CHECK_TRANSACTION_STATE: connection, and time in seconds."""
    return [(connection, time_s) for connection, _, time_s in master.pushed]


# -- sends and decisions -------------------------------------------------------------------------------------


async def test_a_half_message_is_not_delivered_and_its_answer_names_queue_and_transaction(
    start, autojump_clock
):
    master = await start()
    answer = await master.send(b"hello", key="KEY")
    header = SendMessageResponseHeader.of(answer)
    assert (header.queue_id, header.queue_offset, header.transaction_id) == (2, 0, "KEY")
    (record,) = master.records(HALF_TOPIC)
    assert (record.message_id, record.sys_flag, record.body) == (header.msg_id, 0, b"hello")
    assert master.delivered == []


async def test_a_committed_message_is_delivered_as_it_was_sent(start, autojump_clock):
    master = await start()
    sent = await master.send(b"hello", key="KEY")
    assert (await master.end(sent, COMMIT)).code == ResponseCode.SUCCESS
    (half,) = master.records(HALF_TOPIC)
    (record,) = master.records(TOPIC, 2)
    assert (record.body, record.flag, record.sys_flag) == (b"hello", 5, 8)
    assert record.prepared_transaction_offset == half.physical_offset
    assert (record.born_timestamp_ms, record.born_host) == (half.born_timestamp_ms, half.born_host)
    assert parse_properties(record.properties_raw) == {
        "TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": "KEY", "TAGS": "tag", "CLUSTER": "cluster",
        "__transactionId__": "KEY", "REAL_TOPIC": TOPIC, "REAL_QID": "2",
    }  # fmt: skip
    (op,) = master.records(OP_TOPIC)
    assert (op.body, parse_properties(op.properties_raw)) == (b"0", {"WAIT": "true", "TAGS": "d"})


async def test_the_statistics_count_a_committed_message_for_its_topic_and_a_half_message_for_the_half_topic(
    start, autojump_clock
):
    master = await start()
    puts = master.stored
    committed, rolled_back = await master.send(b"a"), await master.send(b"b")
    assert puts == {HALF_TOPIC: 2}
    await master.end(committed, COMMIT)
    await master.end(rolled_back, ROLLBACK)
    assert puts == {HALF_TOPIC: 2, TOPIC: 1, OP_TOPIC: 2}


async def test_a_rolled_back_message_is_not_delivered_and_an_unknown_one_stays_open(start, autojump_clock):
    master = await start()
    rolled_back, unknown = await master.send(b"a"), await master.send(b"b")
    assert (await master.end(rolled_back, ROLLBACK)).code == ResponseCode.SUCCESS
    assert (await master.end(unknown, UNKNOWN)).code == ResponseCode.SUCCESS
    assert (master.delivered, master.ops, master.open_transactions) == ([], [b"0"], 1)


async def test_a_second_decision_is_refused_and_delivers_nothing(start, autojump_clock):
    master = await start()
    sent = await master.send()
    await master.end(sent, COMMIT)
    for decision in (COMMIT, ROLLBACK):
        answer = await master.end(sent, decision)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the transaction is not open any more",
        )
    assert (master.delivered, master.ops) == ([b"hello"], [b"0"])


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"group": "others"}, "The producer group wrong"),
        ({"tranStateTableOffset": 1}, "The transaction state table offset wrong"),
        ({"tranStateTableOffset": 2**62}, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": 2**62}, "Find prepared transaction message failed"),
        (
            {"commitOrRollback": 4},
            "request header field commitOrRollback is 4: neither 8 (commit), 12 (rollback) nor 0 (unknown)",
        ),
    ],
)
async def test_a_decision_that_does_not_fit_its_half_message_is_refused(
    start, autojump_clock, changes, remark
):
    master = await start()
    sent = await master.send()
    answer = await master.end(sent, **changes)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert (master.delivered, master.ops) == ([], [])


async def test_a_decision_on_a_message_that_is_not_a_half_message_is_refused(start, autojump_clock):
    master = await start()
    sent = await master.send()
    await master.end(sent)
    (delivered,) = master.records(TOPIC, 2)
    answer = await master.end(sent, commitLogOffset=delivered.physical_offset)
    assert answer.remark == "Find prepared transaction message failed"


async def test_a_slave_refuses_decisions():
    names = ("producerGroup", "tranStateTableOffset", "commitLogOffset", "commitOrRollback")
    for fields, code in (
        (dict.fromkeys(names, "8"), ResponseCode.SLAVE_NOT_AVAILABLE),
        (dict.fromkeys(names, "x"), ResponseCode.SYSTEM_ERROR),
    ):
        command = request(RequestCode.END_TRANSACTION, ext_fields=fields)
        with pytest.raises(BadRequestError) as refused:
            TransactionProcessor(None).answer(command, PEER)
        assert refused.value.code == code


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"DELAY": "3"}, ResponseCode.SUCCESS),
        ({"DELAY": "99", "TIMER_DELAY_SEC": "2"}, ResponseCode.SUCCESS),
        ({"DELAY": "soon"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_SEC": "never"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"DELAY": "0", "TIMER_DELIVER_MS": "2"}, ResponseCode.SUCCESS),
    ],
)
async def test_a_transaction_has_no_delay_level_and_no_time_that_cannot_be(
    start, autojump_clock, properties, code
):
    """RocketMQ's brokers put a half message with a level into the schedule topic, and lose it later."""
    master = await start()
    sent = await master.send(b"hello", **properties)
    assert sent.code == code
    if code == ResponseCode.SUCCESS:
        assert (await master.end(sent)).code == ResponseCode.SUCCESS
        (record,) = master.records(TOPIC, 2)
        assert "DELAY" not in parse_properties(record.properties_raw)
    assert len(master.halves) == (code == ResponseCode.SUCCESS)


async def test_the_time_of_delivery_of_a_transaction_counts_from_its_commit(start, autojump_clock):
    master = await start()
    sent = await master.send(b"hello", TIMER_DELAY_SEC="10")
    await trio.sleep(60)
    assert not master.records(TIMER_TOPIC, 0)
    assert (await master.end(sent)).code == ResponseCode.SUCCESS
    (record,) = master.records(TIMER_TOPIC, 0)
    properties = parse_properties(record.properties_raw)
    assert int(properties["TIMER_OUT_MS"]) == START_MS + 69_000
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == (TOPIC, "2")
    assert not master.records(TOPIC, 2)


async def test_half_messages_are_refused_by_rejectTransactionMessage(start, autojump_clock):  # noqa: N802
    master = await start(is_rejecting=True)
    answer = await master.send()
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending transaction message is forbidden",
    )


async def test_half_messages_are_refused_while_too_many_are_open(start, autojump_clock):
    master = await start(open_max=2)
    sent = [await master.send(), await master.send()]
    answer = await master.send()
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "2 transactions are open, trioha.openTransactionsMax",
    )
    await master.end(sent[0])
    assert (await master.send()).code == ResponseCode.SUCCESS


async def test_a_decision_waits_until_its_half_message_is_dispatched(start, autojump_clock, nursery):
    master = await start(runs=False)
    nursery.start_soon(master.service.run)
    await trio.testing.wait_all_tasks_blocked()
    sent = await master.send()
    nursery.start_soon(master.end, sent)
    await trio.testing.wait_all_tasks_blocked()
    assert master.open_transactions == 0
    master.dispatch()
    await trio.testing.wait_all_tasks_blocked()
    assert (master.delivered, master.open_transactions) == ([b"hello"], 0)
    nursery.cancel_scope.cancel()


async def test_a_decision_that_waits_for_dispatch_is_refused_in_the_end(start, autojump_clock, nursery):
    master = await start(runs=False)
    nursery.start_soon(master.service.run)
    sent = await master.send()
    began_s = trio.current_time()
    answer = await master.end(sent)
    assert (answer.code, trio.current_time() - began_s) == (ResponseCode.SYSTEM_BUSY, DECISION_WAIT_S)
    nursery.cancel_scope.cancel()


@pytest.fixture
async def waiting(start, nursery):
    """A master that does not dispatch by itself, the answer to its half message, a server of decisions."""
    master = await start(runs=False)
    nursery.start_soon(master.service.run)
    await trio.testing.wait_all_tasks_blocked()
    sent = await master.send()
    server = RemotingServer(master.processor.answer)
    yield master, sent, server
    nursery.cancel_scope.cancel()


async def send_and_end(server, *commands):
    """Send requests, and end the connection before they are answered."""
    async with served_stream(server) as stream:
        await stream.send_all(b"".join(encode(command, opaque=at) for at, command in enumerate(commands)))
        await stream.aclose()
        while server.statistics.requests < len(commands) or server.statistics.connections_open:
            await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(
    ("decision", "delivered", "oneway"), [(COMMIT, [b"hello"], True), (ROLLBACK, [], False)]
)
async def test_a_decision_whose_connection_ends_is_carried_out(
    waiting, autojump_clock, oneway, decision, delivered
):
    """A producer that commits its last message and ends may be the only one of its group."""
    master, sent, server = waiting
    end_offset = master.log.max_offset
    await send_and_end(server, master.decision(sent, decision, oneway=oneway))
    assert (master.open_transactions, master.log.max_offset) == (0, end_offset)
    master.dispatch()
    await trio.testing.wait_all_tasks_blocked()
    assert (master.delivered, master.ops, master.open_transactions) == (delivered, [b"0"], 0)


async def test_a_decision_whose_connection_ends_is_refused_whole_if_its_half_message_is_not_dispatched(
    waiting, autojump_clock
):
    master, sent, server = waiting
    await send_and_end(server, master.decision(sent, oneway=True))
    await trio.sleep(DECISION_WAIT_S)
    master.dispatch()
    await trio.testing.wait_all_tasks_blocked()
    assert (master.delivered, master.ops, master.open_transactions) == ([], [], 1)
    # It may be decided as if there had been none.
    assert (await master.end(sent)).code == ResponseCode.SUCCESS
    assert (master.delivered, master.ops) == ([b"hello"], [b"0"])


async def test_of_several_decisions_on_a_half_message_that_is_not_dispatched_the_first_one_counts(
    waiting, autojump_clock
):
    """So what waits for connections that have ended is bounded by the open transactions."""
    master, sent, server = waiting
    await send_and_end(server, master.decision(sent, ROLLBACK, oneway=True))
    answer = await master.end(sent, COMMIT)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_BUSY,
        "another decision waits for the same half message",
    )
    master.dispatch()
    await trio.testing.wait_all_tasks_blocked()
    assert (master.delivered, master.ops) == ([], [b"0"])
    assert (await master.end(sent, COMMIT)).remark == "the transaction is not open any more"


@pytest.mark.parametrize("ends", [True, False])
async def test_a_bug_in_a_decision_that_waited_is_logged_and_ends_neither_service_nor_connection(
    waiting, autojump_clock, monkeypatch, ends
):
    master, sent, server = waiting
    other = await master.send(b"other")

    def planted(_transaction):
        raise ZeroDivisionError("planted")

    async def dispatch_with_bug():
        with monkeypatch.context() as patch, capture_logs() as logs:
            patch.setattr(master.service, "commit", planted)
            master.dispatch()
            await trio.testing.wait_all_tasks_blocked()
        # The connection logs it, too.
        assert [entry["log_level"] for entry in logs] == ["error"] * (1 if ends else 2)

    if ends:
        await send_and_end(server, master.decision(sent, oneway=True))
        await dispatch_with_bug()
    else:
        async with served_stream(server) as stream:
            await stream.send_all(encode(master.decision(sent), opaque=1))
            await trio.testing.wait_all_tasks_blocked()
            await dispatch_with_bug()
            answer = await read_command(stream, FrameDecoder())
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: planted")
    assert (await master.end(other)).code == ResponseCode.SUCCESS
    assert (await master.end(sent)).code == ResponseCode.SUCCESS
    assert master.delivered == [b"other", b"hello"]


async def test_a_commit_that_cannot_be_stored_leaves_the_transaction_open(start, autojump_clock, monkeypatch):
    master = await start()
    sent = await master.send()
    with monkeypatch.context() as patch:
        full = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE, reason="the disk is full")
        patch.setattr(master.log, "append", lambda _message: full)
        answer = await master.end(sent)
    assert (answer.code, answer.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "the disk is full")
    assert (await master.end(sent)).code == ResponseCode.SUCCESS
    assert master.delivered == [b"hello"]


# -- checks --------------------------------------------------------------------------------------------------


async def test_an_open_transaction_is_checked_in_the_first_round_after_its_timeout(start, autojump_clock):
    master = await start()
    master.connect(7)
    await master.send(b"hello", key="KEY")
    await trio.sleep(25)
    await master.send(b"young")
    await trio.sleep(10)
    ((connection, check, time_s),) = master.pushed
    assert (connection, time_s) == (7, 30.0)
    assert (check.code, check.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
    first, _, copy = master.records(HALF_TOPIC)
    assert check.ext_fields == {
        "topic": TOPIC,
        "bname": "broker-a",
        "tranStateTableOffset": "2",
        "commitLogOffset": str(copy.physical_offset),
        "offsetMsgId": copy.message_id,
        "msgId": "KEY",
        "transactionId": "KEY",
    }
    shown = decode_record(check.body)
    assert isinstance(shown, Record)
    assert (shown.topic, shown.queue_id, shown.queue_offset, shown.body) == (TOPIC, 2, 2, b"hello")
    assert (copy.body, copy.born_timestamp_ms, copy.born_host, copy.flag) == (
        first.body,
        first.born_timestamp_ms,
        first.born_host,
        first.flag,
    )
    properties = parse_properties(first.properties_raw)
    assert parse_properties(copy.properties_raw) == {**properties, "TRANSACTION_CHECK_TIMES": "1"}
    await trio.sleep(30)
    assert checks(master) == [(7, 30.0), (7, 60.0), (7, 60.0)]


async def test_a_producer_decides_by_the_check(start, autojump_clock):
    master = await start()
    master.connect()
    sent = [await master.send(b"commit"), await master.send(b"roll back")]
    await trio.sleep(31)
    assert len(sent) == len(master.pushed)
    for (_, check, _), decision in zip(master.pushed, (COMMIT, ROLLBACK), strict=True):
        answer = await master.end(check, decision, fromTransactionCheck="true")
        assert answer.code == ResponseCode.SUCCESS
    assert (master.delivered, master.ops) == ([b"commit"], [b"2", b"3"])
    await trio.sleep(100)
    assert len(master.pushed) == 2


@pytest.mark.parametrize("dispatches", [True, False])
async def test_a_decision_that_crosses_a_check_counts_once(start, autojump_clock, dispatches):
    master = await start()
    master.connect()
    sent = await master.send()
    if not dispatches:
        master.may_dispatch = trio.Event()
        master.hold_dispatch()
    await trio.sleep(31)
    ((_, check, _),) = master.pushed
    assert (await master.end(sent, COMMIT)).code == ResponseCode.SUCCESS
    master.may_dispatch.set()
    await trio.testing.wait_all_tasks_blocked()
    assert (await master.end(check, COMMIT)).remark == "the transaction is not open any more"
    await trio.sleep(100)
    assert (master.delivered, master.ops, len(master.pushed)) == ([b"hello"], [b"1"], 1)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_decision_that_takes_longer_than_several_checks_counts(start, autojump_clock, restarts):
    """A producer may decide on any copy: asked each second, one that needs 5 s would never decide."""
    master = await start(check_interval_s=1.0, timeout_ms=1000, check_max=100)
    master.connect()
    for _ in range(5):
        await master.send()
    await trio.sleep(9)
    first_checks = [check for _, check, _ in master.pushed[:15]]
    assert len(master.pushed) >= 40
    if restarts:
        master = await restarted(start, master, clean=False)
    for check in first_checks[5:10]:
        assert (await master.end(check, COMMIT)).code == ResponseCode.SUCCESS
    for check in first_checks:
        assert (await master.end(check, COMMIT)).remark == "the transaction is not open any more"
    assert (len(master.delivered), master.open_transactions) == (5, 0)


async def test_a_transaction_that_nobody_decides_is_given_up_after_the_last_check(start, autojump_clock):
    master = await start(check_max=3)
    master.connect()
    await master.send(b"hello", key="KEY")
    await trio.sleep(125)
    assert checks(master) == [(1, 30.0), (1, 60.0), (1, 90.0)]
    assert (master.given_up, master.delivered, master.ops) == ([b"hello"], [], [b"3"])
    topic = master.metadata.topics.find(GIVEN_UP_TOPIC)
    assert (topic.read_queue_nums, topic.write_queue_nums) == (1, 1)
    assert [half.get("TRANSACTION_CHECK_TIMES") for half in master.halves] == [None, "1", "2", "3"]
    assert master.open_transactions == 0


async def test_a_round_without_a_producer_counts_as_a_check(start, autojump_clock):
    master = await start(check_max=2)
    await master.send()
    await trio.sleep(95)
    assert (checks(master), master.given_up) == ([], [b"hello"])


async def test_producers_of_the_group_are_asked_in_turn_and_others_never(start, autojump_clock):
    master = await start(check_max=10)
    for connection in (1, 2):
        master.connect(connection)
    master.connect(3, group="others")
    for _ in range(4):
        await master.send()
    await trio.sleep(31)
    assert [connection for connection, _ in checks(master)] == [1, 2, 1, 2]


async def test_the_next_producer_is_asked_where_a_connection_has_ended(start, autojump_clock):
    master = await start(check_max=10)
    for connection in (1, 2):
        master.connect(connection)
    master.is_reachable = False
    await master.send()
    await trio.sleep(31)
    assert [connection for connection, _ in checks(master)] == [1, 2]


async def test_an_immunity_delays_the_first_check(start, autojump_clock):
    master = await start()
    master.connect()
    await master.send(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    await trio.sleep(155)
    assert checks(master) == [(1, 120.0), (1, 150.0)]


async def test_a_half_message_that_waits_far_before_the_topics_end_is_moved_there(
    start, autojump_clock, monkeypatch
):
    monkeypatch.setattr("trioha.broker.transaction_checks.MOVED_BEYOND", 3)
    master = await start()
    master.connect()
    immune = await master.send(b"immune", CHECK_IMMUNITY_TIME_IN_SECONDS="1000")
    for _ in range(5):
        await master.end(await master.send(b"x"), ROLLBACK)
    await master.send(b"checked")
    await trio.sleep(31)
    *_, checked, moved = master.halves
    assert (checked["TRANSACTION_CHECK_TIMES"], moved["TRAN_PREPARED_QUEUE_OFFSET"]) == ("1", "0")
    assert "TRANSACTION_CHECK_TIMES" not in moved
    await trio.sleep(5)
    assert master.position == (7, 5)
    # Its producer knows the first copy only.
    assert (await master.end(immune)).code == ResponseCode.SUCCESS
    assert (master.delivered, master.ops[-1]) == ([b"immune"], b"8")


async def test_a_half_message_older_than_the_log_is_kept_is_given_up(start, autojump_clock):
    master = await start(reserved_ms=100_000, check_max=1000)
    master.connect()
    await master.send(CHECK_IMMUNITY_TIME_IN_SECONDS="100000")
    await trio.sleep(121)
    # Its immunity ends with the time for which the log is kept; one check was possible.
    assert len(checks(master)) <= 1
    await trio.sleep(30)
    assert master.given_up == [b"hello"]


async def test_a_copy_that_can_never_be_stored_is_given_up(start, autojump_clock):
    master = await start()
    master.connect()
    big = "x" * (32767 - 200)
    sent = await master.send(A=big)
    room = 32767 - len(master.records(HALF_TOPIC)[0].properties_raw)
    await master.end(sent, ROLLBACK)
    assert (await master.send(A=big + "x" * room)).code == ResponseCode.SUCCESS
    await trio.sleep(31)
    assert (checks(master), master.given_up) == ([], [b"hello"])


async def test_checks_that_cannot_be_stored_are_tried_again_in_the_next_round(
    start, autojump_clock, monkeypatch
):
    master = await start()
    master.connect()
    await master.send()
    with monkeypatch.context() as patch:
        patch.setattr(master.log, "append", lambda _: AppendResult(PutStatus.SERVICE_NOT_AVAILABLE))
        await trio.sleep(35)
    assert checks(master) == []
    await trio.sleep(30)
    assert checks(master) == [(1, 60.0)]


class Steps(trio.abc.Instrument):
    """Counts steps of tasks."""

    def __init__(self):
        self.count = 0

    def before_task_step(self, _task):
        self.count += 1


async def test_an_idle_service_does_not_run(start, autojump_clock):
    master = await start()
    await master.end(await master.send())
    await trio.sleep(60)
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    await trio.sleep(24 * 3600)
    trio.lowlevel.remove_instrument(steps)
    assert steps.count <= 3


# -- op records ----------------------------------------------------------------------------------------------


async def test_op_records_are_gathered_as_in_5x(start, autojump_clock):
    master = await start(op_interval_s=3.0)
    for number in range(4):
        sent = await master.send(b"%d" % number)
        await master.end(sent, COMMIT if number % 2 else ROLLBACK)
    assert master.ops == []
    await trio.sleep(3)
    await trio.testing.wait_all_tasks_blocked()
    assert (master.ops, master.delivered) == ([b"0,1,2,3,"], [b"1", b"3"])


async def test_gathered_op_records_are_written_when_their_body_is_full_and_at_the_end(start, autojump_clock):
    master = await start(op_interval_s=3.0, op_bytes_max=4)
    for _ in range(3):
        await master.end(await master.send(), ROLLBACK)
    assert master.ops == [b"0,1,"]
    master.life.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert master.ops == [b"0,1,", b"2,"]


@pytest.mark.parametrize("op_interval_s", [0.0, 3.0])
async def test_op_records_that_cannot_be_stored_are_written_later(
    start, autojump_clock, monkeypatch, op_interval_s
):
    master = await start(op_interval_s=op_interval_s)
    sent = [await master.send() for _ in range(3)]
    append = master.log.append
    with monkeypatch.context() as patch:
        patch.setattr(
            master.log,
            "append",
            lambda message: (
                AppendResult(PutStatus.SERVICE_NOT_AVAILABLE)
                if message.topic == OP_TOPIC
                else append(message)
            ),
        )
        for each in sent:
            assert (await master.end(each)).code == ResponseCode.SUCCESS
        await trio.sleep(10)
        assert (master.ops, master.position[0]) == ([], 0)
    await trio.sleep(10)
    assert b",".join(master.ops).replace(b",,", b",").strip(b",") == b"0,1,2"
    assert (master.position[0], len(master.delivered)) == (3, 3)


# -- positions and restarts ----------------------------------------------------------------------------------


async def test_the_position_is_kept_when_the_log_up_to_it_is_on_disk(start, autojump_clock):
    master = await start()
    master.flushes = False
    await master.end(await master.send())
    await trio.sleep(10)
    assert master.position == (None, None)
    master.log.flushed.advance(master.log.max_offset)
    await trio.testing.wait_all_tasks_blocked()
    assert master.position == (1, 1)


async def test_the_position_is_kept_when_slaves_have_the_log_up_to_it(start, autojump_clock):
    """A promoted slave that begins to read after a commitment that it lacks would drop the message."""
    master = await start()
    master.held_offset = 0
    await master.end(await master.send())
    end_offset = master.log.max_offset
    await trio.sleep(10)
    # Later decisions do not hold up the position of earlier ones.
    await master.end(await master.send())
    assert master.position == (None, None)
    master.held_offset = end_offset
    await trio.sleep(5)
    assert master.position == (1, 1)
    master.held_offset = None
    await trio.sleep(10)
    assert master.position == (2, 2)


@pytest.mark.parametrize(("clean", "op_interval_s"), [(True, 3.0), (False, 0.0)])
async def test_open_transactions_go_on_after_a_restart(start, autojump_clock, clean, op_interval_s):
    master = await start(op_interval_s=op_interval_s)
    master.connect()
    sent = [await master.send(body) for body in (b"a", b"b", b"c", b"d")]
    await master.end(sent[0], COMMIT)
    await trio.sleep(31)
    for _, check, _ in master.pushed[:1]:
        await master.end(check, ROLLBACK)
    await trio.sleep(4)
    master = await restarted(start, master, clean=clean)
    assert master.open_transactions == 2
    # One is decided by its first copy, one by a check of the new life.
    assert (await master.end(sent[2], COMMIT)).code == ResponseCode.SUCCESS
    assert (await master.end(sent[0], COMMIT)).remark == "the transaction is not open any more"
    master.connect(9)
    await trio.sleep(31)
    ((connection, check, _),) = master.pushed
    assert (connection, check.ext_fields["tranStateTableOffset"]) == (9, "7")
    assert (
        HalfMessage.of(master.store.reads.record_at(int(check.ext_fields["commitLogOffset"]))).check_times
        == 2
    )
    await master.end(check, COMMIT)
    assert master.delivered == [b"a", b"c", b"d"]
    master = await restarted(start, master, clean=clean)
    assert master.open_transactions == 0


@pytest.mark.parametrize("offsets", [None, (2, 1), (1000, 0), (0, 1000), (-5, -5)])
async def test_a_position_that_is_lost_or_wrong_costs_no_transaction(start, autojump_clock, offsets):
    master = await start()
    master.connect()
    sent = [await master.send(b"%d" % number) for number in range(4)]
    await master.end(sent[0], COMMIT)
    await trio.sleep(40)
    await master.end(master.pushed[0][1], COMMIT)
    master.life.cancel()
    await trio.testing.wait_all_tasks_blocked()
    table = master.metadata.consumer_offsets
    if offsets is None:
        table._offsets.clear()
    else:
        for topic, offset in zip((HALF_TOPIC, OP_TOPIC), offsets, strict=True):
            table.commit(TRANSACTION_GROUP, topic, 0, offset)
    master = await restarted(start, master)
    assert master.open_transactions == 2
    for each in sent:
        await master.end(each, COMMIT)
    assert sorted(master.delivered) == [b"0", b"1", b"2", b"3"]


async def test_a_position_ahead_of_the_last_minute_of_the_log_is_not_trusted(start, autojump_clock):
    """As on a promoted slave that has copied its master's offsets before the messages."""
    master = await start()
    sent = await master.send()
    master.metadata.consumer_offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1)
    master.metadata.consumer_offsets.commit(TRANSACTION_GROUP, OP_TOPIC, 0, 0)
    master.life.cancel()
    master = await restarted(start, master)
    assert master.open_transactions == 1
    assert (await master.end(sent)).code == ResponseCode.SUCCESS


async def test_decisions_and_sends_during_the_restoring_are_not_lost(start, autojump_clock, nursery):
    master = await start()
    sent = await master.send(b"old")
    master.life.cancel()
    await trio.testing.wait_all_tasks_blocked()
    await master.end_life()
    master = await start(runs=False)
    nursery.start_soon(master.end, sent)
    new = await master.send(b"new")
    nursery.start_soon(master.end, new)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(master.run)
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(master.delivered) == [b"new", b"old"]
    assert master.open_transactions == 0
    nursery.cancel_scope.cancel()
