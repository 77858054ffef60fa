"""A store directory in use by this process: commit log, consume queues, index, checkpoint.

See docs/protocol/store.md#files, docs/protocol/store.md#start.

Theory of operation. The log is the truth; consume queues and index are built from it by the dispatcher and
can always be built again. `open` finds the log's end, cuts the queues to it, and finds the offset where
dispatch has to continue. A master dispatches to the log's end before it accepts puts, since the queues hold
the next queue offsets. `checkpoint` holds the store time, and the offset, up to which log, queues and index
were on disk. The file `abort` exists while a process uses the store; if a start finds it, only the checkpoint
counts.

In controller mode a start after a power loss notes the log's last epoch (`store.doubtful_epoch`): the
machine's boot id, in `abort`, tells a power loss from a killed process, which loses nothing that it wrote.

`cut` ends the log at an earlier record, with all that was built from it: a slave that has bytes which its
master does not have follows it only then. After a crash at any moment the store opens uncut or cut, never a
mix (`store.cut_marker`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from attrs import Factory, evolve, frozen

from trioha.errors import StoreError
from trioha.store.callbacks import Callbacks
from trioha.store.checkpoint import Checkpoint, CheckpointFile
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues, ConsumeQueueSettings
from trioha.store.cut_marker import BegunCut, load_cut, remove_cut, save_cut
from trioha.store.dispatch import Dispatcher, logics_time_ms, start_position
from trioha.store.dispatch_settings import DispatchSettings
from trioha.store.doubtful_epoch import load_doubtful_epoch, save_doubtful_epoch
from trioha.store.epochs import NO_EPOCH, EpochLog, EpochTable
from trioha.store.index_file import IndexShape
from trioha.store.index_service import IndexCut, IndexService
from trioha.store.lock import RESTORE_MARKER, AbortFile, StoreLock
from trioha.store.mapped_file import DISK_FULL
from trioha.store.queue_manifest import load_queue_manifest, save_queue_manifest
from trioha.store.reads import MessageReader
from trioha.store.record import Host
from trioha.store.recovery import CHECKED_BYTES, Recovered, open_commit_log
from trioha.store.syncing import SyncWork, sync_directory
from trioha.store.time_steps import LEAD_MS_MAX, TimeStep, load_time_steps, save_time_steps
from trioha.store.topic_types import batch_topics
from trioha.unwritten import CHECKPOINT, INDEX, QUEUE_LIST, TIME_STEPS, Unwritten
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

CLOSE_DISPATCH_S = 5.0
"""A close dispatches for so long; the next start does the rest (`abort` stays)."""
_CHECKPOINT_SPACING_MS = 1000
_DISPATCH_RECORDS = 4096
_SPARSE_DISPATCH_RECORDS = 65_536
_SPARSE_RECORDS = 8
"""If so many queues are written that each gets fewer records at once, more records are dispatched together: a
write of a queue costs as much as a dozen records, since most queues have no open file."""
_SHORTAGES_MAX = 32
"""A cut closes files of queues so often, to find descriptors for its syncs."""


@frozen
class StoreSettings:
    """Where a store is, and the sizes of its files."""

    root: Path
    commit_log_directory: Path
    file_bytes: int
    """mappedFileSizeCommitLog."""
    message_bytes_max: int
    """maxMessageSize: longest body."""
    store_host: Host
    """Broker address that every record names."""
    queues: ConsumeQueueSettings = Factory(ConsumeQueueSettings)
    index: IndexShape = Factory(IndexShape)
    dispatch: DispatchSettings = Factory(DispatchSettings)
    dispatch_to_confirmed: bool = False
    """Whether queues and index are built only up to the checkpoint's confirm offset, until `limit_dispatch`
    says otherwise: in controller mode later records may be cut when the node has a role."""
    epoch_file: Path | None = None
    """storePathEpochFile, in controller mode; None for a store without epochs."""


def _unknown() -> int:
    return 0


class _Step:
    """A blocking call whose exception is kept."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.error: Exception | None = None

    def __call__(self) -> None:
        try:
            self._call()
        except Exception as error:  # noqa: BLE001 - raised by the iterator
            self.error = error


def _reason(error: Exception) -> str:
    """What has failed, in words: of an error of the system its text, else the exception's name, too."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return ": ".join(filter(None, (type(error).__name__, str(error))))


def _note_doubtful_epoch(root: Path, abort: AbortFile, epochs: EpochLog | None) -> tuple[int, bool]:
    """The doubtful epoch, noted on disk if it is one since the last start; and whether it could be noted.

    Blocks. Raises StoreError, and OSError but not for a full disk: it must not prevent an opening.
    """
    if epochs is None:
        return NO_EPOCH, True
    noted = load_doubtful_epoch(root)
    # As the file has it: recovery drops an epoch of which no byte is left.
    last_epoch = epochs.last_epoch
    if last_epoch <= noted or not abort.lost_power:
        return noted, True
    log.warning("the end of the log's last epoch may be lost in a power loss", epoch=last_epoch)
    try:
        save_doubtful_epoch(root, last_epoch)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        log.warning("the epoch cannot be noted, the next start looks again", reason=error.strerror)
        return last_epoch, False
    return last_epoch, True


class MessageStore:
    """A locked, recovered store. Make it with `open`, end it with `close`; both block on the disk."""

    def __init__(
        self,
        settings: StoreSettings,
        *,
        lock: StoreLock,
        abort: AbortFile,
        checkpoint: Checkpoint,
        checkpoint_file: CheckpointFile,
        commit_log: CommitLog,
        recovered: Recovered,
        queues: ConsumeQueues,
        index: IndexService,
        dispatcher: Dispatcher,
        epochs: EpochLog | None,
        doubtful_epoch: int,
        unwritten: Unwritten,
    ) -> None:
        self.settings = settings
        self.commit_log = commit_log
        self.recovered = recovered
        self.queues = queues
        self.index = index
        self.dispatcher = dispatcher
        self.epochs = epochs
        """Which master wrote which bytes of the log, in controller mode; None in every other."""
        self.completed_cut: BegunCut | None = None
        """The cut that `open` has completed, until it is recorded; None if there was none."""
        self.doubtful_epoch = doubtful_epoch
        """The last epoch whose end the log may have lost in a power loss; -1 for none."""
        self.reads = MessageReader(commit_log, queues, index, dispatcher.time_steps)
        self._lock = lock
        self._abort = abort
        self._checkpoint = checkpoint
        self._checkpoint_file = checkpoint_file
        self._checkpoint_lock = threading.Lock()
        self.unwritten = unwritten
        """What of this store cannot be written, or of the node that uses it, although it goes on."""
        self._has_failed = False
        self._cuts = 0
        """Counts cuts and restarts of the log: what a sync that began before one has put on disk may not be
        there any more."""
        self._is_cutting = False
        """Whether a cut has not put all of queues and index on disk yet, or never could."""
        self._listed_queues: frozenset[tuple[str, int]] = frozenset()
        self._saved_steps = dispatcher.time_steps.changes
        """`changes` of the steps that are on disk."""
        self._listed_deletions: int | None = None
        """`queues.deletions` when `_listed_queues` were all queues with entries; None if that is not known.

        They still are if nothing was written or deleted since."""
        self._queue_sync: tuple[SyncWork, SyncWork] | None = None
        """Work of the last `queue_sync_work`, queues and index; it may not have run to its end."""
        self._index_error: OSError | None = None
        """Why the last sync of the index failed; None if it did not. Set by worker threads."""
        self.on_cut: Callbacks[[]] = Callbacks()
        """Called after each cut, when the queues are cut, too."""
        self._dispatch_wait = trio.CancelScope()
        """The dispatch service's last wait for something to dispatch."""
        self.confirm_offset: Callable[[], int] = _unknown
        """The confirm offset for the checkpoint, 0 if none is known; in controller mode that of the last
        checkpoint until there is a role. Called where syncs begin, in the loop's thread, whose tasks move it.

        It may be beyond the log's end for a moment after a cut; the checkpoint's is not."""
        self._noted_confirm_offset = checkpoint.confirm_physical_offset
        """For the next checkpoint."""
        commit_log.before_restart = self._forget_derived

    @property
    def last_confirm_offset(self) -> int:
        """The confirm offset of the last checkpoint, 0 if none was known."""
        return self._checkpoint.confirm_physical_offset

    @classmethod
    def open(
        cls,
        settings: StoreSettings,
        *,
        on_progress: Callable[[str, int, int], None] | None = None,
        is_restoring: bool = False,
        unwritten: Unwritten | None = None,
    ) -> MessageStore:
        """Lock the store (made if missing), find the log's end, and mark the store as in use.

        `on_progress(what, done, total)` gets the number of log files checked, then of the bytes dispatched,
        several times a second. An exception of it ends the opening: the lock is released, and the store stays
        marked as in need of recovery if anything in it was changed. Raises StoreError, with the lock
        released, if the store is in use or cannot be opened, or if a restore into it was interrupted
        (`is_restoring` says that the caller is that restore). `unwritten` gets what cannot be written.
        """
        if not is_restoring and (settings.commit_log_directory / RESTORE_MARKER).exists():
            raise StoreError(
                "a restore into this store has not ended: its log is not whole",
                path=settings.root,
                hint="run the same trioha restore again",
            )
        try:
            settings.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot be made: {error.strerror}", path=settings.root) from error
        lock = StoreLock(settings.root, commit_log=settings.commit_log_directory)
        lock.acquire()
        try:
            with ExitStack() as opened:
                progress = on_progress or (lambda _what, _done, _total: None)
                store = cls._open_locked(settings, lock, progress, opened, unwritten or Unwritten())
                opened.pop_all()
        except OSError as error:
            lock.release()
            raise StoreError(f"cannot be opened: {error.strerror}", path=settings.root) from error
        except BaseException:
            lock.release()
            raise
        return store

    @classmethod
    def _open_locked(
        cls,
        settings: StoreSettings,
        lock: StoreLock,
        on_progress: Callable[[str, int, int], None],
        opened: ExitStack,
        unwritten: Unwritten,
    ) -> MessageStore:
        """Open all parts; `opened` closes them if a later one fails."""
        root = settings.root
        abort = AbortFile(root)
        begun_cut = load_cut(settings.commit_log_directory)
        cut_at = None if begun_cut is None else begun_cut.offset
        clean_exit = not abort.exists and cut_at is None
        checkpoint = Checkpoint.load(root / "checkpoint")
        queues = ConsumeQueues(root, settings.queues, is_batch_topic=batch_topics(root).__contains__)
        opened.callback(queues.close)
        queues.recover(lambda done, total: on_progress("opening consume queues", done, total))
        listed = load_queue_manifest(root)
        lost = {name for name in listed if (queue := queues.find(*name)) is None or not queue.max_offset}
        index = IndexService.open(root, settings.index)
        opened.callback(index.close)
        checkpoint_file = CheckpointFile(root / "checkpoint")
        opened.callback(checkpoint_file.close)
        commit_log, recovered = open_commit_log(
            settings.commit_log_directory,
            file_bytes=settings.file_bytes,
            message_bytes_max=settings.message_bytes_max,
            store_host=settings.store_host,
            clean_exit=clean_exit,
            checkpoint=checkpoint,
            record_near_end=queues.record_near_end(CHECKED_BYTES) if clean_exit else None,
            cut_at=cut_at,
            on_progress=lambda done, total: on_progress("checking the commit log, files", done, total),
        )
        opened.callback(commit_log.close)
        commit_log.queues_max = settings.queues.queues_max
        epochs = None if settings.epoch_file is None else EpochLog.open(settings.epoch_file)
        doubtful_epoch, is_noted = _note_doubtful_epoch(root, abort, epochs)
        lock.check()
        # From here on queues and index are changed: a process that ends before it closes the store leaves it
        # in need of recovery.
        abort.create(names_boot=is_noted)
        if commit_log.is_empty:
            queues.destroy()
        else:
            queues.truncate_dirty(commit_log.max_offset)
            queues.correct_min_offsets(commit_log.min_offset)
            if lost:
                log.warning(
                    "consume queues are gone, all are compared with the log", queues=sorted(lost)[:10]
                )
        index_cut = index.plan_cut(
            0 if commit_log.is_empty else commit_log.max_offset,
            safe_until_ms=None if clean_exit else checkpoint.index_msg_timestamp_ms,
        )
        if epochs is not None:
            # A power cut may have taken the first bytes of an epoch; one that begins at the log's end stays.
            after_end = commit_log.max_offset + 1
            epochs.truncate_suffix(after_end if cut_at is None else min(cut_at, after_end))
            epochs.truncate_prefix(commit_log.min_offset)
        position = start_position(
            commit_log,
            queues,
            clean_exit=clean_exit,
            checkpoint=checkpoint,
            redispatch_from=commit_log.min_offset if lost else index_cut.redispatch_from,
        )
        if not clean_exit:
            queues.sync_from(position)
        time_steps = load_time_steps(root)
        time_steps.keep(commit_log.min_offset, commit_log.max_offset)
        lacks_from: int | None = None
        if clean_exit and index_cut.redispatch_from is None and checkpoint.logics_physical_offset < position:
            # The last stop left the index behind the queues, or the checkpoint is of a program that does not
            # know the field. What the index has is known by itself.
            lacks_from = max(
                checkpoint.logics_physical_offset, index.end_physical_offset, commit_log.min_offset
            )
        dispatcher = Dispatcher(
            commit_log,
            queues,
            index,
            position=position,
            index_lacks_from=lacks_from if settings.dispatch.message_index_enable else None,
            settings=settings.dispatch,
            time_steps=time_steps,
            unwritten=unwritten,
        )
        store = cls(
            settings,
            lock=lock,
            abort=abort,
            checkpoint=checkpoint,
            checkpoint_file=checkpoint_file,
            commit_log=commit_log,
            recovered=recovered,
            queues=queues,
            index=index,
            dispatcher=dispatcher,
            epochs=epochs,
            doubtful_epoch=doubtful_epoch,
            unwritten=unwritten,
        )
        store._listed_queues = listed
        if settings.dispatch_to_confirmed:
            # Until the node has a role, checkpoints keep the last one.
            store.confirm_offset = lambda: store.last_confirm_offset
            store.limit_dispatch(Watermark(checkpoint.confirm_physical_offset))
        # All before it is on disk, whatever offset an older version has left.
        built_until = position if dispatcher.index_lacks_from is None else dispatcher.index_lacks_from
        logics_ms = logics_time_ms(commit_log, built_until)
        if cut_at is None:
            store._lower_times(built_until, logics_ms, index_cut)
        else:
            store._lower_checkpoint(built_until, logics_ms, index_cut)
        index.cut(index_cut)
        with closing(store._cut_queue_syncs()) as syncs:
            for sync in syncs:
                sync()
        if cut_at is not None:
            remove_cut(settings.commit_log_directory)
            store.completed_cut = begun_cut
            log.warning("cut of the commit log completed", offset=cut_at, end_offset=commit_log.max_offset)
        if not settings.dispatch.is_slave:
            commit_log.puts_blocked = True
            store._prepare_puts(on_progress)
        return store

    # -- queues and index ---------------------------------------------------------------------------------

    def limit_dispatch(self, limit: Watermark | None) -> None:
        """Build queues and index only up to the records that end at or before `limit`, wherever it moves.

        In controller mode that is the confirm offset: consumers do not see what a new master may not have.
        What is built already stays. None for the log's end.
        """
        self.dispatcher.limit = limit
        self._end_dispatch_wait()

    def _end_dispatch_wait(self) -> None:
        """Let the dispatch service look again at what it has to wait for."""
        self._dispatch_wait.cancel()

    async def more_to_dispatch(self, source: Watermark) -> bool:
        """Wait until `source` or the limit of dispatch moves beyond both its offset and the dispatcher's.

        `source` is `appended` or `flushed`: the mark that holds dispatch up is waited for. False if that
        changed first: the log was cut, or has another limit.
        """
        limit = self.dispatcher.limit
        lower = source if limit is None or limit.offset >= source.offset else limit
        with trio.CancelScope() as self._dispatch_wait:
            return await lower.reached(max(lower.offset, self.dispatcher.position) + 1)
        return False

    def _dispatch_to_end(
        self, *, on_progress: Callable[[str, int, int], None], limit_s: float | None = None
    ) -> bool:
        """Dispatch to the log's end or the limit, for `limit_s` at most; False if there was no time for all.

        Blocks. Raises StoreError.
        """
        deadline_s = None if limit_s is None else time.monotonic() + limit_s
        dispatcher, end_offset = self.dispatcher, self.commit_log.max_offset
        start_offset = dispatcher.position
        records_max = _DISPATCH_RECORDS
        while records := dispatcher.dispatch(end_offset, records_max=records_max):
            is_sparse = dispatcher.queues_written * _SPARSE_RECORDS > records
            records_max = _SPARSE_DISPATCH_RECORDS if is_sparse else _DISPATCH_RECORDS
            on_progress(
                "building queues and index, bytes",
                dispatcher.position - start_offset,
                end_offset - start_offset,
            )
            if deadline_s is not None and time.monotonic() > deadline_s:
                return False
        return True

    @contextmanager
    def attachments(self) -> Iterator[None]:
        """Detach at the end of the block what parts of a node have attached to this store since its start.

        A node that changes its role builds these parts anew. The confirm offset stays what it is then. Parts
        that wait for restarts and cuts of the log are detached by themselves (`Callbacks`).
        """
        dispatcher = self.dispatcher
        on_written, is_awaited = dispatcher.on_written, dispatcher.is_awaited
        hurry, catch_up = dispatcher.hurry, dispatcher.catch_up
        dispatcher.on_written = [*on_written]
        try:
            yield
        finally:
            dispatcher.on_written, dispatcher.is_awaited = on_written, is_awaited
            dispatcher.hurry, dispatcher.catch_up = hurry, catch_up
            confirm_offset = self.confirm_offset()
            self.confirm_offset = lambda: confirm_offset

    def take_role(
        self,
        *,
        is_slave: bool,
        on_progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
    ) -> None:
        """Go on as the store of a slave or of a master, whose parts are attached afterwards.

        That of a master dispatches to the log's end, as `open` does: until it is there, puts are refused.
        Blocks. An exception of `on_progress` ends it; what is left to do, the dispatch task does.
        """
        dispatch = evolve(self.settings.dispatch, is_slave=is_slave)
        self.settings = evolve(self.settings, dispatch=dispatch)
        self.dispatcher.configure(dispatch)
        self.commit_log.puts_blocked = not is_slave
        if not is_slave:
            self._prepare_puts(on_progress)

    def _prepare_puts(self, on_progress: Callable[[str, int, int], None]) -> None:
        """Dispatch to the log's end, for the next queue offsets, and accept puts. Blocks."""
        try:
            self._dispatch_to_end(on_progress=on_progress)
        except StoreError as error:
            log.error("puts are refused until the queues are complete", reason=str(error))
        self.enable_puts()

    def enable_puts(self) -> None:
        """Accept puts, if they were blocked and the queues are at the log's end now and can be read."""
        log_ = self.commit_log
        if log_.puts_blocked and self.dispatcher.position >= log_.max_offset:
            try:
                self.queues.correct_min_offsets(log_.min_offset)
            except StoreError as error:
                log.error("puts are refused until the queues can be read", reason=str(error))
                return
            log_.queue_offsets = self.queues.queue_offsets()
            log_.puts_blocked = False

    def _forget_derived(self) -> None:
        """Delete queues, index and epochs, and reset the checkpoint: the log is about to begin anew.

        The checkpoint is first: with the times of the old log, a start after a power cut would count records
        of the new log as synced. Syncs that are running do not change it any more.

        Raises StoreError, and OSError for the checkpoint, if not all can be deleted; the deleted ones are
        built again then. Without epochs nothing is known of a log, so it is compared with its master's or
        copied anew.
        """
        with self._checkpoint_lock:
            self._cuts += 1
            self._checkpoint = Checkpoint()
            self._checkpoint_file.save(self._checkpoint)
        if self.epochs is not None:
            self.epochs.clear()
        self.dispatcher.cut(0, redispatch_from=None, last_store_timestamp_ms=0)
        self._end_dispatch_wait()
        self.queues.destroy()
        self.index.destroy()

    # -- cut ----------------------------------------------------------------------------------------------

    def cut(self, offset: int) -> None:
        """End the log at `offset`, the start of a record or the log's end, and all that was built from it.

        As `cut_steps`, all of it in this thread. Blocks.
        """
        for step in self.cut_steps(offset):
            step()

    def cut_steps(self, offset: int) -> Iterator[Callable[[], None]]:
        """End the log at `offset`, the start of a record or the log's end, and all that was built from it.

        Everything is cut when the first step is there, or when the iterator ends. Steps only put it on disk:
        each blocks for as long as the disk takes for all queues, and may run in a worker thread; ask for the
        next one in trio's thread, when it has ended, and store nothing before the iterator has. Its end means
        that all is on disk: log, queues, index, checkpoint and epochs. After a crash at any moment the next
        opening finds the store uncut, or cut. Waits for offsets end with REWOUND, connections of this log's
        slaves end, and puts are refused until the queues are at the log's end (`enable_puts`). The index may
        begin before the end: dispatch completes it.

        The iterator blocks for a few syncs itself, so that nothing can be stored meanwhile. It has to be
        exhausted. It raises StoreError with nothing changed if no record starts at `offset`. After any other
        StoreError the node has to end: the next opening completes the cut. Any exception of the cut, of a
        step or of a callback is such a StoreError: if the node went on, that opening would also cut what was
        stored since. A step raises nothing.
        """
        log_ = self.commit_log
        if log_.first_record_from(offset) != offset:
            raise StoreError(
                "the log cannot be cut here: no record starts at this offset",
                path=log_.directory,
                offset=offset,
                hint=f"the log is [{log_.min_offset}, {log_.max_offset}); if it differs from its master's "
                "inside a record, remove the store, and the node copies its master's",
            )
        if offset == log_.max_offset:
            if self.epochs is not None:
                self.epochs.truncate_suffix(offset)
            return
        cut_bytes = log_.max_offset - offset
        last_store_timestamp_ms = log_.store_timestamp_before(offset)
        try:
            with self._checkpoint_lock:
                self._cuts += 1
                self._is_cutting = True
            if log_.flushed.offset < offset:
                log_.sync_work(log_.flushed.offset, offset).run()
                log_.flushed.advance(offset)
            epochs = EpochTable() if self.epochs is None else self.epochs.table
            save_cut(log_.directory, BegunCut.of(offset, log_.max_offset, epochs))
            log_.cut(offset, last_store_timestamp_ms=last_store_timestamp_ms)
            self._cut_derived()
            with closing(self._cut_queue_syncs()) as syncs:
                for sync in syncs:
                    step = _Step(sync)
                    yield step
                    if step.error is not None:
                        raise step.error
            self._is_cutting = False
            remove_cut(log_.directory)
            log.warning("commit log cut", end_offset=offset, bytes=cut_bytes)
            self.on_cut()
            self.enable_puts()
        except Exception as error:
            self.mark_failed()
            reason = error.reason if isinstance(error, StoreError) else _reason(error)
            raise StoreError(
                f"the cut cannot be completed: {reason}",
                path=error.path if isinstance(error, StoreError) else log_.directory,
                offset=offset,
                hint="check disk and log, then start again: the start completes the cut",
            ) from error

    def _cut_derived(self) -> None:
        """Cut queues, index, epochs and checkpoint to the log's end. Raises StoreError and OSError."""
        log_ = self.commit_log
        end_offset = log_.max_offset
        if log_.is_empty:
            # As an opening does it.
            self.queues.destroy()
            sync_directory(self.settings.root)
        else:
            self.queues.truncate_dirty(end_offset)
        index_cut = self.index.plan_cut(0 if log_.is_empty else end_offset)
        position = min(end_offset, self.dispatcher.position)
        if index_cut.redispatch_from is not None:
            position = max(min(position, index_cut.redispatch_from), log_.min_offset)
        if self.epochs is not None:
            self.epochs.truncate_suffix(end_offset)
        logics_ms = logics_time_ms(log_, position)
        self.dispatcher.cut(end_offset, redispatch_from=position, last_store_timestamp_ms=logics_ms)
        # It may wait for the limit to move beyond where the log ended.
        self._end_dispatch_wait()
        self._lower_checkpoint(min(position, self._checkpoint.logics_physical_offset), logics_ms, index_cut)
        self.index.cut(index_cut)

    def _cut_queue_syncs(self) -> Generator[Callable[[], None], None, None]:
        """Calls that put queues and index on disk: no entry that was cut may come back when others have its
        place.

        Syncs that are running have their own files. Raises StoreError for want of descriptors.
        """
        for parts in (self.queues, self.index):
            for _ in range(_SHORTAGES_MAX):
                work = parts.sync_work()
                try:
                    yield work.run if parts is self.queues else partial(self._sync_index, work)
                except BaseException:
                    work.close()
                    raise
                if not work.left:
                    break
                if self._index_error is not None:
                    # It is built again, also after a power cut.
                    parts.give_back(work)
                    break
                # Closes files, so that the next try finds descriptors.
                parts.give_back(work)
            else:
                raise StoreError(
                    "no file descriptors for a sync",
                    path=self.settings.root,
                    hint="raise the limit of open files (ulimit -n)",
                )

    def _lower_times(self, logics_offset: int, logics_ms: int, index_cut: IndexCut) -> None:
        """Have the checkpoint claim only what an opening found in queues and index. Blocks. Raises OSError.

        `logics_offset` and `logics_ms` are the latest logicsPhysicalOffset and logicsMsgTimestamp that are
        true when the files of `index_cut` are deleted. They can be deleted, and all that is missing can be
        built again, when this is on disk: another stop may leave only some of it, and the next start has to
        dispatch from the same position.
        """
        lowered = self._lowered(logics_offset, logics_ms, index_cut)
        if self.commit_log.is_empty:
            # The next log's records are not on disk because older ones were.
            lowered = evolve(lowered, physic_msg_timestamp_ms=0)
        if lowered == self._checkpoint:
            return
        self._checkpoint = lowered
        try:
            self._checkpoint_file.save(lowered)
        except OSError as error:
            # It must not prevent an opening.
            if error.errno not in DISK_FULL:
                raise
            self._warn_of_old_checkpoint(error)

    def _lowered(self, logics_offset: int, logics_ms: int, index_cut: IndexCut) -> Checkpoint:
        before = self._checkpoint
        return evolve(
            before,
            logics_physical_offset=logics_offset,
            logics_msg_timestamp_ms=min(before.logics_msg_timestamp_ms, logics_ms) if logics_offset else 0,
            index_msg_timestamp_ms=min(before.index_msg_timestamp_ms, index_cut.full_until_ms),
        )

    def _warn_of_old_checkpoint(self, error: OSError) -> None:
        reason = f"{self._checkpoint_file.path}: {error.strerror}"
        self.unwritten.fail(CHECKPOINT, reason, consequence="a start after a crash checks more of the log")

    def _lower_checkpoint(self, logics_offset: int, logics_ms: int, index_cut: IndexCut) -> None:
        """Write a checkpoint, and a list of queues, that name nothing beyond the log's end. Raises OSError.

        As `_lower_times`, but a full disk is no reason here to go on with the old ones: they claim too much.
        """
        log_ = self.commit_log
        names = frozenset(name for name, max_offset in self.queues.queue_offsets().items() if max_offset)
        with self._checkpoint_lock:
            # Syncs that began during the cut may have seen the old checkpoint.
            self._cuts += 1
            if names != self._listed_queues:
                save_queue_manifest(self.settings.root, names)
                self._listed_queues = names
            before = self._checkpoint
            self._checkpoint = evolve(
                self._lowered(logics_offset, logics_ms, index_cut),
                physic_msg_timestamp_ms=min(before.physic_msg_timestamp_ms, log_.last_store_timestamp_ms),
                master_flushed_offset=min(before.master_flushed_offset, log_.max_offset),
                confirm_physical_offset=min(before.confirm_physical_offset, log_.max_offset),
            )
            self._checkpoint_file.save(self._checkpoint)

    def head_deleted(self) -> Iterator[None]:
        """Delete, step by step, files of queues and index with only records before the log's start.

        A step is one queue, so that other tasks can run in between; meanwhile the log may grow, lose more
        files or begin anew. A queue whose files cannot be deleted is passed over; StoreError is raised after
        all the others: call again later.
        """
        refused: StoreError | None = None
        for queue in self.queues:
            try:
                # If the log began anew meanwhile, the queue is empty and not in use.
                queue.delete_before(self.commit_log.min_offset)
            except StoreError as error:
                refused = error
            yield
        self.index.delete_before(self.commit_log.min_offset)
        if refused is not None:
            raise refused

    def truncate_epochs(self) -> None:
        """Drop the epochs of deleted log files, on disk. Blocks: for a worker thread. Raises StoreError."""
        if self.epochs is not None:
            self.epochs.truncate_prefix(self.commit_log.min_offset)

    # -- disk ---------------------------------------------------------------------------------------------

    def sync_work(
        self,
        start_offset: int,
        end_offset: int,
        *,
        store_timestamp_ms: int,
        on_step: Callable[[], None] = lambda: None,
        paced: bool = False,
    ) -> Callable[[], None]:
        """A function for a worker thread that puts log bytes on disk and updates the checkpoint.

        `store_timestamp_ms` is that of the last record before `end_offset`, 0 to claim nothing. `on_step` is
        called in that thread while the disk makes progress, and `paced` says that nobody waits for it
        (`SyncWork.run`). The function blocks and raises OSError. It opens nothing, so any error means that
        the disk has failed.
        """
        files = self.commit_log.sync_work(start_offset, end_offset)
        cuts = self._cuts
        claimed_ms = self._claimed_ms(store_timestamp_ms)
        self._note_confirm_offset()

        def sync() -> None:
            files.run(on_step, paced=paced)
            # One write a second, as in the broker; recovery allows for 3 s. Store times may go back.
            before_ms = self._checkpoint.physic_msg_timestamp_ms
            if claimed_ms and abs(claimed_ms - before_ms) >= _CHECKPOINT_SPACING_MS:
                self._save_checkpoint(cuts, physic_msg_timestamp_ms=claimed_ms)

        return sync

    def _claimed_ms(self, store_timestamp_ms: int) -> int:
        """What the checkpoint says of a log that is on disk up to a record of that store time.

        Not more than the clock: by a record that leads it, all later ones would count as being on disk, too.
        """
        return min(store_timestamp_ms, self.commit_log.now_ms() + LEAD_MS_MAX)

    def queue_sync_work(self, *, paced: bool = False) -> Callable[[], None] | None:
        """The same for queues and index; None if nothing was written, and no more of the log was put on disk,
        since the last call.

        There may be more queue files than descriptors. Files that cannot be opened stay for the next call,
        and the checkpoint is not updated before they are on disk; likewise if the function never ran.
        """
        self._reclaim_unsynced()
        logics_offset = self._logics_offset()
        lacks_from = self.dispatcher.index_lacks_from
        if lacks_from is None:
            logics_ms = self._claimed_ms(self.dispatcher.last_store_timestamp_ms)
        else:
            logics_ms = self._claimed_ms(logics_time_ms(self.commit_log, lacks_from))
        steps, step_changes = self.dispatcher.time_steps.all, self.dispatcher.time_steps.changes
        full_until_ms = self.index.full_until_ms
        index = self.index.sync_work()
        queues = self.queues.sync_work()
        deletions = self.queues.deletions
        has_more = bool(queues.left or index.left) or logics_offset > self._checkpoint.logics_physical_offset
        if not has_more and self._listed_deletions == deletions:
            return None
        names = frozenset(name for name, max_offset in self.queues.queue_offsets().items() if max_offset)
        if not has_more and names == self._listed_queues:
            self._listed_deletions = deletions
            return None
        self._queue_sync = queues, index
        cuts = self._cuts
        self._note_confirm_offset()

        def sync() -> None:
            queues.run(paced=paced)
            if self._index_error is None:
                self._sync_index(index, paced=paced)
            if self._index_error is not None:
                return
            if left := len(queues.left) + len(index.left):
                log.warning("out of file descriptors: files of queues are synced later", files=left)
                return
            if names != self._listed_queues:
                self._save_queue_manifest(cuts, names, deletions=deletions)
            if step_changes != self._saved_steps and not self._save_time_steps(steps, step_changes):
                return
            before = self._checkpoint
            offset = max(logics_offset, before.logics_physical_offset)
            self._save_checkpoint(
                cuts,
                logics_physical_offset=offset,
                logics_msg_timestamp_ms=(logics_ms or before.logics_msg_timestamp_ms) if offset else 0,
                index_msg_timestamp_ms=max(full_until_ms, before.index_msg_timestamp_ms),
            )

        return sync

    def _sync_index(self, work: SyncWork, *, paced: bool = False) -> None:
        """Put files of the index on disk, or note the error: the index is optional. Blocks."""
        try:
            work.run(paced=paced)
        except OSError as error:
            self._index_error = error

    def index_is_doubtful(self) -> bool:
        """Whether a sync of the index has failed: some of it may be lost, so it has to be built again.

        It gets no keys from then on; what is not known to be on disk counts as lacking.
        """
        if self._index_error is None:
            return False
        backlog = self.dispatcher.backlog
        reason = f"{self.index.directory}: fsync failed: {self._index_error.strerror}"
        if backlog is None or not self.settings.dispatch.message_index_enable:
            # Only its folder is synced, where files were deleted.
            self._index_error = None
            self.unwritten.fail(INDEX, reason, consequence="none is kept; its folder is synced again")
            return False
        if not backlog.is_doubtful:
            start = self._unsynced_index().redispatch_from
            lacks_from = self.dispatcher.position if start is None else max(start, self.commit_log.min_offset)
            self.dispatcher.doubt_index(lacks_from, reason)
        return True

    def drop_doubtful_index(self) -> Iterator[Callable[[], None]]:
        """Delete the files of the index that are not known to be on disk: they are built again from the log.

        These are the files that a start after a crash builds again, and as there the checkpoint is lowered
        first: a step of the iterator does it, in a worker thread, and raises nothing. What cannot be written
        or deleted leaves the index doubtful: call again later.
        """
        backlog, lacks_from, cuts = self.dispatcher.backlog, self.dispatcher.index_lacks_from, self._cuts
        assert backlog is not None, "an index that is doubtful is kept"
        assert lacks_from is not None, "an index that is doubtful lacks keys"
        logics_ms, plan = logics_time_ms(self.commit_log, lacks_from), self._unsynced_index()

        def lower() -> None:
            with self._checkpoint_lock:
                if cuts == self._cuts and not self._is_cutting:
                    offset = min(lacks_from, self._checkpoint.logics_physical_offset)
                    self._checkpoint = self._lowered(offset, logics_ms, plan)
                    self._checkpoint_file.save(self._checkpoint)

        yield (step := _Step(lower))
        if cuts != self._cuts or self._is_cutting:
            return
        try:
            if step.error is not None:
                raise StoreError(_reason(step.error), path=self._checkpoint_file.path)
            self.index.cut(self._unsynced_index())
        except StoreError as error:
            backlog.fail(lacks_from, str(error))
        else:
            self._index_error = None
            backlog.is_doubtful = False

    def _unsynced_index(self) -> IndexCut:
        """Files of the index that may not be on disk, by the rule of a start after a crash."""
        log_ = self.commit_log
        return self.index.plan_cut(
            0 if log_.is_empty else log_.max_offset, safe_until_ms=self._checkpoint.index_msg_timestamp_ms
        )

    def _logics_offset(self) -> int:
        """The checkpoint's logicsPhysicalOffset when all that queues and index have now is on disk."""
        position, flushed_offset = self.dispatcher.position, self.commit_log.flushed.offset
        if (lacks_from := self.dispatcher.index_lacks_from) is not None:
            position = min(position, lacks_from)
        return position if position <= flushed_offset else self.commit_log.known_record_start(flushed_offset)

    def _reclaim_unsynced(self) -> bool:
        """Add files that the last `queue_sync_work` did not sync to the next one; whether there are any."""
        if self._queue_sync is None:
            return False
        queues, index = self._queue_sync
        self._queue_sync = None
        self.queues.give_back(queues)
        self.index.give_back(index)
        return bool(queues.left or index.left)

    def _note_confirm_offset(self) -> None:
        self._noted_confirm_offset = min(self.confirm_offset(), self.commit_log.max_offset)

    def _save_checkpoint(self, cuts: int, **changes: int) -> None:
        """Blocks; called by worker threads.

        If it cannot be written, the older checkpoint is still true: the next start only checks more records.
        Changes from before a cut (`cuts` is `_cuts` of that time) may not be, and are dropped; so are those
        from while its own syncs run, which have taken over the files with earlier writes.
        """
        with self._checkpoint_lock:
            if cuts != self._cuts or self._is_cutting:
                return
            changed = evolve(
                self._checkpoint,
                confirm_physical_offset=self._noted_confirm_offset,
                **changes,
            )
            try:
                self._checkpoint_file.save(changed)
            except OSError as error:
                self._warn_of_old_checkpoint(error)
            else:
                self._checkpoint = changed
                self.unwritten.succeed(CHECKPOINT)

    def _save_time_steps(self, steps: Sequence[TimeStep], changes: int) -> bool:
        """Whether the steps are on disk now. Blocks; called by worker threads.

        If not, the checkpoint has to stay as it is: the next start finds the steps again.
        """
        try:
            save_time_steps(self.settings.root, steps)
        except OSError as error:
            self.unwritten.fail(
                TIME_STEPS,
                f"{self.settings.root}: {error.strerror}",
                consequence="the checkpoint stays as it is; a start after a crash checks more of the log",
            )
            return False
        self.unwritten.succeed(TIME_STEPS)
        self._saved_steps = changes
        return True

    def _save_queue_manifest(self, cuts: int, names: frozenset[tuple[str, int]], *, deletions: int) -> None:
        """Blocks; called by worker threads. If it cannot be written, the next sync tries again.

        Names from before a cut are dropped.
        """
        with self._checkpoint_lock:
            if cuts != self._cuts:
                return
            try:
                save_queue_manifest(self.settings.root, names)
            except OSError as error:
                self._listed_deletions = None
                self.unwritten.fail(
                    QUEUE_LIST,
                    f"{self.settings.root}: {error.strerror}",
                    consequence="queues that are lost meanwhile are not noticed at a start",
                )
            else:
                self.unwritten.succeed(QUEUE_LIST)
                self._listed_queues = names
                self._listed_deletions = deletions

    def check_lock(self) -> None:
        """Whether this process is still the only one that may use the store (`StoreLock.check`). Blocks.

        Raises StoreError if it is not.
        """
        self._lock.check()

    def mark_failed(self) -> None:
        """Never mark this store as cleanly closed: the disk has failed a sync."""
        self._has_failed = True

    def close(self) -> None:
        """Put everything on disk, mark the store as cleanly closed, close all files and release the lock.

        `abort` stays, as in the broker, if queues are not at the log's end (dispatch waits at a bad
        record, is refused by the disk, or takes longer than `CLOSE_DISPATCH_S`), if there are no descriptors
        to sync them and the index with, or if a sync of the index failed. Raises StoreError if the disk
        refuses: the store then stays marked as in need of recovery.
        """
        log_ = self.commit_log
        try:
            if self._has_failed:
                # A sync that succeeds after one that failed does not bring back the pages that were lost.
                self._expect_losses()
                return
            dispatched = self._dispatch_at_close()
            self.sync_work(log_.flushed.offset, log_.max_offset, store_timestamp_ms=0)()
            log_.flushed.advance(log_.max_offset)
            if (sync_queues := self.queue_sync_work()) is not None:
                sync_queues()
            is_doubtful = self.index_is_doubtful()
            synced = not self._reclaim_unsynced() and not is_doubtful
            self._save_checkpoint(
                self._cuts,
                physic_msg_timestamp_ms=self._claimed_ms(log_.last_store_timestamp_ms)
                or self._checkpoint.physic_msg_timestamp_ms,
            )
            if dispatched and synced:
                self._abort.remove()
        except OSError as error:
            self._expect_losses()
            raise StoreError(f"cannot be closed: {error.strerror}", path=self.settings.root) from error
        finally:
            self.release()

    def _expect_losses(self) -> None:
        """Have the next start count as one after a power loss, as far as a disk that failed allows."""
        with suppress(OSError):
            self._abort.create(names_boot=False)

    def release(self) -> None:
        """Close all files and release the lock without a sync.

        The store stays marked as in need of recovery, as after a killed process.
        """
        self.commit_log.close()
        for work in self._queue_sync or ():
            work.close()
        self.queues.close()
        self.index.close()
        self._checkpoint_file.close()
        self._lock.release()

    def _dispatch_at_close(self) -> bool:
        """Whether queues have all records that they may have. What the index lacks, checkpoints name."""
        deadline_s = time.monotonic() + CLOSE_DISPATCH_S
        try:
            is_done = self._dispatch_to_end(
                on_progress=lambda _what, _done, _total: None, limit_s=CLOSE_DISPATCH_S
            )
        except StoreError as error:
            log.warning("queues cannot be completed, the next start will", reason=str(error))
            return False
        while self.dispatcher.complete_index(records_max=_DISPATCH_RECORDS):
            if time.monotonic() > deadline_s:
                break
        limit, end_offset = self.dispatcher.limit, self.commit_log.max_offset
        return self.dispatcher.position >= end_offset or (
            is_done and self.dispatcher.stuck_at < 0 and limit is not None and limit.offset < end_offset
        )
