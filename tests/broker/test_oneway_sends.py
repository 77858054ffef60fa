"""One-way sends: stored, counted and recorded as others are, and never answered; in runs as one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
import trio.testing
from attrs import asdict, evolve, frozen
from structlog.testing import capture_logs

from tests.broker.test_processor import PEER, Broker
from tests.broker.test_send_runs import commands
from tests.levels import by_level
from tests.remoting.streams import transport_pair
from tests.remoting.test_send_runs import send
from trioha.broker.send_runs import SendRuns
from trioha.metadata.topics import TopicConfig
from trioha.recording.events import Kind
from trioha.remoting.codec import FrameDecoder, encode
from trioha.remoting.server import RemotingServer

# -- runs of them --------------------------------------------------------------------------------------------


class ServedBroker(Broker):
    """A broker with a server; `has_runs`: it takes sends that come together in runs."""

    def __init__(self, tmp_path, *, need, has_runs):
        self.stored_of = Counter()
        super().__init__(tmp_path, need=need, on_stored=self.note_stored)
        self.topics.put(TopicConfig("Orders", 4, 4))
        self.runs = SendRuns(self.puts, topics=self.topics, cluster_name="cluster", send=self.send_processor)
        self.server = RemotingServer(self.processor, runs=self.runs if has_runs else None)

    def note_stored(self, topic, messages, total_bytes, puts=1):
        self.stored_of.update({(topic, "messages"): messages, (topic, "bytes"): total_bytes, topic: puts})


@frozen
class Step:
    """Bytes that a client sends, then the share of the unacknowledged records that the slave acknowledges,
    then a time that passes."""

    data: bytes
    share: float = 1.0
    sleep_s: float = 0.0


async def outcome(tmp_path, steps, *, need, has_runs, is_closed_early=False):
    """All that a client, an operator or a recorded session sees of a connection with these steps.

    `is_closed_early`: the client closes it before the slave acknowledges the last ones.
    """
    broker = ServedBroker(tmp_path, need=need, has_runs=has_runs)
    server, received, open_in_flight = broker.server, bytearray(), []
    await broker.send(queue_id=0)
    broker.acknowledge(acknowledged := broker.log.max_offset)
    ours, theirs = transport_pair()

    async def receive():
        while data := await ours.receive_some(65536):
            received.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs, PEER.address)
        nursery.start_soon(receive)
        for number, step in enumerate(steps):
            try:
                await ours.send_all(step.data)
            except trio.BrokenResourceError:
                break
            await trio.testing.wait_all_tasks_blocked()
            open_in_flight.append((server.statistics.in_flight, server.statistics.oneway_requests))
            if is_closed_early and number == len(steps) - 1:
                break
            ends = [one.physical_offset + one.total_size for one in broker.records()]
            ends = [end for end in ends if end > acknowledged]
            if count := round(step.share * len(ends)):
                broker.acknowledge(acknowledged := ends[count - 1])
            await trio.testing.wait_all_tasks_blocked()
            await trio.sleep(step.sleep_s)
        await ours.aclose()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    statistics = asdict(server.statistics)
    # A run holds the memory of all its sends at once.
    del statistics["largest_held_bytes"]
    return {
        "records": broker.records(),
        "queues": broker.log.queue_offsets,
        "received": bytes(received),
        "statistics": statistics,
        "in flight": open_in_flight,
        "events": broker.events.seen,
        "statuses": broker.puts.statuses,
        "puts": evolve(broker.puts.statistics(), messages_per_s=()),
        "stored": broker.stored_of,
        "held bytes": server.statistics.held_bytes,
    }


def without_times(found):
    """The outcome without the order of answers, and without when and in which order waits ended."""
    events = sorted(
        (*event[:4], 0, event[5]) if event[0] == Kind.WAIT_END else event for event in found["events"]
    )
    answers = sorted((answer.opaque, encode(answer)) for answer in commands(found["received"]))
    return found | {"events": events, "received": answers, "in flight": None}


async def compare(tmp_path, steps, *, shares_waits=False, **options):
    """The outcome, which is the same with runs and without.

    `shares_waits`: the slave acknowledges some puts of a run before others, which end together all the same.
    """
    with capture_logs():
        runs = await outcome(tmp_path / "runs", steps, has_runs=True, **options)
        single = await outcome(tmp_path / "single", steps, has_runs=False, **options)
    left, right = map(without_times, (runs, single)) if shares_waits else (runs, single)
    for what, value in right.items():
        assert left[what] == value, what
    return runs


OTHERS = (
    {"queue_id": 9},
    {"queue_id": -1, "topic": "Made"},
    {"properties": "DELAY\x013\x02"},
    {"properties": "WAIT\x01false\x02"},
    {"topic": "Unknown", "default_topic": "NOPE"},
    {"batch": True, "body": b"no batch"},
)
"""Sends that are no part of a run, or of one that is refused."""


def some_frames(rng, count):
    """Sends of both kinds, in stretches."""
    frames, oneway = [], False
    for number in range(count):
        if rng.random() < 0.3:
            oneway = rng.random() < 0.6
        changes = dict(rng.choice(OTHERS)) if rng.random() < 0.05 else {"queue_id": rng.randrange(4)}
        if "queue_id" in changes and changes["queue_id"] < 0:
            # The broker draws the queue.
            changes["queue_id"] = 0
        changes.setdefault("body", rng.randbytes(rng.randrange(300)))
        frames.append(send(opaque=number, oneway=oneway, **changes))
    return frames


def some_steps(rng, *, shares):
    """Sends, cut anywhere; at the end every wait has ended."""
    steps = []
    for _ in range(10):
        data = b"".join(some_frames(rng, rng.choice([1, 1, 2, 5, 20, 40])))
        cut = rng.choice([0, rng.randrange(len(data))])
        steps += [
            Step(data[:cut], share=rng.choice(shares)),
            Step(data[cut:], share=rng.choice(shares), sleep_s=rng.choice([0, 0, 1, 4])),
        ]
    return [*steps, Step(b"", sleep_s=5)]


@pytest.mark.sized
@pytest.mark.parametrize("need", [0, 1])
@pytest.mark.parametrize("seed", range(by_level(1, 10, 200)))
async def test_mixed_sends_have_the_same_outcome_in_runs_as_one_by_one(tmp_path, autojump_clock, seed, need):
    found = await compare(tmp_path, some_steps(random.Random(seed), shares=[0, 1, 1]), need=need)
    check_answers(found)


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(1, 10, 200)))
async def test_each_send_has_its_own_status_also_in_runs_of_one_way_sends(tmp_path, autojump_clock, seed):
    rng = random.Random(seed)
    steps = some_steps(rng, shares=[0, 0.3, 0.7, 1])
    steps.append(Step(b"".join(some_frames(rng, 20)), share=0.4, sleep_s=5))
    found = await compare(tmp_path, steps, need=1, shares_waits=True)
    check_answers(found)
    assert found["statuses"]["FLUSH_SLAVE_TIMEOUT"] > 0


def check_answers(found):
    """Each answered send was answered, and no other one."""
    requests = found["statistics"]["requests"]
    oneway = found["statistics"]["oneway_requests"]
    assert 0 < oneway < requests
    assert found["statistics"]["responses"] == len(commands(found["received"])) == requests - oneway
    assert found["held bytes"] == 0


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(1, 6, 100)))
async def test_a_client_that_closes_leaves_the_same_with_runs_as_without(tmp_path, autojump_clock, seed):
    rng = random.Random(seed)
    steps = [Step(b"".join(some_frames(rng, 30)), share=rng.choice([0, 1])) for _ in range(3)]
    found = await compare(tmp_path, steps, need=1, is_closed_early=True)
    assert found["in flight"][-1][0] > 0
    assert (found["statistics"]["in_flight"], found["held bytes"]) == (0, 0)


@pytest.mark.sized
@pytest.mark.parametrize("need", [0, 1])
@pytest.mark.parametrize("seed", range(by_level(3, 20, 500)))
async def test_hostile_bytes_among_one_way_sends_have_the_same_outcome_in_runs(
    tmp_path, autojump_clock, seed, need
):
    rng = random.Random(seed)
    data = bytearray(b"".join(some_frames(rng, 24)))
    for _ in range(rng.choice([1, 2, 4])):
        at = rng.randrange(len(data))
        how = rng.randrange(3)
        if how == 0:
            data[at] = rng.choice([rng.randrange(256), *b'",:{}0123\\'])
        elif how == 1:
            del data[at : at + rng.randrange(1, 6)]
        else:
            data[at:at] = rng.choice([b"2", b'"flag":2,', b"\0", b" "])
    found = await compare(tmp_path, [Step(bytes(data)), Step(b"", sleep_s=5)], need=need)
    assert found["held bytes"] == 0


@pytest.mark.parametrize("need", [0, 1])
async def test_a_run_of_one_way_sends_is_one_append_and_has_no_frames_of_answers(tmp_path, need):
    broker = ServedBroker(tmp_path, need=need, has_runs=True)
    await broker.send(queue_id=0)
    broker.acknowledge(broker.log.max_offset)
    decoder = FrameDecoder()
    decoder.feed(b"".join(send(opaque=number, oneway=True) for number in range(5)))
    run = decoder.sends(16, shared=broker.runs.shared_properties)
    assert (run.sends.count, run.sends.is_oneway) == (5, True)
    answers = broker.runs.put(run.sends, run.data, PEER)
    if need:
        broker.acknowledge(broker.log.max_offset)
        await answers.commit.settled()
        answers = answers.answer()
    assert answers == b""
    assert len(broker.records()) == 6
