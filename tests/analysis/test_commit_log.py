"""Records are found and decoded as RocketMQ wrote them, for any ranges."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.logs import (
    expected_rows,
    read_all,
    record,
    write_files,
    write_log,
)
from tests.levels import by_level
from tests.store.support import STORES, VECTORS
from trioha.errors import StoreError
from trioha.store.record import Host
from trioha.store.record_layout import BLANK, BORN_HOST_V6, MAGIC_BLANK
from trioha_analysis.commitlog.files import OffsetRange, cut_ranges, list_files
from trioha_analysis.commitlog.reading import ReadOptions, read_range

FILE_BYTES = 4096


@pytest.mark.parametrize("name", STORES)
def test_a_recorded_store_has_exactly_its_messages_for_any_ranges_and_blocks(name):
    store = VECTORS / name / "store"
    expected = (expected_rows(name), [])
    assert read_all(store, options=ReadOptions(verify_bodies=True)) == expected
    for range_bytes, block_bytes in ((2000, 64), (7001, 4096), (70_000, 999)):
        ranges = cut_ranges(list_files(store), range_bytes=range_bytes)
        assert read_all(store, ranges, options=ReadOptions(block_bytes=block_bytes)) == expected, range_bytes


@pytest.mark.parametrize("name", STORES[:2])
def test_the_store_of_a_killed_broker_has_the_rows_of_the_closed_one_without_damage(name):
    rows, damage = read_all(VECTORS / name / "crash-store")
    assert rows == expected_rows(name)[: len(rows)]
    assert len(rows) > 130
    assert damage == []


@given(
    bodies=st.lists(st.binary(max_size=900), min_size=1, max_size=40),
    harm=st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=300)), max_size=4),
    cut=st.integers(100, 5000),
    block_bytes=st.integers(16, 5000),
)
def test_damage_and_rows_of_a_damaged_log_do_not_depend_on_the_ranges(
    tmp_path_factory, bodies, harm, cut, block_bytes
):
    store = tmp_path_factory.mktemp("log")
    write_log(store, bodies, file_bytes=FILE_BYTES)
    log = bytearray(b"".join(file.path.read_bytes() for file in list_files(store)))
    for anywhere, junk in harm:
        at = anywhere % len(log)
        log[at : at + len(junk)] = junk[: len(log) - at]
    write_files(store, log, file_bytes=FILE_BYTES)
    uncut = read_all(store)
    files = list_files(store)
    assert (
        read_all(store, cut_ranges(files, range_bytes=cut), options=ReadOptions(block_bytes=block_bytes))
        == uncut
    )
    rows, damage = uncut
    for row in rows:
        offset = row["physical_offset"]
        assert not any(start <= offset < start + size for start, size in damage)


def test_damage_in_the_middle_loses_only_the_damaged_record(tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 10, file_bytes=FILE_BYTES)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[offsets[3] : offsets[3] + 8] = bytes(8)
    file.write_bytes(data)
    rows, damage = read_all(tmp_path)
    assert [row["physical_offset"] for row in rows] == [*offsets[:3], *offsets[4:]]
    assert damage == [(offsets[3], offsets[4] - offsets[3])]
    (found,) = [each for each in read_range(tmp_path, OffsetRange(0, 4096)) if hasattr(each, "gap")]
    assert found.gap.reason == "zeros where a record should start"


@pytest.mark.sized
def test_a_damaged_record_after_a_range_border_is_reported_once(tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 10, file_bytes=FILE_BYTES)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[offsets[4] + 4] ^= 1
    file.write_bytes(data)
    size = offsets[1]
    for cut in range(offsets[3], offsets[5] + 2, by_level(11, 3, 1)):
        rows, damage = read_all(tmp_path, [OffsetRange(0, cut), OffsetRange(cut, None)])
        assert damage == [(offsets[4], size)], cut
        assert len(rows) == 9


def test_a_torn_last_record_ends_the_log_without_damage(tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 10, file_bytes=FILE_BYTES)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = file.read_bytes()
    for torn_at in (offsets[9] + 1, offsets[9] + 50, offsets[9] + 150):
        file.write_bytes(data[:torn_at] + bytes(FILE_BYTES - torn_at))
        rows, damage = read_all(tmp_path)
        assert [row["physical_offset"] for row in rows] == offsets[:9]
        assert damage == []


def test_a_file_that_ends_without_a_blank_is_damage_if_the_log_goes_on(tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 30, file_bytes=FILE_BYTES)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = file.read_bytes()
    file.write_bytes(data[: offsets[5]] + bytes(FILE_BYTES - offsets[5]))
    rows, damage = read_all(tmp_path)
    assert [row["physical_offset"] for row in rows] == [
        *offsets[:5],
        *(offset for offset in offsets if offset >= FILE_BYTES),
    ]
    assert damage == [(offsets[5], FILE_BYTES - offsets[5])]


def test_a_missing_file_is_damage(tmp_path):
    write_log(tmp_path, [b"x" * 100] * 80, file_bytes=FILE_BYTES)
    (tmp_path / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    for range_bytes in (1000, FILE_BYTES, 1 << 20):
        assert read_all(tmp_path, cut_ranges(list_files(tmp_path), range_bytes=range_bytes))[1] == [
            (FILE_BYTES, FILE_BYTES)
        ]


def test_a_copy_of_a_record_inside_a_body_is_not_a_row(tmp_path):
    inner = record(0, b"inner")
    # At the position of its own offset: the hardest body to tell from a record.
    body_at = len(record(0, b"")) - len("Orders") - 3 - len(b"TAGS\x01t\x02")
    body = record(body_at, b"inner") + b"tail"
    offsets = write_log(tmp_path, [body, b"after", inner], file_bytes=FILE_BYTES)
    rows, damage = read_all(tmp_path)
    assert [row["physical_offset"] for row in rows] == offsets
    assert rows[0]["body"] == body
    assert damage == []


def test_bytes_after_a_blank_are_filler_for_any_ranges(tmp_path):
    log = bytearray(FILE_BYTES * 2)
    log[: len(record(0, b"first"))] = record(0, b"first")
    at = len(record(0, b"first"))
    BLANK.pack_into(log, at, FILE_BYTES - at, MAGIC_BLANK)
    # Left over from before a truncation: a whole record with its own offset.
    stale = record(3000, b"stale")
    log[3000 : 3000 + len(stale)] = stale
    second = record(FILE_BYTES, b"second")
    log[FILE_BYTES : FILE_BYTES + len(second)] = second
    write_files(tmp_path, log, file_bytes=FILE_BYTES)
    for range_bytes in (50, 700, 2900, FILE_BYTES):
        rows, damage = read_all(tmp_path, cut_ranges(list_files(tmp_path), range_bytes=range_bytes))
        assert [row["body"] for row in rows] == [b"first", b"second"]
        assert damage == []


def test_a_body_with_a_wrong_crc_is_damage_if_bodies_are_verified(tmp_path):
    offsets = write_log(tmp_path, [b"x" * 100] * 5, file_bytes=FILE_BYTES)
    file = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[offsets[2] + 120] ^= 1
    file.write_bytes(data)
    assert len(read_all(tmp_path)[0]) == 5
    rows, damage = read_all(tmp_path, options=ReadOptions(verify_bodies=True))
    assert [row["physical_offset"] for row in rows] == [*offsets[:2], *offsets[3:]]
    assert damage == [(offsets[2], offsets[1])]


def test_ipv6_and_ipv4_hosts_are_decoded_in_one_log(tmp_path):
    log = bytearray()
    hosts = [Host.parse(text, 5) for text in ("1.2.3.4", "2001:db8::7", "1.2.3.4", "::1", "4.3.2.1")]
    for host in hosts:
        log += record(len(log), b"b", born_host=host, sys_flag=BORN_HOST_V6 if host.is_ipv6 else 0)
    write_files(tmp_path, log + bytes(FILE_BYTES - len(log)), file_bytes=FILE_BYTES)
    rows, _ = read_all(tmp_path)
    assert [row["born_host"] for row in rows] == ["1.2.3.4", "2001:db8::7", "1.2.3.4", "::1", "4.3.2.1"]
    assert {row["store_timestamp_ms"] for row in rows} == {1_700_000_000_001}
    assert {row["store_host"] for row in rows} == {"127.0.0.1"}


def test_only_requested_topics_are_read(tmp_path):
    store = VECTORS / "store-5.3.3" / "store"
    wanted = frozenset({"VecB", "VecTran"})
    rows, _ = read_all(store, options=ReadOptions(topics=wanted))
    assert rows == [row for row in expected_rows("store-5.3.3") if row["topic"] in wanted]
    assert rows


def test_preallocated_files_and_empty_stores_have_no_rows(tmp_path):
    (tmp_path / "commitlog").mkdir()
    assert read_all(tmp_path) == ([], [])
    write_files(tmp_path, bytes(2 * FILE_BYTES), file_bytes=FILE_BYTES)
    assert read_all(tmp_path) == ([], [])
    assert cut_ranges(list_files(tmp_path), range_bytes=100) == [OffsetRange(0, None, True)]


def test_a_missing_folder_and_a_deleted_file_are_errors(tmp_path):
    with pytest.raises(StoreError, match="no such folder"):
        list_files(tmp_path / "nowhere")
    shutil.copytree(VECTORS / "store-5.3.3" / "store", tmp_path / "store")
    (gone,) = cut_ranges(list_files(tmp_path / "store"), end=100)
    (tmp_path / "store/commitlog" / f"{0:020d}").unlink()
    with pytest.raises(StoreError, match="deleted since"):
        list(read_range(tmp_path / "store", gone))
    (tmp_path / "store/commitlog" / f"{65537:020d}").write_bytes(b"x")
    with pytest.raises(StoreError, match="begins inside the file before it"):
        list_files(tmp_path / "store")
