"""Checking an archive: whether everything that its head refers to is there, and is what it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from attrs import define, field, frozen

from trioha.archive.checked_log import checked_extents
from trioha.archive.errors import ArchiveError
from trioha.archive.fetching import Fetcher
from trioha.archive.heads import read_head
from trioha.archive.layout import (
    LOG,
    METADATA,
    PAGES,
    RECORDINGS,
    TOPICS_MAX,
    Generation,
    LogObject,
    MetadataObject,
    page_of,
)
from trioha.archive.reader import ArchiveReader
from trioha.recording.layout import FACTS_FILE, SESSION_FILE
from trioha.store.record_statistics import RecordStatistics

PROBLEMS_KEPT: Final = 1000
_HEADS_TRIED: Final = 5
_THREADS: Final = 8
_BATCH: Final = 256

Progress = Callable[[str, int, int], None]
"""`on_progress(what, done, total)`: bytes of objects."""


@frozen(kw_only=True)
class Verification:
    """Result of a check."""

    head: int
    """Number of the head."""
    generations: int
    objects: int
    """Log objects that were checked."""
    records: int
    """Their records, each checked with its CRC; by the statistics in a quick check."""
    log_bytes: int
    object_bytes: int
    metadata: int
    """Metadata objects."""
    segments: int
    """Segments of recordings."""
    unreferenced: int
    """Objects that the head does not refer to: of a writer at work, or of one that died."""
    unreferenced_bytes: int
    problems: tuple[str, ...]
    """One line each, the first `PROBLEMS_KEPT`."""
    problem_count: int


@define
class _Findings:
    """What was found in an archive as of one head."""

    problems: dict[str, list[str]] = field(factory=dict)
    """By the key that they are about."""
    referenced: set[str] = field(factory=set)
    missing: bool = False

    def add(self, key: str, reason: str) -> None:
        self.problems.setdefault(key, []).append(reason)


def verify_archive(
    reader: ArchiveReader, *, quick: bool = False, on_progress: Progress = lambda _what, _done, _total: None
) -> Verification:
    """Check the archive of the reader's head, or a newer one if objects are merged meanwhile. Blocks.

    `quick`: only whether all objects are there with their sizes. Raises ArchiveError for an archive that
    cannot be read at all.
    """
    checked = _Checked()
    for _ in range(_HEADS_TRIED):
        check = _Check(reader, quick=quick, checked=checked, on_progress=on_progress)
        findings = check.run()
        head = read_head(reader.folder)
        if not findings.missing or head is None or head.number == reader.head.number:
            break
        # Objects that were merged are deleted some time later: the newer head has what replaced them.
        reader = ArchiveReader(reader.folder, head)
    sizes = check.sizes
    unreferenced = [size for key, size in sizes.items() if key not in findings.referenced]
    # Problems of objects that the newest head does not refer to are none.
    problems = [f"{key}: {reason}" for key, reasons in findings.problems.items() for reason in reasons]
    # Nor do they count: the objects that replaced them have their records.
    objects = [one for key, one in checked.objects.items() if key in findings.referenced]
    return Verification(
        head=reader.head.number,
        generations=len(reader.head.generations),
        objects=len(objects),
        records=sum(records for _, records in objects),
        log_bytes=sum(one.log_bytes for one, _ in objects),
        object_bytes=sum(one.object_bytes for one, _ in objects),
        metadata=len(checked.metadata & findings.referenced),
        segments=sum(len(session.segments) for session in reader.head.recordings),
        unreferenced=len(unreferenced),
        unreferenced_bytes=sum(unreferenced),
        problems=tuple(problems[:PROBLEMS_KEPT]),
        problem_count=len(problems),
    )


@define
class _Checked:
    """What all passes have checked."""

    objects: dict[str, tuple[LogObject, int]] = field(factory=dict)
    """By key, with the number of records found."""
    metadata: set[str] = field(factory=set)
    """Keys of those without a fault."""
    right: set[str] = field(factory=set)
    """Keys of what need not be read again."""


class _Check:
    """One pass over what a head refers to."""

    def __init__(
        self,
        reader: ArchiveReader,
        *,
        quick: bool,
        checked: _Checked,
        on_progress: Progress,
    ) -> None:
        self._reader = reader
        self._quick = quick
        self._checked = checked
        self._on_progress = on_progress
        self._findings = _Findings()
        self.sizes: dict[str, int] = {}
        """Of all objects but heads, by key."""

    def run(self) -> _Findings:
        for folder in (PAGES, LOG, METADATA, RECORDINGS):
            self.sizes.update((one.key, one.bytes) for one in self._reader.folder.list(folder))
        objects: list[tuple[LogObject, int]] = []
        metadata: list[MetadataObject] = []
        for generation in self._reader.head.generations:
            listed, moments = self._lists(generation)
            objects += [
                (one, generation.file_bytes) for one in listed if self._is_new(one.key, one.object_bytes)
            ]
            metadata += [one for one in moments if self._is_new(one.key, one.bytes)]
        for session in self._reader.head.recordings:
            for segment in session.segments:
                self._is_new(segment.key, segment.bytes)
            self._check_documents(session.session)
        if self._quick:
            self._checked.objects.update((one.key, (one, one.records)) for one, _ in objects)
            self._checked.metadata.update(one.key for one in metadata)
        else:
            self._check_objects(objects)
            self._check_metadata(metadata)
        return self._findings

    def _is_new(self, key: str, size: int) -> bool:
        """Whether an object is there with its size, and is seen for the first time."""
        if key in self._findings.referenced:
            return False
        self._findings.referenced.add(key)
        found = self.sizes.get(key)
        if found is None:
            self._findings.missing = True
            self._findings.add(key, "there is no such object")
        elif found != size:
            self._findings.add(key, f"has {found} bytes, {size} are listed")
        return found == size and key not in self._checked.right

    def _check_documents(self, session: str) -> None:
        """The files beside a session's segments: their sizes are in no list, as they are replaced."""
        for name in (SESSION_FILE, FACTS_FILE):
            key = f"{RECORDINGS}/{session}/{name}"
            self._findings.referenced.add(key)
            if key not in self.sizes and name == SESSION_FILE:
                self._findings.missing = True
                self._findings.add(key, "there is no such object")

    # -- lists ----------------------------------------------------------------------------------------------

    def _lists(self, generation: Generation) -> tuple[list[LogObject], list[MetadataObject]]:
        """All objects and metadata of a generation, as far as its pages can be read."""
        objects: list[LogObject] = []
        metadata: list[MetadataObject] = []
        offset = generation.first_offset
        for page in generation.pages:
            self._findings.referenced.add(page.key)
            self._expect(page.key, page.first_offset, offset)
            offset = page.end_offset
            try:
                content = self._reader.page(page)
            except ArchiveError as error:
                self._note(page.key, error)
                continue
            if page_of(page.key, content.objects) != page:
                self._findings.add(page.key, "its objects do not add up to its statistics in the head")
            objects += content.objects
            metadata += content.metadata
            self._check_order(content.objects, page.first_offset)
        self._check_order(generation.objects, offset)
        return [*objects, *generation.objects], [*metadata, *generation.metadata]

    def _check_order(self, objects: Iterable[LogObject], offset: int) -> None:
        for one in objects:
            self._expect(one.key, one.first_offset, offset)
            offset = one.end_offset

    def _expect(self, key: str, first_offset: int, offset: int) -> None:
        if first_offset != offset:
            self._findings.add(key, f"begins at {first_offset}, the object before it ends at {offset}")

    def _note(self, key: str, error: ArchiveError) -> None:
        """Note what is wrong with an object. Raises the error if the storage cannot be reached."""
        if error.is_transient:
            raise error
        if key not in self.sizes:
            self._findings.missing = True
        self._findings.add(key, error.reason)

    # -- contents -------------------------------------------------------------------------------------------

    def _check_objects(self, objects: list[tuple[LogObject, int]]) -> None:
        total = sum(one.object_bytes for one, _ in objects)
        done = 0
        sizes = iter(objects)
        with Fetcher(self._reader.folder) as fetcher:
            for (_, file_bytes), (one, pieces) in zip(
                sizes, fetcher.fetch(one for one, _ in objects), strict=True
            ):
                self._on_progress("checking the log", done, total)
                self._check_object(one, pieces, file_bytes)
                done += one.object_bytes
        self._on_progress("checking the log", total, total)

    def _check_object(self, one: LogObject, pieces: Iterator[bytes], file_bytes: int) -> None:
        statistics = RecordStatistics(topics_max=TOPICS_MAX)
        try:
            for _ in checked_extents(
                self._reader.folder, one, file_bytes=file_bytes, pieces=pieces, statistics=statistics
            ):
                pass
        except ArchiveError as error:
            self._note(one.key, error)
            return
        topics = statistics.topics
        names = (
            None if topics is None else tuple(sorted(topic.decode("utf-8", "replace") for topic in topics))
        )
        is_right = True
        for what, listed, found in (
            ("records", one.records, statistics.records),
            ("storeTimestamps", (one.min_store_ms, one.max_store_ms), statistics.store_times_ms),
            ("topics", one.topics, names),
        ):
            if listed != found:
                is_right = False
                self._findings.add(one.key, f"its {what} are listed as {listed}, it has {found}")
        if not one.key.removesuffix(".zst").removesuffix(".log").endswith(f"-{one.crc32:08x}"):
            is_right = False
            self._findings.add(one.key, f"its key does not end with its CRC, {one.crc32:08x}")
        self._checked.objects[one.key] = one, statistics.records
        if is_right:
            self._checked.right.add(one.key)

    def _check_metadata(self, metadata: list[MetadataObject]) -> None:
        left = iter(metadata)
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch") as threads:
            while batch := list(islice(left, _BATCH)):
                for one, reason in zip(batch, threads.map(self._fault_of, batch), strict=True):
                    if isinstance(reason, ArchiveError):
                        self._note(one.key, reason)
                    elif reason:
                        self._findings.add(one.key, reason)
                    else:
                        self._checked.metadata.add(one.key)
                        self._checked.right.add(one.key)

    def _fault_of(self, one: MetadataObject) -> ArchiveError | str:
        """What is wrong with metadata; empty if nothing is. Called in threads."""
        try:
            content = self._reader.metadata_files(one)
        except ArchiveError as error:
            return error
        if (content.taken_ms, content.offset) != (one.taken_ms, one.offset):
            return (
                f"was taken at {content.taken_ms} ms and offset {content.offset},"
                f" {one.taken_ms} ms and {one.offset} are listed"
            )
        return ""
