"""What a slave remembers of a master that keeps popped messages and others in RocksDB."""

import pytest

from trioha.broker.master_stores import FILE_NAME, MasterStores, remembered_keys
from trioha.broker.pending import count_pending
from trioha.errors import StoreError

KV, TIMERS = "popConsumerKVServiceEnable", "timerRocksDBEnable"


async def test_a_slave_remembers_what_its_last_master_kept_in_rocksdb(tmp_path):
    config = tmp_path / "config"
    config.mkdir()
    slave = MasterStores(config)
    await slave.note({KV: "false", "storeType": "defaultRocksDB"})
    assert list(config.iterdir()) == []
    assert remembered_keys(config) == ()

    await slave.note({KV: "true", TIMERS: "TRUE", "brokerName": "a"})
    assert remembered_keys(config) == (KV, TIMERS)
    assert count_pending(tmp_path, revived={}).status.unread_stores == (
        f"popped messages ({KV} of the master)",
        f"timers that have left the log ({TIMERS} of the master)",
    )
    await slave.note({})
    assert remembered_keys(config) == ()


@pytest.mark.parametrize("data", [b"[]", b'{"rocksdb":1}', b"{", b""])
def test_a_damaged_memory_is_an_error_with_its_path(tmp_path, data):
    (tmp_path / FILE_NAME).write_bytes(data)
    with pytest.raises(StoreError, match=FILE_NAME):
        remembered_keys(tmp_path)


async def test_a_disk_that_refuses_does_not_end_a_slave(tmp_path, capsys):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "config"
    await MasterStores(folder).note({KV: "true"})
    said = capsys.readouterr().out
    assert "cannot be written" in said
    assert str(folder / FILE_NAME) in said


def test_names_that_are_not_known_are_passed_over(tmp_path):
    (tmp_path / FILE_NAME).write_text(f'{{"rocksdb":["laterKey","{KV}",5,{{}}]}}')
    assert remembered_keys(tmp_path) == (KV,)
