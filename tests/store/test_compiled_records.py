"""Dispatch builds the same queues and index compiled and not, and of common and of any records alike."""

from __future__ import annotations

import mmap
import shutil
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from struct import unpack_from
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest
from attrs import evolve, frozen
from hypothesis import example, given
from hypothesis import strategies as st

from hatch_build import has_compiler
from tests.compiled_code import IS_COMPILED, compiled_code
from tests.descriptors import resources_closed
from tests.levels import by_level
from tests.store.dispatching import files_below, parts_of
from tests.store.index_keys import column
from tests.store.support import HOST, STORES, VECTORS, open_log
from tests.store.test_any_record import HOST_V6, records
from trioha.compiled import description
from trioha.store import compiled_records, compiled_runs, record_entries, record_layout
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import ENTRY_BYTES, KEY_BYTES, IndexFile, IndexShape, unpack_keys
from trioha.store.record import Record, encode_record
from trioha.store.record_entries import EntryCollector
from trioha.store.record_layout import MAGIC_V1, body_crc, scan_records
from trioha.store.replica import ReplicaAppender
from trioha.store.tags import java_hashes_with_prefix, tags_code
from trioha.store.topics import SCHEDULE_TOPIC


@contextmanager
def mode(*, is_compiled, copy_bytes=1 << 17, long_bytes=8192):
    """Run compiled or not; of a log that is dispatched compiled code gets copies of `copy_bytes`, but not of
    records longer than `long_bytes`: these are collected as any record may be."""
    with (
        compiled_code(is_compiled=is_compiled),
        patch.object(record_entries, "_COPY_BYTES", copy_bytes),
        patch.object(record_entries, "_LONG_RECORD_BYTES", long_bytes),
    ):
        yield


def in_both(run, **how):
    """The result of `run`, which is the same compiled and not, and with all records taken for uncommon."""
    with mode(is_compiled=False, long_bytes=-(1 << 31)):
        one_by_one = run()
    for is_compiled in {False, IS_COMPILED}:
        with mode(is_compiled=is_compiled, **how):
            assert run() == one_by_one
    return one_by_one


def test_the_kernel_is_compiled_where_a_compiler_is():
    assert IS_COMPILED is has_compiler(), f"the code is {description()}: run make setup"


def test_constants_of_the_kernel_are_those_of_the_layout():
    assert record_layout.MAGIC_V1 == compiled_records.MAGIC_V1 == compiled_runs.MAGIC_V1
    assert record_layout.TOPIC_BYTES_MAX_V1 == compiled_records.TOPIC_BYTES_MAX
    assert record_layout.BODY_AT_V4 == compiled_records.BODY_AT
    for name in (
        "HOSTS_V6", "TRANSACTION_MASK", "TRANSACTION_PREPARED", "TRANSACTION_ROLLBACK", "CRC_MASK",
        "RECORD_BYTES_MIN",
    ):  # fmt: skip
        assert getattr(record_layout, name) == getattr(compiled_records, name), name
    assert compiled_records.KEY_BYTES == KEY_BYTES


# -- logs ----------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from(
    [b"", b"a", b"order-17", b"x y", b" x  y ", "é\U0001f680".encode(), b"\xff\xfe", b"a\x01b", b"k" * 140]
)
NAMES = st.sampled_from(
    [b"TAGS", b"KEYS", b"UNIQ_KEY", b"TAG", b"TAGSX", b"KEY", b"WAIT", b"INNER_MULTI_DISPATCH", b"DELAY", b""]
)
PROPERTIES = st.lists(
    st.tuples(
        NAMES,
        st.sampled_from([b"\x01", b"\x01", b"\x01", b"", b"\x01\x01"]),
        TEXTS,
        st.sampled_from([b"\x02", b"\x02", b"\x02", b"", b"\x02\x02"]),
    ),
    max_size=6,
).map(lambda parts: b"".join(b"".join(part) for part in parts))


@frozen
class Wanted:
    """A record to be made: its queue offset is counted, unless it has one of its own."""

    topic: str
    queue_id: int
    properties: bytes
    sys_flag: int
    body: bytes
    queue_offset: int | None
    is_ipv6: bool
    store_timestamp_ms: int


TIMES_MS = st.sampled_from([1_700_000_000_000, 1_700_000_003_999, 1_700_000_050_000, 0, -5, 1 << 62])
COMMON_PROPERTIES = st.lists(
    st.tuples(
        st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT"]), TEXTS.filter(len), st.just(b"\x02")
    ).map(lambda parts: parts[0] + b"\x01" + parts[1] + parts[2]),
    max_size=5,
).map(b"".join)
COMMON = st.builds(
    Wanted,
    topic=st.just("Orders"),
    queue_id=st.sampled_from([0, 1]),
    properties=COMMON_PROPERTIES,
    sys_flag=st.sampled_from([0, 0, 0, 0x4, 0x8, 0xC]),
    body=st.binary(max_size=30),
    queue_offset=st.none(),
    is_ipv6=st.just(False),
    store_timestamp_ms=TIMES_MS,
)
UNCOMMON = st.builds(
    Wanted,
    topic=st.sampled_from(["Orders", "Orders", "Orders", "Other", "Batched", SCHEDULE_TOPIC, "é"]),
    queue_id=st.sampled_from([0, 0, 0, 1, 5, 5000, -1]),
    properties=PROPERTIES,
    sys_flag=st.sampled_from([0, 0, 0, 0, 0x4, 0x8, 0xC]),
    body=st.binary(max_size=30) | st.just(bytes(600)),
    queue_offset=st.sampled_from([None] * 9 + [0, 3, 400]),
    is_ipv6=st.sampled_from([False] * 7 + [True]),
    store_timestamp_ms=TIMES_MS,
)


def record_of(wanted, *, queue_offset):
    host = HOST_V6 if wanted.is_ipv6 else HOST
    return Record(
        magic=MAGIC_V1,
        body_crc=body_crc(wanted.body),
        queue_id=wanted.queue_id,
        flag=0,
        queue_offset=queue_offset if wanted.queue_offset is None else wanted.queue_offset,
        physical_offset=0,
        sys_flag=wanted.sys_flag | (0x30 if wanted.is_ipv6 else 0),
        born_timestamp_ms=1,
        born_host=host,
        store_timestamp_ms=wanted.store_timestamp_ms,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=wanted.body,
        topic=wanted.topic,
        properties_raw=wanted.properties,
    )


def in_order(wanted):
    """Records whose queue offsets follow each other, as a master gives them."""
    offsets = {}
    made = []
    for one in wanted:
        key = one.topic, one.queue_id
        made.append(record_of(one, queue_offset=offsets.get(key, 0)))
        if not one.sys_flag & 0x4:
            offsets[key] = made[-1].queue_offset + 1
    return made


FIRST = [Wanted("Orders", queue_id, b"KEYS\x01first\x02", 0, b"", None, False, 1) for queue_id in (0, 1)]
"""The first record of a queue is not common."""
ORDERED = st.lists(st.one_of(COMMON, COMMON, COMMON, UNCOMMON), min_size=3, max_size=25).map(
    lambda wanted: in_order([*FIRST, *wanted])
)


def fill(log, found):
    appender = ReplicaAppender(log)
    for record in found:
        appender.append(memoryview(encode_record(evolve(record, physical_offset=log.max_offset))))


def seen(parts, folder):
    """All that dispatch has built, and says."""
    dispatcher = parts.dispatcher
    return {
        "files": [(name, data) for name, data in files_below(folder).items() if "/index/" not in f"/{name}"],
        # Their names are times.
        "index": [data for name, data in files_below(folder).items() if "/index/" in f"/{name}"],
        "position": dispatcher.position,
        "faults": (dispatcher.faults, dispatcher.last_fault, dispatcher.stuck_at),
        "time": dispatcher.last_store_timestamp_ms,
        "keys": parts.index._last_record_keys,
        "queues": {
            (queue.topic, queue.queue_id): (
                queue.min_offset, queue.max_offset, queue.next_offset, queue.max_physical_offset,
                list(queue.pending),
            )
            for queue in parts.queues
        },
    }  # fmt: skip


DISPATCH_SETTINGS = st.builds(
    DispatchSettings,
    message_index_enable=st.sampled_from([True, True, True, False]),
    enable_lmq=st.booleans(),
    enable_multi_dispatch=st.booleans(),
    is_slave=st.booleans(),
)
STEPS = st.lists(st.sampled_from([1, 2, 3, 8, 512]), min_size=1, max_size=8)
"""Records in each call; 512 at last."""


@given(
    found=ORDERED | st.lists(records(), min_size=1, max_size=12),
    how=DISPATCH_SETTINGS,
    steps=STEPS,
    rewinds=st.lists(st.integers(0, 3), max_size=2),
    patches=st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=9)), max_size=2),
    copy_bytes=st.sampled_from([100, 333, 1024, 1 << 17]),
    long_bytes=st.sampled_from([0, 300, 8192]),
)
def test_queues_and_index_of_any_log_are_the_same(  # noqa: PLR0917
    tmp_path_factory, found, how, steps, rewinds, patches, copy_bytes, long_bytes
):
    folder = tmp_path_factory.mktemp("both")
    with resources_closed():
        log, _ = open_log(folder / "log")
        fill(log, found)
        for offset, data in patches:
            view = log.files[0].view[offset : min(offset + len(data), log.max_offset)]
            view[:] = data[: len(view)]
            view.release()

        def build():
            shutil.rmtree(folder / "built", ignore_errors=True)
            parts = parts_of(
                log,
                folder / "built",
                batch={"Batched"},
                settings=how,
                shape=IndexShape(hash_slots=7, index_num=9),
            )
            passed = []
            positions = [0]
            for number, step in enumerate([*steps, *[512] * 3]):
                passed.append(parts.dispatcher.dispatch(log.max_offset, records_max=step))
                positions.append(parts.dispatcher.position)
                if number in rewinds:
                    # The records from there on come again.
                    parts.dispatcher.rewind(positions[number])
            result = seen(parts, folder / "built")
            parts.close()
            return passed, result

        in_both(build, copy_bytes=copy_bytes, long_bytes=long_bytes)
        log.close()


@pytest.mark.parametrize("copy_bytes", [700, 1 << 17])
@pytest.mark.parametrize("name", STORES)
def test_rocketmqs_logs_give_the_same_in_all_ways(name, copy_bytes, tmp_path):
    shutil.copytree(VECTORS / name / "store", tmp_path / "store")
    log, _ = open_log(tmp_path / "store/commitlog")

    def build():
        shutil.rmtree(tmp_path / "built", ignore_errors=True)
        parts = parts_of(log, tmp_path / "built", settings=DispatchSettings())
        passed = parts.dispatch_all(records_max=100)
        result = seen(parts, tmp_path / "built")
        parts.close()
        return passed, result

    passed, _ = in_both(build, copy_bytes=copy_bytes)
    assert passed > 20


# -- single cases --------------------------------------------------------------------------------------------


SHAPE = IndexShape(hash_slots=7, index_num=100)


def built(folder, found, *, shape=SHAPE, **how):
    """What dispatch builds of the records, first in steps of three, then of the last five again.

    Also returns how many keys and entries there are.
    """
    log, _ = open_log(folder / "log")
    fill(log, found)

    def build():
        shutil.rmtree(folder / "built", ignore_errors=True)
        parts = parts_of(log, folder / "built", settings=DispatchSettings(**how), shape=shape)
        positions = []
        while parts.dispatcher.dispatch(log.max_offset, records_max=3):
            positions.append(parts.dispatcher.position)
        parts.dispatcher.rewind(positions[-3])
        parts.dispatch_all()
        result = seen(parts, folder / "built")
        keys = sum(file.index_count - 1 for file in parts.index.files)
        entries = sum(queue.max_offset for queue in parts.queues)
        codes = [entry.tags_code for queue in parts.queues for entry in queue.entries(0, 99)]
        parts.close()
        return keys, entries, codes, result

    keys, entries, codes, _ = in_both(build)
    log.close()
    return keys, entries, codes


def plain_records(*properties, sys_flag=0, step_ms=700):
    """Records of one queue, `step_ms` between two of them."""
    start_ms = 1_700_000_000_000
    return in_order(
        [
            Wanted("Orders", 0, one, sys_flag if number else 0, b"", None, False, start_ms + number * step_ms)
            for number, one in enumerate([b"", *properties])
        ]
    )


@pytest.mark.parametrize(
    ("sys_flag", "keys", "entries"), [(0, 10, 11), (0x4, 10, 1), (0x8, 10, 11), (0xC, 0, 1)]
)
def test_transactions_enter_queue_and_index_by_their_type(sys_flag, keys, entries, tmp_path):
    found = plain_records(*[b"KEYS\x01k%d" % number for number in range(10)], sys_flag=sys_flag)
    assert built(tmp_path, found)[:2] == (keys, entries)


def test_of_properties_of_one_name_the_last_counts_unless_it_is_empty(tmp_path):
    found = plain_records(
        b"TAGS\x01a\x02TAGS\x01b\x02",
        b"TAGS\x01a\x02TAGS\x01\x02",
        b"TAGS\x01a\x02TAGS\x01",
        b"TAGS\x01\x02",
        b"XTAGS\x01x\x02TAGSX\x01x\x02TAGS",
        b"KEYS\x01a\x02KEYS\x01\x02UNIQ_KEY\x01u\x02UNIQ_KEY\x01\x02",
        b"TAGS\x01" + "é".encode(),
        b"TAGS\x01\xff",
        b"TAGS\x01" + b"z" * 20,
    )
    keys, entries, codes = built(tmp_path, found)
    assert (keys, entries) == (2, 10)
    assert codes == [0, *map(tags_code, ["b", "a", "a", "", "", "", "é", "\ufffd", "z" * 20])]


@pytest.mark.parametrize("step_ms", [0, 700, 5000, -5000, 1 << 45])
def test_index_files_that_get_full_are_the_same(step_ms, tmp_path):
    found = plain_records(
        *[b"KEYS\x01a%d b%d  c\x02UNIQ_KEY\x01u%d" % ((number,) * 3) for number in range(40)], step_ms=step_ms
    )
    for index_num in (2, 5, 9, 64):
        folder = tmp_path / str(index_num)
        assert built(folder, found, shape=IndexShape(hash_slots=3, index_num=index_num))[0] == 4 * 40


@pytest.mark.parametrize("number", [1, 2, 9, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_slot_that_points_at_a_later_entry_counts_as_empty(number, tmp_path):
    shape = IndexShape(hash_slots=3, index_num=50)

    def write():
        with TemporaryDirectory(dir=tmp_path) as folder:
            file = IndexFile.create(Path(folder) / "20240101000000000", shape)
            for slot in range(shape.hash_slots):
                file._view[40 + 4 * slot : 44 + 4 * slot] = number.to_bytes(4, "big")
            times = [1_700_000_000_000 + 999 * key for key in range(5)]
            keys = column([5, 0xFFFFFFF0, 0x80000000, 7, 8], [100, 100, 200, 300, 300], times)
            file.put(keys, 0, 2 * KEY_BYTES)
            file.put(keys, 2 * KEY_BYTES, len(keys))
            file.close()
            for at in range(0, 5 * ENTRY_BYTES, ENTRY_BYTES):
                entry = file.shape.entries_at + ENTRY_BYTES + at
                (previous,) = unpack_from(">i", file.path.read_bytes(), entry + 16)
                assert 0 <= previous <= at // ENTRY_BYTES
            return file.path.read_bytes()

    in_both(write)


def test_a_v1_record_with_a_topic_that_only_v2_allows_is_a_fault_for_both(tmp_path):
    # Read with a topic of 150 bytes, the record's second half is its properties.
    inner = b"p" * 48 + (90).to_bytes(2, "big") + b"q" * 90
    wanted = [Wanted("T" * 100, 0, inner, 0, b"", None, False, 1) for _ in range(3)]
    data = bytearray()
    for record in in_order(wanted):
        data += encode_record(evolve(record, physical_offset=len(data)))
    size = len(data) // 3
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = bytes(data)
    mapped[2 * size + 88] = 150
    view = memoryview(mapped)
    assert in_both(partial(scan_records, view, 0, len(view), 0)).records == 2
    result, *_ = in_both(partial(collected, view, tmp_path, records_max=9))
    assert (result.records, result.stop) == (2, record_entries.Stop.AT_FAULT)


# -- faults --------------------------------------------------------------------------------------------------

FEW = in_order(
    [
        Wanted("Orders", number % 2, properties, 0, b"body", None, number == 4, 1_700_000_000_000 + number)
        for number, properties in enumerate(
            [
                b"TAGS\x01a\x02KEYS\x01k1 k2\x02",
                b"UNIQ_KEY\x01u\x02WAIT\x01true",
                b"KEYS\x01late\x02UNIQ_KEY\x01early\x02TAGS\x01a\x02TAGS\x01b",
                b"TAGS\x01" + "é".encode() + b"\x02KEYS\x01" + "schlüssel".encode(),
                b"KEYS\x01six",
                b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010",
                b"",
                b"TAGS\x01last\x02KEYS\x01last\x02",
            ]
        )
    ]
)


def few_records():
    """Records in a map, and where they start."""
    data = b""
    starts = []
    for record in FEW:
        starts.append(len(data))
        data += encode_record(evolve(record, physical_offset=len(data)))
    mapped = mmap.mmap(-1, len(data))
    mapped[:] = data
    return memoryview(mapped), starts


@frozen
class _NoIndex:
    """Where a collector's keys go."""

    end_physical_offset: int = 0


def collected(view, root, *, records_max):
    """All entries, keys and faults that a collector finds in the view, after the first two records."""
    queues = ConsumeQueues(root)
    how = DispatchSettings(enable_multi_dispatch=True)
    collector = EntryCollector(queues, _NoIndex(), how)
    result = collector.collect(view, 0, records_max=records_max)
    keys = list(unpack_keys(collector._columns.keys()))
    entries = {
        (queue.topic, queue.queue_id): (
            b"".join(queue.pending),
            queue.next_offset,
            id(queue) in collector._touched,
        )
        for queue in queues
    }
    return result, keys, entries, collector._last_record_offset, collector._faults


BYTE_STEP = by_level(3, 1, 1)


@pytest.mark.sized
@pytest.mark.parametrize(
    ("value", "check_crc"),
    [(b"\x7f", False), (b"\xff", False), (None, True)],
)
def test_a_fault_at_every_byte_is_found_in_all_ways(value, check_crc, tmp_path):
    view, starts = few_records()
    whole = in_both(lambda: collected(view, tmp_path, records_max=99))
    assert whole[0].records == len(starts)
    # Keys of the record: UNIQ_KEY first, wherever it stands.
    early, late = java_hashes_with_prefix([whole_prefix()] * 2, [b"early", b"late"])
    assert [hashed for hashed, offset, _ in whole[1] if offset == starts[2]] == [early, late]
    for at in range(0, len(view), BYTE_STEP):
        good = view[at]
        view[at] = good ^ 1 if value is None else value[0]
        for records_max, copy_bytes in ((99, 1 << 17), (3, 200)):
            collect = partial(collected, view, tmp_path, records_max=records_max)
            in_both(collect, copy_bytes=copy_bytes)
        in_both(lambda: scan_records(view, 0, len(view), 0, check_crc=check_crc))
        view[at] = good


def whole_prefix():
    return java_hashes_with_prefix([0], [b"Orders#"])[0]


@pytest.mark.sized
@pytest.mark.parametrize(("copy_bytes", "long_bytes"), [(64, 8192), (200, 0), (200, 150), (1 << 17, 8192)])
def test_a_log_cut_at_every_byte_ends_in_one_way(copy_bytes, long_bytes, tmp_path):
    view, _ = few_records()
    how = {"copy_bytes": copy_bytes, "long_bytes": long_bytes}
    for end in range(0, len(view) + 1, BYTE_STEP):
        in_both(partial(scan_records, view, 0, end, 0))
        in_both(partial(collected, view[:end], tmp_path, records_max=99), **how)


@given(data=st.binary(max_size=300), offset=st.integers(0, 1 << 65))
@example(data=bytes(200), offset=0)
@example(data=b"\x7f" * 200, offset=0)
@example(data=b"\x7f" * 200, offset=(1 << 63) - 100)
def test_any_bytes_are_scanned_compiled_and_not(data, offset):
    view = memoryview(data)
    in_both(lambda: scan_records(view, 0, len(view), offset))
