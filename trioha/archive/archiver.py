"""The writer of an archive. Everything here blocks: the command and the node call it in worker threads.

`step` is one round: the broker's config files are read, then the log up to its present end; new objects are
stored, and one new head makes all of it visible. The head is the only state: a writer that was killed at any
moment goes on from it. Objects that it had stored without a head are found again by their keys, or
swept after a day.

Each part of a round is a class of its own. Those that store something change the round's `Draft`:

| part | what it does |
|---|---|
| `Lease` | creates heads, as long as this is the archive's writer |
| `Growth` | the log up to its end, in the newest generation or a new one; `LogWriter` stores its objects |
| `MetadataWriter` | config files that have changed |
| `Upkeep` | merges small objects, seals pages |
| `RecordingsUpload` | complete segments of recorded sessions |
| `Retention` | drops what is too old |
| `Deletion` | deletes what no head refers to |
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from attrs import frozen

from trioha.archive.config_files import read_config_files
from trioha.archive.context import ArchiveContext
from trioha.archive.deletion import Deletion
from trioha.archive.draft import Draft
from trioha.archive.errors import DamagedSourceError
from trioha.archive.growth import Growth
from trioha.archive.layout import Head
from trioha.archive.lease import Lease
from trioha.archive.log_writer import LogWriter
from trioha.archive.metadata_writer import MetadataWriter
from trioha.archive.objects import ObjectFolder
from trioha.archive.recordings_upload import RecordingsUpload
from trioha.archive.retention import Retention
from trioha.archive.settings import ArchiveSettings
from trioha.archive.source import LogSource
from trioha.archive.upkeep import Upkeep
from trioha.archive.witness import WitnessedClock


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
        self._wall_ms = wall_ms
        self._stopping = threading.Event()
        self._has_failed = False
        """Whether the last step raised an error: what its requests have done is not known."""
        self._clock = WitnessedClock(wall_ms, monotonic, is_trusted=trust_clock)
        self._source = LogSource(
            self.store, commit_log=commit_log, limit=limit, sleep=time.sleep if sleep is None else sleep
        )
        context = ArchiveContext(
            folder=folder,
            settings=self.settings,
            clock=self._clock,
            monotonic=monotonic,
            sleep=self._stopping.wait if sleep is None else sleep,
            is_stopping=self._stopping.is_set,
            notify=notify,
        )
        self._lease = Lease(context, writer_id=f"{socket.gethostname()}:{self.store}")
        self._writer = LogWriter(folder, self._source)
        self._growth = Growth(context, self._source, self._writer)
        self._metadata = MetadataWriter(folder)
        self._upkeep = Upkeep(context, self._source, self._writer)
        self._recordings = RecordingsUpload(context, recordings)
        self._retention = Retention(context)
        self._deletion = Deletion(context)

    @property
    def head(self) -> Head | None:
        """The newest head; None before `begin`."""
        return self._lease.head

    def stop(self) -> None:
        """Let the current step end after its present object."""
        self._stopping.set()

    def close(self) -> None:
        """End. The archive is whole at any time, so nothing is left to do there."""
        self.stop()

    def begin(self) -> Head:
        """Read the archive's head and replace it by one of this writer.

        The same store on the same host takes over at once. Another writer is watched for
        `settings.watch_s`: raises FencedError if it creates a head. Raises ArchiveError.
        """
        self._recordings.begin()
        cluster_name, broker_name = self._names
        head = self._lease.begin(
            cluster_name=cluster_name, broker_name=broker_name, take_over=self._take_over
        )
        self._deletion.begin()
        self._writer.find_stored(head)
        return head

    def step(self) -> ArchiveStep:
        """One round. Raises ArchiveError; what was stored before a DamagedSourceError is visible then."""
        if self._has_failed:
            # What a failed request has done is not known.
            self._writer.find_stored(self._lease.settle())
            self._metadata.forget()
            self._growth.forget()
        self._has_failed = True
        draft, damage = self._draft()
        deleted = self._publish(draft)
        if damage is not None:
            raise damage
        self._has_failed = False
        return self._result(draft, deleted)

    def _draft(self) -> tuple[Draft, DamagedSourceError | None]:
        """The next head, its objects stored, and the damage that ends it early."""
        assert self.head is not None, "begin is called first"
        draft = Draft(head=self.head)
        now_ms = self._wall_ms()
        config = read_config_files(self.store, bytes_max=self.settings.metadata_bytes_max)
        self._source.refresh()
        damage = None
        if self._growth.ensure_generation(draft, now_ms):
            damage = self._growth.grow(draft, now_ms)
            if not draft.is_more_waiting and damage is None:
                self._metadata.store(draft, config, now_ms)
                if not self._upkeep.merge(draft):
                    self._growth.doubt()
            self._upkeep.seal(draft, self._clock.past_ms())
        if not draft.is_more_waiting:
            self._recordings.upload(draft, from_ms=self._retention.kept_from_ms())
        from_ms = self._retention.due_from_ms()
        if from_ms is not None:
            self._retention.retain(draft, from_ms=from_ms)
            self._recordings.retain(draft, from_ms=from_ms)
        return draft, damage

    def _publish(self, draft: Draft) -> int:
        """Create the new head if one is due. Returns the number of objects deleted."""
        is_due = self._lease.is_due(draft.head)
        if is_due:
            draft.head = self._lease.publish(draft.head)
            self._writer.forget_stored()
        self._deletion.add(draft.dropped)
        return self._deletion.run(draft.head) if is_due else 0

    def _result(self, draft: Draft, deleted: int) -> ArchiveStep:
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
