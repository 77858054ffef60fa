"""The comparison with queues and index built again finds what was planted, and nothing in sound stores."""

import shutil

import pytest

from tests.faults.rebuilt import Shape, check_rebuilt
from tests.store.dispatching import RECORDED_INDEX, RECORDED_QUEUES, batch_topics, recorded_settings
from tests.store.support import FILE_BYTES, STORES, copy_store
from trioha.store.index_file import ENTRY_BYTES, HEADER_BYTES

NAME = "store-5.3.3"


def shape_of(name):
    return Shape(
        log_file_bytes=FILE_BYTES,
        queues=RECORDED_QUEUES,
        index=RECORDED_INDEX,
        is_batch_topic=batch_topics(name).__contains__,
        dispatch=recorded_settings(name),
    )


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path):
    return copy_store(NAME, tmp_path).rename(tmp_path / "store")


def problems_of(store, *, indexed_from=0):
    return check_rebuilt(store, shape_of(NAME), indexed_from=indexed_from)


def a_queue(store):
    """A plain queue with more than one file."""
    return next(
        queue for queue in sorted((store / "consumequeue").glob("*/*")) if len(list(queue.iterdir())) > 1
    )


def damage(file, at, change=1):
    data = bytearray(file.read_bytes())
    data[at] ^= change
    file.write_bytes(data)


@pytest.mark.parametrize("name", STORES)
def test_what_rocketmq_built_is_found_equal_and_left_as_it_is(name, tmp_path):
    store = copy_store(name, tmp_path)
    before = files_of(store)
    assert check_rebuilt(store, shape_of(name)) == []
    assert files_of(store) == before


def test_a_changed_entry_or_one_after_the_end_is_found_at_its_byte(store):
    queue = a_queue(store)
    first, last = min(queue.iterdir()), max(queue.iterdir())
    name, last_byte = queue.relative_to(store), last.stat().st_size - 1
    assert len(last.read_bytes().rstrip(b"\0")) < last_byte - 20
    damage(first, 27)
    damage(last, last_byte)
    assert problems_of(store) == [
        f"store: {name}: file {int(first.name)} differs from the log at byte 27",
        f"store: {name}: file {int(last.name)} differs from the log at byte {last_byte}",
    ]


def test_a_lost_file_a_lost_queue_and_one_too_many_are_found(store):
    queue = a_queue(store)
    name = queue.relative_to(store)
    shutil.copytree(queue, store / "consumequeue" / "TopicUnknown" / "0")
    file = max(queue.iterdir())
    file.unlink()
    unknown = "store: consumequeue/TopicUnknown/0 is there, and no message of it in the log"
    assert problems_of(store) == [unknown, f"store: {name}: file {int(file.name)} is missing"]
    shutil.rmtree(queue)
    assert problems_of(store) == [f"store: {name} is missing", unknown]


def test_damage_to_the_index_is_found(store):
    file = min((store / "index").iterdir())
    whole = file.read_bytes()
    # Where the newest key's record is.
    damage(file, RECORDED_INDEX.entries_at + ENTRY_BYTES + 11)
    problems = problems_of(store)
    assert len(problems) == 2
    assert all("times, not" in problem for problem in problems)
    # A slot that leads nowhere.
    file.write_bytes(whole)
    slot = next(at for at in range(HEADER_BYTES, RECORDED_INDEX.entries_at, 4) if any(whole[at : at + 4]))
    file.write_bytes(whole[:slot] + bytes(4) + whole[slot + 4 :])
    assert problems_of(store)
    assert all("does not lead to the record" in problem for problem in problems_of(store)[:-1])
    # Keys that are there twice.
    file.write_bytes(whole)
    shutil.copy(file, file.with_name(f"{int(file.name) + 1:017d}"))
    assert "is there 2 times, not 1" in problems_of(store)[0]


def test_an_index_is_compared_from_its_first_record_on(store):
    # The whole index has entries of the record at 0, too.
    assert all("at 0 is there 1 times, not 0" in problem for problem in problems_of(store, indexed_from=1))
    assert problems_of(store, indexed_from=1)
    shutil.rmtree(store / "index")
    for indexed_from in (0, 1):
        assert "is there 0 times, not 1" in problems_of(store, indexed_from=indexed_from)[0]
    assert problems_of(store, indexed_from=1 << 40) == []


def test_a_log_that_cannot_be_read_is_a_finding_too(store):
    file = min((store / "commitlog").iterdir())
    damage(file, 5)
    (problem,) = problems_of(store)
    assert str(file.name) in problem
