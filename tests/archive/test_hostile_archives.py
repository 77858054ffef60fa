"""Archives that somebody else wrote: whatever number they have, each reader ends soon, in little memory."""

import json
import os
import random
import signal
import struct
import tracemalloc
from contextlib import contextmanager

import pytest
import zstandard
from attrs import evolve

from tests.archive.building import Moment, Put, build_from, made_log
from tests.levels import by_level
from tests.node_process import run_trioha
from trioha.archive.bounds import COSTS, Cost
from trioha.archive.contents import contents_of
from trioha.archive.documents import document_for, encode
from trioha.archive.errors import ArchiveError
from trioha.archive.heads import create_head
from trioha.archive.layout import Head, MetadataContent, PageContent, RecordedSegment, RecordedSession
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.restore import Restore
from trioha.archive.restore_plan import Target
from trioha.archive.verification import verify_archive
from trioha.errors import TriohaError
from trioha.metadata.clamped_offsets import clamp_offsets

FILE_BYTES = 1000
CPU_S = 20.0
"""A reader of the archive below needs some ms; a loop that an archive's number drives needs years."""
MEMORY_BYTES = 32 << 20
NUMBERS = (0, 1, 2, 91, 99, 4096, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, 10**40, -1)
"""Borders of types, of bounds, and of what fits a disk."""
ENTRIES = made_log(
    [Put(body=b"x" * (17 * number % 200), store_ms=1_000_000 + number) for number in range(16)],
    file_bytes=FILE_BYTES,
)


@pytest.fixture(autouse=True)
def no_syncs(monkeypatch):
    """Hundreds of restores would wait for the disk."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)


@contextmanager
def bounded():
    """The block ends within `CPU_S` of this process's own time, and holds `MEMORY_BYTES` at most."""

    def refuse(_signal, _frame):
        raise AssertionError(f"goes on after {CPU_S:g} s of CPU")

    before = signal.signal(signal.SIGVTALRM, refuse)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak < MEMORY_BYTES, f"held {peak} bytes"
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def each_reader(url, into):
    """All that reads an archive as a whole; what an operator sees of the refusals, in one line each."""

    def restored(**target):
        name = "-".join(f"{key}-{value}" for key, value in target.items()) or "latest"
        return Restore(ArchiveReader.open(url), into / name, clamp=clamp_offsets).run(Target(**target))

    readers = {
        "list": lambda: contents_of(ArchiveReader.open(url)).to_json(),
        "verify": lambda: verify_archive(ArchiveReader.open(url)),
        "quick verify": lambda: verify_archive(ArchiveReader.open(url), quick=True),
        "restore": restored,
        "restore to a time": lambda: restored(to_ms=1_000_008),
        "restore to an offset": lambda: restored(to_offset=ENTRIES[9].end_offset),
    }
    said = {}
    for name, read in readers.items():
        try:
            with bounded():
                read()
        except TriohaError as error:
            said[name] = str(error)
    assert all(len(line) < 1000 and "\n" not in line for line in said.values())
    return said


@pytest.fixture
def archive(tmp_path):
    """An archive with pages, objects, metadata and a recording, and its folder."""
    url = f"file://{tmp_path}/archive"
    moments = [
        Moment(taken_ms=1_000_000 + at, offset=ENTRIES[at].offset, files={"topics.json": "{}"})
        for at in (3, 9)
    ]
    head = build_from(
        url,
        ENTRIES,
        file_bytes=FILE_BYTES,
        object_bytes=400,
        codec=lambda number: ("none", "zstd")[number % 2],
        metadata=moments,
        page_objects=3,
    )
    segment = RecordedSegment(
        key="recordings/s/events/00000000000000000000.parquet",
        first_seq=0,
        records=9,
        first_ns=1,
        last_ns=2,
        bytes=9,
    )
    session = RecordedSession(session="s", segments=(segment,), closed=True)
    folder = ObjectFolder.open(url)
    create_head(folder, evolve(head, number=head.number + 1, recordings=(session,)))
    return folder


def newest_head(folder):
    return max(one.key for one in folder.list("heads"))


def documents(folder):
    """Keys of the newest head, all pages and all metadata."""
    return [newest_head(folder), *(one.key for kind in ("pages", "metadata") for one in folder.list(kind))]


def parsed(folder, key):
    return json.loads(zstandard.ZstdDecompressor().decompress(folder.get(key)))


def numbers_in(value, path=()):
    """Where numbers are, as the keys and places on the way."""
    if isinstance(value, dict | list):
        for at, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(inner, (*path, at))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path


def with_number(value, path, number):
    for at in path[:-1]:
        value = value[at]
    value[path[-1]] = number


def put_json(folder, key, text):
    folder.put(key, zstandard.ZstdCompressor().compress(text if isinstance(text, bytes) else text.encode()))


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(2, 20, 200)))
def test_any_number_of_a_head_a_page_or_metadata_may_be_any(archive, tmp_path, seed):
    rng = random.Random(seed)
    places = [(key, path) for key in documents(archive) for path in numbers_in(parsed(archive, key))]
    whole = each_reader(archive.url, tmp_path / "whole")
    assert not whole, "as it was made, every reader accepts it"
    # Each name of a number once in any case: a head has hundreds of the same.
    of_name = {}
    for key, path in places:
        of_name.setdefault((key.split("/")[0], path[-1]), []).append((key, path))
    for name, found in of_name.items():
        key, path = rng.choice(found)
        before = archive.get(key)
        value = parsed(archive, key)
        with_number(value, path, rng.choice(NUMBERS))
        put_json(archive, key, json.dumps(value))
        each_reader(archive.url, tmp_path / f"{'-'.join(map(str, name))}")
        archive.put(key, before)


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(10, 60, 600)))
def test_several_numbers_may_agree_on_what_cannot_be(archive, tmp_path, seed):
    """As `fileBytes` of 1 beside an object of 2^62 bytes."""
    rng = random.Random(seed)
    for key in documents(archive):
        value = parsed(archive, key)
        paths = list(numbers_in(value))
        number = rng.choice(NUMBERS)
        for path in rng.sample(paths, min(len(paths), rng.randint(1, 6))):
            with_number(value, path, rng.choice((number, rng.choice(NUMBERS))))
        put_json(archive, key, json.dumps(value))
    each_reader(archive.url, tmp_path / "stores")


@pytest.mark.sized
@pytest.mark.parametrize("seed", range(by_level(10, 60, 600)))
def test_numbers_in_the_headers_of_frames_and_records_may_be_any(tmp_path, seed):
    """A whole archive around a record that lies, then its objects' zstd headers."""
    rng = random.Random(seed)
    number = rng.randrange(len(ENTRIES))
    data = bytearray(ENTRIES[number].data)
    form = rng.choice(("i", "q", "h"))
    at = rng.randrange(min(len(data), 100) - struct.calcsize(form))
    low, high = {"i": (-(2**31), 2**31 - 1), "q": (-(2**63), 2**63 - 1), "h": (-(2**15), 2**15 - 1)}[form]
    struct.pack_into(f">{form}", data, at, rng.choice((low, high, -1, 0, 1, rng.randint(low, high))))
    lying = [*ENTRIES[:number], evolve(ENTRIES[number], data=bytes(data)), *ENTRIES[number + 1 :]]
    url = f"file://{tmp_path}/archive"
    build_from(url, lying, file_bytes=FILE_BYTES, object_bytes=400, codec="zstd", page_objects=3)
    each_reader(url, tmp_path / "records")
    folder = ObjectFolder.open(url)
    for kind in ("heads", "pages", "log"):
        for one in folder.list(kind):
            stored = bytearray(folder.get(one.key))
            place = rng.randrange(min(16, len(stored)))
            stored[place] = rng.randrange(256)
            folder.put(one.key, bytes(stored))
            each_reader(url, tmp_path / f"{kind}-{one.key.rpartition('/')[2][:30]}")


@pytest.mark.parametrize(
    ("name", "number"),
    [("records", 16_000_001), ("records", 0), ("firstSeq", 2**63 - 1), ("firstNs", 2**63 - 1)],
)
def test_a_recorded_segment_has_numbers_that_can_be(archive, name, number):
    """Readers of sessions, Spark's executors among them, plan their work by these numbers of the head."""
    key = newest_head(archive)
    value = parsed(archive, key)
    value["recordings"][0]["segments"][0][name] = number
    put_json(archive, key, json.dumps(value))
    with pytest.raises(
        ArchiveError, match=f"not a head: recordings/s/events/0+.parquet: {name} is {number}, not"
    ):
        ArchiveReader.open(archive.url)


CHEAP_TO_WRITE = {
    "objects": b'{"x":[' + b"{}," * (20 << 20) + b"{}]}",
    "lists": b"[" * (40 << 20),
    "numbers": b"[" + b"1000," * (10 << 20) + b"0]",
    "texts": b"[" + b'"",' * (3 << 20) + b'""]',
    "texts that look like one": b'["' + b'\\\\","' * (3 << 20) + b'"]',
    "one text": b'["' + b"x" * (257 << 20) + b'"]',
}
"""JSON of which some KB of zstd are hundreds of MB."""


@pytest.mark.parametrize("kind", CHEAP_TO_WRITE)
def test_a_small_document_does_not_become_a_large_one(archive, tmp_path, kind):
    """What it costs is known before it is parsed. Objects of JSON would cost 20 times their text."""
    text = CHEAP_TO_WRITE[kind]
    key = newest_head(archive)
    put_json(archive, key, text)
    assert len(archive.get(key)) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="not a head: has more than"):
            ArchiveReader.open(archive.url)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * min(len(text), COSTS[Head].json_bytes) + (1 << 20)


def test_texts_of_config_files_cost_what_they_are_long(tmp_path):
    """They are JSON in a text: their own objects and quotation marks are none of the document's."""
    text = json.dumps({f"T{number}": {"a\\": '"' * 3, "b": [1, 2]} for number in range(20_000)})
    data = encode(MetadataContent(taken_ms=1, offset=2, files={"topics.json": text}))
    folder = ObjectFolder.open(f"file://{tmp_path}/archive", create=True)
    folder.put("metadata/g/1.json.zst", data)
    assert len(data) < len(text)


@pytest.mark.parametrize("limit", ["json_bytes", "structure_bytes", "texts"])
def test_a_writer_writes_nothing_that_no_reader_accepts(archive, monkeypatch, limit):
    head = ArchiveReader.open(archive.url).head
    monkeypatch.setitem(COSTS, Head, evolve(Cost(1 << 20, 1 << 20, 1000), **{limit: 10}))
    with pytest.raises(
        ArchiveError, match=r"has more than 10 .*no reader would accept that; drop what is old"
    ):
        create_head(archive, evolve(head, number=head.number + 1))
    assert document_for(archive, "pages/x", PageContent(objects=(), metadata=()))


def test_an_object_that_is_too_large_for_memory_is_not_read_as_a_whole(archive, monkeypatch):
    monkeypatch.setattr("trioha.archive.objects.WHOLE_BYTES_MAX", 100)
    with pytest.raises(ArchiveError, match=r"has \d+ bytes, at most 100 are read as a whole"):
        ArchiveReader.open(archive.url)


@pytest.mark.process
def test_each_command_refuses_a_hostile_archive_in_one_line(archive, tmp_path):
    key = newest_head(archive)
    value = parsed(archive, key)
    generation = value["generations"][-1]
    generation["fileBytes"] = 1
    generation["pages"] = []
    generation["objects"] = [{**generation["objects"][0], "firstOffset": 0, "endOffset": 2**62}]
    lying = (json.dumps(value), "generation 0001-5f0c9a12: fileBytes is 1, not within 99 to 2147483647")
    large = (CHEAP_TO_WRITE["objects"], "has more than 8388608 bytes of numbers, objects and lists")
    for (text, reason), command in (
        (lying, ("restore", archive.url, "--into", tmp_path / "store")),
        (lying, ("verify", archive.url)),
        (large, ("restore", archive.url, "--list")),
    ):
        put_json(archive, key, text)
        answer = run_trioha(*command)
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert answer.stderr == f"trioha: {archive.url}/{key}: not a head: {reason}\n"
    assert not (tmp_path / "store").exists()
