"""Epochs: the table, its file, and both kept equal."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.epochs import epoch_at
from tests.store.crashes import Crash, CrashingDisk
from tests.store.support import VECTORS, message, open_store
from trioha.errors import StoreError
from trioha.store.atomic_file import backup_of
from trioha.store.epochs import EpochEntry, EpochFile, EpochLog, EpochTable

FAR = 1 << 62
RECORDED = {
    "ha-autoswitch-5.3.3/epochFileCheckpoint.store1": ((1, 0), (2, 639), (3, 1278)),
    "ha-autoswitch-5.3.3/epochFileCheckpoint.store2": ((1, 0), (2, 639), (3, 1278)),
    "controller-5.3.3/epochFileCheckpoint": ((1, 0), (2, 49380)),
}


def table(*entries):
    return EpochTable(tuple(EpochEntry(epoch, start) for epoch, start in entries))


# -- the table: RocketMQ's EpochFileCacheTest, and more ------------------------------------------------------

CACHE = table((1, 100), (2, 300), (3, 500))


def test_a_suffix_is_cut_at_an_offset():
    assert CACHE.truncate_suffix(150) == table((1, 100))
    assert CACHE.truncate_suffix(500) == table((1, 100), (2, 300))
    assert CACHE.truncate_suffix(501) is CACHE
    assert CACHE.truncate_suffix(100) == EpochTable()


def test_an_epoch_ends_where_the_next_one_or_the_log_does():
    assert CACHE.end_of(EpochEntry(2, 300), 700) == 500
    assert CACHE.end_of(EpochEntry(3, 500), 700) == 700


@pytest.mark.parametrize(
    ("own", "own_end", "theirs", "their_end", "point"),
    [
        (CACHE, 700, table((1, 100), (2, 300), (3, 450)), 700, 450),
        (CACHE, 700, CACHE, 600, 600),
        (table((1, 200), (2, 500)), 700, table((3, 500)), 700, None),
        (CACHE, 700, table((3, 500), (4, 700)), 1000, 700),
        # The recorded old master with two messages that no slave had.
        (table((1, 0), (2, 639)), 1804, table((1, 0), (2, 639), (3, 1278)), 1278, 1278),
        (EpochTable(), 0, CACHE, 700, None),
        # Epoch 3 began, and the bytes before its start were lost in a power cut.
        (CACHE, 400, CACHE, 700, 400),
    ],
)
def test_the_consistent_point_is_where_the_last_common_epoch_ends_first(
    own, own_end, theirs, their_end, point
):
    assert own.consistent_offset(own_end, theirs.entries, their_end) == point


def test_without_its_data_an_epoch_is_replaced_by_the_next_one_at_the_same_offset():
    assert CACHE.append(4, 500) == table((1, 100), (2, 300), (4, 500))
    assert CACHE.append(4, 501) == table((1, 100), (2, 300), (3, 500), (4, 501))
    assert CACHE.append(3, 500) is CACHE


def test_two_masters_at_one_offset_have_no_common_bytes():
    """RocketMQ keeps (2, 639) for both, and takes the bytes of epoch 3 for those of epoch 2."""
    first_master = table((1, 0)).append(2, 639)
    second_master = table((1, 0)).append(2, 639).append(3, 639)
    assert first_master.consistent_offset(900, second_master.entries, 1000) == 639


@pytest.mark.parametrize(("epoch", "start"), [(2, 600), (3, 501), (3, 499), (4, 499), (4, -1)])
def test_an_epoch_that_does_not_follow_the_last_one_is_refused(epoch, start):
    with pytest.raises(ValueError, match=r"do not ascend|negative"):
        CACHE.append(epoch, start)


def test_epochs_from_one_on_are_dropped():
    assert CACHE.drop_from(2) == table((1, 100))
    assert CACHE.drop_from(4) is CACHE
    assert EpochTable().last_epoch == CACHE.drop_from(0).last_epoch == -1
    assert CACHE.last_epoch == 3


def test_epochs_of_deleted_log_files_are_dropped_but_never_the_last_one():
    assert CACHE.truncate_prefix(300) is CACHE
    assert CACHE.truncate_prefix(301) == table((2, 300), (3, 500))
    assert CACHE.truncate_prefix(FAR) == table((3, 500))
    assert EpochTable().truncate_prefix(FAR) == EpochTable()


epochs_st = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 500)), max_size=8)


def ascending(steps, *, first_start=0):
    entries, epoch, start = [], 0, first_start
    for number, (epoch_step, start_step) in enumerate(steps):
        epoch += epoch_step
        start += start_step if number else 0
        entries.append((epoch, start))
    return table(*entries)


@given(steps=epochs_st, offset=st.integers(0, 4000), log_end=st.integers(0, 5000))
def test_cuts_keep_every_epoch_on_their_side(steps, offset, log_end):
    whole = ascending(steps)
    assert all(entry.start_offset < offset for entry in whole.truncate_suffix(offset).entries)
    kept = whole.truncate_prefix(offset)
    for at in range(offset, offset + 3):
        # Who wrote the bytes that are left is known as before.
        assert epoch_at(kept, at) == epoch_at(whole, at)
    for entry in whole.entries:
        end = whole.end_of(entry, log_end)
        assert end >= entry.start_offset
        if entry.start_offset <= log_end:
            assert end <= log_end


@given(data=st.data())
def test_the_consistent_point_is_right_for_any_two_histories(data):
    """Two copies of one log that different masters wrote on, each byte known by its writer and number."""
    epoch, histories = 0, [[], []]
    tables = [EpochTable(), EpochTable()]
    for _ in range(data.draw(st.integers(1, 8))):
        epoch += data.draw(st.integers(1, 3))
        master = data.draw(st.integers(0, 1))
        tables[master] = tables[master].append(epoch, len(histories[master]))
        histories[master] += [epoch] * data.draw(st.integers(0, 5))
        if data.draw(st.booleans()):
            # The other one follows: it cuts, and copies all or a part.
            slave = 1 - master
            point = tables[slave].consistent_offset(
                len(histories[slave]), tables[master].entries, len(histories[master])
            )
            common = 0
            while (
                common < min(len(histories[0]), len(histories[1]))
                and histories[0][common] == histories[1][common]
            ):
                common += 1
            if point is not None:
                assert point <= common
            else:
                point = 0
            length = data.draw(st.integers(point, len(histories[master])))
            histories[slave] = histories[master][:length]
            tables[slave] = EpochTable(
                tuple(entry for entry in tables[master].entries if entry.start_offset <= length)
            )


# -- the file: RocketMQ's CheckpointFileTest, its own files, and more ----------------------------------------


@pytest.mark.parametrize(("name", "entries"), RECORDED.items())
def test_a_file_of_rocketmq_is_read_and_written_byte_by_byte(tmp_path, name, entries):
    path = tmp_path / "epochFileCheckpoint"
    shutil.copyfile(VECTORS / name, path)
    epochs = EpochLog.open(path)
    assert epochs.table == table(*entries)
    other = EpochFile(tmp_path / "other")
    other.save(epochs.table)
    assert other.path.read_bytes() == path.read_bytes()


@given(steps=epochs_st)
def test_a_file_is_read_as_it_was_written(steps):
    whole = ascending(steps, first_start=7)
    if whole.entries:
        assert EpochTable.decode(whole.encode()) == whole


def test_a_file_is_written_again_and_read(tmp_path):
    file = EpochFile(tmp_path / "epochs")
    file.save(CACHE)
    assert file.load() == CACHE
    file.save(CACHE)
    assert file.load() == CACHE


@pytest.mark.parametrize(
    "damage", [None, b"", b"3\n1\n1-0\n", b"2\n0\n1-0\n", b"1\n0\n1 0\n", b"1\n0\n2-0\xff\n"]
)
def test_the_backup_stands_for_a_file_that_is_gone_or_damaged(tmp_path, damage):
    file = EpochFile(tmp_path / "epochs")
    file.save(CACHE)
    file.save(CACHE.append(4, 600))
    if damage is None:
        file.path.unlink()
    else:
        file.path.write_bytes(damage)
    assert file.load() == CACHE
    # The damaged file does not become the backup of the next one.
    file.save(CACHE.append(5, 700))
    assert file.load() == CACHE.append(5, 700)
    if backup_of(file.path).exists():
        assert EpochTable.decode(backup_of(file.path).read_bytes()) == CACHE


def test_a_file_without_a_crc_is_read():
    assert EpochTable.decode(b"2\n0\n1-0\n2-639\n") == table((1, 0), (2, 639))
    assert EpochTable.decode(b"2\r\n0\r\n1-0\r\n2-639\r\n") == table((1, 0), (2, 639))


def test_both_damaged_is_an_error_that_names_the_file(tmp_path):
    file = EpochFile(tmp_path / "epochs")
    file.save(CACHE)
    file.path.write_bytes(b"2\n7\n1-0\n2-1\n")
    with pytest.raises(StoreError, match=r"epochs: .*says CRC 7"):
        file.load()


@given(st.binary(max_size=60) | st.from_regex(rb"[0-3]\n0\n([0-9]{1,3}-[0-9]{1,3}\n){0,3}"))
def test_any_bytes_are_a_table_or_a_value_error(data):
    try:
        found = EpochTable.decode(data)
    except ValueError:
        return
    assert EpochTable.decode(found.encode()) == found


# -- both kept equal -----------------------------------------------------------------------------------------


def test_each_change_is_in_the_file_when_its_call_returns(tmp_path):
    epochs = EpochLog.open(tmp_path / "store" / "epochFileCheckpoint")
    epochs.append(1, 0)
    epochs.append(2, 639)
    epochs.append(3, 1278)
    assert EpochLog.open(epochs.path).table == epochs.table == table((1, 0), (2, 639), (3, 1278))
    epochs.truncate_suffix(1278)
    assert EpochLog.open(epochs.path).entries == epochs.entries == table((1, 0), (2, 639)).entries
    epochs.truncate_prefix(640)
    epochs.drop_from(9)
    assert EpochLog.open(epochs.path).table == table((2, 639))
    assert epochs.last_epoch == 2
    epochs.drop_from(2)
    assert EpochLog.open(epochs.path).last_epoch == epochs.last_epoch == -1
    assert list(epochs.path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "after"),
    [
        (lambda epochs: epochs.append(4, 600), CACHE.append(4, 600)),
        (lambda epochs: epochs.truncate_suffix(400), CACHE.truncate_suffix(400)),
        (lambda epochs: epochs.clear(), EpochTable()),
    ],
)
@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_crash_at_any_call_leaves_the_old_or_the_new_table(tmp_path, change, after, is_damaged):
    crashes = 0
    while True:
        path = tmp_path / f"{crashes}"
        EpochFile(path).save(CACHE)
        EpochFile(path).save(CACHE)
        if is_damaged:
            path.write_bytes(b"?")
        epochs = EpochLog.open(path)
        try:
            with CrashingDisk(crashes).in_use():
                change(epochs)
        except Crash:
            crashes += 1
            assert EpochFile(path).load() in {CACHE, after}
            continue
        assert EpochFile(path).load() == epochs.table == after
        break
    assert crashes >= 4


def test_a_disk_that_refuses_changes_nothing(tmp_path):
    epochs = EpochLog.open(tmp_path / "epochs")
    epochs.append(1, 0)
    epochs.path.with_name("epochs.tmp").mkdir()
    with pytest.raises(StoreError, match="epochs cannot be written"):
        epochs.append(2, 5)
    assert EpochLog.open(epochs.path).table == epochs.table == table((1, 0))


# -- in a store ----------------------------------------------------------------------------------------------


def test_a_store_drops_epochs_of_bytes_that_it_does_not_have(tmp_path):
    store = open_store(tmp_path, has_epochs=True)
    assert store.epochs is not None
    store.epochs.append(1, 0)
    end = store.commit_log.append(message()).end_offset
    store.epochs.append(2, end)
    store.close()
    EpochFile(store.epochs.path).save(store.epochs.table.append(3, end + 1))
    again = open_store(tmp_path, has_epochs=True)
    assert again.epochs is not None
    assert EpochLog.open(again.epochs.path).table == again.epochs.table == table((1, 0), (2, end))
    again.close()


def test_a_log_that_begins_anew_has_no_epochs(tmp_path):
    store = open_store(tmp_path / "store", has_epochs=True)
    assert store.epochs is not None
    store.epochs.append(1, 0)
    store.commit_log.append(message())
    store.commit_log.archive(tmp_path / "aside")
    assert EpochLog.open(store.epochs.path).entries == store.epochs.entries == ()
    store.close()
