"""The files from which a RocketMQ 5 broker goes on with the timers of a store."""

from struct import Struct

import pytest
import trio
from attrs import evolve

from tests.broker.pending_records import SENT, TIMERS, recorded
from tests.broker.sending import Sending
from tests.broker.test_timers import timed
from tests.broker.timing import TIMER_SETTINGS
from tests.store.support import VECTORS
from trioha.broker import timer_handover
from trioha.broker.timer_handover import HANDOVER, Pending, TimerHandover, timer_files, write_timer_files
from trioha.broker.timer_records import PendingTimers
from trioha.metadata.timer_check import read_timer_check
from trioha.store.message_properties import parse_properties
from trioha.store.tags import java_hash

UNIT = Struct(">iqiqiqiiq")
FOLDER = VECTORS / "timer-5.5.0/while-pending"
SETTINGS = evolve(TIMER_SETTINGS, roll_window_ms=12_000)
"""Of the broker that the vectors are from."""


def pending_at(number, now_ms):
    """What is pending after so many of the recorded records."""
    timers = PendingTimers(roll_window_ms=SETTINGS.roll_window_ms)
    for record in recorded(TIMERS)[:number]:
        timers.add(record, parse_properties(record.properties_raw))
    return Pending(list(timers.snapshot()()), timers.newest, now_ms)


def units_of(data):
    """By slot, without what depends on other units (the positions) and on the moment when one was written."""
    return [
        (size, magic, written_ms + ahead_ms, *rest)
        for size, _, magic, written_ms, ahead_ms, *rest in UNIT.iter_unpack(data)
    ]


def test_units_are_those_that_a_real_broker_wrote_without_what_was_recalled():
    units, check = timer_files(pending_at(SENT, 1795807051900), SETTINGS)
    recalled = next(one for one in recorded(TIMERS) if one.body == b"body-recalled").physical_offset
    mark = next(one for one in recorded(TIMERS) if one.body == b"0").physical_offset
    theirs = [
        unit for unit in units_of((FOLDER / "timerlog.bin").read_bytes()) if unit[3] not in {recalled, mark}
    ]
    assert units_of(units) == [unit for unit in theirs if unit[0]]
    real = Struct(">7q").unpack((FOLDER / "timercheck.bin").read_bytes()[:56])
    ours = Struct(">7q").unpack(check[:56])
    # The first slot that waits; nothing of the wheel is flushed; where to go on in the timer topic.
    assert (ours[0], ours[1], ours[2:4]) == (1795807051000, 0, real[2:4])
    assert len(check) == 4096


def test_units_of_one_slot_are_a_list():
    units = list(UNIT.iter_unpack(timer_files(pending_at(4, 1795807048000), SETTINGS)[0]))
    # Three are due in one slot.
    assert [unit[1] for unit in units] == [-1, -1, UNIT.size, 2 * UNIT.size]


def test_the_last_unit_is_of_the_newest_record_also_if_that_is_done():
    pending = pending_at(len(recorded(TIMERS)), 1795807080500)
    units, check = timer_files(pending, SETTINGS)
    *_, last = UNIT.iter_unpack(units)
    assert last[5] == pending.newest.physical_offset
    newest = max(pending.timers, key=lambda timer: timer.queue_offset)
    assert pending.newest == newest
    done = Pending([], pending.newest, 1795807080500)
    ((_, previous, magic, written_ms, ahead_ms, place, *_),) = UNIT.iter_unpack(
        timer_files(done, SETTINGS)[0]
    )
    read_ms = Struct(">q").unpack(timer_files(done, SETTINGS)[1][:8])[0]
    assert (previous, magic, place) == (-1, 1, newest.physical_offset)
    # In a slot that is not read.
    assert written_ms + ahead_ms < read_ms == 1795807080000
    assert check


@pytest.mark.parametrize("text", ["", "TopicTimer", "Orders", "ä€😀"])
def test_hashes_are_those_of_java(text):
    value = 0
    for unit in memoryview(text.encode("utf-16-le")).cast("H"):
        value = 31 * value + unit
    value &= 0xFFFFFFFF
    assert java_hash(text) == (value - (1 << 32) if value >> 31 else value)
    assert text != "TopicTimer" or java_hash(text) == 1148717942


def test_a_brokers_own_files_go(tmp_path):
    for name in ("timerwheel", "timerwheel.1234", "config/timermetrics", "timerlog/00000000000104857600"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"old")
    (tmp_path / "config/other").write_bytes(b"kept")
    write_timer_files(tmp_path, pending_at(SENT, 1795807051900), SETTINGS)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["config/other", "config/timercheck", "timerlog/00000000000000000000"]
    check = read_timer_check(tmp_path / "config")
    assert (check.last_read_ms, check.master_queue_offset) == (1795807051000, 10)
    assert (tmp_path / "timerlog/00000000000000000000").stat().st_size == 100 * 1024 * 1024


def test_more_timers_than_a_file_holds_leave_none(tmp_path, monkeypatch):
    (tmp_path / "config").mkdir()
    write_timer_files(tmp_path, pending_at(SENT, 1795807051900), SETTINGS)
    monkeypatch.setattr(timer_handover, "TIMERS_MAX", 2)
    write_timer_files(tmp_path, pending_at(SENT, 1795807051900), SETTINGS)
    assert read_timer_check(tmp_path / "config") is None
    assert not list((tmp_path / "timerlog").iterdir())


async def inline(call):
    """Threads do not follow virtual time."""
    call()


async def test_they_are_written_when_something_has_changed_and_at_the_end(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall)
    handover = TimerHandover(
        tmp_path,
        TIMER_SETTINGS,
        timers=broker.timer_delivery.pending,
        unwritten=broker.store.unwritten,
        now_ms=wall.now_ms,
        run_blocking=inline,
    )
    check = tmp_path / "config/timercheck"
    check.parent.mkdir()

    def next_offset():
        return read_timer_check(tmp_path / "config").master_queue_offset

    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.timer_delivery.run)
        nursery.start_soon(handover.run)
        await trio.sleep(5)
        # A store without timers has no such files.
        assert not check.exists()
        await timed(broker, TIMER_DELAY_SEC=3600)
        await trio.sleep(2)
        assert next_offset() == 1
        check.unlink()
        await trio.sleep(100)
        assert not check.exists()
        await timed(broker, key="other", TIMER_DELAY_SEC=3600)
        await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert next_offset() == 2


async def test_a_disk_that_refuses_them_is_said_and_holds_up_nothing(tmp_path, wall, autojump_clock):
    broker = Sending(tmp_path, wall)
    (tmp_path / "timerlog").write_bytes(b"no folder")
    handover = TimerHandover(
        tmp_path,
        TIMER_SETTINGS,
        timers=broker.timer_delivery.pending,
        unwritten=broker.store.unwritten,
        now_ms=wall.now_ms,
        run_blocking=inline,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.timer_delivery.run)
        nursery.start_soon(handover.run)
        await timed(broker, TIMER_DELAY_SEC=2)
        await trio.sleep(5)
        assert HANDOVER in broker.store.unwritten.reasons
        nursery.cancel_scope.cancel()
    assert [body for _, body in broker.deliveries] == [b"timer"]
