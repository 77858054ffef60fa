"""A bounded number of keys is named; all counts only grow, whichever keys have names."""

import random

import pytest
import trio

from tests.levels import by_level
from trioha.broker.traffic import BrokerTraffic
from trioha.metrics.busiest import CHOOSE_INTERVAL_S, BusiestKeys, Count


@pytest.fixture
async def traffic():
    return BrokerTraffic(cluster_name="C", keys_max=5000)


def choose(busiest):
    for _ in busiest.choose():
        pass


async def test_all_keys_have_names_while_they_are_few(traffic):
    busiest = BusiestKeys(traffic.puts, traffic.broker_puts, keys_max=2)
    assert busiest.counts().named == {}
    traffic.note_put("a", 3, 30)
    traffic.note_put("b", 1, 10)
    counts = busiest.counts()
    assert counts.named == {"a": Count(3, 30), "b": Count(1, 10)}
    assert counts.rest == Count(0, 0)
    assert counts.whole == Count(4, 40)


async def test_the_busiest_of_many_have_names_and_all_others_are_the_rest(traffic):
    busiest = BusiestKeys(traffic.puts, traffic.broker_puts, keys_max=2)
    for number in range(3000):
        traffic.note_put(f"t{number}", 1, 10)
    traffic.note_put("t7", 50, 500)
    traffic.note_put("t2999", 40, 400)
    choose(busiest)
    counts = busiest.counts()
    assert counts.named == {"t7": Count(51, 510), "t2999": Count(41, 410)}
    # What came for a key before it had a name was and stays in the rest.
    assert counts.rest == counts.whole == Count(3090, 30900)
    traffic.note_put("t7", 1, 10)
    traffic.note_put("t8", 1, 10)
    counts = busiest.counts()
    assert counts.named["t7"] == Count(52, 520)
    assert counts.rest == Count(3091, 30910)


async def test_names_follow_the_traffic_of_the_last_hour(traffic, nursery, autojump_clock):
    busiest = BusiestKeys(traffic.puts, traffic.broker_puts, keys_max=1)
    nursery.start_soon(traffic.run)
    nursery.start_soon(busiest.run)
    traffic.note_put("old", 1000, 1000)
    traffic.note_put("new", 1, 1)
    await trio.sleep(CHOOSE_INTERVAL_S + 1)
    assert set(busiest.counts().named) == {"old"}
    await trio.sleep(2 * 3600)
    traffic.note_put("new", 1, 1)
    await trio.sleep(CHOOSE_INTERVAL_S)
    assert set(busiest.counts().named) == {"new"}


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(4, 20, 400)))
async def test_no_count_falls_whatever_comes_and_goes(traffic, seed):
    """Topics get and lose names, are deleted and come back; the broker's own total begins anew."""
    draw = random.Random(seed)
    busiest = BusiestKeys(traffic.puts, traffic.broker_puts, keys_max=3)
    stored = Count()
    deleted = set()
    before = busiest.counts()
    for _ in range(400):
        kind = draw.random()
        topic = f"t{draw.randrange(8)}"
        if kind < 0.6:
            came = Count(draw.randrange(1, 5), draw.randrange(100))
            traffic.note_put(topic, came.messages, came.total_bytes)
            stored += came
            continue
        if kind < 0.7:
            traffic.topic_deleted(topic)
            deleted.add(topic)
            continue
        if kind < 0.8:
            choose(busiest)
            continue
        if kind < 0.85:
            # As a day without messages does, after many choices.
            choose(busiest)
            traffic.broker_puts.keys.clear()
        now = busiest.counts()
        assert now.whole == stored
        assert len(now.named) <= 3
        assert before.rest.messages <= now.rest.messages <= stored.messages
        assert before.rest.total_bytes <= now.rest.total_bytes <= stored.total_bytes
        for name in (before.named.keys() & now.named.keys()) - deleted:
            assert now.named[name].messages >= before.named[name].messages
        before, deleted = now, set()
