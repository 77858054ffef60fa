"""The slave's side of replication: connects to the master, again and again.

See docs/protocol/ha.md#slaves-side, docs/protocol/ha.md#what-a-slave-checks.

Theory of operation. While the node runs, the slave's link is READY (no connection) or in TRANSFER with
one (`HaClient`). After the end of a connection the slave waits (0.1 s, doubling to 5 s, back to 0.1 s
once a frame was received) and connects again.

An ack is a promise: a slave reports the end of whole, checked records in its own log. The bytes of a frame
are checked record by record before they are appended; a bad one ends the connection.

Each connection runs within an error boundary, from connecting to its end: a peer's fault, a fault of this
program or a shortage ends that connection, and the slave connects again. So does a disk that refuses
bytes; a failed sync ends the node, but in the flush task.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from typing import Final

import structlog
import trio

from trioha.broker_status import SlaveStatus
from trioha.config.keys.ha import AckMode, GapPolicy
from trioha.errors import StoreError
from trioha.ha.client import DefaultHaClient, HaClient
from trioha.ha.link import GAP_REASONS, LinkStatistics, LinkVerdict
from trioha.ha.replication_session import ReplicationSession, ReplicationSettings
from trioha.ha.set_aside import set_aside_folder
from trioha.ha.settings import HaSettings
from trioha.ha.state_changes import StateChanges, Subscription
from trioha.net.error_boundary import ErrorBoundary, find_shortage
from trioha.recording.events import NO_CONNECTION, CloseReason, EventSink, HaState, Kind, LinkEvent
from trioha.store.commit_log import CommitLog

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S: Final = 5.0
BACK_OFF_MIN_S: Final = 0.1
BACK_OFF_MAX_S: Final = 5.0
LASTING_REASONS: Final = GAP_REASONS | {CloseReason.CUT_REFUSED, CloseReason.INTERNAL_ERROR}
"""Ends that another connection does not mend: the back-off grows even if frames were received."""

Connect = Callable[[Callable[[str], None]], Awaitable[trio.abc.Stream]]
"""Opens a stream to the master's HA port; calls its argument with the address that it dials."""


class HaSlave:
    """Keeps this node's log a copy of the master's."""

    def __init__(
        self,
        *,
        master_address: str,
        connect: Connect,
        commit_log: CommitLog,
        settings: HaSettings,
        sink: EventSink,
        replication: ReplicationSettings | None = None,
        ack_mode: AckMode = AckMode.WRITTEN,
        is_observer: bool = False,
        gap_policy: GapPolicy = GapPolicy.FAIL,
        connection_ids: Iterator[int] | None = None,
        make_client: Callable[..., HaClient] | None = None,
        check_master: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """`connect` opens a stream to the master's HA port; `master_address` is reported until it says what
        it dials. Its OSError and TooSlowError are expected.

        `make_client` makes the client of another protocol than the default one; it gets the options of
        `HaClient` but `session`.

        `check_master` says before each connection why the master is not to be followed; empty if it is.

        `connection_ids` numbers connections: share it with the node's `HaMaster`, so that no two are alike.
        """
        self._master_address = master_address
        self._connect = connect
        self._check_master = check_master
        self._log = commit_log
        self._settings = settings
        self._sink = sink
        self._ack_mode = ack_mode
        self._is_observer = is_observer
        self._gap_policy = gap_policy
        self._make_client = make_client or partial(
            DefaultHaClient, session=ReplicationSession(commit_log, replication or ReplicationSettings())
        )
        self._ids = connection_ids or count(1)
        self.boundary = ErrorBoundary("link to the master")
        """Ends and counts exceptions of connections."""
        self.state = HaState.READY
        """The link's state."""
        self._changes: StateChanges[HaState] = StateChanges()
        self._connection: HaClient | None = None
        """The current connection, or the last one."""
        self._connection_id = NO_CONNECTION
        """Number of the connection of the current attempt, if one was made."""
        self._connections = 0
        self.last_close_reason = CloseReason.NONE
        """Why the last connection ended; NONE before that."""
        self.ended_connections: Counter[str] = Counter()
        """Connections and attempts to connect that ended, by `CloseReason` name."""
        self._statistics = LinkStatistics()
        self._verdict = LinkVerdict(master_address)

    def is_connected(self) -> bool:
        """Whether there is a connection to the master."""
        return self.state is HaState.TRANSFER

    def has_caught_up(self) -> bool:
        """Whether what the master says of deliveries is true of the own log.

        Here that is so for as long as there is a connection: a master waits with it for all slaves that are
        connected, and less than haSlaveFallbehindMax behind (`Replicas.held_offset`). Their frames do not say
        where the master's log ends.
        """
        return self.is_connected()

    def status(self) -> SlaveStatus:
        """A snapshot of the link."""
        connection, statistics = self._connection, self._statistics
        return SlaveStatus(
            master_address=self._master_address,
            max_offset=self._log.max_offset,
            transferred_bytes_per_s=statistics.rate.bytes_per_s(trio.current_time()),
            last_read_ms=statistics.last_read_ms,
            last_write_ms=statistics.last_write_ms,
            reported_offset=connection.reported_offset if connection is not None else -1,
            state=self.state.name,
            reconnects=max(0, self._connections - 1),
            verdict=self._verdict.text,
            local_address=connection.local_address if connection is not None else None,
            is_observer=self._is_observer,
        )

    def changes(self) -> AbstractContextManager[Subscription[HaState]]:
        """The link's states from now on: `with slave.changes() as changes: async for state in changes`."""
        return self._changes.subscribe()

    async def run(self) -> None:
        """Replicate until cancelled, through all faults of master and disk.

        Raises what `_check_store` does, in controller mode StoreError.
        """
        back_off_s = BACK_OFF_MIN_S
        try:
            while True:
                self._connection_id = NO_CONNECTION
                with self.boundary.around(self._master_address) as guarded:
                    self._sink.emit(Kind.LINK, flags=LinkEvent.CONNECTING)
                    await self._connect_and_replicate()
                if guarded.error is not None:
                    self.last_close_reason = CloseReason.INTERNAL_ERROR
                self._check_store()
                with self.boundary.around(self._master_address):
                    back_off_s = self._back_off(back_off_s)
                await trio.sleep(back_off_s)
                back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)
        finally:
            self._set_state(HaState.SHUTDOWN)

    async def _connect_and_replicate(self) -> None:
        refusal = "" if self._check_master is None else await self._check_master()
        self._verdict.check_master(refusal)
        if refusal:
            self.last_close_reason = CloseReason.OTHER_MASTER
            return
        try:
            with trio.fail_after(CONNECT_TIMEOUT_S):
                stream = await self._connect(self._dialing)
        except (OSError, trio.TooSlowError, UnicodeError) as error:
            # UnicodeError: a host name that the resolver cannot encode.
            self.last_close_reason = CloseReason.CONNECT_FAILED
            shortage = find_shortage(error)
            if shortage is not None:
                self.boundary.report(shortage, self._master_address, what="connect failed")
            else:
                log.info("connect failed", master=self._master_address, error=str(error) or "timed out")
            return
        self._connections += 1
        self._connection_id = next(self._ids)
        self._connection = self._make_client(
            stream,
            connection_id=self._connection_id,
            master_address=self._master_address,
            commit_log=self._log,
            settings=self._settings,
            ack_mode=self._ack_mode,
            is_observer=self._is_observer,
            sink=self._sink,
            statistics=self._statistics,
            verdict=self._verdict,
            on_state=self._change_connection_state,
        )
        await self._connection.run()

    def _dialing(self, master_address: str) -> None:
        self._master_address = master_address

    def _change_connection_state(self, state: HaState) -> None:
        if state is HaState.READY and self._connection is not None:
            self.last_close_reason = self._connection.close_reason
        self._set_state(state)

    def _set_state(self, state: HaState) -> None:
        if state is not self.state:
            self.state = state
            self._changes.publish(state)

    def _back_off(self, back_off_s: float) -> float:
        """Log and record the end of an attempt; returns how long to wait before the next one."""
        reason = self.last_close_reason
        self.ended_connections[reason.name] += 1
        connection = self._connection if self._connection_id != NO_CONNECTION else None
        if self._sets_log_aside(reason) and not self._log.is_empty:
            self._archive_log(reason)
            back_off_s = BACK_OFF_MIN_S
        elif connection is not None and connection.frame_received and reason not in LASTING_REASONS:
            back_off_s = BACK_OFF_MIN_S
        log.info(
            "no connection to the master",
            master=self._master_address,
            reason=reason.name,
            next_try_s=back_off_s,
        )
        self._sink.emit(
            Kind.LINK, conn=self._connection_id, size=round(back_off_s * 1000), flags=LinkEvent.BACK_OFF
        )
        return back_off_s

    def _check_store(self) -> None:
        """Raise what ends the node after a connection."""

    def _sets_log_aside(self, reason: CloseReason) -> bool:
        """Whether a log is archived whose connection ended for `reason`."""
        return reason in GAP_REASONS and self._gap_policy is GapPolicy.RESYNC

    def _archive_log(self, reason: CloseReason) -> None:
        """Move the log that does not follow the master's to a folder beside it, and start a new one."""
        archive = set_aside_folder(self._log.directory, reason)
        try:
            self._log.archive(archive)
        except (OSError, StoreError) as error:
            log.error("the log cannot be set aside", path=str(archive), reason=str(error))
            return
        log.warning("log set aside, starting anew", kept_as=str(archive), reason=self._verdict.text)
        self._verdict.clear()
        # Until the next connection no other event records the log's new end.
        max_offset = self._log.max_offset
        self._sink.emit(
            Kind.STATE, conn=self._connection_id, offset=max_offset, aux=max_offset, flags=HaState.READY
        )
        self._sink.emit(Kind.FLUSHED, offset=self._log.flushed.offset)
