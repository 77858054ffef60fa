"""Queues and index are built up to the confirm offset (controller mode), which a watermark has."""

import pytest
import trio
import trio.testing

from tests.store.support import cut_store, message, offsets_of, open_store
from trioha.store.dispatch_service import GATHER_S, DispatchService
from trioha.store.dispatch_settings import DispatchSettings
from trioha.watermark import Watermark


async def at_once(work):
    work()


def put(store, count):
    """Store messages; returns the end of each."""
    return [store.commit_log.append(message(bytes([number]) * 50)).end_offset for number in range(count)]


def dispatched(store):
    return store.reads.max_offset("Orders", 0)


def test_dispatch_stops_at_the_limit_also_inside_of_a_record(tmp_path):
    store = open_store(tmp_path)
    ends = put(store, 5)
    limit = Watermark(ends[1] + 7)
    store.dispatcher.limit_to(limit)
    assert store.dispatcher.dispatch(ends[-1]) == 2
    assert (store.dispatcher.position, dispatched(store), store.dispatcher.faults) == (ends[1], 2, 0)
    assert store.dispatcher.dispatch(ends[-1]) == 0
    limit.advance(ends[3])
    assert store.dispatcher.dispatch(ends[2]) == 1
    assert store.dispatcher.dispatch(ends[-1]) == 1
    # What consumers have seen stays, and so do its entries.
    limit.lower(ends[0])
    assert store.dispatcher.dispatch(ends[-1]) == 0
    assert dispatched(store) == 4
    store.dispatcher.limit_to(None)
    assert store.dispatcher.dispatch(ends[-1]) == 1
    assert dispatched(store) == 5


async def test_a_limit_that_moves_wakes_the_dispatch_service(tmp_path, nursery, autojump_clock):
    store = open_store(tmp_path)
    limit = Watermark(0)
    store.dispatcher.limit_to(limit)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    ends = put(store, 6)
    await trio.sleep(10)
    assert dispatched(store) == 0
    for number, end in enumerate(ends[:4]):
        started_s = trio.current_time()
        # Half of the next record is confirmed, too: that is not waited for, and does not end the waiting.
        limit.advance(end + 5)
        assert await store.dispatcher.dispatched.reached(end)
        assert trio.current_time() - started_s <= GATHER_S
        assert dispatched(store) == number + 1
        await trio.sleep(3)
    # Above the log's end it has no effect.
    limit.advance(ends[-1] + 10_000)
    await store.dispatcher.dispatched.reached(ends[-1])
    started_s = trio.current_time()
    (end,) = put(store, 1)
    await store.dispatcher.dispatched.reached(end)
    assert trio.current_time() - started_s <= GATHER_S
    assert dispatched(store) == 7


@pytest.mark.parametrize("how", ["cut", "set aside"])
async def test_records_of_a_shorter_log_are_dispatched_up_to_a_limit_that_stayed(
    tmp_path, nursery, autojump_clock, how
):
    store = open_store(tmp_path)
    ends = put(store, 6)
    store.dispatcher.limit_to(Watermark(ends[4]))
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    await trio.sleep(10)
    assert store.dispatcher.position == ends[4]
    # Dispatch waits for the limit, since the log has more.
    if how == "cut":
        cut_store(store, ends[1])
    else:
        store.commit_log.archive(tmp_path / "aside")
    await trio.sleep(10)
    end = put(store, 1)[0]
    assert end < ends[4]
    await trio.sleep(10)
    assert store.dispatcher.position == end


async def test_the_dispatch_service_does_not_poll_for_the_limit(
    tmp_path, nursery, autojump_clock, monkeypatch
):
    store = open_store(tmp_path)
    ends = put(store, 3)
    limit = Watermark(ends[0] + 1)
    store.dispatcher.limit_to(limit)
    # As on a node that was slave: puts are enabled when all is dispatched, which here it is not.
    store.commit_log.puts_blocked = True
    calls = []
    real = store.dispatcher.dispatch

    def counted(*arguments, **options):
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(store.dispatcher, "dispatch", counted)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    await trio.sleep(5)
    before = len(calls)
    await trio.sleep(3600)
    assert len(calls) == before
    limit.advance(ends[-1])
    await store.dispatcher.dispatched.reached(ends[-1])
    assert not store.commit_log.puts_blocked


@pytest.mark.parametrize("after", [None, "another"])
async def test_another_limit_takes_effect_at_once(tmp_path, nursery, autojump_clock, after):
    store = open_store(tmp_path)
    ends = put(store, 3)
    store.dispatcher.limit_to(Watermark(ends[0]))
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    await trio.sleep(5)
    started_s = trio.current_time()
    store.dispatcher.limit_to(None if after is None else Watermark(ends[2]))
    await store.dispatcher.dispatched.reached(ends[2])
    assert trio.current_time() - started_s <= GATHER_S


async def test_with_sync_flush_the_lower_one_of_limit_and_flushed_holds_dispatch_up(
    tmp_path, nursery, autojump_clock
):
    store = open_store(tmp_path, dispatch=DispatchSettings(sync_flush=True))
    limit = Watermark(0)
    store.dispatcher.limit_to(limit)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    ends = put(store, 4)
    for flushed, confirmed, expected in ((1, 0, 0), (1, 2, 1), (3, 2, 2), (4, 2, 2), (4, 4, 4)):
        store.commit_log.flushed.advance(ends[flushed - 1])
        limit.advance(ends[confirmed - 1] if confirmed else 0)
        await trio.sleep(1)
        assert dispatched(store) == expected


def write_checkpoint(store, *, later_ms=0):
    """As a flush does it, at least a second of records after the last one."""
    log = store.commit_log
    store.syncs.log_sync(0, log.max_offset, store_timestamp_ms=log.last_store_timestamp_ms + later_ms)()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_in_controller_mode_dispatches_up_to_the_confirm_offset_of_the_checkpoint(tmp_path, is_clean):
    """RocketMQ's testBuildConsumeQueueNotExceedConfirmOffset."""
    store = open_store(tmp_path, dispatch_to_confirmed=True)
    ends = put(store, 5)
    store.checkpoints.follow_confirm_offset(lambda: ends[2])
    store.dispatcher.limit_to(Watermark(ends[2]))
    if is_clean:
        store.close()
        assert not (tmp_path / "abort").exists()
    else:
        write_checkpoint(store)
        store.release()
    again = open_store(tmp_path, dispatch_to_confirmed=True)
    assert (dispatched(again), again.dispatcher.position) == (3, ends[2])
    # It has no role yet: a put would get a queue offset that a record has already.
    assert again.commit_log.puts_blocked
    again.dispatcher.limit_to(Watermark(ends[4]))
    again.dispatcher.dispatch(ends[4])
    again.puts.enable()
    assert dispatched(again) == 5
    assert again.commit_log.append(message()).queue_offset == 5
    again.close()


def test_a_store_without_a_role_keeps_the_confirm_offset_of_the_checkpoint(tmp_path):
    store = open_store(tmp_path, dispatch_to_confirmed=True)
    ends = put(store, 5)
    store.checkpoints.follow_confirm_offset(lambda: ends[2])
    store.close()
    waiting = open_store(tmp_path, dispatch_to_confirmed=True)
    write_checkpoint(waiting, later_ms=1000)
    assert (waiting.checkpoints.current.confirm_physical_offset, waiting.checkpoints.confirm_offset()) == (
        ends[2],
        ends[2],
    )
    waiting.close()
    again = open_store(tmp_path, dispatch_to_confirmed=True)
    assert again.checkpoints.current.confirm_physical_offset == ends[2]
    again.close()


async def test_the_dispatch_service_goes_on_after_a_cut(tmp_path, nursery, autojump_clock):
    store = open_store(tmp_path)
    nursery.start_soon(DispatchService(store, sync=at_once).run)
    ends = put(store, 6)
    await store.dispatcher.dispatched.reached(ends[-1])
    cut_store(store, ends[2])
    assert dispatched(store) == 3
    await trio.sleep(2)
    result = store.commit_log.append(message())
    assert (result.physical_offset, result.queue_offset) == (ends[2], 3)
    await store.dispatcher.dispatched.reached(result.end_offset)
    assert dispatched(store) == 4


def put_keyed(store, count):
    """Store messages with keys `key0`, ...; returns the end of each."""
    messages = (message(properties=f"KEYS\x01key{number}".encode()) for number in range(count))
    return [store.commit_log.append(one).end_offset for one in messages]


def keys_in_index(store, count):
    return [number for number in range(count) if offsets_of(store.index, "Orders", f"key{number}")]


def test_a_rebuilt_index_has_all_that_the_queues_have_whatever_the_limit(tmp_path):
    """A kill leaves queues beyond the checkpoint's confirm offset; a clean stop then vouches for both."""
    store = open_store(tmp_path, dispatch_to_confirmed=True)
    ends = put_keyed(store, 6)
    store.checkpoints.follow_confirm_offset(lambda: ends[1])
    write_checkpoint(store)
    store.dispatcher.limit_to(Watermark(ends[4]))
    store.dispatcher.dispatch(ends[-1])
    store.release()
    killed = open_store(tmp_path, dispatch_to_confirmed=True)
    killed.close()
    assert not (tmp_path / "abort").exists()
    again = open_store(tmp_path, dispatch_to_confirmed=True)
    assert dispatched(again) == 5
    assert keys_in_index(again, 6) == [0, 1, 2, 3, 4]


def test_an_index_that_is_cut_is_rebuilt_up_to_the_end_of_the_queues_whatever_the_limit(tmp_path):
    store = open_store(tmp_path)
    ends = put_keyed(store, 6)
    store.dispatcher.dispatch(ends[-1])
    store.dispatcher.limit_to(Watermark(ends[1]))
    cut_store(store, ends[4])
    store.dispatcher.dispatch(ends[4])
    assert dispatched(store) == 5
    assert keys_in_index(store, 6) == [0, 1, 2, 3, 4]
    # What was not in them waits for the limit.
    put_keyed(store, 1)
    assert store.dispatcher.dispatch(store.commit_log.max_offset) == 0


def test_a_log_that_begins_anew_is_dispatched_up_to_the_limit_only(tmp_path):
    store = open_store(tmp_path)
    ends = put_keyed(store, 3)
    store.dispatcher.dispatch(ends[-1])
    store.dispatcher.limit_to(Watermark(0))
    store.commit_log.archive(tmp_path / "aside")
    put_keyed(store, 2)
    assert store.dispatcher.dispatch(store.commit_log.max_offset) == 0
    assert dispatched(store) == 0
