"""One replica's row: from the answers of its master and of itself to a `ReplicaView`.

A row is updated by its master's list of connections (`listed`), by the end of its connection (`unlisted`),
or, if the master lists nothing (RocketMQ 4.9) or not this slave, by the slave's own status (`seen`). It keeps
rates, histories and the debounced verdict, and survives reconnects (`trioha_monitor.matching`).
"""

from __future__ import annotations

from attrs import define, field

from trioha.broker_status import BrokerStatus, ConnectionStatus, SlaveStatus
from trioha.distribution import Distribution
from trioha.replica_verdict import Facts, Judgement, Limits, Verdict, end_and_lag, is_rejoining, judge
from trioha_monitor.metadata_copy import view_metadata
from trioha_monitor.replica_view import Measurements, ReplicaNames, SlaveOffsets, in_unit, view_replica
from trioha_monitor.series import AppendClock, RateMeter, SeriesRecorder, TrendMeter
from trioha_monitor.verdict_debounce import VerdictDebounce
from trioha_monitor.view import ReplicaView, node_label


@define(eq=False)
class SlaveReport:
    """The last answer of a watched slave."""

    status: BrokerStatus
    last_received_ms: int
    """When its time of the last read from the master was last seen to change."""
    answered_ms: int
    """When it answered."""
    answers: bool = True
    """Whether the slave answers now."""
    reconnects_before: int = 0
    """Reconnects until its process started: those of earlier processes, and each restart is one more."""

    @property
    def client(self) -> SlaveStatus | None:
        """Its side of the connection."""
        return self.status.client

    @property
    def reconnects(self) -> int | None:
        """How often it reconnected, by its own count and over its restarts; None if it does not count."""
        client = self.client
        if client is None or client.reconnects is None:
            return None
        return self.reconnects_before + client.reconnects

    @property
    def connection(self) -> tuple[str | None, str | None]:
        """Both ends of its connection, as far as it reports them."""
        client = self.client
        return (None, None) if client is None else (client.local_address, client.master_address)

    def answered(self, status: BrokerStatus, *, at_ms: int) -> None:
        """It answered."""
        client, earlier = status.client, self.client
        if client is not None and earlier is not None:
            if client.last_read_ms != earlier.last_read_ms:
                self.last_received_ms = at_ms
            booted = self.status.table.booted_ms, status.table.booted_ms
            is_same = None in booted or booted[0] == booted[1]
            counted = earlier.reconnects or 0
            if earlier.last_read_ms and (not is_same or (client.reconnects or 0) < counted):
                self.reconnects_before += counted + 1
        self.status, self.answered_ms, self.answers = status, at_ms, True

    @property
    def has_local_address(self) -> bool:
        """Whether it reports its local address, as trioha slaves do."""
        client = self.client
        return client is not None and client.is_observer is not None


@define(eq=False)
class Replica:
    """One row. Times are milliseconds on the views' axis."""

    key: int
    master: str
    """Address of the master as watched, or its HA address."""
    address: str
    since_ms: int
    """When it connected or disconnected, as seen."""
    lag_bytes: SeriesRecorder = field(repr=False)
    lag_s: SeriesRecorder = field(repr=False)
    node: str | None = None
    """Address of the slave as watched; None while it is not known."""
    is_connected: bool = False
    was_connected: bool = False
    """Whether it was ever seen connected."""
    reconnects: int = 0
    """As seen."""
    state: str = ""
    master_offset: int | None = None
    sent_offset: int | None = None
    ack_offset: int | None = None
    diff_bytes: int | None = None
    lag_now_s: float | None = None
    in_sync: bool | None = None
    transferred_bytes_per_s: int | None = None
    ack_latency_us: Distribution[int] | None = None
    frame_bytes: Distribution[int] | None = None
    debounce: VerdictDebounce = field(factory=VerdictDebounce)
    sync_shown: bool | None = None
    """In-sync state by the last event on the timeline."""
    sync_differs_ms: int | None = None
    """Since when `in_sync` differs from it."""
    ack_moved_ms: int = 0
    """When ack_offset was last seen to move."""
    is_new: bool = False
    """Whether its connection is new since the master is watched, and has no ack yet."""
    joined_at_offset: int | None = None
    """End of the master's log at the first ack of a new connection; None without one."""
    is_rejoining: bool = False
    """Whether its lag may be the tail that it compares."""
    _beyond_end: int | None = None
    """Sent or acknowledged offset beyond the end of the log in the same answer."""
    _sent_rate: RateMeter = field(factory=RateMeter)
    _ack_rate: RateMeter = field(factory=RateMeter)
    _trend: TrendMeter = field(factory=TrendMeter)

    @property
    def shown(self) -> Judgement:
        """The verdict that is shown."""
        return self.debounce.shown or Judgement(Verdict.OK)

    def connected(self, address: str, *, at_ms: int, is_new: bool) -> None:
        """Its master lists it, for the first time or again, as `address`.

        `is_new`: the connection was made just now, rather than before the master was watched.
        """
        if self.was_connected:
            self.reconnects += 1
        self.address = address
        self.is_connected = self.was_connected = True
        self.since_ms = self.ack_moved_ms = at_ms
        self.is_new, self.joined_at_offset = is_new, None
        self.restart_meters()

    def disconnected(self, *, at_ms: int) -> None:
        """Its master no longer lists it."""
        self.is_connected = False
        self.state = ""
        self.since_ms = at_ms
        self.in_sync = self.is_rejoining = False
        self.transferred_bytes_per_s = self.ack_latency_us = self.frame_bytes = None
        self.restart_meters()

    def restart_meters(self) -> None:
        """Restart the rates: the next figures do not continue the last ones."""
        self._sent_rate.clear()
        self._ack_rate.clear()
        self._trend.clear()

    def listed(
        self,
        status: ConnectionStatus,
        *,
        master: BrokerStatus,
        clock: AppendClock,
        limits: Limits,
        slave: SlaveReport | None,
        at_ms: int,
    ) -> None:
        """Its master lists its connection at `at_ms`."""
        self.state = status.state or "CONNECTED"
        self.sent_offset = status.sent_offset
        self.in_sync = status.in_sync
        self.transferred_bytes_per_s = status.transferred_bytes_per_s
        self.ack_latency_us, self.frame_bytes = status.ack_latency_us, status.frame_bytes
        ack = max(status.ack_offset, 0)
        self._moved(ack if status.ack_offset >= 0 else status.ack_offset, at_ms=at_ms)
        self._measure(status, ack, master)
        if self.is_new and status.ack_offset >= 0:
            assert self.master_offset is not None, "it was measured"
            self.is_new, self.joined_at_offset = False, self.master_offset
        self.is_rejoining = self.joined_at_offset is not None and is_rejoining(
            ack,
            joined_at_offset=self.joined_at_offset,
            connected_s=max(0, at_ms - self.since_ms) / 1000,
            limits=limits,
        )
        if status.lag_ms is not None:
            self.lag_now_s = max(0, status.lag_ms) / 1000
        else:
            self.lag_now_s = clock.age_s(ack, now_ms=at_ms) if status.lag_bytes > 0 else 0.0
        self._sent_rate.add(status.sent_offset, at_ms=at_ms)
        last_received_s = None if status.last_received_ms is None else max(0, status.last_received_ms) / 1000
        self._judge(master, limits=limits, slave=slave, last_received_s=last_received_s, at_ms=at_ms)

    def _measure(self, status: ConnectionStatus, ack: int, master: BrokerStatus) -> None:
        """Set the end of the master's log and the distance of the ack from it."""
        furthest_before = self._beyond_end
        furthest = max(ack, status.sent_offset)
        self._beyond_end = furthest if furthest > max(master.max_offset, ack + status.lag_bytes) else None
        self.master_offset, self.diff_bytes = end_and_lag(
            status, max_offset=master.max_offset, furthest_before=furthest_before
        )

    def unlisted(
        self,
        *,
        master: BrokerStatus,
        clock: AppendClock,
        limits: Limits,
        slave: SlaveReport | None,
        at_ms: int,
    ) -> None:
        """Its master answered at `at_ms` and does not list it: it lacks all bytes after its last ack."""
        self.master_offset = master.max_offset
        if self.ack_offset is None and slave is not None:
            self.ack_offset = slave.status.max_offset
        if self.ack_offset is not None:
            self.diff_bytes = master.max_offset - self.ack_offset
            self.lag_now_s = (
                clock.age_s(max(self.ack_offset, 0), now_ms=at_ms) if self.diff_bytes > 0 else 0.0
            )
        self._judge(master, limits=limits, slave=slave, last_received_s=None, at_ms=at_ms)

    def seen(
        self,
        *,
        master: BrokerStatus | None,
        clock: AppendClock | None,
        limits: Limits,
        slave: SlaveReport,
        at_ms: int,
    ) -> None:
        """The slave answered, and no master lists it: the end of its log is used as its ack."""
        self.is_connected = slave.answers
        own_offset = slave.status.max_offset
        self._moved(own_offset, at_ms=at_ms)
        client = slave.client
        self.state = "" if client is None else client.state or ""
        self.master_offset = self.diff_bytes = self.lag_now_s = None
        if master is not None and clock is not None:
            # Answers of two moments: a slave that answered later is not ahead.
            self.master_offset = max(master.max_offset, own_offset)
            self.diff_bytes = self.master_offset - own_offset
            self.lag_now_s = clock.age_s(own_offset, now_ms=at_ms) if self.diff_bytes else 0.0
        self._judge(master, limits=limits, slave=slave, last_received_s=None, at_ms=at_ms)

    def _moved(self, ack_offset: int, *, at_ms: int) -> None:
        if ack_offset != self.ack_offset:
            self.ack_offset = ack_offset
            self.ack_moved_ms = at_ms
        self._ack_rate.add(ack_offset, at_ms=at_ms)

    def _judge(
        self,
        master: BrokerStatus | None,
        *,
        limits: Limits,
        slave: SlaveReport | None,
        last_received_s: float | None,
        at_ms: int,
    ) -> None:
        client = None if slave is None else slave.client
        if last_received_s is None and slave is not None and slave.answers and client and client.last_read_ms:
            last_received_s = max(0, at_ms - slave.last_received_ms) / 1000
        facts = self._facts(
            client=client,
            min_offset=None if master is None else master.min_offset,
            last_received_s=last_received_s,
            at_ms=at_ms,
        )
        shown = self.debounce.shown
        judged = judge(facts, limits, shown=None if shown is None else shown.verdict)
        severity = self.debounce.show(judged, at_ms=at_ms).verdict.severity
        if self.is_rejoining:
            # Not a lag: graphs would keep it as the worst of its bucket.
            return
        if self.diff_bytes is not None:
            distance = max(0, self.diff_bytes)
            self._trend.add(distance, at_ms=at_ms)
            self.lag_bytes.add(distance, severity, at_ms=at_ms)
        if self.lag_now_s is not None:
            self.lag_s.add(self.lag_now_s, severity, at_ms=at_ms)

    def _facts(
        self,
        *,
        client: SlaveStatus | None = None,
        min_offset: int | None = None,
        last_received_s: float | None = None,
        at_ms: int,
    ) -> Facts:
        for_s = max(0, at_ms - self.since_ms) / 1000
        return Facts(
            is_connected=self.is_connected,
            unconnected_s=for_s,
            connected_s=for_s,
            last_received_s=last_received_s,
            complaint="" if client is None else client.verdict or "",
            is_observer=None if client is None else client.is_observer,
            state=self.state,
            min_offset=min_offset,
            master_offset=self.master_offset,
            sent_offset=self.sent_offset,
            ack_offset=self.ack_offset,
            in_sync=self.in_sync,
            lag_s=self.lag_now_s,
            unmoved_s=max(0, at_ms - self.ack_moved_ms) / 1000,
            is_rejoining=self.is_rejoining,
        )

    def view(
        self,
        *,
        master_label: str,
        limits: Limits,
        slave: SlaveReport | None,
        stale: Judgement | None,
        age_s: float,
        now_ms: int,
    ) -> ReplicaView:
        """The row at `now_ms`; `stale` if its master does not answer, `age_s` is the age of its figures."""
        shown = self.shown
        if stale is not None and shown.verdict not in {Verdict.GAP, Verdict.DIVERGED, Verdict.REFUSED}:
            shown = stale
        reconnects = self.reconnects
        own, metadata = SlaveOffsets(), None
        label = self.address
        if slave is not None:
            status = slave.status
            answer_age_s = max(0, now_ms - slave.answered_ms) / 1000
            metadata = view_metadata(status.metadata, answer_age_s=answer_age_s)
            own = SlaveOffsets(
                max_offset=status.max_offset,
                flushed_offset=status.flushed_offset,
                dispatched_offset=status.dispatched_offset,
                age_s=answer_age_s,
            )
            label = node_label(status.broker_name, status.broker_id) or label
            # The slave also counts those between two answers of the master, the master those of its restarts.
            reconnects = max(reconnects, slave.reconnects or 0)
        return view_replica(
            ReplicaNames(
                key=self.key,
                master=self.master,
                master_label=master_label,
                address=self.address,
                node=self.node,
                label=label,
            ),
            self._facts(at_ms=now_ms),
            shown,
            limits,
            slave=own,
            measured=Measurements(
                diff_bytes=self.diff_bytes,
                sent_bytes_per_s=self._sent_rate.per_s,
                ack_bytes_per_s=self._ack_rate.per_s,
                transferred_bytes_per_s=self.transferred_bytes_per_s,
                shrinks_per_s=self._trend.shrinks_per_s,
                reconnects=reconnects,
                ack_latency_ms=in_unit(self.ack_latency_us, per=1000.0),
                frame_bytes=in_unit(self.frame_bytes),
                lag_history=self.lag_bytes.freeze(),
                lag_s_history=self.lag_s.freeze(),
            ),
            metadata=metadata,
            age_s=age_s,
            is_current=stale is None,
        )
