"""Runs of sends are stored and answered as if each send had come alone."""

import random

import pytest
import trio

from tests.broker.test_processor import PEER, Broker
from tests.levels import by_level
from tests.remoting.test_send_runs import send
from trioha.broker.send_runs import SPECIAL_PROPERTIES, SendRuns
from trioha.metadata.topics import TopicConfig
from trioha.recording.events import Kind
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.codes import ResponseCode
from trioha.remoting.send_message import SendMessageResponseHeader


class RunBroker(Broker):
    """A broker that also takes runs."""

    def __init__(self, tmp_path, **options):
        super().__init__(tmp_path, **options)
        self.runs = SendRuns(self.puts, topics=self.topics, cluster_name="cluster", send=self.send_processor)
        self.topics.put(TopicConfig("Orders", 4, 4))

    def run(self, data, sends_max=16):
        """What becomes of the run at the start of `data`."""
        decoder = FrameDecoder()
        decoder.feed(data)
        run = decoder.sends(sends_max, shared=self.runs.shared_properties)
        assert run is not None
        return self.runs.put(run.sends, run.data, PEER)

    async def each(self, data):
        """The answers to the same sends, each handled by itself."""
        decoder, answers = FrameDecoder(), []
        decoder.feed(data)
        while (command := decoder.next_command()) is not None:
            answers.append(encode(await self.ask(command)))
        return b"".join(answers)


def commands(frames):
    decoder, found = FrameDecoder(), []
    decoder.feed(frames)
    while (command := decoder.next_command()) is not None:
        found.append(command)
    return found


@pytest.fixture
async def pair(tmp_path):
    """Two brokers with one message each: a run needs a file that is there."""
    brokers = [RunBroker(tmp_path / name) for name in ("runs", "each")]
    for broker in brokers:
        await broker.send(queue_id=0)
    return brokers


def some_sends(rng, count):
    return b"".join(
        send(
            opaque=rng.randrange(2**31),
            queue_id=rng.randrange(4),
            flag=rng.randrange(9),
            sys_flag=rng.choice([0, 1, 0x300]),
            born_timestamp_ms=rng.randrange(2**40),
            reconsume_times=rng.randrange(3),
            properties=rng.choice(["", "TAGS\x01a", "TAGS\x01a\x02", "KEYS\x01k 1\x02UNIQ_KEY\x01FF\x02"]),
            body=rng.randbytes(rng.randrange(2000)),
        )
        for _ in range(count)
    )


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(2, 10, 200)))
async def test_records_answers_and_statistics_are_those_of_single_sends(pair, seed):
    runs, each = pair
    rng = random.Random(seed)
    for count in (1, 2, 5, 16):
        data = some_sends(rng, count)
        answers = runs.run(data)
        assert answers == await each.each(data)
    assert runs.records() == each.records()
    assert runs.log.queue_offsets == each.log.queue_offsets
    assert runs.puts.statuses == each.puts.statuses
    assert runs.puts.statistics().bytes_appended == each.puts.statistics().bytes_appended
    assert [event[2:] for event in runs.events.of(Kind.PUT)] == [
        event[2:] for event in each.events.of(Kind.PUT)
    ]


async def test_sends_that_ask_for_more_or_may_be_refused_are_left_to_single_sends(pair, tmp_path):
    runs, _ = pair
    end = runs.log.max_offset
    for name in SPECIAL_PROPERTIES:
        assert runs.run(send() + send(properties=f"K\x01v\x02{name.decode()}\x013\x02")) is None, name
    for changes in (
        {"queue_id": 4}, {"topic": "Unknown"}, {"topic": "SELF_TEST_TOPIC"}, {"topic": "%RETRY%group"},
    ):  # fmt: skip
        assert runs.run(send(**changes)) is None, changes
    assert runs.log.max_offset == end
    runs.topics.put(TopicConfig("Orders", 4, 4, perm=4))
    assert runs.run(send()) is None
    runs.topics.put(TopicConfig("Orders", 4, 4))
    runs.send_processor.configure(broker_permission=4)
    assert runs.run(send()) is None
    assert RunBroker(tmp_path / "slave", is_slave=True).run(send()) is None


@pytest.mark.parametrize("blocked", ["disk_is_full", "puts_blocked"])
async def test_a_log_that_takes_nothing_leaves_a_run_to_single_sends(pair, blocked):
    runs, _ = pair
    setattr(runs.log, blocked, True)
    assert runs.run(send()) is None


async def test_limits_of_messages_and_queues_hold_in_runs(pair):
    runs, _ = pair
    data = send(queue_id=1) + send(queue_id=2)
    runs.log.queues_max = 2
    assert runs.run(data) is None
    runs.log.queues_max = 100
    runs.log.message_bytes_max = 3
    assert runs.run(data) is None
    runs.log.message_bytes_max = 4
    assert isinstance(runs.run(data), bytes)


async def test_a_run_that_would_cross_a_files_end_is_left_to_single_sends(pair):
    runs, each = pair
    crossed = 0
    for number in range(40):
        data = b"".join(send(opaque=number, body=bytes(4000)) for _ in range(3))
        answers = runs.run(data)
        crossed += answers is None
        assert (answers or await runs.each(data)) == await each.each(data)
    assert crossed
    assert len(runs.log.files) > 1
    assert runs.records() == each.records()


async def test_a_run_waits_for_copies_and_each_send_gets_its_own_status(tmp_path, nursery, autojump_clock):
    broker = RunBroker(tmp_path, need=1)
    await broker.send(queue_id=0)
    broker.acknowledge(broker.log.max_offset)
    sends = broker.run(send(opaque=1) + send(opaque=2))
    assert not sends.is_settled(trio.current_time())
    broker.acknowledge(broker.log.max_offset)
    await sends.commit.settled()
    assert [(one.code, one.opaque) for one in commands(sends.answer())] == [(0, 1), (0, 2)]
    # Only the first of these is replicated in time.
    sends = broker.run(send(opaque=3) + send(opaque=4))
    broker.acknowledge(broker.records()[-1].physical_offset)
    await sends.commit.settled()
    answers = commands(sends.answer())
    assert [(one.code, one.opaque) for one in answers] == [
        (ResponseCode.SUCCESS, 3),
        (ResponseCode.FLUSH_SLAVE_TIMEOUT, 4),
    ]
    assert [SendMessageResponseHeader.of(one).queue_offset for one in answers] == [2, 3]
    assert broker.puts.statuses == {"PUT_OK": 3, "FLUSH_SLAVE_TIMEOUT": 1, "SLAVE_NOT_AVAILABLE": 1}
