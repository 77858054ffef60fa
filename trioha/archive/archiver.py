"""The writer of an archive. Everything here blocks: the command and the node call it in worker threads.

`step` is one round: the broker's config files are read, then the log up to its present end; new objects are
stored, and one new head makes all of it visible. The head is the only state: a writer that was killed at any
moment goes on from it. Objects that it had stored without a head are found again by their keys, or
swept after a day.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from attrs import define, evolve, field, frozen
from isal.isal_zlib import crc32

from trioha.archive.config_files import digest_of, read_config_files
from trioha.archive.continuation import (
    Continuation,
    continuation_of,
    has_last_record,
    is_completed,
    is_in,
    newest_object,
)
from trioha.archive.documents import document_for
from trioha.archive.errors import (
    ArchiveError,
    ChangedSourceError,
    DamagedSourceError,
    FencedError,
    MissingObjectError,
)
from trioha.archive.heads import create_head, fenced_by, old_heads, read_head
from trioha.archive.layout import (
    FRAME_BYTES,
    HEADS,
    LOG,
    METADATA,
    PAGES,
    RECORDINGS,
    Codec,
    Generation,
    Head,
    LogObject,
    MetadataContent,
    MetadataObject,
    Page,
    PageContent,
    RecordedSegment,
    Writer,
    log_key,
    metadata_key,
    page_key,
    page_of,
)
from trioha.archive.log_bytes import compress, compress_stream, read_log_object
from trioha.archive.merging import (
    THIN_AFTER_MS,
    Group,
    crc32_of,
    due_merges,
    groups_of,
    merged_object,
    thinned,
    whole_objects,
)
from trioha.archive.objects import ObjectFolder
from trioha.archive.reader import ArchiveReader
from trioha.archive.recordings import (
    archived_session,
    began_before,
    check_packer,
    is_old,
    store_documents,
    store_segments,
    waiting_sessions,
    with_session,
    without_old,
)
from trioha.archive.retention import cut_of, expired_generations, keys_of, recording_keys, unreferenced
from trioha.archive.settings import ArchiveSettings
from trioha.archive.source import LogPart, LogSource
from trioha.archive.witness import WitnessedClock
from trioha.recording.reader import Session
from trioha.store.time_steps import LEAD_MS_MAX, leads

CLUSTER_DEFAULT: Final = "DefaultCluster"
"""RocketMQ's own default of brokerClusterName; that of brokerName is the host's name."""
ZSTD_SAVES: Final = 0.05
"""An object is compressed if that saves at least this share of it."""
_SAMPLE_BYTES: Final = 128 << 10
"""Of each frame of a large object, to find that out."""
PIECE_BYTES: Final = 1 << 20
"""Read and sent at a time."""
_WATCH_POLL_S: Final = 5.0
MERGED_OBJECTS_MAX: Final = 2
"""Large objects that one step makes of small ones: the next step is not to wait for more."""
SEGMENTS_MAX: Final = 4
"""Segments of recordings that one step packs."""
METADATA_MAX: Final = 1024
"""Metadata in a head after which a page is sealed, although it has few objects."""
_READS_MAX: Final = 3
"""Attempts to read bytes that change between their check and their reading."""
_HEADS_PER_DELETION: Final = 10


@frozen(kw_only=True)
class ArchiveStep:
    """What a step has done."""

    archived_offset: int | None
    """End of what is archived; None before there is a log."""
    source_end_offset: int | None
    """End of the store's log: exact if nothing more is waiting, else an estimate."""
    last_store_ms: int
    """Greatest store timestamp of the newest objects; 0 without one."""
    generation: str | None
    """The generation that grows."""
    began: str | None
    """Why that generation began, if it began in this step."""
    objects: int
    """New log objects."""
    log_bytes: int
    """Bytes of the log in them."""
    stored_bytes: int
    """Bytes that were sent for them, and for merged ones."""
    merged: int
    """Objects that merged ones have replaced."""
    deleted: int
    """Objects deleted."""
    recorded: int
    """New segments of recordings."""
    head: int
    """Number of the newest head."""
    is_more_waiting: bool
    """Whether the log goes on after `archived_offset`, or segments are left: call `step` again at once."""


@define(kw_only=True)
class _Draft:
    """The next head while a step makes it."""

    head: Head
    objects: int = 0
    log_bytes: int = 0
    stored_bytes: int = 0
    merged: int = 0
    recorded: int = 0
    began: str | None = None
    is_more_waiting: bool = False
    is_more_recorded: bool = False
    metadata_digest: bytes | None
    """Of the newest config files in the archive; None if it is not known, empty without any."""
    dropped: list[str] = field(factory=list)
    """Keys that the next head does not refer to any more."""

    @property
    def generation(self) -> Generation:
        """The one that grows."""
        return self.head.generations[-1]

    @generation.setter
    def generation(self, value: Generation) -> None:
        self.head = evolve(self.head, generations=(*self.head.generations[:-1], value))


class Archiver:
    """Archives one store below one URL. `begin`, then `step` again and again; `stop` from any thread.

    Errors are ArchiveErrors: a transient one is retried by calling `step` (or `begin`) again after a pause. A
    FencedError ends the archiver.
    """

    def __init__(
        self,
        folder: ObjectFolder,
        store: Path,
        *,
        cluster_name: str | None = None,
        broker_name: str | None = None,
        commit_log: Path | None = None,
        settings: ArchiveSettings | None = None,
        take_over: bool = False,
        trust_clock: bool = False,
        limit: Callable[[], int] | None = None,
        recordings: Path | None = None,
        notify: Callable[[str], object] = lambda _text: None,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """`take_over`: do not wait whether another writer is alive. `trust_clock`: an operator says that
        the clock is right, see `archive.witness`. `commit_log`, `limit`: see `LogSource`.
        `recordings`: a folder of recorded sessions. `notify` is called with remarks for people.

        Names that are None are those of the archive; of a new one `DefaultCluster` and the host's name.
        """
        self.folder = folder
        self.store = store.resolve()
        self.settings = ArchiveSettings() if settings is None else settings
        self._names = (cluster_name, broker_name)
        self._take_over = take_over
        self._recordings = recordings
        self._unpackable: set[Path] = set()
        """Segments that cannot be packed: named once, and left out."""
        self._sessions: dict[str, Session] = {}
        """Sessions of the archive whose clocks are known, by name."""
        self._notify = notify
        self._wall_ms = wall_ms
        self._clock = WitnessedClock(wall_ms, monotonic, is_trusted=trust_clock)
        self._is_doubt_told = False
        self._monotonic = monotonic
        self._stopping = threading.Event()
        self._sleep = self._stopping.wait if sleep is None else sleep
        self._source = LogSource(
            self.store, commit_log=commit_log, limit=limit, sleep=time.sleep if sleep is None else sleep
        )
        self._head: Head | None = None
        self._continues = False
        """Whether the store is known to continue the newest generation."""
        self._checked_s = 0.0
        """When that was found out (monotonic)."""
        self._is_unsure = False
        """Whether nothing followed the newest object's last record when it was archived."""
        self._has_failed = False
        """Whether the last step raised an error: what its requests have done is not known."""
        self._metadata_digest: bytes | None = None
        self._stored: dict[str, int] = {}
        """Sizes of log objects that no head refers to yet."""
        self._dropped: list[tuple[float, str]] = []
        """Keys to be deleted and since when (monotonic) no head refers to them."""
        self._may_delete = True
        """Whether the last deletion was not refused."""
        self._old_segments: set[Path] = set()
        """Segments of recordings that end before what is kept: packed once to find that out."""
        self._published_s = 0.0
        self._retain_s = self._sweep_s = self._recordings_s = 0.0
        """When to look again what can be deleted, and for recordings (monotonic)."""

    @property
    def head(self) -> Head | None:
        """The newest head; None before `begin`."""
        return self._head

    def stop(self) -> None:
        """Let the current step end after its present object."""
        self._stopping.set()

    def close(self) -> None:
        """End. The archive is whole at any time, so nothing is left to do there."""
        self.stop()

    # -- taking over ---------------------------------------------------------------------------------------

    def begin(self) -> Head:
        """Read the archive's head and replace it by one of this writer.

        The same store on the same host takes over at once. Another writer is watched for
        `settings.watch_s`: raises FencedError if it creates a head. Raises ArchiveError.
        """
        if self._recordings is not None:
            check_packer(self.folder.url)
        before = read_head(self.folder)
        self._clock.begin(None if before is None else before.writer.renewed_ms)
        now_ms = self._clock.now_ms()
        writer = Writer(
            id=f"{socket.gethostname()}:{self.store}",
            epoch=1 if before is None else before.writer.epoch + 1,
            since_ms=now_ms,
            renewed_ms=now_ms,
            token=secrets.token_hex(4),
        )
        if before is None:
            cluster_name, broker_name = self._names
            head = Head(
                number=1,
                cluster_name=CLUSTER_DEFAULT if cluster_name is None else cluster_name,
                broker_name=socket.gethostname() if broker_name is None else broker_name,
                writer=writer,
                generations=(),
            )
        else:
            self._check_names(before)
            if before.writer.id != writer.id and not self._take_over:
                self._watch(before)
            head = evolve(before, number=before.number + 1, writer=writer)
        create_head(self.folder, head)
        self._head = head
        self._published_s = self._retain_s = self._recordings_s = self._monotonic()
        # Those that this writer's forerunner has dropped are still being read.
        self._sweep_s = self._published_s + self.settings.delete_after_s
        self._find_stored()
        return head

    def _check_names(self, head: Head) -> None:
        for ours, theirs, what in zip(
            self._names, (head.cluster_name, head.broker_name), ("cluster", "broker"), strict=True
        ):
            if ours not in {None, theirs}:
                raise ArchiveError(
                    f"is the archive of {what} {theirs}, not of {ours}",
                    url=self.folder.url,
                    hint="give each broker a URL of its own",
                )

    def _watch(self, head: Head) -> None:
        end_s = self._monotonic() + self.settings.watch_s
        self._notify(
            f"{head.writer.id} has archived here: waiting {self.settings.watch_s:.0f} s for a sign of it"
        )
        while self._monotonic() < end_s:
            self._sleep(_WATCH_POLL_S)
            if self._stopping.is_set():
                raise ArchiveError("stopped before it took over", url=self.folder.url, is_transient=True)
            newest = read_head(self.folder)
            if newest is None or newest.number != head.number:
                raise fenced_by(self.folder, newest)

    def _find_stored(self) -> None:
        """Objects that were stored without a head: they are not sent again."""
        assert self._head is not None
        self._stored = {}
        if self._head.generations:
            generation = self._head.generations[-1]
            first = generation.pages[-1].end_offset if generation.pages else generation.first_offset
            known = {one.key for one in generation.objects}
            prefix = f"{LOG}/{generation.id}"
            self._stored = {
                one.key: one.bytes
                for one in self.folder.list(prefix, after=f"{prefix}/{first:020d}")
                if one.key not in known
            }

    # -- a step --------------------------------------------------------------------------------------------

    def step(self) -> ArchiveStep:
        """One round. Raises ArchiveError; what was stored before a DamagedSourceError is visible then."""
        if self._has_failed:
            # What a failed request has done is not known.
            self._settle_head()
            self._find_stored()
            self._continues = self._is_unsure = False
        self._has_failed = True
        draft, damage = self._draft()
        deleted = self._publish(draft)
        if damage is not None:
            raise damage
        self._has_failed = False
        return self._result(draft, deleted)

    def _draft(self) -> tuple[_Draft, DamagedSourceError | None]:
        """The next head, its objects stored, and the damage that ends it early."""
        assert self._head is not None, "begin is called first"
        draft = _Draft(head=self._head, metadata_digest=self._metadata_digest)
        now_ms = self._wall_ms()
        config = read_config_files(self.store, bytes_max=self.settings.metadata_bytes_max)
        self._source.refresh()
        damage = None
        if self._continue(draft, now_ms):
            damage = self._archive_log(draft, now_ms)
            if not draft.is_more_waiting and damage is None:
                self._store_metadata(draft, config, now_ms)
                self._merge(draft)
            self._seal(draft, self._clock.past_ms())
        if not draft.is_more_waiting:
            self._archive_recordings(draft)
        self._retain(draft)
        return draft, damage

    def _result(self, draft: _Draft, deleted: int) -> ArchiveStep:
        generation = draft.generation if draft.head.generations else None
        end = None if generation is None else generation.end_offset
        newest = () if generation is None else generation.objects[-2:] or generation.pages[-1:]
        return ArchiveStep(
            archived_offset=end,
            source_end_offset=self._source.estimated_end() if draft.is_more_waiting else end,
            last_store_ms=max((one.max_store_ms for one in newest), default=0),
            generation=None if generation is None else generation.id,
            began=draft.began,
            objects=draft.objects,
            log_bytes=draft.log_bytes,
            stored_bytes=draft.stored_bytes,
            merged=draft.merged,
            deleted=deleted,
            recorded=draft.recorded,
            head=draft.head.number,
            is_more_waiting=draft.is_more_waiting or draft.is_more_recorded,
        )

    def _continue(self, draft: _Draft, now_ms: int) -> bool:
        """Whether there is a generation to add to; begin one if the store does not continue the newest."""
        first = self._source.first_offset
        if first is None:
            return False
        if draft.head.generations and self._continues:
            end = draft.generation.end_offset
            # Any log of this file size has a record where a file begins.
            if first <= end and end % draft.generation.file_bytes:
                return True
        found = continuation_of(ArchiveReader(self.folder, draft.head), self._source)
        self._continues = True
        self._checked_s = self._monotonic()
        if found is not None:
            self._begin_generation(draft, found, now_ms)
        return True

    def _begin_generation(self, draft: _Draft, found: Continuation, now_ms: int) -> None:
        number = int(draft.generation.id.split("-")[0]) + 1 if draft.head.generations else 1
        generation = Generation(
            id=f"{number:04d}-{secrets.token_hex(4)}",
            began_ms=now_ms,
            reason=found.reason,
            file_bytes=self._source.file_bytes,
            first_offset=found.first_offset,
            pages=found.pages,
            objects=found.objects,
            metadata=found.metadata,
        )
        draft.head = evolve(draft.head, generations=(*draft.head.generations, generation))
        draft.began = found.reason
        draft.metadata_digest = None

    # -- the log -------------------------------------------------------------------------------------------

    def _archive_log(self, draft: _Draft, now_ms: int) -> DamagedSourceError | None:
        """Archive the log up to its present end, or to damage, which is returned."""
        if not self._has_last_record(draft):
            # It was cut before the archived end and has grown beyond it: what follows is another history.
            self._continues = False
            self._continue(draft, now_ms)
        damage = self._archive_parts(draft)
        is_idle = not draft.objects and self._monotonic() - self._checked_s >= self.settings.renew_s
        if damage is None and not is_idle:
            return None
        # Where the archive ends the log has nothing, or no record: perhaps it was cut and written again.
        self._continues = False
        self._continue(draft, now_ms)
        return damage if draft.began is None else self._archive_parts(draft)

    def _has_last_record(self, draft: _Draft) -> bool:
        """Whether what the store has after the archived end follows the record that is archived before it.

        If the broker was still writing that record, the newest object is dropped, to be archived again.
        """
        is_unsure, self._is_unsure = self._is_unsure, False
        goes_on = self._source.goes_on(draft.generation.end_offset)
        if not is_unsure and not goes_on:
            return True
        reader = ArchiveReader(self.folder, draft.head)
        newest = newest_object(reader, draft.generation)
        # A store that begins at the archived end has nothing to compare.
        if newest is None or not self._source.has(newest.first_offset, newest.end_offset):
            return True
        if is_in(self._source, newest) or (goes_on and has_last_record(reader, self._source, newest)):
            return True
        objects = draft.generation.objects
        if is_unsure and objects and is_completed(reader, self._source, newest):
            shorter = evolve(draft.generation, objects=objects[:-1])
            before = newest_object(reader, shorter)
            # An object of one record does not show whether the log before it is the same.
            if before is None or is_in(self._source, before):
                draft.generation = shorter
                draft.dropped.append(newest.key)
                return True
        return not goes_on

    def _archive_parts(self, draft: _Draft) -> DamagedSourceError | None:
        bytes_max = self.settings.object_bytes_max
        changed = 0
        while not self._stopping.is_set() and draft.log_bytes < self.settings.step_bytes_max:
            generation = draft.generation
            try:
                part = self._source.next_part(generation.end_offset, bytes_max=bytes_max)
                if part is None:
                    return None
                one = self._store_part(draft, part)
                draft.generation = evolve(generation, objects=(*generation.objects, one))
                draft.objects += 1
                draft.log_bytes += part.log_bytes
                if part.reaches_end:
                    self._is_unsure = not self._source.goes_on(part.end_offset)
                    self._source.check_end(part.end_offset, bytes_max=bytes_max)
                    return None
            except DamagedSourceError as error:
                return error
            except ChangedSourceError:
                # The broker was writing it, or has cut its log.
                changed += 1
                if changed == _READS_MAX:
                    raise
        draft.is_more_waiting = True
        return None

    def _store_part(self, draft: _Draft, part: LogPart) -> LogObject:
        """Store a part of the log, unless it is there. Raises ChangedSourceError if its bytes change."""
        codec, body = self._encoded(part)
        one = LogObject(
            key=log_key(
                draft.generation.id,
                first_offset=part.first_offset,
                end_offset=part.end_offset,
                crc32=part.crc32,
                codec=codec,
            ),
            first_offset=part.first_offset,
            end_offset=part.end_offset,
            records=part.records,
            min_store_ms=part.min_store_ms,
            max_store_ms=part.max_store_ms,
            topics=part.topics,
            crc32=part.crc32,
            codec=codec,
            object_bytes=0,
        )
        if self._is_stored(one):
            if self._source.crc32(part.first_offset, part.end_offset) != part.crc32:
                raise self._changed(part.first_offset)
            return evolve(one, object_bytes=self._stored[one.key])
        return self._put(draft, one, body if body is not None else self._checked(part))

    def _put(self, draft: _Draft, one: LogObject, data: bytes | Iterator[bytes]) -> LogObject:
        """Store an object: its bytes as they are stored, or its part of the log in pieces."""
        if isinstance(data, bytes):
            self.folder.put(one.key, data)
            size = len(data)
        else:
            upload = _Upload(data, one)
            self.folder.put(one.key, iter(upload))
            size = upload.size
        self._stored[one.key] = size
        draft.stored_bytes += size
        return evolve(one, object_bytes=size)

    def _encoded(self, part: LogPart) -> tuple[Codec, bytes | None]:
        """How a part is stored, and its object if it is a small one."""
        if part.log_bytes <= FRAME_BYTES:
            data = b"".join(self._checked(part))
            packed = b"".join(compress([data]))
            return ("zstd", packed) if _saves(packed, data) else ("none", data)
        samples = [
            next(self._source.pieces(at, min(at + _SAMPLE_BYTES, part.end_offset)))
            for at in range(part.first_offset, part.end_offset, FRAME_BYTES)
        ]
        packed = b"".join(compress(samples))
        return ("zstd" if len(packed) <= (1 - ZSTD_SAVES) * sum(map(len, samples)) else "none"), None

    def _checked(self, part: LogPart) -> Iterator[bytes]:
        """The part's bytes in pieces. Raises ChangedSourceError after them if they are not those checked."""
        result = 0
        for piece in self._source.pieces(part.first_offset, part.end_offset, size=PIECE_BYTES):
            result = crc32(piece, result)
            yield piece
        if result != part.crc32:
            raise self._changed(part.first_offset)

    def _changed(self, offset: int) -> ChangedSourceError:
        return ChangedSourceError(
            f"the bytes from offset {offset} on change while they are read",
            url=str(self._source.folder),
            is_transient=True,
        )

    def _is_stored(self, one: LogObject) -> bool:
        """Whether there is such an object that no head refers to, and it is whole, and then on disk."""
        if one.key not in self._stored:
            return False
        try:
            for _ in read_log_object(self.folder, one):
                pass
        except ArchiveError as error:
            if error.is_transient:
                raise
            return False
        self.folder.sync(one.key)
        return True

    # -- merging, sealing, retention -----------------------------------------------------------------------

    def _merge(self, draft: _Draft) -> None:
        """Replace small objects by merged ones, up to about `MERGED_OBJECTS_MAX` large ones in a step."""
        left = MERGED_OBJECTS_MAX * self.settings.object_bytes_max
        for run in due_merges(self._groups(draft.generation), merge_objects=self.settings.merge_objects):
            if left <= 0 or self._stopping.is_set():
                return
            generation = draft.generation
            merged = self._merged(draft, run)
            left -= merged.log_bytes
            at = generation.objects.index(run[0])
            objects = (*generation.objects[:at], merged, *generation.objects[at + len(run) :])
            draft.generation = evolve(generation, objects=objects)
            draft.merged += len(run)
            draft.dropped += [one.key for one in run]

    def _groups(self, generation: Generation) -> list[Group]:
        return groups_of(
            generation.objects,
            bytes_max=self.settings.object_bytes_max,
            file_bytes=generation.file_bytes,
        )

    def _merged(self, draft: _Draft, run: Sequence[LogObject]) -> LogObject:
        """One object of the bytes of several, from the store if it has them, else from the archive."""
        first, end, crc = run[0].first_offset, run[-1].end_offset, crc32_of(run)
        saved = 1 - sum(one.object_bytes for one in run) / (end - first)
        codec: Codec = "zstd" if saved >= ZSTD_SAVES else "none"
        key = log_key(draft.generation.id, first_offset=first, end_offset=end, crc32=crc, codec=codec)
        one = merged_object(run, key=key, crc32=crc, codec=codec, object_bytes=0)
        if self._is_stored(one):
            return evolve(one, object_bytes=self._stored[key])
        if self._source.has(first, end):
            try:
                return self._put(draft, one, self._source_bytes(run))
            except ChangedSourceError:
                # The archive has what was checked. Look at the next step whether the store continues it.
                self._continues = False
        # obstore cannot receive one object within the upload of another.
        with TemporaryFile(prefix="trioha-archive-") as file:
            for part in run:
                for piece in read_log_object(self.folder, part):
                    file.write(piece)
            file.seek(0)
            return self._put(draft, one, iter(lambda: file.read(PIECE_BYTES), b""))

    def _source_bytes(self, run: Sequence[LogObject]) -> Iterator[bytes]:
        for one in run:
            result = 0
            for piece in self._source.pieces(one.first_offset, one.end_offset, size=PIECE_BYTES):
                result = crc32(piece, result)
                yield piece
            if result != one.crc32:
                raise self._changed(one.first_offset)

    def _seal(self, draft: _Draft, now_ms: int) -> None:
        """Thin metadata out, and move merged objects and old metadata from the head to pages."""
        metadata, dropped = thinned(draft.generation.metadata, now_ms=now_ms)
        draft.generation = evolve(draft.generation, metadata=metadata)
        draft.dropped += [one.key for one in dropped]
        while True:
            generation = draft.generation
            whole = whole_objects(self._groups(generation))[: self.settings.page_objects]
            is_long = bool(whole) and len(generation.metadata) > METADATA_MAX
            if len(whole) < self.settings.page_objects and not is_long:
                return
            old = tuple(
                one
                for one in generation.metadata
                if one.offset <= whole[-1].end_offset and one.taken_ms < now_ms - THIN_AFTER_MS
            )
            if is_long and len(whole) < self.settings.page_objects and not old:
                return
            page = self._store_page(generation, PageContent(objects=tuple(whole), metadata=old))
            draft.generation = evolve(
                generation,
                pages=(*generation.pages, page),
                objects=generation.objects[len(whole) :],
                metadata=generation.metadata[len(old) :],
            )

    def _store_page(self, generation: Generation, content: PageContent) -> Page:
        key = page_key(
            generation.id, first_offset=content.objects[0].first_offset, token=secrets.token_hex(4)
        )
        self.folder.put(key, document_for(self.folder, key, content))
        return page_of(key, content.objects)

    def _kept_from_ms(self) -> int | None:
        """What is older than this is not kept; None to keep everything, also while the clock is in doubt."""
        keep_s = self.settings.keep_s
        return None if keep_s is None or self._clock.doubt else self._clock.past_ms() - round(keep_s * 1000)

    def _report_doubt(self) -> None:
        doubt = self._clock.doubt
        if doubt and not self._is_doubt_told:
            self._notify(doubt)
        self._is_doubt_told = bool(doubt)

    def _retain(self, draft: _Draft) -> None:
        """Drop what no restore to a time within `keep_s` needs."""
        self._report_doubt()
        from_ms = self._kept_from_ms()
        if from_ms is None or self._monotonic() < self._retain_s:
            return
        self._retain_s = self._monotonic() + self.settings.retention_s
        reader = ArchiveReader(self.folder, draft.head)
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
                kept = evolve(kept, pages=(self._store_page(kept, cut.content), *kept.pages[1:]))
            draft.dropped += cut.dropped
            generations.append(kept)
        for one in draft.head.recordings:
            if one.session not in self._sessions:
                self._sessions[one.session] = archived_session(self.folder, one.session)
        recordings, dropped = without_old(draft.head.recordings, self._sessions, from_ms=from_ms)
        draft.dropped += dropped
        draft.head = evolve(draft.head, generations=tuple(generations), recordings=recordings)

    def _sweep(self) -> int:
        """Delete objects that no head refers to, and unfinished ones, older than a day; how many."""
        assert self._head is not None
        reader = ArchiveReader(self.folder, self._head)
        known = {key for generation in self._head.generations for key in keys_of(reader, generation)}
        known.update(recording_keys(self._head))
        known.update(key for _, key in self._dropped)
        if self._clock.doubt:
            return 0
        old_ms = self._clock.past_ms() - round(self.settings.orphan_s * 1000)
        orphans = [
            one.key
            for kind in (LOG, METADATA, PAGES, RECORDINGS)
            for one in self.folder.list(kind)
            if one.modified_ms < old_ms and one.key not in known
        ]
        unfinished = sum(
            self.folder.delete_unfinished(kind, before_ms=old_ms)
            for kind in (LOG, METADATA, PAGES, RECORDINGS, HEADS)
        )
        return unfinished + self._delete_objects(orphans)

    # -- metadata ------------------------------------------------------------------------------------------

    def _store_metadata(self, draft: _Draft, files: dict[str, str], now_ms: int) -> None:
        """Store the config files, which were read before the log's end was, unless they are the newest."""
        generation = draft.generation
        if not files:
            return
        digest = digest_of(files)
        if draft.metadata_digest is None:
            draft.metadata_digest = self._digest_of_newest(generation)
        if digest == draft.metadata_digest:
            return
        offset = generation.end_offset
        newest_ms = generation.metadata[-1].taken_ms if generation.metadata else 0
        # In order, as long as the clock was not wrong before.
        taken_ms = now_ms if leads(newest_ms, now_ms) else max(now_ms, newest_ms)
        key = metadata_key(generation.id, offset=offset, taken_ms=taken_ms, token=secrets.token_hex(4))
        content = MetadataContent(taken_ms=taken_ms, offset=offset, files=files)
        data = document_for(self.folder, key, content)
        self.folder.put(key, data)
        one = MetadataObject(key=key, taken_ms=taken_ms, offset=offset, bytes=len(data))
        draft.generation = evolve(generation, metadata=(*generation.metadata, one))
        draft.metadata_digest = digest

    def _digest_of_newest(self, generation: Generation) -> bytes:
        """Digest of the newest files in the archive; empty without any."""
        assert self._head is not None
        reader = ArchiveReader(self.folder, self._head)
        newest = next(reader.metadata(generation), None)
        try:
            return b"" if newest is None else digest_of(reader.metadata_files(newest).files)
        except MissingObjectError:
            return b""

    # -- recordings ----------------------------------------------------------------------------------------

    def _archive_recordings(self, draft: _Draft) -> None:
        """Archive complete segments of recorded sessions, up to `SEGMENTS_MAX` in a step."""
        now_s = self._monotonic()
        if self._recordings is None or now_s < self._recordings_s:
            return
        self._recordings_s = now_s + self.settings.recordings_s
        left = SEGMENTS_MAX
        from_ms = self._kept_from_ms()
        for waiting in waiting_sessions(
            self._recordings, draft.head.recordings, from_ms=from_ms, old=self._old_segments
        ):
            new = [path for path in waiting.segments if path not in self._unpackable]
            if self._stopping.is_set():
                return
            added: list[RecordedSegment] = []
            if new[:left]:
                stored, problems = store_segments(self.folder, waiting.session, new[:left])
                added = [one for one in stored if not is_old(waiting.session, one, from_ms=from_ms)]
                draft.dropped += [one.key for one in stored if one not in added]
                seqs = {one.first_seq for one in stored} - {one.first_seq for one in added}
                self._old_segments.update(path for path in new[:left] if int(path.stem) in seqs)
                self._unpackable.update(problems)
                for path, reason in problems.items():
                    self._notify(f"{path} is not archived: {reason}")
            is_closed = waiting.is_ended and len(new) <= left
            if len(new) > left:
                self._recordings_s = now_s
                draft.is_more_recorded = True
            left -= min(left, len(new))
            if not added and not is_closed:
                continue
            is_known = any(one.session == waiting.session.path.name for one in draft.head.recordings)
            if not added and not is_known and from_ms is not None and began_before(waiting.session, from_ms):
                # All of it is too old.
                continue
            store_documents(self.folder, waiting.session)
            segments = sorted((*waiting.archived.segments, *added), key=lambda one: one.first_seq)
            one = evolve(waiting.archived, segments=tuple(segments), closed=is_closed)
            draft.head = evolve(draft.head, recordings=with_session(draft.head.recordings, one))
            draft.recorded += len(added)

    # -- heads ---------------------------------------------------------------------------------------------

    def _settle_head(self) -> None:
        """Find out whether the last head was created."""
        newest = read_head(self.folder)
        if newest is None or not self._is_ours(newest):
            raise fenced_by(self.folder, newest)
        self._head = newest
        self._metadata_digest = None

    def _is_ours(self, head: Head) -> bool:
        assert self._head is not None
        ours = self._head.writer
        return (head.writer.id, head.writer.epoch, head.writer.token) == (ours.id, ours.epoch, ours.token)

    def _publish(self, draft: _Draft) -> int:
        """Create the new head, if anything is new or the last one is old. Returns the objects deleted."""
        assert self._head is not None
        now_s = self._monotonic()
        self._metadata_digest = draft.metadata_digest
        if draft.head == self._head and now_s - self._published_s < self.settings.renew_s:
            self._dropped += [(now_s, key) for key in draft.dropped]
            return 0
        draft.head = evolve(
            draft.head,
            number=self._head.number + 1,
            writer=evolve(self._head.writer, renewed_ms=self._clock.now_ms()),
        )
        try:
            create_head(self.folder, draft.head)
        except FencedError:
            newest = read_head(self.folder)
            if newest is None or not self._is_ours(newest):
                raise
            # An earlier request, whose answer was lost, was carried out late.
            raise ArchiveError(
                "an earlier request was carried out late", url=self.folder.url, is_transient=True
            ) from None
        self._head = draft.head
        self._published_s = now_s
        self._stored.clear()
        self._dropped += [(now_s, key) for key in draft.dropped]
        return self._delete(now_s)

    def _delete(self, now_s: float) -> int:
        """Delete old heads, and objects that no head has referred to for long enough."""
        assert self._head is not None
        if self._head.number % _HEADS_PER_DELETION == 0:
            self._delete_objects(old_heads(self.folder, self._head.number))
        due = [key for since_s, key in self._dropped if now_s - since_s >= self.settings.delete_after_s]
        unneeded = unreferenced(ArchiveReader(self.folder, self._head), self._head, due)
        deleted = self._delete_objects(unneeded)
        # What may not be deleted now is found again by `_sweep`.
        self._dropped = self._dropped[len(due) :]
        if now_s < self._sweep_s:
            return deleted
        self._sweep_s = now_s + self.settings.sweep_s
        return deleted + self._sweep()

    def _delete_objects(self, keys: Sequence[str]) -> int:
        """Delete objects; how many. A refusal is reported once and ends nothing: the archive is whole.

        Credentials that may write and not delete are a protection. Until a deletion succeeds again only one
        object is tried at a time. Raises a transient ArchiveError.
        """
        if not keys:
            return 0
        if not self._may_delete:
            keys = keys[:1]
        try:
            self.folder.delete(keys)
        except ArchiveError as error:
            if error.is_transient:
                raise
            if self._may_delete:
                self._notify(f"nothing is deleted in the archive, which goes on: {error}")
            self._may_delete = False
            return 0
        self._may_delete = True
        return len(keys)


class _Upload:
    """The pieces of an object, compressed or not, and how many bytes they had."""

    def __init__(self, pieces: Iterator[bytes], one: LogObject) -> None:
        self._pieces = compress_stream(pieces, log_bytes=one.log_bytes) if one.codec == "zstd" else pieces
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.size += len(piece)
            yield piece


def _saves(packed: bytes, data: bytes) -> bool:
    return len(packed) <= (1 - ZSTD_SAVES) * len(data)
