"""Recorded stores with queues and index built again from their log."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import frozen

from tests.descriptors import close_after_test
from tests.store.support import OPEN_QUEUE_FILES_MAX, VECTORS, expected
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues, ConsumeQueueSettings
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_file import IndexShape
from trioha.store.index_service import IndexService
from trioha.unwritten import Unwritten

RECORDED_QUEUES = ConsumeQueueSettings(
    file_bytes=400, batch_file_bytes=920, open_files_max=OPEN_QUEUE_FILES_MAX
)
RECORDED_INDEX = IndexShape(hash_slots=53, index_num=100)


@frozen
class Parts:
    """A store's log and what is built from it."""

    log: CommitLog
    queues: ConsumeQueues
    index: IndexService
    dispatcher: Dispatcher
    unwritten: Unwritten

    def dispatch_all(self, *, records_max: int = 512) -> int:
        """Dispatch to the log's end; returns the number of records."""
        passed = 0
        while self.dispatcher.position < self.log.max_offset:
            step = self.dispatcher.dispatch(self.log.max_offset, records_max=records_max)
            passed += step
            if not step:
                break
        return passed

    def close(self) -> None:
        self.queues.close()
        self.index.close()


def batch_topics(name: str) -> set[str]:
    """Topics of a recorded store whose attribute queue.type is BatchCQ."""
    table = json.loads((VECTORS / name / "store/config/topics.json").read_text())["topicConfigTable"]
    return {
        topic
        for topic, found in table.items()
        if "BatchCQ" in found.get("attributes", {}).get("queue.type", "")
    } | {
        queue.rsplit("@", 1)[0]
        for queue, found in expected(name)["queues"].items()
        if found["class"] == "BatchConsumeQueue"
    }


def parts_of(
    log: CommitLog,
    root: Path,
    *,
    batch: set[str] = frozenset(),  # type: ignore[assignment]
    settings: DispatchSettings | None = None,
    queue_settings: ConsumeQueueSettings = RECORDED_QUEUES,
    shape: IndexShape = RECORDED_INDEX,
    position: int = 0,
) -> Parts:
    """Queues and index in `root`, recovered, and a dispatcher from `log` to them; closed after the test."""
    queues = ConsumeQueues(root, queue_settings, is_batch_topic=batch.__contains__)
    queues.recover()
    index = IndexService.open(root, shape)
    unwritten = Unwritten()
    dispatcher = Dispatcher(log, queues, index, position=position, settings=settings, unwritten=unwritten)
    return close_after_test(Parts(log, queues, index, dispatcher, unwritten))


def recorded_settings(name: str) -> DispatchSettings:
    """How the recorded store was configured."""
    light = name.endswith("lmq")
    return DispatchSettings(enable_lmq=light, enable_multi_dispatch=light)


def files_below(folder: Path) -> dict[str, bytes]:
    """Relative path to content of every file below `folder`."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
