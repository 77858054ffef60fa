"""What is known of brokers, configuration files and name servers at one moment: input of the checks.

A fact that could not be collected is None, and no check judges by it. Offsets of masters are collected after
those of slaves, and tables likewise: a slave that is ahead of its master in these facts is ahead in reality,
not only in the order of two answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import Factory, frozen

from trioha.broker_status import BrokerStatus, PendingStatus
from trioha.config.loading import LoadedConfig
from trioha.controller.bodies import EpochCache, ReplicaSetInfo
from trioha.doctor.tables import Tables
from trioha.errors import ConfigError


@frozen(kw_only=True)
class Probe:
    """The result of a connection to an address that a broker announces."""

    address: str
    """`host:port` that was dialled."""
    error: str | None = None
    """Why no connection could be made; None if it was made."""
    local_host: str = ""
    """Our end of the connection, an IP address; empty without a connection."""
    peer_host: str = ""
    """The other end, an IP address."""
    closed_at_once: bool = False
    """Whether the peer closed the connection while nothing was sent."""
    broker_name: str | None = None
    """Name of the broker that answers there; None where that was not asked or is not known."""
    broker_id: int | None = None

    @property
    def is_same_host(self) -> bool:
        """Whether both ends of the connection have one address: the doctor runs on the broker's host."""
        return bool(self.local_host) and self.local_host == self.peer_host


@frozen(kw_only=True)
class ClockReading:
    """A broker's wall clock beside ours. Its answer has whole seconds, so that there is a range."""

    ahead_ms_min: int
    """The broker's clock less ours, at least; negative where it is late."""
    ahead_ms_max: int
    """And at most."""
    now_ms: int
    """The broker's clock at the time of its answer, ms since 1970."""
    uptime_s: int
    """How long the broker has run."""

    @property
    def booted_ms(self) -> int:
        """The broker's clock at its start, as it reports it: which start of the broker this is."""
        return self.now_ms - self.uptime_s * 1000


@frozen(kw_only=True)
class BrokerFacts:
    """A running broker, or one that should run."""

    address: str
    """`host:port` by which it was named, or by which a name server lists it."""
    is_named: bool = True
    """Whether the user named it; else a name server lists it."""
    error: str | None = None
    """Why there is no status; None if there is one."""
    is_refused: bool = False
    """Whether the broker answered with an error code, as one with access control does."""
    peer_host: str = ""
    """IP address under which it was reached."""
    status: BrokerStatus | None = None
    config: Mapping[str, str] | None = None
    """Its answer to GET_BROKER_CONFIG: all settings as they are in effect."""
    gaps: tuple[str, ...] = ()
    """Which facts are missing, and why."""
    clock: ClockReading | None = None
    tables: Tables = Factory(Tables)
    epochs: EpochCache | None = None
    """In controller mode: the epochs of its log, and the end of the log at that moment."""
    advertised: Probe | None = None
    """The address that it announces to clients, dialled if it is not `address`."""
    vip: Probe | None = None
    """The port of that address less 2, where slaves of RocketMQ ask for topics."""
    ha: Probe | None = None
    """The address that it announces to slaves."""


@frozen(kw_only=True)
class ConfValue:
    """One line of a broker.conf."""

    key: str
    value: str
    """Without blanks around it."""
    line: int
    has_blanks: bool = False
    """Whether blanks follow it on its line."""


@frozen(kw_only=True)
class IdentityFacts:
    """A brokerIdentity file on this host."""

    path: str
    error: str | None = None
    """Why it cannot be used."""
    cluster_name: str = ""
    broker_name: str = ""
    broker_id: int = 0


@frozen(kw_only=True)
class EpochFileFacts:
    """An epoch file on this host, beside the log's files."""

    path: str
    error: str | None = None
    """Why it cannot be used."""
    last_epoch: int = -1
    """-1 without an epoch."""
    last_start_offset: int = 0
    """Where the last epoch begins."""
    log_end_max: int | None = None
    """The log ends at or before this: the end of its last file; None without files."""


@frozen(kw_only=True)
class ConfFacts:
    """A broker.conf."""

    path: str
    values: Mapping[str, ConfValue] = Factory(dict)
    """The last line of each key, which is the one that counts."""
    loaded: LoadedConfig | ConfigError | None = None
    """What `trioha node` makes of the file: settings with warnings, or why it refuses it."""
    file_problems: tuple[ConfigError, ...] = ()
    """What keeps `trioha node` from starting in the files that it names, as they are on this host."""
    identity: IdentityFacts | None = None
    """In controller mode: of its store, if that is on this host and has an id."""
    epoch_file: EpochFileFacts | None = None
    """Likewise."""


@frozen(kw_only=True)
class StoreFacts:
    """A store on this host."""

    path: str
    pending: PendingStatus
    """What is in it that trioha would not deliver, or does not read."""
    pending_doubt: str = ""
    """Why timers may be counted that a master was done with; empty if they are not."""


@frozen(kw_only=True)
class ListedBroker:
    """One entry of a name server."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


@frozen(kw_only=True)
class NameServerFacts:
    """A name server."""

    address: str
    error: str | None = None
    """Why its list could not be read; None if it was."""
    brokers: tuple[ListedBroker, ...] = ()


@frozen(kw_only=True)
class ControllerFacts:
    """A controller that a broker in controller mode names."""

    address: str
    error: str | None = None
    """Why it did not answer; None if it did."""
    is_leader: bool = False
    leader: str | None = None
    """The leader that it names, `host:port`."""
    groups: Mapping[str, ReplicaSetInfo] = Factory(dict)
    """Of a leader: the examined groups that it has, by broker name."""
    gap: str | None = None
    """Of a leader: why its groups could not be read."""


@frozen(kw_only=True)
class Thresholds:
    """From which differences on checks report. Users set them."""

    clocks_apart_ms: int = 2000
    metadata_late_s: int | None = None
    """How old a change may be that a slave has not copied; None: two periods of the slave's version."""
    handover: bool = False
    """Whether a slave that does not have everything at this moment is a finding."""


@frozen(kw_only=True)
class Facts:
    """All facts of one examination."""

    brokers: tuple[BrokerFacts, ...] = ()
    files: tuple[ConfFacts, ...] = ()
    stores: tuple[StoreFacts, ...] = ()
    name_servers: tuple[NameServerFacts, ...] = ()
    controllers: tuple[ControllerFacts, ...] = ()
    """All that brokers in controller mode and their files name, and the leader that these name."""
    assumed_version: str | None = None
    """Version that the user gives for files without a running broker."""
    thresholds: Thresholds = Factory(Thresholds)
