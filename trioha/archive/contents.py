"""What an archive has, in numbers: its generations, metadata and recordings."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from trioha.archive.layout import Generation, Head, LogObject, MetadataObject, Page
from trioha.archive.reader import ArchiveReader


@frozen(kw_only=True)
class GenerationContents:
    """Sums over a generation's objects."""

    generation: Generation
    objects: int
    records: int
    min_store_ms: int
    """Least store timestamp; 0 without records."""
    max_store_ms: int
    object_bytes: int
    metadata: tuple[MetadataObject, ...]
    """Newest first."""

    @property
    def log_bytes(self) -> int:
        """Bytes of the log."""
        return self.generation.end_offset - self.generation.first_offset


@frozen(kw_only=True)
class Contents:
    """What the archive of a head has."""

    url: str
    head: Head
    generations: tuple[GenerationContents, ...]

    def to_json(self) -> dict[str, Any]:
        """For `--json`: times in ms since 1970."""
        head = self.head
        return {
            "archive": self.url,
            "clusterName": head.cluster_name,
            "brokerName": head.broker_name,
            "head": head.number,
            "writer": {
                "id": head.writer.id,
                "epoch": head.writer.epoch,
                "sinceTimestamp": head.writer.since_ms,
                "renewedTimestamp": head.writer.renewed_ms,
            },
            "generations": [
                {
                    "generation": one.generation.id,
                    "beganTimestamp": one.generation.began_ms,
                    "reason": one.generation.reason,
                    "mappedFileSizeCommitLog": one.generation.file_bytes,
                    "firstOffset": one.generation.first_offset,
                    "endOffset": one.generation.end_offset,
                    "records": one.records,
                    "firstStoreTimestamp": one.min_store_ms,
                    "lastStoreTimestamp": one.max_store_ms,
                    "logBytes": one.log_bytes,
                    "objects": one.objects,
                    "objectBytes": one.object_bytes,
                    "metadata": [
                        {"takenTimestamp": moment.taken_ms, "offset": moment.offset}
                        for moment in one.metadata
                    ],
                }
                for one in self.generations
            ],
            "recordings": [
                {
                    "session": session.session,
                    "segments": len(session.segments),
                    "records": sum(segment.records for segment in session.segments),
                    "bytes": sum(segment.bytes for segment in session.segments),
                    "closed": session.closed,
                }
                for session in head.recordings
            ],
        }


def contents_of(reader: ArchiveReader) -> Contents:
    """What the archive of the reader's head has. Reads its pages. Raises ArchiveError."""
    return Contents(
        url=reader.folder.url,
        head=reader.head,
        generations=tuple(_contents_of(reader, one) for one in reader.head.generations),
    )


def _contents_of(reader: ArchiveReader, generation: Generation) -> GenerationContents:
    parts: list[Page | LogObject] = [*generation.pages, *generation.objects]
    with_records = [one for one in parts if one.records]
    return GenerationContents(
        generation=generation,
        objects=sum(page.objects for page in generation.pages) + len(generation.objects),
        records=sum(one.records for one in parts),
        min_store_ms=min((one.min_store_ms for one in with_records), default=0),
        max_store_ms=max((one.max_store_ms for one in with_records), default=0),
        object_bytes=sum(one.object_bytes for one in parts),
        metadata=tuple(reader.metadata(generation)),
    )
