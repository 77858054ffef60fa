"""Peeks, notifications and the number of pops that wait, in virtual time."""

import pytest
import trio
import trio.testing

from tests.broker.consuming import bodies_of
from tests.broker.pop.popping import GROUP, TOPIC, Popping
from trioha.remoting.codes import RequestCode, ResponseCode

NOTHING = {"hasMsg": "false", "pollingFull": "false"}
SOMETHING = {"hasMsg": "true", "pollingFull": "false"}


@pytest.fixture
async def broker(tmp_path, wall):
    broker = Popping(tmp_path, wall)
    async with broker.running():
        yield broker


def place(**fields):
    return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, **fields}


async def peek(broker, **fields):
    answer = await broker.ask(RequestCode.PEEK_MESSAGE, place(**{"maxMsgNums": 32, **fields}))
    return answer.code, answer.ext_fields["restNum"], sorted(bodies_of(answer))


async def notice(broker, *, poll_ms=5000, **fields):
    """The answer to a notification, and the seconds until it came."""
    began_s = trio.current_time()
    fields = place(pollTime=poll_ms, bornTime=broker.wall.now_ms(), **fields)
    answer = await broker.ask(RequestCode.NOTIFICATION, fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    return dict(answer.ext_fields), trio.current_time() - began_s


async def test_a_peek_gives_the_next_messages_and_moves_nothing(broker, autojump_clock):
    broker.put(b"a", b"b", queue_id=0)
    broker.put(b"c", queue_id=1)
    assert await peek(broker) == (ResponseCode.SUCCESS, "3", [b"a", b"b", b"c"])
    assert await peek(broker, queueId=1) == (ResponseCode.SUCCESS, "1", [b"c"])
    assert await peek(broker, maxMsgNums=2) == (ResponseCode.SUCCESS, "3", [b"a", b"b"])
    assert len(await broker.take(messages=2)) == 2
    assert (await peek(broker))[1] == "1"
    await broker.take()
    assert await peek(broker) == (ResponseCode.PULL_NOT_FOUND, "0", [])


async def test_a_peek_gives_what_is_to_be_given_again(broker, autojump_clock):
    broker.put(b"a")
    await broker.take(invisible_ms=2000)
    assert (await peek(broker))[0] == ResponseCode.PULL_NOT_FOUND
    await trio.sleep(8)
    assert await peek(broker) == (ResponseCode.SUCCESS, "1", [b"a"])


async def test_a_notification_says_at_once_that_there_is_a_message(broker, autojump_clock):
    broker.put(b"a")
    assert await notice(broker) == (SOMETHING, 0)
    assert len(await broker.take()) == 1


async def test_a_notification_waits_for_a_message_and_ends_50_ms_early(broker, autojump_clock):
    await broker.take()
    assert await notice(broker, poll_ms=5000) == (NOTHING, 4.95)
    assert await notice(broker, poll_ms=0) == (NOTHING, 0)
    found = []

    async def wait():
        found.append(await notice(broker))

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(wait)
        await trio.sleep(1)
        broker.put(b"a")
    assert found == [(SOMETHING, 1.0)] * 2


async def test_a_notification_is_of_the_tags_that_it_names(broker, autojump_clock):
    broker.put(b"a", tag="x")
    assert await notice(broker, poll_ms=0, exp="y") == (NOTHING, 0)
    assert await notice(broker, poll_ms=0, exp="x || y") == (SOMETHING, 0)


async def test_a_notification_in_order_is_of_queues_that_are_free(broker, autojump_clock):
    broker.put(b"a", b"b")
    first = await broker.take(order="true", messages=1)
    assert await notice(broker, poll_ms=0, order="true") == (NOTHING, 0)
    assert await notice(broker, poll_ms=0) == (SOMETHING, 0)
    found = []

    async def wait():
        found.append(await notice(broker, order="true"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        await broker.ack(first[0])
    assert found == [(SOMETHING, 1.0)]


async def test_one_notification_too_many_is_answered_at_once(tmp_path, wall, autojump_clock):
    broker = Popping(tmp_path, wall, pop_polling_size=1)
    async with broker.running(), trio.open_nursery() as nursery:
        nursery.start_soon(notice, broker)
        await trio.testing.wait_all_tasks_blocked()
        assert await notice(broker) == ({"hasMsg": "false", "pollingFull": "true"}, 0)


async def test_pops_that_wait_are_counted_by_their_key(broker, autojump_clock):
    async def waiting(queue_id):
        answer = await broker.ask(RequestCode.POLLING_INFO, place(queueId=queue_id))
        return answer.ext_fields["pollingNum"]

    async with trio.open_nursery() as nursery:
        for queue_id in (-1, -1, 1):
            nursery.start_soon(lambda queue_id=queue_id: broker.pop(pollTime=10_000, queueId=queue_id))
        await trio.testing.wait_all_tasks_blocked()
        assert [await waiting(queue_id) for queue_id in (-1, 0, 1)] == ["2", "0", "1"]
    assert await waiting(-1) == "0"


@pytest.mark.parametrize("code", [200052, 200054, 200055])
@pytest.mark.parametrize(
    ("fields", "refusal"),
    [
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -2}, ResponseCode.INVALID_PARAMETER),
        ({"consumerGroup": "g" * 300}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": "x"}, ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_what_is_refused(broker, code, fields, refusal):
    assert (await broker.ask(code, place(maxMsgNums=1, pollTime=0, **fields))).code == refusal


async def test_a_slave_answers_none_of_them(tmp_path, wall):
    broker = Popping(tmp_path, wall, is_slave=True)
    for code in (200052, 200054, 200055):
        answer = await broker.ask(code, place(maxMsgNums=1, pollTime=0))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
