"""A slave's own side of its connection, from its session.

Nodes of a replay at a moment, from their sessions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final

from trioha.recording.batch_stats import Counts
from trioha.recording.events import CloseReason, HaState, Kind, PutStatus
from trioha.recording.snapshot import connection_state
from trioha_monitor.answers import probe_counts
from trioha_monitor.replay.moments import RATE_NS, Moment, Moments, age_s, known
from trioha_monitor.replay.overview import Overview
from trioha_monitor.replay.replay_timeline import NS_PER_S, RecordedNode
from trioha_monitor.replay.timeline_events import GAP_REASONS, name_of
from trioha_monitor.texts import REASON_MAX, clean, host_of
from trioha_monitor.view import (
    Health,
    LogView,
    NodeView,
    ProbeCount,
    PutRate,
    ReplicaView,
    SlaveView,
    Verdict,
)

COMPLAINTS: Final = {
    CloseReason.DIVERGED: "DIVERGED",
    CloseReason.OFFSET_MISMATCH: "",
    CloseReason.AHEAD: "AHEAD",
    CloseReason.REQUEST_ABOVE_MAX: "AHEAD",
    CloseReason.GAP: "GAP",
    CloseReason.REQUEST_BELOW_MIN: "GAP",
}
"""What a slave complains of after its connection ended so."""


def side_of(moments: Moments, moment: Moment) -> SlaveView:
    """What the slave says of itself."""
    run, at_ns = moment.run, moment.at_ns
    said = next(iter(moment.connections.values()), None)
    begun = [conn for conn, seq in run.begin_seqs.items() if seq < moment.position]
    rate = None
    before = moments.earlier(moment, RATE_NS)
    if before is not None and moment.own_max is not None and before.own_max is not None:
        rate = max(0, moment.own_max - before.own_max) / (RATE_NS / NS_PER_S)
    return SlaveView(
        master_address=run.addresses.get(begun[-1]) if begun else None,
        state=name_of(HaState, HaState.READY if said is None or said.state < 0 else said.state),
        reported_offset=None if said is None else known(said.reported_offset),
        received_bytes_per_s=rate,
        read_age_s=None if said is None or run.is_sampled else age_s(run, said.last_received_ts_ns, at_ns),
        reconnects=max(0, len(begun) - 1),
        is_observer=None,
        complaint=complaint_of(moments, moment),
    )


def complaint_of(moments: Moments, moment: Moment) -> str:
    """What keeps a slave that is not connected from following: how its last connection ended."""
    noted = moment.run.sample_at(moment.at_ns).get("complaint")
    if noted:
        return clean(str(noted), length_max=REASON_MAX)
    if moment.connections:
        return ""
    ended = moments.ended(moment)
    if not ended:
        return ""
    said = connection_state(ended[-1].records, is_slave=True)
    if said.close_reason not in GAP_REASONS:
        return ""
    name = COMPLAINTS[CloseReason(said.close_reason)]
    return f"{name}: its last connection ended with {name_of(CloseReason, said.close_reason)}"


class NodeViews:
    """Makes them of `moments`; histories are those of `overview`."""

    def __init__(self, moments: Moments, overview: Overview) -> None:
        self._moments, self._overview = moments, overview

    def view(
        self,
        node: RecordedNode,
        moment: Moment,
        views: list[ReplicaView],
        *,
        hidden: int,
        is_growing: bool,
    ) -> NodeView:
        """The node; `views` are its replicas, beside which so many are `hidden`."""
        run, at_ns = moment.run, moment.at_ns
        identity = run.reader.session.identity
        health, reason, since_ns = health_of(node, moment, is_growing=is_growing)
        observers = sum(view.is_connected and view.verdict is Verdict.OBSERVER for view in views)
        ended, probes = _ended_reasons(self._moments, moment)
        last = run.reader.record_before(moment.position)
        age_ns = at_ns - (run.start_ns if last is None else run.wall_of(int(last["ts_ns"])))
        return NodeView(
            address=node.key,
            health=health,
            reason=reason,
            for_s=max(0, at_ns - since_ns) / NS_PER_S,
            age_s=0.0 if health is Health.UP else max(0, age_ns) / NS_PER_S,
            role=identity.role,
            cluster=identity.cluster_name,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            version=clean(str(run.sample_at(at_ns).get("version") or ""))
            or ("" if run.is_sampled else run.reader.session.program_version),
            told_by="session",
            tells_replicas=not run.is_slave,
            log=self._log(moment),
            limits=run.limits,
            slave=side_of(self._moments, moment) if run.is_slave else None,
            connected_replicas=0 if run.is_slave else len(moment.connections),
            hidden_replicas=hidden,
            observers=observers,
            in_sync_replicas=None
            if run.is_slave
            else sum(view.in_sync is True and view.verdict is not Verdict.OBSERVER for view in views),
            ended_connections=ended,
            waiting_probes=moment.waiting_probes,
            probes=_sampled_probes(run.sample_at(at_ns)) if run.is_sampled else probe_counts(probes),
        )

    def _log(self, moment: Moment) -> LogView:
        run, at_ns = moment.run, moment.at_ns
        before = self._moments.earlier(moment, RATE_NS)
        passed_s = RATE_NS / NS_PER_S
        append = None
        puts_per_s = None
        puts: tuple[PutRate, ...] = ()
        if before is not None and moment.own_max is not None and before.own_max is not None:
            append = max(0, moment.own_max - before.own_max) / passed_s
        if not run.is_slave and not run.is_sampled:
            lately = None
            if before is not None:
                lately = run.reader.counts_between(before.position, moment.position)
                puts_per_s = lately.puts / passed_s
            puts = _puts(moment, lately, passed_s)
        size = run.reader.session.identity.settings.get("mappedFileSizeCommitLog")
        sample = run.sample_at(at_ns)
        if run.is_sampled:
            puts = _sampled_puts(sample, run.sample_at(at_ns - RATE_NS), passed_s)
        min_offset = sample.get("min_offset")
        return LogView(
            min_offset=min_offset if isinstance(min_offset, int) else None,
            max_offset=moment.own_max,
            flushed_offset=moment.snapshot.of_node(Kind.FLUSHED),
            dispatched_offset=moment.snapshot.of_node(Kind.DISPATCHED),
            append_bytes_per_s=append,
            append_history=self._overview.append_series(run, at_ns=at_ns, own_max=moment.own_max),
            file_bytes=size if isinstance(size, int) else None,
            put_messages_per_s=puts_per_s,
            puts=puts,
        )


def health_of(node: RecordedNode, moment: Moment, *, is_growing: bool) -> tuple[Health, str, int]:
    """Health of a node, why, and since when; `is_growing` as in `State.view`."""
    run, at_ns = moment.run, moment.at_ns
    sample = run.sample_at(at_ns)
    if sample.get("health") == Health.DOWN.value and (at_ns <= run.end_ns or is_growing):
        return Health.DOWN, f"did not answer the monitor: {sample.get('reason')}", run.start_ns
    if at_ns <= run.end_ns or is_growing:
        return Health.UP, "", run.start_ns
    if run.reader.ended_in_order:
        return Health.DOWN, "its recording ended in order", run.end_ns
    quiet_ns = at_ns - run.end_ns
    if node.next_start_ns(run) is not None:
        return Health.DOWN, "its recording breaks off here: killed, and started again later", run.end_ns
    if quiet_ns > run.quiet_ns:
        return Health.DOWN, "its recording breaks off here: killed, or still going on", run.end_ns
    return Health.UP, "", run.start_ns


def _puts(moment: Moment, lately: Counts | None, passed_s: float) -> tuple[PutRate, ...]:
    every = moment.run.reader.counts_at(moment.position)
    if every is None:
        return ()
    recent = None if lately is None else _results(lately)
    return tuple(
        PutRate(name_of(PutStatus, code), count, None if recent is None else recent.get(code, 0) / passed_s)
        for code, count in sorted(_results(every).items(), key=_ok_first)
    )


def _ended_reasons(moments: Moments, moment: Moment) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Connections that ended: replicas' by reason, probes' by host and reason.

    Nodes count probes themselves, in facts; earlier ones recorded each as a connection.
    """
    run, reader = moment.run, moment.run.reader
    reasons: Counter[str] = Counter()
    probes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (host, reason), count in run.probes_at(moment.position).items():
        probes[host][reason] += count
    if reader.knows_all_before(moment.position):
        for ended in reader.ended_between(reader.first_seq, moment.position):
            closed = ended.records[ended.records["kind"] == Kind.CLOSED]
            name = name_of(CloseReason, int(closed["flags"][-1])) if len(closed) else "NONE"
            if run.is_slave or moments.life(run, ended) is not None:
                reasons[name] += 1
            else:
                probes[host_of(run.address_of(ended.conn))][name] += 1
    return dict(reasons), {host: dict(names) for host, names in probes.items()}


def _sampled_probes(sample: Mapping[str, object]) -> tuple[ProbeCount, ...]:
    """Probes as a monitor noted them."""
    told = sample.get("probes")
    counts = []
    for one in told if isinstance(told, list) else ():
        host, reason, count = one if isinstance(one, list) and len(one) == 3 else (None, None, None)
        if isinstance(count, int):
            counts.append(ProbeCount(clean(str(host)), clean(str(reason)), count))
    return tuple(counts)


def _results(counts: Counts) -> dict[int, int]:
    """Puts by status; those that wait for nothing are OK at once."""
    results = {code: count for code, count in enumerate(counts.waits) if count}
    unwaited = max(0, counts.puts - counts.waits_begun)
    if unwaited or counts.puts:
        results[PutStatus.PUT_OK] = results.get(PutStatus.PUT_OK, 0) + unwaited
    return results


def _sampled_puts(
    sample: Mapping[str, object], earlier: Mapping[str, object], passed_s: float
) -> tuple[PutRate, ...]:
    """Results of puts as a monitor noted them."""
    puts, before = sample.get("puts"), earlier.get("puts")
    if not isinstance(puts, dict):
        return ()
    rates = []
    for status, count in sorted(puts.items(), key=lambda item: (item[0] != "PUT_OK", item[0])):
        was = before.get(status) if isinstance(before, dict) else None
        if isinstance(count, int):
            per_s = (count - was) / passed_s if isinstance(was, int) and was <= count else None
            rates.append(PutRate(clean(str(status)), count, per_s))
    return tuple(rates)


def _ok_first(item: tuple[int, int]) -> tuple[bool, str]:
    return item[0] != PutStatus.PUT_OK, name_of(PutStatus, item[0])
