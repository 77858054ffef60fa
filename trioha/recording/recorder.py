"""Records the events of a node without delaying it.

Theory of operation. `emit` only packs an event into the current block of memory, a preallocated bytearray: no
lock, no allocation, no I/O. Every `FLUSH_INTERVAL_S`, and when half of the blocks are full, `Recorder.run`
hands them to a worker thread, which numbers and checks their records and writes each block with one call: to
wake and await the thread for each block costs as much as some hundred events. The number of blocks is fixed.
If the disk is so slow that no block is free, events are dropped and counted, and one DROPPED record stands
for them in the recording. A disk that refuses a write, or the folder at the start, is a slow one: the error
is reported, and the same block is written again each `RETRY_INTERVAL_S`. The node goes on: replication never
depends on its recording.

A recorder belongs to the trio thread. Run it in a nursery around all tasks that emit events, so that it is
cancelled last: events after the end of `run` are dropped.

Most events are of puts that were stored together. At the time only their places in the block are taken; the
worker thread writes them there before it numbers the records.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from trioha import __version__
from trioha.errors import ConfigError
from trioha.net.threads import run_in_thread
from trioha.recording.events import NO_CONNECTION, PUT_OFFSETS_BYTES, RECORD_BYTES, Kind, first_offset
from trioha.recording.layout import CLOSED_NOTE, NODE_ID_MAX, SessionIdentity, encode_session
from trioha.recording.writer import Block, SessionWriter

log = structlog.get_logger(__name__)

FLUSH_INTERVAL_S: Final = 0.2
"""Longest time in which an event stays in memory while the disk keeps up."""
RETRY_INTERVAL_S: Final = 1.0
"""Between two tries to write what the disk refuses."""
CLOSE_TIMEOUT_S: Final = 1.0
"""Longest wait for the disk at the end of a session."""
SEGMENT_RECORDS_MAX: Final = 2_000_000
"""Records of a segment, keyframes included."""
BLOCK_RECORDS: Final = 5461
"""Records of a block: 256 KiB."""
BLOCKS_MAX: Final = 16
"""Blocks of a recorder, 4 MiB in all: half a second of 170,000 events a second."""
FACTS_MAX: Final = 1024
"""Facts of a block."""

_pack_event_into: Final = struct.Struct("<q8xBBHiqqi4x").pack_into
"""As `RECORD`, with zeros for seq and check."""

_pack_two_into: Final = struct.Struct("<" + 2 * "q8xBBHiqqi4x").pack_into
_PUT: Final = int(Kind.PUT)
_WAIT_BEGIN: Final = int(Kind.WAIT_BEGIN)
_WAIT_END: Final = int(Kind.WAIT_END)
_PUT_EVENT_BYTES_PER_BYTE: Final = 2 * RECORD_BYTES // PUT_OFFSETS_BYTES
"""Bytes of the two events of a put for each byte of its offsets."""
_WAIT_EVENT_BYTES_PER_BYTE: Final = RECORD_BYTES // PUT_OFFSETS_BYTES
_EVENT_HEAD: Final = struct.Struct("<BBHi")

_LIMITS: Final = {
    # Least and largest value of each field of a record.
    "kind": (0, 127),
    "flags": (0, 255),
    "conn": (-(2**31), 2**31 - 1),
    "offset": (-(2**63), 2**63 - 1),
    "aux": (-(2**63), 2**63 - 1),
    "size": (-(2**31), 2**31 - 1),
}


class Recorder:
    """An event sink that writes a session folder. `run` is its whole life."""

    def __init__(
        self,
        directory: Path,
        *,
        identity: SessionIdentity,
        node_id: int,
        segment_records_max: int = SEGMENT_RECORDS_MAX,
        block_records: int = BLOCK_RECORDS,
        blocks_max: int = BLOCKS_MAX,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
        on_error: Callable[[str], None] = lambda _reason: None,
        on_written: Callable[[], None] = lambda: None,
    ) -> None:
        """Record below `directory` (trioha.recordDir), in a new folder for each start of the node.

        Each record has `node_id` (brokerId). Nothing is written before `run`, but events can be emitted
        already. `on_error` is called with the reason whenever the disk refuses something, `on_written` when
        it does not. Raises ConfigError if `node_id` does not fit a record.
        """
        if not 0 <= node_id <= NODE_ID_MAX:
            raise ConfigError(
                f"{node_id} does not fit a recording",
                key="brokerId",
                hint=f"use 0 to {NODE_ID_MAX}, or leave trioha.recordDir out",
            )
        assert blocks_max >= 2, "one block is filled while another is written"
        assert block_records >= 2, "after a DROPPED record there is room for the event that follows it"
        self._directory = Path(directory)
        self._on_error, self._on_written = on_error, on_written
        self._identity = identity
        self._node_id = node_id
        self._put, self._wait_begin, self._wait_end = (
            int.from_bytes(_EVENT_HEAD.pack(kind, 0, node_id, NO_CONNECTION), "little", signed=True)
            for kind in (_PUT, _WAIT_BEGIN, _WAIT_END)
        )
        """Kind, flags, node and connection of events of no connection, as one number; flags are 0."""
        self._segment_records_max = segment_records_max
        self._clock_ns = clock_ns
        self._started_ns, self._started_wall_ns = clock_ns(), wall_ns()
        self._block_bytes = block_records * RECORD_BYTES
        self._free = [Block(bytearray(self._block_bytes)) for _ in range(blocks_max)]
        self._free_blocks_low = blocks_max // 2
        """With so few free blocks, the full ones are written without waiting for the interval."""
        self._full: deque[Block] = deque()
        self._block = self._free.pop()
        # Of the current block, kept here for speed: its memory and runs, and the position of the next record.
        self._buffer = self._block.buffer
        self._append_run = self._block.runs.append
        self._position = 0
        self._dropped_now = 0
        """Dropped since the last DROPPED record."""
        self._dropped = 0
        # The difference is what waits for the disk. Each number is changed by one thread only.
        self._queued_records = 0
        """Records of all blocks that were queued; changed by the trio thread."""
        self._written_records = 0
        """Records of all blocks that were written; changed by the worker thread."""
        self._rolls = False
        """Whether the next block starts a segment."""
        self._stopped = False
        self._wake = trio.Event()
        self._writer: SessionWriter | None = None
        # One write at a time, even while an abandoned one still waits for the disk.
        self._limiter = trio.CapacityLimiter(1)
        self._path = self._new_path()

    @property
    def path(self) -> Path:
        """The session's folder, which exists once `run` has started. Its name sorts by time."""
        return self._path

    @property
    def recorded(self) -> int:
        """Records written, keyframes included."""
        return 0 if self._writer is None else self._writer.next_seq

    @property
    def dropped(self) -> int:
        """Events and facts that were dropped: no block was free, or the recording had ended.

        After the end of the recording queued records count too, until they are written after all.
        """
        waiting = self._queued_records - self._written_records if self._stopped else 0
        return self._dropped + waiting

    def emit(
        self,
        kind: int,
        *,
        conn: int = NO_CONNECTION,
        offset: int = 0,
        aux: int = 0,
        size: int = 0,
        flags: int = 0,
    ) -> None:
        """Record one event, stamped with the monotonic clock now.

        A value beyond its field is recorded as the nearest one that fits.
        """
        position = self._position
        if position == self._block_bytes:
            if not self._next_block():
                self._drop()
                return
            position = self._position
        try:
            # The writer sets seq and check.
            _pack_event_into(
                self._buffer, position, self._clock_ns(), kind, flags, self._node_id, conn, offset, aux, size
            )
        except struct.error:
            self._emit_nearest(kind=kind, conn=conn, offset=offset, aux=aux, size=size, flags=flags)
            return
        self._position = position = position + RECORD_BYTES
        if position == self._block_bytes:
            self._next_block()

    def put_and_wait(self, *, offset: int, size: int, request_id: int, copies: int) -> None:
        """Record PUT and WAIT_BEGIN of one put, stamped alike, in a third of the time of two calls of `emit`.

        `offset` is the end after the append, `size` that of the record in bytes, `copies` what is needed, the
        master's included.
        """
        position = self._position
        end = position + 2 * RECORD_BYTES
        if end < self._block_bytes:
            now_ns, node_id = self._clock_ns(), self._node_id
            try:
                _pack_two_into(
                    self._buffer, position,
                    now_ns, _PUT, 0, node_id, NO_CONNECTION, offset, request_id, size,
                    now_ns, _WAIT_BEGIN, 0, node_id, NO_CONNECTION, offset, request_id, copies,
                )  # fmt: skip
            except struct.error:
                # A value beyond its field: what was packed until then is packed again.
                pass
            else:
                self._position = end
                return
        # The block ends here, or the recording has.
        self.emit(_PUT, offset=offset, aux=request_id, size=size)
        self.emit(_WAIT_BEGIN, offset=offset, aux=request_id, size=copies)

    def puts_and_waits(self, *, put_offsets: bytes, end_offset: int, request_id: int, copies: int) -> None:
        """As `put_and_wait` for each put of a run, all stamped alike."""
        # Here and in `waits_ended` the usual case without a call more: this is done for each run of a node.
        position = self._position
        end = position + _PUT_EVENT_BYTES_PER_BYTE * len(put_offsets)
        if end < self._block_bytes:
            now_ns, put, wait_begin = self._clock_ns(), self._put, self._wait_begin
            self._append_run((position, now_ns, put, wait_begin, put_offsets, end_offset, request_id, copies))
            self._position = end
        else:
            self._add_run(self._put, self._wait_begin, put_offsets, end_offset, request_id, copies)

    def waits_ended(
        self, *, put_offsets: bytes, end_offset: int, request_id: int, took_us: int, status: int
    ) -> None:
        """Record WAIT_END of each put of a run, all stamped alike."""
        word = self._wait_end | status << 8
        position = self._position
        end = position + _WAIT_EVENT_BYTES_PER_BYTE * len(put_offsets)
        if end < self._block_bytes:
            self._append_run(
                (position, self._clock_ns(), word, 0, put_offsets, end_offset, request_id, took_us)
            )
            self._position = end
        else:
            self._add_run(word, 0, put_offsets, end_offset, request_id, took_us)

    def _add_run(  # noqa: PLR0917 - keywords would cost a call more
        self, word: int, second_word: int, put_offsets: bytes, end_offset: int, request_id: int, value: int
    ) -> None:
        """Take the places of a run's events in the blocks, as `Run`, where they do not fit one."""
        events = 2 if second_word else 1
        while put_offsets:
            # `emit` hands a full block over: one record at least is left for it.
            left = (self._block_bytes - self._position - 1) // RECORD_BYTES
            room = left // events
            puts = max(room, 1)
            part, put_offsets = (
                put_offsets[: puts * PUT_OFFSETS_BYTES],
                put_offsets[puts * PUT_OFFSETS_BYTES :],
            )
            part_end = first_offset(put_offsets) if put_offsets else end_offset
            if room > 0:
                position = self._position
                self._append_run(
                    (position, self._clock_ns(), word, second_word, part, part_end, request_id, value)
                )
                self._position = position + len(part) // PUT_OFFSETS_BYTES * events * RECORD_BYTES
            elif second_word:
                size = part_end - first_offset(part)
                self.put_and_wait(offset=part_end, size=size, request_id=request_id, copies=value)
            else:
                flags = word >> 8 & 0xFF
                self.emit(_WAIT_END, offset=part_end, aux=request_id, size=value, flags=flags)
            request_id += puts

    def fact(self, type_: str, **fields: object) -> None:
        """Record a fact, which precedes the next event. Values that JSON lacks are written as text."""
        block = self._block
        if len(block.facts) >= FACTS_MAX:
            self._drop()
            return
        text = json.dumps({"type": type_, **fields}, default=str)
        block.facts.append((self._position // RECORD_BYTES, text))

    def roll(self) -> None:
        """Start a new segment with the next event, so that the earlier ones can be moved or deleted."""
        if self._position == 0:
            self._block.rolls = True
        else:
            self._rolls = True
            self._next_block()

    async def run(self, *, task_status: trio.TaskStatus[bool] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the session until cancelled; then write the rest (at most `CLOSE_TIMEOUT_S`) and close it.

        Started when the session's folder exists, or cannot be made yet: whether it exists.
        """
        try:
            is_accepted = await self._try(self._begin)
            task_status.started(is_accepted)
            while True:
                if is_accepted:
                    with trio.move_on_after(FLUSH_INTERVAL_S):
                        await self._wake.wait()
                else:
                    await trio.sleep(RETRY_INTERVAL_S)
                is_accepted = await self._try(self._begin if self._writer is None else self._write_out)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S) as closing:
                await self._close()
            self._stop()
            if closing.cancelled_caught:
                log.error("recording cut off: the disk does not take it", session=str(self._path))

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """Whether the disk accepts what `step` writes; it is reported in any case."""
        try:
            await step()
        except OSError as error:
            hint = "" if self._writer else "; trioha.recordDir must name a folder that this user can write to"
            self._on_error(f"{error.filename or self._path}: {error.strerror or error}{hint}")
            return False
        self._on_written()
        return True

    async def _begin(self) -> None:
        """Make the session's folder. Raises OSError."""
        self._writer = await run_in_thread(self._open)
        log.info("recording", session=str(self._path))

    # -- blocks ------------------------------------------------------------------------------------------

    def _next_block(self) -> bool:
        """Queue the current block for the disk and continue with a free one; False if there is none."""
        if self._stopped or not self._free:
            return False
        self._block.used_bytes = self._position
        self._queued_records += self._position // RECORD_BYTES
        self._full.append(self._block)
        self._block = block = self._free.pop()
        self._buffer = block.buffer
        self._append_run = block.runs.append
        self._position = 0
        block.rolls, self._rolls = self._rolls, False
        if len(self._free) <= self._free_blocks_low:
            self._wake.set()
        if self._dropped_now:
            dropped, self._dropped_now = self._dropped_now, 0
            self.emit(Kind.DROPPED, aux=dropped)
        return True

    def _drop(self) -> None:
        self._dropped += 1
        self._dropped_now += 1

    def _emit_nearest(self, **values: int) -> None:
        nearest = {
            name: min(max(value, _LIMITS[name][0]), _LIMITS[name][1]) for name, value in values.items()
        }
        self.emit(**nearest)

    async def _write_out(self) -> None:
        """Write all events emitted until now. Raises OSError.

        If cancelled, a worker thread that is writing goes on, and the next write waits for it. The other
        blocks stay queued: no event is lost.
        """
        self._wake = trio.Event()
        if self._position or self._block.facts or self._dropped_now:
            self._next_block()
        if not self._full:
            return
        assert self._writer is not None, "a recording that has begun has a writer"
        drain = partial(self._drain, self._writer)
        await run_in_thread(drain, abandon_on_cancel=True, limiter=self._limiter)
        if self._position == self._block_bytes:
            # The current block filled up while no other was free.
            self._next_block()

    def _drain(self, writer: SessionWriter) -> None:
        """Write the queued blocks and free them; runs in a worker thread.

        The trio thread appends to `_full` and pops from `_free`, this one does the reverse. Each of these is
        atomic, and neither thread iterates over them. After `_stop`, this ends with its present block.
        """
        full = self._full
        while full and not self._stopped:
            block = full[0]
            writer.write(block)
            full.popleft()
            self._written_records += block.used_bytes // RECORD_BYTES
            block.used_bytes = block.written_records = 0
            self._free.append(block)

    # -- start and end -----------------------------------------------------------------------------------

    def _new_path(self) -> Path:
        now = datetime.now(tz=UTC)
        stamp = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
        name = re.sub(r"[^\w.-]", "_", self._identity.broker_name)
        return self._directory / f"{stamp}-{name}-{self._identity.broker_id}"

    def _open(self) -> SessionWriter:
        while True:
            document = encode_session(
                self._identity,
                monotonic_ns=self._started_ns,
                wall_ns=self._started_wall_ns,
                program_version=__version__,
            )
            try:
                return SessionWriter(
                    self._path,
                    document=document,
                    base_ts_ns=self._started_ns,
                    segment_records=self._segment_records_max,
                )
            except FileExistsError:
                # Another start within this millisecond has this name.
                if not self._path.is_dir():
                    raise
                time.sleep(0.001)
                self._path = self._new_path()

    async def _close(self) -> None:
        """Write the rest, and close the files."""
        if self._writer is None:
            return
        try:
            self.fact("note", text=CLOSED_NOTE)
            while self._position or self._block.facts or self._full or self._dropped_now:
                await self._write_out()
        except OSError as error:
            log.error("recording incomplete", session=str(self._path), error=error.strerror or str(error))
        await run_in_thread(self._writer.close, abandon_on_cancel=True, limiter=self._limiter)

    def _stop(self) -> None:
        """Drop all later events: the current block counts as full and is not replaced."""
        if self._stopped:
            return
        self._stopped = True
        self._dropped += self._position // RECORD_BYTES
        self._position = self._block_bytes
