"""Offsets in the middle of a record lead to its start."""

import pytest

from tests.store.support import STORES, VECTORS
from trioha.store.read_only_commit_log import ReadOnlyCommitLog


@pytest.mark.parametrize("name", STORES)
def test_every_byte_of_a_real_log_is_in_the_record_that_holds_it(name):
    log = ReadOnlyCommitLog.open(VECTORS / name / "store")
    for record in log.records(log.min_offset):
        start, size = record.physical_offset, record.total_size
        for inside in (start, start + 1, start + size // 2, start + size - 1):
            assert log.record_start(inside) == start, inside
    assert log.record_start(log.written_end() + 1000) is None
    assert log.record_start(1 << 60) is None
