"""The writer of an archive: what it stores, where it goes on, and when it begins a new generation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.archive.support import Log, archived, archiver_of, in_memory, reader_of
from trioha.archive.objects import ObjectFolder


@pytest.fixture
def folder() -> ObjectFolder:
    return in_memory()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "store")


def test_a_log_that_grows_between_steps_is_archived_byte_by_byte(folder: ObjectFolder, log: Log) -> None:
    archiver = archiver_of(folder, log)
    for count in (1, 0, 100, 3, 1):
        log.append(count)
        step = archiver.step()
        assert not step.is_more_waiting
        assert step.archived_offset == log.end_offset
        assert archived(folder) == (0, log.data())
    assert archiver.head is not None
    assert [one.reason for one in archiver.head.generations] == ["first archive"]


def test_a_restart_goes_on_where_the_archive_ends(folder: ObjectFolder, log: Log) -> None:
    log.append(50)
    archiver_of(folder, log).step()
    log.append(50)
    step = archiver_of(folder, log).step()
    assert step.began is None
    assert archived(folder) == (0, log.data())


def test_a_store_with_another_history_begins_a_new_generation(
    folder: ObjectFolder, log: Log, tmp_path: Path
) -> None:
    log.append(100)
    archiver_of(folder, log).step()
    before = log.data()
    other = Log(tmp_path / "other")
    other.clock.now_s = 1.0
    other.append(40, body=b"another history")
    step = archiver_of(folder, other, take_over=True).step()
    # The first difference is the last byte of the first record's length.
    assert step.began == "the log differs from offset 3 on"
    assert archived(folder) == (0, other.data())
    assert archived(folder, "0001") == (0, before)


def test_config_files_are_archived_when_they_change(folder: ObjectFolder, log: Log) -> None:
    archiver = archiver_of(folder, log)
    times_ms = []
    for text in ('{"a":1}', '{"a":1}', '{"a":2}'):
        log.append()
        log.clock.sleep(10)
        log.config(consumerOffset=text)
        times_ms.append(log.clock.wall_ms())
        archiver.step()
    reader = reader_of(folder)
    found = [reader.metadata_files(one) for one in reader.metadata(reader.generation())]
    assert [one.files for one in found] == [
        {"consumerOffset.json": '{"a":2}'},
        {"consumerOffset.json": '{"a":1}'},
    ]
    assert [one.taken_ms for one in found] == [times_ms[2], times_ms[0]]
    assert found[0].offset == log.end_offset
