"""Keys of replication (docs/protocol/ha.md#settings)."""

# ruff: noqa: RUF009 - `setting` is a field specifier of attrs

from __future__ import annotations

from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final

from attrs import frozen

from trioha.config import values
from trioha.config.setting import setting
from trioha.config.values import LONG_MAX

HA_TRANSFER_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024 - 12
"""A real slave receives into a buffer of 4 MiB: a longer frame, with its header of 12 bytes, never fits
(docs/protocol/ha.md#what-a-slave-checks)."""


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


@frozen(kw_only=True, slots=False, repr=False, eq=False)
class HaKeys:
    """Replication: which slaves puts wait for, connections of slaves, and what a slave does."""

    ha_master_address: str | None = setting("haMasterAddress", values.optional_address, default=None)
    """`host:port` of the master's HA service that a slave dials. RocketMQ default: none."""

    ha_send_heartbeat_interval: int = setting("haSendHeartbeatInterval", values.integer(low=1), default=5000)
    """Milliseconds after its last frame at which each side sends a heartbeat. RocketMQ default: 5000."""

    ha_housekeeping_interval: int = setting("haHousekeepingInterval", values.integer(low=1), default=20000)
    """Milliseconds without a byte from the peer after which an HA connection is closed.

    RocketMQ default: 20000.
    """

    ha_transfer_batch_size: int = setting(
        "haTransferBatchSize", values.integer(low=1, high=HA_TRANSFER_BATCH_BYTES_MAX), default=32768
    )
    """Largest body of one frame to a slave, bytes, at most 4 MiB - 12. RocketMQ default: 32768."""

    ha_transfer_batch_max: int = setting(
        "trioha.haTransferBatchMax",
        values.integer(low=1, high=HA_TRANSFER_BATCH_BYTES_MAX),
        default=1024 * 1024,
    )
    """Largest body of one frame to a slave with lag, bytes; frames shrink again when it has caught up."""

    ha_flow_control_enable: bool = setting("haFlowControlEnable", values.boolean, default=False)
    """Whether bytes to each slave in a second are limited. RocketMQ default: false."""

    max_ha_transfer_byte_in_second: int = setting(
        "maxHaTransferByteInSecond", values.integer(low=1024, high=LONG_MAX), default=100 * 1024 * 1024
    )
    """Bytes to one slave in a second, with `ha_flow_control_enable`. RocketMQ default: 104857600.

    RocketMQ counts only frame headers, trioha also bodies.
    """

    slave_timeout: int = setting("slaveTimeout", values.integer(low=1), default=3000)
    """Milliseconds that a put of SYNC_MASTER waits for its slaves. RocketMQ default: 3000."""

    in_sync_replicas: int = setting("inSyncReplicas", values.integer(low=1), default=1)
    """Copies, the master's included, that a put of SYNC_MASTER needs. RocketMQ default: 1.

    SYNC_MASTER always waits for at least one slave, also at 1: see `slave_acks_needed`.
    """

    min_in_sync_replicas: int = setting("minInSyncReplicas", values.integer(low=1), default=1)
    """Copies in sync, the master's included, that a SYNC_MASTER needs to store a message.

    RocketMQ default: 1.
    """

    enable_auto_in_sync_replicas: bool = setting("enableAutoInSyncReplicas", values.boolean, default=False)
    """Whether a put needs only the copies that are in sync, at least `min_in_sync_replicas`.

    RocketMQ default: false.
    """

    all_ack_in_sync_state_set: bool = setting("allAckInSyncStateSet", values.boolean, default=False)
    """Whether a put needs every slave that is in sync, not only `in_sync_replicas`. RocketMQ default:
    false."""

    total_replicas: int = setting("totalReplicas", values.integer(low=1), default=1)
    """Copies that the group should have, the master's included. RocketMQ default: 1."""

    ha_max_gap_not_in_sync: int = setting(
        "haMaxGapNotInSync",
        values.integer(low=1, high=LONG_MAX),
        default=256 * 1024 * 1024,
        aliases=("haSlaveFallbehindMax",),
    )
    """Lag in bytes below which a slave counts as in sync; `haSlaveFallbehindMax` in RocketMQ 4.

    RocketMQ default: 268435456.
    """

    ha_max_time_slave_not_catchup: int = setting(
        "haMaxTimeSlaveNotCatchup", values.integer(low=1), default=15000
    )
    """Milliseconds without an expected acknowledgement after which a slave is not in sync.

    RocketMQ default: 15000; RocketMQ 5 uses it in controller mode only.
    """

    ha_distinct_by: DistinctBy = setting(
        "trioha.haDistinctBy", values.one_of(DistinctBy), default=DistinctBy.ADDRESS
    )
    """How two HA connections are recognized as two slaves; several slaves on one host need `connection`."""

    ha_role: HaRole = setting("trioha.haRole", values.one_of(HaRole), default=HaRole.REPLICA)
    """Whether a slave's acknowledgements count."""

    ha_ack_mode: AckMode = setting("trioha.haAckMode", values.one_of(AckMode), default=AckMode.WRITTEN)
    """State of the bytes that a slave acknowledges."""

    ha_start_from: StartFrom | int | None = setting(
        "trioha.haStartFrom", values.optional_one_of_or_integer(StartFrom, low=0, high=LONG_MAX), default=None
    )
    """Start of an empty slave: `lastFile`, `earliest`, or the file of an offset; by default the last file,
    and all history after `trioha.haGapPolicy=resync` has set a log aside."""

    ha_gap_policy: GapPolicy = setting("trioha.haGapPolicy", values.one_of(GapPolicy), default=GapPolicy.FAIL)
    """What a slave does when its log does not continue its master's."""

    ha_tail_check: int = setting("trioha.haTailCheck", values.integer(low=0, high=1 << 30), default=64 * 1024)
    """Bytes at the end of its log that a slave compares with its master's on every connect; 0 for none."""

    ha_allowed_peers: tuple[IPv4Network | IPv6Network, ...] = setting(
        "trioha.haAllowedPeers", values.networks, default=()
    )
    """Addresses and networks (CIDR), separated by `,`, that may connect to the HA port; empty allows all."""

    ha_connections_max: int = setting("trioha.haConnectionsMax", values.integer(low=1), default=64)
    """Connections at the HA port at a time: one more is closed as soon as it is accepted, and counted.

    Lowered at the start if the limit of file descriptors (RLIMIT_NOFILE) is too low.
    """

    ha_connections_per_peer: int = setting("trioha.haConnectionsPerPeer", values.integer(low=1), default=8)
    """Connections at the HA port at a time of one address."""

    ha_first_report_timeout: int = setting(
        "trioha.haFirstReportTimeout", values.integer(low=1), default=15000
    )
    """Milliseconds in which a peer at the HA port must send its request; a 4.9 slave takes up to 6 s."""

    ha_tls_cert: Path | None = setting("trioha.haTlsCert", values.optional_directory, default=None)
    """PEM file of the node's certificate: with it, the HA port and the slave's connection use mutual TLS."""

    ha_tls_key: Path | None = setting("trioha.haTlsKey", values.optional_directory, default=None)
    """PEM file of the certificate's key."""

    ha_tls_ca: Path | None = setting("trioha.haTlsCa", values.optional_directory, default=None)
    """PEM file of the authority that must have signed the peer's certificate."""
