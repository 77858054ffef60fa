"""Whether a store accepts puts: a put needs its queue's next offset, so the queues have to be complete."""

from __future__ import annotations

import structlog

from trioha.errors import StoreError
from trioha.store.commit_log import CommitLog
from trioha.store.consume_queues import ConsumeQueues
from trioha.store.dispatch import Dispatcher
from trioha.store.dispatch_to_end import OnProgress, dispatch_to_end

log = structlog.get_logger(__name__)


class PutAdmission:
    """Blocks a log's puts, and enables them. Replication is not concerned."""

    def __init__(self, commit_log: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._log = commit_log
        self._queues = queues
        self._dispatcher = dispatcher

    def prepare(self, on_progress: OnProgress) -> None:
        """Refuse puts, dispatch to the log's end, for the next queue offsets, and accept puts. Blocks."""
        self._log.puts_blocked = True
        try:
            dispatch_to_end(self._dispatcher, self._log, on_progress=on_progress)
        except StoreError as error:
            log.error("puts are refused until the queues are complete", reason=str(error))
        self.enable()

    def enable(self) -> None:
        """Accept puts, if they were blocked and the queues are at the log's end now and can be read."""
        log_ = self._log
        if log_.puts_blocked and self._dispatcher.position >= log_.max_offset:
            try:
                self._queues.correct_min_offsets(log_.min_offset)
            except StoreError as error:
                log.error("puts are refused until the queues can be read", reason=str(error))
                return
            log_.queue_offsets = self._queues.queue_offsets()
            log_.puts_blocked = False
