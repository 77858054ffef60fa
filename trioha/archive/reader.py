"""What there is in an archive, and which of its objects have an offset, a time or a topic.

Everything here blocks: nodes and screens call it in worker threads. Spark's executors use it, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from attrs import frozen

from trioha.archive.documents import read_document
from trioha.archive.errors import ArchiveError, NoArchiveError
from trioha.archive.heads import read_head
from trioha.archive.layout import (
    Generation,
    Head,
    LogObject,
    MetadataContent,
    MetadataObject,
    Page,
    PageContent,
)
from trioha.archive.objects import ObjectFolder


@frozen(kw_only=True)
class Selection:
    """Which part of a log: everything that is None does not matter."""

    first_offset: int | None = None
    end_offset: int | None = None
    from_ms: int | None = None
    """Records stored at or after it."""
    to_ms: int | None = None
    """Records stored before it."""
    topics: Collection[str] | None = None

    def may_have(self, part: _Part) -> bool:
        """Whether an object or a page can have a record of this selection, by its statistics."""
        if self.first_offset is not None and part.end_offset <= self.first_offset:
            return False
        if self.end_offset is not None and part.first_offset >= self.end_offset:
            return False
        if not part.records:
            return self.from_ms is None and self.to_ms is None and self.topics is None
        if self.from_ms is not None and part.max_store_ms < self.from_ms:
            return False
        if self.to_ms is not None and part.min_store_ms >= self.to_ms:
            return False
        return self.topics is None or part.topics is None or not set(self.topics).isdisjoint(part.topics)


class _Part(Protocol):
    """The statistics of an object or a page."""

    @property
    def first_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def min_store_ms(self) -> int: ...
    @property
    def max_store_ms(self) -> int: ...
    @property
    def topics(self) -> tuple[str, ...] | None: ...


class ArchiveReader:
    """An archive as of one head."""

    def __init__(self, folder: ObjectFolder, head: Head) -> None:
        self.folder = folder
        self.head = head

    @classmethod
    def open(cls, url: str, *, config: Mapping[str, str] | None = None) -> ArchiveReader:
        """Read the newest head of the archive at `url`. Raises ArchiveError; also if there is none.

        `config` as of `ObjectFolder.open`.
        """
        folder = ObjectFolder.open(url, config=config)
        head = read_head(folder)
        if head is None:
            raise NoArchiveError(url)
        return cls(folder, head)

    def generation(self, identifier: str | None = None) -> Generation:
        """The generation with this id, or the only one that begins with it; the newest one by default."""
        generations = self.head.generations
        if identifier is None:
            if not generations:
                raise ArchiveError("nothing is archived yet", url=self.folder.url)
            return generations[-1]
        found = [one for one in generations if one.id.startswith(identifier)]
        if len(found) == 1:
            return found[0]
        raise ArchiveError(
            f"{'no' if not found else 'more than one'} generation {identifier}",
            url=self.folder.url,
            hint="there are " + ", ".join(one.id for one in generations) if generations else "there is none",
        )

    def page(self, page: Page) -> PageContent:
        """The lists of a page. Raises ArchiveError."""
        content = read_document(self.folder, page.key, PageContent)
        if not content.objects or (content.objects[0].first_offset, content.objects[-1].end_offset) != (
            page.first_offset,
            page.end_offset,
        ):
            raise ArchiveError("has other objects than the head says", url=self.folder.url, key=page.key)
        return content

    def objects(self, generation: Generation, selection: Selection | None = None) -> Iterator[LogObject]:
        """The generation's log objects that may have something of the selection, in order of offsets.

        Pages without such objects are not read. Raises ArchiveError, also for a hole between objects.
        """
        selection = Selection() if selection is None else selection
        offset = generation.first_offset
        for page in generation.pages:
            self._expect(page.key, page.first_offset, offset)
            offset = page.end_offset
            if selection.may_have(page):
                yield from self._without_holes(page.first_offset, self.page(page).objects, selection)
        yield from self._without_holes(offset, generation.objects, selection)

    def _without_holes(
        self, offset: int, objects: tuple[LogObject, ...], selection: Selection
    ) -> Iterator[LogObject]:
        for one in objects:
            self._expect(one.key, one.first_offset, offset)
            offset = one.end_offset
            if selection.may_have(one):
                yield one

    def _expect(self, key: str, first_offset: int, offset: int) -> None:
        if first_offset != offset:
            raise ArchiveError(
                f"begins at {first_offset}, the object before it ends at {offset}",
                url=self.folder.url,
                key=key,
            )

    def metadata(self, generation: Generation) -> Iterator[MetadataObject]:
        """All metadata of the generation, newest first. Reads pages as far as it is followed."""
        yield from reversed(generation.metadata)
        for page in reversed(generation.pages):
            yield from reversed(self.page(page).metadata)

    def metadata_files(self, one: MetadataObject) -> MetadataContent:
        """The config files of a moment. Raises ArchiveError."""
        return read_document(self.folder, one.key, MetadataContent)
