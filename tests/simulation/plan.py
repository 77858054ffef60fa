"""What one seed simulates: configuration of the nodes, load, and kinds of faults."""

from __future__ import annotations

import random
from enum import Enum

from attrs import frozen

from tests.simulation.determinism import stream_of
from tests.simulation.network import LinkQuality
from trioha.config.keys.ha import AckMode, GapPolicy, StartFrom
from trioha.ha.group_commit import GroupCommitSettings
from trioha.ha.replication_session import ReplicationSettings
from trioha.ha.settings import HaSettings


class Fault(Enum):
    """What can go wrong, once."""

    END = "link ends"
    RESET = "link is reset"
    FREEZE = "link freezes"
    SILENCE = "link is half open"
    SLOW = "link gets slow"
    UNREACHABLE = "connects hang"
    KILL_SLAVE = "slave is killed"
    KILL_MASTER = "master is killed"
    POWER_SLAVE = "slave loses power"
    POWER_MASTER = "master loses power"


@frozen
class SlavePlan:
    """One slave's configuration."""

    replication: ReplicationSettings
    acks: AckMode
    is_observer: bool
    gap_policy: GapPolicy
    starts_after_s: float


@frozen
class Plan:
    """One seed's world."""

    seed: int
    file_bytes: int
    first_offset: int
    """Where the master's log begins."""
    settings: HaSettings
    group_commit: GroupCommitSettings
    gap_bytes_max: int
    distinct_by_connection: bool
    slaves: tuple[SlavePlan, ...]
    master_flush_interval_s: float
    slave_flush_interval_s: float
    disk_s: tuple[float, ...]
    """How long a sync takes, one of these each time."""
    quality: LinkQuality
    direct_streams: bool
    producers: int
    pause_s: float
    """Mean pause of a producer between its puts."""
    body_bytes_max: int
    keeps_sectors: tuple[float, ...]
    """Share of the sectors not flushed that a power loss leaves on disk, one of these each time."""
    chaos_s: float
    """How long faults happen."""
    fault_interval_s: float
    faults: tuple[Fault, ...]


LINK_FAULTS = (Fault.END, Fault.RESET, Fault.FREEZE, Fault.SILENCE, Fault.SLOW, Fault.UNREACHABLE)


def plan_of(seed: int) -> Plan:
    rng = stream_of(seed, "plan")
    file_bytes = rng.choice((4096, 8192, 16384, 65536))
    need = rng.choice((0, 1, 1, 2))
    # A log that comes back shorter is found out only by those who look at their tail.
    loses_master_bytes = rng.random() < 0.35
    slaves = tuple(
        _slave(rng, file_bytes=file_bytes, must_check=loses_master_bytes)
        for _ in range(rng.choice((1, 2, 2, 3, 3)))
    )
    heartbeat_s, housekeeping_s = rng.choice(((5.0, 20.0), (5.0, 20.0), (1.0, 4.0)))
    batch_bytes = rng.choice((200, 1000, 4096, 32768))
    sync_flush = rng.random() < 0.4
    faults = [*LINK_FAULTS, Fault.KILL_SLAVE, Fault.KILL_MASTER, Fault.POWER_SLAVE]
    if loses_master_bytes:
        faults += [Fault.POWER_MASTER]
    chosen = [fault for fault in faults if rng.random() < 0.75] or faults
    if loses_master_bytes and Fault.POWER_MASTER not in chosen:
        chosen.append(Fault.POWER_MASTER)
    is_long = rng.random() < 0.15
    return Plan(
        seed=seed,
        file_bytes=file_bytes,
        first_offset=rng.choice((0, 0, 0, 1, 3)) * file_bytes,
        settings=HaSettings(
            heartbeat_interval_s=heartbeat_s,
            housekeeping_interval_s=housekeeping_s,
            transfer_batch_bytes=batch_bytes,
            transfer_batch_bytes_max=rng.choice((0, 1 << 20)),
            first_report_timeout_s=rng.choice((2.0, 10.0)),
        ),
        group_commit=GroupCommitSettings(
            copies_needed=need,
            slave_timeout_s=rng.choice((0.5, 3.0)),
            sync_flush=sync_flush,
            sync_flush_timeout_s=rng.choice((1.0, 5.0)),
            copies_min=rng.choice((0, 0, 1)) if need else 0,
            lowers_need=rng.random() < 0.15,
            all_in_sync=rng.random() < 0.15,
        ),
        gap_bytes_max=rng.choice((2048, 1 << 28)),
        # One slave that connects twice is two connections: only where one copy is enough.
        distinct_by_connection=need < 2 and rng.random() < 0.3,
        slaves=slaves,
        master_flush_interval_s=rng.choice((0.05, 0.5, 3.0)),
        slave_flush_interval_s=rng.choice((0.05, 0.5, 3.0)),
        disk_s=rng.choice(((0.0, 0.001), (0.001, 0.02, 0.3), (0.01, 2.0, 7.0))),
        quality=LinkQuality(
            latency_s=rng.choice((0.0001, 0.005, 0.1)),
            bandwidth_bytes_per_s=rng.choice((20e3, 1e6, 1e9)),
            capacity_bytes=rng.choice((1500, 16384, 1 << 20)),
            dribble=rng.choice((0.0, 0.1, 0.4)),
        ),
        direct_streams=rng.random() < 0.6,
        producers=rng.choice((1, 2, 4)),
        pause_s=2.0 if is_long else rng.choice((0.05, 0.2, 0.5)),
        body_bytes_max=rng.choice((40, 400, 3000)),
        keeps_sectors=(0.0, 0.3, 0.7, 0.95),
        chaos_s=150.0 if is_long else rng.uniform(6.0, 20.0),
        fault_interval_s=8.0 if is_long else rng.choice((0.5, 1.5, 4.0)),
        faults=tuple(chosen),
    )


def _slave(rng: random.Random, *, file_bytes: int, must_check: bool) -> SlavePlan:
    tail_checks = (500, 2000, 65536) if must_check else (0, 300, 2000, 65536)
    return SlavePlan(
        replication=ReplicationSettings(
            tail_check_bytes=rng.choice(tail_checks),
            start=rng.choice((StartFrom.EARLIEST, StartFrom.LAST_FILE, rng.randint(0, 4) * file_bytes + 7)),
        ),
        acks=rng.choice((AckMode.WRITTEN, AckMode.FLUSHED)),
        is_observer=rng.random() < 0.2,
        gap_policy=rng.choice((GapPolicy.FAIL, GapPolicy.RESYNC)),
        starts_after_s=rng.choice((0.0, 0.0, rng.uniform(0, 5))),
    )
