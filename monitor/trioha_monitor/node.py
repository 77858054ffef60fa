"""One watched node: its state, view and events, made of its answers. Pure: no clock, no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import define, field

from trioha.broker_status import ArchiveStatus, BrokerStatus
from trioha.outside_text import REASON_MAX, clean
from trioha.replica_verdict import Limits, Verdict, limits_of
from trioha.severity import Severity
from trioha.unit_texts import format_elapsed
from trioha_monitor import event_texts
from trioha_monitor.answers import Answer, AnswerFilter, probe_counts, puts_of, view_log, view_slave
from trioha_monitor.replicas import Replica, SlaveReport
from trioha_monitor.roles import RoleHistory, compare_control
from trioha_monitor.series import AppendClock, RateMeter, SeriesRecorder
from trioha_monitor.texts import Names
from trioha_monitor.timeline import Timeline
from trioha_monitor.view import EventKind, Health, NodeView, node_label
from trioha_sessions.reconnects import Reconnects

REFUSALS_EVERY_MS = 10_000
"""Refusals for one reason make one event in so many milliseconds: a peer may retry for ever."""
PUTS_QUIET_MS = 5000
"""Puts succeed again when none has failed for this long."""
ROLE_CHANGE_MS = 1000
"""The connection to a node in controller mode may end this long after an answer without being an event: its
connections end with its role, and it accepts new ones at once."""
PUT_OK = "PUT_OK"

_REFUSALS = frozenset(
    (
        "ACK_BEYOND_SENT",
        "ACK_WENT_BACK",
        "BAD_SIZE",
        "REQUEST_ABOVE_MAX",
        "REQUEST_BELOW_MIN",
        "NOT_ALLOWED",
    )
)
"""Reasons for which a master refuses a peer. NO_REQUEST is not one: a silent peer is a probe."""


class NodeEvents:
    """Compares each answer of one node with the one before, and adds the changes to the timeline."""

    def __init__(self, timeline: Timeline, *, address: str) -> None:
        self._address = address
        self.label = address
        """Broker name and id; the address while they are unknown."""
        self._timeline = timeline
        self._status: BrokerStatus | None = None
        self._is_down = False
        self._ended: Counter[str] = Counter()
        """Connections that ended between the last two answers, by reason."""
        self._refused: Counter[str] = Counter()
        """Refusals that no event has reported yet."""
        self._refused_reported_ms: dict[str, int] = {}
        self._failed: Counter[str] = Counter()
        """Puts that failed in this series of failures, by status; empty while puts succeed."""
        self._failed_ms = 0
        self._disk_is_full = False

    def end_reasons(self) -> frozenset[str]:
        """Reasons of the connections that ended before the last answer; empty if not known."""
        return frozenset(self._ended)

    def gone(self, reason: str, *, was_up: bool, at_ms: int) -> None:
        """It stopped answering, or never answered."""
        self._is_down = True
        text = f"does not answer: {reason}" if not was_up else f"no longer answers: {reason}"
        self._add(EventKind.NODE, text, Severity.CRITICAL, at_ms=at_ms)

    def answered(self, status: BrokerStatus, *, down_s: float | None, at_ms: int) -> None:
        """It answered; `down_s` is how long it had not, if it had not."""
        before, self._status = self._status, status
        self.label = node_label(status.broker_name, status.broker_id) or self.label
        self._ended = Counter()
        if before is None:
            what = " ".join(filter(None, (status.role, status.version)))
            self._add(EventKind.NODE, f"answers: {what}", Severity.GOOD, at_ms=at_ms)
        elif self._is_down:
            away = "" if down_s is None else f" after {format_elapsed(max(0.0, down_s))}"
            self._add(EventKind.NODE, f"answers again{away}", Severity.GOOD, at_ms=at_ms)
        self._is_down = False
        if before is not None:
            self._compare(before, status, at_ms=at_ms)
        for text in status.warnings:
            if before is None or text not in before.warnings:
                self._add(EventKind.CONFIG, text, Severity.WARNING, at_ms=at_ms)
        self._compare_disk(before, status, at_ms=at_ms)
        if status.control is not None:
            compare_control(
                None if before is None else before.control,
                status.control,
                lambda kind, text, severity: self._add(kind, text, severity, at_ms=at_ms),
            )

    def _compare(self, before: BrokerStatus, status: BrokerStatus, *, at_ms: int) -> None:
        restarted = before.table.booted_ms is not None and status.table.booted_ms not in {
            None,
            before.table.booted_ms,
        }
        has_restarted_counts = _shrank(before.ended_connections, status.ended_connections) or _shrank(
            before.put_statuses, status.put_statuses
        )
        if restarted:
            self._add(EventKind.NODE, "was restarted", Severity.WARNING, at_ms=at_ms)
        if status.control is None and (before.role, before.broker_name, before.broker_id) != (
            status.role,
            status.broker_name,
            status.broker_id,
        ):
            was, now = (
                f"{node_label(each.broker_name, each.broker_id)} {each.role}".strip()
                for each in (before, status)
            )
            self._add(EventKind.ROLE, f"{was} is now {now}", Severity.WARNING, at_ms=at_ms)
        if status.max_offset < before.max_offset:
            text = f"its log ends at {status.max_offset}, before it ended at {before.max_offset}"
            if status.control is None:
                self._add(EventKind.GAP, text, Severity.CRITICAL, at_ms=at_ms)
            else:
                self._add(EventKind.CUT, text, Severity.WARNING, at_ms=at_ms)
        if not has_restarted_counts:
            self._count_ends(before.ended_connections, status.ended_connections, at_ms=at_ms)
            self._count_puts(before.put_statuses, status.put_statuses, at_ms=at_ms)

    def _count_ends(self, before: Mapping[str, int], now: Mapping[str, int], *, at_ms: int) -> None:
        if before != now:
            self._ended = Counter({name: now[name] - before.get(name, 0) for name in now})
            self._ended += Counter()
            for name in self._ended.keys() & _REFUSALS:
                self._refused[name] += self._ended[name]
        for name, count in list(self._refused.items()):
            reported_ms = self._refused_reported_ms.get(name)
            if reported_ms is not None and at_ms - reported_ms < REFUSALS_EVERY_MS:
                continue
            del self._refused[name]
            self._refused_reported_ms[name] = at_ms
            text = event_texts.refused(name, count=count)
            self._add(EventKind.REFUSED, text, Severity.CRITICAL, at_ms=at_ms)

    def _count_puts(self, before: Mapping[str, int], now: Mapping[str, int], *, at_ms: int) -> None:
        if before != now:
            failed = Counter(
                {
                    name: count - before.get(name, 0)
                    for name, count in now.items()
                    if name != PUT_OK and count > before.get(name, 0)
                }
            )
            for name in failed.keys() - self._failed.keys():
                self._add(EventKind.PUTS, event_texts.puts_fail(name), Severity.CRITICAL, at_ms=at_ms)
            if failed:
                self._failed += failed
                self._failed_ms = at_ms
        if self._failed and at_ms - self._failed_ms >= PUTS_QUIET_MS:
            counts = ", ".join(f"{count} {name}" for name, count in sorted(self._failed.items()))
            self._failed.clear()
            text = f"no put has failed for {format_elapsed(PUTS_QUIET_MS / 1000)}; before: {counts}"
            self._add(EventKind.PUTS, text, Severity.GOOD, at_ms=at_ms)

    def _compare_disk(self, before: BrokerStatus | None, status: BrokerStatus, *, at_ms: int) -> None:
        fault = "" if before is None else before.dispatch_fault
        if status.dispatch_fault and not fault:
            text = f"a record cannot be dispatched: {status.dispatch_fault}"
            self._add(EventKind.DISK, text, Severity.CRITICAL, at_ms=at_ms)
        self._compare_archives(None if before is None else before.archive, status.archive, at_ms=at_ms)
        ratio, percent_max = status.table.disk_ratio, status.settings.disk_percent_max
        if ratio is None or percent_max is None:
            return
        is_full = ratio * 100 > percent_max
        if is_full == self._disk_is_full:
            return
        self._disk_is_full = is_full
        if is_full:
            text = f"disk {ratio:.0%} used, more than diskMaxUsedSpaceRatio: old files go early"
            self._add(EventKind.DISK, text, Severity.WARNING, at_ms=at_ms)
        else:
            self._add(EventKind.DISK, f"disk {ratio:.0%} used again", Severity.GOOD, at_ms=at_ms)

    def _compare_archives(
        self, before: ArchiveStatus | None, archive: ArchiveStatus | None, *, at_ms: int
    ) -> None:
        if archive is None:
            return
        state_before = "running" if before is None else before.state
        if archive.error and archive.state != state_before:
            is_final = archive.state in {"fenced", "damaged"}
            text = f"archive {archive.state}: {archive.error}"
            severity = Severity.CRITICAL if is_final else Severity.WARNING
            self._add(EventKind.DISK, text, severity, at_ms=at_ms)
        elif archive.state == "running" and before is not None and before.error:
            self._add(EventKind.DISK, "archive running again", Severity.GOOD, at_ms=at_ms)
        deleted = archive.files_deleted_unarchived
        if deleted > (0 if before is None else before.files_deleted_unarchived):
            text = f"{deleted:,} log files deleted before they were archived"
            self._add(EventKind.DISK, text, Severity.CRITICAL, at_ms=at_ms)

    def _add(self, kind: EventKind, text: str, severity: Severity, *, at_ms: int) -> None:
        self._timeline.add(kind, text, at_ms=at_ms, node=self.label, severity=severity, source=self._address)


def _shrank(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether counters restarted."""
    return before is not now and any(now.get(name, 0) < count for name, count in before.items())


@define(eq=False)
class Node:
    """State of a node. Times are milliseconds on the views' axis."""

    address: str
    """As it was named, `host:port`."""
    append: SeriesRecorder
    events: NodeEvents
    answer_filter: AnswerFilter = field(factory=AnswerFilter)
    status: BrokerStatus | None = None
    """Its last answer."""
    limits: Limits = field(factory=Limits)
    health: Health = Health.CONNECTING
    reason: str = ""
    since_ms: int | None = None
    """When its health began."""
    answered_ms: int | None = None
    """When it answered last."""
    faults: Counter[str] = field(factory=Counter)
    """How often there was no answer, by reason."""
    rate: RateMeter = field(factory=RateMeter)
    put_rates: dict[str, RateMeter] = field(factory=dict)
    """By the statuses of the last answer."""
    clock: AppendClock = field(factory=AppendClock)
    has_listed: bool = False
    """Whether it has listed its connections before."""
    rows: list[Replica] = field(factory=list)
    """Its replicas, if it is a master."""
    reconnects: Reconnects[int] = field(factory=Reconnects)
    """Its lost replicas, by their keys."""
    hidden_replicas: int = 0
    waiting_probes: int = 0
    """Open connections without a request."""
    report: SlaveReport | None = None
    """Its report as a slave; None for a master."""
    own_row: Replica | None = None
    """Of a slave that no master lists."""
    unlisted_since_ms: int | None = None
    """Since when no row of a master is assigned to this slave; None while one is."""
    unwanted_since_ms: int | None = None
    """Since when the name server no longer lists it."""
    is_deposed: bool = False
    """Whether another node of its group has answered as master of a later epoch since its last answer."""
    roles: RoleHistory = field(factory=RoleHistory)
    _may_change_role: bool = False
    """Whether its connection has ended since its last answer as connections do that end with a role."""
    _fault_names: Names = field(factory=Names)

    @property
    def lists_replicas(self) -> bool:
        """Whether it lists its replicas."""
        return self.status is not None and self.status.source == "ha-status" and self.is_master

    @property
    def is_master(self) -> bool:
        """Whether its role is a master's."""
        return self.status is not None and not self.is_deposed and self.status.role.endswith("MASTER")

    @property
    def label(self) -> str:
        """Broker name and id; its address while they are unknown."""
        return self.events.label

    def failed(self, fault: str, *, at_ms: int) -> None:
        """A request to it failed."""
        if self._begins_role_change(at_ms):
            self._may_change_role = True
            return
        reason = clean(fault, length_max=REASON_MAX)
        self.faults[self._fault_names.of(reason)] += 1
        if self.health is not Health.DOWN:
            self.events.gone(reason, was_up=self.health is Health.UP, at_ms=at_ms)
            self.health = Health.DOWN
            self.since_ms = at_ms if self.answered_ms is None else self.answered_ms
            self.rate.clear()
            for meter in self.put_rates.values():
                meter.clear()
            for row in self.rows:
                row.restart_meters()
            self.roles.gone(at_ms=at_ms)
        self.reason = reason
        if self.report is not None:
            self.report.answers = False

    def _begins_role_change(self, at_ms: int) -> bool:
        """Whether a node that answered just now ended its connection: it may serve in another role next."""
        return (
            self.status is not None
            and self.status.control is not None
            and self.health is Health.UP
            and self.answered_ms is not None
            and at_ms - self.answered_ms < ROLE_CHANGE_MS
            and not self._may_change_role
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """Figures that decide which master and slaves belong together."""
        status = self.status
        if status is None:
            return ()
        master_address = None if status.client is None else status.client.master_address
        epoch = None if status.control is None else status.control.master_epoch
        return status.role, status.cluster_name, status.broker_name, status.ha_address, master_address, epoch

    def answered(self, answer: Answer, *, at_ms: int) -> bool:
        """It answered; returns whether rows must be assigned to slaves again."""
        status = answer.status
        self.hidden_replicas, self.waiting_probes = answer.more_connections, answer.waiting_probes
        self.events.answered(
            status, down_s=None if self.since_ms is None else (at_ms - self.since_ms) / 1000, at_ms=at_ms
        )
        if self.health is not Health.UP:
            self.health, self.reason, self.since_ms = Health.UP, "", at_ms
        self.answered_ms = at_ms
        self.is_deposed = self._may_change_role = False
        if status.control is not None:
            self.roles.add(status.control.role, status.control.master_epoch, at_ms=at_ms)
        before, self.status = self.status, status
        if before is None or before.settings != status.settings:
            self.limits = limits_of(status)
        self.rate.add(status.max_offset, at_ms=at_ms)
        self.append.add(self.rate.per_s or 0.0, at_ms=at_ms)
        self.clock.appended(status.max_offset, at_ms=at_ms)
        meters = self.put_rates
        self.put_rates = {name: meters.get(name) or RateMeter() for name, _ in puts_of(status)}
        for name, count in puts_of(status):
            self.put_rates[name].add(count, at_ms=at_ms)
        return self._answered_as_slave(status, at_ms=at_ms)

    def _answered_as_slave(self, status: BrokerStatus, *, at_ms: int) -> bool:
        if status.role != "SLAVE":
            was_slave = self.report is not None
            if was_slave:
                self.report = self.own_row = self.unlisted_since_ms = None
            return was_slave
        report = self.report
        if report is None:
            self.report = SlaveReport(status, last_received_ms=at_ms, answered_ms=at_ms)
            self.unlisted_since_ms = at_ms
            return True
        connection = report.connection
        report.answered(status, at_ms=at_ms)
        return report.connection != connection

    def view(self, *, late_after_ms: int, now_ms: int) -> NodeView:
        """The node at `now_ms`; UP is LATE when its last answer is older than `late_after_ms`."""
        health, since_ms, answered_ms = self.health, self.since_ms, self.answered_ms
        age_ms = None if answered_ms is None else max(0, now_ms - answered_ms)
        if health is Health.UP and age_ms is not None and age_ms > late_after_ms:
            health, since_ms = Health.LATE, answered_ms
        for_s = 0.0 if since_ms is None else max(0, now_ms - since_ms) / 1000
        status = self.status
        if status is None:
            return NodeView(
                self.address, health=health, reason=self.reason, for_s=for_s, faults=dict(self.faults)
            )
        return NodeView(
            address=self.address,
            health=health,
            reason=self.reason,
            for_s=for_s,
            faults=dict(self.faults),
            age_s=None if age_ms is None else age_ms / 1000,
            role=status.role,
            cluster=status.cluster_name or "",
            broker_name=status.broker_name or "",
            broker_id=status.broker_id,
            version=status.version or "",
            ha_address=status.ha_address or "",
            source="907" if status.source == "ha-status" else "28",
            lists_replicas=self.lists_replicas,
            log=view_log(
                status,
                rate=self.rate,
                rates=self.put_rates,
                append=self.append,
                is_live=self.health is Health.UP,
            ),
            limits=self.limits,
            slave=view_slave(self.report, now_ms=now_ms),
            connected_replicas=sum(row.is_connected for row in self.rows) + self.hidden_replicas,
            hidden_replicas=self.hidden_replicas,
            observers=sum(row.is_connected and row.shown.verdict is Verdict.OBSERVER for row in self.rows),
            in_sync_replicas=status.in_sync_slaves,
            ended_connections=status.ended_connections,
            waiting_probes=self.waiting_probes,
            probes=probe_counts(status.probes),
            warnings=status.warnings,
            control=status.control,
            roles=self.roles.freeze(),
        )
