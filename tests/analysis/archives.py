"""Archives for readers: a store's log cut into objects, and recorded sessions, packed, beside it."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from tests.analysis.logs import read_all
from trioha.archive.heads import create_head, read_head
from trioha.archive.layout import (
    FRAME_BYTES,
    RECORDINGS,
    Codec,
    Generation,
    Head,
    LogObject,
    PageContent,
    RecordedSegment,
    RecordedSession,
    Writer,
    encode,
    log_key,
    page_key,
    page_of,
)
from trioha.archive.log_bytes import compress
from trioha.archive.objects import ObjectFolder
from trioha.recording.layout import FACTS_FILE, SESSION_FILE
from trioha.recording.reader import open_session, read_segments
from trioha_analysis.commitlog.files import list_files
from trioha_analysis.packing import pack_segment, sealed_segments

GENERATION = "0001-00000000"


def write_archive(
    url: str,
    *,
    store: Path | None = None,
    sessions: Sequence[Path] = (),
    object_bytes: int = 1500,
    page_objects: int = 2,
    codec: Codec = "zstd",
) -> list[LogObject]:
    """Archive `store` in objects of at most `object_bytes` (or one record), the first ones in a page.

    `sessions` are packed in a copy. Returns the log's objects.
    """
    folder = ObjectFolder.open(url, create=True)
    objects = [] if store is None else log_objects(folder, store, object_bytes=object_bytes, codec=codec)
    pages = []
    if len(objects) > page_objects:
        key = page_key(GENERATION, first_offset=objects[0].first_offset, token="x")
        some = tuple(objects[:page_objects])
        folder.put(key, encode(PageContent(objects=some, metadata=())))
        pages.append(page_of(key, some))
    generation = Generation(
        id=GENERATION,
        began_ms=1,
        reason="first archive",
        file_bytes=1 << 20,
        first_offset=objects[0].first_offset if objects else 0,
        pages=tuple(pages),
        objects=tuple(objects[len(pages) * page_objects :]),
    )
    head = Head(
        number=1,
        cluster_name="cluster",
        broker_name="broker-a",
        writer=Writer(id="host:/store", epoch=1, since_ms=1, renewed_ms=1),
        generations=(generation,),
        recordings=tuple(archive_session(folder, path) for path in sessions),
    )
    create_head(folder, head)
    return objects


def log_objects(folder: ObjectFolder, store: Path, *, object_bytes: int, codec: Codec) -> list[LogObject]:
    """Store the log's objects, each of records of one file."""
    rows, damage = read_all(store)
    assert not damage, "archives have whole records only"
    objects: list[LogObject] = []
    for file in list_files(store):
        data = file.path.read_bytes()
        own = [row for row in rows if file.start_offset <= row["physical_offset"] < file.end_offset]
        is_last = file == list_files(store)[-1]
        while own:
            some = [own.pop(0)]
            first = some[0]["physical_offset"]
            while own and own[0]["physical_offset"] + own[0]["size_bytes"] - first <= object_bytes:
                some.append(own.pop(0))
            end = some[-1]["physical_offset"] + some[-1]["size_bytes"]
            if not own and not is_last:
                end = file.end_offset
            part = data[first - file.start_offset : end - file.start_offset]
            objects.append(put_object(folder, some, first=first, part=part, codec=codec))
    return objects


def put_object(
    folder: ObjectFolder, rows: Sequence[dict[str, Any]], *, first: int, part: bytes, codec: Codec
) -> LogObject:
    """Store one object with these rows."""
    stored_ms = [row["store_timestamp_ms"] for row in rows]
    crc32 = zlib.crc32(part)
    pieces = [part[at : at + FRAME_BYTES] for at in range(0, len(part), FRAME_BYTES)]
    stored = b"".join(compress(pieces)) if codec == "zstd" else part
    key = log_key(GENERATION, first_offset=first, end_offset=first + len(part), crc32=crc32, codec=codec)
    folder.put(key, stored)
    return LogObject(
        key=key,
        first_offset=first,
        end_offset=first + len(part),
        records=len(rows),
        min_store_ms=min(stored_ms),
        max_store_ms=max(stored_ms),
        topics=tuple(sorted({row["topic"] for row in rows})),
        crc32=crc32,
        codec=codec,
        object_bytes=len(stored),
    )


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
