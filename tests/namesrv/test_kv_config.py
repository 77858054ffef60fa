"""The key-value table and its file."""

import json

import pytest
import trio

from trioha.errors import StoreError
from trioha.namesrv.kv_config import ENTRIES_MAX, TABLE_BYTES_MAX, KvConfig
from trioha.remoting.command import BadRequestError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "namesrv" / "kvConfig.json"


async def test_a_value_is_on_disk_as_rocketmq_writes_it(path):
    kv = KvConfig.load(path)
    await kv.put("N", "k", "v")
    await kv.put("ORDER_TOPIC_CONFIG", "T", "a:4")
    assert json.loads(path.read_bytes()) == {
        "configTable": {"N": {"k": "v"}, "ORDER_TOPIC_CONFIG": {"T": "a:4"}}
    }
    assert json.loads(path.with_name("kvConfig.json.bak").read_bytes()) == {"configTable": {"N": {"k": "v"}}}
    again = KvConfig.load(path)
    assert again.get("N", "k") == "v"
    assert again.namespace("ORDER_TOPIC_CONFIG") == {"T": "a:4"}
    assert again.namespace("other") is None


async def test_a_damaged_file_is_replaced_by_its_backup_and_never_by_nothing(path):
    kv = KvConfig.load(path)
    await kv.put("N", "k", "1")
    await kv.put("N", "k", "2")
    path.write_bytes(path.read_bytes()[:-5])
    assert KvConfig.load(path).get("N", "k") == "1"
    path.unlink()
    assert KvConfig.load(path).get("N", "k") == "1"
    for damaged in (b"", b"[]", b'{"configTable":[]}', b'{"configTable":{"N":3}}'):
        path.write_bytes(damaged)
        path.with_name("kvConfig.json.bak").write_bytes(damaged)
        with pytest.raises(StoreError, match="damaged"):
            KvConfig.load(path)


async def test_what_the_disk_refuses_is_not_in_the_table(path, tmp_path):
    kv = KvConfig.load(path)
    await kv.put("N", "k", "1")
    path.unlink()
    path.mkdir()
    with pytest.raises(BadRequestError, match="cannot be written"):
        await kv.put("N", "k", "2")
    assert kv.get("N", "k") == "1"


async def test_many_changes_at_once_all_count(path):
    kv = KvConfig.load(path)
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(kv.put, "N", str(number), "v")
    assert len(KvConfig.load(path).namespace("N") or {}) == 20


@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [("", "k", "v"), ("N", "k" * 256, "v"), ("N", "k", "v" * TABLE_BYTES_MAX), ("N", "k", "\ud800")],
)
async def test_values_that_are_too_large_are_refused(path, namespace, key, value):
    kv = KvConfig.load(path)
    with pytest.raises(BadRequestError):
        await kv.put(namespace, key, value)
    assert not path.exists()


async def test_entries_have_a_maximum_and_known_ones_may_be_changed(path):
    path.parent.mkdir()
    table = {str(number): str(number) for number in range(ENTRIES_MAX - 1)}
    path.write_text(json.dumps({"configTable": {"N": table}}))
    kv = KvConfig.load(path)
    for namespace in ("N", "M"):
        with pytest.raises(BadRequestError, match=f"takes {ENTRIES_MAX} key-value entries and namespaces"):
            await kv.put(namespace, "new", "v")
    await kv.put("N", "7", "changed")
    await kv.delete("N", "8")
    await kv.put("N", "new", "v")
    assert KvConfig.load(path).get("N", "new") == "v"
