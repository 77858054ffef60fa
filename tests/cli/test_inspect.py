"""`trioha inspect` prints any record."""

import pytest

from tests.store.support import message, open_store
from trioha.cli.inspect import inspect


@pytest.mark.parametrize(
    ("time_ms", "shown"),
    [
        (0, "1970-01-01 00:00:00.000"),
        (1_772_366_400_007, "2026-03-01 12:00:00.007"),
        (253_402_300_799_999, "9999-12-31 23:59:59.999"),
        (253_402_300_800_000, "253402300800000 ms"),
        (2**63 - 1, "9223372036854775807 ms"),
        (-(2**63), "-9223372036854775808 ms"),
    ],
)
def test_a_record_with_any_time_is_printed(tmp_path, capsys, time_ms, shown):
    store = open_store(tmp_path)
    store.commit_log.append(message())
    # storeTimestamp, of a record with an IPv4 born host: no checksum covers it.
    store.commit_log.files[0].view[56:64] = time_ms.to_bytes(8, "big", signed=True)
    store.close()
    assert inspect(tmp_path) == 0
    assert f" {shown} " in " ".join(capsys.readouterr().out.split())
