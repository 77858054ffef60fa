"""Metadata files of real brokers are read and written back equal; tables, limits and the writer of files."""

import json
from functools import partial
from pathlib import Path

import pytest
import trio

from trioha.errors import StoreError
from trioha.metadata.data_version import DataVersion
from trioha.metadata.files import FILE_BYTES_MAX, read_metadata, write_metadata
from trioha.metadata.groups import GroupTable, SubscriptionGroup
from trioha.metadata.metadata_store import RETRY_S, MetadataSettings, MetadataStore
from trioha.metadata.offsets import ConsumerOffsets, DelayOffsets
from trioha.metadata.pretty_json import encode_pretty, parse_pretty
from trioha.metadata.table import TableFull
from trioha.metadata.topics import Perm, TopicConfig, TopicSettings, TopicTable

VECTORS = Path(__file__).parent.parent / "vectors"
TABLES = {table.file_name: table for table in (TopicTable, GroupTable, ConsumerOffsets, DelayOffsets)}
FILES = sorted(
    path for path in VECTORS.glob("store-*/*/config/*.json*") if path.name.removesuffix(".bak") in TABLES
)


def named(path):
    return "/".join(path.parts[-4:])


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_file_of_a_real_broker_is_written_back_byte_for_byte(path):
    table = TABLES[path.name.removesuffix(".bak")]()
    raw = path.read_text("utf-8")
    table.load(parse_pretty(raw))
    assert encode_pretty(table.snapshot()()) == raw
    # The same from a writer that puts quotes around integer keys.
    again = TABLES[path.name.removesuffix(".bak")]()
    again.load(json.loads(json.dumps(parse_pretty(raw))))
    assert encode_pretty(again.snapshot()()) == raw


def test_the_vectors_hold_every_kind_of_file_of_both_versions():
    assert {(path.parts[-4][:11], path.name) for path in FILES} >= {
        (version, name) for version in ("store-4.9.7", "store-5.3.3") for name in TABLES
    }


def test_offsets_of_a_real_broker_are_found():
    table = ConsumerOffsets()
    table.load(parse_pretty((VECTORS / "store-5.3.3/store/config/consumerOffset.json").read_text()))
    assert [table.find("vec_group", "VecA", queue_id) for queue_id in range(3)] == [41, 42, None]
    assert table.topics_of("vec_group") == ["VecA", "%RETRY%vec_group"]
    assert table.groups_of("RMQ_SYS_TRANS_HALF_TOPIC") == ["CID_RMQ_SYS_TRANS"]
    assert table.count == 5


def test_unknown_members_stay_where_they_were():
    text = (
        '{\n\t"aNewTable":[1,"x"],\n\t"dataVersion":{\n\t\t"counter":3,\n\t\t"timestamp":5\n\t},\n'
        '\t"topicConfigTable":{\n\t\t"T":{\n\t\t\t"newFlag":true,\n\t\t\t"order":true,\n\t\t\t"perm":6,\n'
        '\t\t\t"readQueueNums":4,\n\t\t\t"topicFilterType":"MULTI_TAG",\n\t\t\t"topicName":"T",\n'
        '\t\t\t"topicSysFlag":0,\n\t\t\t"writeQueueNums":8\n\t\t}\n\t}\n}'
    )
    table = TopicTable(now_ms=lambda: 77)
    table.load(parse_pretty(text))
    topic = table.find("T")
    assert (topic.order, topic.read_queue_nums, topic.write_queue_nums) == (True, 4, 8)
    assert encode_pretty(table.snapshot()()) == text
    table.put(TopicConfig("U", other={"attributes": {"+": "é"}}))
    assert table.version == DataVersion(4, 77)
    assert table.changes.offset == 1
    assert "newFlag" in encode_pretty(table.snapshot()())


def test_a_table_without_a_version_begins_at_the_first():
    """A file that an administrator wrote by hand: a broker could not register such topics."""
    table = TopicTable(now_ms=lambda: 77)
    table.load(parse_pretty('{"topicConfigTable":{"T":{}}}'))
    assert table.version == DataVersion()
    table.put(TopicConfig("U"))
    assert table.version == DataVersion(1, 77)
    groups = GroupTable(now_ms=lambda: 77)
    groups.load({})
    assert groups.version == DataVersion()
    # Offsets of a 4.9 broker have none.
    offsets = ConsumerOffsets()
    offsets.load({"offsetTable": {}})
    assert offsets.version is None


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"topicConfigTable":[]}',
        '{"topicConfigTable":{"T":{"perm":"x"}}}',
        '{"topicConfigTable":{"T":{"order":1}}}',
        '{"topicConfigTable":{"T":{"readQueueNums":99999999999}}}',
        '{"dataVersion":7}',
        "[" * 100_000,
    ],
)
def test_a_value_of_another_shape_is_a_value_error_and_changes_nothing(text):
    table = TopicTable()
    table.put(TopicConfig("T"))
    with pytest.raises(ValueError):  # noqa: PT011 - any
        table.load(parse_pretty(text))
    assert list(table.entries) == ["T"]


def test_bare_keys_in_texts_are_texts():
    assert parse_pretty('{"a{1:2,":{ 3 :4,-5:6},"b\\"{7:":8}') == {"a{1:2,": {"3": 4, "-5": 6}, 'b"{7:': 8}


# -- files ---------------------------------------------------------------------------------------------------


def number_of(value):
    if not isinstance(value, dict):
        raise ValueError("is not an object")
    return value["n"]


def test_a_write_keeps_the_file_before_it_as_backup(tmp_path):
    path = tmp_path / "config" / "t.json"
    for number in (1, 2, 3):
        write_metadata(path, f'{{"n":{number}}}')
    assert read_metadata(path, number_of) == 3
    assert sorted(file.name for file in path.parent.iterdir()) == ["t.json", "t.json.bak"]
    path.unlink()
    assert read_metadata(path, number_of) == 2


@pytest.mark.parametrize("damaged", ["", " \n", '{"n":', "7", "\0" * 100])
def test_the_backup_stands_in_for_a_file_that_is_empty_or_damaged(tmp_path, damaged):
    path = tmp_path / "t.json"
    write_metadata(path, '{"n":1}')
    write_metadata(path, '{"n":2}')
    path.write_text(damaged)
    assert read_metadata(path, number_of) == 1


def test_a_damaged_file_without_a_backup_is_not_taken_for_an_empty_one(tmp_path):
    path = tmp_path / "t.json"
    assert read_metadata(path, number_of) is None
    path.write_text("{")
    with pytest.raises(StoreError, match="is damaged"):
        read_metadata(path, number_of)
    assert path.read_text() == "{"


def test_a_file_that_is_too_large_is_refused(tmp_path):
    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    with pytest.raises(StoreError, match="is larger than"):
        read_metadata(path, number_of)


# -- topics --------------------------------------------------------------------------------------------------


def table_of(**settings):
    table = TopicTable(TopicSettings(**settings))
    table.add_system_topics()
    return table


def test_system_topics_are_those_of_the_real_broker():
    real = TopicTable()
    real.load(parse_pretty((VECTORS / "store-4.9.7/store/config/topics.json").read_text()))
    mine = table_of(cluster_name="VecCluster", broker_name="vec-broker")
    made_by_the_test = {"VecA", "VecB", "VecTran", "%RETRY%vec_group"}
    not_of_4_9 = {"RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_REVIVE_LOG_VecCluster"}
    assert {name: topic for name, topic in real.entries.items() if name not in made_by_the_test} == {
        name: topic for name, topic in mine.entries.items() if name not in not_of_4_9
    }
    assert mine.changes.offset == 0


@pytest.mark.parametrize(("asked", "made"), [(4, 4), (8, 8), (100, 8), (0, 0), (-3, 0)])
def test_a_first_send_makes_a_topic_with_at_most_the_queues_of_its_model(asked, made):
    table = table_of()
    topic = table.find_or_create("T", default_topic="TBW102", queue_nums=asked)
    assert (topic.read_queue_nums, topic.write_queue_nums) == (made, made)
    assert topic.perm == Perm.READ | Perm.WRITE
    assert table.find("T") is topic
    assert table.changed_at == {"T": 1}
    table.note_written(1)
    assert table.changed_at == {}


def test_no_topic_is_made_where_none_may_be():
    assert table_of(auto_create=False).find_or_create("T", default_topic="TBW102", queue_nums=4) is None
    table = table_of()
    assert table.find_or_create("T", default_topic="NoSuch", queue_nums=4) is None
    assert table.find_or_create("T", default_topic="SELF_TEST_TOPIC", queue_nums=4) is None
    assert table.changes.offset == 0


def test_a_retry_topic_has_one_queue_and_needs_no_model():
    table = table_of(auto_create=False)
    topic = table.find_or_create("%RETRY%g", default_topic="TBW102", queue_nums=4)
    assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


def test_topics_have_a_maximum_and_legal_names():
    table = TopicTable(TopicSettings(topics_max=2))
    table.put(TopicConfig("A"))
    table.put(TopicConfig("B"))
    with pytest.raises(TableFull, match=r"trioha\.topicsMax"):
        table.put(TopicConfig("C"))
    table.put(TopicConfig("A", perm=4))
    assert table.find("A").perm == 4
    for name in ("", "a b", "a/b", "é", "x" * 128):
        with pytest.raises(ValueError, match="is not a topic's name"):
            table.put(TopicConfig(name))
    assert table.delete("B")
    assert not table.delete("B")
    assert table.changes.offset == 4


# -- groups and offsets --------------------------------------------------------------------------------------


def test_groups_are_made_where_they_may_be():
    table = GroupTable(groups_max=2)
    assert table.find_or_create("g") == SubscriptionGroup("g")
    assert table.find_or_create("") is None
    assert table.find_or_create("x" * 256) is None
    table.find_or_create("h")
    with pytest.raises(TableFull, match=r"trioha\.groupsMax"):
        table.find_or_create("i")
    closed = GroupTable(auto_create=False)
    assert closed.find_or_create("g") is None
    assert closed.find_or_create("CID_RMQ_SYS_TRANS") is not None


def test_offsets_have_a_maximum_and_go_where_they_are_sent():
    table = ConsumerOffsets(offsets_max=3)
    table.commit("g", "T", 0, 5)
    table.commit("g", "T", 1, 6)
    table.commit("h", "T", 0, 7)
    changes = table.changes.offset
    table.commit("g", "T", 0, 5)
    assert table.changes.offset == changes
    table.commit("g", "T", 0, 3)
    assert table.find("g", "T", 0) == 3
    with pytest.raises(TableFull, match=r"trioha\.consumerOffsetsMax"):
        table.commit("g", "T", 2, 1)
    assert (table.find("g", "T", 2), table.count) == (None, 3)
    table.delete(group="g", topic="T")
    assert (table.count, table.of_group("g", "T"), table.of_group("h", "T")) == (1, {}, {0: 7})
    table.copy_queues("T@h", {0: 9, 1: 1})
    table.copy_queues("U@h", {0: 2})
    assert (table.count, table.find("h", "T", 0), table.find("h", "U", 0)) == (3, 9, 2)


# -- the writer ----------------------------------------------------------------------------------------------


def settings_of(tmp_path, **changes):
    return MetadataSettings(folder=tmp_path / "config", **changes)


async def test_topics_are_written_at_once_and_offsets_at_their_interval(tmp_path, nursery):
    store = MetadataStore.open(settings_of(tmp_path, offsets_interval_s=0.01))
    nursery.start_soon(store.run)
    store.topics.find_or_create("T", default_topic="TBW102", queue_nums=4)
    assert await store.topics.written.reached(1)
    for offset in range(10):
        store.consumer_offsets.commit("g", "T", 0, offset)
    assert await store.consumer_offsets.written.reached(10)
    read = MetadataStore.open(settings_of(tmp_path))
    assert read.topics.find("T") == store.topics.find("T")
    assert read.topics.version == store.topics.version
    assert read.consumer_offsets.find("g", "T", 0) == 9


def test_close_writes_what_has_changed_and_nothing_else(tmp_path):
    store = MetadataStore.open(settings_of(tmp_path))
    store.delay_offsets.put(3, 17)
    store.close()
    assert [file.name for file in (tmp_path / "config").iterdir()] == ["delayOffset.json"]
    assert MetadataStore.open(settings_of(tmp_path)).delay_offsets.find(3) == 17
    assert (tmp_path / "config/delayOffset.json").read_text() == '{\n\t"offsetTable":{3:17\n\t}\n}'


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path, nursery, monkeypatch, autojump_clock):
    tries_s = []
    is_written = trio.Event()

    def write(path, text, *, on_backup):
        tries_s.append(trio.current_time())
        if len(tries_s) < 3:
            raise OSError(28, "No space left on device")
        write_metadata(path, text, on_backup=on_backup)
        is_written.set()

    async def here(call):
        return call()

    monkeypatch.setattr("trioha.metadata.metadata_store.write_metadata", write)
    store = MetadataStore.open(settings_of(tmp_path))
    start_s = trio.current_time()
    nursery.start_soon(partial(store.run, in_thread=here))
    store.groups.find_or_create("g")
    # Who waits for the file is not held up by a disk that refuses it.
    assert await store.groups.written.reached(1)
    assert trio.current_time() == start_s
    await is_written.wait()
    assert tries_s == [start_s, start_s + RETRY_S, start_s + 2 * RETRY_S]
    assert store.unwritten.failures == {"subscriptionGroup.json": 2}
    assert MetadataStore.open(settings_of(tmp_path)).groups.find("g") is not None


def test_a_slaves_tables_have_no_entries_of_their_own(tmp_path):
    store = MetadataStore.open(settings_of(tmp_path, adds_system_entries=False))
    assert (store.topics.entries, store.groups.entries) == ({}, {})


def test_a_table_that_is_a_copy_has_its_masters_version():
    table = TopicTable(now_ms=lambda: 1)
    table.replace_all([TopicConfig("A")], DataVersion(9, 8, 7))
    assert (table.version, list(table.entries), table.changes.offset) == (DataVersion(9, 8, 7), ["A"], 1)


def test_tables_of_a_slave_get_what_every_broker_has_when_it_becomes_a_master(tmp_path):
    store = MetadataStore.open(MetadataSettings(tmp_path, adds_system_entries=False))
    assert not store.topics.entries
    store.take_role(is_slave=False)
    assert "TBW102" in store.topics.entries
    topics = dict(store.topics.entries)
    store.take_role(is_slave=True)
    assert (store.topics.entries, store.settings.adds_system_entries) == (topics, False)
    store.close()
