"""`kill -9` under load: messages that were acknowledged are readable by either program afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.rebuilt import check_rebuilt
from tests.interop.java import JavaDriver, JavaError
from tests.interop.rocketmq import indexes_tags
from tests.interop.test_features import SHAPE
from tests.interop.world import StartNode
from tests.node_process import FILE_BYTES
from tests.waiting import wait_until
from trioha.store.opening import open_store
from trioha.store.record import Host, Record, decode_record
from trioha.store.store_settings import StoreSettings

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]

TOPIC = "TopicTest"
ACKED_MIN = 400
_AT_ONCE = 40


class Producers:
    """RocketMQ's own client sending from two threads until its broker is gone."""

    def __init__(self, client: JavaDriver, address: str) -> None:
        self.acked: list[dict[str, Any]] = []
        self._client = client
        self._address = address
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        # The acks of a run that the kill cuts short are unknown: the runs before it count.
        while True:
            try:
                self.acked += self._client.send(self._address, _AT_ONCE, size=900, topic=TOPIC)
            except JavaError:
                return

    def wait(self, number: int) -> None:
        """Wait until so many are acked."""
        wait_until(lambda: len(self.acked) >= number, f"{number} messages are acked")

    def end(self) -> dict[tuple[int, int], dict[str, Any]]:
        """What was acked, by queue id and queue offset; the broker is gone."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        assert {said["sendStatus"] for said in self.acked} == {"SEND_OK"}
        acked = {(said["queueId"], said["queueOffset"]): said for said in self.acked}
        assert len(acked) == len(self.acked) >= ACKED_MIN
        return acked


def physical_offset(said: dict[str, Any]) -> int:
    """Where the broker said that a message is."""
    return int(said["offsetMsgId"][-16:], 16)


def test_what_a_killed_broker_acked_is_readable_here_by_queue_offset_and_by_key(
    java: JavaDriver, own_jvm: Callable[..., JavaDriver], tmp_path: Path
) -> None:
    jvm = own_jvm(java.version)
    broker = jvm.open_broker(tmp_path / "broker", role="ASYNC_MASTER")
    producers = Producers(java, broker.listen_address)
    producers.wait(ACKED_MIN)
    jvm.kill()
    acked = producers.end()
    assert (broker.root / "abort").exists()

    store = open_store(
        StoreSettings(
            root=broker.root,
            commit_log_directory=broker.root / "commitlog",
            file_bytes=FILE_BYTES,
            message_bytes_max=65536,
            store_host=Host.parse("127.0.0.1", 10911),
            queues=SHAPE.queues,
            index=SHAPE.index,
        )
    )
    try:
        for (queue_id, queue_offset), said in acked.items():
            found = decode_record(store.reads.get(TOPIC, queue_id, queue_offset).records[0])
            assert isinstance(found, Record)
            assert (found.queue_offset, found.physical_offset) == (queue_offset, physical_offset(said))
            by_key = [decode_record(record) for record in store.reads.by_key(TOPIC, said["msgId"])]
            assert by_key == [found]
        for queue_id in range(4):
            assert store.reads.min_offset(TOPIC, queue_id) == 0
            assert store.reads.max_offset(TOPIC, queue_id) > max(
                offset for queue, offset in acked if queue == queue_id
            )
    finally:
        store.close()
    assert check_rebuilt(broker.root, SHAPE, may_index_tags=indexes_tags(java.version)) == []


def test_what_a_killed_node_acked_is_readable_in_rocketmq_through_its_queues(
    java: JavaDriver, start_node: StartNode
) -> None:
    node = start_node("store", role="ASYNC_MASTER")
    producers = Producers(java, node.listen_address)
    producers.wait(ACKED_MIN)
    node.kill()
    acked = producers.end()
    assert (node.root / "abort").exists()

    store = java.open_store(node.root, role="ASYNC_MASTER")
    read = store.read(TOPIC)

    assert read.gaps() == []
    there = {(message.queue_id, message.queue_offset): message.physical_offset for message in read.messages}
    lost = {place: said for place, said in acked.items() if there.get(place) != physical_offset(said)}
    assert lost == {}
    # What RocketMQ made of the queues is what trioha makes of the log.
    store.shutdown()
    assert check_rebuilt(node.root, SHAPE, may_be_torn=True, may_index_tags=indexes_tags(java.version)) == []
