"""Are consume queues and index what the log says? Both are built again from it and compared."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from struct import Struct

from attrs import Factory, frozen

from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queue import ENTRY_BYTES, ConsumeQueue
from trioha.store.consume_queues import (
    BATCH_CONSUME_QUEUE_FOLDER,
    CONSUME_QUEUE_FOLDER,
    ConsumeQueues,
    ConsumeQueueSettings,
    Queue,
)
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.dispatch_to_end import dispatch_to_end
from trioha.store.index_file import ENTRY_BYTES as INDEX_ENTRY_BYTES
from trioha.store.index_file import IndexFile, IndexShape, key_hash
from trioha.store.index_service import FOLDER as INDEX_FOLDER
from trioha.store.index_service import IndexService
from trioha.store.mapped_file import file_name
from trioha.store.message_properties import parse_properties
from trioha.store.read_only_commit_log import ReadOnlyCommitLog
from trioha.store.record import Host, Record
from trioha.store.recovery import open_commit_log
from trioha.store.tags import java_hash

QUEUE_FOLDERS = (CONSUME_QUEUE_FOLDER, BATCH_CONSUME_QUEUE_FOLDER)
FOR_EVER_MS = (1 << 63) - 1
NAMED_MAX = 5
_INDEX_ENTRY = Struct(">iq")


@frozen
class Shape:
    """How a store's files were configured."""

    log_file_bytes: int
    """mappedFileSizeCommitLog."""
    queues: ConsumeQueueSettings
    index: IndexShape
    is_batch_topic: Callable[[str], bool] = lambda _topic: False
    dispatch: DispatchSettings = Factory(DispatchSettings)
    deleted_topics: frozenset[str] = frozenset()
    """Topics whose queues are not compared: their deletion is not in the log."""


def check_rebuilt(
    store: Path,
    shape: Shape,
    *,
    may_be_torn: bool = False,
    may_index_tags: bool = False,
    indexed_from: int = 0,
) -> list[str]:
    """A closed store's consume queues and index are what is built from its log alone.

    Queues are compared byte by byte from the first entry of a message that the log holds, zeros after the
    end included; the index by what each key leads to. The store is only read. `may_be_torn`: bytes after the
    last whole record are skipped, since RocketMQ leaves those of a torn append where they are.
    `may_index_tags`: the index may have an entry for the tag of a record, as RocketMQ makes from 5.4 on.
    `indexed_from`: physical offset of the first record that the index has, after RocketMQ has deleted it.
    """
    with tempfile.TemporaryDirectory(prefix="rebuilt-") as folder:
        scratch = Path(folder)
        try:
            starts = _rebuild(store, scratch, shape, may_be_torn=may_be_torn)
            problems = _compare_queues(store, scratch, starts, shape)
            tags = _tag_entries(scratch) if may_index_tags else frozenset()
            problems += _compare_index(
                store / INDEX_FOLDER, scratch / INDEX_FOLDER, shape.index, tags, indexed_from=indexed_from
            )
        except StoreError as error:
            problems = [str(error)]
    more = [f"and {len(problems) - NAMED_MAX} more"] if len(problems) > NAMED_MAX else []
    return [f"{store.name}: {problem}" for problem in problems[:NAMED_MAX] + more]


def _rebuild(store: Path, scratch: Path, shape: Shape, *, may_be_torn: bool) -> dict[Path, int]:
    """Build queues and index in `scratch`; where each queue's folder begins to count, in bytes."""
    shutil.copytree(store / "commitlog", scratch / "commitlog")
    log, recovered = open_commit_log(
        scratch / "commitlog",
        file_bytes=shape.log_file_bytes,
        message_bytes_max=1 << 30,
        store_host=Host.parse("127.0.0.1", 1),
        # Without a checkpoint that vouches for anything every record is looked at.
        clean_exit=False,
        checkpoint=Checkpoint(),
    )
    try:
        if recovered.cut_bytes and not may_be_torn:
            file_start = recovered.end_offset - recovered.end_offset % shape.log_file_bytes
            raise StoreError(
                recovered.cut_reason,
                path=store / "commitlog" / file_name(file_start),
                offset=recovered.end_offset,
            )
        return _dispatch_all(log, scratch, shape)
    finally:
        log.close()


def _dispatch_all(log: CommitLog, scratch: Path, shape: Shape) -> dict[Path, int]:
    queues = ConsumeQueues(scratch, shape.queues, is_batch_topic=shape.is_batch_topic)
    queues.recover()
    index = IndexService.open(scratch, shape.index)
    try:
        dispatcher = Dispatcher(log, queues, index, position=log.min_offset, settings=shape.dispatch)
        dispatch_to_end(dispatcher, log)
        if dispatcher.position < log.max_offset:
            raise StoreError("the log cannot be dispatched", path=scratch, offset=dispatcher.position)
        queues.correct_min_offsets(log.min_offset)
        return dict(map(_begin, queues))
    finally:
        queues.close()
        index.close()


# -- queues ------------------------------------------------------------------------------------------------


def _begin(queue: Queue) -> tuple[Path, int]:
    """A queue's folder below the store, and the byte at which its first entry is."""
    name = Path(queue.topic) / str(queue.queue_id)
    if isinstance(queue, ConsumeQueue):
        return CONSUME_QUEUE_FOLDER / name, queue.min_offset * ENTRY_BYTES
    return BATCH_CONSUME_QUEUE_FOLDER / name, 0


def _compare_queues(store: Path, scratch: Path, starts: dict[Path, int], shape: Shape) -> list[str]:
    problems = []
    there = {
        queue.relative_to(store)
        for folder in QUEUE_FOLDERS
        for queue in (store / folder).glob("*/*")
        if any(queue.iterdir()) and queue.parent.name not in shape.deleted_topics
    }
    starts = {
        queue: start for queue, start in starts.items() if queue.parent.name not in shape.deleted_topics
    }
    problems += [f"{queue} is missing" for queue in sorted(starts.keys() - there)]
    problems += [
        f"{queue} is there, and no message of it in the log" for queue in sorted(there - starts.keys())
    ]
    for queue in sorted(starts.keys() & there):
        found, wanted = _files(store / queue), _files(scratch / queue)
        start = starts[queue]
        for at in sorted(found.keys() | wanted.keys()):
            got, want = found.get(at), wanted.get(at)
            if want is None and got is not None:
                if at + len(got) > start and any(got[max(0, start - at) :]):
                    problems.append(f"{queue}: file {at} is there, and no message of it in the log")
            elif got is None:
                problems.append(f"{queue}: file {at} is missing")
            elif want is not None and (difference := _first_difference(got, want, max(0, start - at))) >= 0:
                problems.append(f"{queue}: file {at} differs from the log at byte {difference}")
    return problems


def _files(folder: Path) -> dict[int, bytes]:
    return {int(path.name): path.read_bytes() for path in folder.iterdir() if path.name.isdecimal()}


def _first_difference(one: bytes, other: bytes, start: int) -> int:
    """First byte from `start` on at which these differ; -1 if they do not."""
    if one[start:] == other[start:]:
        return -1
    shorter = min(len(one), len(other))
    return next((at for at in range(start, shorter) if one[at] != other[at]), shorter)


# -- index -------------------------------------------------------------------------------------------------


def _tag_entries(store: Path) -> frozenset[tuple[int, int]]:
    """The index entries that RocketMQ 5.4 and newer add: one of `TOPIC#T#TAG` for each record with a tag."""
    log = ReadOnlyCommitLog.open(store)
    entries = set()
    for record in log.records(log.min_offset):
        if isinstance(record, Record) and (tag := parse_properties(record.properties_raw).get("TAGS")):
            hashed = key_hash(java_hash(f"{record.topic}#T#{tag}") & 0xFFFFFFFF)
            entries.add((hashed, record.physical_offset))
    return frozenset(entries)


def _compare_index(
    found: Path, wanted: Path, shape: IndexShape, tags: frozenset[tuple[int, int]], *, indexed_from: int
) -> list[str]:
    there = _entries(found, shape)
    want = Counter(
        {entry: times for entry, times in _entries(wanted, shape).items() if entry[1] >= indexed_from}
    )
    got = Counter({entry: times for entry, times in there.items() if entry in want or entry not in tags})
    problems = [
        f"index: hash {hashed} of the record at {offset} is there {got[hashed, offset]} times, "
        f"not {want[hashed, offset]}"
        for hashed, offset in sorted(got.keys() | want.keys())
        if got[hashed, offset] != want[hashed, offset]
    ]
    if not problems:
        problems = _lost_keys(found, there, shape)
    return problems


@contextmanager
def _index_files(folder: Path, shape: IndexShape) -> Iterator[list[IndexFile]]:
    with ExitStack() as opened:
        files = []
        for path in sorted(folder.glob("*")):
            file = IndexFile.open(path, shape)
            opened.callback(file.close)
            files.append(file)
        yield files


def _entries(folder: Path, shape: IndexShape) -> Counter[tuple[int, int]]:
    """Every pair of a key's hash and a record's offset, as they lie in the files."""
    pairs: Counter[tuple[int, int]] = Counter()
    with _index_files(folder, shape) as files:
        for file in files:
            data = file.path.read_bytes()
            for number in range(1, file.index_count):
                at = shape.entries_at + number * INDEX_ENTRY_BYTES
                pairs[_INDEX_ENTRY.unpack_from(data, at)] += 1
    return pairs


def _lost_keys(folder: Path, entries: Counter[tuple[int, int]], shape: IndexShape) -> list[str]:
    """Hashes whose chains do not lead to all of their records."""
    by_hash: defaultdict[int, set[int]] = defaultdict(set)
    for hashed, offset in entries:
        by_hash[hashed].add(offset)
    problems = []
    with _index_files(folder, shape) as files:
        for hashed, offsets in by_hash.items():
            for file in files:
                offsets.difference_update(file.find(hashed, begin_ms=0, end_ms=FOR_EVER_MS))
            if offsets:
                problems.append(f"index: hash {hashed} does not lead to the record at {min(offsets)}")
    return problems
