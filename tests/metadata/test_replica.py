"""What an answer of a master changes at its slave; answers of real brokers are read and compared."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.remoting.recorded import answers
from trioha.config.keys.metadata import OffsetRegression
from trioha.errors import RemoteProtocolError
from trioha.metadata.consumer_orders import Order
from trioha.metadata.data_version import DataVersion
from trioha.metadata.documents import TimerCheckPoint
from trioha.metadata.groups import GroupTable, SubscriptionGroup
from trioha.metadata.metadata_store import MetadataSettings, MetadataStore
from trioha.metadata.offsets import ConsumerOffsets, DelayOffsets
from trioha.metadata.pretty_json import parse_pretty
from trioha.metadata.replica import SLICE_ENTRIES, CopiedTable, MetadataReplica
from trioha.metadata.table_reader import TableReader, int_map_at
from trioha.metadata.topics import TopicConfig, TopicTable
from trioha.remoting.codes import RequestCode

SYNC_SESSIONS = {
    "remoting-4.9.7/004-slavesync-a--mastervip": {RequestCode.GET_ALL_TOPIC_CONFIG: CopiedTable.TOPICS},
    "remoting-4.9.7/005-slavesync-b--master": {
        RequestCode.GET_ALL_CONSUMER_OFFSET: CopiedTable.CONSUMER_OFFSETS,
        RequestCode.GET_ALL_DELAY_OFFSET: CopiedTable.DELAY_OFFSETS,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: CopiedTable.GROUPS,
    },
    "remoting-5.3.3/003-slavesync-a--mastervip": {
        RequestCode.GET_ALL_TOPIC_CONFIG: CopiedTable.TOPICS,
        RequestCode.GET_TIMER_METRICS: CopiedTable.TIMER_METRICS,
        RequestCode.GET_TIMER_CHECK_POINT: CopiedTable.TIMER_CHECK_POINT,
    },
    "remoting-5.3.3/010-slavesync-b--master": {
        RequestCode.GET_ALL_CONSUMER_OFFSET: CopiedTable.CONSUMER_OFFSETS,
        RequestCode.GET_ALL_DELAY_OFFSET: CopiedTable.DELAY_OFFSETS,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: CopiedTable.GROUPS,
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: CopiedTable.REQUEST_MODES,
    },
}


def store() -> MetadataStore:
    return MetadataStore(
        MetadataSettings(folder=Path("/nowhere")),
        TopicTable(),
        GroupTable(),
        ConsumerOffsets(),
        DelayOffsets(),
    )


def replica(
    tables: MetadataStore, *, policy: OffsetRegression = OffsetRegression.KEEP, end: int | None = 1000
) -> MetadataReplica:
    return MetadataReplica(tables, policy=policy, queue_end=lambda _topic, _queue_id: end)


def take(copies: MetadataReplica, table: CopiedTable, *values: object) -> int:
    """Takes an answer; how often other tasks may run meanwhile."""
    bodies = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return len(list(copies.take(table, bodies)))


def topics_body(*names: str, counter: int = 1, **members: object) -> dict[str, object]:
    return {
        "dataVersion": {"counter": counter, "timestamp": 5},
        "topicConfigTable": {name: TopicConfig(name).to_json() for name in names},
        **members,
    }


@pytest.mark.parametrize("session", SYNC_SESSIONS)
def test_answers_of_real_masters_are_taken_whole_and_a_second_time_change_nothing(session):
    tables = store()
    copies = replica(tables)
    recorded = answers(session)
    for code, table in SYNC_SESSIONS[session].items():
        body = bytes(recorded[code].body)
        take(copies, table, body)
        take(copies, table, body)
        changes = [one.changes.offset for one in tables]
        # A new process compares the entries.
        take(replica(tables), table, body)
        assert [one.changes.offset for one in tables] == changes
        if table is CopiedTable.TIMER_CHECK_POINT:
            assert tables.timers.check_point == TimerCheckPoint.decode(body)
            continue
        whole = parse_pretty(body.decode())
        assert isinstance(whole, dict)
        match table:
            case CopiedTable.TOPICS:
                assert {name: one.to_json() for name, one in tables.topics.entries.items()} == whole[
                    "topicConfigTable"
                ]
                assert tables.topics.version == DataVersion.of(whole["dataVersion"])
                assert tables.topics.other == {}
            case CopiedTable.GROUPS:
                own = tables.groups.snapshot()()
                assert own["subscriptionGroupTable"] == whole["subscriptionGroupTable"]
                assert own.get("forbiddenTable") == whole.get("forbiddenTable")
            case CopiedTable.CONSUMER_OFFSETS:
                own_offsets = {
                    key: {str(q): o for q, o in qs.items()} for key, qs in tables.consumer_offsets.items()
                }
                assert own_offsets == whole["offsetTable"]
            case CopiedTable.DELAY_OFFSETS:
                assert {
                    str(level): offset for level, offset in tables.delay_offsets.items().items()
                } == whole["offsetTable"]


def test_topics_are_replaced_and_those_that_are_equal_stay_the_same_objects():
    tables = store()
    copies = replica(tables)
    take(copies, CopiedTable.TOPICS, topics_body("A", "B", newMember=[1], mappingDataVersion={"counter": 0}))
    first = tables.topics.entries
    assert tables.topics.other == {"newMember": [1]}
    take(copies, CopiedTable.TOPICS, topics_body("B", "C", counter=2))
    assert list(tables.topics.entries) == ["B", "C"]
    assert tables.topics.entries["B"] is first["B"]
    assert (tables.topics.version, tables.topics.changes.offset) == (DataVersion(2, 5), 2)
    assert tables.topics.other == {"newMember": [1]}


def test_a_table_that_was_never_changed_is_copied_though_both_versions_are_zero():
    tables = store()
    body = {"dataVersion": {"counter": 0, "timestamp": 0}, "topicConfigTable": {"A": {"topicName": "A"}}}
    take(replica(tables), CopiedTable.TOPICS, body)
    assert list(tables.topics.entries) == ["A"]


def test_an_answer_without_its_table_or_with_damage_changes_no_topic():
    tables = store()
    copies = replica(tables)
    take(copies, CopiedTable.TOPICS, topics_body("A"))
    for body in (b"{}", b"", b"[]", b'{"topicConfigTable":null}', b'{"topicConfigTable":{"B":{"perm":"x"}}}'):
        with pytest.raises(RemoteProtocolError):
            take(copies, CopiedTable.TOPICS, body)
    assert (list(tables.topics.entries), tables.topics.changes.offset) == (["A"], 1)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{}", "no table"),
        (b'{"table":{"T@G":[]}}', "orders of 'T@G'"),
        (b'{"table":{"T@G":{"-1":{"o":[1]}}}}', "orders of 'T@G'"),
        (b'{"table":{"T@G":{"0":{"o":[]}}}}', "o is not a list"),
        (b'{"table":{"T@G":{"0":{"o":[1]},"1":{"o":[1]},"2":{"o":[1]}}}}', "orders of more than 2 queues"),
    ],
)
def test_damaged_orders_change_nothing(body, reason):
    tables = store()
    tables.consumer_orders.orders_max = 2
    copies = replica(tables)
    take(copies, CopiedTable.CONSUMER_ORDERS, b'{"table":{"T@G":{"0":{"o":[1,2],"popTime":5}}}}')
    with pytest.raises(RemoteProtocolError, match=reason):
        take(copies, CopiedTable.CONSUMER_ORDERS, body)
    assert dict(tables.consumer_orders.items()) == {("G", "T", 0): Order(5, 0, (1, 3))}


def test_a_large_answer_is_taken_in_slices():
    tables = store()
    names = [f"T{number}" for number in range(10 * SLICE_ENTRIES)]
    assert take(replica(tables), CopiedTable.TOPICS, topics_body(*names)) == 10
    body = {"offsetTable": {f"{name}@G": {0: 1} for name in names}}
    assert take(replica(tables), CopiedTable.CONSUMER_OFFSETS, body) == 10


def test_offsets_are_merged_and_what_the_master_does_not_name_stays():
    tables = store()
    tables.consumer_offsets.commit("mine", "T", 0, 7)
    copies = replica(tables)
    body = b'{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":9},"offsetTable":{"T@G":{0:5,1:6}}}'
    take(copies, CopiedTable.CONSUMER_OFFSETS, body)
    offsets = tables.consumer_offsets
    assert [offsets.find("G", "T", 0), offsets.find("G", "T", 1), offsets.find("mine", "T", 0)] == [5, 6, 7]
    assert (offsets.count, offsets.version) == (3, DataVersion(3, 9, 1))
    changes = offsets.changes.offset
    take(copies, CopiedTable.CONSUMER_OFFSETS, body)
    assert offsets.changes.offset == changes


def test_an_offset_that_goes_back_is_kept_out_counted_once_and_logged():
    tables = store()
    copies = replica(tables)
    take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 100, 1: 50}}})
    with capture_logs() as logged:
        for offset in (5, 6, 7):
            take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: offset, 1: 51}}})
    assert (tables.consumer_offsets.find("G", "T", 0), tables.consumer_offsets.find("G", "T", 1)) == (100, 51)
    regressions = copies.consumer_regressions
    assert (regressions.seen, regressions.accepted, regressions.kept) == (1, 0, {("T@G", 0): 7})
    assert [entry["first"] for entry in logged if "before those" in entry["event"]] == ["T@G/0: 100 -> 5"]
    # The group has passed the slave's offset: nothing is kept out any more.
    take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 101}}})
    assert (tables.consumer_offsets.find("G", "T", 0), regressions.kept) == (101, {})


def test_an_offset_that_goes_back_is_taken_where_the_operator_accepts_it():
    tables = store()
    copies = replica(tables, policy=OffsetRegression.ACCEPT)
    for offset in (100, 5):
        take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: offset}}})
    assert tables.consumer_offsets.find("G", "T", 0) == 5
    assert (copies.consumer_regressions.seen, copies.consumer_regressions.accepted) == (1, 1)


@pytest.mark.parametrize("end", [None, 99])
def test_an_offset_beyond_the_slaves_own_queue_is_not_kept(end):
    """It is of a log that was replaced: a consumer that went on there would miss messages."""
    tables = store()
    copies = replica(tables, end=end)
    for offset in (100, 5):
        take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: offset}}})
        take(copies, CopiedTable.DELAY_OFFSETS, {"offsetTable": {"3": offset}})
    assert tables.consumer_offsets.find("G", "T", 0) == 5
    assert tables.delay_offsets.find(3) == 5


def test_offsets_of_a_log_that_was_replaced_give_way_when_the_master_names_others():
    """However long the new queues are by then: a consumer that went on there would miss messages."""
    tables = store()
    copies = replica(tables)

    def take_both(first: int | None) -> None:
        offsets = {} if first is None else {0: first, 1: 50}
        take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": offsets}})
        take(copies, CopiedTable.DELAY_OFFSETS, {"offsetTable": offsets_of_levels(offsets)})

    def held() -> tuple[object, object]:
        return tables.consumer_offsets.queues_of("T@G"), tables.delay_offsets.items()

    take_both(100)
    take_both(5)
    assert held() == ({0: 100, 1: 50}, {1: 100, 2: 50})
    copies.log_replaced()
    # What names nothing, or the same as before, changes nothing.
    take_both(None)
    take_both(100)
    assert held() == ({0: 100, 1: 50}, {1: 100, 2: 50})
    take_both(5)
    assert held() == ({0: 5, 1: 50}, {1: 5, 2: 50})
    assert copies.consumer_regressions.kept == copies.delay_regressions.kept == {}
    # Those of the new log are kept.
    take_both(100)
    take_both(5)
    assert held() == ({0: 100, 1: 50}, {1: 100, 2: 50})


def offsets_of_levels(offsets: dict[int, int]) -> dict[str, int]:
    return {str(queue_id + 1): offset for queue_id, offset in offsets.items()}


def test_the_answer_that_was_kept_out_is_read_again_when_the_log_was_replaced():
    tables = store()
    copies = replica(tables)
    take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 100}}})
    for _ in range(2):
        take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 5}}})
    assert tables.consumer_offsets.find("G", "T", 0) == 100
    copies.log_replaced()
    take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 5}}})
    assert tables.consumer_offsets.find("G", "T", 0) == 5


def test_delay_offsets_go_forward_only():
    tables = store()
    copies = replica(tables)
    take(copies, CopiedTable.DELAY_OFFSETS, b'{"offsetTable":{1:40,3:7}}')
    take(copies, CopiedTable.DELAY_OFFSETS, b'{"offsetTable":{1:39,3:8}}')
    assert tables.delay_offsets.items() == {1: 40, 3: 8}
    assert copies.delay_regressions.kept == {("", 1): 39}


def test_groups_keep_members_that_trioha_does_not_know():
    tables = store()
    group = {**SubscriptionGroup("G").to_json(), "groupRetryPolicy": {"type": "CUSTOMIZED"}}
    body = {
        "dataVersion": {"counter": 1, "stateVersion": 2, "timestamp": 3},
        "forbiddenTable": {"G": {"T": 1}},
    }
    take(replica(tables), CopiedTable.GROUPS, {**body, "subscriptionGroupTable": {"G": group}})
    assert tables.groups.snapshot()() == {**body, "subscriptionGroupTable": {"G": group}}


def test_pages_of_one_version_are_one_table():
    tables = store()
    take(replica(tables), CopiedTable.TOPICS, topics_body("A", "B"), topics_body("C"))
    assert list(tables.topics.entries) == ["A", "B", "C"]


def test_a_local_change_is_compared_with_the_next_answer_though_it_is_the_same():
    tables = store()
    copies = replica(tables)
    take(copies, CopiedTable.TOPICS, topics_body("A"))
    tables.topics.put(TopicConfig("Local"))
    take(copies, CopiedTable.TOPICS, topics_body("A"))
    assert list(tables.topics.entries) == ["A"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        "{}x",
        '{"offsetTable":{"a":{0:}}}',
        '{"offsetTable":{"a"',
        '{"offsetTable":{"a":{0:99999999999999999999}}}',
    ],
)
def test_a_damaged_table_is_refused(text):
    with pytest.raises(RemoteProtocolError):
        list(TableReader(text, table="offsetTable", read_value=int_map_at))


def test_the_reader_takes_both_dialects_and_keeps_the_other_members():
    reader = TableReader(
        '{"a":[1,{2:3}], "offsetTable" : {"T@G":{0:5,"1":-7}, "U@\\u00e9":{}} ,"dataVersion":{"counter":1}}',
        table="offsetTable",
        read_value=int_map_at,
    )
    assert list(reader) == [("T@G", {0: 5, 1: -7}), ("U@é", {})]
    assert reader.members == {"a": [1, {"2": 3}], "dataVersion": {"counter": 1}}


def test_offsets_beyond_a_cut_give_way_when_the_master_names_others_however_long_the_queue_is_then():
    tables = store()
    ends = {0: 100, 1: 100}
    copies = MetadataReplica(tables, queue_end=lambda _topic, queue_id: ends.get(queue_id))
    take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 100, 1: 30, 2: 7}}})
    take(copies, CopiedTable.DELAY_OFFSETS, {"offsetTable": offsets_of_levels({0: 100, 1: 30})})
    ends.update({0: 60, 1: 60})
    copies.log_cut()
    ends.update({0: 900, 1: 900, 2: 900})
    take(copies, CopiedTable.CONSUMER_OFFSETS, {"offsetTable": {"T@G": {0: 55, 1: 25, 2: 3}}})
    take(copies, CopiedTable.DELAY_OFFSETS, {"offsetTable": offsets_of_levels({0: 55, 1: 25})})
    assert tables.consumer_offsets.queues_of("T@G") == {0: 55, 1: 30, 2: 3}
    assert tables.delay_offsets.items() == {1: 55, 2: 30}


def test_offsets_grow_from_copy_to_copy_up_to_a_limit(monkeypatch):
    tables = store()
    tables.consumer_offsets = ConsumerOffsets(offsets_max=10)
    copies = replica(tables)
    for first in (0, 5):
        body = {"offsetTable": {f"T{number}@G": {"0": 7} for number in range(first, first + 5)}}
        take(copies, CopiedTable.CONSUMER_OFFSETS, body)
    assert tables.consumer_offsets.count == 10
    more = {"offsetTable": {"T0@G": {"0": 8}, "T10@G": {"0": 7}}}
    with pytest.raises(RemoteProtocolError, match=r"more than 10 offsets, trioha\.consumerOffsetsMax"):
        take(copies, CopiedTable.CONSUMER_OFFSETS, more)
    # Those that it has go on.
    assert (tables.consumer_offsets.count, tables.consumer_offsets.find("G", "T0", 0)) == (10, 8)
    monkeypatch.setattr("trioha.metadata.replica.OFFSET_NAMES_CHARS_MAX", 100)
    tables = store()
    with pytest.raises(RemoteProtocolError, match="names of topics and groups of more than 100 characters"):
        take(
            replica(tables),
            CopiedTable.CONSUMER_OFFSETS,
            {"offsetTable": {f"{'x' * 60}{number}@G": {"0": 7} for number in range(2)}},
        )
    assert tables.consumer_offsets.count == 1


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({f"m{number}": 1 for number in range(9)}, "more than 16 members beside the table"),
        ({"m": "x" * (1 << 20)}, "members beside the table of more than 1048576 characters"),
    ],
)
def test_members_beside_a_table_do_not_grow_from_copy_to_copy(other, reason):
    tables = store()
    copies = replica(tables)
    known = {f"k{number}": 1 for number in range(8)}
    take(copies, CopiedTable.TOPICS, topics_body("T", **known))
    with pytest.raises(RemoteProtocolError, match=reason):
        take(copies, CopiedTable.TOPICS, topics_body("T", "U", counter=2, **other))
    assert (list(tables.topics.entries), tables.topics.other) == (["T"], known)


def test_a_level_is_a_queue_of_a_topic():
    tables = store()
    with pytest.raises(RemoteProtocolError, match="delay level '65537'"):
        take(replica(tables), CopiedTable.DELAY_OFFSETS, {"offsetTable": {"65537": 1}})
    assert tables.delay_offsets.items() == {}
