"""Storing parts of the log as objects.

An object's key names its bytes (offsets and CRC), so an object that an earlier attempt has stored without a
head is found by its key, and not sent again. Bytes that a broker may still change are read again as they are
sent, and compared with those that were checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from tempfile import TemporaryFile
from typing import Final

from attrs import evolve
from isal.isal_zlib import crc32

from trioha.archive.draft import Draft
from trioha.archive.errors import ArchiveError, ChangedSourceError
from trioha.archive.layout import FRAME_BYTES, LOG, Codec, Head, LogObject, log_key
from trioha.archive.log_bytes import compress, compress_stream, read_log_object
from trioha.archive.merging import crc32_of, merged_object
from trioha.archive.objects import ObjectFolder
from trioha.archive.source import LogPart, LogSource

ZSTD_SAVES: Final = 0.05
"""An object is compressed if that saves at least this share of it."""
PIECE_BYTES: Final = 1 << 20
"""Read and sent at a time."""
_SAMPLE_BYTES: Final = 128 << 10
"""Of each frame of a large object, to find out whether compression saves enough."""


class LogWriter:
    """Stores log objects of one archive. Everything here blocks, and raises ArchiveError."""

    def __init__(self, folder: ObjectFolder, source: LogSource) -> None:
        self._folder = folder
        self._source = source
        self._stored: dict[str, int] = {}
        """Sizes of log objects that no head refers to yet."""

    def find_stored(self, head: Head) -> None:
        """List the objects of the newest generation that were stored without a head."""
        self._stored = {}
        if head.generations:
            generation = head.generations[-1]
            first = generation.pages[-1].end_offset if generation.pages else generation.first_offset
            known = {one.key for one in generation.objects}
            prefix = f"{LOG}/{generation.id}"
            self._stored = {
                one.key: one.bytes
                for one in self._folder.list(prefix, after=f"{prefix}/{first:020d}")
                if one.key not in known
            }

    def forget_stored(self) -> None:
        """A head refers to them now."""
        self._stored.clear()

    def store(self, draft: Draft, part: LogPart) -> LogObject:
        """Store a part of the log, unless it is there. Raises ChangedSourceError if its bytes change."""
        codec, body = self._encoded(part)
        one = LogObject(
            key=log_key(
                draft.generation.id,
                first_offset=part.first_offset,
                end_offset=part.end_offset,
                crc32=part.crc32,
                codec=codec,
            ),
            first_offset=part.first_offset,
            end_offset=part.end_offset,
            records=part.records,
            min_store_ms=part.min_store_ms,
            max_store_ms=part.max_store_ms,
            topics=part.topics,
            crc32=part.crc32,
            codec=codec,
            object_bytes=0,
        )
        if self._is_stored(one):
            if self._source.crc32(part.first_offset, part.end_offset) != part.crc32:
                raise self._changed(part.first_offset)
            return evolve(one, object_bytes=self._stored[one.key])
        return self.put(draft, one, body if body is not None else self._checked(part))

    def store_merged(self, draft: Draft, run: Sequence[LogObject], *, from_source: bool) -> LogObject:
        """Store one object of the bytes of several, unless it is there.

        The bytes come from the store, where ChangedSourceError says that they are not those of the objects
        any more, or from the archive.
        """
        first, end, crc = run[0].first_offset, run[-1].end_offset, crc32_of(run)
        saved = 1 - sum(one.object_bytes for one in run) / (end - first)
        codec: Codec = "zstd" if saved >= ZSTD_SAVES else "none"
        key = log_key(draft.generation.id, first_offset=first, end_offset=end, crc32=crc, codec=codec)
        one = merged_object(run, key=key, crc32=crc, codec=codec, object_bytes=0)
        if self._is_stored(one):
            return evolve(one, object_bytes=self._stored[key])
        if from_source:
            return self.put(draft, one, (piece for part in run for piece in self._checked(part)))
        # obstore cannot receive one object within the upload of another.
        with TemporaryFile(prefix="trioha-archive-") as file:
            for part in run:
                for piece in read_log_object(self._folder, part):
                    file.write(piece)
            file.seek(0)
            return self.put(draft, one, iter(lambda: file.read(PIECE_BYTES), b""))

    def put(self, draft: Draft, one: LogObject, data: bytes | Iterator[bytes]) -> LogObject:
        """Store an object: its bytes as they are stored, or its part of the log in pieces."""
        if isinstance(data, bytes):
            self._folder.put(one.key, data)
            size = len(data)
        else:
            upload = _Upload(data, one)
            self._folder.put(one.key, iter(upload))
            size = upload.size
        self._stored[one.key] = size
        draft.stored_bytes += size
        return evolve(one, object_bytes=size)

    def _encoded(self, part: LogPart) -> tuple[Codec, bytes | None]:
        """How a part is stored, and its object if it is a small one."""
        if part.log_bytes <= FRAME_BYTES:
            data = b"".join(self._checked(part))
            packed = b"".join(compress([data]))
            return ("zstd", packed) if _saves(packed, len(data)) else ("none", data)
        samples = [
            next(self._source.pieces(at, min(at + _SAMPLE_BYTES, part.end_offset)))
            for at in range(part.first_offset, part.end_offset, FRAME_BYTES)
        ]
        packed = b"".join(compress(samples))
        return ("zstd" if _saves(packed, sum(map(len, samples))) else "none"), None

    def _checked(self, part: LogPart | LogObject) -> Iterator[bytes]:
        """The part's bytes in pieces. Raises ChangedSourceError after them if they are not those checked."""
        result = 0
        for piece in self._source.pieces(part.first_offset, part.end_offset, size=PIECE_BYTES):
            result = crc32(piece, result)
            yield piece
        if result != part.crc32:
            raise self._changed(part.first_offset)

    def _changed(self, offset: int) -> ChangedSourceError:
        return ChangedSourceError(
            f"the bytes from offset {offset} on change while they are read",
            url=str(self._source.folder),
            is_transient=True,
        )

    def _is_stored(self, one: LogObject) -> bool:
        """Whether there is such an object that no head refers to, and it is whole, and then on disk."""
        if one.key not in self._stored:
            return False
        try:
            for _ in read_log_object(self._folder, one):
                pass
        except ArchiveError as error:
            if error.is_transient:
                raise
            return False
        self._folder.sync(one.key)
        return True


class _Upload:
    """The pieces of an object, compressed or not, and how many bytes they had."""

    def __init__(self, pieces: Iterator[bytes], one: LogObject) -> None:
        self._pieces = compress_stream(pieces, log_bytes=one.log_bytes) if one.codec == "zstd" else pieces
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size += len(piece)
            yield piece


def _saves(packed: bytes, plain_bytes: int) -> bool:
    return len(packed) <= (1 - ZSTD_SAVES) * plain_bytes
