"""Deleting what an archive does not need any more: old heads, dropped objects, and objects without a head.

An object goes some minutes after the head that dropped it, so that readers with an older head finish. What an
archiver leaves when it ends (dropped objects that were not deleted yet, objects and uploads without a head)
is found by a sweep over all keys, at the age of a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trioha.archive.context import ArchiveContext
from trioha.archive.errors import ArchiveError
from trioha.archive.heads import old_heads
from trioha.archive.layout import HEADS, LOG, METADATA, PAGES, RECORDINGS, Head
from trioha.archive.reader import ArchiveReader
from trioha.archive.retention import keys_of, recording_keys, unreferenced

_HEADS_PER_DELETION: Final = 10


class Deletion:
    """Deletes objects of one archive. Everything here blocks, and raises a transient ArchiveError."""

    def __init__(self, context: ArchiveContext) -> None:
        self._context = context
        self._folder = context.folder
        self._settings = context.settings
        self._clock = context.clock
        self._dropped: list[tuple[float, str]] = []
        """Keys to be deleted and since when (monotonic) no head refers to them."""
        self._may_delete = True
        """Whether the last deletion was not refused."""
        self._sweep_s = 0.0
        """When to look for objects without a head again (monotonic)."""

    def begin(self) -> None:
        """What this writer's forerunner has dropped is still being read: no sweep before that has ended."""
        self._sweep_s = self._context.monotonic() + self._settings.delete_after_s

    def add(self, keys: Sequence[str]) -> None:
        """Keys that no head refers to from now on."""
        now_s = self._context.monotonic()
        self._dropped += [(now_s, key) for key in keys]

    def run(self, head: Head) -> int:
        """Delete what is due beside the newest `head`; how many objects."""
        now_s = self._context.monotonic()
        if head.number % _HEADS_PER_DELETION == 0:
            self._delete(old_heads(self._folder, head.number))
        due = [key for since_s, key in self._dropped if now_s - since_s >= self._settings.delete_after_s]
        deleted = self._delete(unreferenced(ArchiveReader(self._folder, head), head, due))
        # What may not be deleted now is found again by `_sweep`.
        self._dropped = self._dropped[len(due) :]
        if now_s < self._sweep_s:
            return deleted
        self._sweep_s = now_s + self._settings.sweep_s
        return deleted + self._sweep(head)

    def _sweep(self, head: Head) -> int:
        """Delete objects that no head refers to, and unfinished ones, older than a day; how many."""
        if self._clock.doubt:
            return 0
        reader = ArchiveReader(self._folder, head)
        known = {key for generation in head.generations for key in keys_of(reader, generation)}
        known.update(recording_keys(head))
        known.update(key for _, key in self._dropped)
        old_ms = self._clock.past_ms() - round(self._settings.orphan_s * 1000)
        orphans = [
            one.key
            for kind in (LOG, METADATA, PAGES, RECORDINGS)
            for one in self._folder.list(kind)
            if one.modified_ms < old_ms and one.key not in known
        ]
        unfinished = sum(
            self._folder.delete_unfinished(kind, before_ms=old_ms)
            for kind in (LOG, METADATA, PAGES, RECORDINGS, HEADS)
        )
        return unfinished + self._delete(orphans)

    def _delete(self, keys: Sequence[str]) -> int:
        """Delete objects; how many. A refusal is reported once and ends nothing: the archive is whole.

        Credentials that may write and not delete are a protection. Until a deletion succeeds again only one
        object is tried at a time.
        """
        if not keys:
            return 0
        if not self._may_delete:
            keys = keys[:1]
        try:
            self._folder.delete(keys)
        except ArchiveError as error:
            if error.is_transient:
                raise
            if self._may_delete:
                self._context.notify(f"nothing is deleted in the archive, which goes on: {error}")
            self._may_delete = False
            return 0
        self._may_delete = True
        return len(keys)
