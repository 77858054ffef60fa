"""Records that consume queues have and the index lacks.

Theory of operation. The index is optional: queries by key need it, and nothing else. Where it cannot be
written (no room for a file, no descriptor), dispatch goes on with the queues alone, and the backlog begins at
the first record whose keys may be missing. From then on no keys are collected: nothing waits in memory. The
dispatch service completes the index, by walks over the log for keys only, until it is where dispatch is.
Deleted queues do not come back by such a walk, as they would if records were dispatched again.

After a failed sync pages of the index may be lost, also such that an earlier sync has covered. Then the
backlog begins where the files begin that are not known to be on disk. They are deleted before the index is
completed (`IndexRebuild.drop_steps`).

Checkpoints name no offset beyond the backlog's begin, also at a clean stop: the next start finds there where
the index has to be completed from.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from trioha.errors import StoreError
from trioha.store.commit_log import CommitLog
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.index_service import IndexService
from trioha.store.record_entries import AT_END, EntryCollector, Stop
from trioha.store.record_layout import faulty_record_bytes, find_fault
from trioha.unwritten import INDEX, Unwritten

log = structlog.get_logger(__name__)


class IndexBacklog:
    """Where the index of a store is behind its queues. Single-threaded, as the store is."""

    def __init__(
        self,
        commit_log: CommitLog,
        index: IndexService,
        *,
        stretch: Callable[[int, int], memoryview],
        lacks_from: int | None = None,
        unwritten: Unwritten,
    ) -> None:
        """`lacks_from` is where an earlier process left the index behind, None if it did not.

        `stretch` reads bytes from one offset towards another, as dispatch does.
        """
        self._log = commit_log
        self._index = index
        self._stretch = stretch
        self.lacks_from = lacks_from
        """Physical offset of the first record whose keys the index may lack; None if it has all that are
        dispatched. Set by `fail`, moved by `complete`, and back by `cut`."""
        self.is_doubtful = False
        """Whether a sync of the index has failed: files of it have to be deleted before it is completed."""
        self.begun = trio.Event()
        """Set while the index lacks something."""
        if lacks_from is not None:
            self.begun.set()
        self._unwritten = unwritten

    def fail(self, offset: int, reason: str) -> None:
        """The index could not be written: it may lack keys of the record at `offset`, and all after it."""
        self.lacks_from = offset if self.lacks_from is None else min(offset, self.lacks_from)
        self.begun.set()
        consequence = f"queues go on; queries by key find no message from offset {self.lacks_from} on"
        self._unwritten.fail(INDEX, reason, consequence=consequence)

    def drop(self) -> None:
        """No index is kept from now on, or all of it is built again."""
        self.lacks_from = None
        self.is_doubtful = False
        if self.begun.is_set():
            self.begun = trio.Event()
        self._unwritten.succeed(INDEX)

    def cut(self, position: int) -> None:
        """Dispatch goes on at `position`: from there on the index gets all keys."""
        if self.lacks_from is not None and self.lacks_from >= position:
            self.drop()

    def complete(self, until_offset: int, settings: DispatchSettings, *, records_max: int) -> bool:
        """Add keys of up to about `records_max` records that dispatch has passed; False if the disk refuses.

        `until_offset` is where dispatch is: when the walk is there, the backlog ends.
        """
        assert self.lacks_from is not None, "the index lacks nothing"
        if self.is_doubtful:
            return False
        # All before the last record of the index are in it.
        start = max(self.lacks_from, self._index.end_physical_offset, self._log.min_offset)
        if start < until_offset:
            try:
                self.lacks_from = self._walk(start, until_offset, settings, records_max=records_max)
            except StoreError as error:
                self.fail(start, str(error))
                return False
        else:
            self.lacks_from = until_offset
        if self.lacks_from >= until_offset:
            self.drop()
            log.info("the index is complete", until=until_offset)
        return True

    def _walk(self, start: int, until_offset: int, settings: DispatchSettings, *, records_max: int) -> int:
        """Offset after the records whose keys were added. Raises StoreError with nothing changed there."""
        collector = EntryCollector(None, self._index, settings)
        view = self._stretch(start, until_offset)
        found = collector.collect(view, start, records_max=records_max)
        collector.write_index()
        if found.stop is AT_END or (found.stop is Stop.AT_FAULT and found.offset > start):
            # More may follow than was read: the next walk begins with what stopped this one.
            return found.offset
        if found.stop is Stop.AT_FAULT:
            # As dispatch has passed it, which has reported it.
            rest = view[found.offset - start :]
            fault = find_fault(rest, 0, len(rest), found.offset, check_crc=False)
            if fault is not None and (size := faulty_record_bytes(rest, fault)) is not None:
                return found.offset + size
        return min(found.offset - found.offset % self._log.file_bytes + self._log.file_bytes, until_offset)
