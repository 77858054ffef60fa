"""Writes the files of a session, in the recorder's worker thread.

Records arrive in blocks, complete but for two fields that are filled in here: `check`, and `seq`, so that
dropped events and inserted keyframes leave no gap in the numbers. A block reaches the file in one `write`.
Nothing is buffered and nothing is written twice, so a process that is killed leaves whole records and at
most one torn record.
"""

from __future__ import annotations

from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from shutil import rmtree

from attrs import define, field

from trioha.recording import compiled_events
from trioha.recording.events import RECORD, RECORD_BYTES
from trioha.recording.keyframes import KeyframeBuilder
from trioha.recording.layout import (
    EVENTS_FOLDER,
    FACTS_FILE,
    HEADER_BYTES,
    SESSION_FILE,
    encode_header,
    segment_name,
)

Run = tuple[int, int, int, int, bytes, int, int, int]
"""Events of a run of puts, whose places in a block are left for them: position in bytes, time in ns, word of
the first event of each put, word of its second one or 0 if it has one, `put_offsets` of the puts, end of the
last put, request id of the first, size field of each put's last event. A word is kind, flags, node and
connection."""


@define(eq=False)
class Block:
    """Records and facts in the order in which they were reported."""

    buffer: bytearray
    used_bytes: int = 0
    """Whole records in `buffer`."""
    facts: list[tuple[int, str]] = field(factory=list)
    """Index of the record after each fact, and the fact's JSON object without the seq."""
    rolls: bool = False
    """Whether a new segment begins with this block."""
    runs: list[Run] = field(factory=list)
    """What is not in `buffer` yet."""
    written_records: int = 0
    """Of `buffer`; less than all if the disk has refused the rest."""


class SessionWriter:
    """Writes one session folder. Used by one thread at a time; every method may block on the disk.

    After an OSError a record or a line may be torn. The next write cuts it off first, and goes on there.
    """

    def __init__(self, path: Path, *, document: bytes, base_ts_ns: int, segment_records: int) -> None:
        """Make the folder `path`, which must not exist yet, with `document` as its `session.json`.

        Raises OSError (FileExistsError if the folder exists); there is no folder then that was not before.
        """
        path.mkdir(parents=True)
        self._path = path
        self._segment_records_max = segment_records
        self._keyframe_builder = KeyframeBuilder()
        self._next_seq = 0
        self._segment_records = 0
        self._rolls = False
        self._is_torn = False
        self._facts_bytes = 0
        with ExitStack() as undo:
            undo.callback(rmtree, path, ignore_errors=True)
            (path / EVENTS_FOLDER).mkdir()
            _create_atomically(path / SESSION_FILE, document)
            # Open for the session's life, and closed by `close`.
            self._facts: FileIO = FileIO(path / FACTS_FILE, "xb")
            undo.callback(self._facts.close)
            self._segment = self._new_segment(base_ts_ns)
            undo.pop_all()

    @property
    def next_seq(self) -> int:
        """How many records were written, keyframes included."""
        return self._next_seq

    def write(self, block: Block) -> None:
        """Append `block`. Raises OSError; the same block has to be written next then, for what is missing."""
        try:
            if self._is_torn:
                self._cut_off()
            self._write_block(block)
        except OSError:
            self._is_torn = True
            raise

    def close(self) -> None:
        """Close the files."""
        self._segment.close()
        self._facts.close()

    def _cut_off(self) -> None:
        """Drop what a write that failed has left behind the whole records and lines."""
        whole_bytes = HEADER_BYTES + self._segment_records * RECORD_BYTES
        for file, end in ((self._segment, whole_bytes), (self._facts, self._facts_bytes)):
            # A segment is closed if the one after it could not be made.
            if not file.closed:
                file.seek(end)
                file.truncate()
        self._is_torn = False

    def _write_block(self, block: Block) -> None:
        self._rolls |= block.rolls
        block.rolls = False
        if block.used_bytes == 0:
            self._write_facts(block, len(block.facts), self._next_seq)
            return
        if block.runs:
            self._fill(block)
        records = memoryview(block.buffer)[: block.used_bytes]
        count = block.used_bytes // RECORD_BYTES
        while (done := block.written_records) < count:
            if self._rolls or self._segment_records >= self._segment_records_max:
                # Until the segment has its keyframes.
                self._rolls = True
                self._roll(RECORD.unpack_from(records, done * RECORD_BYTES)[0])
                self._rolls = False
            # A new segment may be full of keyframes already: at least one record is written to it.
            room = max(1, self._segment_records_max - self._segment_records)
            end = min(count, done + room)
            here = sum(index <= end for index, _ in block.facts)
            self._write_facts(block, here, self._next_seq - done)
            part = records[done * RECORD_BYTES : end * RECORD_BYTES]
            self._append(part)
            self._keyframe_builder.add(part)
            block.written_records = end

    @staticmethod
    def _fill(block: Block) -> None:
        """Write the events of runs to the places that were left for them."""
        for position, time_ns, word, second_word, put_offsets, end_offset, request_id, value in block.runs:
            events = compiled_events.encode_run(
                time_ns, word, second_word, put_offsets, end_offset, request_id, value
            )
            end = position + len(events)
            assert end <= len(block.buffer), f"a run ends at {end} of {len(block.buffer)} bytes"
            block.buffer[position:end] = events
        block.runs.clear()

    def _roll(self, ts_ns: int) -> None:
        self._segment.close()
        self._segment = self._new_segment(ts_ns)
        frames = self._keyframe_builder.keyframes(ts_ns)
        if frames:
            self._append(memoryview(frames))

    def _new_segment(self, base_ts_ns: int) -> FileIO:
        # There is one already if an earlier try could not write its header or its keyframes.
        segment = FileIO(self._path / EVENTS_FOLDER / segment_name(self._next_seq), "wb")
        try:
            _write_all(segment, encode_header(base_seq=self._next_seq, base_ts_ns=base_ts_ns))
        except OSError:
            segment.close()
            raise
        self._segment_records = 0
        return segment

    def _append(self, records: memoryview) -> None:
        count = len(records) // RECORD_BYTES
        records[:] = compiled_events.number_events(bytes(records), self._next_seq)
        _write_all(self._segment, records)
        self._next_seq += count
        self._segment_records += count

    def _write_facts(self, block: Block, count: int, base_seq: int) -> None:
        """Append the first facts of a block, which loses them."""
        # Before the records that they explain, so that a reader of a connection's events knows its peer.
        if count:
            facts = block.facts[:count]
            lines = "".join(f'{{"seq": {base_seq + index}, {text[1:]}\n' for index, text in facts).encode()
            _write_all(self._facts, lines)
            self._facts_bytes += len(lines)
            del block.facts[:count]


def _write_all(file: FileIO, data: bytes | memoryview) -> None:
    written = file.write(data)
    while written < len(data):
        # On a full disk the first write is short, and only the next one raises.
        written += file.write(memoryview(data)[written:])


def _create_atomically(path: Path, data: bytes) -> None:
    """Create a file atomically: whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
