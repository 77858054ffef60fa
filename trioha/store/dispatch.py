"""Dispatch: from the log's records to consume queues and index (spec store 5.6; "reput" in RocketMQ).

Theory of operation. `position` walks through the log, record by record; everything before it is in the
queues and the index. `dispatch` takes a stretch of the log, collects what its records say, and then writes
each queue once and the index once; only then `dispatched` moves. Whatever fails between those steps, every
queue goes back to where its last write left it, which asks the disk nothing and cannot fail itself, and the
same stretch can be dispatched again: queues drop entries they have, the index records it has. Bodies are not
read unless `check_crc` asks for it.

A record's type decides: plain and committed messages enter their queue and the index, prepared ones only the
index, rolled back ones neither.
"""

from __future__ import annotations

import mmap
from enum import Enum, auto
from struct import Struct
from typing import cast

import structlog
from attrs import Factory, define, frozen

from trioha.errors import StoreError
from trioha.numbers import NATURAL32, NATURAL64, parse_int
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queue import ConsumeQueue
from trioha.store.consume_queues import ConsumeQueues, Queue
from trioha.store.index_service import IndexService
from trioha.store.message_properties import parse_properties
from trioha.store.record_layout import (
    BLANK_BYTES,
    HOSTS_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    TOPIC_BYTES_MAX_V1,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    FaultKind,
    check_record,
    claimed_bytes,
    find_fault,
    has_valid_crc,
    starts_blank,
    starts_record,
    store_timestamp_ms,
    topic_span,
)
from trioha.store.recovery import SLACK_MS, newest_file_stored_by
from trioha.store.tags import SCHEDULE_TOPIC, DelayLevels, java_hashes, java_hashes_behind, tags_code
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

BATCH_RECORDS = 512
"""Records between two writes to queues and index."""
LMQ_PREFIX = "%LMQ%"
_READ_BYTES = 1 << 40
_TAG_CACHE_MAX = 65536
_CACHED_TAG_BYTES_MAX = 128

_FIXED_V4 = Struct(">iI4xi4xqqi16xq20xi").unpack_from
"""Of a record with IPv4 hosts: totalSize, magic, queueId, queueOffset, physicalOffset, sysFlag,
storeTimestamp, bodyLength."""
_I16 = Struct(">h").unpack_from
_pack_entry = Struct(">qiq").pack


@frozen
class DispatchSettings:
    """What is built, and from which records."""

    message_index_enable: bool = True
    """messageIndexEnable."""
    enable_lmq: bool = False
    """enableLmq: names of light queues (`%LMQ%...`) stand for their queue 0."""
    enable_multi_dispatch: bool = False
    """enableMultiDispatch: a record also enters the queues that its INNER_MULTI_DISPATCH names."""
    is_slave: bool = False
    """A slave stops at a record it cannot read, a master goes on behind what it holds of that file."""
    check_crc: bool = False
    """Check every body: for a replica that took its bytes unchecked (`trioha.haVerify=frame`)."""
    delay_levels: DelayLevels = Factory(DelayLevels)


@frozen
class DispatchFault:
    """A record that could not be dispatched as it is."""

    physical_offset: int
    reason: str


class _Stop(Enum):
    """Why a walk over records ended."""

    AT_END = auto()
    AT_BLANK = auto()
    AT_FAULT = auto()


@define(eq=False)
class _Target:
    """What a record's topic and queue id lead to."""

    queue: Queue | None
    """None if no queue may be made of that name."""
    fault: str
    prefix_hash: int
    """Hash of `topic#`, which all index keys of the topic begin with."""
    plain: ConsumeQueue | None
    """The queue, if its entries need nothing but the record's tags."""


class Dispatcher:
    """Builds a store's queues and index from its log. Single-threaded, as the store is."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexService | None,
        *,
        position: int,
        settings: DispatchSettings | None = None,
    ) -> None:
        """`position` is where to begin, see `start_position`; the log's first byte at the least."""
        self._log = commit_log
        self._queues = queues
        self._settings = settings or DispatchSettings()
        self._index = index if self._settings.message_index_enable else None
        self._targets: dict[tuple[bytes, int], _Target] = {}
        self._tag_codes: dict[bytes, int] = {}
        self._touched: dict[int, Queue] = {}
        self._noted: list[DispatchFault] = []
        """Faults of the stretch at hand."""
        # Columns of the index keys of the stretch at hand.
        self._keys: list[bytes] = []
        self._prefixes: list[int] = []
        self._key_offsets: list[int] = []
        self._key_times_ms: list[int] = []
        self.dispatched = Watermark(max(position, commit_log.min_offset))
        """Everything before it is in queues and index. Moved by `dispatch`, and back by `rewind`."""
        self.last_store_timestamp_ms = 0
        """storeTimestamp of the last record dispatched: the checkpoint's logicsMsgTimestamp, once the queues
        are on disk."""
        self.faults = 0
        """Records that could not be dispatched since the start."""
        self.last_fault: DispatchFault | None = None
        self.stuck_at = -1
        """Offset of a record that a slave waits at, -1 if it does not."""

    @property
    def position(self) -> int:
        """Offset of the next record to look at."""
        return self.dispatched.offset

    @property
    def settings(self) -> DispatchSettings:
        """What is built."""
        return self._settings

    def rewind(self, position: int) -> None:
        """Go back to `position`, a record's start: the log was cut there, or queues are built again."""
        self.forget_queues()
        self.dispatched.move_to(position)

    def forget_queues(self) -> None:
        """Look queues up again: call it when topics were deleted or have become batch topics."""
        self._targets.clear()

    # -- the walk --------------------------------------------------------------------------------------

    def dispatch(self, until_offset: int, *, records_max: int = BATCH_RECORDS) -> int:
        """Dispatch records that end at or before `until_offset`, about `records_max` at most.

        Returns how many were passed, bad ones included; 0 if there is nothing more to do now. Raises
        StoreError if the disk refuses a write: the position stays, so call again when there is space.
        """
        passed = 0
        until_offset = min(until_offset, self._log.max_offset)
        while passed < records_max and self.position < until_offset:
            start = self.position
            batch = min(records_max - passed, BATCH_RECORDS)
            try:
                position, records, last_record_offset, last_time_ms = self._collect(
                    start, until_offset, batch
                )
                self._write(last_record_offset)
            except BaseException:
                for queue in self._touched.values():
                    queue.discard()
                self._noted.clear()
                raise
            finally:
                self._touched.clear()
                self._keys.clear()
                self._prefixes.clear()
                self._key_offsets.clear()
                self._key_times_ms.clear()
            self.last_store_timestamp_ms = last_time_ms
            self._log_faults()
            passed += records
            if position == start:
                break
            if position > self.stuck_at:
                self.stuck_at = -1
            self.dispatched.advance(position)
        return passed

    def _write(self, last_record_offset: int) -> None:
        for queue in self._touched.values():
            queue.flush()
        if self._index is not None and last_record_offset >= 0:
            self._index.put(
                java_hashes_behind(self._prefixes, self._keys),
                self._key_offsets,
                self._key_times_ms,
                last_record_offset=last_record_offset,
            )

    def _collect(self, position: int, until_offset: int, records_max: int) -> tuple[int, int, int, int]:
        """Look at up to `records_max` records.

        Returns the position behind them, how many they were, the last one's offset, and the newest store
        time up to there.

        This loop is what a rebuild costs: about 2 us for a record with one tag and two keys, the common
        record (V1, IPv4) without a call to check it.
        """
        commit_log = self._log
        if position < commit_log.min_offset:
            log.warning(
                "dispatch goes on at the log's new start", position=position, start=commit_log.min_offset
            )
            return commit_log.min_offset, 0, -1, self.last_store_timestamp_ms
        view = commit_log.read(position, min(until_offset - position, _READ_BYTES))
        # Slices of the map itself are bytes at once, which costs half of what slices of its view do. Indexes
        # are positions in the file, then; files begin at multiples of their length.
        data = cast("mmap.mmap", view.obj)
        start = at = position % commit_log.file_bytes
        end = start + len(view)
        shift = position - start
        index_from = self._index.end_physical_offset if self._index is not None else 1 << 63
        check_crc = self._settings.check_crc
        multi_dispatch = self._settings.enable_multi_dispatch
        targets = self._targets
        tag_codes = self._tag_codes
        touched = self._touched
        keys, prefixes = self._keys, self._prefixes
        key_offsets, key_times = self._key_offsets, self._key_times_ms
        last_record_offset = -1
        last_time_ms = self.last_store_timestamp_ms
        records = 0
        stop = _Stop.AT_END
        # Closer to the end no record can start.
        last_start = end - RECORD_BYTES_MIN
        while at <= last_start and records < records_max:
            size, magic, queue_id, queue_offset, physical_offset, sys_flag, time_ms, body_bytes = _FIXED_V4(
                data, at
            )
            if magic == MAGIC_V1 and not sys_flag & HOSTS_V6:
                topic_at = at + 89 + body_bytes
                record_end = at + size
                if (
                    body_bytes < 0
                    or record_end > end
                    or topic_at + 2 > record_end
                    or physical_offset != shift + at
                    or (properties_at := topic_at + (topic_bytes := data[topic_at - 1]) + 2) > record_end
                    or topic_bytes > TOPIC_BYTES_MAX_V1
                    or properties_at + _I16(data, properties_at - 2)[0] != record_end
                ):
                    stop = _Stop.AT_FAULT
                    break
            elif magic == MAGIC_BLANK:
                stop = _Stop.AT_BLANK
                break
            else:
                if check_record(view, at - start, end - start, shift + at, check_crc=False) < 0:
                    stop = _Stop.AT_FAULT
                    break
                topic_at, topic_end = topic_span(data, at)
                topic_bytes = topic_end - topic_at
                time_ms = store_timestamp_ms(data, at)
                properties_at = topic_end + 2
                record_end = at + size
            if check_crc and not has_valid_crc(view, at - start):
                stop = _Stop.AT_FAULT
                break
            records += 1
            last_record_offset = physical_offset
            last_time_ms = time_ms
            at = record_end
            # The separator in front lets the first property be found as the others are.
            properties = b"\x02" + data[properties_at:record_end]
            place = (data[topic_at : topic_at + topic_bytes], queue_id)
            try:
                target = targets[place]
            except KeyError:
                target = self._make_target(place)
            if not sys_flag & TRANSACTION_PREPARED:
                # Neither prepared (0x4) nor rolled back (0xC).
                plain = target.plain
                if plain is not None:
                    _, name, rest = properties.rpartition(b"\x02TAGS\x01")
                    if name:
                        tags = rest.partition(b"\x02")[0]
                        try:
                            code = tag_codes[tags]
                        except KeyError:
                            code = self._tags_code(tags, properties)
                    else:
                        code = 0
                    if queue_offset == plain.next_offset and physical_offset >= plain.max_physical_offset > 0:
                        # `ConsumeQueue.put`, inlined for the entry that simply follows the last one.
                        pending = plain.pending
                        if not pending:
                            touched[id(plain)] = plain
                        pending.append(_pack_entry(physical_offset, size, code))
                        plain.next_offset = queue_offset + 1
                    else:
                        touched[id(plain)] = plain
                        plain.put(
                            physical_offset=physical_offset,
                            size=size,
                            tags_code=code,
                            queue_offset=queue_offset,
                        )
                    if multi_dispatch and b"\x02INNER_MULTI_DISPATCH\x01" in properties:
                        self._put_multi(properties, physical_offset, size, code, queue_id)
                else:
                    self._put_special(
                        target,
                        properties,
                        physical_offset=physical_offset,
                        size=size,
                        queue_id=queue_id,
                        queue_offset=queue_offset,
                        time_ms=time_ms,
                    )
            elif sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
                continue
            if physical_offset < index_from:
                continue
            _, name, rest = properties.rpartition(b"\x02UNIQ_KEY\x01")
            if name:
                if key := rest.partition(b"\x02")[0]:
                    keys.append(key)
                    prefixes.append(target.prefix_hash)
                    key_offsets.append(physical_offset)
                    key_times.append(time_ms)
                else:
                    self._put_keys(target, properties, "UNIQ_KEY", offset=physical_offset, time_ms=time_ms)
            _, name, rest = properties.rpartition(b"\x02KEYS\x01")
            if name:
                if (key := rest.partition(b"\x02")[0]) and b" " not in key:
                    keys.append(key)
                    prefixes.append(target.prefix_hash)
                    key_offsets.append(physical_offset)
                    key_times.append(time_ms)
                else:
                    self._put_keys(target, properties, "KEYS", offset=physical_offset, time_ms=time_ms)
        if last_start < at < end and stop is _Stop.AT_END and records < records_max:
            stop = _Stop.AT_BLANK if starts_blank(data, at, end) else _Stop.AT_FAULT
        position = shift + at
        if stop is _Stop.AT_BLANK:
            position = self._next_file(position)
        elif stop is _Stop.AT_FAULT:
            behind = self._behind_fault(view[at - start :], position, until_offset)
            records += behind != position
            position = behind
        return position, records, last_record_offset, max(last_time_ms, self.last_store_timestamp_ms)

    def _next_file(self, position: int) -> int:
        return position - position % self._log.file_bytes + self._log.file_bytes

    # -- records out of the ordinary ---------------------------------------------------------------------

    def _make_target(self, place: tuple[bytes, int]) -> _Target:
        topic = place[0].decode("utf-8", "replace")
        fault = ""
        queue: Queue | None = None
        try:
            queue = self._queues.find_or_make(topic, place[1])
        except StoreError as error:
            fault = error.reason
        target = _Target(
            queue=queue,
            fault=fault,
            prefix_hash=java_hashes([place[0] + b"#"])[0],
            plain=queue if isinstance(queue, ConsumeQueue) and topic != SCHEDULE_TOPIC else None,
        )
        if queue is not None:
            # A refused name costs a look-up for each of its records, but no memory.
            self._targets[place] = target
        return target

    def _tags_code(self, tags: bytes, properties: bytes) -> int:
        """Tags code of a TAGS property not met before."""
        if not tags:
            # An empty value does not count, and an earlier one of the same name may.
            return tags_code(parse_properties(properties).get("TAGS", ""))
        code = tags_code(tags.decode("utf-8", "replace"))
        if len(tags) <= _CACHED_TAG_BYTES_MAX:
            if len(self._tag_codes) >= _TAG_CACHE_MAX:
                self._tag_codes.clear()
            self._tag_codes[tags] = code
        return code

    def _put_special(
        self,
        target: _Target,
        raw_properties: bytes,
        *,
        physical_offset: int,
        size: int,
        queue_id: int,
        queue_offset: int,
        time_ms: int,
    ) -> None:
        """A record of the schedule topic or of a batch topic, or one that enters no queue."""
        properties = parse_properties(raw_properties)
        code = tags_code(properties.get("TAGS", ""))
        queue = target.queue
        if queue is None:
            self._note_fault(physical_offset, target.fault)
        elif isinstance(queue, ConsumeQueue):
            due = self._settings.delay_levels.tags_code(
                properties.get("DELAY", ""), store_timestamp_ms=time_ms
            )
            self._touched[id(queue)] = queue
            queue.put(
                physical_offset=physical_offset,
                size=size,
                tags_code=code if due is None else due,
                queue_offset=queue_offset,
            )
        else:
            span = _batch_span(properties, queue_offset)
            if span is None:
                self._note_fault(physical_offset, "INNER_BASE or INNER_NUM is no number")
                return
            self._touched[id(queue)] = queue
            queue.put(
                physical_offset=physical_offset,
                size=size,
                tags_code=code,
                store_timestamp_ms=time_ms,
                base_offset=span[0],
                messages=span[1],
            )
        if self._settings.enable_multi_dispatch:
            self._put_multi(raw_properties, physical_offset, size, code, queue_id)

    def _put_multi(
        self, raw_properties: bytes, physical_offset: int, size: int, code: int, queue_id: int
    ) -> None:
        """Enter the queues that INNER_MULTI_DISPATCH names, at the offsets beside it (spec store 2.10)."""
        properties = parse_properties(raw_properties)
        names = properties.get("INNER_MULTI_DISPATCH", "")
        offsets = properties.get("INNER_MULTI_QUEUE_OFFSET", "")
        if not names or not offsets:
            return
        try:
            numbers = [parse_int(offset, NATURAL64) for offset in offsets.split(",")]
            pairs = list(zip(names.split(","), numbers, strict=True))
            for name, queue_offset in pairs:
                light = self._settings.enable_lmq and name.startswith(LMQ_PREFIX)
                queue = self._queues.find_or_make(name, 0 if light else queue_id)
                self._touched[id(queue)] = queue
                if isinstance(queue, ConsumeQueue):
                    queue.put(
                        physical_offset=physical_offset,
                        size=size,
                        tags_code=code,
                        queue_offset=queue_offset,
                    )
        except ValueError:
            self._note_fault(physical_offset, "INNER_MULTI_DISPATCH and its offsets do not fit")
        except StoreError as error:
            self._note_fault(physical_offset, error.reason)

    def _put_keys(
        self, target: _Target, raw_properties: bytes, name: str, *, offset: int, time_ms: int
    ) -> None:
        """Keys of a record whose property is empty, given twice, or a list."""
        value = parse_properties(raw_properties).get(name, "")
        for key in value.split(" ") if name == "KEYS" else [value]:
            if key:
                self._keys.append(key.encode())
                self._prefixes.append(target.prefix_hash)
                self._key_offsets.append(offset)
                self._key_times_ms.append(time_ms)

    def _behind_fault(self, view: memoryview, offset: int, until_offset: int) -> int:
        """Where to go on behind a record that is not whole and valid; `offset` itself to wait (spec 5.6).

        `view` starts at the record. One that is whole but wrong inside is passed by its size. Of one without
        a believable size a master passes all it holds of the file; a slave stays, and looks again when it is
        called next.
        """
        left = len(view)
        size = claimed_bytes(view, 0, left)
        if offset + max(size, BLANK_BYTES) > until_offset and until_offset < self._log.max_offset:
            # Not damaged, but not to be dispatched yet.
            return offset
        fault = find_fault(view, 0, left, offset, check_crc=self._settings.check_crc)
        assert fault is not None
        followed = size == left or starts_record(view, max(size, 0), left)
        whole = RECORD_BYTES_MIN <= size <= left and (
            fault.kind in {FaultKind.BAD_POSITION, FaultKind.BAD_CRC} or followed
        )
        waits = self._settings.is_slave and not whole
        if not waits or self.stuck_at != offset:
            self._note_fault(offset, fault.reason)
        if waits:
            self.stuck_at = offset
            return offset
        if whole:
            return offset + size
        return min(self._next_file(offset), self._log.max_offset)

    def _note_fault(self, physical_offset: int, reason: str) -> None:
        self._noted.append(DispatchFault(physical_offset, reason))

    def _log_faults(self) -> None:
        """Count and log what was noted in a stretch that is dispatched now; one that fails comes again."""
        for fault in self._noted:
            self.faults += 1
            self.last_fault = fault
            log.error("record cannot be dispatched", offset=fault.physical_offset, reason=fault.reason)
        self._noted.clear()


def _batch_span(properties: dict[str, str], queue_offset: int) -> tuple[int, int] | None:
    """First queue offset and number of the messages in a batch topic's record; None if it does not say well.

    INNER_BASE and INNER_NUM say it (spec store 2.7); a plain message has neither.
    """
    if "INNER_BASE" not in properties or "INNER_NUM" not in properties:
        return queue_offset, 1
    try:
        return parse_int(properties["INNER_BASE"], NATURAL64), parse_int(properties["INNER_NUM"], NATURAL32)
    except ValueError:
        return None


def start_position(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    *,
    clean_exit: bool,
    checkpoint: Checkpoint,
    redispatch_from: int | None = None,
) -> int:
    """Where dispatch has to begin after a start (spec store 5.4.1, 5.6).

    After a clean stop: behind the last record that any queue knows; all of the log if none knows any. After
    an unclean one: at the newest log file that began 3 s or more before what the checkpoint says is on disk.
    `redispatch_from` is what `IndexService.open` or `cut` gave. Recovered queues are needed, and the log's
    end.
    """
    known = queues.max_physical_offset
    position = min(max(known, commit_log.min_offset), commit_log.max_offset)
    if not clean_exit:
        safe_ms = max(
            0, min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms) - SLACK_MS
        )
        file = newest_file_stored_by(commit_log.files, safe_ms)
        position = min(position, commit_log.min_offset if file is None else file.start_offset)
    if redispatch_from is not None:
        position = min(position, redispatch_from)
    return max(position, commit_log.min_offset)
