"""Records what a node does, without getting in its way.

Theory of operation. `emit` packs an event into the current block of memory, a bytearray that exists
already, and that is all: no lock, no allocation of its own, no I/O. `Recorder.run` hands blocks to a worker
thread, which numbers and checks their records and writes each with one call: a full block at once, a partly
filled one after `FLUSH_INTERVAL_S`. There is a fixed number of blocks. If the disk is so slow that all of
them wait for it, events are dropped and counted, and one DROPPED record takes their place in the recording.
If the disk fails, that is logged once, recording ends, and the node goes on: replication never depends on its
recording.

A recorder belongs to the trio thread. Run it in a nursery around everything that reports to it, so that it is
cancelled last: what is emitted after its `run` has ended goes nowhere but into `dropped`.
"""

from __future__ import annotations

import json
import re
import struct
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from trioha import __version__
from trioha.errors import ConfigError, StoreError
from trioha.net.threads import run_in_thread
from trioha.recording.events import NO_CONNECTION, RECORD, RECORD_BYTES, Kind
from trioha.recording.layout import CLOSED_NOTE, NODE_ID_MAX, SessionIdentity, encode_session
from trioha.recording.writer import Block, SessionWriter

log = structlog.get_logger(__name__)

FLUSH_INTERVAL_S: Final = 0.2
"""Longest time in which an event stays in memory while the disk keeps up."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long the end of a session may wait for the disk."""
SEGMENT_RECORDS_MAX: Final = 2_000_000
"""Records of a segment, keyframes included."""
BLOCK_RECORDS: Final = 1365
"""Records of a block: 64 KiB."""
BLOCKS_MAX: Final = 64
"""Blocks of a recorder, 4 MiB in all: half a second of 170,000 events a second."""
FACTS_MAX: Final = 1024
"""Facts that a block can take along."""

_LIMITS: Final = {
    # Of the fields of a record, for values that do not fit one.
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
    ) -> None:
        """Record below `directory` (trioha.recordDir), in a folder of its own for each start of the node.

        `node_id` (brokerId) stands in every record. Nothing is written before `run`, but events can be
        reported already. Raises ConfigError if `node_id` does not fit a record.
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
        self._identity = identity
        self._node_id = node_id
        self._segment_records_max = segment_records_max
        self._clock_ns = clock_ns
        self._wall_ns = wall_ns
        self._block_bytes = block_records * RECORD_BYTES
        self._free = [Block(bytearray(self._block_bytes)) for _ in range(blocks_max)]
        self._full: deque[Block] = deque()
        self._block = self._free.pop()
        # Of the current block, kept here for speed: its memory, and where the next record goes in it.
        self._buffer = self._block.buffer
        self._position = 0
        self._dropped_now = 0
        """Dropped since the last DROPPED record."""
        self._dropped = 0
        # What lies in the line for the disk is the difference: each number has one thread that changes it.
        self._queued_records = 0
        """Records of all blocks that were put in the line; changed by the trio thread."""
        self._written_records = 0
        """Those of them that the disk has; changed by the worker thread."""
        self._rolls = False
        """Whether the next block begins a segment."""
        self._stopped = False
        self._wake = trio.Event()
        self._writer: SessionWriter | None = None
        # One write at a time, also while an abandoned one still hangs in the disk.
        self._limiter = trio.CapacityLimiter(1)
        self._path = self._new_path()

    @property
    def path(self) -> Path:
        """The session's folder; its name sorts by time. It is there once `run` has started."""
        return self._path

    @property
    def recorded(self) -> int:
        """How many records are written, keyframes included."""
        return 0 if self._writer is None else self._writer.next_seq

    @property
    def dropped(self) -> int:
        """How many events and facts found no room, or no recording any more.

        After the end of the recording what waits for the disk counts, until the disk takes it after all.
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
        """Record one event, stamped with the monotonic clock now (about half a microsecond).

        A value beyond its field is recorded as the nearest one that fits.
        """
        position = self._position
        if position == self._block_bytes:
            if not self._next_block():
                self._drop()
                return
            position = self._position
        try:
            RECORD.pack_into(
                self._buffer,
                position,
                self._clock_ns(),
                0,
                kind,
                flags,
                self._node_id,
                conn,
                offset,
                aux,
                size,
                0,
            )
        except struct.error:
            self._emit_nearest(kind=kind, conn=conn, offset=offset, aux=aux, size=size, flags=flags)
            return
        self._position = position = position + RECORD_BYTES
        if position == self._block_bytes:
            self._next_block()

    def fact(self, type_: str, **fields: object) -> None:
        """Record a fact; it stands before the next event. What JSON cannot say is written as `str` has it."""
        block = self._block
        if len(block.facts) >= FACTS_MAX:
            self._drop()
            return
        text = json.dumps({"type": type_, **fields}, default=str)
        block.facts.append((self._position // RECORD_BYTES, text))

    def roll(self) -> None:
        """Begin a new segment with the next event, so that those before it can be taken away."""
        if self._position == 0:
            self._block.rolls = True
        else:
            self._rolls = True
            self._next_block()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the session until cancelled; then write what is left (at most `CLOSE_TIMEOUT_S`) and close.

        Started once the session's folder is there. Raises StoreError if it cannot be made. Returns early,
        after logging it, if the disk fails later.
        """
        try:
            writer = await run_in_thread(self._open)
        except OSError as error:
            raise StoreError(
                f"cannot record here: {error.strerror or error}",
                path=self._directory,
                hint="trioha.recordDir must name a folder that this user can write to",
            ) from error
        self._writer = writer
        log.info("recording", session=str(self._path))
        task_status.started()
        try:
            while True:
                with trio.move_on_after(FLUSH_INTERVAL_S):
                    await self._wake.wait()
                await self._write_out(writer)
        except OSError as error:
            self._stop()
            log.error(
                "recording ended, replication goes on",
                session=str(self._path),
                error=error.strerror or str(error),
                recorded=writer.next_seq,
            )
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + CLOSE_TIMEOUT_S) as closing:
                await self._close(writer)
            self._stop()
            if closing.cancelled_caught:
                log.error("recording cut off: the disk does not take it", session=str(self._path))

    # -- blocks ------------------------------------------------------------------------------------------

    def _next_block(self) -> bool:
        """Put the current block into the line for the disk and take a free one, if there is one."""
        if self._stopped or not self._free:
            return False
        self._block.used_bytes = self._position
        self._queued_records += self._position // RECORD_BYTES
        self._full.append(self._block)
        self._block = block = self._free.pop()
        self._buffer = block.buffer
        self._position = 0
        block.rolls, self._rolls = self._rolls, False
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

    async def _write_out(self, writer: SessionWriter) -> None:
        """Write all that was reported until now. Raises OSError.

        If cancelled, a thread that is in the disk already goes on, and whoever writes next waits for it; what
        it has not taken yet stays in line. Nothing is lost.
        """
        self._wake = trio.Event()
        if self._position or self._block.facts or self._dropped_now:
            self._next_block()
        if not self._full:
            return
        await run_in_thread(partial(self._drain, writer), abandon_on_cancel=True, limiter=self._limiter)
        if self._position == self._block_bytes:
            # It filled up while no block was free.
            self._next_block()

    def _drain(self, writer: SessionWriter) -> None:
        """Write the blocks in line and set them free: runs in a worker thread.

        The trio thread appends to `_full` and pops from `_free`, this one does the reverse, and each of these
        is atomic; neither looks through them. When the recorder has given up, this ends with its block.
        """
        full = self._full
        while full and not self._stopped:
            block = full[0]
            writer.write(block)
            full.popleft()
            self._written_records += block.used_bytes // RECORD_BYTES
            block.used_bytes = 0
            block.facts.clear()
            block.rolls = False
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
                monotonic_ns=self._clock_ns(),
                wall_ns=self._wall_ns(),
                program_version=__version__,
            )
            try:
                return SessionWriter(
                    self._path,
                    document=document,
                    base_ts_ns=self._clock_ns(),
                    segment_records=self._segment_records_max,
                )
            except FileExistsError:
                # Another start within this millisecond has the name.
                if not self._path.is_dir():
                    raise
                time.sleep(0.001)
                self._path = self._new_path()

    async def _close(self, writer: SessionWriter) -> None:
        """Write what is left, unless the disk has failed, and close the files."""
        try:
            if not self._stopped:
                self.fact("note", text=CLOSED_NOTE)
                while self._position or self._block.facts or self._full or self._dropped_now:
                    await self._write_out(writer)
            await run_in_thread(writer.close, abandon_on_cancel=True, limiter=self._limiter)
        except OSError as error:
            log.error("recording incomplete", session=str(self._path), error=error.strerror or str(error))

    def _stop(self) -> None:
        """From here on every event is dropped: the current block counts as full, and no other is taken."""
        if self._stopped:
            return
        self._stopped = True
        self._dropped += self._position // RECORD_BYTES
        self._position = self._block_bytes
