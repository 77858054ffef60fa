"""The index: hashes, files, chains and queries, against a plain loop and against RocketMQ's answers."""

import os
from datetime import datetime
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import close_after_test, resources_closed
from tests.store.dispatching import RECORDED_INDEX, files_below
from tests.store.index_keys import column
from tests.store.support import STORES, copy_store, expected, offsets_of
from trioha.errors import ConfigError, StoreError
from trioha.store.compiled_index import KEY_BYTES
from trioha.store.index_file import IndexFile, IndexShape, key_hash
from trioha.store.index_service import IndexService
from trioha.store.tags import DelayLevels, java_hash, java_hashes, java_hashes_with_prefix, tags_code

FOR_EVER = (1 << 63) - 1
BEYOND = 1 << 40
"""After every record."""
SMALL = IndexShape(hash_slots=7, index_num=10)


# -- hashes --------------------------------------------------------------------------------------------------


def loop_hash(text):
    """The definition: 31 * h + u over UTF-16 code units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [("TagA", 2598919), ("\U0001f680", 1773027), ("polygenelubricants", -2147483648), ("", 0)],
)
def test_hashes_are_javas(text, value):
    assert java_hash(text) == value
    assert java_hashes([text.encode()]) == [value & 0xFFFFFFFF]


@given(keys=st.lists(st.one_of(st.text(max_size=40), st.text("aF09-", max_size=300)), max_size=40))
def test_many_hashes_at_once_equal_the_loop(keys):
    assert java_hashes([key.encode() for key in keys]) == [loop_hash(key) for key in keys]


@given(
    pairs=st.lists(
        st.tuples(st.text(max_size=20), st.one_of(st.text(max_size=20), st.text("x7", max_size=200)))
    )
)
def test_hashes_with_a_prefix_equal_those_of_the_whole(pairs):
    prefixes = java_hashes([prefix.encode() for prefix, _ in pairs])
    found = java_hashes_with_prefix(prefixes, [key.encode() for _, key in pairs])
    assert found == [loop_hash(prefix + key) for prefix, key in pairs]


def test_more_keys_than_are_hashed_at_once_hash_the_same():
    keys = [f"order-{number}" for number in range(5000)]
    assert java_hashes([key.encode() for key in keys]) == [loop_hash(key) for key in keys]
    assert java_hashes([b"x" * 40_000]) == [loop_hash("x" * 40_000)]


def test_index_hashes_are_absolute_and_the_lowest_number_gives_zero():
    assert [*map(key_hash, [0, 5, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF])] == [
        0,
        5,
        0x7FFFFFFF,
        0,
        0x7FFFFFFF,
        1,
    ]


def test_delay_levels_clamp_and_refuse_malformed_delays():
    levels = DelayLevels()
    assert levels.max_level == 18
    assert levels.tags_code("1", store_timestamp_ms=5) == 1005
    assert levels.tags_code("99", store_timestamp_ms=5) == 5 + 7_200_000
    assert [levels.tags_code(text, store_timestamp_ms=5) for text in ("0", "-1", "", "x")] == [None] * 4
    assert DelayLevels("").tags_code("3", store_timestamp_ms=5) == 1005
    assert tags_code("") == 0
    with pytest.raises(ConfigError, match="5x"):
        DelayLevels("1s 5x")


# -- real files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORES)
def test_recorded_index_files_answer_as_rocketmq_does(name, tmp_path):
    root = copy_store(name, tmp_path)
    before = files_below(root / "index")
    index = IndexService.open(root, RECORDED_INDEX)
    for topic_and_key, offsets in expected(name)["index"].items():
        topic, key = topic_and_key.split("#", 1)
        found = offsets_of(index, topic, key)
        assert found == offsets, topic_and_key
    index.close()
    assert files_below(root / "index") == before


def test_after_an_unclean_stop_unsafe_files_are_deleted_and_their_first_offset_is_returned(tmp_path):
    root = copy_store("store-5.3.3", tmp_path, kind="crash-store")
    files = sorted((root / "index").iterdir())
    index = close_after_test(IndexService.open(root, RECORDED_INDEX))
    last_begin = index.files[2].begin_physical_offset
    full_until = index.files[1].end_timestamp_ms
    assert index.files[1].is_full
    assert index.full_until_ms == full_until
    plan = index.plan_cut(BEYOND, safe_until_ms=full_until)
    assert (plan.redispatch_from, plan.full_until_ms) == (last_begin, FOR_EVER)
    assert sorted((root / "index").iterdir()) == files
    index.cut(plan)
    assert sorted((root / "index").iterdir()) == files[:2]
    plan = index.plan_cut(BEYOND, safe_until_ms=full_until - 1)
    assert (plan.redispatch_from, plan.full_until_ms) == (
        index.files[1].begin_physical_offset,
        index.files[0].end_timestamp_ms,
    )
    plan = index.plan_cut(BEYOND, safe_until_ms=0)
    index.cut(plan)
    assert (plan.redispatch_from, plan.full_until_ms, index.files) == (0, 0, ())


def test_a_file_that_is_not_full_may_be_partly_on_disk_though_it_ends_with_the_full_one_before(tmp_path):
    index = service(tmp_path)
    for number in range(12):
        put(index, "k", number * 10, 1000)
    assert [file.is_full for file in index.files] == [True, False]
    assert index.plan_cut(BEYOND, safe_until_ms=index.full_until_ms).redispatch_from == 90
    assert index.plan_cut(BEYOND).redispatch_from is None


# -- models --------------------------------------------------------------------------------------------------

# Few slots and few keys, so that chains are long, and texts with one hash ("Aa" and "BB").
KEYS = st.sampled_from(["Aa", "BB", "AaAa", "BBBB", "AaBB", "x", "y", "polygenelubricants", "\u00e9"])


def service(folder, *, now_ms=lambda: 1_700_000_000_000, shape=SMALL):
    return close_after_test(IndexService.open(folder, shape, now_ms=now_ms))


def put(index, key, offset, time_ms, *, topic="T"):
    keys = column(java_hashes([f"{topic}#{key}".encode()]), [offset], [time_ms])
    index.put(keys, last_record_offset=offset)


@given(
    puts=st.lists(st.tuples(KEYS, st.integers(0, 5000)), max_size=60),
    batch=st.integers(1, 25),
    begin=st.integers(0, 60_000),
    span=st.integers(0, 60_000),
)
@resources_closed()
def test_queries_find_what_a_plain_search_finds(tmp_path_factory, puts, batch, begin, span):
    folder = tmp_path_factory.mktemp("index")
    index = service(folder)
    times = []
    now = 1000
    for _, wait in puts:
        now += wait
        times.append(now)
    rows = [
        (key, 100 * (number + 1), time)
        for number, ((key, _), time) in enumerate(zip(puts, times, strict=True))
    ]
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        index.put(
            column(
                java_hashes([f"T#{key}".encode() for key, _, _ in part]),
                [offset for _, offset, _ in part],
                [time for _, _, time in part],
            ),
            last_record_offset=part[-1][1],
        )
    for number in (1, 2):
        if number == 2:
            index.close()
            index = service(folder)
        assert len(index.files) == -(-len(rows) // 9)
        for key in {key for key, _, _ in rows} | {"absent"}:
            same_hash = [row for row in rows if loop_hash(f"T#{row[0]}") == loop_hash(f"T#{key}")]
            found = offsets_of(index, "T", key)
            assert found == [offset for _, offset, _ in reversed(same_hash)]
            # Times are stored in whole seconds from the file's first time, rounded down.
            inside = offsets_of(index, "T", key, begin_ms=begin, end_ms=begin + span)
            sure = {o for _, o, time in same_hash if begin <= time <= begin + span}
            may = {o for _, o, time in same_hash if begin - 1000 < time < begin + span + 1000}
            # The first key of another file counts its time from the end of the file before, as in RocketMQ.
            first = {offset for _, offset, _ in rows[9::9]}
            assert sure - first <= set(inside) <= may | first
    index.close()


@given(
    keys=st.lists(st.sampled_from(["a", "b", "c", "d", "e", "f", "g", "h"]), min_size=1, max_size=70),
    batch=st.integers(1, 70),
)
@resources_closed()
def test_files_do_not_depend_on_how_puts_are_batched(tmp_path_factory, keys, batch):
    folders = [tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("many")]
    for folder, step in zip(folders, (1, batch), strict=True):
        index = service(folder)
        for start in range(0, len(keys), step):
            part = range(start, min(start + step, len(keys)))
            index.put(
                column(
                    java_hashes([f"T#{keys[number]}".encode() for number in part]),
                    [10 * number + 1 for number in part],
                    [5000 + 700 * number for number in part],
                ),
                last_record_offset=10 * part[-1] + 1,
            )
        index.close()
    assert files_below(folders[0]) == files_below(folders[1])


# -- files ---------------------------------------------------------------------------------------------------


def test_index_file_names_are_local_time_and_always_grow(tmp_path):
    moments = iter([1_700_000_000_123, 1_700_000_000_123, 1_600_000_000_000])
    index = service(tmp_path, now_ms=lambda: next(moments), shape=IndexShape(hash_slots=3, index_num=2))
    for number in range(3):
        put(index, "k", number + 1, 1000)
    names = [file.path.name for file in index.files]
    first = datetime.fromtimestamp(1_700_000_000).strftime("%Y%m%d%H%M%S")  # noqa: DTZ006
    assert names == [f"{first}123", f"{first}124", f"{first}125"]


def test_a_record_after_a_full_file_makes_the_next_one_without_any_key(tmp_path):
    index = service(tmp_path)
    for number in range(9):
        put(index, "k", number + 1, 1000 + number)
    assert len(index.files) == 1
    index.put(b"", last_record_offset=10)
    assert len(index.files) == 2
    new = index.files[1]
    assert (new.is_empty, new.begin_timestamp_ms, new.end_physical_offset) == (True, 1008, 9)


def test_records_without_keys_in_the_batch_that_fills_a_file_make_the_next_one(tmp_path):
    index = service(tmp_path)
    hashes = java_hashes([b"T#k"] * 9)
    index.put(column(hashes, list(range(1, 10)), [1000] * 9), last_record_offset=10)
    assert [file.is_full for file in index.files] == [True, False]
    other = service(tmp_path / "other")
    other.put(column(hashes, list(range(1, 10)), [1000] * 9), last_record_offset=9)
    assert [file.is_full for file in other.files] == [True]


def test_the_first_key_of_a_file_counts_its_time_from_the_end_of_the_file_before(tmp_path):
    index = service(tmp_path)
    for number in range(9):
        put(index, "old", number + 1, 10_000 + number * 1000)
    for number, time_ms in enumerate([25_500, 29_000, 24_000]):
        put(index, "new", 100 + number, time_ms)
    first, second = index.files
    assert (first.begin_timestamp_ms, first.end_timestamp_ms) == (10_000, 18_000)
    assert (second.begin_timestamp_ms, second.begin_physical_offset) == (25_500, 100)
    data = second.path.read_bytes()
    diffs = [int.from_bytes(data[SMALL.entries_at + n * 20 + 12 :][:4], "big") for n in (1, 2, 3)]
    assert diffs == [(25_500 - 18_000) // 1000, 3, 0]


def test_the_last_record_put_again_adds_only_the_keys_that_were_missing(tmp_path):
    index = service(tmp_path)
    put(index, "first", 100, 1000)
    index.put(
        column(java_hashes([b"T#first", b"T#second", b"T#third"]), [100, 100, 200], [1000] * 3),
        last_record_offset=200,
    )
    assert index.files[0].index_count == 4
    for key, offset in (("first", 100), ("second", 100), ("third", 200)):
        assert offsets_of(index, "T", key) == [offset]


def entries(index):
    return sorted(
        (int.from_bytes(data[at : at + 4], "big"), int.from_bytes(data[at + 4 : at + 12], "big"))
        for file in index.files
        for data in [file.path.read_bytes()]
        for at in range(SMALL.entries_at + 20, SMALL.entries_at + 20 * file.index_count, 20)
    )


@pytest.mark.parametrize("offsets", [range(100, 1000, 100), [*range(100, 1000, 100), 900]])
def test_the_last_record_put_again_is_recognized_though_its_file_is_full(tmp_path, offsets):
    # Nine keys fill a file: the last record's are in it, or some of them in the next one.
    index = service(tmp_path)
    hashes = java_hashes([f"T#{number}".encode() for number in range(len(offsets))])
    index.put(column(hashes, offsets, [1000] * len(offsets)), last_record_offset=offsets[-1])
    before = entries(index)
    assert len(before) == len(offsets)
    index.close()
    index = service(tmp_path)
    files = len(index.files)
    # After a start dispatch begins before the index ends: records that are in it bring no keys at first.
    index.put(b"", last_record_offset=offsets[-2])
    last = [at for at, offset in enumerate(offsets) if offset == offsets[-1]]
    index.put(
        column([hashes[at] for at in last], [offsets[-1]] * len(last), [1000] * len(last)),
        last_record_offset=offsets[-1],
    )
    assert entries(index) == before
    assert len(index.files) == files


def test_a_cut_deletes_files_with_lost_records_and_returns_where_they_began(tmp_path):
    index = service(tmp_path)
    for number in range(30):
        put(index, "k", number * 10, 1000)
    assert index.plan_cut(300).redispatch_from is None
    plan = index.plan_cut(150)
    assert plan.redispatch_from == 90
    index.cut(plan)
    assert [file.end_physical_offset for file in index.files] == [80]
    assert offsets_of(index, "T", "k") == list(range(80, -1, -10))
    # The last indexed record starts at the cut: it is lost, too.
    plan = index.plan_cut(80)
    assert plan.redispatch_from == 0
    index.cut(plan)
    assert index.files == ()


def test_files_before_the_logs_begin_are_deleted_but_never_the_newest(tmp_path):
    index = service(tmp_path)
    for number in range(30):
        put(index, "k", number * 10, 1000)
    assert index.delete_before(81) == 1
    assert index.delete_before(170) == 0
    assert index.delete_before(1 << 40) == 2
    assert len(index.files) == len(list((tmp_path / "index").iterdir())) == 1


def test_a_queue_file_without_space_is_not_left_on_disk(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    index = service(tmp_path)
    with pytest.raises(StoreError, match="could be reserved: No space left"):
        put(index, "a", 1, 1000)
    assert list((tmp_path / "index").iterdir()) == []


def test_where_the_file_system_cannot_reserve_zeros_are_written(tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    index = service(tmp_path)
    for number in range(5):
        put(index, "k", number, 1000)
    assert index.files[0].path.stat().st_blocks * 512 >= SMALL.file_bytes
    assert offsets_of(index, "T", "k") == [4, 3, 2, 1, 0]


def test_a_file_of_another_shape_is_refused_with_both_lengths(tmp_path):
    put(service(tmp_path), "k", 1, 1000)
    with pytest.raises(StoreError, match="has 268 bytes, the configuration says 288; maxHashSlotNum"):
        service(tmp_path, shape=IndexShape(hash_slots=7, index_num=11))


@given(noise=st.binary(min_size=1, max_size=60), at=st.integers(0, 267))
@resources_closed()
def test_damaged_files_answer_and_grow_without_a_crash(tmp_path_factory, noise, at):
    folder = tmp_path_factory.mktemp("damage")
    index = service(folder)
    for number in range(6):
        put(index, "kl"[number % 2], number * 10, 1000 * number)
    path = index.files[0].path
    index.close()
    data = bytearray(path.read_bytes())
    part = noise[: len(data) - at]
    data[at : at + len(part)] = part
    path.write_bytes(data)
    file = IndexFile.open(path, SMALL)
    for hashed in map(key_hash, java_hashes([b"T#k", b"T#l", b"T#m"])):
        assert len(list(file.find(hashed, begin_ms=0, end_ms=FOR_EVER))) <= 10
    count = file.index_count
    if file.room:
        file.put(column(java_hashes([b"T#k"]), [1000], [1 << 41]), 0, KEY_BYTES)
        assert (file.index_count, file.end_physical_offset) == (count + 1, 1000)
    file.close()


@pytest.mark.parametrize("is_full", [True, False])
def test_an_index_file_that_lost_its_end_fails_only_those_who_look_there(is_full, tmp_path):
    """As a page that the disk does not give: the file is not mapped for reads."""
    index = close_after_test(IndexService.open(tmp_path, SMALL))
    count = 2 * (SMALL.index_num - 1) if is_full else 3
    index.put(
        column(java_hashes([b"T#k"] * count), list(range(100, 100 + count)), [1] * count),
        last_record_offset=99,
    )
    offsets = offsets_of(index, "T", "k")
    os.truncate(index.files[0].path, SMALL.entries_at)
    found = index.candidates("T", "k")
    if is_full:
        in_newest_file = SMALL.index_num - 1
        assert list(islice(found, in_newest_file)) == offsets[:in_newest_file]
    with pytest.raises(StoreError, match=rf"ends before byte \d+ of {SMALL.file_bytes}"):
        next(found)
