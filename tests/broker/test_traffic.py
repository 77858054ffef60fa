"""Messages by topic and group over the last minute, hour and day, in virtual time."""

import pytest
import trio

from trioha.broker.traffic import BrokerTraffic, TrafficTable, Window


@pytest.fixture
def traffic(nursery):
    made = BrokerTraffic(cluster_name="C", keys_max=3)
    nursery.start_soon(made.run)
    return made


def windows(table, key, *, in_bytes=False):
    return table.keys[key].windows(trio.current_time(), in_bytes=in_bytes)


async def test_a_window_has_what_came_within_it(traffic, autojump_clock):
    traffic.note_put("T", 4, 400)
    await trio.sleep(5)
    minute, hour, day = windows(traffic.puts, "T")
    assert minute == hour == day == Window(4, 4 / 5, 4.0)
    await trio.sleep(20)
    traffic.note_put("T", 2, 50)
    assert windows(traffic.puts, "T")[0] == Window(6, 6 / 25, 3.0)
    assert windows(traffic.puts, "T", in_bytes=True)[0] == Window(450, 450 / 25, 225.0)


async def test_the_minute_ends_after_70_seconds_the_hour_after_70_minutes_the_day_after_25_h(
    traffic, autojump_clock
):
    traffic.note_put("T", 4, 400)
    await trio.sleep(69.5)
    assert [window.total for window in windows(traffic.puts, "T")] == [4, 4, 4]
    await trio.sleep(1)
    assert [window.total for window in windows(traffic.puts, "T")] == [0, 4, 4]
    await trio.sleep(70 * 60)
    assert [window.total for window in windows(traffic.puts, "T")] == [0, 0, 4]
    traffic.note_put("T", 1, 100)
    await trio.sleep(23 * 3600)
    assert [window.total for window in windows(traffic.puts, "T")] == [0, 0, 5]
    await trio.sleep(3600)
    assert [window.total for window in windows(traffic.puts, "T")] == [0, 0, 1]


async def test_a_key_without_messages_for_a_day_gives_up_its_place(traffic, autojump_clock):
    for topic in ("A", "B", "C"):
        traffic.note_put(topic, 1, 1)
    traffic.note_put("D", 1, 1)
    assert set(traffic.puts.keys) == {"A", "B", "C"}
    await trio.sleep(12 * 3600)
    traffic.note_put("B", 1, 1)
    await trio.sleep(12 * 3600 + 60)
    assert set(traffic.puts.keys) == {"B"}
    traffic.note_put("D", 1, 1)
    assert windows(traffic.puts, "D")[0].total == 1


async def test_pulls_are_counted_by_topic_and_group_and_their_offsets_kept(traffic, autojump_clock):
    traffic.note_pull("g", "T", 0, next_offset=5, messages=3, total_bytes=30)
    traffic.note_pull("g", "T", 0, next_offset=5, messages=0, total_bytes=0)
    traffic.note_pull("h", "T", 1, next_offset=9, messages=1, total_bytes=10)
    await trio.sleep(1)
    assert windows(traffic.pulls, "T@g")[0] == Window(3, 3.0, 3.0)
    assert windows(traffic.broker_pulls, "C")[0].total == 4
    assert traffic.pull_offsets == {("g", "T", 0): 5, ("h", "T", 1): 9}
    traffic.group_deleted("g")
    assert set(traffic.pulls.keys) == {"T@h"}
    traffic.topic_deleted("T")
    assert not traffic.pulls.keys
    assert traffic.pull_offsets == {}


async def test_pull_offsets_are_limited_and_the_first_gives_up_its_place(traffic, autojump_clock):
    for queue_id in range(9):
        traffic.note_pull("g", "T", queue_id, next_offset=1, messages=0, total_bytes=0)
    traffic.note_pull("g", "T", 7, next_offset=2, messages=0, total_bytes=0)
    assert traffic.pull_offsets == {("g", "T", 6): 1, ("g", "T", 7): 2, ("g", "T", 8): 1}


async def test_a_young_key_has_the_rate_of_a_whole_second(autojump_clock):
    table = TrafficTable("puts", keys_max=1)
    assert table.per_s("T") == 0.0
    table.count("T", 8, 1)
    assert table.per_s("T") == 8.0
    await trio.sleep(0.25)
    assert table.per_s("T") == 8.0
    await trio.sleep(3.75)
    assert table.per_s("T") == 2.0
