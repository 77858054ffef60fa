"""All consume queues of a store directory (docs/protocol/store.md#consume-queues).

`consumequeue/<topic>/<queueId>/` for plain topics, `batchconsumequeue/<topic>/<queueId>/` for topics with
attribute `queue.type=BatchCQ`. Topic names come from log records, which any producer may have sent, so they
are checked before they become folder names.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import nlargest
from pathlib import Path

import structlog
from attrs import frozen

from trioha.errors import StoreError
from trioha.store import batch_consume_queue, consume_queue
from trioha.store.batch_consume_queue import BatchConsumeQueue
from trioha.store.callbacks import Callbacks
from trioha.store.consume_queue import ConsumeQueue
from trioha.store.file_cache import OPEN_FILES_MAX, FileCache
from trioha.store.syncing import SyncWork
from trioha.store.topics import topic_fault

log = structlog.get_logger(__name__)

CONSUME_QUEUE_FOLDER = "consumequeue"
BATCH_CONSUME_QUEUE_FOLDER = "batchconsumequeue"
QUEUES_MAX = 100_000
"""Queues that puts may make: a flood of made-up topics must not fill the memory, or the disk with folders."""
QUEUE_ID_MAX = 0x7FFFFFFF
_NEAR_END_QUEUES = 8

Queue = ConsumeQueue | BatchConsumeQueue


@frozen
class ConsumeQueueSettings:
    """Sizes and limits of the queues' files."""

    file_bytes: int = consume_queue.DEFAULT_FILE_BYTES
    """mappedFileSizeConsumeQueue; rounded up to whole entries."""
    batch_file_bytes: int = batch_consume_queue.DEFAULT_FILE_BYTES
    """mapperFileSizeBatchConsumeQueue (RocketMQ's spelling)."""
    open_files_max: int = OPEN_FILES_MAX
    queues_max: int = QUEUES_MAX
    """trioha.queuesMax: the log refuses a put that would make one more.

    Queues of records that are in the log are built, however many they are: a replica's master has accepted
    those records.
    """


def _never(_topic: str) -> bool:
    return False


class ConsumeQueues:
    """The queues under one store root, by topic and queue id. Call `recover` before any other method."""

    def __init__(
        self,
        root: Path,
        settings: ConsumeQueueSettings | None = None,
        *,
        is_batch_topic: Callable[[str], bool] = _never,
    ) -> None:
        """`is_batch_topic` decides of which kind a topic's new queues are; existing ones stay as they are."""
        self.root = root
        self.settings = settings or ConsumeQueueSettings()
        self.is_batch_topic = is_batch_topic
        self._cache = FileCache(self.settings.open_files_max)
        self._queues: dict[tuple[str, int], Queue] = {}
        self.on_restart: Callbacks[[str, int]] = Callbacks()
        """Called with topic and id of a queue that starts again at 0: its topic was deleted and made again
        at the master."""
        self.deletions = 0
        """Counts calls that deleted queues."""

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[Queue]:
        return iter(tuple(self._queues.values()))

    # -- start -----------------------------------------------------------------------------------------

    def recover(
        self,
        on_progress: Callable[[int, int], None] = lambda _done, _total: None,
        *,
        synced_offset: int | None = None,
    ) -> None:
        """Open all queues on disk and find their ends. Blocks. Raises StoreError.

        `on_progress(done, total)` gets the number of queues that were opened; `synced_offset` is that of
        `EntryQueue.recover`.
        """
        self._queues.clear()
        for folder in (CONSUME_QUEUE_FOLDER, BATCH_CONSUME_QUEUE_FOLDER):
            found = self._found(self.root / folder)
            for done, (topic, queue_id) in enumerate(found):
                on_progress(done, len(found))
                queue = self._make(topic, queue_id, batch=folder == BATCH_CONSUME_QUEUE_FOLDER)
                queue.recover(synced_offset=synced_offset)
                if isinstance(queue, BatchConsumeQueue) and (other := self._queues.get((topic, queue_id))):
                    if other.max_offset and queue.max_offset:
                        raise StoreError(
                            f"queue {queue_id} of {topic!r} is there as a plain and as a batch queue",
                            path=self.root / folder / topic / str(queue_id),
                            hint="remove the folder that does not fit the topic's queue.type",
                        )
                    if other.max_offset:
                        continue
                self._queues[topic, queue_id] = queue

    @staticmethod
    def _found(folder: Path) -> list[tuple[str, int]]:
        try:
            return sorted(
                (topic.name, int(queue.name))
                for topic in folder.iterdir()
                if topic.is_dir()
                for queue in topic.iterdir()
                if queue.name.isascii() and queue.name.isdecimal() and queue.is_dir()
            )
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=folder) from error

    @property
    def max_physical_offset(self) -> int:
        """End of the last record that has an entry in any queue, -1 if none has.

        See docs/protocol/store.md#order-of-a-start.
        """
        return max((queue.max_physical_offset for queue in self._queues.values()), default=-1)

    def record_near_end(self, back_bytes: int) -> int | None:
        """A record's physical offset at most `back_bytes` before `max_physical_offset`; None without any.

        It is the earliest one in the queues that were written last. Raises StoreError.
        """
        from_offset = max(self.max_physical_offset - back_bytes, 0)
        plain = [queue for queue in self._queues.values() if isinstance(queue, ConsumeQueue)]
        last = nlargest(_NEAR_END_QUEUES, plain, key=lambda queue: queue.max_physical_offset)
        found = (queue.record_from(from_offset) for queue in last)
        return min((offset for offset in found if offset is not None), default=None)

    def queue_offsets(self) -> dict[tuple[str, int], int]:
        """Next queue offset of each queue: start values of the log's own table.

        See docs/protocol/store.md#order-of-a-start.
        """
        return {key: queue.max_offset for key, queue in self._queues.items()}

    def names_with_entries(self) -> frozenset[tuple[str, int]]:
        """Topic and id of each queue that has, or had, messages."""
        return frozenset(key for key, queue in self._queues.items() if queue.max_offset)

    def truncate_dirty(self, physical_offset: int) -> None:
        """Drop all entries of records at or after `physical_offset`, the log's end. Raises StoreError."""
        self.deletions += 1
        for queue in self:
            queue.truncate_dirty(physical_offset)

    def sync_from(self, physical_offset: int) -> None:
        """Have the next sync cover entries of records at or after `physical_offset`. Raises StoreError."""
        for queue in self:
            queue.sync_from(physical_offset)

    def correct_min_offsets(self, log_min_offset: int) -> None:
        """Move every queue's `min_offset` to the first record that the log holds.

        See docs/protocol/store.md#minimum-of-a-queue.
        """
        for queue in self:
            queue.correct_min_offset(log_min_offset)

    def destroy(self) -> None:
        """Delete all queues: the log they were built from is gone (docs/protocol/store.md#end-of-the-log)."""
        self.deletions += 1
        for queue in self:
            queue.destroy()
        self._queues.clear()
        for folder in (CONSUME_QUEUE_FOLDER, BATCH_CONSUME_QUEUE_FOLDER):
            try:
                shutil.rmtree(self.root / folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StoreError(f"cannot be deleted: {error.strerror}", path=self.root / folder) from error

    # -- use -------------------------------------------------------------------------------------------

    def find(self, topic: str, queue_id: int) -> Queue | None:
        """The queue, None if there is none."""
        return self._queues.get((topic, queue_id))

    def find_or_make(self, topic: str, queue_id: int) -> Queue:
        """The queue; a new one has no files until its first entry.

        Raises StoreError for a topic or queue id that cannot be a folder.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            return queue
        fault = topic_fault(topic)
        if not fault and not 0 <= queue_id <= QUEUE_ID_MAX:
            fault = f"queue id {queue_id} is negative"
        if fault:
            raise StoreError(fault, path=self.root / CONSUME_QUEUE_FOLDER)
        queue = self._make(topic, queue_id, batch=self.is_batch_topic(topic))
        self._queues[topic, queue_id] = queue
        if len(self._queues) == self.settings.queues_max + 1:
            log.warning(
                "the log has more queues than this store allows puts to make: they are built all the same",
                queues_max=self.settings.queues_max,
                hint="raise trioha.queuesMax here, or look for made-up topics at the master",
            )
        return queue

    def _make(self, topic: str, queue_id: int, *, batch: bool) -> Queue:
        if batch:
            return BatchConsumeQueue(
                self.root / BATCH_CONSUME_QUEUE_FOLDER / topic / str(queue_id),
                topic=topic,
                queue_id=queue_id,
                file_bytes=self.settings.batch_file_bytes,
                cache=self._cache,
                on_restart=self.on_restart,
            )
        return ConsumeQueue(
            self.root / CONSUME_QUEUE_FOLDER / topic / str(queue_id),
            topic=topic,
            queue_id=queue_id,
            file_bytes=self.settings.file_bytes,
            cache=self._cache,
            on_restart=self.on_restart,
        )

    def delete(self, topic: str, queue_id: int) -> None:
        """Delete one queue, which exists, and its topic's folder after the last one. Raises StoreError."""
        self.deletions += 1
        queue = self._queues.pop((topic, queue_id))
        queue.destroy()
        folder = BATCH_CONSUME_QUEUE_FOLDER if isinstance(queue, BatchConsumeQueue) else CONSUME_QUEUE_FOLDER
        with suppress(OSError):
            # Other queues are in it, or files of others: an empty folder has no effect on the next start.
            (self.root / folder / topic).rmdir()

    def sync_work(self) -> SyncWork:
        """All writes since the last call, for a worker thread to put on disk."""
        return self._cache.sync_work()

    def give_back(self, work: SyncWork) -> None:
        """Sync what `work` has left with the next one."""
        self._cache.give_back(work)

    def close(self) -> None:
        """Close all files. Sync first."""
        self._cache.close()
