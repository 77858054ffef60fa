"""The record codec, against RocketMQ's own bytes and against damage."""

import base64
from contextlib import suppress

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.store.support import FILE_BYTES, STORES, VECTORS, expected
from tests.store.test_any_record import records
from trioha.store.message_properties import encode_properties, join_properties, parse_properties
from trioha.store.record import Blank, Host, Record, RecordError, decode_record, encode_record
from trioha.store.record_layout import (
    MAGIC_V1,
    MAGIC_V2,
    FaultKind,
    body_crc,
    check_record,
    find_fault,
    scan_records,
)


def stored(name):
    """Each expected message of a recorded store with the bytes that are stored for it."""
    directory = VECTORS / name / "store" / "commitlog"
    files = {int(path.name): memoryview(path.read_bytes()) for path in directory.iterdir()}
    found = []
    for message in expected(name)["messages"]:
        offset = message["physicalOffset"]
        at = offset % FILE_BYTES
        found.append((message, files[offset - at][at : at + message["size"]]))
    return found


@pytest.mark.parametrize("name", STORES)
def test_every_stored_message_decodes_to_what_rocketmq_says_it_is(name):
    for message, data in stored(name):
        record = decode_record(data)
        if message.get("blank"):
            assert record == Blank(-1, message["size"])
            continue
        assert record == Record(
            magic=int(message["magic"], 16),
            body_crc=message["bodyCRC"],
            queue_id=message["queueId"],
            flag=message["flag"],
            queue_offset=message["queueOffset"],
            physical_offset=message["physicalOffset"],
            sys_flag=message["sysFlag"],
            born_timestamp_ms=message["bornTimestamp"],
            born_host=Host.parse(message["bornHost"].split("|")[0], int(message["bornHost"].split("|")[1])),
            store_timestamp_ms=message["storeTimestamp"],
            store_host=Host.parse(
                message["storeHost"].split("|")[0], int(message["storeHost"].split("|")[1])
            ),
            reconsume_times=message["reconsumeTimes"],
            prepared_transaction_offset=message["preparedTransactionOffset"],
            body=base64.b64decode(message["body"]),
            topic=message["topic"],
            properties_raw=base64.b64decode(message["propertiesRaw"]),
        )
        assert record.total_size == message["size"]
        assert record.message_id == message["msgId"]
        assert parse_properties(record.properties_raw) == message["properties"]


@pytest.mark.parametrize("name", STORES)
def test_encoding_the_decoded_fields_gives_the_stored_bytes(name):
    for message, data in stored(name):
        if not message.get("blank"):
            assert encode_record(decode_record(data)) == bytes(data)


def test_the_recorded_stores_hold_both_versions_and_both_kinds_of_hosts():
    records = [decode_record(data) for name in STORES for message, data in stored(name) if "topic" in message]
    assert {record.magic for record in records} == {MAGIC_V1, MAGIC_V2}
    assert {(record.born_host.is_ipv6, record.store_host.is_ipv6) for record in records} >= {
        (False, False),
        (True, True),
        (True, False),
    }


@given(records(), st.binary(max_size=20), st.binary(max_size=20))
def test_a_record_survives_encoding_and_decoding_anywhere_in_a_buffer(record, before, after):
    data = encode_record(record)
    assert len(data) == record.total_size
    assert decode_record(before + data + after, len(before)) == record


@given(records(), st.data())
def test_a_mutated_record_is_refused_or_decodes_to_fields_of_the_same_length(record, data):
    encoded = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    with suppress(RecordError):
        decoded = decode_record(encoded[:cut])
        assert decoded.total_size <= cut or isinstance(decoded, Blank)


@pytest.fixture
def record():
    return Record(
        magic=MAGIC_V1,
        body_crc=body_crc(b"body"),
        queue_id=1,
        flag=0,
        queue_offset=7,
        physical_offset=4096,
        sys_flag=0,
        born_timestamp_ms=1,
        born_host=Host.parse("10.0.0.1", 1),
        store_timestamp_ms=2,
        store_host=Host.parse("10.0.0.2", 2),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"body",
        topic="T",
        properties_raw=b"",
    )


def faults(data, physical_offset=4096):
    view = memoryview(data)
    return check_record(view, 0, len(view), physical_offset)


def test_each_kind_of_damage_has_its_name(record):
    data = encode_record(record)
    assert faults(data) == len(data)
    assert faults(data, 4097) == FaultKind.BAD_POSITION
    assert faults(data[:-1]) == FaultKind.TRUNCATED
    assert faults(data[:4] + b"\0\0\0\0" + data[8:]) == FaultKind.BAD_MAGIC
    assert faults(data[:88] + b"Body" + data[92:]) == FaultKind.BAD_CRC
    assert faults(data[:92] + b"\x02" + data[93:]) == FaultKind.BAD_LENGTH
    assert faults(data[:84] + b"\xff\xff\xff\xff" + data[88:]) == FaultKind.BAD_LENGTH
    assert faults(b"") == FaultKind.TRUNCATED
    assert faults(bytes(200)) == FaultKind.BAD_MAGIC


def damaged(record):
    """Bytes of the record with each kind of damage, and the reason."""
    data = encode_record(record)
    return {
        data[:6]: "6 bytes are left, a record has at least 91",
        data[:-1]: "the record has 96 bytes, 95 are left",
        bytes(200): "magic 0x00000000 is not a record's",
        encode_record(evolve(record, physical_offset=7)): "the record says that it stands at 7",
        data[:92] + b"\x02" + data[93:]: "the lengths inside the record do not add up to its 96 bytes",
        data[:88] + b"Body" + data[92:]: "the body's CRC is not the stored 0x5BA80BB2",
    }


def test_a_fault_gives_its_reason(record):
    for data, reason in damaged(record).items():
        fault = find_fault(memoryview(data), 0, len(data), 4096)
        assert fault.reason == reason
        assert fault.bytes_left == len(data)
    whole = encode_record(record)
    assert find_fault(memoryview(whole), 0, len(whole), 4096) is None


def test_a_scan_stops_at_the_fault_that_a_single_check_finds(record):
    whole = encode_record(evolve(record, physical_offset=4000))
    for data in damaged(record):
        view = memoryview(whole + data)
        fault = find_fault(view, len(whole), len(view), 4096)
        end = scan_records(view, 0, len(view), 4000)
        assert (end.at, end.records, end.fault, end.blank) == (len(whole), 1, fault, False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"magic": 1}, "magic"),
        ({"topic": "t" * 128}, "topic of 128 bytes"),
        ({"properties_raw": b"x" * 32768}, "properties of 32768 bytes"),
        ({"sys_flag": 0x10}, "born host"),
        ({"sys_flag": 0x20}, "store host"),
    ],
)
def test_fields_that_the_format_cannot_hold_are_refused(record, change, said):
    with pytest.raises(RecordError, match=said):
        encode_record(evolve(record, **change))


def test_a_v2_record_takes_a_longer_topic(record):
    longer = evolve(record, magic=MAGIC_V2, topic="t" * 200)
    assert decode_record(encode_record(longer)) == longer


names = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)
values = st.text(st.characters(exclude_characters="\x02", codec="utf-8"), min_size=1, max_size=8)


@given(st.dictionaries(names, values, max_size=6))
def test_properties_survive_encoding_and_parsing(properties):
    assert parse_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"", {}),
        (b"a\x01b", {"a": "b"}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01\x02\x01b\x02ab\x02c\x01d", {"c": "d"}),
        (b"a\x011\x02a\x012\x02", {"a": "2"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"\xff\x01b\x02", {"�": "b"}),
    ],
)
def test_properties_are_parsed_as_the_broker_does(raw, parsed):
    assert parse_properties(raw) == parsed


@pytest.mark.parametrize("properties", [{"": "x"}, {"x": ""}, {"a\x01": "x"}, {"a": "x\x02"}])
def test_properties_that_readers_would_misread_are_refused(properties):
    with pytest.raises(ValueError, match="propert"):
        encode_properties(properties)


def test_joined_properties_are_separated_once():
    more = encode_properties({"CLUSTER": "c"})
    assert join_properties(b"a\x01b", more) == b"a\x01b\x02CLUSTER\x01c\x02"
    assert join_properties(b"a\x01b\x02", more) == b"a\x01b\x02CLUSTER\x01c\x02"
    assert join_properties(b"", more) == more
