"""What an archive may drop, so that a restore to any time from `from_ms` on is still possible.

Objects go from a generation's front, up to the start of a log file: a restored log begins with a whole file.
The file with the last record from before `from_ms` stays, and so does the metadata of that time. A
generation goes as a whole if the next one had begun before `from_ms`, and its own records say the same.

Store times may go back, and a record may claim a time to come. An object whose latest record was not stored
after those before it, or leads the clock, says nothing of its age: it goes only with later ones that are old.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import evolve, field, frozen

from trioha.archive.context import ArchiveContext
from trioha.archive.draft import Draft
from trioha.archive.layout import RECORDINGS, Generation, Head, LogObject, MetadataObject, Page, PageContent
from trioha.archive.reader import ArchiveReader
from trioha.archive.upkeep import store_page
from trioha.recording.layout import FACTS_FILE, SESSION_FILE
from trioha.store.time_steps import LEAD_MS_MAX


@frozen(kw_only=True)
class Cut:
    """A generation without its front."""

    generation: Generation
    """Its first page is to be replaced by one of `content`, if there is a content."""
    content: PageContent | None
    dropped: list[str] = field(factory=list)
    """Keys that the generation does not refer to any more."""


def cut_of(reader: ArchiveReader, generation: Generation, *, from_ms: int, latest_ms: int) -> Cut | None:
    """The generation without what no restore from `from_ms` on needs; None if that is all of it.

    Nothing can have been stored after `latest_ms`, the present. Raises ArchiveError.
    """
    boundary = _boundary(reader, generation, from_ms=from_ms, latest_ms=latest_ms)
    if boundary <= generation.first_offset:
        return None
    pages = generation.pages
    dropped: list[str] = []
    early: list[MetadataObject] = []
    content = None
    while pages and pages[0].first_offset < boundary:
        page, *_ = pages
        pages = pages[1:]
        old = reader.page(page)
        dropped += [page.key, *(one.key for one in old.objects if one.end_offset <= boundary)]
        early += old.metadata
        rest = tuple(one for one in old.objects if one.first_offset >= boundary)
        if rest:
            content = PageContent(objects=rest, metadata=())
            # A place for the page that is to be stored.
            pages = (page, *pages)
            break
    early, gone = _needed(early, from_ms)
    metadata = generation.metadata
    if content is not None:
        content = evolve(content, metadata=tuple(early))
    elif early and pages:
        old = reader.page(pages[0])
        content = evolve(old, metadata=(*early, *old.metadata))
        dropped.append(pages[0].key)
    else:
        kept, more = _needed([*early, *metadata], from_ms)
        metadata = tuple(kept)
        gone += more
    dropped += [one.key for one in gone]
    dropped += [one.key for one in generation.objects if one.end_offset <= boundary]
    return Cut(
        generation=evolve(
            generation,
            first_offset=boundary,
            pages=pages,
            objects=tuple(one for one in generation.objects if one.first_offset >= boundary),
            metadata=metadata,
        ),
        content=content,
        dropped=dropped,
    )


def _boundary(reader: ArchiveReader, generation: Generation, *, from_ms: int, latest_ms: int) -> int:
    """Start of the first log file that is needed."""
    old_end = generation.first_offset
    stored_ms = 0
    for one in _front(reader, generation, from_ms):
        if not stored_ms <= one.max_store_ms <= latest_ms:
            continue
        if one.max_store_ms >= from_ms:
            break
        stored_ms, old_end = one.max_store_ms, one.end_offset
    # The last record from before then stays: a restore to that time ends with it.
    return old_end - 1 - (old_end - 1) % generation.file_bytes


def _front(reader: ArchiveReader, generation: Generation, from_ms: int) -> Iterator[Page | LogObject]:
    """Pages and objects from the front; of a page that is partly needed its objects."""
    for page in generation.pages:
        if page.max_store_ms < from_ms or page.min_store_ms >= from_ms:
            yield page
        else:
            yield from reader.page(page).objects
    yield from generation.objects


def _needed(
    metadata: list[MetadataObject], from_ms: int
) -> tuple[list[MetadataObject], list[MetadataObject]]:
    """What is needed of metadata in order of time: the newest from before `from_ms`, and all later ones."""
    first = max((index for index, one in enumerate(metadata) if one.taken_ms <= from_ms), default=0)
    return metadata[first:], metadata[:first]


def expired_generations(head: Head, *, from_ms: int, latest_ms: int) -> tuple[Generation, ...]:
    """Generations that were replaced before `from_ms`, also by the time of their last records.

    That of a record after `latest_ms`, the present, says nothing.
    """

    def is_old(generation: Generation) -> bool:
        newest: tuple[Page | LogObject, ...] = (*generation.pages[-1:], *generation.objects)
        return all(one.max_store_ms <= from_ms or one.max_store_ms > latest_ms for one in newest[-1:])

    return tuple(
        one
        for one, following in zip(head.generations, head.generations[1:], strict=False)
        if following.began_ms <= from_ms and is_old(one)
    )


def keys_of(reader: ArchiveReader, generation: Generation) -> list[str]:
    """Keys of all objects of a generation. Raises ArchiveError."""
    keys = [one.key for one in generation.objects] + [one.key for one in generation.metadata]
    for page in generation.pages:
        content = reader.page(page)
        keys += [page.key, *(one.key for one in content.objects), *(one.key for one in content.metadata)]
    return keys


def recording_keys(head: Head) -> set[str]:
    """Keys of all objects of recordings."""
    return {
        key
        for session in head.recordings
        for key in (
            *(segment.key for segment in session.segments),
            *(f"{RECORDINGS}/{session.session}/{name}" for name in (SESSION_FILE, FACTS_FILE)),
        )
    }


def unreferenced(reader: ArchiveReader, head: Head, keys: Iterable[str]) -> list[str]:
    """Those of the keys that `head` does not refer to. Raises ArchiveError.

    Only generations after the one in a key can refer to it, so most need no look at pages.
    """
    if not head.generations:
        return list(keys)
    newest = head.generations[-1].id
    recorded = recording_keys(head)
    others: set[str] | None = None
    result = []
    for key in keys:
        kind, name, _ = key.split("/", 2)
        if kind == RECORDINGS:
            if key in recorded:
                continue
        elif name != newest:
            if others is None:
                others = {found for generation in head.generations for found in keys_of(reader, generation)}
            if key in others:
                continue
        result.append(key)
    return result


class Retention:
    """Drops from the generations of drafts what no restore to a time within `keep_s` needs."""

    def __init__(self, context: ArchiveContext) -> None:
        self._context = context
        self._settings = context.settings
        self._clock = context.clock
        self._is_doubt_told = False
        self._due_s = 0.0
        """When to look again (monotonic)."""

    def kept_from_ms(self) -> int | None:
        """What is older than this is not kept; None to keep everything, also while the clock is in doubt."""
        keep_s = self._settings.keep_s
        return None if keep_s is None or self._clock.doubt else self._clock.past_ms() - round(keep_s * 1000)

    def due_from_ms(self) -> int | None:
        """`kept_from_ms` if it is time to look what may go, else None; reports a doubt about the clock."""
        doubt = self._clock.doubt
        if doubt and not self._is_doubt_told:
            self._context.notify(doubt)
        self._is_doubt_told = bool(doubt)
        from_ms = self.kept_from_ms()
        if from_ms is None or self._context.monotonic() < self._due_s:
            return None
        self._due_s = self._context.monotonic() + self._settings.retention_s
        return from_ms

    def retain(self, draft: Draft, *, from_ms: int) -> None:
        """Drop what no restore from `from_ms` on needs. Blocks. Raises ArchiveError."""
        reader = ArchiveReader(self._context.folder, draft.head)
        latest_ms = self._clock.past_ms() + LEAD_MS_MAX
        expired = expired_generations(draft.head, from_ms=from_ms, latest_ms=latest_ms)
        generations = []
        for generation in draft.head.generations:
            if generation in expired:
                draft.dropped += keys_of(reader, generation)
                continue
            cut = cut_of(reader, generation, from_ms=from_ms, latest_ms=latest_ms)
            if cut is None:
                generations.append(generation)
                continue
            kept = cut.generation
            if cut.content is not None:
                kept = evolve(
                    kept, pages=(store_page(self._context.folder, kept, cut.content), *kept.pages[1:])
                )
            draft.dropped += cut.dropped
            generations.append(kept)
        draft.head = evolve(draft.head, generations=tuple(generations))
