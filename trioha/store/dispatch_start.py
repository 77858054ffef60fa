"""Where dispatch starts after an opening, and what a checkpoint may say of a place to start."""

from __future__ import annotations

from trioha.store.checkpoint import Checkpoint
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.recovery import SLACK_MS, newest_file_stored_by, stored_before_files_after
from trioha.store.time_steps import LEAD_MS_MAX


def start_position(
    commit_log: CommitLog,
    queues: ConsumeQueues,
    *,
    clean_exit: bool,
    checkpoint: Checkpoint,
    redispatch_from: int | None = None,
) -> int:
    """Where dispatch has to start after an opening.

    See docs/protocol/store.md#end-of-the-log, docs/protocol/store.md#dispatch.

    After a clean stop: after the last record that has an entry in any queue, else at the log's start. After
    an unclean one: at the newest log file whose first record was stored 3 s or more before the checkpoint's
    times, and that starts at or before its logicsPhysicalOffset. An offset before the log's start does not
    count: programs that do not know the field leave it as it was. `redispatch_from` is that of an `IndexCut`.
    Queues and log must be recovered.
    """
    known = queues.max_physical_offset
    position = min(max(known, commit_log.min_offset), commit_log.max_offset)
    if not clean_exit:
        safe_ms = max(
            0, min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms) - SLACK_MS
        )
        file = newest_file_stored_by(commit_log.files, safe_ms)
        position = min(position, commit_log.min_offset if file is None else file.start_offset)
        synced_offset = checkpoint.logics_physical_offset
        if synced_offset and synced_offset >= commit_log.min_offset:
            position = min(position, synced_offset - synced_offset % commit_log.file_bytes)
    if redispatch_from is not None:
        position = min(position, redispatch_from)
    return max(position, commit_log.min_offset)


def logics_time_ms(commit_log: CommitLog, position: int) -> int:
    """The latest logicsMsgTimestamp where queues and index may lack any record from `position` on.

    With it `start_position` is at or before `position` after an unclean stop, also for RocketMQ before 5.5
    (which goes by logicsPhysicalOffset), and it is not later than the log's last record and the clock: the
    next records are not claimed either.
    """
    before_ms = stored_before_files_after(commit_log.files, position)
    return min(commit_log.last_store_timestamp_ms, commit_log.now_ms() + LEAD_MS_MAX, before_ms + SLACK_MS)
