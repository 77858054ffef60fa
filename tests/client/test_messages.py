"""Messages to send and received ones."""

import zlib

import lz4.frame
import pytest
import zstandard

from trioha.client.messages import BODY_BYTES_MAX, Message, received_messages
from trioha.errors import LocalProtocolError, RemoteProtocolError
from trioha.remoting.route import MessageQueue
from trioha.store.message_properties import parse_properties
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import MAGIC_V1

QUEUE = MessageQueue("T", "broker-a", 1)
HOST = Host.parse("10.0.0.1", 10911)


def record(body=b"hello", *, offset=5, sys_flag=0, properties=b""):
    return encode_record(
        Record(
            magic=MAGIC_V1, body_crc=zlib.crc32(body) & 0x7FFFFFFF, queue_id=1, flag=3, queue_offset=offset,
            physical_offset=1000, sys_flag=sys_flag, born_timestamp_ms=111, born_host=HOST,
            store_timestamp_ms=222, store_host=HOST, reconsume_times=2, prepared_transaction_offset=0,
            body=body, topic="T", properties_raw=properties,
        )
    )  # fmt: skip


def test_records_of_a_pull_are_messages():
    raw = record(properties=b"KEYS\x01k1 k2\x02TAGS\x01x\x02UNIQ_KEY\x01id\x02a\x01b\x02") + record(
        b"second", offset=6
    )
    first, second = received_messages(raw, QUEUE)
    assert (first.queue, first.queue_offset, first.body) == (QUEUE, 5, b"hello")
    assert (first.message_id, first.tag, first.keys) == ("id", "x", ("k1", "k2"))
    assert (first.born_timestamp_ms, first.store_timestamp_ms) == (111, 222)
    assert (first.flag, first.reconsume_times, first.compression) == (3, 2, None)
    assert (second.body, second.tag, second.keys) == (b"second", None, ())
    assert second.message_id == second.offset_message_id == "0A00000100002A9F00000000000003E8"


@pytest.mark.parametrize("damage", ["body", "end", "size"])
def test_a_damaged_record_is_refused(damage):
    raw = bytearray(record())
    if damage == "body":
        raw[raw.index(b"hello")] ^= 1
    elif damage == "end":
        del raw[-1]
    else:
        raw[3] += 1
    with pytest.raises(RemoteProtocolError):
        list(received_messages(bytes(raw), QUEUE))


@pytest.mark.parametrize(
    ("sys_flag", "compress"),
    [
        (0x001, zlib.compress),
        (0x301, zlib.compress),
        (0x101, lz4.frame.compress),
        (0x201, zstandard.compress),
    ],
)
def test_a_compressed_body_is_decompressed(sys_flag, compress):
    (message,) = received_messages(record(compress(b"x" * 5000), sys_flag=sys_flag), QUEUE)
    assert (message.body, message.compression) == (b"x" * 5000, None)


@pytest.mark.parametrize(
    ("sys_flag", "body", "name"),
    [
        (0x101, b"not lz4", "lz4"),
        (0x201, b"not zstd", "zstd"),
        (0x401, b"?", "compression-4"),
        (0x301, zlib.compress(b"x" * 5000)[:-5], "zlib"),
    ],
)
def test_a_body_that_cannot_be_decompressed_stays_as_it_is_and_says_so(sys_flag, body, name):
    (message,) = received_messages(record(body, sys_flag=sys_flag), QUEUE)
    assert (message.body, message.compression) == (body, name)


def test_a_small_body_cannot_fill_the_memory(monkeypatch):
    monkeypatch.setattr("trioha.client.messages.DECOMPRESSED_BYTES_MAX", 1000)
    raw = zlib.compress(b"x" * 5000)
    (message,) = received_messages(record(raw, sys_flag=0x301), QUEUE)
    assert (message.body, message.compression) == (raw, "zlib")


def test_properties_of_a_send_are_those_of_a_java_producer_and_the_users_own():
    message = Message("T", b"x", tag="t", keys=("a", "b"), properties={"p": "q"}, delay_level=3)
    assert parse_properties(message.encoded_properties(unique_key="id").encode()) == {
        "KEYS": "a b", "TAGS": "t", "UNIQ_KEY": "id", "WAIT": "true", "DELAY": "3", "p": "q",
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"keys": ("a b",)},
        {"keys": ("",)},
        {"properties": {"UNIQ_KEY": "x"}},
        {"properties": {"a": "\x02"}},
        {"properties": {"": "x"}},
        {"properties": {"a": "\ud800"}},
        {"properties": {"a": "x" * 40000}},
    ],
)
def test_a_message_that_cannot_be_sent_is_refused(fields):
    with pytest.raises(LocalProtocolError):
        Message("T", b"x", **fields).encoded_properties(unique_key="id")


@pytest.mark.parametrize("body", [b"", bytes(BODY_BYTES_MAX + 1)])
def test_a_body_that_no_broker_accepts_is_refused(body):
    with pytest.raises(LocalProtocolError):
        Message("T", body).encoded_body(compress_bytes_min=None)
