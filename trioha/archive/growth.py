"""How an archive's newest generation grows with the log, and when another one begins.

Whether a store continues a generation is compared with the archive once, and again when something suggests
another history: an archiver that has begun or failed, a log that goes on after a place where it had ended, a
log that has nothing, or no record, at the archived end.
"""

from __future__ import annotations

import secrets
from typing import Final

from attrs import evolve

from trioha.archive.context import ArchiveContext
from trioha.archive.continuation import (
    Continuation,
    continuation_of,
    has_last_record,
    is_completed,
    is_in,
    newest_object,
)
from trioha.archive.draft import Draft
from trioha.archive.errors import ChangedSourceError, DamagedSourceError
from trioha.archive.layout import Generation
from trioha.archive.log_writer import LogWriter
from trioha.archive.reader import ArchiveReader
from trioha.archive.source import LogSource

_READS_MAX: Final = 3
"""Attempts to read bytes that change between their check and their reading."""


class Growth:
    """Adds the log to the newest generation of a draft. Everything here blocks, and raises ArchiveError."""

    def __init__(self, context: ArchiveContext, source: LogSource, writer: LogWriter) -> None:
        self._context = context
        self._settings = context.settings
        self._source = source
        self._writer = writer
        self._continues = False
        """Whether the store is known to continue the newest generation."""
        self._checked_s = 0.0
        """When that was found out (monotonic)."""
        self._is_unsure = False
        """Whether nothing followed the newest object's last record when it was archived."""

    def forget(self) -> None:
        """What the archive has of the newest generation is not known."""
        self._continues = self._is_unsure = False

    def doubt(self) -> None:
        """The store may not continue the newest generation: compare both before the next part."""
        self._continues = False

    def ensure_generation(self, draft: Draft, now_ms: int) -> bool:
        """Whether there is a generation to add to; begin one if the store does not continue the newest."""
        first = self._source.first_offset
        if first is None:
            return False
        if draft.head.generations and self._continues:
            end = draft.generation.end_offset
            # Any log of this file size has a record where a file begins.
            if first <= end and end % draft.generation.file_bytes:
                return True
        found = continuation_of(ArchiveReader(self._context.folder, draft.head), self._source)
        self._continues = True
        self._checked_s = self._context.monotonic()
        if found is not None:
            self._begin(draft, found, now_ms)
        return True

    def _begin(self, draft: Draft, found: Continuation, now_ms: int) -> None:
        number = int(draft.generation.id.split("-")[0]) + 1 if draft.head.generations else 1
        generation = Generation(
            id=f"{number:04d}-{secrets.token_hex(4)}",
            began_ms=now_ms,
            reason=found.reason,
            file_bytes=self._source.file_bytes,
            first_offset=found.first_offset,
            pages=found.pages,
            objects=found.objects,
            metadata=found.metadata,
        )
        draft.head = evolve(draft.head, generations=(*draft.head.generations, generation))
        draft.began = found.reason

    def grow(self, draft: Draft, now_ms: int) -> DamagedSourceError | None:
        """Archive the log up to its present end, or to damage, which is returned."""
        if not self._has_last_record(draft):
            # It was cut before the archived end and has grown beyond it: what follows is another history.
            self._continues = False
            self.ensure_generation(draft, now_ms)
        damage = self._archive_parts(draft)
        is_idle = not draft.objects and self._context.monotonic() - self._checked_s >= self._settings.renew_s
        if damage is None and not is_idle:
            return None
        # Where the archive ends the log has nothing, or no record: perhaps it was cut and written again.
        self._continues = False
        self.ensure_generation(draft, now_ms)
        return damage if draft.began is None else self._archive_parts(draft)

    def _has_last_record(self, draft: Draft) -> bool:
        """Whether what the store has after the archived end follows the record that is archived before it.

        If the broker was still writing that record, the newest object is dropped, to be archived again.
        """
        is_unsure, self._is_unsure = self._is_unsure, False
        goes_on = self._source.goes_on(draft.generation.end_offset)
        if not is_unsure and not goes_on:
            return True
        reader = ArchiveReader(self._context.folder, draft.head)
        newest = newest_object(reader, draft.generation)
        # A store that begins at the archived end has nothing to compare.
        if newest is None or not self._source.has(newest.first_offset, newest.end_offset):
            return True
        if is_in(self._source, newest) or (goes_on and has_last_record(reader, self._source, newest)):
            return True
        objects = draft.generation.objects
        if is_unsure and objects and is_completed(reader, self._source, newest):
            shorter = evolve(draft.generation, objects=objects[:-1])
            before = newest_object(reader, shorter)
            # An object of one record does not show whether the log before it is the same.
            if before is None or is_in(self._source, before):
                draft.generation = shorter
                draft.dropped.append(newest.key)
                return True
        return not goes_on

    def _archive_parts(self, draft: Draft) -> DamagedSourceError | None:
        bytes_max = self._settings.object_bytes_max
        changed = 0
        while not self._context.is_stopping() and draft.log_bytes < self._settings.step_bytes_max:
            generation = draft.generation
            try:
                part = self._source.next_part(generation.end_offset, bytes_max=bytes_max)
                if part is None:
                    return None
                one = self._writer.store(draft, part)
                draft.generation = evolve(generation, objects=(*generation.objects, one))
                draft.objects += 1
                draft.log_bytes += part.log_bytes
                if part.reaches_end:
                    self._is_unsure = not self._source.goes_on(part.end_offset)
                    self._source.check_end(part.end_offset, bytes_max=bytes_max)
                    return None
            except DamagedSourceError as error:
                return error
            except ChangedSourceError:
                # The broker was writing it, or has cut its log.
                changed += 1
                if changed == _READS_MAX:
                    raise
        draft.is_more_waiting = True
        return None
