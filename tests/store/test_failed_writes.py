"""Any call to the disk may fail, any number of times: queues and index are the same afterwards."""

import errno
import os
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import close_after_test, resources_closed
from tests.levels import by_level
from tests.store.dispatching import files_below, parts_of
from tests.store.support import message, open_log
from trioha.errors import StoreError
from trioha.store.consume_queue import ConsumeQueue
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import IndexShape

CALLS = (
    "open",
    "pwrite",
    "pread",
    "link",
    "ftruncate",
    "posix_fallocate",
    "fsync",
    "mkdir",
    "unlink",
    "stat",
)
BATCH_TOPIC = "Batched"
QUEUES = ConsumeQueueSettings(file_bytes=100, batch_file_bytes=46 * 4, open_files_max=3)
SHAPE = IndexShape(hash_slots=7, index_num=9)


class Disk:
    """A disk that fails the calls whose number is in `failing`."""

    def __init__(self, failing=()):
        self.failing = failing
        self.calls = 0

    @contextmanager
    def in_use(self):
        """All calls of this process go to this disk."""
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._call(getattr(os, name)))
            yield

    def _call(self, real):
        def call(*arguments, **options):
            number, self.calls = self.calls, self.calls + 1
            if number in self.failing:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **options)

        return call


def stored(folder):
    """A log of plain and batch messages in queues that are new, that begin late, and that have gaps."""
    log = close_after_test(open_log(folder)[0])
    log.queue_offsets["Late", 0] = 13
    for number in range(32):
        # A key that occurs twice has the same hash twice.
        properties = f"UNIQ_KEY\x01key{number}\x02KEYS\x01key{number} other\x02TAGS\x01tag".encode()
        topic = ("Orders", "Orders", BATCH_TOPIC, "Late")[number % 4]
        if number == 27:
            log.queue_offsets["Late", 0] += 3
        log.append(
            message(b"x", topic=topic, queue_id=0 if topic == "Late" else number % 3, properties=properties)
        )
    return log


def parts(log, folder):
    return parts_of(
        log, folder, batch={BATCH_TOPIC}, settings=DispatchSettings(), queue_settings=QUEUES, shape=SHAPE
    )


def built(folder):
    """All files of queues by name, and the index files in their order."""
    queues = {
        name: data
        for name, data in files_below(folder).items()
        if not name.startswith(("index", "commitlog"))
    }
    return queues, list(files_below(folder / "index").values())


def dispatch(made, disk, sizes):
    """Dispatch all, again after each error; returns the number of errors. The parts are closed."""
    errors = 0
    with disk.in_use():
        while made.dispatcher.position < made.log.max_offset:
            before, faults = made.dispatcher.position, made.dispatcher.faults
            newest_ms = made.dispatcher.last_store_timestamp_ms
            try:
                made.dispatcher.dispatch(made.log.max_offset, records_max=next(sizes))
            except StoreError:
                errors += 1
                assert made.dispatcher.position == before
                assert (made.dispatcher.faults, made.dispatcher.last_store_timestamp_ms) == (
                    faults,
                    newest_ms,
                )
                for queue in made.queues:
                    assert queue.pending == []
                    assert queue.next_offset == queue.max_offset
                    assert queue.min_offset <= queue.max_offset
        while made.dispatcher.index_lacks_from is not None:
            made.dispatcher.complete_index(records_max=next(sizes))
    made.close()
    return errors + made.unwritten.failures.get("index", 0)


def forever(size):
    while True:
        yield size


@pytest.fixture
def undisturbed(tmp_path):
    """The log, the files built from it, and the number of calls to the disk."""
    log = stored(tmp_path / "log")
    disk = Disk()
    assert dispatch(parts(log, tmp_path / "whole"), disk, forever(512)) == 0
    return log, built(tmp_path / "whole"), disk.calls


@pytest.mark.sized
@pytest.mark.parametrize(("times", "records_max"), [(1, 512), (1, 5), (2, 512), (7, 9)])
def test_any_call_may_fail_any_number_of_times(undisturbed, tmp_path, times, records_max):
    log, expected, calls = undisturbed
    errors, step = 0, by_level(5, 1, 1)
    for first in range(0, calls + 20, step):
        folder = tmp_path / f"{first}"
        disk = Disk(range(first, first + times))
        errors += dispatch(parts(log, folder), disk, forever(records_max))
        assert built(folder) == expected, f"calls {first} to {first + times - 1} failed"
    assert errors > calls // step // 2


@given(
    failing=st.sets(st.integers(0, 400), max_size=60),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=9),
)
def test_any_calls_may_fail_in_batches_of_any_size(tmp_path_factory, failing, sizes):
    folder = tmp_path_factory.mktemp("failed")
    with resources_closed():
        log = stored(folder / "log")
        dispatch(parts(log, folder / "whole"), Disk(), forever(512))

        def batches():
            while True:
                yield from sizes

        dispatch(parts(log, folder / "torn"), Disk(failing), batches())
        assert built(folder / "torn") == built(folder / "whole")


@pytest.mark.sized
def test_after_a_failed_write_a_start_finds_only_flushed_entries(undisturbed, tmp_path):
    """As after a crash in the middle: bytes of the failed write are not an entry."""
    log, expected, calls = undisturbed
    for first in range(0, calls, by_level(5, 1, 1)):
        folder = tmp_path / f"{first}"
        made = parts(log, folder)
        with Disk(range(first, first + 1000)).in_use(), suppress(StoreError):
            made.dispatch_all(records_max=6)
        assert made.dispatcher.position < made.log.max_offset or made.dispatcher.index_lacks_from is not None
        made.close()
        again = parts(log, folder)
        again.dispatch_all()
        again.close()
        assert built(folder)[0] == expected[0], f"calls from {first} on failed"


def test_many_queues_that_begin_late_take_little_memory_until_they_are_written(tmp_path):
    """A replica that begins with the last log file: each queue has a file's worth of blanks before it."""
    import tracemalloc

    log = close_after_test(open_log(tmp_path / "log")[0])
    for queue_id in range(200):
        log.queue_offsets["Orders", queue_id] = 299_999
        log.append(message(queue_id=queue_id))
    made = parts_of(log, tmp_path / "built", queue_settings=ConsumeQueueSettings())
    write, peak = ConsumeQueue.flush, []

    def flush(queue):
        peak.append(tracemalloc.get_traced_memory()[1])
        if len(peak) == 1:
            write(queue)
            peak.append(tracemalloc.get_traced_memory()[1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConsumeQueue, "flush", flush)
        tracemalloc.start()
        try:
            made.dispatch_all()
        finally:
            tracemalloc.stop()
    made.close()
    # 200 queues with 6 MB of blanks each; one is written.
    assert max(peak) < 8 << 20
