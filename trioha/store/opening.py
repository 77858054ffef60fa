"""The opening of a store: lock it, find the log's end, and bring all that is built from the log there.

See docs/protocol/store.md#start.

The file `abort` exists while a process uses the store; if a start finds it, only the checkpoint counts. An
opening changes nothing in queues and index before `abort` is on disk, and deletes nothing of them before the
checkpoint names it: another stop may leave only some of the changes, and the next start has to do the same.
"""

from __future__ import annotations

from contextlib import ExitStack, closing

import structlog

from trioha.errors import StoreError
from trioha.store.checkpoint import Checkpoint, CheckpointFile
from trioha.store.checkpoints import Checkpoints
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.cut_marker import load_cut, remove_cut
from trioha.store.cutting import Cutter
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_start import logics_time_ms, start_position
from trioha.store.dispatch_to_end import OnProgress, no_progress
from trioha.store.doubtful_epoch import note_doubtful_epoch
from trioha.store.epochs import EpochLog
from trioha.store.index_rebuild import IndexRebuild
from trioha.store.index_service import IndexCut, IndexService
from trioha.store.lock import RESTORE_MARKER, AbortFile, StoreLock
from trioha.store.message_store import MessageStore
from trioha.store.put_admission import PutAdmission
from trioha.store.queue_manifest import QueueName, load_queue_manifest
from trioha.store.reads import MessageReader
from trioha.store.recovery import CHECKED_BYTES, open_commit_log
from trioha.store.store_settings import StoreSettings
from trioha.store.store_syncs import StoreSyncs
from trioha.store.time_steps import load_time_steps
from trioha.store.topic_types import batch_topics
from trioha.unwritten import Unwritten
from trioha.watermark import Watermark

log = structlog.get_logger(__name__)


def open_store(
    settings: StoreSettings,
    *,
    on_progress: OnProgress = no_progress,
    is_restoring: bool = False,
    unwritten: Unwritten | None = None,
) -> MessageStore:
    """Lock the store (made if missing), find the log's end, and mark the store as in use. Blocks.

    `on_progress(what, done, total)` gets the number of log files checked, then of the bytes dispatched,
    several times a second. An exception of it ends the opening: the lock is released, and the store stays
    marked as in need of recovery if anything in it was changed. Raises StoreError, with the lock released,
    if the store is in use or cannot be opened, or if a restore into it was interrupted (`is_restoring` says
    that the caller is that restore). `unwritten` gets what cannot be written.
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
            store = _open_locked(settings, lock, on_progress, unwritten or Unwritten(), opened)
            opened.pop_all()
    except OSError as error:
        lock.release()
        raise StoreError(f"cannot be opened: {error.strerror}", path=settings.root) from error
    except BaseException:
        lock.release()
        raise
    return store


def _open_locked(
    settings: StoreSettings,
    lock: StoreLock,
    on_progress: OnProgress,
    unwritten: Unwritten,
    opened: ExitStack,
) -> MessageStore:
    """Open all parts; `opened` closes them if a later one fails."""
    root = settings.root
    abort = AbortFile(root)
    begun_cut = load_cut(settings.commit_log_directory)
    cut_at = None if begun_cut is None else begun_cut.offset
    clean_exit = not abort.exists and begun_cut is None
    checkpoint = Checkpoint.load(root / "checkpoint")
    queues = ConsumeQueues(root, settings.queues, is_batch_topic=batch_topics(root).__contains__)
    opened.callback(queues.close)
    queues.recover(
        lambda done, total: on_progress("opening consume queues", done, total),
        # 0: written by a program that does not know the field.
        synced_offset=None if clean_exit else checkpoint.logics_physical_offset or None,
    )
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
        queues_max=settings.queues.queues_max,
        multi_dispatch=settings.dispatch.multi_dispatch,
        on_progress=lambda done, total: on_progress("checking the commit log, files", done, total),
    )
    opened.callback(commit_log.close)
    epochs = None if settings.epoch_file is None else EpochLog.open(settings.epoch_file)
    doubtful_epoch, is_noted = note_doubtful_epoch(root, abort, epochs)
    lock.check()
    # From here on queues and index are changed: a process that ends before it closes the store leaves it in
    # need of recovery.
    abort.create(names_boot=is_noted)
    _cut_queues(queues, commit_log, lost)
    index_cut = index.plan_cut(
        0 if commit_log.is_empty else commit_log.max_offset,
        safe_until_ms=None if clean_exit else checkpoint.index_msg_timestamp_ms,
    )
    if epochs is not None:
        # A power cut may have taken the first bytes of an epoch; one that begins at the log's end stays.
        after_end = commit_log.max_offset + 1
        epochs.truncate_suffix(after_end if cut_at is None else min(cut_at, after_end))
        epochs.truncate_prefix(commit_log.min_offset)
    dispatcher = _dispatcher(
        settings,
        commit_log,
        queues,
        index,
        clean_exit=clean_exit,
        checkpoint=checkpoint,
        redispatch_from=commit_log.min_offset if lost else index_cut.redispatch_from,
        is_index_whole=index_cut.redispatch_from is None,
        unwritten=unwritten,
    )
    checkpoints = Checkpoints(checkpoint_file, checkpoint, commit_log=commit_log, unwritten=unwritten)
    index_rebuild = IndexRebuild(
        index, commit_log=commit_log, dispatcher=dispatcher, checkpoints=checkpoints, unwritten=unwritten
    )
    syncs = StoreSyncs(
        root,
        commit_log=commit_log,
        queues=queues,
        index=index,
        dispatcher=dispatcher,
        checkpoints=checkpoints,
        index_rebuild=index_rebuild,
        listed_queues=listed,
        unwritten=unwritten,
    )
    if settings.dispatch_to_confirmed:
        # Until the node has a role, checkpoints keep the last one.
        checkpoints.follow_confirm_offset(lambda: checkpoints.current.confirm_physical_offset)
        dispatcher.limit_to(Watermark(checkpoint.confirm_physical_offset))
    _cut_index(
        index,
        index_cut,
        commit_log=commit_log,
        dispatcher=dispatcher,
        checkpoints=checkpoints,
        syncs=syncs,
        is_cut=begun_cut is not None,
    )
    if begun_cut is not None:
        remove_cut(settings.commit_log_directory)
        log.warning(
            "cut of the commit log completed", offset=begun_cut.offset, end_offset=commit_log.max_offset
        )
    puts = PutAdmission(commit_log, queues, dispatcher)
    if not settings.dispatch.is_slave:
        puts.prepare(on_progress)
    return MessageStore(
        settings=settings,
        commit_log=commit_log,
        queues=queues,
        index=index,
        dispatcher=dispatcher,
        reads=MessageReader(commit_log, queues, index, dispatcher.time_steps),
        puts=puts,
        syncs=syncs,
        checkpoints=checkpoints,
        cutter=Cutter(
            root,
            abort=abort,
            commit_log=commit_log,
            queues=queues,
            index=index,
            dispatcher=dispatcher,
            epochs=epochs,
            checkpoints=checkpoints,
            syncs=syncs,
            puts=puts,
        ),
        index_rebuild=index_rebuild,
        epochs=epochs,
        lock=lock,
        abort=abort,
        recovered=recovered,
        completed_cut=begun_cut,
        doubtful_epoch=doubtful_epoch,
        unwritten=unwritten,
    )


def _cut_queues(queues: ConsumeQueues, commit_log: CommitLog, lost: set[QueueName]) -> None:
    """Let queues name what the log has, and no more. Raises StoreError."""
    if commit_log.is_empty:
        queues.destroy()
        return
    queues.truncate_dirty(commit_log.max_offset)
    queues.correct_min_offsets(commit_log.min_offset)
    if lost:
        log.warning("consume queues are gone, all are compared with the log", queues=sorted(lost)[:10])


def _dispatcher(
    settings: StoreSettings,
    commit_log: CommitLog,
    queues: ConsumeQueues,
    index: IndexService,
    *,
    clean_exit: bool,
    checkpoint: Checkpoint,
    redispatch_from: int | None,
    is_index_whole: bool,
    unwritten: Unwritten,
) -> Dispatcher:
    """The dispatcher, where it has to go on. Raises StoreError and OSError."""
    position = start_position(
        commit_log, queues, clean_exit=clean_exit, checkpoint=checkpoint, redispatch_from=redispatch_from
    )
    if not clean_exit:
        queues.sync_from(position)
    time_steps = load_time_steps(settings.root)
    time_steps.keep(commit_log.min_offset, commit_log.max_offset)
    lacks_from: int | None = None
    if clean_exit and is_index_whole and checkpoint.logics_physical_offset < position:
        # The last stop left the index behind the queues, or the checkpoint is of a program that does not know
        # the field. What the index has is known by itself.
        lacks_from = max(checkpoint.logics_physical_offset, index.end_physical_offset, commit_log.min_offset)
    return Dispatcher(
        commit_log,
        queues,
        index,
        position=position,
        index_lacks_from=lacks_from if settings.dispatch.message_index_enable else None,
        settings=settings.dispatch,
        time_steps=time_steps,
        unwritten=unwritten,
    )


def _cut_index(
    index: IndexService,
    index_cut: IndexCut,
    *,
    commit_log: CommitLog,
    dispatcher: Dispatcher,
    checkpoints: Checkpoints,
    syncs: StoreSyncs,
    is_cut: bool,
) -> None:
    """Lower the checkpoint, delete files of the index, and put all on disk. Raises StoreError and OSError.

    `is_cut`: the log was cut, so that the checkpoint on disk claims too much.
    """
    # All before it is on disk, whatever offset an older version has left.
    lacks_from = dispatcher.index_lacks_from
    built_until = dispatcher.position if lacks_from is None else lacks_from
    logics_ms = logics_time_ms(commit_log, built_until)
    if is_cut:
        syncs.list_queues_left()
        checkpoints.lower_to_end(built_until, logics_ms, index_cut)
    else:
        checkpoints.lower_at_opening(built_until, logics_ms, index_cut)
    index.cut(index_cut)
    with closing(syncs.cut_syncs()) as calls:
        for call in calls:
            call()
