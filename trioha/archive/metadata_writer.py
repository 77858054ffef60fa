"""Archiving the config files of a store's broker: once for each change of them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from attrs import evolve

from trioha.archive.config_files import digest_of
from trioha.archive.documents import document_for
from trioha.archive.draft import Draft
from trioha.archive.errors import MissingObjectError
from trioha.archive.layout import MetadataContent, MetadataObject, metadata_key
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.store.time_steps import leads


class MetadataWriter:
    """Stores metadata objects of one archive. Everything here blocks, and raises ArchiveError."""

    def __init__(self, folder: ObjectFolder) -> None:
        self._folder = folder
        self._newest: tuple[str, bytes] | None = None
        """A generation's id and the digest of its newest config files, empty without any."""

    def forget(self) -> None:
        """What the archive has is not known."""
        self._newest = None

    def store(self, draft: Draft, files: Mapping[str, str], now_ms: int) -> None:
        """Store the config files, which were read before the log's end was, unless they are the newest."""
        generation = draft.generation
        if not files:
            return
        if self._newest is None or self._newest[0] != generation.id:
            self._newest = (generation.id, self._digest_of_newest(draft))
        newest = (generation.id, digest_of(files))
        if newest == self._newest:
            return
        offset = generation.end_offset
        newest_ms = generation.metadata[-1].taken_ms if generation.metadata else 0
        # In order, as long as the clock was not wrong before.
        taken_ms = now_ms if leads(newest_ms, now_ms) else max(now_ms, newest_ms)
        key = metadata_key(generation.id, offset=offset, taken_ms=taken_ms, token=secrets.token_hex(4))
        content = MetadataContent(taken_ms=taken_ms, offset=offset, files=dict(files))
        data = document_for(self._folder, key, content)
        self._folder.put(key, data)
        one = MetadataObject(key=key, taken_ms=taken_ms, offset=offset, bytes=len(data))
        draft.generation = evolve(generation, metadata=(*generation.metadata, one))
        self._newest = newest

    def _digest_of_newest(self, draft: Draft) -> bytes:
        reader = ArchiveReader(self._folder, draft.head)
        newest = next(reader.metadata(draft.generation), None)
        try:
            return b"" if newest is None else digest_of(reader.metadata_files(newest).files)
        except MissingObjectError:
            return b""
