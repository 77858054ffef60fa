"""Consumers that receive replicated messages only: what they see, and when; in virtual time."""

import pytest
import trio

from tests.broker.consuming import TOPIC, Broker, Waiting, bodies_of
from tests.ha.support import settled
from tests.store.support import message
from trioha.broker import replicated_arrivals
from trioha.broker.long_polls import LongPolls
from trioha.broker.replicated_arrivals import ReplicatedArrivals
from trioha.ha.replicated_offset import ReplicatedOffset
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.watermark import Watermark

SUSPEND = 2 | 4
QUEUE = {"topic": TOPIC, "queueId": "0"}


class Master(Broker):
    """A master that waits for slaves; `acknowledge` says how far these are."""

    def __init__(self, tmp_path, *, start_offset=0, **settings):
        self.replicated_offset = 0

        def replicated(store):
            self.replicated = ReplicatedOffset(
                lambda: self.replicated_offset,
                lambda: store.commit_log.max_offset,
                acks=Watermark(),
                start_offset=start_offset,
            )
            return self.replicated

        super().__init__(tmp_path, replicated=replicated, **settings)

    @property
    def end(self):
        return self.store.commit_log.max_offset

    def acknowledge(self, offset=None):
        self.replicated_offset = self.end if offset is None else offset
        self.replicated.update()

    def max_offset(self):
        return int(self.start(RequestCode.GET_MAX_OFFSET, QUEUE).ext_fields["offset"])


@pytest.fixture
async def master(tmp_path, nursery):
    master = Master(tmp_path)
    nursery.start_soon(master.consumers.run)
    await settled()
    return master


async def test_a_message_is_received_when_the_slaves_have_it(master):
    master.put(b"a", b"b")
    answer = master.pull()
    assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE")
    assert (answer.ext_fields["nextBeginOffset"], answer.ext_fields["maxOffset"]) == ("0", "0")
    assert master.max_offset() == 0
    master.acknowledge()
    assert bodies_of(master.pull()) == [b"a", b"b"]
    assert master.max_offset() == 2


async def test_records_are_received_up_to_the_replicated_offset_and_whole(master):
    ends = []
    for body in (b"a", b"b", b"c"):
        master.put(body)
        ends.append(master.end)
    for offset, expected in [
        (ends[0] - 1, []), (ends[0], [b"a"]), (ends[1] - 1, [b"a"]), (ends[1], [b"a", b"b"]), (ends[2], 3),
    ]:  # fmt: skip
        master.acknowledge(offset)
        bodies = bodies_of(master.pull())
        assert bodies == (expected if expected != 3 else [b"a", b"b", b"c"])
        assert master.max_offset() == len(bodies)


async def test_queues_whose_messages_are_replicated_are_read_while_others_wait(master):
    master.put(b"a", queue_id=0)
    master.acknowledge()
    master.put(b"b", queue_id=1)
    assert bodies_of(master.pull(queueId=0)) == [b"a"]
    assert master.pull(queueId=1).code == ResponseCode.PULL_NOT_FOUND


async def test_a_waiting_pull_is_woken_by_the_ack_and_not_by_the_message(master, nursery, autojump_clock):
    waiting = Waiting(nursery)
    waiting.add("pull", master.pull(sysFlag=SUSPEND))
    waiting.add("other", master.pull(sysFlag=SUSPEND, queueId=1))
    await trio.sleep(2)
    master.put(b"a")
    await trio.sleep(3)
    assert waiting.answers == {}
    master.acknowledge()
    await settled()
    answer, at_s = waiting.answers["pull"]
    assert (bodies_of(answer), at_s) == ([b"a"], trio.current_time())
    assert "other" not in waiting.answers


async def test_an_ack_that_comes_before_dispatch_delays_no_pull(master, nursery):
    waiting = Waiting(nursery)
    waiting.add("pull", master.pull(sysFlag=SUSPEND))
    await settled()
    master.replicated_offset = 1 << 40
    master.replicated.update()
    master.put(b"a")
    await settled()
    assert bodies_of(waiting.answers["pull"][0]) == [b"a"]


async def test_a_pull_is_woken_by_an_ack_in_the_middle_of_a_batch(master, nursery):
    waiting = Waiting(nursery)
    waiting.add("pull", master.pull(sysFlag=SUSPEND))
    await settled()
    first_end = master.end
    for body in (b"a", b"b"):
        master.store.commit_log.append(message(body, topic=TOPIC, queue_id=0))
        first_end = first_end or master.end
    master.store.dispatcher.dispatch(master.end)
    master.acknowledge(first_end)
    await settled()
    assert bodies_of(waiting.answers["pull"][0]) == [b"a"]
    waiting.add("next", master.pull(queueOffset=1, sysFlag=SUSPEND))
    await settled()
    assert "next" not in waiting.answers
    master.acknowledge()
    await settled()
    assert bodies_of(waiting.answers["next"][0]) == [b"b"]


async def test_messages_stay_received_when_the_slaves_are_gone(master):
    master.put(b"a")
    master.acknowledge()
    master.put(b"b")
    master.acknowledge(0)
    assert bodies_of(master.pull()) == [b"a"]
    assert master.max_offset() == 1


async def test_an_offset_beyond_the_replicated_messages_stays_and_one_beyond_all_is_moved(master):
    master.put(b"a", b"b", b"c")
    master.acknowledge(master.end // 3)
    for offset in (1, 2, 3):
        answer = master.pull(queueOffset=offset)
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (
            ResponseCode.PULL_NOT_FOUND,
            str(offset),
        )
    answer = master.pull(queueOffset=4)
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


async def test_a_time_after_all_replicated_messages_leads_to_their_end(master):
    master.put(b"a", b"b")
    master.acknowledge(master.end // 2)
    fields = {**QUEUE, "timestamp": str(1 << 50)}
    answer = await master.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields, version=479)
    assert answer.ext_fields == {"offset": "1"}


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_promoted_slave_gives_the_message_that_took_the_place_of_a_lost_one(tmp_path, guarded):
    """What the setting is for: without it the consumer skips a message that was acknowledged."""
    master = Master(tmp_path / "master") if guarded else Broker(tmp_path / "master")
    promoted = Broker(tmp_path / "slave")
    for broker in (master, promoted):
        broker.put(b"on both")
    if guarded:
        master.acknowledge()
    master.put(b"lost with the master")
    first = master.pull()
    promoted.put(b"sent after the promotion")
    second = promoted.pull(queueOffset=int(first.ext_fields["nextBeginOffset"]))
    received = bodies_of(first) + bodies_of(second)
    assert (b"sent after the promotion" in received) is guarded
    assert (b"lost with the master" in received) is not guarded


async def test_a_store_that_is_opened_with_unreplicated_messages_wakes_their_pulls(tmp_path, nursery):
    before = Broker(tmp_path)
    before.put(b"a", b"b")
    end = before.store.commit_log.max_offset
    before.store.release()
    master = Master(tmp_path, start_offset=end // 2)
    nursery.start_soon(master.consumers.run)
    await settled()
    assert bodies_of(master.pull()) == [b"a"]
    waiting = Waiting(nursery)
    waiting.add("pull", master.pull(queueOffset=1, sysFlag=SUSPEND))
    await settled()
    master.acknowledge()
    await settled()
    assert bodies_of(waiting.answers["pull"][0]) == [b"b"]


# -- stretches -----------------------------------------------------------------------------------------------


class Polls(LongPolls):
    """Notes what has arrived."""

    def __init__(self):
        super().__init__(polls_max=10, per_connection_max=10)
        self.seen = []

    def arrived(self, queues):
        self.seen.append(sorted(queues))


async def test_without_acks_the_queues_that_wait_are_bounded(monkeypatch):
    monkeypatch.setattr(replicated_arrivals, "STRETCHES_MAX", 3)
    polls = Polls()
    arrivals = ReplicatedArrivals(polls, dispatched_offset=0, replicated_offset=0)
    for number in range(1, 101):
        arrivals.written([("T", number % 7)], dispatched_offset=10 * number)
    assert (len(arrivals), polls.seen) == (3, [])
    arrivals.replicated(5)
    assert polls.seen == [[("T", 1)]]
    arrivals.replicated(20)
    assert polls.seen[1:] == [[("T", 1)], [("T", 2)]]
    arrivals.replicated(1000)
    assert polls.seen[3:] == [[("T", number) for number in range(7)]]
    assert len(arrivals) == 0
