"""Store times that go back: a clock that was set back, or was wrong for a while, here or at the master."""

import errno
import json
import os

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.compiled_code import IS_COMPILED, WAYS, compiled_code
from tests.descriptors import resources_closed
from tests.store.support import cut_store, message, on_disk, open_log, open_store, receive, sync_queues
from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.record_layout import store_timestamp_ms
from trioha.store.time_steps import FILE_NAME, LEAD_MS_MAX, STEPS_MAX, TimeStep, TimeSteps, load_time_steps

NOW_MS = 1_800_000_000_000
YEARS_MS = 10 * 365 * 86_400_000
HOUR_MS = 3_600_000
LATEST_MS = 2**63 - 10**9
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


class Wall:
    """The clock that stamps records."""

    def __init__(self, ms=NOW_MS):
        self.ms = ms

    def time_ns(self):
        return self.ms * 1_000_000


@pytest.fixture
def wall(monkeypatch):
    clock = Wall()
    monkeypatch.setattr("trioha.store.commit_log.time", clock)
    return clock


def put(store, wall, ms, *, topic="Orders", key=""):
    wall.ms = ms
    properties = f"KEYS\x01{key}".encode() if key else b""
    result = store.commit_log.append(message(topic=topic, properties=properties))
    assert result.physical_offset >= 0, result
    return result


def dispatch(store):
    while store.dispatcher.dispatch(store.commit_log.max_offset, records_max=10**6):
        pass


def flush(store):
    log = store.commit_log
    store.syncs.log_sync(log.flushed.offset, log.max_offset, store_timestamp_ms=log.last_store_timestamp_ms)()
    log.flushed.advance(log.max_offset)


# -- stamps --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compiled", WAYS)
def test_a_store_time_follows_the_clock_back_but_for_a_few_seconds(tmp_path, wall, is_compiled):
    with compiled_code(is_compiled=is_compiled):
        log, _ = open_log(tmp_path)

        def stamp(ms, topic="Orders"):
            wall.ms = ms
            result = log.append(message(topic=topic))
            found = store_timestamp_ms(log.read(result.physical_offset, 200), 0)
            assert found == result.store_timestamp_ms
            return found

        for topic in ("Orders", SCHEDULE_TOPIC):
            stamp(NOW_MS, topic)
        assert stamp(NOW_MS + 5000) == NOW_MS + 5000
        # A small correction keeps the order; what is due by its store time has the clock's all the same.
        assert stamp(NOW_MS + 5000 - LEAD_MS_MAX) == NOW_MS + 5000
        assert stamp(NOW_MS + 4000, SCHEDULE_TOPIC) == NOW_MS + 4000
        assert stamp(NOW_MS + 4100) == NOW_MS + 5000
        assert stamp(NOW_MS + 5001) == NOW_MS + 5001
        # A clock that was wrong moves nothing.
        assert stamp(NOW_MS + YEARS_MS) == NOW_MS + YEARS_MS
        assert stamp(NOW_MS + 6000) == NOW_MS + 6000
        assert stamp(NOW_MS + 6000, SCHEDULE_TOPIC) == NOW_MS + 6000


@pytest.mark.parametrize("is_compiled", WAYS)
def test_a_masters_largest_store_time_is_kept_and_stamps_no_record_of_its_slave(tmp_path, wall, is_compiled):
    with compiled_code(is_compiled=is_compiled):
        store = open_store(tmp_path)
        receive(store, LATEST_MS)
        dispatch(store)
        assert store_timestamp_ms(store.commit_log.read(0, 200), 0) == LATEST_MS
        assert store.dispatcher.time_steps.all == ()
        result = put(store, wall, NOW_MS)
        assert result.store_timestamp_ms == NOW_MS
        dispatch(store)
        assert store.dispatcher.time_steps.all == (TimeStep(result.physical_offset, LATEST_MS, NOW_MS),)


# -- steps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_compiled", WAYS)
def test_each_step_back_is_found_in_whatever_stretches_the_log_is_dispatched(
    tmp_path, wall, is_compiled, capsys
):
    with compiled_code(is_compiled=is_compiled):
        store = open_store(tmp_path)
        times = [0, 5000, 2001, 1999, 9000, YEARS_MS, 10_000, 7000, 6999, 12_000]
        starts = []
        for number, ms in enumerate(times):
            starts.append(store.commit_log.max_offset)
            receive(store, NOW_MS + ms)
            if number in {1, 2, 6}:
                dispatch(store)
        dispatch(store)
        steps = store.dispatcher.time_steps
        assert [(step.offset, step.from_ms - NOW_MS, step.to_ms - NOW_MS) for step in steps.all] == [
            (starts[3], 5000, 1999),
            (starts[6], YEARS_MS, 10_000),
            (starts[8], 10_000, 6999),
        ]
        assert steps.noted == 3
    # One line in a minute, however many there are.
    assert capsys.readouterr().out.count("store times go back") == 1


@pytest.mark.parametrize("how", ["close", "kill"])
def test_steps_are_known_after_a_restart_also_one_between_two_lives(tmp_path, wall, how):
    store = open_store(tmp_path)
    put(store, wall, NOW_MS + HOUR_MS)
    first = put(store, wall, NOW_MS)
    put(store, wall, NOW_MS + HOUR_MS)
    dispatch(store)
    flush(store)
    sync_queues(store)
    assert json.loads((tmp_path / FILE_NAME).read_text())["steps"][0]["offset"] == first.physical_offset
    store.close() if how == "close" else store.release()
    wall.ms = NOW_MS + 1
    again = open_store(tmp_path)
    second = put(again, wall, NOW_MS + 1)
    dispatch(again)
    assert [step.offset for step in again.dispatcher.time_steps.all] == [
        first.physical_offset,
        second.physical_offset,
    ]
    # The messages of the wrong hours are not the answer while they lead the clock.
    assert again.reads.offset_by_time("Orders", 0, NOW_MS + 1) == 3
    again.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_steps_that_cannot_be_written_are_reported_and_hold_the_checkpoint_until_they_are(
    tmp_path, wall, monkeypatch, number
):
    store = open_store(tmp_path)
    put(store, wall, NOW_MS + HOUR_MS)
    put(store, wall, NOW_MS)
    dispatch(store)
    flush(store)
    with monkeypatch.context() as refusing:

        def refuse(*_):
            raise OSError(number, os.strerror(number))

        refusing.setattr("trioha.store.store_syncs.save_time_steps", refuse)
        sync_queues(store)
        sync_queues(store)
    assert store.unwritten.failures == {"time steps": 2}
    assert os.strerror(number) in store.unwritten.reasons["time steps"]
    assert store.checkpoints.current.logics_physical_offset == 0
    sync_queues(store)
    assert dict(store.unwritten.reasons) == {}
    assert store.checkpoints.current.logics_physical_offset == store.commit_log.max_offset
    assert len(json.loads((tmp_path / FILE_NAME).read_text())["steps"]) == 1
    store.close()


def test_a_cut_and_a_new_log_forget_the_steps_after_them(tmp_path, wall):
    store = open_store(tmp_path)
    steps = []
    for _ in range(3):
        put(store, wall, NOW_MS + HOUR_MS)
        steps.append(put(store, wall, NOW_MS).physical_offset)
    dispatch(store)
    flush(store)
    cut_store(store, steps[1])
    assert [step.offset for step in store.dispatcher.time_steps.all] == steps[:1]
    assert put(store, wall, NOW_MS).physical_offset == steps[1]
    dispatch(store)
    assert [step.offset for step in store.dispatcher.time_steps.all] == steps[:2]
    store.close()
    again = open_store(tmp_path)
    assert [step.offset for step in again.dispatcher.time_steps.all] == steps[:2]
    again.commit_log.archive(tmp_path / "old")
    assert again.dispatcher.time_steps.all == ()


def test_the_steps_of_a_hostile_log_are_bounded(tmp_path):
    steps = TimeSteps()
    for number in range(2 * STEPS_MAX):
        assert steps.add(TimeStep(number, 10_000, 0))
        assert not steps.add(TimeStep(number, 10_000, 0))
    assert [step.offset for step in steps.all] == list(range(STEPS_MAX, 2 * STEPS_MAX))


@pytest.mark.parametrize(
    "text", ["", "[", "[]", '{"steps":[{}]}', '{"steps":[{"offset":-1,"fromMs":1,"toMs":0}]}']
)
def test_a_file_of_steps_that_cannot_be_read_is_named_and_starts_empty(tmp_path, text, capsys):
    (tmp_path / FILE_NAME).write_text(text)
    assert load_time_steps(tmp_path).all == ()
    assert FILE_NAME in capsys.readouterr().out


# -- searches ------------------------------------------------------------------------------------------------


@given(
    moves=st.lists(
        st.one_of(st.integers(0, 3000), st.integers(-60_000, -10_000), st.integers(10_000, 60_000)),
        min_size=1,
        max_size=40,
    ),
    asked=st.integers(0, 40),
    beside=st.integers(-1, 1),
    is_compiled=st.booleans() if IS_COMPILED else st.just(False),
)
@resources_closed()
def test_searches_by_time_are_those_of_a_plain_search_over_a_clock_that_jumps(
    tmp_path_factory, moves, asked, beside, is_compiled
):
    wall = Wall()
    with pytest.MonkeyPatch.context() as patch, compiled_code(is_compiled=is_compiled):
        patch.setattr("trioha.store.commit_log.time", wall)
        store = open_store(tmp_path_factory.mktemp("time"))
        times = []
        for number, move in enumerate(moves):
            wall.ms += move
            put(store, wall, wall.ms, key="all" if number % 2 else f"k{number}")
            times.append(wall.ms)
            # All of them are in the past when they are looked for.
        wall.ms = max(times)
        dispatch(store)
        asked_ms = times[asked % len(times)] + beside
        late = [number for number, ms in enumerate(times) if ms >= asked_ms]
        early = [number for number, ms in enumerate(times) if ms <= asked_ms]
        reads = store.reads
        assert reads.offset_by_time("Orders", 0, asked_ms) == (late[0] if late else len(times))
        assert reads.offset_by_time("Orders", 0, asked_ms, upper=True) == (early[-1] if early else 0)
        keyed = [ms for number, ms in enumerate(times) if number % 2 and ms <= asked_ms]
        found = reads.by_key("Orders", "all", end_ms=asked_ms)
        assert [store_timestamp_ms(record, 0) for record in found] == keyed[::-1]
        store.release()


def test_a_message_that_leads_the_clock_is_not_the_answer_to_a_search_by_time(tmp_path, wall):
    store = open_store(tmp_path)
    times = [NOW_MS, NOW_MS + 1000, NOW_MS + YEARS_MS, NOW_MS + 2000, NOW_MS + 3000]
    for ms in times:
        put(store, wall, ms)
    dispatch(store)

    def search(after_ms, **how):
        return store.reads.offset_by_time("Orders", 0, NOW_MS + after_ms, **how)

    assert [search(ms) for ms in (0, 500, 1000, 1500, 2000, 2500, 3001)] == [0, 1, 1, 3, 3, 4, 5]
    assert [search(ms, upper=True) for ms in (0, 1500, 2500, 9999)] == [0, 1, 3, 4]
    # While it is the newest one, nothing shows that the clock was wrong.
    receive(store, NOW_MS + YEARS_MS)
    dispatch(store)
    assert search(9999) == 5


# -- the checkpoint and starts -------------------------------------------------------------------------------


def test_the_checkpoints_times_follow_the_clock_and_no_record_that_leads_it(tmp_path, wall):
    store = open_store(tmp_path)
    put(store, wall, NOW_MS)
    receive(store, LATEST_MS)
    dispatch(store)
    flush(store)
    found = sync_queues(store)
    assert found.physic_msg_timestamp_ms == found.logics_msg_timestamp_ms == NOW_MS + LEAD_MS_MAX
    # The clock is ten years ahead: it is all that is known. It goes back with the next sync.
    put(store, wall, NOW_MS + YEARS_MS)
    dispatch(store)
    flush(store)
    assert sync_queues(store).physic_msg_timestamp_ms == NOW_MS + YEARS_MS
    put(store, wall, NOW_MS + 10_000)
    dispatch(store)
    flush(store)
    found = sync_queues(store)
    assert found.physic_msg_timestamp_ms == found.logics_msg_timestamp_ms == NOW_MS + 10_000
    put(store, wall, NOW_MS + YEARS_MS)
    wall.ms = NOW_MS + 20_000
    store.close()
    assert on_disk(store).physic_msg_timestamp_ms == NOW_MS + 20_000 + LEAD_MS_MAX


def damaged_after_a_record_that_leads(tmp_path, wall):
    """A log, where a record of it was damaged after a flush, and the checkpoint of that flush."""
    log, _ = open_log(tmp_path)
    wall.ms = NOW_MS
    log.append(message())
    wall.ms = NOW_MS + YEARS_MS
    log.append(message())
    wall.ms = NOW_MS + 1000
    results = [log.append(message()) for _ in range(3)]
    log.files[0].view[results[0].physical_offset + 4] ^= 0xFF
    flushed = Checkpoint(
        physic_msg_timestamp_ms=NOW_MS + 1000, logics_physical_offset=results[2].physical_offset
    )
    return results, flushed


def test_a_flushed_record_after_one_that_leads_the_clock_is_not_cut(tmp_path, wall):
    results, flushed = damaged_after_a_record_that_leads(tmp_path, wall)
    with pytest.raises(StoreError, match=f"valid ones follow at {results[1].physical_offset}"):
        open_log(tmp_path, clean_exit=False, checkpoint=flushed)


def test_a_checkpoint_that_leads_the_clock_keeps_no_torn_tail_and_leaves_no_file_unchecked(tmp_path, wall):
    results, flushed = damaged_after_a_record_that_leads(tmp_path, wall)
    ahead = evolve(flushed, physic_msg_timestamp_ms=NOW_MS + YEARS_MS)
    # By its time alone all of the log counts as flushed; by the offset nothing from the damage on does.
    ahead = evolve(ahead, logics_physical_offset=results[0].physical_offset)
    log, recovered = open_log(tmp_path, clean_exit=False, checkpoint=ahead)
    assert log.max_offset == results[0].physical_offset
    assert recovered.cut_bytes > 0


def test_after_a_step_back_the_files_from_the_checkpoints_offset_on_are_checked(tmp_path, wall):
    log, _ = open_log(tmp_path)
    wall.ms = NOW_MS + HOUR_MS
    while len(log.files) < 3:
        log.append(message(bytes(20_000)))
    # The clock was set back: by its time the last file, whose first record is old, is all that is checked.
    wall.ms = NOW_MS
    while len(log.files) < 5:
        log.append(message(bytes(20_000)))
    wall.ms = NOW_MS + 2 * HOUR_MS
    torn = log.files[3].start_offset
    log.files[3].view[4] ^= 0xFF
    checkpoint = Checkpoint(
        physic_msg_timestamp_ms=NOW_MS + HOUR_MS, logics_physical_offset=log.files[2].start_offset
    )
    for file in log.files[4:]:
        file.view[:] = bytes(len(file.view))
    again, _ = open_log(tmp_path, clean_exit=False, checkpoint=checkpoint)
    assert again.max_offset <= torn
