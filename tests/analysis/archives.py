"""Archives for readers: a store's log cut into objects, and recorded sessions, packed, beside it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from tests.archive.building import build_from, groups_of, log_entries, put_object, replace_generation
from trioha.archive.heads import create_head, read_head
from trioha.archive.layout import RECORDINGS, Codec, LogObject, RecordedSegment, RecordedSession
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.recording.layout import FACTS_FILE, SESSION_FILE
from trioha.recording.reader import open_session
from trioha_analysis.packing import pack_segment, sealed_segments
from trioha_sessions.segments import read_segments


def write_archive(
    url: str,
    *,
    store: Path | None = None,
    sessions: Sequence[Path] = (),
    object_bytes: int = 5000,
    page_objects: int = 2,
    codec: Codec = "zstd",
) -> list[LogObject]:
    """Archive `store`, and `sessions`, packed. Returns the log's objects."""
    entries, file_bytes = ([], 1 << 20) if store is None else log_entries(store)
    build_from(
        url,
        entries,
        file_bytes=file_bytes,
        object_bytes=object_bytes,
        codec=codec,
        page_objects=page_objects,
    )
    folder = ObjectFolder.open(url)
    if sessions:
        next_head(url, recordings=tuple(archive_session(folder, path) for path in sessions))
    reader = ArchiveReader.open(url)
    return list(reader.objects(reader.generation()))


def merge_objects(url: str, store: Path, *, object_bytes: int) -> list[LogObject]:
    """Replace the objects of an archive of `store` by larger ones; those before stay, without a head."""
    folder = ObjectFolder.open(url)
    entries, file_bytes = log_entries(store)
    groups = groups_of(entries, object_bytes=object_bytes, file_bytes=file_bytes)
    merged = [put_object(folder, group, codec="zstd") for group in groups]
    replace_generation(url, lambda one: evolve(one, pages=(), objects=tuple(merged)))
    return merged


def archive_session(folder: ObjectFolder, path: Path) -> RecordedSession:
    """Store a session, packed."""
    copy = path.with_name(f".{path.name}.packed")
    shutil.copytree(path, copy)
    session = open_session(copy)
    for segment in sealed_segments(session, every=True):
        pack_segment(session, segment)
    for name in (SESSION_FILE, FACTS_FILE):
        folder.put(f"{RECORDINGS}/{path.name}/{name}", (copy / name).read_bytes())
    segments = []
    for segment in read_segments(session).segments:
        key = f"{RECORDINGS}/{path.name}/events/{segment.path.name}"
        data = segment.path.read_bytes()
        folder.put(key, data)
        segments.append(
            RecordedSegment(
                key=key,
                first_seq=segment.base_seq,
                records=segment.records,
                first_ns=segment.base_ts_ns,
                last_ns=segment.base_ts_ns,
                bytes=len(data),
            )
        )
    shutil.rmtree(copy)
    return RecordedSession(session=path.name, segments=tuple(segments), closed=True)


def next_head(url: str, **changes: Any) -> None:
    """Replace the head by one with changes."""
    folder = ObjectFolder.open(url)
    head = read_head(folder)
    assert head is not None
    create_head(folder, evolve(head, number=head.number + 1, **changes))
