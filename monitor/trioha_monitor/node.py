"""One watched node: from its answers, poll by poll, to a `NodeView`. Pure: no clock, no I/O, no screen."""

from __future__ import annotations

from collections import Counter

from attrs import define, field

from trioha.broker_status import BrokerStatus
from trioha.recording.reconnects import Reconnects
from trioha_monitor.accept import Answer, Intake
from trioha_monitor.answers import limits_of, probe_counts, puts_of, view_log, view_slave
from trioha_monitor.meters import AppendClock, RateMeter
from trioha_monitor.node_events import NodeEvents
from trioha_monitor.replicas import Replica, SlaveReport
from trioha_monitor.series import SeriesRecorder
from trioha_monitor.texts import REASON_MAX, Names, clean
from trioha_monitor.view import Health, Limits, NodeView, Verdict


@define(eq=False)
class Node:
    """What is known of a node. Times are milliseconds on the views' axis."""

    address: str
    """As it was named, `host:port`."""
    append: SeriesRecorder
    events: NodeEvents
    intake: Intake = field(factory=Intake)
    """Checks its answers; everything else here gets what passed."""
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
    """By the status, of those that its last answer has."""
    clock: AppendClock = field(factory=AppendClock)
    has_listed: bool = False
    """Whether it has said before which connections it has."""
    rows: list[Replica] = field(factory=list)
    """Its replicas, if it is a master."""
    reconnects: Reconnects[int] = field(factory=Reconnects)
    """Which of them were lost, by their keys."""
    hidden_replicas: int = 0
    waiting_probes: int = 0
    """Connections on which nothing was asked yet."""
    news: SlaveReport | None = None
    """What it says as a slave."""
    own_row: Replica | None = None
    """Of a slave that no master lists."""
    unlisted_since_ms: int | None = None
    """Since when no master's row is this slave's; None while one is."""
    unwanted_since_ms: int | None = None
    """Since when nobody asks for this node any more."""
    _fault_names: Names = field(factory=Names)

    @property
    def tells_replicas(self) -> bool:
        """Whether it says anything of its replicas."""
        return self.status is not None and self.status.source == "ha-status" and self.is_master

    @property
    def is_master(self) -> bool:
        """Whether its role is a master's."""
        return self.status is not None and self.status.role.endswith("MASTER")

    @property
    def label(self) -> str:
        """Broker name and id; its address while they are unknown."""
        return self.events.label

    def failed(self, fault: str, *, at_ms: int) -> None:
        """A question to it failed."""
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
        self.reason = reason
        if self.news is not None:
            self.news.is_heard = False

    @property
    def identity(self) -> tuple[object, ...]:
        """What says whose slave it is, or whose master."""
        status = self.status
        if status is None:
            return ()
        dialled = None if status.client is None else status.client.master_address
        return status.role, status.cluster_name, status.broker_name, status.ha_address, dialled

    def answered(self, answer: Answer, *, at_ms: int) -> bool:
        """It said so much; returns whether it may be another row's slave than before."""
        status = answer.status
        self.hidden_replicas, self.waiting_probes = answer.more_connections, answer.waiting_probes
        self.events.answered(
            status, down_s=None if self.since_ms is None else (at_ms - self.since_ms) / 1000, at_ms=at_ms
        )
        if self.health is not Health.UP:
            self.health, self.reason, self.since_ms = Health.UP, "", at_ms
        self.answered_ms = at_ms
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
            was_slave = self.news is not None
            if was_slave:
                self.news = self.own_row = self.unlisted_since_ms = None
            return was_slave
        news = self.news
        if news is None:
            self.news = SlaveReport(status, heard_since_ms=at_ms, answered_ms=at_ms)
            self.unlisted_since_ms = at_ms
            return True
        news.is_heard, news.answered_ms = True, at_ms
        dials_otherwise = False
        client, earlier = status.client, news.status.client
        if client is not None and earlier is not None:
            if client.last_read_ms != earlier.last_read_ms:
                news.heard_since_ms = at_ms
            dials_otherwise = (client.local_address, client.master_address) != (
                earlier.local_address,
                earlier.master_address,
            )
        news.status = status
        return dials_otherwise

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
            told_by="907" if status.source == "ha-status" else "28",
            tells_replicas=self.tells_replicas,
            log=view_log(
                status,
                rate=self.rate,
                put_rates=self.put_rates,
                append=self.append,
                is_live=self.health is Health.UP,
            ),
            limits=self.limits,
            slave=view_slave(self.news, now_ms=now_ms),
            connected_replicas=sum(row.is_connected for row in self.rows) + self.hidden_replicas,
            hidden_replicas=self.hidden_replicas,
            observers=sum(row.is_connected and row.shown.verdict is Verdict.OBSERVER for row in self.rows),
            in_sync_replicas=status.in_sync_slaves,
            ended_connections=status.ended_connections,
            waiting_probes=self.waiting_probes,
            probes=probe_counts(status.probes),
            warnings=status.warnings,
        )
