"""Objects below a URL, in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioha.archive.errors import ArchiveError, MissingObjectError
from trioha.archive.objects import ObjectFolder


def test_objects_are_stored_listed_read_and_deleted(tmp_path: Path) -> None:
    folder = ObjectFolder.open(f"file://{tmp_path}/new", create=True)
    assert folder.create("log/a", b"first")
    assert not folder.create("log/a", b"second")
    folder.put("log/b", iter([b"in", b"parts"]))
    folder.put("other/c", b"")
    assert sorted((one.key, one.bytes) for one in folder.list("log")) == [("log/a", 5), ("log/b", 7)]
    assert [one.key for one in folder.list("log", after="log/a")] == ["log/b"]
    assert folder.get("log/a") == b"first"
    assert folder.get_range("log/b", start=2, end=5) == b"par"
    assert b"".join(folder.stream("log/b")) == b"inparts"
    folder.delete(["log/a", "log/none", "log/b"])
    assert list(folder.list("log")) == []
    assert list(folder.list("nothing")) == []


def test_a_missing_object_is_named_with_its_url(tmp_path: Path) -> None:
    folder = ObjectFolder.open(f"file://{tmp_path}")
    for read in (
        lambda: folder.get("log/a"),
        lambda: list(folder.stream("log/a")),
        lambda: folder.get_range("log/a", start=0, end=1),
    ):
        with pytest.raises(MissingObjectError) as caught:
            read()
        assert str(caught.value) == f"file://{tmp_path}/log/a: there is no such object"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/tmp/x", "not a URL of an object storage; write s3://, gs://, az:// or file:///"),
        ("http://host/x", "not a URL of an object storage; write s3://, gs://, az:// or file:///"),
        ("s3://", "names no bucket; write s3://bucket/folder"),
        ("file://host/x", "not an absolute folder; write file:///folder"),
        ("file:///no/such/folder", "there is no such folder"),
    ],
)
def test_what_is_not_a_url_of_an_archive_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ArchiveError) as caught:
        ObjectFolder.open(url)
    assert str(caught.value) == f"{url}: {reason}"
