"""A record may hold any values: a replica stores, dispatches, reads and recovers it."""

from hypothesis import given
from hypothesis import strategies as st

from tests.descriptors import resources_closed
from tests.store.support import HOST
from trioha.numbers import I32, I64
from trioha.store.consume_queues import ConsumeQueueSettings
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.index_file import IndexShape
from trioha.store.message_properties import parse_properties
from trioha.store.opening import open_store
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import (
    BORN_HOST_V6,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX_V1,
    body_crc,
)
from trioha.store.replica import ReplicaAppender
from trioha.store.store_settings import StoreSettings
from trioha.store.topics import SCHEDULE_TOPIC

HOST_V6 = Host.parse("::1", 1)


def edges(low, high):
    """Numbers of that range; its ends and small ones come more often."""
    return st.one_of(
        st.sampled_from([low, low + 1, -1, 0, 1, 20, 300_000, high - 1, high]), st.integers(low, high)
    )


NUMBERS = st.one_of(
    edges(I64.low, I64.high).map(str),
    st.sampled_from(
        ["", "-", "--5", "+5", "1_0", " 7", "٣", "9" * 30, "9" * 5000, "1e3", "0x10", "NaN", "\0"]
    ),
)
NAMES = (
    "DELAY", "TAGS", "KEYS", "UNIQ_KEY", "INNER_BASE", "INNER_NUM", "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET", "REAL_TOPIC", "REAL_QID", "WAIT", "",
)  # fmt: skip
QUEUE_NAMES = st.sampled_from(["%LMQ%a", "%LMQ%b", "Other", "a/b", "..", "", "%LMQ%" + "x" * 300, "\0"])
VALUES = st.one_of(
    NUMBERS,
    st.lists(NUMBERS, max_size=3).map(",".join),
    st.lists(QUEUE_NAMES, max_size=3).map(",".join),
    st.text(max_size=20),
)
PROPERTIES = st.one_of(
    st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=6).map(
        lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode("utf-8", "replace")
    ),
    st.binary(max_size=60),
)
TOPICS = st.one_of(
    st.sampled_from(
        ["Orders", "Batched", SCHEDULE_TOPIC, "%RETRY%group", "a/b", "..", ".", "x\0y", "é" * 60]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
)


@st.composite
def records(draw):
    """A whole record with the right checksum and any other values; its offset is set later."""
    born, stored = draw(st.tuples(*[st.sampled_from([HOST, HOST_V6])] * 2))
    sys_flag = draw(edges(I32.low, I32.high)) & ~(BORN_HOST_V6 | STORE_HOST_V6)
    sys_flag |= BORN_HOST_V6 * born.is_ipv6 | STORE_HOST_V6 * stored.is_ipv6
    topic = draw(TOPICS)
    body = draw(st.binary(max_size=40))
    number = edges(I64.low, I64.high)
    return Record(
        magic=MAGIC_V2
        if len(topic.encode()) > TOPIC_BYTES_MAX_V1
        else draw(st.sampled_from([MAGIC_V1, MAGIC_V2])),
        body_crc=body_crc(body),
        queue_id=draw(edges(I32.low, I32.high)),
        flag=draw(edges(I32.low, I32.high)),
        queue_offset=draw(number),
        physical_offset=0,
        sys_flag=sys_flag,
        born_timestamp_ms=draw(number),
        born_host=born,
        store_timestamp_ms=draw(number),
        store_host=stored,
        reconsume_times=draw(edges(I32.low, I32.high)),
        prepared_transaction_offset=draw(number),
        body=body,
        topic=topic,
        properties_raw=draw(PROPERTIES),
    )


def open_replica(root, *, is_slave):
    return open_store(
        StoreSettings(
            root=root,
            commit_log_directory=root / "commitlog",
            file_bytes=1 << 16,
            message_bytes_max=4 << 20,
            store_host=HOST,
            queues=ConsumeQueueSettings(file_bytes=400, batch_file_bytes=920),
            index=IndexShape(hash_slots=53, index_num=20),
            dispatch=DispatchSettings(enable_lmq=True, enable_multi_dispatch=True, is_slave=is_slave),
        )
    )


def look_at_all(store, found):
    """Read all queues and keys."""
    for queue in store.queues:
        store.reads.get(queue.topic, queue.queue_id, queue.min_offset)
        store.reads.offset_by_time(queue.topic, queue.queue_id, 0)
        store.reads.earliest_store_timestamp(queue.topic, queue.queue_id)
    for record in found:
        for name in ("KEYS", "UNIQ_KEY"):
            if key := parse_properties(record.properties_raw).get(name):
                store.reads.by_key(record.topic, key)


@given(found=st.lists(records(), min_size=1, max_size=12), clean=st.booleans())
def test_any_whole_record_is_stored_dispatched_read_and_recovered(tmp_path_factory, found, clean):
    from attrs import evolve

    root = tmp_path_factory.mktemp("replica")
    (root / "config").mkdir()
    (root / "config/topics.json").write_text(
        '{"topicConfigTable":{"Batched":{"attributes":{"queue.type":"BatchCQ"},"topicName":"Batched"}}}'
    )
    with resources_closed():
        store = open_replica(root, is_slave=True)
        log = store.commit_log
        appender = ReplicaAppender(log)
        for record in found:
            appender.append(memoryview(encode_record(evolve(record, physical_offset=log.max_offset))))
        end_offset = log.max_offset
        dispatch_to_end(store.dispatcher, log)
        assert store.dispatcher.position == end_offset
        assert (store.syncs.queue_sync() or (lambda: None))() is None
        look_at_all(store, found)
        store.close()
        if not clean:
            (root / "abort").touch()
        # And as a master, which takes its next queue offsets from the queues.
        store = open_replica(root, is_slave=False)
        assert store.commit_log.max_offset == end_offset
        assert store.dispatcher.position == end_offset
        look_at_all(store, found)
        list(store.head_deleted())
        store.close()
