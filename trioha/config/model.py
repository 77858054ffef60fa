"""A broker's settings: their keys in RocketMQ's spelling, their meaning, defaults and ranges.

Each attribute of `BrokerConfig` is one key of a broker.conf (docs/protocol/ha.md#settings,
docs/protocol/store.md#files). A key keeps RocketMQ's meaning; trioha's own keys start with `trioha.`.
`trioha.config.values` parses values and documents where that differs from Java.
"""

# ruff: noqa: RUF009 - `_setting` is a field specifier of attrs

from __future__ import annotations

import socket
from collections.abc import Callable
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import attrs
from attrs import Factory, frozen

from trioha.config import values
from trioha.config.values import LONG_MAX, PORT_MAX

T = TypeVar("T")

HA_FRAME_HEADER_BYTES: Final = 12
HA_TRANSFER_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024 - HA_FRAME_HEADER_BYTES
"""A real slave receives into a buffer of 4 MiB: a longer frame never fits
(docs/protocol/ha.md#what-a-slave-checks)."""
RECORD_BYTES_MIN: Final = 92
"""A record without body and properties and with a topic of one character
(docs/protocol/store.md#message-record)."""
FILE_END_BYTES_MIN: Final = 8
"""Bytes that stay free at the end of each commit log file (docs/protocol/store.md#ends-of-files)."""
FRAME_BYTES_BESIDE_BODY: Final = 256 * 1024
"""Room beside the body in a send request: properties of 32 KiB, escaped in JSON."""
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""RocketMQ's own limit of a frame (com.rocketmq.remoting.frameMaxLength)."""
CLIENT_BYTES_MAX: Final = 128 * 1024 * 1024
"""Keeps a node's private memory below 512 MiB: bytes of clients are held up to twice, beside 60 MiB for the
rest."""
DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
RECORDED_BROKER_ID_MAX: Final = 32767
"""The brokerId is a signed 16-bit field in the events of a session."""


class BrokerRole(StrEnum):
    """Role of a broker in replication."""

    ASYNC_MASTER = "ASYNC_MASTER"
    """Accepts messages and waits for no slave."""
    SYNC_MASTER = "SYNC_MASTER"
    """Accepts messages and waits until enough slaves have acknowledged them."""
    SLAVE = "SLAVE"
    """Copies a master."""


class FlushDiskType(StrEnum):
    """When a put counts as stored on the broker's own disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    """Once it is in the page cache; the disk follows every `flush_interval_commit_log`."""
    SYNC_FLUSH = "SYNC_FLUSH"
    """Once it is on disk, or `sync_flush_timeout` is over."""


class DistinctBy(StrEnum):
    """How two HA connections are recognized as two slaves."""

    ADDRESS = "address"
    """By peer address; on loopback by connection."""
    CONNECTION = "connection"
    """By connection: several slaves on one host."""


class StartFrom(StrEnum):
    """Start of an empty slave, if not an offset."""

    LAST_FILE = "lastFile"
    """At the master's last file, as RocketMQ does."""
    EARLIEST = "earliest"
    """At the master's first byte."""


class AckMode(StrEnum):
    """State of the bytes before the offset that a slave reports."""

    WRITTEN = "written"
    """Written to the page cache, as with RocketMQ's slaves."""
    FLUSHED = "flushed"
    """On disk."""


class HaRole(StrEnum):
    """Whether a slave's acknowledgements count."""

    REPLICA = "replica"
    """A copy: its acknowledgements release producers."""
    OBSERVER = "observer"
    """Receives everything, acknowledges nothing, and never releases a producer."""


class GapPolicy(StrEnum):
    """What a slave does when its log has a gap to its master's log, is ahead of it or differs from it."""

    FAIL = "fail"
    """Keeps its log, reports the problem and keeps trying."""
    RESYNC = "resync"
    """Archives its log beside the new one and copies the master's log."""


class OffsetRegression(StrEnum):
    """What a slave does with an offset of its master that is before its own."""

    KEEP = "keep"
    """Keeps its own offset, counts and shows the difference."""
    ACCEPT = "accept"
    """Takes the master's offset and counts it."""


class TlsMode(StrEnum):
    """What a port for clients does with connections that start TLS, and with others."""

    DISABLED = "disabled"
    """Connections that start TLS are closed."""
    PERMISSIVE = "permissive"
    """Both are served."""
    ENFORCING = "enforcing"
    """Connections that do not start TLS are closed."""


class ClientAuth(StrEnum):
    """Whether clients are asked for certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    """A client may have none."""
    REQUIRE = "require"


class LogFormat(StrEnum):
    """Format of log lines on stderr."""

    CONSOLE = "console"
    """Text for people."""
    JSON = "json"
    """One JSON object a line."""


@frozen
class Setting:
    """The key of an attribute, its older or other names, and its parser."""

    key: str
    aliases: tuple[str, ...]
    parse: Callable[[str], object]
    is_secret: bool = False
    """Whether its value must not be shown."""


_SETTING: Final = "setting"


def _setting(
    key: str,
    parse: Callable[[str], T],
    *,
    default: T | Any,
    aliases: tuple[str, ...] = (),
    is_secret: bool = False,
) -> T:
    setting = Setting(key, aliases, parse, is_secret)
    return cast("T", attrs.field(default=default, repr=not is_secret, metadata={_SETTING: setting}))


def local_address() -> str:
    """The IPv4 address of this host's default route, else 127.0.0.1.

    Connecting a datagram socket sends nothing; it only queries the routing table.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:  # a host without a route
            return "127.0.0.1"


def _default_ha_listen_port(config: BrokerConfig) -> int:
    return config.listen_port + 1 if config.listen_port else 0


def client_bytes_needed(frame_bytes_max: int) -> int:
    """The least memory for clients with which a connection can always complete the longest frame.

    As `bytes_max_for` of the remoting server.
    """
    return 6 * frame_bytes_max + 64 * 1024


@frozen(kw_only=True)
class BrokerConfig:
    """The settings of one node, each valid by itself; `load_config` also checks combinations."""

    broker_cluster_name: str = _setting("brokerClusterName", values.name, default="DefaultCluster")
    """Name of the cluster. RocketMQ default: DefaultCluster."""

    broker_name: str = _setting("brokerName", values.name, default=Factory(socket.gethostname))
    """Name that a master and its slaves share. RocketMQ default: the host's name."""

    broker_id: int = _setting("brokerId", values.integer(low=-1, high=LONG_MAX), default=0)
    """0 for a master, above 0 for a slave; -1 or nothing with `enable_controller_mode`. RocketMQ default:
    0."""

    broker_role: BrokerRole = _setting(
        "brokerRole", values.one_of(BrokerRole), default=BrokerRole.ASYNC_MASTER
    )
    """Master or slave, and what a master waits for. RocketMQ default: ASYNC_MASTER."""

    broker_ip1: str = _setting("brokerIP1", values.ip_address, default=Factory(local_address))
    """IP address announced to clients, and the store host in every record.

    RocketMQ default: an address of the host; here that of the default route.
    """

    broker_ip2: str = _setting(
        "brokerIP2", values.name, default=Factory(lambda self: self.broker_ip1, takes_self=True)
    )
    """Host announced to slaves. RocketMQ default: an address of the host; here `broker_ip1`."""

    listen_port: int = _setting("listenPort", values.integer(low=0, high=PORT_MAX), default=10911)
    """Port of the remoting server; 0 for any free port. RocketMQ default: 10911."""

    ha_listen_port: int = _setting(
        "haListenPort",
        values.integer(low=0, high=PORT_MAX),
        default=Factory(_default_ha_listen_port, takes_self=True),
    )
    """Port that slaves dial; 0 for any free port.

    Default: `listen_port` + 1, or any free port where `listen_port` is 0. RocketMQ 5 uses this key like
    trioha; 4.9 always uses listenPort + 1.
    """

    ha_master_address: str | None = _setting("haMasterAddress", values.optional_address, default=None)
    """`host:port` of the master's HA service that a slave dials. RocketMQ default: none."""

    with_name_server: bool = _setting("trioha.withNamesrv", values.boolean, default=False)
    """Whether the node runs a name server, too: at that address of `namesrv_addr` that is of this host."""

    namesrv_addr: tuple[str, ...] = _setting(
        "namesrvAddr",
        values.addresses,
        default=Factory(
            lambda self: (DEFAULT_NAME_SERVER,) if self.with_name_server else (), takes_self=True
        ),
    )
    """Name servers that the broker registers with, `host:port` split by `;`.

    RocketMQ default: those of the environment variable NAMESRV_ADDR, here too; without them, and with
    `with_name_server`, the embedded one at 127.0.0.1:9876.
    """

    register_name_server_period: int = _setting(
        "registerNameServerPeriod", values.integer(low=1), default=30000
    )
    """Milliseconds between two registrations with a name server. RocketMQ default: 30000.

    RocketMQ takes what is below 10000 for 10000, and what is above 60000 for 60000.
    """

    register_broker_timeout_mills: int = _setting(
        "registerBrokerTimeoutMills", values.integer(low=1), default=24000
    )
    """Milliseconds that a name server has to answer a registration. RocketMQ default: 24000, in 4.9 6000."""

    store_path_root_dir: Path = _setting(
        "storePathRootDir", values.directory, default=Factory(lambda: Path.home() / "store")
    )
    """Directory of the whole store, absolute. RocketMQ default: $HOME/store."""

    store_path_commit_log: Path = _setting(
        "storePathCommitLog",
        values.single_directory,
        default=Factory(lambda self: self.store_path_root_dir / "commitlog", takes_self=True),
    )
    """Directory of the commit log, absolute. RocketMQ default: `commitlog` in the root directory."""

    mapped_file_size_commit_log: int = _setting(
        "mappedFileSizeCommitLog",
        values.integer(low=RECORD_BYTES_MIN + FILE_END_BYTES_MIN),
        default=1024 * 1024 * 1024,
    )
    """Bytes of each commit log file; must be equal on master and slave. RocketMQ default: 1073741824."""

    mapped_file_size_consume_queue: int = _setting(
        "mappedFileSizeConsumeQueue", values.integer(low=20), default=300_000 * 20
    )
    """Bytes of each consume queue file, rounded up to whole entries of 20. RocketMQ default: 6000000."""

    mapped_file_size_batch_consume_queue: int = _setting(
        "mapperFileSizeBatchConsumeQueue",
        values.integer(low=46),
        default=300_000 * 46,
    )
    """Bytes of each file of a batch topic's queue, rounded up to whole entries of 46.

    The key is spelled as RocketMQ spells it. RocketMQ default: 13800000.
    """

    message_index_enable: bool = _setting("messageIndexEnable", values.boolean, default=True)
    """Whether messages can be found by key. RocketMQ default: true."""

    max_hash_slot_num: int = _setting("maxHashSlotNum", values.integer(low=1), default=5_000_000)
    """Hash slots of each index file. RocketMQ default: 5000000."""

    max_index_num: int = _setting("maxIndexNum", values.integer(low=2), default=20_000_000)
    """Entries of each index file; one less can be used. RocketMQ default: 20000000."""

    enable_lmq: bool = _setting("enableLmq", values.boolean, default=False)
    """Whether light queues, `%LMQ%...`, are built. RocketMQ default: false."""

    enable_multi_dispatch: bool = _setting("enableMultiDispatch", values.boolean, default=False)
    """Whether messages also enter the queues that INNER_MULTI_DISPATCH names. RocketMQ default: false."""

    message_delay_level: str = _setting(
        "messageDelayLevel",
        values.delay_levels,
        default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    )
    """Delay of each level, from level 1 on. RocketMQ default: 18 levels of 1s to 2h."""

    max_message_size: int = _setting("maxMessageSize", values.integer(low=1), default=4 * 1024 * 1024)
    """Largest message body, bytes. RocketMQ default: 4194304."""

    flush_disk_type: FlushDiskType = _setting(
        "flushDiskType", values.one_of(FlushDiskType), default=FlushDiskType.ASYNC_FLUSH
    )
    """Whether a put waits for the disk. RocketMQ default: ASYNC_FLUSH."""

    flush_interval_commit_log: int = _setting("flushIntervalCommitLog", values.integer(low=1), default=500)
    """Milliseconds between two flushes of ASYNC_FLUSH. RocketMQ default: 500."""

    ha_send_heartbeat_interval: int = _setting("haSendHeartbeatInterval", values.integer(low=1), default=5000)
    """Milliseconds after its last frame at which each side sends a heartbeat. RocketMQ default: 5000."""

    ha_housekeeping_interval: int = _setting("haHousekeepingInterval", values.integer(low=1), default=20000)
    """Milliseconds without a byte from the peer after which an HA connection is closed.

    RocketMQ default: 20000.
    """

    ha_transfer_batch_size: int = _setting(
        "haTransferBatchSize", values.integer(low=1, high=HA_TRANSFER_BATCH_BYTES_MAX), default=32768
    )
    """Largest body of one frame to a slave, bytes, at most 4 MiB - 12. RocketMQ default: 32768."""

    ha_max_gap_not_in_sync: int = _setting(
        "haMaxGapNotInSync",
        values.integer(low=1, high=LONG_MAX),
        default=256 * 1024 * 1024,
        aliases=("haSlaveFallbehindMax",),
    )
    """Lag in bytes below which a slave counts as in sync; `haSlaveFallbehindMax` in RocketMQ 4.

    RocketMQ default: 268435456.
    """

    ha_max_time_slave_not_catchup: int = _setting(
        "haMaxTimeSlaveNotCatchup", values.integer(low=1), default=15000
    )
    """Milliseconds without an expected acknowledgement after which a slave is not in sync.

    RocketMQ default: 15000; RocketMQ 5 uses it in controller mode only.
    """

    sync_flush_timeout: int = _setting("syncFlushTimeout", values.integer(low=1), default=5000)
    """Milliseconds that a put of SYNC_FLUSH waits for the disk. RocketMQ default: 5000."""

    slave_timeout: int = _setting("slaveTimeout", values.integer(low=1), default=3000)
    """Milliseconds that a put of SYNC_MASTER waits for its slaves. RocketMQ default: 3000."""

    in_sync_replicas: int = _setting("inSyncReplicas", values.integer(low=1), default=1)
    """Copies, the master's included, that a put of SYNC_MASTER needs. RocketMQ default: 1.

    SYNC_MASTER always waits for at least one slave, also at 1: see `slave_acks_needed`.
    """

    ha_flow_control_enable: bool = _setting("haFlowControlEnable", values.boolean, default=False)
    """Whether bytes to each slave in a second are limited. RocketMQ default: false."""

    max_ha_transfer_byte_in_second: int = _setting(
        "maxHaTransferByteInSecond", values.integer(low=1024, high=LONG_MAX), default=100 * 1024 * 1024
    )
    """Bytes to one slave in a second, with `ha_flow_control_enable`. RocketMQ default: 104857600.

    RocketMQ counts only frame headers, trioha also bodies.
    """

    file_reserved_time: int = _setting("fileReservedTime", values.integer(low=1, high=1 << 20), default=72)
    """Hours that a log file is kept after its last write. RocketMQ default: 72."""

    delete_when: frozenset[int] = _setting("deleteWhen", values.hours, default=frozenset((4,)))
    """Hours of the local day in which old files are deleted, `04;05`. RocketMQ default: 04."""

    disk_max_used_space_ratio: int = _setting(
        "diskMaxUsedSpaceRatio", values.integer(low=10, high=100), default=75
    )
    """Percent of the disk above which old files are deleted at any hour. RocketMQ default: 75."""

    disk_space_clean_forcibly_ratio: int = _setting(
        "diskSpaceCleanForciblyRatio", values.integer(low=10, high=100), default=85
    )
    """Percent of the disk above which the oldest files are deleted at once. RocketMQ default: 85."""

    disk_space_warning_level_ratio: int = _setting(
        "diskSpaceWarningLevelRatio", values.integer(low=10, high=100), default=90
    )
    """Percent of the disk above which puts are refused. RocketMQ default: 90."""

    clean_file_forcibly_enable: bool = _setting("cleanFileForciblyEnable", values.boolean, default=True)
    """Whether `disk_space_clean_forcibly_ratio` is applied. RocketMQ default: true."""

    clean_resource_interval: int = _setting("cleanResourceInterval", values.integer(low=1), default=10000)
    """Milliseconds between two checks of the disk. RocketMQ default: 10000."""

    min_in_sync_replicas: int = _setting("minInSyncReplicas", values.integer(low=1), default=1)
    """Copies in sync, the master's included, that a SYNC_MASTER needs to store a message.

    RocketMQ default: 1.
    """

    enable_auto_in_sync_replicas: bool = _setting("enableAutoInSyncReplicas", values.boolean, default=False)
    """Whether a put needs only the copies that are in sync, at least `min_in_sync_replicas`.

    RocketMQ default: false.
    """

    all_ack_in_sync_state_set: bool = _setting("allAckInSyncStateSet", values.boolean, default=False)
    """Whether a put needs every slave that is in sync, not only `in_sync_replicas`. RocketMQ default:
    false."""

    total_replicas: int = _setting("totalReplicas", values.integer(low=1), default=1)
    """Copies that the group should have, the master's included. RocketMQ default: 1."""

    enable_controller_mode: bool = _setting("enableControllerMode", values.boolean, default=False)
    """Whether RocketMQ's controllers give this node its id and its role. RocketMQ default: false."""

    controller_addr: tuple[str, ...] = _setting("controllerAddr", values.addresses, default=())
    """Addresses of all controllers, `host:port` split by `;`. RocketMQ default: none."""

    sync_broker_metadata_period: int = _setting(
        "syncBrokerMetadataPeriod", values.integer(low=100), default=5000
    )
    """Milliseconds between two questions to the controllers for the master. RocketMQ default: 5000."""

    sync_controller_metadata_period: int = _setting(
        "syncControllerMetadataPeriod", values.integer(low=100), default=10_000
    )
    """Milliseconds between two questions to each controller for the one that leads. RocketMQ default:
    10000."""

    check_sync_state_set_period: int = _setting(
        "checkSyncStateSetPeriod", values.integer(low=100), default=5000
    )
    """Milliseconds between two looks of a master for members of the sync-state set that fell back. RocketMQ
    default: 5000."""

    controller_heart_beat_timeout_mills: int = _setting(
        "controllerHeartBeatTimeoutMills", values.integer(low=1000), default=10_000
    )
    """Milliseconds of silence after which the controllers take this node for dead. RocketMQ default:
    10000."""

    broker_heartbeat_interval: int = _setting(
        "brokerHeartbeatInterval", values.integer(low=100), default=1000
    )
    """Milliseconds between two heartbeats to each controller. RocketMQ default: 1000."""

    broker_election_priority: int = _setting(
        "brokerElectionPriority", values.integer(low=0), default=2**31 - 1
    )
    """Among candidates with equal logs the controllers elect the one with the lowest. RocketMQ default:
    2147483647."""

    async_learner: bool = _setting("asyncLearner", values.boolean, default=False)
    """Whether this node never enters the sync-state set, and so never becomes master. RocketMQ default:
    false."""

    sync_from_last_file: bool = _setting("syncFromLastFile", values.boolean, default=False)
    """Whether an empty slave of a controller's group starts with its master's last file, not with the first.
    RocketMQ default: false."""

    store_path_epoch_file: Path = _setting(
        "storePathEpochFile",
        values.directory,
        default=Factory(lambda self: self.store_path_root_dir / "epochFileCheckpoint", takes_self=True),
    )
    """File of the epochs of the log. RocketMQ default: `epochFileCheckpoint` in the root directory."""

    store_path_broker_identity: Path = _setting(
        "storePathBrokerIdentity",
        values.directory,
        default=Factory(lambda self: self.store_path_root_dir / "brokerIdentity", takes_self=True),
    )
    """File of the id that the controllers gave. RocketMQ default: `brokerIdentity` in the root directory."""

    record_dir: Path | None = _setting("trioha.recordDir", values.optional_directory, default=None)
    """Directory in which each start of the node records a session; None records nothing."""

    archive_url: str | None = _setting("trioha.archiveUrl", values.optional_archive_url, default=None)
    """URL of the object storage to which the node archives its log, its metadata and, where PyArrow is
    installed, its recordings; None for no archive.

    `s3://bucket/folder`, `gs://`, `az://` or `file:///folder`. Credentials come from the environment. Each
    broker has a URL of its own, a slave another one than its master.
    """

    archive_interval: int = _setting("trioha.archiveInterval", values.integer(low=100), default=10_000)
    """Milliseconds between two looks at the end of the log: what is new is archived."""

    archive_keep: str | None = _setting("trioha.archiveKeep", values.optional_duration, default=None)
    """How far back the archive can be restored, `30d` or `12h`: what no such restore needs is deleted there.
    None, by default, for everything."""

    archive_before_delete: bool = _setting("trioha.archiveBeforeDelete", values.boolean, default=False)
    """Whether a log file is only deleted once it is archived.

    Above `disk_space_clean_forcibly_ratio` it is deleted all the same.
    """

    bind_address: str = _setting(
        "trioha.bindAddress",
        values.name,
        default="0.0.0.0",  # noqa: S104 - RocketMQ's default
        aliases=("bindAddress",),
    )
    """Address that both servers listen on. RocketMQ default: all of IPv4; `bindAddress` in RocketMQ 5."""

    ha_distinct_by: DistinctBy = _setting(
        "trioha.haDistinctBy", values.one_of(DistinctBy), default=DistinctBy.ADDRESS
    )
    """How two HA connections are recognized as two slaves; several slaves on one host need `connection`."""

    ha_transfer_batch_max: int = _setting(
        "trioha.haTransferBatchMax",
        values.integer(low=1, high=HA_TRANSFER_BATCH_BYTES_MAX),
        default=1024 * 1024,
    )
    """Largest body of one frame to a slave with lag, bytes; frames shrink again when it has caught up."""

    busy_poll: int = _setting("trioha.busyPoll", values.integer(low=0, high=1000), default=800)
    """How long a node may poll for the next bytes of slaves, master and clients before it sleeps,
    microseconds; 0 for not at all, as with one core, of the machine or by the CPU quota of a container."""

    ha_start_from: StartFrom | int | None = _setting(
        "trioha.haStartFrom", values.one_of_or_integer(StartFrom, low=0, high=LONG_MAX), default=None
    )
    """Start of an empty slave: `lastFile`, `earliest`, or the file of an offset; by default the last file,
    and all history after `trioha.haGapPolicy=resync` has set a log aside."""

    ha_ack_mode: AckMode = _setting("trioha.haAckMode", values.one_of(AckMode), default=AckMode.WRITTEN)
    """State of the bytes that a slave acknowledges."""

    ha_role: HaRole = _setting("trioha.haRole", values.one_of(HaRole), default=HaRole.REPLICA)
    """Whether a slave's acknowledgements count."""

    ha_gap_policy: GapPolicy = _setting(
        "trioha.haGapPolicy", values.one_of(GapPolicy), default=GapPolicy.FAIL
    )
    """What a slave does when its log does not continue its master's."""

    ha_tail_check: int = _setting(
        "trioha.haTailCheck", values.integer(low=0, high=1 << 30), default=64 * 1024
    )
    """Bytes at the end of its log that a slave compares with its master's on every connect; 0 for none."""

    ha_accept_cut: int | None = _setting(
        "trioha.haAcceptCut", values.optional_integer(low=0, high=LONG_MAX), default=None
    )
    """The offset at which a slave of controller mode may cut its log although later bytes may have been
    confirmed to producers; None for nowhere. The slave's refusal names it; it is for that cut alone."""

    hang_timeout: int = _setting("trioha.hangTimeout", values.integer(low=1000), default=15_000)
    """Milliseconds for which a sync of the disk or a change of the role may make no progress in controller
    mode; then the node sends no heartbeats to the controllers, so that they elect another master."""

    ha_allowed_peers: tuple[IPv4Network | IPv6Network, ...] = _setting(
        "trioha.haAllowedPeers", values.networks, default=()
    )
    """Addresses and networks (CIDR), separated by `,`, that may connect to the HA port; empty allows all."""

    queues_max: int = _setting("trioha.queuesMax", values.integer(low=1), default=100_000)
    """Consume queues that a store may have: a put that needs one more is refused.

    Each takes some 2 KiB of memory. Queues of records that are in the log are always built.
    """

    auto_create_topic_enable: bool = _setting("autoCreateTopicEnable", values.boolean, default=True)
    """Whether a first send makes its topic. RocketMQ default: true."""

    default_topic_queue_nums: int = _setting(
        "defaultTopicQueueNums", values.integer(low=1, high=65536), default=8
    )
    """Queues that such a topic has at most. RocketMQ default: 8."""

    auto_create_subscription_group: bool = _setting(
        "autoCreateSubscriptionGroup", values.boolean, default=True
    )
    """Whether a consumer's first heartbeat or pull makes its group. RocketMQ default: true."""

    broker_permission: int = _setting("brokerPermission", values.integer(low=0, high=15), default=6)
    """Bits: 4 messages may be pulled, 2 messages may be sent. RocketMQ default: 6."""

    flush_consumer_offset_interval: int = _setting(
        "flushConsumerOffsetInterval", values.integer(low=1), default=5000
    )
    """Milliseconds between two writes of consumerOffset.json. RocketMQ default: 5000."""

    flush_delay_offset_interval: int = _setting(
        "flushDelayOffsetInterval", values.integer(low=1), default=10_000
    )
    """Milliseconds between two writes of delayOffset.json. RocketMQ default: 10000."""

    long_polling_enable: bool = _setting("longPollingEnable", values.boolean, default=True)
    """Whether a pull that finds nothing waits as long as it asks for. RocketMQ default: true."""

    short_polling_time_mills: int = _setting("shortPollingTimeMills", values.integer(low=1), default=1000)
    """Milliseconds that it waits without `long_polling_enable`. RocketMQ default: 1000."""

    max_transfer_count_on_message_in_memory: int = _setting(
        "maxTransferCountOnMessageInMemory", values.integer(low=1), default=32
    )
    """Messages that one pull gives at most. RocketMQ default: 32."""

    max_transfer_bytes_on_message_in_memory: int = _setting(
        "maxTransferBytesOnMessageInMemory", values.integer(low=1), default=256 * 1024
    )
    """Bytes that one pull gives at most; a larger message is given alone. RocketMQ default: 262144."""

    access_message_in_memory_max_ratio: int = _setting(
        "accessMessageInMemoryMaxRatio", values.integer(low=0, high=100), default=40
    )
    """Percent of the machine's memory: messages farther from the log's end than this count as old.

    A new group begins at the log's end where the queue's first message is old, and `slave_read_enable` sends
    consumers of old messages to a slave. RocketMQ default: 40.
    """

    slave_read_enable: bool = _setting("slaveReadEnable", values.boolean, default=False)
    """Whether consumers may be sent to a slave. RocketMQ default: false.

    A slave answers pulls in any case. It counts messages as old at 10 percent of the memory less than
    `access_message_in_memory_max_ratio`, as in 5.x.
    """

    consume_replicated_only: bool = _setting("trioha.consumeReplicatedOnly", values.boolean, default=False)
    """Whether consumers of a SYNC_MASTER receive a message only when as many slaves hold it as its put needs.

    While no slave acknowledges, they receive nothing new.
    """

    master_address: str | None = _setting("trioha.masterAddress", values.optional_address, default=None)
    """`host:port` at which a slave asks its master for topics, groups and offsets.

    Default: what a name server answers to the slave's registration; without one, the host of
    `ha_master_address` with its port - 1, if the broker there says that it is the master.
    """

    metadata_sync_first: int = _setting("trioha.metadataSyncFirst", values.integer(low=1), default=3000)
    """Milliseconds from a slave's start to its first copy of the master's metadata. RocketMQ 4.9: 3000."""

    metadata_sync_period: int = _setting("trioha.metadataSyncPeriod", values.integer(low=1), default=10_000)
    """Milliseconds between two copies. RocketMQ 4.9: 10000; 5.x: 63000."""

    offset_regression: OffsetRegression = _setting(
        "trioha.offsetRegression", values.one_of(OffsetRegression), default=OffsetRegression.KEEP
    )
    """What a slave does with an offset of its master that is before its own; both are counted and shown."""

    metadata_history_bytes: int = _setting(
        "trioha.metadataHistoryBytes", values.integer(low=0, high=LONG_MAX), default=64 * 1024 * 1024
    )
    """Bytes of the history of topics, groups and offsets in the store; 0 keeps none."""

    metadata_history_interval: int = _setting(
        "trioha.metadataHistoryInterval", values.integer(low=0), default=60_000
    )
    """Milliseconds for which changes of a table are gathered in the history.

    Offsets that go back are recorded at once, with what they were before."""

    notify_consumer_ids_changed_enable: bool = _setting(
        "notifyConsumerIdsChangedEnable", values.boolean, default=True
    )
    """Whether consumers of a group are notified when its members change. RocketMQ default: true."""

    transaction_time_out: int = _setting(
        "transactionTimeOut", values.integer(low=1, high=LONG_MAX), default=6000
    )
    """Milliseconds after which a half message that is not decided may be checked. RocketMQ default: 6000."""

    transaction_check_interval: int = _setting(
        "transactionCheckInterval", values.integer(low=1), default=30_000
    )
    """Milliseconds between two rounds of checks. RocketMQ default: 30000, in 4.9 60000."""

    transaction_check_max: int = _setting("transactionCheckMax", values.integer(low=0), default=15)
    """Checks of a half message; then it goes to TRANS_CHECK_MAX_TIME_TOPIC. RocketMQ default: 15."""

    reject_transaction_message: bool = _setting("rejectTransactionMessage", values.boolean, default=False)
    """Whether half messages are refused. RocketMQ default: false."""

    transaction_op_batch_interval: int = _setting(
        "transactionOpBatchInterval", values.integer(low=0), default=0
    )
    """Milliseconds for which the ends of transactions are gathered into one op record; 0 writes a record for
    each end at once, as 4.9 does.

    5.x reads both kinds of records. With 0 a crash makes fewer transactions decide twice. RocketMQ default:
    3000, and 4.9 does not gather.
    """

    transaction_op_msg_max_size: int = _setting(
        "transactionOpMsgMaxSize", values.integer(low=1, high=1 << 20), default=4096
    )
    """Bytes of an op record's body that are not gathered any longer. RocketMQ default: 4096."""

    open_transactions_max: int = _setting(
        "trioha.openTransactionsMax", values.integer(low=1), default=100_000
    )
    """Half messages without a decision: one more is refused. Each takes some 600 bytes."""

    topics_max: int = _setting("trioha.topicsMax", values.integer(low=1), default=10_000)
    """Topics that a broker may have, its system's included: one more is refused."""

    groups_max: int = _setting("trioha.groupsMax", values.integer(low=1), default=10_000)
    """Consumer groups that a broker may have: one more is refused."""

    consumer_offsets_max: int = _setting("trioha.consumerOffsetsMax", values.integer(low=1), default=500_000)
    """Offsets of groups in queues that are kept: one more is refused. Each takes some 150 bytes."""

    consumers_max: int = _setting("trioha.consumersMax", values.integer(low=1), default=10_000)
    """Members of all groups of consumers and producers at a time: one more is refused.

    A client is a member of each group that its heartbeat names.
    """

    long_polls_max: int = _setting("trioha.longPollsMax", values.integer(low=1), default=16_384)
    """Pulls that wait for messages at a time: one more is answered SYSTEM_BUSY."""

    queue_locks_max: int = _setting("trioha.queueLocksMax", values.integer(low=1), default=100_000)
    """Locks of queues for ordered consumption at a time: one more is not given."""

    statistics_max: int = _setting("trioha.statisticsMax", values.integer(low=1), default=20_000)
    """Topics, and pairs of topic and group, whose messages are counted over the last minute, hour and day.

    One more is not counted. Each takes some 5 KiB.
    """

    connections_max: int = _setting("trioha.connectionsMax", values.integer(low=1), default=1024)
    """Connections of clients at a time: one more is closed as soon as it is accepted, and counted.

    Lowered at the start if the limit of file descriptors (RLIMIT_NOFILE) is too low.
    """

    connections_per_peer: int = _setting(
        "trioha.connectionsPerPeer",
        values.integer(low=1),
        default=Factory(lambda self: max(1, self.connections_max // 2), takes_self=True),
    )
    """Connections of clients at a time of one address: one more is closed as soon as it is accepted.

    Default: half of `connections_max`: clients behind NAT, in a proxy and on one host share an address, but
    one address should not use all connections.
    """

    requests_in_flight_max: int = _setting("trioha.requestsInFlightMax", values.integer(low=1), default=4096)
    """Unanswered requests of one connection, pulls that wait for messages included, at which reading from it
    stops until one is answered."""

    frame_bytes_max: int = _setting(
        "trioha.frameBytesMax",
        values.integer(low=4096, high=1 << 30),
        default=Factory(
            lambda self: max(FRAME_BYTES_MAX, self.max_message_size + FRAME_BYTES_BESIDE_BODY),
            takes_self=True,
        ),
    )
    """Longest request of a client, bytes: a connection that sends a longer one is closed.

    Default: 16777216, as RocketMQ's com.rocketmq.remoting.frameMaxLength, or what `max_message_size` needs.
    """

    client_bytes_max: int = _setting(
        "trioha.clientBytesMax",
        values.integer(low=4096, high=LONG_MAX),
        default=Factory(
            lambda self: max(CLIENT_BYTES_MAX, client_bytes_needed(self.frame_bytes_max)), takes_self=True
        ),
    )
    """Bytes that the node holds for all its clients: requests, whole or not, and answers not yet sent.

    The more of it is used, the less a single connection may hold: reading stops first from those that hold
    most. At least six of the longest frames and 64 KiB. Default: 134217728, with which a node's private
    memory stays below 512 MiB, or that minimum.
    """

    client_idle_timeout: int = _setting("trioha.clientIdleTimeout", values.integer(low=1), default=120_000)
    """Milliseconds without a byte from or to a client after which its connection is closed.

    RocketMQ's brokers: 120 s (serverChannelMaxIdleTimeSeconds).
    """

    ha_connections_max: int = _setting("trioha.haConnectionsMax", values.integer(low=1), default=64)
    """Connections at the HA port at a time: one more is closed as soon as it is accepted, and counted.

    Lowered at the start if the limit of file descriptors (RLIMIT_NOFILE) is too low.
    """

    ha_connections_per_peer: int = _setting("trioha.haConnectionsPerPeer", values.integer(low=1), default=8)
    """Connections at the HA port at a time of one address."""

    ha_first_report_timeout: int = _setting(
        "trioha.haFirstReportTimeout", values.integer(low=1), default=15000
    )
    """Milliseconds in which a peer at the HA port must send its request; a 4.9 slave takes up to 6 s."""

    ha_tls_cert: Path | None = _setting("trioha.haTlsCert", values.optional_directory, default=None)
    """PEM file of the node's certificate: with it, the HA port and the slave's connection use mutual TLS."""

    ha_tls_key: Path | None = _setting("trioha.haTlsKey", values.optional_directory, default=None)
    """PEM file of the certificate's key."""

    ha_tls_ca: Path | None = _setting("trioha.haTlsCa", values.optional_directory, default=None)
    """PEM file of the authority that must have signed the peer's certificate."""

    acl_enable: bool = _setting("aclEnable", values.boolean, default=False)
    """Whether requests of clients must be signed and allowed by the rules of `acl_file`. RocketMQ default:
    false."""

    rocketmq_home: Path | None = _setting("rocketmqHome", values.optional_directory, default=None)
    """Folder of a RocketMQ distribution: its conf/plain_acl.yml is the default of `acl_file`.

    RocketMQ default: the environment variable ROCKETMQ_HOME, here too.
    """

    acl_file: Path | None = _setting(
        "trioha.aclFile",
        values.optional_directory,
        default=Factory(
            lambda self: self.rocketmq_home and self.rocketmq_home / "conf" / "plain_acl.yml", takes_self=True
        ),
    )
    """File of the rules of access control, in the format of RocketMQ's plain_acl.yml; read again when it
    changes."""

    access_key: str | None = _setting("trioha.accessKey", values.optional_text, default=None)
    """Account with which the node signs its own requests to name servers."""

    secret_key: str | None = _setting("trioha.secretKey", values.optional_text, default=None, is_secret=True)
    """Secret of that account."""

    tls_server_mode: TlsMode = _setting("tls.server.mode", values.one_of(TlsMode), default=TlsMode.PERMISSIVE)
    """What the ports for clients do with TLS, if there is a certificate: see `TlsMode`. RocketMQ default:
    permissive."""

    tls_server_cert_path: Path | None = _setting(
        "tls.server.certPath", values.optional_directory, default=None
    )
    """PEM file of the certificate for clients. RocketMQ default: none; it makes a certificate that no client
    can verify."""

    tls_server_key_path: Path | None = _setting("tls.server.keyPath", values.optional_directory, default=None)
    """PEM file of the certificate's key."""

    tls_server_key_password: str | None = _setting(
        "tls.server.keyPassword", values.optional_text, default=None, is_secret=True
    )
    """Password of that file."""

    tls_server_trust_cert_path: Path | None = _setting(
        "tls.server.trustCertPath", values.optional_directory, default=None
    )
    """PEM file of the authorities that may have signed certificates of clients."""

    tls_server_auth_client: bool = _setting("tls.server.authClient", values.boolean, default=False)
    """Whether certificates of clients are verified. RocketMQ default: false."""

    tls_server_need_client_auth: ClientAuth = _setting(
        "tls.server.need.client.auth", values.one_of(ClientAuth), default=ClientAuth.NONE
    )
    """Whether clients are asked for certificates. RocketMQ default: none."""

    tls_enable: bool = _setting("tls.enable", values.boolean, default=False)
    """Whether the node's own connections to name servers use TLS. RocketMQ default: false."""

    tls_client_auth_server: bool = _setting("tls.client.authServer", values.boolean, default=False)
    """Whether the certificates of those name servers are verified. RocketMQ default: false.

    RocketMQ checks the authority only, trioha also the name of the host.
    """

    tls_client_trust_cert_path: Path | None = _setting(
        "tls.client.trustCertPath", values.optional_directory, default=None
    )
    """PEM file of the authorities that may have signed them."""

    tls_config_file: Path | None = _setting("tls.config.file", values.optional_directory, default=None)
    """Properties file with the `tls.` settings that are not given here. RocketMQ default:
    /etc/rocketmq/tls.properties."""

    metrics_port: int | None = _setting(
        "trioha.metricsPort", values.optional_integer(low=0, high=PORT_MAX), default=None
    )
    """Port at which Prometheus gets metrics by HTTP, 0 for any free port; None, by default, for no such port.

    It is open to all who can reach it: names of topics and groups and addresses of slaves are shown there.
    """

    metrics_bind_address: str = _setting(
        "trioha.metricsBindAddress",
        values.name,
        default=Factory(lambda self: self.bind_address, takes_self=True),
    )
    """Address that `metrics_port` listens on. Default: `bind_address`."""

    metrics_topics: int = _setting("trioha.metricsTopics", values.integer(low=1, high=10_000), default=50)
    """Topics with puts, and pairs of topic and group with pulls, that have time series of their own in the
    metrics: the busiest ones. All others are counted as one."""

    log_format: LogFormat = _setting("trioha.logFormat", values.one_of(LogFormat), default=LogFormat.CONSOLE)
    """Format of log lines."""

    @property
    def archive_keep_ms(self) -> int | None:
        """Milliseconds of `archive_keep`."""
        return None if self.archive_keep is None else values.duration_ms(self.archive_keep)

    @property
    def vip_port(self) -> int | None:
        """The second port for clients, `listen_port` - 2; None where there is no such port."""
        return self.listen_port - 2 if self.listen_port > 2 else None

    @property
    def slave_acks_needed(self) -> int:
        """Slaves that must acknowledge a message before its put is PUT_OK.

        See docs/protocol/ha.md#which-puts-wait.

        0 for ASYNC_MASTER; for SYNC_MASTER `in_sync_replicas` without the master, at least 1.
        """
        return max(1, self.in_sync_replicas - 1) if self.broker_role is BrokerRole.SYNC_MASTER else 0

    @property
    def ha_master_endpoint(self) -> tuple[str, int] | None:
        """Host and port of `ha_master_address`."""
        return None if self.ha_master_address is None else values.split_address(self.ha_master_address)


def broker_settings() -> dict[str, Setting]:
    """The settings by attribute name."""
    return {
        field.name: field.metadata[_SETTING]
        for field in attrs.fields(BrokerConfig)
        if _SETTING in field.metadata
    }
