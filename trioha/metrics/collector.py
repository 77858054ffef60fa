"""The metrics of a node, computed from its status when they are asked for.

Every node has all families, also those that have no samples on it: a master has none of the link to a master.
What is counted by a label with known values (put status, reason) begins with zeros, so that the first failure
is an increase. Time series of a slave end with its connection. docs/metrics.md lists the families.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, get_args

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from trioha.broker_status import ArchiveState, ArchiveStatus, BrokerStatus, PendingStatus
from trioha.metrics.busiest import BusiestCounts, Count
from trioha.metrics.control import control_families
from trioha.metrics.disks import disk_families
from trioha.metrics.families import (
    PREFIX,
    REST,
    add_ms,
    counter,
    counts_of,
    gauge,
    label_text,
    value_of,
)
from trioha.metrics.rocketmq import rocketmq_families
from trioha.metrics.sources import Sources
from trioha.recording.events import CloseReason, HaState
from trioha.remoting.serving import ServerStatistics
from trioha.store.put_status import PutStatus
from trioha.unwritten import OPTIONAL

ACK_REFUSALS: Final = (CloseReason.ACK_BEYOND_SENT, CloseReason.ACK_WENT_BACK)
SLAVE_ENDS: Final = (
    *(CloseReason.EOF, CloseReason.IO_ERROR, CloseReason.HOUSEKEEPING, CloseReason.SHUTDOWN),
    *ACK_REFUSALS,
    *(CloseReason.BAD_SIZE, CloseReason.REQUEST_ABOVE_MAX, CloseReason.REQUEST_BELOW_MIN),
    *(CloseReason.LOG_RESTARTED, CloseReason.INTERNAL_ERROR),
)
"""Reasons for which a master ends connections of slaves."""
LINK_ENDS: Final = (
    *(CloseReason.CONNECT_FAILED, CloseReason.EOF, CloseReason.IO_ERROR, CloseReason.HOUSEKEEPING),
    *(CloseReason.OFFSET_MISMATCH, CloseReason.BAD_SIZE, CloseReason.BAD_RECORD, CloseReason.STORE_ERROR),
    *(CloseReason.GAP, CloseReason.AHEAD, CloseReason.DIVERGED, CloseReason.PROBED),
    *(CloseReason.MASTER_CHANGED, CloseReason.CUT_REFUSED, CloseReason.INTERNAL_ERROR),
)
"""Reasons for which a slave's connections to its master end."""
CLIENT_ENDS: Final = {
    "refused": "connections_refused",
    "protocol_error": "protocol_errors",
    "reset": "broken_connections",
    "idle": "idle_closes",
    "frame_timeout": "frame_timeouts",
    "send_timeout": "send_timeouts",
    "memory": "memory_closes",
    "tls_failure": "tls_failures",
    "shutdown": "cut_connections",
}
"""Reasons for which connections of clients end, and their counters in `ServerStatistics`."""
HTTP_CODES: Final = (200, 400, 404, 405, 431, 500, 503)


class NodeCollector(Collector):
    """Computes the metrics of a node."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._started_s = time.monotonic()

    def collect(self) -> Iterable[Metric]:
        """All families, with the samples of now."""
        sources = self._sources
        status = sources.status()
        topics, groups, disk = sources.topics.counts(), sources.groups.counts(), sources.disk.use
        yield from _node(status)
        yield from _log(status)
        yield from disk_families(status, disk, full_ratio=sources.limits.disk_full_ratio)
        yield self._flush_times()
        yield from self._puts(status)
        yield from _traffic(topics, groups)
        yield from self._long_polls()
        yield from self._slaves(status)
        yield from self._connections(status)
        yield from self._link(status)
        yield from self._metadata(status)
        yield from control_families(status.control, age_s=time.monotonic() - self._started_s)
        yield from _archive(status.archive)
        yield from _pending(status.pending)
        yield from self._clients(self._sources.clients())
        yield from self._resources()
        yield from self._faults(status)
        yield from rocketmq_families(
            status, sources.rocketmq(), topics=topics, groups=groups, lags=sources.lags.lags, disk=disk
        )

    def _flush_times(self) -> Metric:
        times_s = self._sources.flush_times_s
        family = HistogramMetricFamily(
            f"{PREFIX}flush_duration_seconds",
            "How long syncs of the commit log took.",
            labels=(),
            unit="seconds",
        )
        buckets = [(_bound(bound), float(count)) for bound, count in times_s.cumulative()]
        family.add_metric((), buckets, times_s.total)
        return family

    def _puts(self, status: BrokerStatus) -> Iterator[Metric]:
        puts = self._sources.puts()
        yield counts_of(
            counter("puts_total", "Puts by their result.", "status"),
            [one.name for one in PutStatus],
            status.put_statuses,
        )
        yield value_of(counter("put_messages_total", "Messages that were stored."), puts.messages_stored)
        yield value_of(
            counter("put_bytes_total", "Bytes of the records that were stored."), puts.bytes_appended
        )

    def _long_polls(self) -> Iterator[Metric]:
        polls = self._sources.long_polls
        yield value_of(gauge("long_polls", "Pulls that wait for messages."), polls.open_polls)
        yield value_of(
            gauge("long_polls_max", "Pulls that may wait at a time: trioha.longPollsMax."),
            self._sources.limits.long_polls,
        )
        yield value_of(
            counter("long_polls_refused_total", "Pulls that could not wait because too many did."),
            polls.refused,
        )

    def _slaves(self, status: BrokerStatus) -> Iterator[Metric]:
        """Of all slaves together."""
        yield value_of(gauge("slaves_connected", "Open connections of slaves."), len(status.connections))
        yield value_of(
            gauge("slaves_in_sync", "Distinct slaves that a put may wait for."), status.in_sync_slaves
        )
        yield value_of(
            gauge("slaves_needed", "Slaves whose acknowledgement a put waits for."),
            self._sources.limits.slaves_needed,
        )
        yield counts_of(
            counter(
                "slave_connections_ended_total", "Connections of slaves that ended, by reason.", "reason"
            ),
            [one.name for one in SLAVE_ENDS],
            status.ended_connections,
        )
        yield counts_of(
            counter(
                "acks_refused_total",
                "Acknowledgements that could not be true; each ended its connection.",
                "reason",
            ),
            [one.name for one in ACK_REFUSALS],
            {one.name: status.ended_connections.get(one.name, 0) for one in ACK_REFUSALS},
        )
        probes: dict[str, int] = {}
        for reasons in status.probes.values():
            for reason, count in reasons.items():
                probes[reason] = probes.get(reason, 0) + count
        yield counts_of(
            counter("ha_probes_total", "Connections at the HA port without a valid request.", "reason"),
            [one.name for one in (CloseReason.EOF, CloseReason.NO_REQUEST, CloseReason.NOT_ALLOWED)],
            probes,
        )

    def _connections(self, status: BrokerStatus) -> Iterator[Metric]:
        """Of each slave's connection."""
        labels = ("slave", "connection")
        sent = gauge("slave_sent_offset_bytes", "The next byte to send.", *labels)
        acked = gauge("slave_ack_offset_bytes", "The slave has acknowledged everything before it.", *labels)
        lag_bytes = gauge("slave_lag_bytes", "Bytes that were not sent, not acknowledged.", *labels, "stage")
        lag_s = gauge("slave_lag_seconds", "Age of the oldest of these bytes.", *labels, "stage")
        in_sync = gauge("slave_in_sync", "Whether a put may wait for this slave.", *labels)
        silence = gauge("slave_silence_seconds", "Since the last byte from the slave.", *labels)
        ack_p50 = gauge("slave_ack_p50_seconds", "Median time from a frame to its ack.", *labels)
        ack_p99 = gauge("slave_ack_p99_seconds", "99th percentile of these times.", *labels)
        ages_s = self._sources.unsent_ages_s()
        for one in status.connections:
            values = (_host(one.address), str(one.connection_id))
            sent.add_metric(values, one.sent_offset)
            acked.add_metric(values, one.ack_offset)
            lag_bytes.add_metric((*values, "sent"), status.max_offset - max(one.sent_offset, 0))
            lag_bytes.add_metric((*values, "acknowledged"), one.lag_bytes)
            lag_s.add_metric((*values, "sent"), ages_s.get(one.connection_id or 0, 0.0))
            add_ms(lag_s, (*values, "acknowledged"), one.lag_ms)
            in_sync.add_metric(values, one.in_sync)
            add_ms(silence, values, one.last_received_ms)
            if one.ack_latency_us is not None:
                ack_p50.add_metric(values, one.ack_latency_us.p50 / 1e6)
                ack_p99.add_metric(values, one.ack_latency_us.p99 / 1e6)
        yield from (sent, acked, lag_bytes, lag_s, in_sync, silence, ack_p50, ack_p99)

    def _link(self, status: BrokerStatus) -> Iterator[Metric]:
        """On a slave: of its link to the master."""
        connected = gauge("master_connected", "Whether the slave has a connection to its master.")
        reported = gauge("master_reported_offset_bytes", "What the slave has last acknowledged.")
        silence = gauge("master_silence_seconds", "Since the last byte from the master.")
        blocked = gauge("master_mismatch", "Whether the slave's log cannot follow its master's.")
        ended = counter("master_connections_ended_total", "Connections to the master, by reason.", "reason")
        if (link := status.client) is not None:
            connected.add_metric((), link.state == HaState.TRANSFER.name)
            if link.reported_offset is not None:
                reported.add_metric((), link.reported_offset)
            if link.last_read_ms:
                silence.add_metric((), max(0.0, time.time() - link.last_read_ms / 1000))
            blocked.add_metric((), bool(link.verdict))
            counts_of(ended, [one.name for one in LINK_ENDS], self._sources.master_connections_ended())
        yield from (connected, reported, silence, blocked, ended)

    def _metadata(self, status: BrokerStatus) -> Iterator[Metric]:
        """On a slave: of its copy of the master's metadata."""
        ages = gauge(
            "metadata_sync_age_seconds", "Since the master's answer for a table was last taken.", "table"
        )
        failures = counter("metadata_sync_failures_total", "Attempts to copy a table that failed.", "table")
        if (metadata := status.metadata) is not None:
            for table, copy in metadata.tables.items():
                if copy.age_ms is None:
                    # Never: as old as the node, so that it grows and is seen.
                    ages.add_metric((table,), time.monotonic() - self._started_s)
                add_ms(ages, (table,), copy.age_ms)
                failures.add_metric((table,), copy.failures)
        yield from (ages, failures)
        yield value_of(
            counter("offset_regressions_total", "Offsets of the master that were before those of the slave."),
            None if metadata is None else metadata.regressions,
        )
        yield value_of(
            gauge(
                "offset_regressions_kept", "Offsets of the slave that are kept before which the master is."
            ),
            None if metadata is None else metadata.regressions_kept,
        )

    def _clients(self, clients: ServerStatistics) -> Iterator[Metric]:
        limits = self._sources.limits
        yield value_of(gauge("client_connections", "Open connections of clients."), clients.connections_open)
        yield value_of(
            gauge("client_connections_max", "Connections of clients that may be open at a time."),
            limits.client_connections,
        )
        yield value_of(
            counter("client_connections_accepted_total", "Connections of clients that were served."),
            clients.connections_accepted,
        )
        ended = {reason: getattr(clients, name) for reason, name in CLIENT_ENDS.items()}
        yield counts_of(
            counter(
                "client_connections_ended_total",
                "Connections of clients that the client did not end in order, by reason.",
                "reason",
            ),
            CLIENT_ENDS,
            ended,
        )
        yield value_of(counter("requests_total", "Requests of clients."), clients.requests)
        yield value_of(
            counter("busy_answers_total", "Requests answered SYSTEM_BUSY for lack of memory."),
            clients.busy_answers,
        )
        yield value_of(
            gauge("client_memory_bytes", "Bytes held for clients: requests and answers."), clients.held_bytes
        )
        yield value_of(
            gauge("client_memory_max_bytes", "Bytes that may be held for them: trioha.clientBytesMax."),
            limits.client_bytes,
        )
        yield value_of(
            counter("client_memory_waits_total", "Connections of clients that had to wait for memory."),
            clients.memory_waits,
        )

    def _resources(self) -> Iterator[Metric]:
        descriptors = self._sources.descriptors()
        yield value_of(gauge("descriptors_open", "Open file descriptors."), descriptors.open)
        yield value_of(gauge("descriptors_max", "File descriptors that may be open."), descriptors.limit)
        yield value_of(
            gauge("descriptors_reserved", "File descriptors that connections leave free."),
            descriptors.reserve,
        )
        yield value_of(
            gauge("slave_connections_max", "Connections at the HA port that may be open at a time."),
            self._sources.limits.ha_connections,
        )

    def _faults(self, status: BrokerStatus) -> Iterator[Metric]:
        yield value_of(
            counter("acl_refusals_total", "Requests that access control refused."), status.acl_refusals
        )
        bugs = counter("faults_total", "Connections and requests that a fault of trioha ended.", "kind")
        shortages = counter(
            "shortages_total", "Connections and requests that a shortage of the system ended.", "kind"
        )
        for kind, boundary in self._sources.boundaries.items():
            bugs.add_metric((kind,), boundary.bugs)
            shortages.add_metric((kind,), boundary.shortages)
        yield from (bugs, shortages)
        http = self._sources.http
        answers = {str(code): count for code, count in http.answers.items()}
        yield counts_of(
            counter("metrics_requests_total", "Requests at the port for metrics, by status code.", "code"),
            map(str, HTTP_CODES),
            answers,
        )
        ended = {
            "refused": http.connections_refused,
            "request_timeout": http.request_timeouts,
            "send_timeout": http.send_timeouts,
            "reset": http.broken_connections,
        }
        yield counts_of(
            counter(
                "metrics_connections_ended_total",
                "Connections at the port for metrics that ended without an answer, by reason.",
                "reason",
            ),
            ended,
            ended,
        )


def _node(status: BrokerStatus) -> Iterator[Metric]:
    info = InfoMetricFamily(f"{PREFIX}node", "Version, role and names of the node.")
    info.add_metric(
        (),
        {
            "version": status.version or "",
            "role": status.role,
            "cluster": label_text(status.cluster_name or ""),
            "broker": label_text(status.broker_name or ""),
            "broker_id": str(status.broker_id),
        },
    )
    yield info
    yield value_of(
        gauge("config_warnings", "Warnings about the configuration at the start."), len(status.warnings)
    )


def _log(status: BrokerStatus) -> Iterator[Metric]:
    end = status.max_offset
    yield value_of(gauge("log_start_offset_bytes", "First byte of the commit log."), status.min_offset)
    yield value_of(gauge("log_end_offset_bytes", "End of the commit log."), end)
    yield value_of(gauge("log_flushed_offset_bytes", "The log is on disk up to here."), status.flushed_offset)
    yield value_of(
        gauge("log_dispatched_offset_bytes", "Consume queues and index have the log up to here."),
        status.dispatched_offset,
    )
    yield value_of(gauge("log_files", "Files of the commit log."), status.files)
    flushed, dispatched = status.flushed_offset, status.dispatched_offset
    yield value_of(
        gauge("flush_lag_bytes", "Bytes of the log that are not on disk."),
        None if flushed is None else max(0, end - flushed),
    )
    yield value_of(
        gauge("dispatch_lag_bytes", "Bytes of the log that are not in consume queues and index."),
        None if dispatched is None else max(0, end - dispatched),
    )
    yield value_of(
        counter("store_time_steps_total", "Times that store times went back in the log by more than 3 s."),
        status.time_steps,
    )
    lead = gauge("store_time_lead_seconds", "By how much the newest record leads the clock, if by over 3 s.")
    add_ms(lead, (), status.time_lead_ms)
    yield lead
    yield value_of(
        gauge("clock_doubt", "Whether log files that are old by the clock are kept: it may be wrong."),
        bool(status.clock_doubt),
    )
    yield value_of(
        gauge("dispatch_fault", "Whether there was a record that could not be dispatched."),
        bool(status.dispatch_fault),
    )
    yield value_of(
        counter("log_read_faults_total", "Reads of the log that the disk did not answer."),
        status.read_faults,
    )
    failures = counter("write_failures_total", "Writes of optional things that failed.", "what")
    yield counts_of(failures, OPTIONAL, status.write_failures)
    unwritten = gauge(
        "unwritten", "1 for an optional thing that cannot be written now, 0 for others.", "what"
    )
    for name in dict.fromkeys((*OPTIONAL, *status.write_failures)):
        unwritten.add_metric((name,), name in status.unwritten)
    yield unwritten


def _traffic(topics: BusiestCounts, groups: BusiestCounts) -> Iterator[Metric]:
    """Messages of topics, and of groups in topics."""
    yield from _named(
        topics,
        counter("topic_put_messages_total", "Messages that were stored, by topic.", "topic"),
        counter("topic_put_bytes_total", "Bytes of records that were stored, by topic.", "topic"),
        label_count=1,
    )
    yield value_of(
        counter("pull_messages_total", "Messages that consumers were given."), groups.whole.messages
    )
    yield value_of(
        counter("pull_bytes_total", "Bytes of records that consumers were given."),
        groups.whole.total_bytes,
    )
    yield from _named(
        groups,
        counter(
            "group_pull_messages_total",
            "Messages that consumers were given, by topic and group.",
            *("topic", "group"),
        ),
        counter(
            "group_pull_bytes_total",
            "Bytes of records that consumers were given, by topic and group.",
            *("topic", "group"),
        ),
        label_count=2,
    )


def _archive(archive: ArchiveStatus | None) -> Iterator[Metric]:
    """Of the archive, without samples on a node that has none."""
    states = gauge("archive_state", "1 for the state of the archive, 0 for the other ones.", "state")
    offset = gauge("archive_offset_bytes", "Everything before it is archived.")
    lag_bytes = gauge("archive_lag_bytes", "Bytes of the log that are not archived.")
    lag_s = gauge("archive_lag_seconds", "Age of the oldest of these bytes.")
    objects = counter("archive_objects_total", "Objects of the log that were stored.")
    stored = counter("archive_object_bytes_total", "Their size.")
    failures = counter("archive_failures_total", "Attempts to archive that failed.")
    deleted = counter(
        "log_files_deleted_unarchived_total", "Log files that were deleted before they were archived."
    )
    if archive is not None:
        for state in dict.fromkeys((*get_args(ArchiveState), archive.state)):
            states.add_metric((state,), state == archive.state)
        value_of(offset, archive.archived_offset)
        value_of(lag_bytes, archive.lag_bytes)
        add_ms(lag_s, (), archive.lag_ms)
        value_of(objects, archive.objects)
        value_of(stored, archive.object_bytes)
        value_of(failures, archive.failures)
        value_of(deleted, archive.files_deleted_unarchived)
    yield from (states, offset, lag_bytes, lag_s, objects, stored, failures, deleted)


def _pending(pending: PendingStatus | None) -> Iterator[Metric]:
    """Of what waits in the log, without samples until it is counted."""
    timers = gauge("pending_timers", "Timers that wait in the log, neither delivered nor recalled.")
    popped = gauge(
        "pending_popped_messages",
        "Popped messages of a RocketMQ master that nobody acknowledged, and that are not given again.",
    )
    stores = gauge("unread_stores", "RocksDB stores of a RocketMQ master in the store, which are not read.")
    if pending is not None:
        value_of(stores, len(pending.unread_stores))
        if not pending.error:
            value_of(timers, pending.timers)
            value_of(popped, pending.popped)
    yield from (timers, popped, stores)


def _named(
    counts: BusiestCounts,
    messages: CounterMetricFamily,
    total_bytes: CounterMetricFamily,
    *,
    label_count: int,
) -> Iterator[Metric]:
    """Both families, with samples for the named keys and for the rest. A key has its labels between `@`."""
    by_labels: dict[tuple[str, ...], Count] = {}
    for key, count in counts.named.items():
        labels = tuple(map(label_text, key.split("@", label_count - 1)))
        # Texts that label_text shortens may be the same afterwards.
        by_labels[labels] = by_labels.get(labels, Count()) + count
    by_labels[(REST,) * label_count] = counts.rest
    for labels, count in by_labels.items():
        messages.add_metric(labels, count.messages)
        total_bytes.add_metric(labels, count.total_bytes)
    yield from (messages, total_bytes)


def _host(address: str) -> str:
    """The host of `host:port`, without brackets: a slave's port changes with each connection."""
    return address.rpartition(":")[0].strip("[]")


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)
