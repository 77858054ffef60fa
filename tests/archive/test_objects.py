"""Objects below a URL, in a folder and on an S3 server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.objects import ObjectFolder

PART_BYTES = 5 << 20
"""An object that comes in pieces is sent in parts of this size."""


def test_objects_are_stored_listed_read_and_deleted(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    assert folder.create("log/a", b"first")
    assert not folder.create("log/a", b"second")
    folder.put("log/b", iter([b"in", b"parts"]))
    folder.put("other/c", b"")
    assert sorted((one.key, one.bytes) for one in folder.list("log")) == [("log/a", 5), ("log/b", 7)]
    assert [one.key for one in folder.list("log", after="log/a")] == ["log/b"]
    assert folder.get("log/a") == b"first"
    assert folder.get("other/c") == b""
    assert b"".join(folder.stream("log/b")) == b"inparts"
    folder.delete(["log/a", "log/none", "log/b"])
    assert list(folder.list("log")) == []
    assert list(folder.list("nothing")) == []


def test_ranges_end_with_the_object(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    folder.put("log/a", b"0123456789")
    assert folder.get_range("log/a", start=2, end=5) == b"234"
    assert folder.get_range("log/a", start=8, end=20) == b"89"
    assert folder.get_range("log/a", start=3, end=3) == b""
    with pytest.raises(ArchiveError):
        folder.get_range("log/a", start=10, end=11)


def test_a_missing_object_is_named_with_its_url(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    for read in (
        lambda: folder.get("log/a"),
        lambda: list(folder.stream("log/a")),
        lambda: folder.get_range("log/a", start=0, end=1),
    ):
        with pytest.raises(MissingObjectError) as caught:
            read()
        assert str(caught.value) == f"{archive_url}/log/a: there is no such object"


def test_one_of_eight_writers_creates_an_object(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    together = threading.Barrier(8)

    def create(number):
        together.wait()
        return folder.create("heads/1", b"writer %d" % number)

    with ThreadPoolExecutor(8) as writers:
        created = list(writers.map(create, range(8)))
    assert sum(created) == 1
    assert folder.get("heads/1") == b"writer %d" % created.index(True)


@pytest.mark.full
def test_more_objects_than_a_listing_has_on_a_page_are_listed_and_deleted(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    keys = [f"log/{number:05}" for number in range(1010)]
    for key in keys:
        folder.put(key, b"x")
    assert sorted(one.key for one in folder.list("log")) == keys
    assert sorted(one.key for one in folder.list("log", after=keys[4])) == keys[5:]
    folder.delete(["log/none", *keys[:-1]])
    assert [one.key for one in folder.list("log")] == keys[-1:]


def test_an_object_of_several_parts_is_replaced_as_a_whole(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    pieces = [bytes([number]) * (1 << 20) for number in range(13)]
    folder.put("log/a", b"small")
    folder.put("log/a", iter(pieces))
    whole = b"".join(pieces)
    assert folder.get("log/a") == whole
    assert b"".join(folder.stream("log/a")) == whole
    assert folder.get_range("log/a", start=PART_BYTES - 1, end=PART_BYTES + 1) == b"\x04\x05"


def test_an_error_of_the_source_is_raised_as_it_is_and_nothing_is_stored(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)

    def pieces(parts, error):
        yield b"x"
        for _ in range(parts):
            yield bytes(PART_BYTES)
        raise error

    for parts, error in (
        (0, RuntimeError("of the source")),
        (2, OSError(5, "of the disk")),
        (0, TimeoutError()),
    ):
        with pytest.raises(type(error)) as caught:
            folder.put("log/a", pieces(parts, error))
        assert caught.value is error
        assert list(folder.list("log")) == []


def test_folders_with_a_common_beginning_are_apart(archive_url):
    folder = ObjectFolder.open(archive_url, create=True)
    longer = ObjectFolder.open(f"{archive_url}b", create=True)
    folder.put("log/a", b"1")
    folder.put("log-old/a", b"2")
    longer.put("log/b", b"3")
    assert [one.key for one in folder.list("log")] == ["log/a"]
    assert sorted(one.key for one in folder.list("")) == ["log-old/a", "log/a"]
    assert [one.key for one in longer.list("log")] == ["log/b"]


def test_what_is_not_a_url_of_an_archive_is_refused():
    for url, reason in (
        ("/tmp/x", "not a URL of an object storage; write s3://, gs://, az:// or file:///"),
        ("http://host/x", "not a URL of an object storage; write s3://, gs://, az:// or file:///"),
        ("s3://", "names no bucket; write s3://bucket/folder"),
        ("file://host/x", "not an absolute folder; write file:///folder"),
        ("file:///no/such/folder", "there is no such folder"),
    ):
        with pytest.raises(ArchiveError) as caught:
            ObjectFolder.open(url)
        assert str(caught.value) == f"{url}: {reason}"


def test_a_listing_without_end_is_given_up_at_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha.archive.objects.OBJECTS_MAX", 2)
    folder = ObjectFolder.open(tmp_path.as_uri())
    for name in ("a", "b"):
        folder.put(f"log/{name}", b"x")
    assert len(list(folder.list("log"))) == 2
    folder.put("log/c", b"x")
    with pytest.raises(ArchiveError, match="lists more than 2 objects"):
        list(folder.list("log"))
