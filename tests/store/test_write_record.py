"""A common record that compiled code writes is, byte for byte, the one that plain Python writes."""

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from tests.store.guarded import run_guarded
from tests.store.support import log_bytes, message, open_log
from tests.store.test_kernel import mode, needs_kernel
from trioha.store import commit_log, compiled
from trioha.store.commit_log import PWRITE_BYTES_MIN
from trioha.store.messages import Message
from trioha.store.put_status import PutStatus
from trioha.store.record import Host

pytestmark = needs_kernel

FILE_BYTES = 16 * 1024
I32, I64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
SYS_FLAGS = st.one_of(st.integers(0, 0x1FF), st.integers(0, 2**31 - 1))
PROPERTIES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"KEYS\x01k\x02", b"INNER_NUM\x012\x02", b"xINNER_", b"INNER", b"IINNE", b"IINNER_x"]),
    st.integers(32_760, 32_770).map(bytes),
)
BODIES = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 7_000).map(lambda size: bytes(range(256)) * (size // 256 + 1)),
    st.integers(PWRITE_BYTES_MIN - 120, PWRITE_BYTES_MIN).map(bytes),
    st.binary(max_size=50).map(bytearray),
)
HOSTS = st.sampled_from([Host.parse("127.0.0.1", 0), Host.parse("10.1.2.3", 65535), Host.parse("::1", 8)])
MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["T", "Orders", "%RETRY%" + "g" * 130, "t" * 127, "Tötö", ""]),
    queue_id=st.one_of(st.integers(0, 2), I32),
    body=BODIES,
    properties=PROPERTIES,
    flag=I32,
    sys_flag=SYS_FLAGS,
    born_timestamp_ms=I64,
    born_host=HOSTS,
    reconsume_times=I32,
    prepared_transaction_offset=I64,
)


def appended(folder, messages, **how):
    """What a new log makes of messages, each put twice: results, bytes, next queue offsets, its last time."""
    log, _ = open_log(folder, file_bytes=FILE_BYTES, message_bytes_max=6_500, **how)
    results = []
    for number, one in enumerate(messages):
        with patch.object(commit_log.time, "time_ns", lambda now_s=number + 1: now_s * 1_000_000_000):
            results += [log.append(one), log.append(one)]
    found = results, log_bytes(log), dict(log.queue_offsets), log.last_store_timestamp_ms
    log.close()
    return found


@given(
    messages=st.lists(MESSAGES, max_size=12),
    store_host=st.sampled_from([Host.parse("127.0.0.1", 10911), Host.parse("::1", 10911)]),
)
def test_the_log_is_the_same_with_compiled_code_and_without(messages, store_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    with mode(is_compiled=False):
        plain = appended(folder / "plain", messages, store_host=store_host)
    assert appended(folder / "compiled", messages, store_host=store_host) == plain


def written(log, one):
    """How many records compiled code writes for one message, which is put twice to a new queue."""
    real, sizes = compiled.records.write_record, []

    def count(*arguments):
        sizes.append(real(*arguments))
        return sizes[-1]

    with patch.object(compiled.records, "write_record", count):
        for _ in range(2):
            assert log.append(one).status is PutStatus.PUT_OK
    return sum(size > 0 for size in sizes)


def test_a_common_record_is_written_by_compiled_code_from_the_second_one_of_a_queue_on(tmp_path):
    log, _ = open_log(tmp_path)
    assert written(log, message(b"body" * 1000, properties=b"TAGS\x01t\x02")) == 1
    with mode(is_compiled=False):
        assert written(log, message(queue_id=1)) == 0
    with patch.object(compiled, "CHECKS_CRC", False):
        assert written(log, message(queue_id=2)) == 0


GUARDED = """
from trioha.store.messages import Message

host = bytes(8)
written = 0
for body_bytes in range(200):
    message = Message("T", 0, bytes(body_bytes), b"p" * (body_bytes % 7))
    size = 91 + body_bytes + 1 + body_bytes % 7
    for left in range(size + 20):
        before = bytes(view[-300:])
        found = compiled.records.write_record(view, len(view) - left, b"\\1T", message, 500, 0, 0, 0, host)
        # Eight bytes are left for the blank at the end of a file.
        assert found == (size if left >= size + 8 else 0), (body_bytes, left, found)
        assert found or bytes(view[-300:]) == before
        written += found > 0
print(written)
"""


def test_no_byte_after_the_end_is_written():
    assert run_guarded(GUARDED) == 200 * 12


def write(data, at=0, **others):
    given = {
        "topic": b"\x01T",
        "message": Message("T", 0, b"body"),
        "body_bytes_max": 100,
        "queue_offset": 0,
        "physical_offset": 0,
        "store_timestamp_ms": 0,
        "store_host": bytes(8),
        **others,
    }
    return compiled.records.write_record(data, at, *given.values())


def test_what_does_not_fit_is_not_written():
    data = bytearray(200)
    assert write(data) == 96
    data[:] = bytes(200)
    for at in (-1, 97, 200, 201, 2**62):
        assert write(data, at) == 0
    assert write(data, body_bytes_max=3) == 0
    assert write(data, topic=bytes(129)) == 0
    assert write(data, store_host=bytes(20)) == 0
    assert write(data, message=Message("T", 0, b"", born_host=Host.parse("::1", 0))) == 0
    assert not any(data)
