"""One writer's lease of an archive, without a log."""

import pytest

from tests.archive.failing import FailingFolder
from tests.archive.support import START_MS, Clock, in_memory
from trioha.archive.context import ArchiveContext
from trioha.archive.errors import ArchiveError, FencedError
from trioha.archive.heads import read_head
from trioha.archive.lease import Lease
from trioha.archive.settings import ArchiveSettings
from trioha.archive.witness import WitnessedClock


def lease_of(folder, clock, writer_id="host:/store", *, is_stopping=lambda: False):
    context = ArchiveContext(
        folder=folder,
        settings=ArchiveSettings(renew_s=30.0, watch_s=60.0),
        clock=WitnessedClock(clock.wall_ms, clock.monotonic),
        monotonic=clock.monotonic,
        sleep=clock.sleep,
        is_stopping=is_stopping,
        notify=lambda _text: None,
    )
    return Lease(context, writer_id=writer_id)


def begun(lease):
    return lease.begin(cluster_name="C", broker_name="b", take_over=False)


def test_an_idle_writer_is_due_after_its_interval_and_one_with_news_at_once():
    folder, clock = in_memory(), Clock()
    lease = lease_of(folder, clock)
    head = begun(lease)
    assert (head.number, head.writer.epoch, head.writer.renewed_ms) == (1, 1, START_MS)
    clock.sleep(29)
    assert not lease.is_due(head)
    clock.sleep(1)
    assert lease.is_due(head)
    head = lease.publish(head)
    assert (head.number, head.writer.epoch, head.writer.renewed_ms) == (2, 1, START_MS + 30_000)
    assert not lease.is_due(head)
    assert lease.is_due(begun(lease_of(in_memory(), clock, "other:/store")))
    assert read_head(folder) == head == lease.head


def test_a_head_whose_answer_was_lost_is_found():
    folder, clock = FailingFolder(in_memory(), how="fails after"), Clock()
    lease = lease_of(folder, clock)
    head = begun(lease)
    folder.at = folder.requests
    with pytest.raises(ArchiveError, match="cut off"):
        lease.publish(head)
    assert lease.head == head
    assert lease.settle().number == 2
    assert lease.publish(head).number == 3


def test_a_writer_that_was_replaced_is_fenced_by_any_of_its_calls():
    folder, clock = in_memory(), Clock()
    first, second = lease_of(folder, clock), lease_of(folder, clock)
    head = begun(first)
    # The same store on the same host takes over at once.
    assert begun(second).writer.epoch == 2
    with pytest.raises(FencedError):
        first.publish(head)
    with pytest.raises(FencedError):
        first.settle()


def test_a_take_over_that_is_stopped_creates_no_head():
    folder, clock = in_memory(), Clock()
    head = begun(lease_of(folder, clock))
    with pytest.raises(ArchiveError, match="stopped before it took over"):
        begun(lease_of(folder, clock, "other:/store", is_stopping=lambda: True))
    assert read_head(folder) == head
    assert begun(lease_of(folder, clock, "other:/store")).writer.epoch == 2
    assert clock.now_s == 65
