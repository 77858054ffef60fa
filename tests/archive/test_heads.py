"""Heads of an archive, in a folder and on S3: one writer, readers beside it, and a writer that lost."""

import pytest
from attrs import evolve

from trioha.archive.documents import encode
from trioha.archive.errors import ArchiveError, FencedError
from trioha.archive.heads import HEADS_KEPT, create_head, old_heads, read_head
from trioha.archive.layout import Head, Writer, head_key
from trioha.archive.objects import ObjectFolder

HEAD = Head(
    number=1,
    cluster_name="C",
    broker_name="a",
    writer=Writer(id="host:/store", epoch=1, since_ms=1, renewed_ms=1),
    generations=(),
)


@pytest.fixture
def folder(archive_url):
    return ObjectFolder.open(archive_url, create=True)


def create_until(folder, head, number):
    while head.number < number:
        head = evolve(head, number=head.number + 1)
        create_head(folder, head)
    return head


def test_the_newest_head_is_read(folder):
    assert read_head(folder) is None
    create_head(folder, HEAD)
    assert read_head(folder) == HEAD
    assert create_until(folder, HEAD, 12) == evolve(HEAD, number=12)
    assert read_head(folder) == evolve(HEAD, number=12)


def test_the_second_of_two_writers_with_the_same_number_is_fenced(folder):
    create_head(folder, HEAD)
    other = evolve(HEAD, writer=evolve(HEAD.writer, id="other:/store", epoch=2))
    with pytest.raises(FencedError, match="host:/store, epoch 1"):
        create_head(folder, other)
    assert read_head(folder) == HEAD


def test_a_request_that_is_repeated_after_its_success_is_no_other_writer(folder):
    create_head(folder, HEAD)
    create_head(folder, HEAD)
    assert read_head(folder) == HEAD


def test_a_suspended_writer_is_fenced_even_if_its_number_is_free_again(folder):
    create_head(folder, HEAD)
    other = evolve(HEAD, writer=evolve(HEAD.writer, id="other:/store", epoch=2))
    newest = create_until(folder, other, HEADS_KEPT + 5)
    folder.delete(old_heads(folder, newest.number))
    with pytest.raises(FencedError, match="other:/store"):
        create_head(folder, evolve(HEAD, number=2))
    assert read_head(folder) == newest


def test_old_heads_are_deleted_and_the_newest_stay(folder):
    create_head(folder, HEAD)
    create_until(folder, HEAD, HEADS_KEPT + 3)
    folder.delete(old_heads(folder, HEADS_KEPT + 3))
    kept = sorted(one.key for one in folder.list("heads"))
    assert kept == [head_key(number) for number in range(4, HEADS_KEPT + 4)]


def test_what_is_not_a_head_is_named(folder):
    for data, reason in (
        (b"", "not a zstd frame"),
        (b"{}", "not a zstd frame"),
        (encode(HEAD)[:-3], "not"),
        (encode(evolve(HEAD, version=2)), "has version 2; this trioha reads 1"),
        (encode(evolve(HEAD, format="other")), "its format is not trioha-archive"),
        (encode(evolve(HEAD, number=2)), "is a copy of head 2"),
        (encode(evolve(HEAD, number=-1)), "-1 is not within 0 to 9223372036854775807 @ Head.number"),
    ):
        folder.put(head_key(1), data)
        with pytest.raises(ArchiveError, match=reason) as caught:
            read_head(folder)
        assert str(caught.value).startswith(f"{folder.url}/{head_key(1)}: ")
        assert "\n" not in str(caught.value)
