"""Reads by queue offset, physical offset, time and key, on real stores and against brute force."""

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from tests.compiled_code import WAYS, compiled_code
from tests.descriptors import resources_closed
from tests.store.dispatching import RECORDED_INDEX, batch_topics, parts_of, recorded_settings
from tests.store.support import STORES, copy_store, expected, message, offsets_of, open_log
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.index_file import IndexShape
from trioha.store.reads import SCAN_ENTRIES_MAX, GetStatus, MessageReader, ReadLimits, has_key
from trioha.store.record import decode_record
from trioha.store.record_layout import store_timestamp_ms
from trioha.store.tags import java_hash

ALL = ReadLimits(messages_max=1000, bytes_max=1 << 30)


def recorded(name, tmp_path):
    """A reader on a recorded store, unchanged."""
    root = copy_store(name, tmp_path)
    log, _ = open_log(root / "commitlog")
    parts = parts_of(
        log, root, batch=batch_topics(name), settings=recorded_settings(name), shape=RECORDED_INDEX
    )
    parts.queues.correct_min_offsets(log.min_offset)
    return MessageReader(log, parts.queues, parts.index), parts


def small(tmp_path, tags=(), *, body_bytes=100, queue_settings=None):
    """A reader on a store with one queue and a message for each tag, and the put results."""
    log, _ = open_log(tmp_path / "log")
    results = [
        log.append(message(bytes(body_bytes), properties=f"TAGS\x01{tag}\x02KEYS\x01k{number}".encode()))
        for number, tag in enumerate(tags)
    ]
    parts = parts_of(
        log,
        tmp_path / "store",
        queue_settings=queue_settings or ConsumeQueueSettings(file_bytes=400),
        shape=IndexShape(hash_slots=11, index_num=5000),
    )
    parts.dispatch_all()
    return MessageReader(log, parts.queues, parts.index), parts, results


# -- by queue offset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_every_queue_of_a_real_store_reads_whole(name, tmp_path):
    reader, parts = recorded(name, tmp_path)
    plain = [
        found
        for found in expected(name)["messages"]
        if not found.get("blank") and found["sysFlag"] & 0xC not in {0x4, 0xC}
    ]
    for queue in parts.queues:
        found = reader.get(queue.topic, queue.queue_id, 0, limits=ALL)
        assert found.status is GetStatus.FOUND
        assert (found.next_begin_offset, found.max_offset) == (queue.max_offset, queue.max_offset)
        assert found.messages == queue.max_offset
        decoded = [decode_record(record) for record in found.records]
        if not queue.topic.startswith("%LMQ%"):
            wanted = [m for m in plain if (m["topic"], m["queueId"]) == (queue.topic, queue.queue_id)]
            assert [record.physical_offset for record in decoded] == [m["physicalOffset"] for m in wanted]
            assert [record.message_id for record in decoded] == [m["msgId"] for m in wanted]
        else:
            assert len(decoded) == queue.max_offset > 0
        assert reader.min_offset(queue.topic, queue.queue_id) == 0
        assert reader.max_offset(queue.topic, queue.queue_id) == queue.max_offset


def test_statuses_are_those_of_the_broker(tmp_path):
    reader, parts, _ = small(tmp_path, ["t"] * 45)
    get = reader.get
    assert get("Nobody", 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    parts.queues.find_or_make("Empty", 0)
    found = get("Empty", 0, 7)
    assert (found.status, found.next_begin_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0)
    found = get("Orders", 0, 45)
    assert (found.status, found.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, 45)
    found = get("Orders", 0, 46)
    assert (found.status, found.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 45)
    found = get("Orders", 0, -3)
    assert (found.status, found.next_begin_offset) == (GetStatus.OFFSET_TOO_SMALL, 0)
    parts.queues.correct_min_offsets(parts.queues.find("Orders", 0).entry(25).physical_offset)
    found = get("Orders", 0, 24)
    assert (found.status, found.next_begin_offset, found.min_offset) == (GetStatus.OFFSET_TOO_SMALL, 25, 25)
    found = get("Orders", 0, 25)
    assert (found.status, found.messages, found.next_begin_offset) == (GetStatus.FOUND, 20, 45)


def test_limits_of_messages_and_bytes_hold_and_one_message_is_always_returned(tmp_path):
    reader, _, results = small(tmp_path, ["t"] * 50)
    size = results[0].size

    def count(**limits):
        found = reader.get("Orders", 0, 3, limits=ReadLimits(**limits))
        assert found.next_begin_offset == 3 + found.messages
        assert found.total_bytes == sum(len(record) for record in found.records)
        assert found.queue_offsets == tuple(range(3, 3 + found.messages))
        return found.messages

    assert count() == 32
    assert count(messages_max=1) == 1
    assert count(bytes_max=1) == 1
    assert count(messages_max=100, bytes_max=results[3].size + results[4].size) == 2
    assert count(messages_max=100, bytes_max=5 * size + size // 2) == 5
    assert count(messages_max=1000) == 47


def test_records_are_views_of_the_log_and_not_copies(tmp_path):
    reader, parts, results = small(tmp_path, ["t"] * 2)
    (record, _) = reader.get("Orders", 0, 0).records
    parts.log.files[0].view[results[0].physical_offset + 90] ^= 0xFF
    assert record[90] == 0xFF


def test_tags_are_matched_by_code_and_the_next_offset_is_after_the_last_checked_entry(tmp_path):
    reader, _, _ = small(tmp_path, ["Aa", "x", "BB", "y"] * 30)
    found = reader.get("Orders", 0, 1, limits=ALL, tag_codes=[java_hash("Aa")])
    # Two tags with one code: the consumer compares them.
    assert java_hash("Aa") == java_hash("BB")
    assert found.queue_offsets == tuple(number for number in range(1, 120) if number % 2 == 0)
    assert found.next_begin_offset == 120
    found = reader.get("Orders", 0, 0, tag_codes=[java_hash("absent")])
    assert (found.status, found.next_begin_offset, found.records) == (GetStatus.NO_MATCHED_MESSAGE, 120, ())
    negative = java_hash("polygenelubricants")
    assert negative < 0
    assert reader.get("Orders", 0, 0, tag_codes=[negative]).status is GetStatus.NO_MATCHED_MESSAGE


def test_tags_with_negative_codes_are_found(tmp_path):
    reader, _, _ = small(tmp_path, ["x", "polygenelubricants"])
    assert reader.get("Orders", 0, 0, tag_codes=[java_hash("polygenelubricants")]).queue_offsets == (1,)


def test_a_search_for_rare_tags_is_bounded_and_returns_the_next_offset(tmp_path):
    count = SCAN_ENTRIES_MAX + 50
    reader, _, _ = small(
        tmp_path, ["t"] * (count - 1) + ["rare"], body_bytes=1, queue_settings=ConsumeQueueSettings()
    )
    found = reader.get("Orders", 0, 0, tag_codes=[java_hash("rare")])
    assert (found.status, found.next_begin_offset) == (GetStatus.NO_MATCHED_MESSAGE, SCAN_ENTRIES_MAX)
    found = reader.get("Orders", 0, found.next_begin_offset, tag_codes=[java_hash("rare")])
    assert (found.status, found.queue_offsets) == (GetStatus.FOUND, (count - 1,))


def test_entries_with_deleted_or_other_records_return_no_wrong_record(tmp_path):
    reader, parts, _ = small(tmp_path, ["t"] * 5)
    queue = parts.queues.find("Orders", 0)
    end = parts.log.max_offset
    # An entry beyond the log's end, one into the middle of a record, and one of absurd size.
    for number, (offset, size) in enumerate([(end, 200), (end + 9, 100), (end + 500, 0x7FFFFFFE)]):
        queue.put(physical_offset=offset, size=size, tags_code=0, queue_offset=5 + number)
    queue.flush()
    found = reader.get("Orders", 0, 0)
    # What has no room in an answer is looked at for the next one.
    assert (found.status, found.messages, found.next_begin_offset) == (GetStatus.FOUND, 5, 6)
    found = reader.get("Orders", 0, 6)
    assert (found.status, found.next_begin_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 8)


def joined_as_apart(reader, offset, *, is_whole=True, **options):
    """A read with records joined, which gives the bytes and offsets of one without; so does that of common
    records, where it gives any."""
    apart = reader.get("Orders", 0, offset, **options)
    joined = reader.get("Orders", 0, offset, joined=True, **options)
    assert b"".join(joined.records) == b"".join(apart.records)
    assert joined.queue_offsets == ()
    same = evolve(apart, records=(), queue_offsets=())
    assert evolve(joined, records=()) == same
    if options.pop("tag_codes", None) is None:
        limits = options.pop("limits", ReadLimits())
        common = reader.get_common("Orders", 0, offset, limits, options.pop("log_end", None))
        if common is not None:
            assert b"".join(common.records) == b"".join(joined.records)
            assert evolve(common, records=()) == evolve(joined, records=())
        elif joined.messages and is_whole:
            # A first record of more bytes is left to `get`.
            assert len(joined.records[0]) > limits.bytes_max
    return joined


def test_records_that_are_neighbours_are_joined(tmp_path):
    reader, parts, results = small(tmp_path, ["t"] * 40)
    size = results[0].size
    assert len(joined_as_apart(reader, 3).records) == 1
    assert joined_as_apart(reader, 3, limits=ReadLimits(bytes_max=size * 5 + 1)).messages == 5
    assert joined_as_apart(reader, 3, limits=ReadLimits(bytes_max=1)).messages == 1
    assert joined_as_apart(reader, 0, limits=ALL, log_end=results[20].end_offset).messages == 21
    assert joined_as_apart(reader, 0, limits=ALL, tag_codes=[java_hash("t")]).messages == 40
    assert joined_as_apart(reader, 0, limits=ALL, tag_codes=[java_hash("u")]).messages == 0
    # Another queue's records between them.
    other = parts.log.append(message(queue_id=1))
    last = parts.log.append(message())
    parts.dispatch_all()
    found = joined_as_apart(reader, 0, limits=ALL)
    assert [len(record) for record in found.records] == [other.physical_offset, last.size]


def test_a_damaged_queue_whose_entries_changed_places_gives_the_records_that_they_name(tmp_path):
    reader, _, results = small(tmp_path, ["t"] * 40)
    path = min((tmp_path / "store" / "consumequeue" / "Orders" / "0").iterdir())
    entries = path.read_bytes()
    with path.open("r+b") as file:
        file.write(entries[:20] + entries[40:60] + entries[20:40])
    found = joined_as_apart(reader, 0)
    sizes = [result.size for result in results]
    assert [len(record) for record in found.records] == [sizes[0], sizes[2], sizes[1], sum(sizes[3:32])]


@pytest.mark.parametrize("is_compiled", WAYS)
# The damaged record would be the first beyond `bytes_max`.
@example(
    tags=["a"] * 12,
    queues=[0] * 6 + [1] * 5 + [0],
    offset=5,
    messages_max=2,
    bytes_max=204,
    wanted=None,
    damaged=11,
)
@given(
    tags=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=30),
    queues=st.lists(st.integers(0, 1), min_size=30, max_size=30),
    offset=st.integers(0, 31),
    messages_max=st.integers(1, 40),
    bytes_max=st.integers(1, 6000),
    wanted=st.sampled_from([None, ["a"]]),
    damaged=st.sampled_from([None, 0, 3, 11]),
)
@resources_closed()
def test_a_joined_read_gives_what_one_of_single_records_gives(
    tmp_path_factory, *, is_compiled, tags, queues, offset, messages_max, bytes_max, wanted, damaged
):
    with compiled_code(is_compiled=is_compiled):
        folder = tmp_path_factory.mktemp("joined")
        log, _ = open_log(folder / "log")
        results = [
            log.append(message(bytes(100), queue_id=queue, properties=f"TAGS\x01{tag}".encode()))
            for tag, queue in zip(tags, queues, strict=False)
        ]
        parts = parts_of(log, folder / "store", queue_settings=ConsumeQueueSettings(file_bytes=400))
        parts.dispatch_all()
        if damaged is not None and damaged < len(results):
            log.files[0].view[results[damaged].physical_offset + 3] ^= 0x01
        joined_as_apart(
            MessageReader(log, parts.queues, parts.index),
            offset,
            is_whole=damaged is None,
            limits=ReadLimits(messages_max=messages_max, bytes_max=bytes_max),
            tag_codes=None if wanted is None else [java_hash(tag) for tag in wanted],
        )


def test_a_pull_inside_of_a_batch_gives_the_whole_record(tmp_path):
    reader, parts = recorded("store-5.3.3", tmp_path)
    queue = parts.queues.find("VecBCQ", 0)
    entry = next(entry for entry in queue.entries(0, 99) if entry.messages > 2)
    found = reader.get("VecBCQ", 0, entry.queue_offset + 1, limits=ReadLimits(messages_max=1))
    assert found.queue_offsets == (entry.queue_offset,)
    assert found.next_begin_offset == entry.queue_offset + entry.messages
    assert found.messages == entry.messages


# -- by physical offset --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_records_are_found_where_they_start_and_nowhere_else(name, tmp_path):
    reader, parts = recorded(name, tmp_path)
    starts = {m["physicalOffset"]: m["size"] for m in expected(name)["messages"] if not m.get("blank")}
    for offset in range(0, parts.log.max_offset + 200, 7):
        found = reader.record_at(offset)
        assert (found is not None) == (offset in starts), offset
    for offset, size in starts.items():
        assert len(reader.record_at(offset)) == size
    assert [reader.record_at(offset) for offset in (-1, -(1 << 62), 1 << 62)] == [None] * 3


# -- by time -------------------------------------------------------------------------------------------------


@given(
    waits=st.lists(st.integers(0, 5), min_size=1, max_size=40),
    asked=st.integers(-3, 120),
    head=st.integers(0, 39),
)
@resources_closed()
def test_offsets_by_time_are_those_of_a_plain_search(tmp_path_factory, waits, asked, head):
    folder = tmp_path_factory.mktemp("time")
    reader, parts, results = small(folder, ["t"] * len(waits))
    now, times = 1_000_000, []
    for wait, result in zip(waits, results, strict=True):
        now += wait
        times.append(now)
        parts.log.files[0].view[result.physical_offset + 56 : result.physical_offset + 64] = now.to_bytes(
            8, "big"
        )
    head = min(head, len(times) - 1)
    parts.queues.correct_min_offsets(results[head].physical_offset)
    asked_ms = 1_000_000 + asked
    late = [number for number in range(head, len(times)) if times[number] >= asked_ms]
    early = [number for number in range(head, len(times)) if times[number] <= asked_ms]
    assert reader.offset_by_time("Orders", 0, asked_ms) == (late[0] if late else len(times))
    assert reader.offset_by_time("Orders", 0, asked_ms, upper=True) == (early[-1] if early else head)
    assert reader.earliest_store_timestamp("Orders", 0) == times[head]
    assert reader.store_timestamp("Orders", 0, len(times)) == -1
    parts.close()


@pytest.mark.parametrize("name", STORES)
def test_every_store_time_of_a_real_store_leads_to_its_message(name, tmp_path):
    reader, parts = recorded(name, tmp_path)
    for queue in parts.queues:
        entries = list(queue.entries(0, 1000))
        times = [store_timestamp_ms(reader.record_at(entry.physical_offset), 0) for entry in entries]
        for entry, stored_ms in zip(entries, times, strict=True):
            first = entries[times.index(stored_ms)]
            assert reader.offset_by_time(queue.topic, queue.queue_id, stored_ms) == first.queue_offset
            assert reader.store_timestamp(queue.topic, queue.queue_id, entry.queue_offset) == stored_ms
        assert reader.offset_by_time(queue.topic, queue.queue_id, times[-1] + 1) == queue.max_offset


def test_an_unknown_queue_has_offset_zero_and_no_times(tmp_path):
    reader, _, _ = small(tmp_path, ["t"])
    assert (reader.min_offset("No", 1), reader.max_offset("No", 1), reader.offset_by_time("No", 1, 5)) == (
        0,
        0,
        0,
    )
    assert reader.earliest_store_timestamp("No", 1) == -1


# -- by key --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_every_key_of_a_real_store_is_found_newest_first(name, tmp_path):
    reader, _ = recorded(name, tmp_path)
    messages = {m["physicalOffset"]: m for m in expected(name)["messages"] if not m.get("blank")}
    for topic_and_key, offsets in expected(name)["index"].items():
        topic, key = topic_and_key.split("#", 1)
        found = [decode_record(record).physical_offset for record in reader.by_key(topic, key)]
        # RocketMQ's list may have other keys with the same hash; ours leaves them out.
        wanted = [
            offset
            for offset in offsets
            if key == messages[offset].get("uniqKey")
            or key in (messages[offset].get("keys") or "").split(" ")
        ]
        assert found[:32] == wanted
        assert wanted


@pytest.mark.parametrize("name", STORES)
def test_a_record_is_found_by_its_key_in_the_millisecond_in_which_it_was_stored(name, tmp_path):
    reader, _ = recorded(name, tmp_path)
    for one in expected(name)["messages"]:
        if one.get("blank") or not one.get("uniqKey"):
            continue
        stored_ms = one["storeTimestamp"]

        def found(begin_ms, end_ms, one=one):
            records = reader.by_key(one["topic"], one["uniqKey"], begin_ms=begin_ms, end_ms=end_ms)
            return one["physicalOffset"] in {decode_record(record).physical_offset for record in records}

        assert found(stored_ms, stored_ms)
        assert not found(stored_ms + 1, stored_ms + 5000)
        assert not found(stored_ms - 5000, stored_ms - 1)


def test_keys_with_one_hash_are_distinguished_in_any_number(tmp_path):
    log, _ = open_log(tmp_path / "log")
    rare = log.append(message(properties=b"KEYS\x01AaAa"))
    for _ in range(200):
        log.append(message(properties=b"KEYS\x01BBBB"))
    parts = parts_of(log, tmp_path / "store", shape=IndexShape(hash_slots=11, index_num=5000))
    parts.dispatch_all()
    reader = MessageReader(log, parts.queues, parts.index)
    assert offsets_of(parts.index, "Orders", "AaAa")[0] != rare.physical_offset
    (record,) = reader.by_key("Orders", "AaAa")
    assert decode_record(record).physical_offset == rare.physical_offset
    assert len(reader.by_key("Orders", "BBBB")) == len(reader.by_key("Orders", "BBBB", limit=999)) == 64
    assert len(reader.by_key("Orders", "BBBB", limit=3)) == 3
    assert reader.by_key("Other", "BBBB") == ()
    assert has_key(record, "Orders", "AaAa")
    assert not has_key(record, "Orders", "")


def test_without_an_index_no_key_is_found(tmp_path):
    _, parts, _ = small(tmp_path, ["t"])
    assert MessageReader(parts.log, parts.queues, None).by_key("Orders", "k0") == ()
    assert len(MessageReader(parts.log, parts.queues, parts.index).by_key("Orders", "k0")) == 1


@given(patches=st.lists(st.tuples(st.integers(0, 12_000), st.binary(min_size=1, max_size=12)), max_size=8))
@resources_closed()
def test_a_log_damaged_under_its_queues_is_read_without_a_crash(tmp_path_factory, patches):
    reader, parts, results = small(tmp_path_factory.mktemp("damage"), ["t"] * 60)
    for offset, data in patches:
        part = data[: parts.log.max_offset - offset]
        parts.log.files[0].view[offset : offset + len(part)] = part
    found = reader.get("Orders", 0, 0, limits=ALL)
    untouched = [
        number
        for number, result in enumerate(results)
        if not any(o < result.end_offset and o + len(d) > result.physical_offset for o, d in patches)
    ]
    assert set(untouched) <= set(found.queue_offsets)
    assert found.next_begin_offset == 60
    assert 0 <= reader.offset_by_time("Orders", 0, results[30].store_timestamp_ms) <= 60
    for number in untouched:
        assert len(reader.by_key("Orders", f"k{number}")) == 1
    parts.close()


@given(
    places=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 300)), min_size=1, max_size=60),
    share=st.floats(0, 1),
)
@resources_closed()
def test_a_read_up_to_an_offset_of_the_log_sees_the_whole_records_before_it(tmp_path_factory, places, share):
    folder = tmp_path_factory.mktemp("end")
    log, _ = open_log(folder / "log")
    ends = []
    for queue_id, body_bytes in places:
        ends.append((queue_id, log.append(message(bytes(body_bytes), queue_id=queue_id)).end_offset))
    parts = parts_of(
        log,
        folder / "store",
        queue_settings=ConsumeQueueSettings(file_bytes=400),
        shape=IndexShape(hash_slots=11, index_num=5000),
    )
    parts.dispatch_all()
    reader = MessageReader(log, parts.queues, parts.index)
    log_end = round(share * log.max_offset)
    for queue_id in range(3):
        stored = sum(queue == queue_id for queue, _ in ends)
        visible = sum(queue == queue_id and end <= log_end for queue, end in ends)
        assert reader.max_offset("Orders", queue_id, log_end=log_end) == visible
        found = reader.get("Orders", queue_id, 0, limits=ALL, log_end=log_end)
        assert found.queue_offsets == tuple(range(visible))
        if stored:
            assert (found.next_begin_offset, found.max_offset) == (visible, visible)
            for offset in range(visible, stored + 1):
                waits = reader.get("Orders", queue_id, offset, log_end=log_end)
                assert (waits.status, waits.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, offset)
            beyond = reader.get("Orders", queue_id, stored + 1, log_end=log_end)
            assert (beyond.status, beyond.next_begin_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, visible)
    parts.close()
