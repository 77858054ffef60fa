"""Reading and replacing the head of an archive. Everything here blocks: it is called in worker threads.

A head is created under the next number, on the condition that there is none yet: of two writers one
succeeds. Old heads are deleted, so a writer that was suspended for long could create a head under a number
that another writer has used before. It lists the heads after its own, finds a newer one, and is fenced.
"""

from __future__ import annotations

from typing import Final

from trioha.archive.documents import document_for, read_document
from trioha.archive.errors import ArchiveError, FencedError, MissingObjectError
from trioha.archive.layout import HEADS, Head, head_key, head_number
from trioha.archive.objects import ObjectFolder

HEADS_KEPT: Final = 20
"""Newest heads that stay: readers that have just listed them still find theirs."""
_READ_ATTEMPTS: Final = 5


def read_head(folder: ObjectFolder) -> Head | None:
    """The newest head; None for an empty archive. Raises ArchiveError."""
    for attempt in range(_READ_ATTEMPTS):
        numbers = _numbers(folder)
        if not numbers:
            return None
        key = head_key(max(numbers))
        try:
            head = read_document(folder, key, Head)
        except MissingObjectError:
            # A writer has created many heads since the listing, and deleted this one.
            if attempt == _READ_ATTEMPTS - 1:
                raise
            continue
        if head.number != max(numbers):
            raise ArchiveError(f"is a copy of head {head.number}", url=folder.url, key=key)
        return head
    raise AssertionError("every attempt returns, continues or raises")


def create_head(folder: ObjectFolder, head: Head) -> None:
    """Make `head` the archive's state: its number is one more than that of the head it replaces.

    Raises FencedError if another writer has created that or a later one, ArchiveError if it is not known
    whether it was created: then `read_head` tells.
    """
    key = head_key(head.number)
    if not folder.create(key, document_for(folder, key, head)):
        # Our own request may have succeeded while its answer was lost, and was then repeated.
        newest = read_head(folder)
        if newest != head:
            raise fenced_by(folder, newest)
    after = _numbers(folder, after=head.number)
    if after:
        raise fenced_by(folder, read_head(folder))


def old_heads(folder: ObjectFolder, newest: int) -> list[str]:
    """Keys of the heads before the newest `HEADS_KEPT`, which may be deleted. Raises ArchiveError."""
    return [head_key(number) for number in _numbers(folder) if number <= newest - HEADS_KEPT]


def fenced_by(folder: ObjectFolder, head: Head | None) -> FencedError:
    """The error of a writer that is not the one of the newest head."""
    who = "another one" if head is None else f"{head.writer.id}, epoch {head.writer.epoch},"
    return FencedError(
        f"another writer archives here: {who} has created a newer head",
        url=folder.url,
        hint="give each broker a URL of its own, or stop the other writer",
    )


def _numbers(folder: ObjectFolder, *, after: int | None = None) -> list[int]:
    start = None if after is None else head_key(after)
    numbers = (head_number(one.key) for one in folder.list(HEADS, after=start))
    return [number for number in numbers if number is not None]
