"""Upkeep of the newest generation: small objects are merged, and what does not change any more is sealed."""

from __future__ import annotations

import secrets
from typing import Final

from attrs import evolve

from trioha.archive.context import ArchiveContext
from trioha.archive.documents import document_for
from trioha.archive.draft import Draft
from trioha.archive.errors import ChangedSourceError
from trioha.archive.layout import Generation, Page, PageContent, page_key, page_of
from trioha.archive.log_writer import LogWriter
from trioha.archive.merging import THIN_AFTER_MS, Group, due_merges, groups_of, thinned, whole_objects
from trioha.archive.objects import ObjectFolder
from trioha.archive.source import LogSource

MERGED_OBJECTS_MAX: Final = 2
"""Large objects that one step makes of small ones: the next step is not to wait for more."""
METADATA_MAX: Final = 1024
"""Metadata in a head after which a page is sealed, although it has few objects."""


class Upkeep:
    """Merges and seals. Everything here blocks, and raises ArchiveError."""

    def __init__(self, context: ArchiveContext, source: LogSource, writer: LogWriter) -> None:
        self._context = context
        self._settings = context.settings
        self._source = source
        self._writer = writer

    def merge(self, draft: Draft) -> bool:
        """Replace small objects by merged ones, up to about `MERGED_OBJECTS_MAX` large ones in a step.

        Returns whether the store still has the bytes that were archived, as far as they were read there.
        """
        is_same = True
        left = MERGED_OBJECTS_MAX * self._settings.object_bytes_max
        for run in due_merges(self._groups(draft.generation), merge_objects=self._settings.merge_objects):
            if left <= 0 or self._context.is_stopping():
                break
            generation = draft.generation
            try:
                from_source = self._source.has(run[0].first_offset, run[-1].end_offset)
                merged = self._writer.store_merged(draft, run, from_source=from_source)
            except ChangedSourceError:
                # The archive has what was checked.
                is_same = False
                merged = self._writer.store_merged(draft, run, from_source=False)
            left -= merged.log_bytes
            at = generation.objects.index(run[0])
            objects = (*generation.objects[:at], merged, *generation.objects[at + len(run) :])
            draft.generation = evolve(generation, objects=objects)
            draft.merged += len(run)
            draft.dropped += [one.key for one in run]
        return is_same

    def _groups(self, generation: Generation) -> list[Group]:
        return groups_of(
            generation.objects,
            bytes_max=self._settings.object_bytes_max,
            file_bytes=generation.file_bytes,
        )

    def seal(self, draft: Draft, now_ms: int) -> None:
        """Thin metadata out, and move merged objects and old metadata from the head to pages."""
        metadata, dropped = thinned(draft.generation.metadata, now_ms=now_ms)
        draft.generation = evolve(draft.generation, metadata=metadata)
        draft.dropped += [one.key for one in dropped]
        while True:
            generation = draft.generation
            whole = whole_objects(self._groups(generation))[: self._settings.page_objects]
            is_long = bool(whole) and len(generation.metadata) > METADATA_MAX
            if len(whole) < self._settings.page_objects and not is_long:
                return
            old = tuple(
                one
                for one in generation.metadata
                if one.offset <= whole[-1].end_offset and one.taken_ms < now_ms - THIN_AFTER_MS
            )
            if is_long and len(whole) < self._settings.page_objects and not old:
                return
            content = PageContent(objects=tuple(whole), metadata=old)
            draft.generation = evolve(
                generation,
                pages=(*generation.pages, store_page(self._context.folder, generation, content)),
                objects=generation.objects[len(whole) :],
                metadata=generation.metadata[len(old) :],
            )


def store_page(folder: ObjectFolder, generation: Generation, content: PageContent) -> Page:
    """Store a page of a generation. Raises ArchiveError."""
    key = page_key(generation.id, first_offset=content.objects[0].first_offset, token=secrets.token_hex(4))
    folder.put(key, document_for(folder, key, content))
    return page_of(key, content.objects)
