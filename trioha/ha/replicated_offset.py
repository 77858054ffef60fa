"""The replicated offset: the end of what as many slaves hold as a put of this master needs.

A SYNC_MASTER stores a message before its slaves do. A consumer that receives it at once may be ahead of what
survives: if the master is lost at that moment, the promoted slave stores another message at the same queue
offset, and the consumer, which is past that offset, never receives it. With trioha.consumeReplicatedOnly
consumers receive only records before the replicated offset. Every slave that holds these can be promoted: the
queue offsets of the messages that were received are taken there, by the same messages.

In controller mode there is none: the confirm offset (`ha.sync_state_set`) is its counterpart, see
docs/architecture.md#what-consumers-receive.

Theory of operation. `mark` is the k-th largest ack of the connected slaves, where a put needs k copies. Acks
have it computed anew. The mark does not move back when slaves disconnect: the bytes that they hold they still
hold. The first report of a connection does not count, since an observer sends a first report as well, but
every ack of bytes that were sent after it does; a trioha slave has its tail sent with each connection. Where
a put needs no copies at the moment (enableAutoInSyncReplicas without slaves in sync), the mark is the log's
end: such puts are PUT_OK.

The checkpoint keeps it over restarts, as its confirmPhyOffset. A store whose checkpoint has none (a promoted
slave, a master without the setting) starts with its whole log replicated: a slave's log was its master's, so
it exists twice, and consumers of a master without the setting have received its messages.

Limits. The slave that is promoted must be one of the k; with inSyncReplicas=2 and two slaves, the slave that
is farther ahead. And while no slave acknowledges, consumers receive nothing new, although the log grows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from trioha.watermark import Watermark

log = structlog.get_logger(__name__)

RECHECK_S: Final = 1.0
"""Between two looks at what puts need, if no ack comes before: it may change without one."""
WARN_S: Final = 10.0
"""Records that are not replicated for so long are logged: consumers do not receive them."""


class ReplicatedOffset:
    """Computes the replicated offset of a master; `run` is its task."""

    def __init__(
        self,
        replicated: Callable[[], int],
        log_end: Callable[[], int],
        *,
        acks: Watermark,
        start_offset: int,
    ) -> None:
        """`replicated` gives the end of what enough slaves hold now, `log_end` that of the log. `acks` counts
        the acks of slaves."""
        self._replicated = replicated
        self._log_end = log_end
        self._acks = acks
        self.mark = Watermark(start_offset)
        """End of the replicated records. Moved by `update`, forward only."""

    @classmethod
    def restored(
        cls,
        replicated: Callable[[], int],
        log_end: Callable[[], int],
        *,
        acks: Watermark,
        checkpoint_offset: int,
    ) -> ReplicatedOffset:
        """Of a store that was opened: that of its checkpoint, or its end if that has none (0)."""
        end = log_end()
        start_offset = min(checkpoint_offset, end) if checkpoint_offset else end
        return cls(replicated, log_end, acks=acks, start_offset=start_offset)

    @property
    def limit(self) -> int | None:
        """Where reads for consumers end; None if all records are replicated."""
        offset = self.mark.offset
        return None if offset >= self._log_end() else offset

    def for_checkpoint(self) -> int:
        """What the checkpoint keeps; never 0, which means unknown there."""
        return max(1, self.mark.offset)

    def update(self) -> None:
        """Compute it anew."""
        self.mark.advance(self._replicated())

    async def run(self) -> None:
        """Follow the acks, and log a replicated offset that does not move, until cancelled."""
        stuck_offset, since_s, is_logged = -1, 0.0, False
        while True:
            with trio.move_on_after(RECHECK_S):
                await self._acks.reached(self._acks.offset + 1)
            self.update()
            offset = self.limit
            if offset is None or offset != stuck_offset:
                if is_logged:
                    log.info("consumers receive new messages again", replicated_offset=self.mark.offset)
                stuck_offset = -1 if offset is None else offset
                since_s, is_logged = trio.current_time(), False
            elif not is_logged and trio.current_time() >= since_s + WARN_S:
                is_logged = True
                log.warning(
                    "consumers wait for slaves: trioha.consumeReplicatedOnly holds messages back",
                    replicated_offset=offset,
                    max_offset=self._log_end(),
                )
