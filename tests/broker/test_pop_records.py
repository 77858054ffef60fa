"""Which popped messages of a RocketMQ 5.5.0 broker are not acknowledged, by the records that it wrote."""

import json
import tracemalloc
from collections import Counter

import pytest
from attrs import evolve

from tests.broker.pending_records import (
    FAILOVER,
    KILLED_AT,
    POPS,
    in_timer_topic,
    pending_check_points,
    recorded,
    recorded_offsets,
)
from trioha.broker.pending import revived_offsets
from trioha.broker.pop_records import PendingPops, is_pop_record
from trioha.store.message_properties import encode_properties, parse_properties

RECORDS = recorded(*POPS)
BEFORE_DEATH = [record for record in recorded(FAILOVER) if record.physical_offset < KILLED_AT]
REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"
CHECK_POINT, ACK = BEFORE_DEATH[-2], BEFORE_DEATH[-1]


def popped(records, revived=None):
    """Queue offsets of what is pending, by topic and group."""
    found = {}
    for one in pending_check_points(records, revived):
        found.setdefault((one.topic, one.group), []).extend(one.offsets)
    return {queue: sorted(offsets) for queue, offsets in found.items()}


def with_body(record, **changes):
    """The record with other members of its body; without those that are None."""
    members = {**json.loads(record.body), **changes}
    return evolve(record, body=json.dumps({k: v for k, v in members.items() if v is not None}).encode())


def test_what_a_killed_master_had_given_and_nobody_acknowledged_is_pending():
    # 12 messages popped, 0 to 5 acknowledged; 6 was changed: a new check point, and an acknowledgement.
    assert popped(BEFORE_DEATH) == {("FT", "FG"): [6, 7, 8, 9, 10, 11]}
    first, changed = sorted(pending_check_points(BEFORE_DEATH), key=lambda one: one.pop_ms)
    assert (first.queue_id, first.start_offset, first.broker_name) == (0, 0, "broker-f")
    assert (first.pop_ms, first.invisible_ms) == (1795806510896, 115000)
    assert (changed.pop_ms, changed.invisible_ms, changed.offsets) == (1795806511169, 105000, (6,))


def test_pops_acknowledgements_and_changes_of_a_client_are_followed_one_by_one():
    # The client's steps 03 to 06 of the recording: 20 messages, 12 acknowledged, 4 changed, 4 left.
    steps = [record for record in in_timer_topic(RECORDS) if record.store_timestamp_ms < 1795805540000]
    kinds = Counter(parse_properties(record.properties_raw)["TAGS"] for record in steps)
    assert kinds == {"ck": 7, "ack": 16}
    assert {queue: len(offsets) for queue, offsets in popped(steps).items()} == {("PT", "PG"): 8}


def test_check_points_that_the_master_was_done_with_are_not_pending():
    assert len(popped(RECORDS)) == 8
    assert popped(RECORDS, revived_offsets(recorded_offsets())) == {}


def test_a_check_point_after_the_committed_one_is_pending():
    copies = [one for one in recorded(FAILOVER) if one.topic == REVIVE and b'"d"' in one.body]
    records = recorded(FAILOVER)
    last = {(one.topic, one.queue_id): one.queue_offset for one in copies}
    assert len(popped(records)["FT", "FG"]) == 6
    assert ("FT", "FG") not in popped(records, last)
    one_before = {queue: offset - 1 for queue, offset in last.items()}
    assert popped(records, one_before)["FT", "FG"] == [7, 8, 9, 10, 11]


def test_copies_in_the_revive_topic_bring_back_nothing_that_was_acknowledged():
    acks = [record for record in BEFORE_DEATH if b'"ao"' in record.body]
    rest = [with_body(ACK, ao=offset) for offset in range(7, 12)]
    copy = next(one for one in recorded(FAILOVER) if one.topic == REVIVE and one.physical_offset == 6624)
    assert copy.body == BEFORE_DEATH[12].body
    assert popped([BEFORE_DEATH[12], *acks, *rest, copy]) == {}


def test_records_that_were_due_at_once_come_to_the_revive_topic_directly():
    direct = [one for one in RECORDS if one.topic == REVIVE and b"TIMER_OUT_MS" not in one.properties_raw]
    assert len(direct) == 3
    assert popped(direct) == {("PD", "PX"): [0, 0]}


def test_one_record_acknowledges_several():
    properties = encode_properties({**parse_properties(ACK.properties_raw), "TAGS": "bAck"})
    batch = with_body(evolve(ACK, properties_raw=properties), ao=-1, aol=[7, 8, 11, 99])
    assert popped([*BEFORE_DEATH, batch]) == {("FT", "FG"): [6, 9, 10]}


def test_an_acknowledgement_is_of_its_own_pop_only():
    for other in ({"pt": 1}, {"so": 1}, {"q": 1}, {"t": "other"}, {"c": "other"}, {"bn": "other"}):
        assert popped([*BEFORE_DEATH, with_body(ACK, ao=7, **other)])["FT", "FG"] == [6, 7, 8, 9, 10, 11]
    assert popped([*BEFORE_DEATH, with_body(ACK, ao=7)])["FT", "FG"] == [6, 8, 9, 10, 11]


def test_check_points_of_other_versions():
    whole = BEFORE_DEATH[12]
    assert popped([with_body(whole, d=None, n=3)]) == {("FT", "FG"): [0, 1, 2]}
    assert popped([with_body(whole, bm=0b101)])["FT", "FG"] == [1, *range(3, 12)]
    assert popped([with_body(whole, so=10, d=[0, 5])]) == {("FT", "FG"): [10, 15]}
    long_names = with_body(whole, t=None, topic="FT", c=None, cid="FG", so=None, startOffset=3, d=None, n=1)
    assert popped([long_names]) == {("FT", "FG"): [3]}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[1]",
        b"{}",
        b'{"t":1}',
        b'{"a":' * 5000,
        json.dumps({**json.loads(BEFORE_DEATH[12].body), "d": list(range(33))}).encode(),
        json.dumps({**json.loads(BEFORE_DEATH[12].body), "d": [1 << 40]}).encode(),
        json.dumps({**json.loads(BEFORE_DEATH[12].body), "pt": -1}).encode(),
    ],
)
def test_a_body_of_another_shape_is_counted_and_nothing_else(body):
    pops = PendingPops()
    record = evolve(BEFORE_DEATH[12], body=body)
    properties = parse_properties(record.properties_raw)
    assert is_pop_record(record, properties)
    pops.add(record, properties)
    assert (list(pops), pops.unreadable) == ([], 1)


def test_a_pending_check_point_takes_less_than_200_bytes():
    number = 10_000
    pops, properties = PendingPops(), parse_properties(CHECK_POINT.properties_raw)
    members = json.loads(CHECK_POINT.body)
    records = [
        evolve(CHECK_POINT, body=json.dumps({**members, "so": index}).encode()) for index in range(number)
    ]
    tracemalloc.start()
    try:
        for record in records:
            pops.add(record, properties)
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(len(one.offsets) for one in pops) == number
    assert used_bytes / number < 200
