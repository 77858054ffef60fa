"""An opening that its caller interrupts: all files are closed, and a changed store is not marked as clean."""

import sys
from pathlib import Path

import pytest

from tests.store.support import message, open_store
from trioha.store import opening

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


class Ended(BaseException):
    """Like a cancellation, not an Exception."""


class EndAt:
    """Ends the opening at the progress report of that number."""

    def __init__(self, number):
        self.left = number

    def __call__(self, what, done, total):
        assert 0 <= done <= total
        self.left -= 1
        if self.left < 0:
            raise Ended(what)


def filled(root, *, is_clean):
    store = open_store(root)
    for number in range(300):
        store.commit_log.append(message(bytes(2000), queue_id=number % 4))
    store.close()
    if not is_clean:
        (root / "abort").touch()
    return store


def open_files(root):
    """Files below `root` that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(descriptor.readlink()))
        except FileNotFoundError:
            # The descriptor of the listing itself.
            continue
    return [name for name in found if name.startswith(str(root))]


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_opening_may_be_ended_at_any_progress_report_and_the_next_one_is_complete(tmp_path, is_clean):
    settings = filled(tmp_path, is_clean=is_clean).settings
    reports = 0
    phases = set()
    while True:
        try:
            store = opening.open_store(settings, on_progress=EndAt(reports))
        except Ended as ended:
            phases.add(str(ended))
        else:
            break
        reports += 1
        assert open_files(tmp_path) == []
        # Queues and index were complete: a store that was closed cleanly is still clean.
        assert (tmp_path / "abort").exists() != is_clean
    assert phases >= {"opening consume queues", "checking the commit log, files"}
    assert [store.reads.max_offset("Orders", queue_id) for queue_id in range(4)] == [75] * 4
    store.close()
    assert open_files(tmp_path) == []


def test_a_store_with_partly_built_queues_is_in_need_of_recovery(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.store.dispatch_to_end.DISPATCH_RECORDS", 10)
    settings = filled(tmp_path, is_clean=True).settings
    for file in sorted((tmp_path / "consumequeue").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    ended_while_building = False
    reports = 0
    while not ended_while_building:
        with pytest.raises(Ended) as ended:
            opening.open_store(settings, on_progress=EndAt(reports))
        reports += 1
        ended_while_building = "building" in str(ended.value)
        assert (tmp_path / "abort").exists() == ended_while_building
    store = opening.open_store(settings)
    assert [store.reads.max_offset("Orders", queue_id) for queue_id in range(4)] == [75] * 4
    store.close()
    assert not (tmp_path / "abort").exists()
