"""Views made by hand for the tests of screens: a busy moment with every kind of fault."""

from __future__ import annotations

from math import sin

from attrs import evolve

from trioha.broker_status import ControllerLinkStatus, ControlStatus, MemberStatus
from trioha.distribution import Distribution
from trioha.errors import TriohaError
from trioha.replica_verdict import Limits, Verdict
from trioha.severity import Severity
from trioha_monitor.playback import PlaybackState, Tick
from trioha_monitor.series import Series, SeriesRecorder
from trioha_monitor.view import (
    ArchiveView,
    ClusterView,
    ConsumptionView,
    EventKind,
    GroupView,
    Health,
    LogView,
    MetadataView,
    NodeView,
    PutRate,
    ReplicaView,
    RoleSpan,
    SlaveView,
    TimelineEvent,
)

NOW_MS = 1_767_323_045_600
"""2026-01-02 03:04:05.6 UTC."""
END = 196_994_567
MASTER, FIRST, SECOND, GONE = "127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931", "10.0.0.9:10911"
LIMITS = Limits(are_reported=True)


def lag_series(kind: str, *, unit: float = 1.0, end_ms: int = NOW_MS) -> Series:
    """Fifteen minutes of lag: `calm`, with a `peak` a minute ago, or `lost` half a minute ago."""
    recorder = SeriesRecorder(500, 1801)
    for tick in range(1800):
        at_ms = end_ms - (1800 - tick) * 500
        value, severity = 60_000 + 50_000 * sin(tick / 9), Severity.GOOD
        if kind == "peak" and 1660 <= tick < 1700:
            value, severity = 60_000.0 + (tick - 1660) * 400_000, Severity.WARNING
        if kind == "lost" and tick >= 1740:
            value, severity = (tick - 1740) * 300_000.0, Severity.CRITICAL
        if kind == "none":
            value = 0.0
        recorder.add(value * unit, severity, at_ms=at_ms)
    return recorder.freeze()


def replica(key: int, verdict: Verdict, *, why: str = "", **changes: object) -> ReplicaView:
    """A replica of the master, in sync unless `changes` say otherwise."""
    base = ReplicaView(
        key=key,
        master=MASTER,
        master_label="broker-a #0",
        address=f"127.0.0.1:4311{key}",
        node=None,
        label=f"127.0.0.1:4311{key}",
        verdict=verdict,
        why=why,
        state="TRANSFER",
        is_connected=True,
        for_s=3725.0,
        age_s=0.04,
        master_offset=END,
        sent_offset=END,
        ack_offset=END - 61_234,
        slave_max_offset=None,
        flushed_offset=None,
        dispatched_offset=None,
        slave_age_s=None,
        diff_bytes=61_234,
        lag_s=0.021,
        in_sync=True,
        sent_bytes_per_s=1_234_000.0,
        ack_bytes_per_s=1_230_000.0,
        transferred_bytes_per_s=120,
        eta_s=0.0,
        is_closing=True,
        reconnects=0,
        lag_history=lag_series("calm"),
        lag_s_history=lag_series("calm", unit=3e-7),
        limits=LIMITS,
    )
    return evolve(base, **changes)


def node(address: str, broker_id: int, role: str, **changes: object) -> NodeView:
    """A node of broker-a that answers."""
    base = NodeView(
        address=address,
        health=Health.UP,
        for_s=3800.0,
        age_s=0.05,
        role=role,
        cluster="DefaultCluster",
        broker_name="broker-a",
        broker_id=broker_id,
        version="trioha 0.1.0",
        source="907",
        lists_replicas=True,
        limits=LIMITS,
    )
    return evolve(base, **changes)


def slave_side(offset: int, *, master: str = "127.0.0.1:10912", reconnects: int = 0) -> SlaveView:
    """A slave that receives."""
    return SlaveView(master, "TRANSFER", offset, 1_231_000.0, 0.02, reconnects, False, "")


NOT_ACKED = {"lag_s": None, "eta_s": None, "is_closing": None, "ack_bytes_per_s": None}
"""Of a replica without acks."""


def busy_view() -> ClusterView:
    """A master with slaves in every state, one of them watched itself, and a node that is down."""
    master = node(
        MASTER,
        0,
        "SYNC_MASTER",
        age_s=0.04,
        ha_address="127.0.0.1:10912",
        connected_replicas=6,
        observers=1,
        in_sync_replicas=4,
        ended_connections={"REMOTE_CLOSED": 3, "HOUSEKEEPING": 1},
        warnings=("inSyncReplicas=3 needs two slaves that follow",),
        log=LogView(
            min_offset=67_108_864,
            max_offset=END,
            flushed_offset=END - 4_096,
            dispatched_offset=END,
            append_bytes_per_s=1_236_000.0,
            append_history=lag_series("peak", unit=8.0),
            file_bytes=67_108_864,
            files=2,
            put_messages_per_s=1204.0,
            puts=(PutRate("PUT_OK", 182_345, 1201.0), PutRate("FLUSH_SLAVE_TIMEOUT", 12, 3.0)),
            disk_ratio=0.62,
            disk_total_bytes=500_000_000_000,
            disk_free_bytes=190_000_000_000,
            earliest_ms=NOW_MS - 7_200_000,
            retention_s=259_200.0,
            disk_ratio_max=0.75,
            archive=ArchiveView(
                url="s3://backups/broker-a",
                state="waiting",
                error="503 Slow Down",
                generation="0001-5f0c9a12",
                archived_offset=END - 9_000_000,
                lag_bytes=9_000_000,
                lag_s=14.2,
            ),
        ),
    )
    slave = node(
        FIRST,
        1,
        "SLAVE",
        for_s=3720.0,
        log=LogView(
            min_offset=67_108_864,
            max_offset=END - 61_234,
            flushed_offset=END - 120_000,
            dispatched_offset=END - 90_000,
            append_bytes_per_s=1_230_000.0,
            append_history=lag_series("calm"),
            file_bytes=67_108_864,
            files=2,
            disk_ratio=0.81,
            disk_ratio_max=0.75,
        ),
        slave=slave_side(END - 61_234, reconnects=2),
    )
    gap = "GAP: 50000000 is deleted"
    stuck = node(
        SECOND,
        2,
        "SLAVE",
        health=Health.LATE,
        for_s=2.0,
        age_s=1.4,
        log=LogView(
            min_offset=0, max_offset=50_000_000, flushed_offset=50_000_000, dispatched_offset=50_000_000
        ),
        slave=SlaveView("127.0.0.1:10912", "READY", 50_000_000, 0.0, 31.0, 7, False, gap),
    )
    down = NodeView(address=GONE, health=Health.DOWN, reason="Connection refused", for_s=10.0)
    return ClusterView(
        time_ms=NOW_MS,
        nodes=(master, slave, stuck, down),
        replicas=busy_replicas(),
        events=busy_events(),
        consumption=busy_groups(),
        is_live=True,
    )


def busy_replicas() -> tuple[ReplicaView, ...]:
    """A replica of each verdict."""
    return (
        replica(
            1,
            Verdict.OK,
            label="broker-a #1",
            node=FIRST,
            slave_max_offset=END - 61_000,
            slave_age_s=0.13,
            flushed_offset=END - 120_000,
            dispatched_offset=END - 90_000,
            reconnects=2,
            ack_latency_ms=Distribution(0.31, 2.4, 18.0, 182_345),
            frame_bytes=Distribution(1204.0, 32_768.0, 32_768.0, 182_345),
            metadata=MetadataView(7.2),
            lag_history=lag_series("peak"),
            lag_s_history=lag_series("peak", unit=3e-7),
        ),
        replica(
            2,
            Verdict.FALL_BEHIND,
            why="lacks bytes that are 4.2 s old",
            **{**behind(5_123_456), "lag_s": 4.2, "eta_s": None, "is_closing": False},
            ack_bytes_per_s=900_000.0,
        ),
        replica(
            3,
            Verdict.NOT_IN_SYNC,
            why="lacks 256 MiB or more",
            diff_bytes=294_912_000,
            ack_offset=0,
            lag_s=240.0,
            eta_s=93.0,
            in_sync=False,
            ack_bytes_per_s=4_400_000.0,
        ),
        replica(4, Verdict.OBSERVER, ack_offset=0, diff_bytes=END, **NOT_ACKED),
        replica(
            5,
            Verdict.STALLED,
            why="no ack for 12 s, 59.8 KiB wait",
            **{**NOT_ACKED, "ack_bytes_per_s": 0.0, "lag_s": 12.4, "is_closing": False},
        ),
        replica(
            6,
            Verdict.SILENT,
            why="not connected for 31 s",
            **{
                **NOT_ACKED,
                "lag_s": 31.0,
                "is_connected": False,
                "in_sync": None,
                "state": "",
                "for_s": 31.0,
            },
            sent_bytes_per_s=None,
            diff_bytes=18_000_000,
            lag_history=lag_series("lost"),
            lag_s_history=lag_series("lost", unit=3e-7),
        ),
        replica(
            7,
            Verdict.GAP,
            why="needs offset 50000000, the log starts at 67108864",
            label="broker-a #2",
            node=SECOND,
            **{**NOT_ACKED, **behind(END - 50_000_000), "sent_offset": None, "sent_bytes_per_s": None},
            in_sync=False,
            reconnects=7,
            metadata=MetadataView(
                1210.0, faults=("consumerOffsets: no answer from 10.0.0.1:10911 within 3 s",), offsets_kept=3
            ),
        ),
        replica(
            8, Verdict.STALE, master=GONE, master_label=GONE, age_s=10.2, **{**NOT_ACKED, "in_sync": None}
        ),
        replica(
            9,
            Verdict.DIVERGED,
            why="acknowledged 4.00 KiB beyond the master's log",
            **{**NOT_ACKED, **behind(-4096)},
        ),
    )


def behind(diff_bytes: int) -> dict[str, object]:
    """Fields of a replica that lacks so many bytes."""
    return {"diff_bytes": diff_bytes, "ack_offset": END - diff_bytes}


CONTROLLERS = ("10.0.0.1:9878", "10.0.0.2:9878", "10.0.0.3:9878")


def control(role: str, broker_id: int, **changes: object) -> ControlStatus:
    """A broker of a group of three whose second one is master of epoch 5."""
    base = ControlStatus(
        role=role,
        step="following",
        broker_id=broker_id,
        master_epoch=5,
        master_id=2,
        master_address=FIRST,
        log_epoch=5,
        sync_state_set=(2, 3),
        sync_state_set_epoch=11,
        in_sync_min=2,
        confirm_offset=END - 61_234,
        leader=CONTROLLERS[1],
        leader_heard_ms=2_300,
        controllers=(
            ControllerLinkStatus(address=CONTROLLERS[0], reason="cannot connect: Connection refused"),
            ControllerLinkStatus(address=CONTROLLERS[1], is_connected=True, is_leader=True),
            ControllerLinkStatus(
                address=CONTROLLERS[2], is_connected=True, reason=f"the leader is {CONTROLLERS[1]}"
            ),
        ),
        role_changes=3,
        role_changed_ms=NOW_MS - 48_000,
    )
    return evolve(base, **changes)


def roles(*spans: tuple[float, str, int | None]) -> tuple[RoleSpan, ...]:
    """Roles since so many seconds ago."""
    return tuple(RoleSpan(NOW_MS - round(ago_s * 1000), role, epoch) for ago_s, role, epoch in spans)


def controlled_view() -> ClusterView:
    """A group whose first master was killed and came back, and one of RocketMQ that lost its controllers."""
    member = MemberStatus(in_set=True, is_required=True, is_connected=True)
    master = node(
        FIRST,
        2,
        "SYNC_MASTER",
        age_s=0.04,
        version="0.1.0",
        ha_address="127.0.0.1:10922",
        connected_replicas=2,
        in_sync_replicas=1,
        log=LogView(
            min_offset=0,
            max_offset=END,
            flushed_offset=END,
            dispatched_offset=END - 61_234,
            append_bytes_per_s=1_236_000.0,
            append_history=lag_series("peak", unit=8.0),
        ),
        control=control(
            "master",
            2,
            members=(
                evolve(member, broker_id=1, in_set=False, is_required=True, ack_offset=END - 9_000_000),
                evolve(member, broker_id=2, ack_offset=END),
                evolve(member, broker_id=3, ack_offset=END - 61_234),
            ),
        ),
        roles=roles((900, "slave", 4), (48, "master", 5)),
    )
    first = node(
        MASTER,
        1,
        "SLAVE",
        for_s=21.0,
        version="0.1.0",
        lists_replicas=False,
        log=LogView(min_offset=0, max_offset=END - 9_000_000, flushed_offset=END - 9_000_000),
        slave=slave_side(END - 9_000_000, master="127.0.0.1:10922"),
        control=control("slave", 1, role_changes=1, confirm_offset=END - 9_000_000),
        roles=roles((900, "master", 4), (51, "", None), (21, "none", None), (19, "slave", 5)),
    )
    third = evolve(
        first,
        address=SECOND,
        broker_id=3,
        for_s=3800.0,
        log=LogView(min_offset=0, max_offset=END - 61_234, flushed_offset=END - 61_234),
        slave=slave_side(END - 61_234, master="127.0.0.1:10922"),
        control=control("slave", 3),
        roles=roles((900, "slave", 4), (47, "slave", 5)),
    )
    refused = "cannot connect: Connection refused"
    alone = ControlStatus(
        role="master",
        broker_id=1,
        log_epoch=2,
        in_sync_min=2,
        controllers=(ControllerLinkStatus(address=CONTROLLERS[0], reason=refused),),
    )
    lost = node(
        *("10.0.0.9:10911", 1, "SYNC_MASTER"),
        for_s=900.0,
        age_s=0.1,
        broker_name="broker-b",
        version="V5_3_3",
        limits=Limits(),
        log=LogView(min_offset=0, max_offset=4_000_000),
        control=alone,
        roles=roles((75, "master", 2)),
    )
    of_second = {"master": FIRST, "master_label": "broker-a #2"}
    rows = (
        replica(
            2,
            Verdict.OK,
            label="broker-a #1",
            node=MASTER,
            **{**of_second, **behind(9_000_000), "lag_s": 1.9, "in_sync": False},
            lag_history=lag_series("peak"),
        ),
        replica(1, Verdict.OK, label="broker-a #3", node=SECOND, **of_second),
    )
    return ClusterView(
        time_ms=NOW_MS,
        nodes=(first, master, third, lost),
        replicas=rows,
        events=controlled_events(),
        is_live=True,
    )


def controlled_events() -> tuple[TimelineEvent, ...]:
    """What happened to the groups of `controlled_view`."""
    told = (
        (EventKind.NODE, "broker-a #1", "no longer answers: Connection refused", Severity.CRITICAL, 60.0),
        (EventKind.ROLE, "broker-a #2", "is master of epoch 5; was slave of broker 1 in epoch 4",
         Severity.WARNING, 48.0),
        (EventKind.ROLE, "broker-a #3", "is slave of broker 2 in epoch 5; was slave of broker 1 in epoch 4",
         Severity.NOTICE, 47.0),
        (EventKind.SET, "broker-a #2", "sync-state set {2, 3}, 3 came in", Severity.GOOD, 46.0),
        (EventKind.ROLE, "broker-a #1", "is slave of broker 2 in epoch 5; had no role",
         Severity.NOTICE, 19.0),
        (EventKind.CONTROLLER, "broker-b #1", (f"no controller leads: {CONTROLLERS[0]}: cannot connect: "
         "Connection refused"), Severity.CRITICAL, 12.0),
    )  # fmt: skip
    return tuple(
        TimelineEvent(NOW_MS - round(ago_s * 1000), kind, about, "", text, severity, number)
        for number, (kind, about, text, severity, ago_s) in enumerate(told, start=1)
    )


def group(key: int, name: str, topic: str, **changes: object) -> GroupView:
    """A group that keeps up, unless `changes` say otherwise."""
    base = GroupView(
        key=key,
        group=name,
        topic=topic,
        broker="broker-a",
        queues=8,
        lag=12,
        lag_s=0.4,
        read_per_s=1200.4,
        members=2,
        clients=("10.0.0.5@4711 (10.0.0.5:50123)", "10.0.0.6@81 (10.0.0.6:41200)"),
        model="CLUSTERING",
        sources=(("broker-a #0", 1200.4),),
        age_s=1.2,
    )
    return evolve(base, **changes)


def busy_groups() -> ConsumptionView:
    """A group in every state."""
    idle = {"read_per_s": 0.0, "sources": ()}
    shared = (("broker-a #1", 799.0), ("broker-a #0", 1.0))
    return ConsumptionView(
        rows=(
            group(
                *(1, "billing", "Orders"),
                **{"lag": 182_345, "lag_s": 3725.0, "members": 0, "clients": (), "model": "", **idle},
            ),
            group(2, "search", "Orders", lag=40_210, lag_s=95.0, read_per_s=800.0, sources=shared),
            group(3, "shipping", "Orders"),
            group(4, "cache", "Prices", lag=0, lag_s=None, model="BROADCASTING", members=40, **idle),
            group(5, "audit", "Orders", age_s=61.0, members=None, clients=(), lag=7),
            GroupView(6, group="", topic="Invoices", broker="broker-a", queues=4),
        ),
        hidden_rows=12,
        pairs=5,
        faults=("broker-a #2: connection refused",),
    )


def busy_events() -> tuple[TimelineEvent, ...]:
    """One event of each kind, the last one a second ago."""
    good, notice, warning, bad = Severity.GOOD, Severity.NOTICE, Severity.WARNING, Severity.CRITICAL
    host = "127.0.0.1"
    told = (
        (EventKind.NODE, "broker-a #0", "", "answers: trioha 0.1.0, SYNC_MASTER", good),
        (EventKind.CONNECT, "broker-a #0", f"{host}:43111", "connected", good),
        (EventKind.CONFIG, "broker-a #0", "", "inSyncReplicas=3 needs two slaves that follow", warning),
        (EventKind.SYNC, "broker-a #0", f"{host}:43113", "no longer in sync: lacks 281 MiB", warning),
        (EventKind.PUTS, "broker-a #0", "", "12 puts ended with FLUSH_SLAVE_TIMEOUT", bad),
        (EventKind.REFUSED, "broker-a #0", "10.0.0.66:50000", "a forged ack: beyond what was sent", bad),
        (EventKind.LOST, "broker-a #0", f"{host}:43116", "connection lost: housekeeping", bad),
        (EventKind.GAP, "broker-a #2", "", "GAP: 50000000 is deleted", bad),
        (EventKind.VERDICT, "broker-a #0", f"{host}:43112", "OK → FALL BEHIND", warning),
        (EventKind.ROLE, "broker-a #1", "", "SLAVE, was SYNC_MASTER", notice),
        (EventKind.DISK, "broker-a #1", "", "disk 81 % full, files are deleted from 75 %", warning),
        (EventKind.CLOCK, "", "", "this machine's clock was set by 2 s", notice),
    )
    first_ms = NOW_MS - 1000 - 9_000 * (len(told) - 1)
    return tuple(
        TimelineEvent(first_ms + 9_000 * index, kind, about, who, text, severity, index + 1)
        for index, (kind, about, who, text, severity) in enumerate(told)
    )


def calm_view(time_ms: int = NOW_MS) -> ClusterView:
    """The same cluster without trouble: the first two nodes and the first replica."""
    view = busy_view()
    return evolve(
        view, time_ms=time_ms, nodes=view.nodes[:2], replicas=view.replicas[:1], events=view.events[:2]
    )


class FakePlayback:
    """A replay that records its calls; five minutes long, at its fourth minute."""

    def __init__(self) -> None:
        self.told: list[object] = []
        start_ms = NOW_MS - 240_000
        ticks = tuple(Tick(event.time_ms, event.severity) for event in busy_events())
        self.now = PlaybackState(
            start_ms=start_ms,
            end_ms=start_ms + 300_000,
            time_ms=NOW_MS,
            speed=4.0,
            is_playing=True,
            lag=lag_series("peak", end_ms=start_ms + 300_000),
            ticks=ticks,
        )

    def state(self) -> PlaybackState:
        return self.now

    def toggle(self) -> None:
        self.told.append("toggle")
        self.now = evolve(self.now, is_playing=not self.now.is_playing)

    def change_speed(self, steps: int) -> None:
        self.told.append(("speed", steps))

    def turn(self) -> None:
        self.told.append("turn")

    def step(self, steps: int) -> None:
        self.told.append(("step", steps))

    def seek(self, time_ms: int) -> None:
        self.told.append(("seek", time_ms))

    def seek_event(self, steps: int) -> None:
        self.told.append(("event", steps))

    def parse(self, condition: str) -> object:
        if condition == "noon":
            raise TriohaError(f"{condition} names no moment")
        return condition

    def run_until(self, condition: str) -> None:
        self.told.append(("until", condition))
