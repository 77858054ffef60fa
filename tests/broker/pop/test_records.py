"""Check points and acknowledgements, byte for byte as a RocketMQ 5.5.0 broker wrote them."""

from tests.broker.pending_records import FAILOVER, POPS, in_timer_topic, recorded
from trioha.broker.pop.records import (
    ACK,
    BATCH_ACK,
    CHECK_POINT,
    Acknowledgement,
    CheckPoint,
    Pop,
    decode_acknowledgement,
    decode_check_point,
)
from trioha.store.message_properties import parse_properties


def recorded_pop_records():
    found = []
    for record in [*recorded(*POPS), *recorded(FAILOVER)]:
        properties = parse_properties(record.properties_raw)
        tag = properties.get("TAGS")
        if tag == CHECK_POINT:
            found.append((properties, record.body, decode_check_point(record.body)))
        elif tag in {ACK, BATCH_ACK}:
            deliver_ms = int(properties["TIMER_DELIVER_MS"])
            found.append(
                (properties, record.body, decode_acknowledgement(record.body, deliver_ms=deliver_ms))
            )
    return found


def test_bodies_keys_and_times_are_those_of_a_real_broker():
    found = recorded_pop_records()
    kinds = {
        kind: sum(properties["TAGS"] == kind for properties, _, _ in found) for kind in ("ck", "ack", "bAck")
    }
    assert min(kinds.values()) >= 2, kinds
    for properties, body, record in found:
        assert record.body() == body
        assert record.unique_key == properties["UNIQ_KEY"]
        assert record.deliver_ms == int(properties["TIMER_DELIVER_MS"])


def test_what_a_check_point_lists():
    pop = Pop("T", "G", 3, "b", 100, 5000)
    point = CheckPoint(pop, 20_000, (0, 2, 5), bits=0b010, put_off=2)
    assert point.left == (100, 105)
    assert point.end_offset == 106
    assert (point.revive_ms, point.deliver_ms) == (25_000, 24_000)
    assert decode_check_point(point.body()) == point
    assert b'"rp":"2"' in point.body()
    # Without d: one message after the other.
    assert decode_check_point(b'{"t":"T","c":"G","q":3,"so":4,"pt":5,"bn":"b","it":6,"n":3}').left == (
        4,
        5,
        6,
    )
    assert CheckPoint(pop, 20_000, ()).end_offset == 100


def test_an_acknowledgement_of_several():
    pop = Pop("T", "G", 3, "b", 100, 5000)
    several = Acknowledgement(pop, (100, 105), 25_000, is_batch=True)
    assert decode_acknowledgement(several.body(), deliver_ms=25_000) == several
    assert several.unique_key == "T@3@-1@G@5000@b@ack"
    assert in_timer_topic(recorded(*POPS))
