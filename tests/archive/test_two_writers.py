"""Two archivers of one URL: one has it, the other ends and says who has it."""

import pytest

from tests.archive.support import Log, archived, archiver_of, in_memory, new_archiver, reader_of
from trioha.archive.archiver import Archiver
from trioha.archive.errors import ArchiveError, FencedError


@pytest.fixture
def folder():
    return in_memory()


@pytest.fixture
def log(tmp_path):
    log = Log(tmp_path / "store")
    log.append(10)
    return log


def test_a_restart_of_the_same_store_takes_over_at_once(folder, log):
    first = archiver_of(folder, log)
    first.step()
    before_s = log.clock.now_s
    second = archiver_of(folder, log)
    assert log.clock.now_s == before_s
    log.append()
    with pytest.raises(FencedError, match=f"{log.store}, epoch 2, has created a newer head"):
        first.step()
    second.step()
    assert archived(folder) == (0, log.data())
    assert reader_of(folder).head.writer.epoch == 2


def test_two_that_begin_at_the_same_moment_are_told_apart(folder, log):
    first, second = new_archiver(folder, log), new_archiver(folder, log)
    create = folder.create

    def create_after_the_other(key, data):
        folder.create = create
        first.begin()
        return create(key, data)

    folder.create = create_after_the_other
    with pytest.raises(FencedError):
        second.begin()
    first.step()
    assert archived(folder) == (0, log.data())


def other_of(folder, log, tmp_path, **options):
    """An archiver on another host: of a copy of the store."""
    return new_archiver(folder, log.fork(tmp_path / "other"), **options)


def test_an_idle_writer_is_seen_to_be_alive(folder, log, tmp_path):
    archiver = archiver_of(folder, log)
    archiver.step()
    number = reader_of(folder).head.number

    def sleep_and_step(seconds):
        log.clock.sleep(seconds)
        archiver.step()

    other = other_of(folder, log, tmp_path, sleep=sleep_and_step)
    with pytest.raises(FencedError, match=f"{log.store}, epoch 1, has created a newer head"):
        other.begin()
    assert reader_of(folder).head.number == number + 1


def test_a_writer_that_has_ended_is_replaced_after_90_seconds(folder, log, tmp_path):
    archiver_of(folder, log).step()
    before_s = log.clock.now_s
    other = other_of(folder, log, tmp_path)
    other.begin()
    assert log.clock.now_s - before_s == 90
    assert other.step().began is None


def test_take_over_waits_for_nothing(folder, log, tmp_path):
    archiver = archiver_of(folder, log)
    archiver.step()
    before_s = log.clock.now_s
    other_of(folder, log, tmp_path, take_over=True).begin()
    assert log.clock.now_s == before_s
    log.append()
    with pytest.raises(FencedError):
        archiver.step()


def test_the_archive_of_another_broker_is_refused(folder, log):
    Archiver(folder, log.store, cluster_name="C", broker_name="a").begin()
    with pytest.raises(ArchiveError, match="is the archive of broker a, not of b"):
        Archiver(folder, log.store, broker_name="b").begin()
    Archiver(folder, log.store, cluster_name="C").begin()


def test_a_stopped_archiver_ends_its_wait_for_another_writer(folder, log, tmp_path):
    archiver_of(folder, log).step()
    other = other_of(folder, log, tmp_path)
    other.stop()
    with pytest.raises(ArchiveError, match="stopped before it took over"):
        other.begin()
