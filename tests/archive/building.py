"""Archives made from a log, without an archiver: whole ones, and odd ones for tests of their readers."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from trioha.archive.documents import encode
from trioha.archive.heads import create_head, read_head
from trioha.archive.layout import (
    FRAME_BYTES,
    OBJECT_BYTES_MAX,
    TOPICS_MAX,
    Codec,
    Generation,
    Head,
    LogObject,
    MetadataContent,
    MetadataObject,
    PageContent,
    Writer,
    log_key,
    metadata_key,
    page_key,
    page_of,
)
from trioha.archive.log_bytes import compress
from trioha.archive.objects import ObjectFolder
from trioha.store.record import Host, Record, encode_record
from trioha.store.record_layout import (
    BLANK,
    BLANK_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    body_crc,
    is_blank,
    scan_records,
    store_timestamp_ms,
    topic_of,
)

GENERATION = "0001-5f0c9a12"
HOST = Host.parse("127.0.0.1", 10911)


@frozen(kw_only=True)
class Entry:
    """A record or a blank of a log."""

    offset: int
    data: bytes
    topic: str = ""
    store_ms: int = 0
    is_blank: bool = False

    @property
    def end_offset(self) -> int:
        return self.offset + len(self.data)


def entries_of(data: bytes, *, first_offset: int, file_bytes: int) -> Iterator[Entry]:
    """The records and blanks of a log that begins with a file; ends where no record is."""
    for start in range(0, len(data), file_bytes):
        view = memoryview(data)[start : start + file_bytes]
        found: list[tuple[int, int]] = []

        def note(at: int, size: int, found: list[tuple[int, int]] = found) -> None:
            found.append((at, size))

        end = scan_records(view, 0, len(view), first_offset + start, on_record=note)
        for at, size in found:
            yield Entry(
                offset=first_offset + start + at,
                data=bytes(view[at : at + size]),
                topic=topic_of(view, at).decode(),
                store_ms=store_timestamp_ms(view, at),
            )
        if is_blank(view, end.at, len(view)):
            yield Entry(offset=first_offset + start + end.at, data=bytes(view[end.at :]), is_blank=True)
        elif end.at < len(view):
            return


@frozen(kw_only=True)
class Moment:
    """Config files to be archived."""

    taken_ms: int
    offset: int
    files: dict[str, str] = field(factory=dict)


@frozen(kw_only=True)
class Put:
    """A message of a log that a test makes."""

    body: bytes = b"hello"
    topic: str = "Orders"
    queue_id: int = 0
    store_ms: int = 1_000_000
    sys_flag: int = 0
    properties: bytes = b""
    born_host: Host = HOST


def record_at(offset: int, put: Put, *, queue_offset: int = 0) -> bytes:
    """The record that a broker writes of a message at `offset`."""
    return encode_record(
        Record(
            magic=MAGIC_V1,
            body_crc=body_crc(put.body),
            queue_id=put.queue_id,
            flag=7,
            queue_offset=queue_offset,
            physical_offset=offset,
            sys_flag=put.sys_flag,
            born_timestamp_ms=put.store_ms - 5,
            born_host=put.born_host,
            store_timestamp_ms=put.store_ms,
            store_host=HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            body=put.body,
            topic=put.topic,
            properties_raw=put.properties,
        )
    )


def made_log(puts: Iterable[Put], *, file_bytes: int, first_offset: int = 0, filler: int = 0) -> list[Entry]:
    """The log that a broker makes of these messages, blanks with `filler` in them included."""
    entries: list[Entry] = []
    queue_offsets: Counter[tuple[str, int]] = Counter()
    offset = first_offset
    for put in puts:
        queue = (put.topic, put.queue_id)
        data = record_at(offset, put, queue_offset=queue_offsets[queue])
        left = file_bytes - offset % file_bytes
        assert len(data) + BLANK_BYTES <= file_bytes, "a record fits into an empty file"
        if len(data) + BLANK_BYTES > left:
            blank = BLANK.pack(left, MAGIC_BLANK).ljust(left, bytes([filler]))
            entries.append(Entry(offset=offset, data=blank, is_blank=True))
            offset += left
            data = record_at(offset, put, queue_offset=queue_offsets[queue])
        entries.append(Entry(offset=offset, data=data, topic=put.topic, store_ms=put.store_ms))
        offset += len(data)
        queue_offsets[queue] += 1
    return entries


def write_store(store: Path, entries: Sequence[Entry], *, file_bytes: int) -> Path:
    """A store with this log, and nothing else."""
    folder = store / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    for start, data in files_of(entries, file_bytes=file_bytes).items():
        (folder / f"{start:020d}").write_bytes(data)
    return store


def files_of(entries: Sequence[Entry], *, file_bytes: int) -> dict[int, bytes]:
    """The files of a log by their start offsets."""
    files: dict[int, bytes] = {}
    for entry in entries:
        start = entry.offset - entry.offset % file_bytes
        files[start] = files.get(start, b"") + entry.data
    return {start: data.ljust(file_bytes, b"\0") for start, data in files.items()}


def log_data(store: Path) -> tuple[int, int, bytes]:
    """Offset of the first byte of a store's log, the size of its files, and all their bytes."""
    paths = sorted(path for path in (store / "commitlog").iterdir() if path.name.isdecimal())
    return int(paths[0].name), paths[0].stat().st_size, b"".join(path.read_bytes() for path in paths)


def log_entries(store: Path) -> tuple[list[Entry], int]:
    """The records and blanks of a store's log, and the size of its files."""
    first_offset, file_bytes, data = log_data(store)
    return list(entries_of(data, first_offset=first_offset, file_bytes=file_bytes)), file_bytes


def build(url: str, store: Path, *, end_offset: int | None = None, **options: Any) -> Head:
    """As `build_from`, of the log of `store` up to `end_offset`, a border of records."""
    entries, file_bytes = log_entries(store)
    kept = [one for one in entries if end_offset is None or one.end_offset <= end_offset]
    return build_from(url, kept, file_bytes=file_bytes, **options)


def groups_of(entries: Iterable[Entry], *, object_bytes: int, file_bytes: int) -> list[list[Entry]]:
    """What objects of about `object_bytes`, each of one log file, have of a log."""
    groups: list[list[Entry]] = []
    for entry in entries:
        group = groups[-1] if groups else []
        is_full = sum(len(one.data) for one in group) + len(entry.data) > object_bytes
        if not group or is_full or entry.offset % file_bytes == 0:
            groups.append([])
        groups[-1].append(entry)
    return groups


def build_from(
    url: str,
    entries: Sequence[Entry],
    *,
    file_bytes: int,
    object_bytes: int = OBJECT_BYTES_MAX,
    codec: Codec | Callable[[int], Codec] = "none",
    metadata: Sequence[Moment] = (),
    page_objects: int | None = None,
    generation: str = GENERATION,
) -> Head:
    """Archive a log in objects of about `object_bytes`.

    `codec` may be a function of an object's number. With `page_objects` objects go into pages of so many,
    those of a rest stay in the head. An archive at `url` gets the log as a further generation.
    """
    folder = ObjectFolder.open(url, create=True)
    groups = groups_of(entries, object_bytes=object_bytes, file_bytes=file_bytes)
    objects = [
        put_object(folder, group, generation=generation, codec=codec(number) if callable(codec) else codec)
        for number, group in enumerate(groups)
    ]
    moments = [put_metadata(folder, moment, generation=generation) for moment in metadata]
    pages = []
    while page_objects is not None and len(objects) >= page_objects:
        listed, objects = objects[:page_objects], objects[page_objects:]
        inside = [one for one in moments if one.offset <= listed[-1].end_offset]
        moments = moments[len(inside) :]
        key = page_key(generation, first_offset=listed[0].first_offset, token="x")
        folder.put(key, encode(PageContent(objects=tuple(listed), metadata=tuple(inside))))
        pages.append(page_of(key, listed))
    old = read_head(folder)
    head = Head(
        number=1 if old is None else old.number + 1,
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        writer=Writer(id="host:/store", epoch=1, since_ms=1, renewed_ms=2),
        generations=(
            *(() if old is None else old.generations),
            Generation(
                id=generation,
                began_ms=1,
                reason="first archive",
                file_bytes=file_bytes,
                first_offset=entries[0].offset if entries else 0,
                pages=tuple(pages),
                objects=tuple(objects),
                metadata=tuple(moments),
            ),
        ),
    )
    create_head(folder, head)
    return head


def put_object(
    folder: ObjectFolder, entries: Sequence[Entry], *, generation: str = GENERATION, codec: Codec = "none"
) -> LogObject:
    """Store a log object; returns its statistics."""
    data = b"".join(entry.data for entry in entries)
    stored = data
    if codec == "zstd":
        stored = b"".join(compress(data[at : at + FRAME_BYTES] for at in range(0, len(data), FRAME_BYTES)))
    records = [entry for entry in entries if not entry.is_blank]
    topics = sorted({entry.topic for entry in records})
    crc32 = zlib.crc32(data)
    first_offset, end_offset = entries[0].offset, entries[-1].end_offset
    one = LogObject(
        key=log_key(generation, first_offset=first_offset, end_offset=end_offset, crc32=crc32, codec=codec),
        first_offset=first_offset,
        end_offset=end_offset,
        records=len(records),
        min_store_ms=min((entry.store_ms for entry in records), default=0),
        max_store_ms=max((entry.store_ms for entry in records), default=0),
        topics=tuple(topics) if len(topics) <= TOPICS_MAX else None,
        crc32=crc32,
        codec=codec,
        object_bytes=len(stored),
    )
    folder.put(one.key, stored)
    return one


def put_metadata(folder: ObjectFolder, moment: Moment, *, generation: str = GENERATION) -> MetadataObject:
    """Store the config files of a moment."""
    data = encode(MetadataContent(taken_ms=moment.taken_ms, offset=moment.offset, files=moment.files))
    key = metadata_key(generation, offset=moment.offset, taken_ms=moment.taken_ms, token="x")
    folder.put(key, data)
    return MetadataObject(key=key, taken_ms=moment.taken_ms, offset=moment.offset, bytes=len(data))


def replace_generation(url: str, change: Callable[[Generation], Generation]) -> None:
    """A new head, with the newest generation as `change` returns it."""
    folder = ObjectFolder.open(url)
    head = read_head(folder)
    assert head is not None
    generations = (*head.generations[:-1], change(head.generations[-1]))
    create_head(folder, evolve(head, number=head.number + 1, generations=generations))


def merge_file(url: str, entries: Sequence[Entry], *, start: int, file_bytes: int) -> LogObject:
    """As an archiver does meanwhile: one object replaces those of the log file at `start`.

    Of the old ones the first stays.
    """
    folder = ObjectFolder.open(url)
    inside = [one for one in entries if start <= one.offset < start + file_bytes]
    merged = put_object(folder, inside)
    old: list[LogObject] = []

    def change(generation: Generation) -> Generation:
        objects = generation.objects
        old.extend(one for one in objects if start <= one.first_offset < start + file_bytes)
        at = objects.index(old[0])
        return evolve(generation, objects=(*objects[:at], merged, *objects[at + len(old) :]))

    replace_generation(url, change)
    assert len(old) > 2
    folder.delete([one.key for one in old[1:]])
    return merged
