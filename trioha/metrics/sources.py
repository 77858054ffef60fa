"""What the metrics of a node are computed from, at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from attrs import frozen

from trioha.broker.long_polls import LongPolls
from trioha.broker.puts import PutStatistics
from trioha.broker_status import BrokerStatus
from trioha.histogram import Histogram
from trioha.metrics.busiest import BusiestKeys
from trioha.metrics.disks import DiskWatch
from trioha.metrics.group_lags import LagCounter
from trioha.metrics.http_statistics import HttpStatistics
from trioha.metrics.rocketmq import RocketmqFigures
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.serving import ServerStatistics


@frozen(kw_only=True)
class Descriptors:
    """File descriptors of the process."""

    open: int | None
    """None where they cannot be counted."""
    limit: int
    """Descriptors that the process may have open."""
    reserve: int
    """Descriptors that connections leave free."""


@frozen(kw_only=True)
class Limits:
    """Maxima of a node that are in force."""

    client_connections: int
    client_bytes: int
    """trioha.clientBytesMax."""
    ha_connections: int
    long_polls: int
    """trioha.longPollsMax."""
    slaves_needed: int
    """Slaves that a put waits for."""
    disk_full_ratio: float
    """diskSpaceWarningLevelRatio, from 0 to 1."""


@frozen(kw_only=True)
class Sources:
    """The parts of a node that are asked at a scrape; all of them answer at once."""

    status: Callable[[], BrokerStatus]
    puts: Callable[[], PutStatistics]
    clients: Callable[[], ServerStatistics]
    long_polls: LongPolls
    flush_times_s: Histogram
    unsent_ages_s: Callable[[], Mapping[int, float]]
    """Ages of the oldest unsent bytes by number of the slave's connection."""
    master_connections_ended: Callable[[], Mapping[str, int]]
    """On a slave: connections to the master that ended, by reason."""
    topics: BusiestKeys
    """Puts by topic."""
    groups: BusiestKeys
    """Pulls by `topic@group`."""
    lags: LagCounter
    """Of groups in topics."""
    disk: DiskWatch
    """The log's."""
    rocketmq: Callable[[], RocketmqFigures]
    """What only families under RocketMQ's names show."""
    descriptors: Callable[[], Descriptors]
    boundaries: Mapping[str, ErrorBoundary]
    """By the kind of connections."""
    http: HttpStatistics
    """Of the port that serves the metrics."""
    limits: Limits
