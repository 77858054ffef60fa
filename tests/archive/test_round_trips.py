"""What the archiver writes is right, equal to its store, and restored, also after merges and thinning."""

from random import Random

import pytest

from tests.archive.support import FILE_BYTES, Log, archiver_of, in_memory, reader_of
from tests.levels import by_level
from trioha.archive.comparison import compare_with_archive
from trioha.archive.restore import Restore
from trioha.archive.restore_plan import Target
from trioha.archive.verification import verify_archive
from trioha.metadata.clamped_offsets import clamp_offsets
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record_layout import starts_blank


@pytest.mark.sized
def test_an_archive_that_grows_is_right_at_every_step(tmp_path):
    for seed in range(by_level(1, 4, 100)):
        check(tmp_path / str(seed), Random(seed))


def check(tmp_path, chosen):
    """Archive a log that grows at random, and restore it."""
    log = Log(tmp_path / "store")
    folder = in_memory()
    archiver = archiver_of(folder, log, merge_objects=4)
    ends = []
    for number in range(25):
        log.append(chosen.randrange(1, 12), body=bytes(chosen.randrange(0, 700)), topic=f"T{number % 3}")
        log.config(topics=f'{{"n":{number}}}')
        archiver.step()
        ends.append((log.clock.wall_ms(), log.end_offset))
        log.clock.sleep(chosen.choice((10, 60, 700)))
    reader = reader_of(folder)
    found = verify_archive(reader)
    assert found.problems == ()
    assert found.log_bytes == log.end_offset
    assert verify_archive(reader, quick=True).problems == ()
    compared = compare_with_archive(ReadOnlyCommitLog.open(log.store), reader)
    assert (compared.compared, compared.difference_count) == ((0, log.end_offset), 0)
    for number in (0, 7, 24):
        at_ms, end_offset = ends[number]
        if starts_blank(log.data(), end_offset, log.end_offset):
            # The next record is in the next file: the blank before it belongs to what comes before it.
            end_offset += FILE_BYTES - end_offset % FILE_BYTES
        into = tmp_path / f"restored-{number}"
        restored = Restore(reader, into, clamp=clamp_offsets).run(Target(to_ms=at_ms))
        assert restored.plan.end_offset == end_offset
        files = sorted((into / "commitlog").iterdir())
        data = b"".join(path.read_bytes() for path in files)
        assert data == log.data()[:end_offset].ljust(len(files) * FILE_BYTES, b"\0")
        # Of a minute only the last metadata stays, so that the first ones may be gone.
        assert restored.metadata.offset <= end_offset or restored.is_metadata_later
    assert (tmp_path / "restored-24/config/topics.json").read_text() == '{"n":24}'
