"""Dispatch: from the log's records to consume queues and index (spec store 5.6; "reput" in RocketMQ).

Theory of operation. `position` walks through the log, record by record; everything before it is in the queues and
the index. `dispatch` takes a stretch of the log, collects what its records say, and then writes each queue once
and the index once; only then `dispatched` moves. Whatever stops it between those steps, the same stretch can be
dispatched again: queues drop entries they have, the index records it has. Bodies are not read unless
`check_crc` asks for it.

A record's type decides: plain and committed messages enter their queue and the index, prepared ones only the
index, rolled back ones neither.
"""

from __future__ import annotations

from struct import Struct

import structlog
from attrs import Factory, define, evolve, frozen

from trioha.errors import StoreError
from trioha.store.batch_consume_queue import BatchConsumeQueue
from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queue import ConsumeQueue
from trioha.store.consume_queues import ConsumeQueues, Queue
from trioha.store.index_service import IndexService
from trioha.store.properties import parse_properties
from trioha.store.record import (
    BAD_CRC,
    BAD_POSITION,
    BLANK,
    BLANK_BYTES,
    BODY_AT_V4,
    BORN_HOST_V6,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    body_crc,
    check_record,
    describe_fault,
)
from trioha.store.scan import store_timestamp_ms
from trioha.store.tags import SCHEDULE_TOPIC, DelayLevels, tags_code
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

BATCH_RECORDS = 512
"""Records between two writes to queues and index."""
LMQ_PREFIX = "%LMQ%"
_READ_BYTES = 1 << 40
_TAG_CACHE_MAX = 65536
_SLACK_MS = 3000
_IPV6_EXTRA_BYTES = 12

_FIXED_V4 = Struct(">iI4xi4xqqi16xq20xi").unpack_from
"""Of a record with IPv4 hosts: totalSize, magic, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp,
bodyLength."""
_I16 = Struct(">h").unpack_from
_I32 = Struct(">i").unpack_from
_I64 = Struct(">q").unpack_from
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


@define(eq=False)
class _Target:
    """What a record's topic and queue id lead to."""

    queue: Queue | None
    """None if no queue may be made of that name."""
    fault: str
    key_prefix: bytes
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
        self._keys: list[bytes] = []
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

    def become_master(self) -> None:
        """Go on behind bad records from now on, see `DispatchSettings.is_slave`."""
        self._settings = evolve(self._settings, is_slave=False)

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

        Returns how many were passed, bad ones included; 0 if there is nothing more to do now. Raises StoreError
        if the disk refuses a write: the position stays, so call again when there is space.
        """
        passed = 0
        until_offset = min(until_offset, self._log.max_offset)
        while passed < records_max and self.position < until_offset:
            start = self.position
            batch = min(records_max - passed, BATCH_RECORDS)
            try:
                position, records, last_record_offset = self._collect(start, until_offset, batch)
                self._write(last_record_offset)
            except StoreError:
                for queue in self._touched.values():
                    queue.discard()
                raise
            finally:
                self._touched.clear()
                self._keys.clear()
                self._key_offsets.clear()
                self._key_times_ms.clear()
            passed += records
            if position == start:
                break
            self.stuck_at = -1
            self.dispatched.advance(position)
        return passed

    def _write(self, last_record_offset: int) -> None:
        for queue in self._touched.values():
            queue.flush()
        if self._index is not None and last_record_offset >= 0:
            self._index.put(
                self._keys, self._key_offsets, self._key_times_ms, last_record_offset=last_record_offset
            )

    def _collect(self, position: int, until_offset: int, records_max: int) -> tuple[int, int, int]:
        """Look at up to `records_max` records; the position behind them, how many, the last one's offset.

        This loop is what a rebuild costs: about 2 us for a record with one tag and two keys, the common
        record (V1, IPv4) without a call to check it.
        """
        commit_log = self._log
        if position < commit_log.min_offset:
            log.warning(
                "dispatch goes on at the log's new start", position=position, start=commit_log.min_offset
            )
            return commit_log.min_offset, 0, -1
        view = commit_log.read(position, min(until_offset - position, _READ_BYTES))
        end = len(view)
        index_from = self._index.end_physical_offset if self._index is not None else 1 << 63
        settings = self._settings
        check_crc = settings.check_crc
        multi_dispatch = settings.enable_multi_dispatch
        targets = self._targets
        tag_codes = self._tag_codes
        touched = self._touched
        keys, key_offsets, key_times = self._keys, self._key_offsets, self._key_times_ms
        last_record_offset = -1
        last_time_ms = self.last_store_timestamp_ms
        records = 0
        at = 0
        next_file = False
        while records < records_max and at < end:
            left = end - at
            if left < RECORD_BYTES_MIN:
                if left >= BLANK_BYTES and BLANK.unpack_from(view, at)[1] == MAGIC_BLANK:
                    next_file = True
                    break
                return self._skip(view, at, position, until_offset, records, last_record_offset)
            size, magic, queue_id, queue_offset, physical_offset, sys_flag, time_ms, body_bytes = _FIXED_V4(
                view, at
            )
            if magic == MAGIC_V1 and not sys_flag & 0x30:
                topic_at = at + 88 + body_bytes
                record_end = at + size
                if (
                    body_bytes < 0
                    or not RECORD_BYTES_MIN <= size <= left
                    or topic_at + 3 > record_end
                    or physical_offset != position + at
                ):
                    return self._skip(view, at, position, until_offset, records, last_record_offset)
                topic_at += 1
                topic_bytes = view[topic_at - 1]
                properties_at = topic_at + topic_bytes
                if (
                    topic_bytes > 127
                    or properties_at + 2 > record_end
                    or properties_at + 2 + _I16(view, properties_at)[0] != record_end
                ):
                    return self._skip(view, at, position, until_offset, records, last_record_offset)
            elif magic == MAGIC_BLANK:
                next_file = True
                break
            else:
                if check_record(view, at, end, position + at, check_crc=False) < 0:
                    return self._skip(view, at, position, until_offset, records, last_record_offset)
                topic_at, topic_bytes, time_ms = _measure(view, at, magic, sys_flag)
                properties_at = topic_at + topic_bytes
                record_end = at + size
            if check_crc and not _crc_holds(view, at, sys_flag):
                return self._skip(view, at, position, until_offset, records, last_record_offset)
            records += 1
            last_record_offset = physical_offset
            last_time_ms = time_ms
            # The separator in front lets the first property be found as the others are.
            properties = b"\x02" + view[properties_at + 2 : record_end]
            at = record_end
            place = (bytes(view[topic_at:properties_at]), queue_id)
            target = targets.get(place)
            if target is None:
                target = self._make_target(place)
            transaction = sys_flag & TRANSACTION_MASK
            if not transaction & TRANSACTION_PREPARED:
                # Neither prepared (0x4) nor rolled back (0xC).
                plain = target.plain
                if plain is not None:
                    found = properties.rfind(b"\x02TAGS\x01")
                    if found < 0:
                        code = 0
                    else:
                        close = properties.find(b"\x02", found + 6)
                        tags = properties[found + 6 : close] if close >= 0 else properties[found + 6 :]
                        known = tag_codes.get(tags)
                        code = self._tags_code(tags, properties) if known is None else known
                    if queue_offset == plain.next_offset and physical_offset >= plain.max_physical_offset > 0:
                        # `ConsumeQueue.put`, inlined for the entry that simply follows the last one.
                        if not plain.pending:
                            touched[id(plain)] = plain
                        plain.pending.append(_pack_entry(physical_offset, size, code))
                        plain.next_offset = queue_offset + 1
                        plain.max_physical_offset = physical_offset + size
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
                        target, properties, physical_offset, size, queue_offset, time_ms, queue_id
                    )
            if physical_offset >= index_from and transaction != TRANSACTION_ROLLBACK:
                found = properties.rfind(b"\x02UNIQ_KEY\x01")
                if found >= 0:
                    close = properties.find(b"\x02", found + 10)
                    key = properties[found + 10 : close] if close >= 0 else properties[found + 10 :]
                    if key:
                        keys.append(target.key_prefix + key)
                        key_offsets.append(physical_offset)
                        key_times.append(time_ms)
                    else:
                        self._put_keys(target, properties, "UNIQ_KEY", physical_offset, time_ms)
                found = properties.rfind(b"\x02KEYS\x01")
                if found >= 0:
                    close = properties.find(b"\x02", found + 6)
                    key = properties[found + 6 : close] if close >= 0 else properties[found + 6 :]
                    if key and b" " not in key:
                        keys.append(target.key_prefix + key)
                        key_offsets.append(physical_offset)
                        key_times.append(time_ms)
                    else:
                        self._put_keys(target, properties, "KEYS", physical_offset, time_ms)
        self.last_store_timestamp_ms = max(last_time_ms, self.last_store_timestamp_ms)
        position += at
        return self._next_file(position) if next_file else position, records, last_record_offset

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
            log.warning("record enters no consume queue", reason=fault)
        target = _Target(
            queue=queue,
            fault=fault,
            key_prefix=place[0] + b"#",
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
        if len(self._tag_codes) >= _TAG_CACHE_MAX:
            self._tag_codes.clear()
        code = self._tag_codes[tags] = tags_code(tags.decode("utf-8", "replace"))
        return code

    def _put_special(
        self,
        target: _Target,
        raw_properties: bytes,
        physical_offset: int,
        size: int,
        queue_offset: int,
        time_ms: int,
        queue_id: int,
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
            self._put_batch(queue, properties, physical_offset, size, queue_offset, time_ms, code)
        if self._settings.enable_multi_dispatch:
            self._put_multi(raw_properties, physical_offset, size, code, queue_id)

    def _put_batch(
        self,
        queue: BatchConsumeQueue,
        properties: dict[str, str],
        physical_offset: int,
        size: int,
        queue_offset: int,
        time_ms: int,
        code: int,
    ) -> None:
        """A record of a batch topic: INNER_BASE and INNER_NUM say which messages it holds (spec store 2.7)."""
        base_offset, messages = queue_offset, 1
        if "INNER_BASE" in properties and "INNER_NUM" in properties:
            try:
                base_offset, messages = int(properties["INNER_BASE"]), int(properties["INNER_NUM"])
            except ValueError:
                self._note_fault(physical_offset, "INNER_BASE or INNER_NUM is no number")
                return
        self._touched[id(queue)] = queue
        queue.put(
            physical_offset=physical_offset,
            size=size,
            tags_code=code,
            store_timestamp_ms=time_ms,
            base_offset=base_offset,
            messages=messages,
        )

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
            pairs = list(zip(names.split(","), map(int, offsets.split(",")), strict=True))
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
        self, target: _Target, raw_properties: bytes, name: str, physical_offset: int, time_ms: int
    ) -> None:
        """Keys of a record whose property is empty, given twice, or a list."""
        value = parse_properties(raw_properties).get(name, "")
        for key in value.split(" ") if name == "KEYS" else [value]:
            if key:
                self._keys.append(target.key_prefix + key.encode())
                self._key_offsets.append(physical_offset)
                self._key_times_ms.append(time_ms)

    def _skip(
        self,
        view: memoryview,
        at: int,
        position: int,
        until_offset: int,
        records: int,
        last_record_offset: int,
    ) -> tuple[int, int, int]:
        """Pass a record that is not whole and valid (spec store 5.6).

        One that is whole but wrong inside is skipped by its size. Of one without a believable size a master
        skips what it holds of the file; a slave stays, and looks again when it is called next.
        """
        offset = position + at
        end = len(view)
        fault = check_record(view, at, end, offset, check_crc=self._settings.check_crc)
        size = _I32(view, at)[0] if end - at >= 4 else 0
        if offset + max(size, BLANK_BYTES) > until_offset and until_offset < self._log.max_offset:
            # Not damaged, but not to be dispatched yet.
            return offset, records, last_record_offset
        follows = at + size == end or (
            at + size + BLANK_BYTES <= end and BLANK.unpack_from(view, at + size)[1] in _RECORD_STARTS
        )
        whole = RECORD_BYTES_MIN <= size <= end - at and (fault in {BAD_POSITION, BAD_CRC} or follows)
        if not whole and self._settings.is_slave:
            if self.stuck_at != offset:
                self.stuck_at = offset
                self._note_fault(offset, describe_fault(view, at, end, offset))
            return offset, records, last_record_offset
        self._note_fault(offset, describe_fault(view, at, end, offset))
        if whole:
            return offset + size, records + 1, last_record_offset
        return min(self._next_file(offset), self._log.max_offset), records + 1, last_record_offset

    def _note_fault(self, physical_offset: int, reason: str) -> None:
        self.faults += 1
        self.last_fault = DispatchFault(physical_offset, reason)
        log.error("record cannot be dispatched", offset=physical_offset, reason=reason)


_RECORD_STARTS = frozenset((MAGIC_V1, MAGIC_V2, MAGIC_BLANK))


def _measure(view: memoryview, at: int, magic: int, sys_flag: int) -> tuple[int, int, int]:
    """Where the topic of a checked record is, how long it is, and the record's storeTimestamp."""
    born_extra = _IPV6_EXTRA_BYTES if sys_flag & BORN_HOST_V6 else 0
    topic_at = _body_at(at, sys_flag)
    topic_at += _I32(view, topic_at - 4)[0]
    (time_ms,) = _I64(view, at + 56 + born_extra)
    if magic == MAGIC_V1:
        return topic_at + 1, view[topic_at], time_ms
    return topic_at + 2, _I16(view, topic_at)[0], time_ms


def _body_at(at: int, sys_flag: int) -> int:
    hosts_v6 = bool(sys_flag & BORN_HOST_V6) + bool(sys_flag & STORE_HOST_V6)
    return at + BODY_AT_V4 + _IPV6_EXTRA_BYTES * hosts_v6


def _crc_holds(view: memoryview, at: int, sys_flag: int) -> bool:
    body_at = _body_at(at, sys_flag)
    (body_bytes,) = _I32(view, body_at - 4)
    return body_crc(view[body_at : body_at + body_bytes]) == _I32(view, at + 8)[0]


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
    `redispatch_from` is what `IndexService.open` or `cut` gave. Recovered queues are needed, and the log's end.
    """
    known = queues.max_physical_offset
    position = min(max(known, commit_log.min_offset), commit_log.max_offset)
    if not clean_exit:
        safe_ms = max(
            0, min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms) - _SLACK_MS
        )
        position = min(position, _newest_file_before(commit_log, safe_ms))
    if redispatch_from is not None:
        position = min(position, redispatch_from)
    return max(position, commit_log.min_offset)


def _newest_file_before(commit_log: CommitLog, safe_ms: int) -> int:
    """Start of the newest file whose first record was stored by `safe_ms`; of the first one if none was."""
    for file in reversed(commit_log.files):
        head = commit_log.read(file.start_offset, RECORD_BYTES_MIN)
        if len(head) == RECORD_BYTES_MIN and BLANK.unpack_from(head)[1] in {MAGIC_V1, MAGIC_V2}:
            stored_ms = store_timestamp_ms(head, 0)
            if 0 < stored_ms <= safe_ms:
                return file.start_offset
    return commit_log.min_offset
