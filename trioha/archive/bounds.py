"""What a reader of an archive accepts, whoever wrote it: sizes of documents, and every number in them.

Loops, memory and disk space of a restore depend on numbers in heads and pages. So each is checked against
what the format can mean before anything else sees it, and a document's cost is known before it is parsed:
4 KB of zstd may be 256 MB of JSON, and a MB of JSON 20 MB of objects. A writer stays within the same bounds:
what it could not read again, it does not write.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from trioha.archive.layout import (
    OBJECT_BYTES_MAX,
    Generation,
    Head,
    LogObject,
    MetadataContent,
    MetadataObject,
    Page,
    PageContent,
    RecordedSegment,
)
from trioha.numbers import I32, Range
from trioha.recording.layout import ACCEPTED_RECORDS_MAX
from trioha.recording.reader import CLOCK_NS
from trioha.store.record_layout import RECORD_BYTES_MIN

Document = Head | PageContent | MetadataContent

FILE_BYTES: Final = Range(RECORD_BYTES_MIN + 8, I32.high)
"""mappedFileSizeCommitLog: room for a record and the blank after it, Java's `int`."""
STORED_BYTES_MAX: Final = OBJECT_BYTES_MAX + (1 << 20)
"""Of a log object. zstd adds less than a thousandth to bytes that it cannot compress."""
PAGE_OBJECTS_MAX: Final = 4096
"""Objects of a page. Writers seal one with 64."""


@frozen
class Cost:
    """Limits of what a document costs its reader, before it is parsed."""

    json_bytes: int
    """Bytes of JSON: what its texts cost."""
    structure_bytes: int
    """Bytes of JSON outside of texts: numbers, objects and lists cost at most some 20 times as much."""
    texts: int
    """Texts, names of members included: each costs some 60 bytes beside its own."""


_LISTS: Final = Cost(json_bytes=64 << 20, structure_bytes=8 << 20, texts=1_000_000)
"""Of heads and pages: 30,000 pages, that is 120 TB of the log, with 20 topics each."""
COSTS: Final[dict[type[object], Cost]] = {
    Head: _LISTS,
    PageContent: _LISTS,
    # Files with the topics, groups and offsets of 100,000 topics are some 30 MB.
    MetadataContent: Cost(json_bytes=256 << 20, structure_bytes=64 << 10, texts=4000),
}
DOCUMENT_BYTES_MAX: Final = max(cost.json_bytes for cost in COSTS.values())
"""Nothing larger is read as a whole."""


def check_cost(text: bytes, kind: type[object]) -> None:
    """Raises ValueError for a document that costs too much to be parsed. In time linear in its bytes."""
    cost = COSTS[kind]
    if len(text) > cost.json_bytes:
        raise ValueError(f"has more than {cost.json_bytes} bytes of JSON")
    # Without escaped ones every quotation mark is the begin or the end of a text.
    plain = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if plain.count(b'"') > 2 * cost.texts:
        raise ValueError(f"has more than {cost.texts} texts")
    if sum(map(len, plain.split(b'"')[::2])) > cost.structure_bytes:
        raise ValueError(f"has more than {cost.structure_bytes} bytes of numbers, objects and lists")


def check_numbers(value: object) -> None:
    """Raises ValueError, with the object and the number, where a document has a number that cannot be."""
    if isinstance(value, Head):
        for generation in value.generations:
            _check_generation(generation)
        for session in value.recordings:
            for segment in session.segments:
                _check_segment(segment)
    elif isinstance(value, PageContent):
        _check_lists(value.objects, value.metadata)


def _check_generation(generation: Generation) -> None:
    _within(f"generation {generation.id[:40]}", "fileBytes", generation.file_bytes, FILE_BYTES)
    for page in generation.pages:
        _check_page(page)
    _check_lists(generation.objects, generation.metadata)


def _check_lists(objects: tuple[LogObject, ...], metadata: tuple[MetadataObject, ...]) -> None:
    for one in objects:
        _within(one.key, "endOffset - firstOffset", one.log_bytes, Range(1, OBJECT_BYTES_MAX))
        _within(one.key, "objectBytes", one.object_bytes, Range(1, STORED_BYTES_MAX))
        _within(one.key, "records", one.records, Range(0, one.log_bytes // RECORD_BYTES_MIN))
    for moment in metadata:
        _within(moment.key, "bytes", moment.bytes, Range(1, DOCUMENT_BYTES_MAX))


def _check_page(page: Page) -> None:
    log_bytes = page.end_offset - page.first_offset
    _within(page.key, "objects", page.objects, Range(1, PAGE_OBJECTS_MAX))
    _within(page.key, "endOffset - firstOffset", log_bytes, Range(1, page.objects * OBJECT_BYTES_MAX))
    _within(page.key, "objectBytes", page.object_bytes, Range(1, page.objects * STORED_BYTES_MAX))
    _within(page.key, "records", page.records, Range(0, log_bytes // RECORD_BYTES_MIN))


def _check_segment(segment: RecordedSegment) -> None:
    _within(segment.key, "records", segment.records, Range(1, ACCEPTED_RECORDS_MAX))
    _within(segment.key, "firstSeq", segment.first_seq, Range(0, CLOCK_NS.high))
    _within(segment.key, "firstNs", segment.first_ns, CLOCK_NS)
    _within(segment.key, "lastNs", segment.last_ns, CLOCK_NS)


def _within(where: str, name: str, number: int, bounds: Range) -> None:
    if not bounds.low <= number <= bounds.high:
        raise ValueError(f"{where}: {name} is {number}, not within {bounds.low} to {bounds.high}")
