"""The archiver fails or dies at each of its requests, and goes on: no hole, nothing sent twice."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

import pytest

from tests.archive.failing import HOWS, DiedError, FailingFolder
from tests.archive.support import Log, archived, in_memory, new_archiver, reader_of
from tests.levels import by_level
from trioha.archive.errors import ArchiveError
from trioha.archive.heads import read_head
from trioha.archive.reader import ArchiveReader

ROUNDS = 12
SETTINGS: dict[str, Any] = {
    "object_bytes_max": 1500,
    "merge_objects": 3,
    "page_objects": 2,
    "keep_s": 100.0,
    "delete_after_s": 20.0,
    "retention_s": 5.0,
}
"""Everything happens within a few steps: merges, pages, retention, deletions."""


def run(folder, log):
    """Archive a log that grows, with retries after errors."""
    archiver = new_archiver(folder, log, **SETTINGS)
    is_begun = False
    for number in range(ROUNDS):
        log.append(6 + number % 5)
        log.config(consumerOffset=f'{{"n":{number}}}')
        log.clock.sleep(25)
        for attempt in count():
            try:
                if not is_begun:
                    archiver.begin()
                    is_begun = True
                archiver.step()
                break
            except ArchiveError as error:
                if not error.is_transient or attempt == 3:
                    raise
    return archiver


def check(folder, log):
    """The archive has the log's end byte by byte, and everything that its head refers to."""
    reader = reader_of(folder)
    assert [one.reason for one in reader.head.generations] == ["first archive"]
    first, data = archived(folder)
    assert first % log.file_bytes == 0
    assert data == log.bytes_of(first, log.end_offset)
    contents = [reader.metadata_files(one) for one in reader.metadata(reader.generation())]
    assert contents[0].files == {"consumerOffset.json": f'{{"n":{ROUNDS - 1}}}'}
    assert [one.taken_ms for one in contents] == sorted((one.taken_ms for one in contents), reverse=True)


def requests_without_fault(store):
    log = Log(store)
    folder = FailingFolder(in_memory())
    run(folder, log)
    requests = folder.requests
    check(folder, log)
    generation = reader_of(folder).generation()
    assert generation.pages
    assert generation.first_offset > 0
    return requests


@pytest.mark.sized
@pytest.mark.parametrize("how", HOWS)
def test_the_archive_is_whole_after_a_fault_at_any_request(tmp_path, how):
    step = by_level(41, 5, 1)
    for at in range(HOWS.index(how) % step, requests_without_fault(tmp_path / "counted"), step):
        log = Log(tmp_path / str(at))
        folder = FailingFolder(in_memory(), at=at, how=how)
        try:
            run(folder, log)
        except DiedError:
            referred = log_keys(folder)
            log.config(consumerOffset=f'{{"n":{ROUNDS - 1}}}')
            restarted = FailingFolder(folder)
            archiver = new_archiver(restarted, log, **SETTINGS)
            archiver.begin()
            step = archiver.step()
            assert not step.is_more_waiting
            assert step.archived_offset == log.end_offset
            assert not referred & set(restarted.put_keys)
        assert folder.requests > at
        assert all(number == 1 for number in Counter(folder.put_keys).values())
        check(folder, log)


def log_keys(folder):
    folder.at = -1
    head = read_head(folder)
    if head is None or not head.generations:
        return set()
    reader = ArchiveReader(folder, head)
    return {one.key for one in reader.objects(reader.generation())}
