"""The checkpoint of a store in use: what it may claim, and when it is replaced.

Theory of operation. Syncs run in worker threads and update the checkpoint when they end. Meanwhile the log
may be cut, or begin anew: what such a sync has put on disk may not be there any more. So cuts are counted, a
sync remembers the count of its begin, and its claim is dropped if the count has changed (`unless_cut`). While
a cut is being put on disk all claims are dropped, since its own syncs have taken over the files with earlier
writes.

A claim that is dropped, or cannot be written, does no harm: the older checkpoint is still true, and the next
start only checks more records. A checkpoint that has to be lowered is on disk before what it claimed is
deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import evolve

from trioha.store.checkpoint import Checkpoint, CheckpointFile
from trioha.store.commit_log import CommitLog
from trioha.store.index_service import IndexCut
from trioha.store.mapped_file import DISK_FULL
from trioha.store.time_steps import LEAD_MS_MAX
from trioha.unwritten import CHECKPOINT, Unwritten

_SPACING_MS = 1000
"""Between two writes for syncs of the log, as in the broker; recovery allows for 3 s."""


class Checkpoints:
    """Keeps a store's checkpoint. Syncs call it from worker threads, all else from the store's."""

    def __init__(
        self, file: CheckpointFile, current: Checkpoint, *, commit_log: CommitLog, unwritten: Unwritten
    ) -> None:
        """`current` is what `file` has."""
        self._file = file
        self._current = current
        self._log = commit_log
        self._unwritten = unwritten
        self._lock = threading.Lock()
        self._cuts = 0
        self._is_cutting = False
        """Whether a cut has not put all of queues and index on disk yet, or never could."""
        self._confirm_offset: Callable[[], int] = lambda: 0
        self._noted_confirm_offset = current.confirm_physical_offset
        """For the next checkpoint."""

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    @property
    def current(self) -> Checkpoint:
        """The checkpoint as it is on disk; a full disk may have an older one since the opening."""
        return self._current

    # -- what a sync may claim -----------------------------------------------------------------------------

    @property
    def cuts(self) -> int:
        """Counts cuts and restarts of the log; for `unless_cut`."""
        return self._cuts

    def is_cut_since(self, cuts: int) -> bool:
        """Whether the log was cut since that count, or is being cut."""
        return cuts != self._cuts or self._is_cutting

    def confirm_offset(self) -> int:
        """The confirm offset, 0 if none is known; for a moment after a cut it may be beyond the log's end."""
        return self._confirm_offset()

    def follow_confirm_offset(self, source: Callable[[], int]) -> None:
        """Have the next checkpoints name the offset that `source` gives, in the store's thread."""
        self._confirm_offset = source

    def note_confirm_offset(self) -> None:
        """Called where a sync begins, in the store's thread: its tasks move the confirm offset."""
        self._noted_confirm_offset = min(self._confirm_offset(), self._log.max_offset)

    def claimed_ms(self, store_timestamp_ms: int) -> int:
        """What to say of a log that is on disk up to a record of that store time.

        Not more than the clock: by a record that leads it, all later ones would count as being on disk, too.
        """
        return min(store_timestamp_ms, self._log.now_ms() + LEAD_MS_MAX)

    @contextmanager
    def unless_cut(self, cuts: int) -> Iterator[bool]:
        """Whether what was on disk at a moment is still there, and is until the block ends.

        `cuts` is the count of that moment. Blocks while another thread is in such a block.
        """
        with self._lock:
            yield not self.is_cut_since(cuts)

    def claim_log(self, cuts: int, claimed_ms: int) -> None:
        """The log is on disk up to a record of that store time, 0 to claim nothing. Blocks.

        Store times may go back.
        """
        if claimed_ms and abs(claimed_ms - self._current.physic_msg_timestamp_ms) >= _SPACING_MS:
            self.save(cuts, physic_msg_timestamp_ms=claimed_ms)

    def save(self, cuts: int, **changes: int) -> None:
        """Replace fields of the checkpoint, unless the log was cut since. Blocks.

        What cannot be written is reported, and the older checkpoint stays.
        """
        with self.unless_cut(cuts) as is_true:
            if not is_true:
                return
            changed = evolve(self._current, confirm_physical_offset=self._noted_confirm_offset, **changes)
            try:
                self._file.save(changed)
            except OSError as error:
                self._report(error)
            else:
                self._current = changed
                self._unwritten.succeed(CHECKPOINT)

    # -- what has to be taken back -------------------------------------------------------------------------

    def begin_cut(self) -> None:
        """Drop the claims of all syncs that run, and of those that begin, until `end_cut`."""
        with self._lock:
            self._cuts += 1
            self._is_cutting = True

    def end_cut(self) -> None:
        """All of a cut is on disk."""
        self._is_cutting = False

    def reset(self) -> None:
        """Claim nothing: the log is about to begin anew. Blocks. Raises OSError."""
        with self._lock:
            self._cuts += 1
            self._replace(Checkpoint())

    def lower_at_opening(self, logics_offset: int, logics_ms: int, index_cut: IndexCut) -> None:
        """Claim only what an opening found in queues and index. Blocks. Raises OSError.

        `logics_offset` and `logics_ms` are the latest logicsPhysicalOffset and logicsMsgTimestamp that are
        true when the files of `index_cut` are deleted. They can be deleted, and all that is missing can be
        built again, when this is on disk: another stop may leave only some of it, and the next start has to
        dispatch from the same position.
        """
        lowered = self._lowered(logics_offset, logics_ms, index_cut)
        if self._log.is_empty:
            # The next log's records are not on disk because older ones were.
            lowered = evolve(lowered, physic_msg_timestamp_ms=0)
        if lowered == self._current:
            return
        try:
            self._replace(lowered)
        except OSError as error:
            # It must not prevent an opening.
            if error.errno not in DISK_FULL:
                raise
            self._report(error)

    def lower_to_end(self, logics_offset: int, logics_ms: int, index_cut: IndexCut) -> None:
        """Claim nothing beyond the log's end, which was cut. Blocks. Raises OSError.

        As `lower_at_opening`, but a full disk is no reason here to go on with the old claims: they are wrong.
        """
        log = self._log
        with self._lock:
            # Syncs that began during the cut may have seen the old checkpoint.
            self._cuts += 1
            lowered = self._lowered(logics_offset, logics_ms, index_cut)
            self._replace(
                evolve(
                    lowered,
                    physic_msg_timestamp_ms=min(lowered.physic_msg_timestamp_ms, log.last_store_timestamp_ms),
                    master_flushed_offset=min(lowered.master_flushed_offset, log.max_offset),
                    confirm_physical_offset=min(lowered.confirm_physical_offset, log.max_offset),
                )
            )

    def lower_for_index(self, cuts: int, lacks_from: int, logics_ms: int, index_cut: IndexCut) -> None:
        """The index lacks keys from `lacks_from` on when the files of `index_cut` are deleted.

        Blocks. Raises OSError. Does nothing if the log was cut since.
        """
        with self.unless_cut(cuts) as is_true:
            if is_true:
                offset = min(lacks_from, self._current.logics_physical_offset)
                self._replace(self._lowered(offset, logics_ms, index_cut))

    def _lowered(self, logics_offset: int, logics_ms: int, index_cut: IndexCut) -> Checkpoint:
        before = self._current
        return evolve(
            before,
            logics_physical_offset=logics_offset,
            logics_msg_timestamp_ms=min(before.logics_msg_timestamp_ms, logics_ms) if logics_offset else 0,
            index_msg_timestamp_ms=min(before.index_msg_timestamp_ms, index_cut.full_until_ms),
        )

    def _replace(self, checkpoint: Checkpoint) -> None:
        self._current = checkpoint
        self._file.save(checkpoint)

    def _report(self, error: OSError) -> None:
        reason = f"{self._file.path}: {error.strerror}"
        self._unwritten.fail(CHECKPOINT, reason, consequence="a start after a crash checks more of the log")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
