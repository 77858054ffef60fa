"""What an archive has, and which objects have a selection, by the statistics of pages and objects."""

import zlib

import pytest
from attrs import evolve

from trioha.archive.documents import encode
from trioha.archive.errors import ArchiveError
from trioha.archive.heads import create_head
from trioha.archive.layout import (
    FRAME_BYTES,
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
    union_of_topics,
)
from trioha.archive.log_bytes import compress, read_log_object
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader, Selection

GENERATION = "0001-00000000"


def log_object(first, end, *, minute, topics):
    return LogObject(
        key=log_key(GENERATION, first_offset=first, end_offset=end, crc32=0, codec="none"),
        first_offset=first,
        end_offset=end,
        records=0 if topics == () else 1,
        min_store_ms=minute * 60_000,
        max_store_ms=minute * 60_000 + 59_999,
        topics=topics,
        crc32=0,
        codec="none",
        object_bytes=end - first,
    )


A = log_object(100, 200, minute=1, topics=("a",))
B = log_object(200, 300, minute=2, topics=("a", "b"))
C = log_object(300, 400, minute=3, topics=("c",))
D = log_object(400, 500, minute=4, topics=None)
BLANK = log_object(500, 600, minute=0, topics=())


def metadata_of(minute, offset):
    taken_ms = minute * 60_000
    key = metadata_key(GENERATION, offset=offset, taken_ms=taken_ms, token="x")
    return MetadataObject(key=key, taken_ms=taken_ms, offset=offset, bytes=1)


@pytest.fixture
def reader(tmp_path):
    folder = ObjectFolder.open(f"file://{tmp_path}")
    key = page_key(GENERATION, first_offset=100, token="x")
    folder.put(key, encode(PageContent(objects=(A, B), metadata=(metadata_of(1, 150),))))
    generation = Generation(
        id=GENERATION,
        began_ms=1,
        reason="first archive",
        file_bytes=1000,
        first_offset=100,
        pages=(page_of(key, (A, B)),),
        objects=(C, D, BLANK),
        metadata=(metadata_of(3, 350), metadata_of(4, 450)),
    )
    head = Head(
        number=1,
        cluster_name="C",
        broker_name="a",
        writer=Writer(id="host:/store", epoch=1, since_ms=1, renewed_ms=1),
        generations=(generation,),
    )
    create_head(folder, head)
    opened = ArchiveReader.open(folder.url)
    assert opened.head == head
    return opened


@pytest.mark.parametrize(
    ("selection", "found"),
    [
        (Selection(), [A, B, C, D, BLANK]),
        (Selection(first_offset=199, end_offset=201), [A, B]),
        (Selection(first_offset=200, end_offset=300), [B]),
        (Selection(first_offset=450), [D, BLANK]),
        (Selection(from_ms=2 * 60_000, to_ms=3 * 60_000), [B]),
        (Selection(from_ms=179_999), [B, C, D]),
        (Selection(to_ms=60_001), [A]),
        (Selection(topics=("c",)), [C, D]),
        (Selection(topics=("b", "x")), [B, D]),
    ],
)
def test_objects_are_selected_by_their_statistics(reader, selection, found):
    assert list(reader.objects(reader.generation(), selection)) == found


def test_a_page_without_such_objects_is_not_read(reader):
    reader.folder.delete([reader.generation().pages[0].key])
    assert list(reader.objects(reader.generation(), Selection(first_offset=300))) == [C, D, BLANK]
    with pytest.raises(ArchiveError, match="no such object"):
        list(reader.objects(reader.generation(), Selection(first_offset=299)))


def test_metadata_comes_newest_first(reader):
    assert [one.offset for one in reader.metadata(reader.generation())] == [450, 350, 150]


def test_a_hole_between_objects_is_an_error(reader):
    torn = evolve(reader.generation(), objects=(C, BLANK))
    with pytest.raises(ArchiveError, match="begins at 500, the object before it ends at 400"):
        list(reader.objects(torn))


def test_generations_are_found_by_the_beginning_of_their_id(reader):
    assert reader.generation("0001").id == GENERATION
    with pytest.raises(ArchiveError, match="no generation 0002; there are 0001-00000000"):
        reader.generation("0002")


def test_metadata_is_read_back(reader):
    content = MetadataContent(taken_ms=7, offset=9, files={"topics.json": '{"ä":1}'})
    one = metadata_of(5, 500)
    reader.folder.put(one.key, encode(content))
    assert reader.metadata_files(one) == content


def test_an_empty_folder_is_no_archive(tmp_path):
    with pytest.raises(ArchiveError, match="there is no archive; trioha archive STORE --to URL makes one"):
        ArchiveReader.open(f"file://{tmp_path}")


def test_more_topics_than_a_list_may_name_are_unknown():
    assert union_of_topics([("b",), ("a", "b")]) == ("a", "b")
    assert union_of_topics([("a",), None]) is None
    assert union_of_topics([tuple(f"t{number}" for number in range(65))]) is None


def pieces_of(data):
    for at in range(0, len(data), FRAME_BYTES):
        yield data[at : at + FRAME_BYTES]


def stored(folder, data, *, codec):
    body = b"".join(compress(pieces_of(data))) if codec == "zstd" else data
    one = evolve(
        log_object(0, len(data), minute=1, topics=("a",)),
        crc32=zlib.crc32(data),
        codec=codec,
        object_bytes=len(body),
    )
    folder.put(one.key, body)
    return one


DATA = b"0123456789abcdef" * (FRAME_BYTES // 16 + 1000)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_the_bytes_of_the_log_come_back(tmp_path, codec):
    folder = ObjectFolder.open(f"file://{tmp_path}")
    one = stored(folder, DATA, codec=codec)
    assert b"".join(read_log_object(folder, one)) == DATA


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("fault", ["flipped", "shorter", "longer"])
def test_damage_of_an_object_is_found_before_its_last_piece(tmp_path, codec, fault):
    folder = ObjectFolder.open(f"file://{tmp_path}")
    one = stored(folder, DATA, codec=codec)
    data = bytearray(folder.get(one.key))
    if fault == "flipped":
        data[len(data) // 2] ^= 4
    elif fault == "shorter":
        del data[-40:]
    else:
        data += next(compress([b"more"])) if codec == "zstd" else b"more"
    folder.put(one.key, bytes(data))
    received = []
    with pytest.raises(ArchiveError, match=r"has (CRC|\d+ bytes|more than)|cannot be decompressed"):
        received.extend(read_log_object(folder, one))
    assert sum(map(len, received)) < len(DATA)
