"""From answers to views: rows, verdicts, events. No Textual, no clock, no sockets."""

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.monitor.builders import MASTER, SLAVE, connection, master, slave
from trioha.broker_status import (
    ArchiveStatus,
    BrokerRuntimeInfo,
    BrokerSettings,
    BrokerStatus,
)
from trioha.net.error_boundary import ErrorBoundary
from trioha.replica_verdict import Verdict
from trioha.severity import Severity
from trioha_monitor.answers import CONNECTIONS_MAX
from trioha_monitor.cluster import NODES_MAX, Cluster, Sample
from trioha_monitor.matching import LOST_KEPT_MS
from trioha_monitor.timeline import EVENTS_MAX
from trioha_monitor.view import ArchiveView, EventKind, Health

START_MS = 1_700_000_000_000
A, B = "10.0.0.1:40000", "10.0.0.2:40000"


class Play:
    """Feeds a cluster with one sample of each node every 100 ms."""

    def __init__(self, *addresses):
        self.cluster = Cluster(addresses or (MASTER,), interval_ms=100)
        self.now_ms = START_MS

    def tell(self, *statuses, for_s=0.1):
        for _ in range(max(1, round(for_s * 10))):
            self.now_ms += 100
            for status in statuses:
                self.cluster.observe(Sample(status.address, self.now_ms, status))
        return self.cluster.view(self.now_ms)

    def fail(self, address=MASTER, fault="Connection refused", *, for_s=0.1):
        for _ in range(max(1, round(for_s * 10))):
            self.now_ms += 100
            self.cluster.observe(Sample(address, self.now_ms, fault="Connection refused"))
        return self.cluster.view(self.now_ms)

    def row(self):
        (row,) = self.cluster.view(self.now_ms).replicas
        return row

    def events(self):
        return [(event.kind, event.text) for event in self.cluster.view(self.now_ms).events]


def quiet(address, offset):
    """A connection in sync, of a broker that reports no more than RocketMQ does."""
    return connection(address, sent=offset, ack=offset, lag=0, state=None)


def test_a_replica_in_sync_is_ok_with_its_offsets_and_rates():
    play = Play()
    for tick in range(30):
        offset = 1_000_000 + tick * 10_000
        play.tell(master(offset, quiet(A, offset)))
    row = play.row()
    assert (row.verdict, row.why, row.is_connected, row.state) == (Verdict.OK, "", True, "CONNECTED")
    assert (row.master_offset, row.sent_offset, row.ack_offset, row.diff_bytes) == (1_290_000,) * 3 + (0,)
    assert (row.sent_bytes_per_s, row.ack_bytes_per_s) == (100_000, 100_000)
    assert (row.lag_s, row.eta_s, row.is_closing) == (0.0, 0.0, True)
    assert row.for_s == 2.9


def test_lag_in_seconds_is_the_age_of_the_oldest_missing_byte_if_a_broker_reports_only_offsets():
    play = Play()
    for tick in range(51):
        offset = 1_000_000 + tick * 1000
        acked = min(offset, 1_020_000)
        lag = offset - acked
        play.tell(master(offset, connection(A, sent=offset, ack=acked, lag=lag, state=None)))
    # The log was first seen beyond 1,020,000 thirty answers ago, with the last one.
    assert (play.row().lag_s, play.row().diff_bytes) == (2.9, 30_000)
    assert play.row().lag_s_history.worst(end_ms=play.now_ms, span_ms=1000) is not None


def test_a_replica_that_catches_up_has_an_eta_and_one_that_does_not_is_not_closing():
    play = Play()
    for tick in range(60):
        offset = 10_000_000 + tick * 1000
        acked = 5_000_000 + tick * 11_000
        play.tell(master(offset, connection(A, sent=offset, ack=acked, lag=offset - acked, state=None)))
    row = play.row()
    assert row.is_closing is True
    assert row.eta_s == row.diff_bytes / 100_000 if row.diff_bytes else False
    for tick in range(60):
        offset = 20_000_000 + tick * 20_000
        acked = 6_000_000 + tick * 11_000
        play.tell(master(offset, connection(A, sent=offset, ack=acked, lag=offset - acked, state=None)))
    assert (play.row().is_closing, play.row().eta_s) == (False, None)


def test_a_replica_that_stops_is_stalled_with_one_event():
    play = Play()
    play.tell(master(1000, quiet(A, 1000)), for_s=1)
    for tick in range(80):
        offset = 2000 + tick * 10
        stuck = connection(A, sent=offset, ack=1000, lag=offset - 1000, state=None)
        play.tell(master(offset, stuck))
    assert play.row().verdict is Verdict.STALLED
    verdicts = [text for kind, text in play.events() if kind is EventKind.VERDICT]
    assert len(verdicts) == 1
    assert verdicts[0].startswith("STALLED: no ack for")
    play.tell(master(3000, quiet(A, 3000)), for_s=3)
    assert play.row().verdict is Verdict.OK
    assert play.events()[-1] == (EventKind.VERDICT, "STALLED is over")


def test_a_tail_check_after_a_connect_is_rejoining_and_not_lag():
    play = Play()
    play.tell(master(500_000), for_s=1)
    tail = connection(A, sent=500_000, ack=440_000, lag=60_000)
    play.tell(master(500_000, tail))
    row = play.row()
    assert (row.is_rejoining, row.verdict, row.why.partition(":")[0]) == (True, Verdict.OK, "rejoining")
    # As in mqadmin, but not in graphs.
    assert row.diff_bytes == 60_000
    assert row.lag_history.buckets == row.lag_s_history.buckets == ()
    play.tell(master(510_000, connection(A, sent=510_000, ack=500_000, lag=10_000)))
    row = play.row()
    assert (row.is_rejoining, row.why) == (False, "")
    worst = row.lag_history.worst(end_ms=play.now_ms, span_ms=1000)
    assert worst.value == 10_000
    # One that was connected before the monitor started has a lag.
    play = Play()
    play.tell(master(500_000, tail))
    assert not play.row().is_rejoining
    assert play.row().lag_history.current is not None


def test_an_observer_does_not_count_as_out_of_sync():
    play = Play(MASTER, SLAVE)
    tap = evolve(slave(0), client=evolve(slave(0).client, is_observer=True, local_address=A))
    play.tell(master(0, connection(A, sent=0, ack=0, lag=0)), tap, for_s=2)
    behind = connection(A, sent=9000, ack=0, lag=9000, in_sync=False)
    view = play.tell(master(9000, behind), evolve(tap, max_offset=9000), for_s=20)
    assert play.row().verdict is Verdict.OBSERVER
    assert (view.nodes[0].connected_replicas, view.nodes[0].observers) == (1, 1)
    assert EventKind.SYNC not in {kind for kind, _ in play.events()}


def test_a_restart_of_a_slave_is_a_reconnect_beside_those_that_it_counts_itself():
    play = Play(MASTER, SLAVE)

    def tell(port, *, reconnects, booted_ms):
        address = f"10.0.0.1:{port}"
        client = evolve(
            slave(1000).client, local_address=address, reconnects=reconnects, last_read_ms=play.now_ms
        )
        status = evolve(slave(1000), client=client, table=BrokerRuntimeInfo(booted_ms=booted_ms))
        play.tell(master(1000, connection(address, sent=1000, ack=1000, lag=0)), status)
        return play.row().reconnects

    assert tell(50_000, reconnects=4, booted_ms=1) == 4
    play.fail(SLAVE)
    play.tell(master(1000))
    assert tell(50_001, reconnects=0, booted_ms=2) == 5
    assert tell(50_001, reconnects=0, booted_ms=2) == 5
    assert tell(50_002, reconnects=1, booted_ms=2) == 6


def test_a_slave_that_reconnects_keeps_its_row_and_history():
    play = Play()
    play.tell(master(1000, quiet(A, 1000)), for_s=1)
    key = play.row().key
    play.tell(master(5000), for_s=5)
    row = play.row()
    assert (row.is_connected, row.verdict, row.diff_bytes, row.state) == (False, Verdict.SILENT, 4000, "")
    assert row.lag_s == 4.9
    back = "10.0.0.1:40001"
    play.tell(master(5000, quiet(back, 5000)), for_s=3)
    row = play.row()
    assert (row.key, row.address, row.reconnects, row.verdict) == (key, back, 1, Verdict.OK)
    assert play.events()[1:] == [
        (EventKind.CONNECT, "connected"),
        (EventKind.LOST, "connection ended; ack 1000"),
        (EventKind.CONNECT, "is back after 5.0 s"),
    ]
    worst = row.lag_history.worst(end_ms=play.now_ms, span_ms=60_000)
    assert (worst.value, worst.severity) == (4000, Severity.CRITICAL)


def test_the_event_of_a_loss_has_the_masters_reason():
    play = Play()
    play.tell(evolve(master(1000, quiet(A, 1000)), ended_connections={"EOF": 3}))
    play.tell(evolve(master(1000), ended_connections={"EOF": 3, "HOUSEKEEPING": 1}))
    assert play.events()[-1] == (
        EventKind.LOST,
        "connection ended (HOUSEKEEPING: nothing was received for haHousekeepingInterval); ack 1000",
    )


def test_refused_peers_make_one_event_with_their_number():
    play = Play()
    for count in range(300):
        play.tell(evolve(master(1000), ended_connections={"ACK_BEYOND_SENT": count} if count else {}))
    refused = [text for kind, text in play.events() if kind is EventKind.REFUSED]
    words = "refused a peer that acknowledged more than it was sent (ACK_BEYOND_SENT"
    assert refused == [f"{words})", f"{words}, 100 times)", f"{words}, 100 times)"]


def test_a_slave_below_an_unmodified_masters_log_is_in_a_gap():
    play = Play()
    gone = connection(A, sent=1000, ack=1000, lag=9_000_000, state=None)
    play.tell(evolve(master(9_001_000, gone), min_offset=1_048_576))
    assert (play.row().verdict, play.row().why) == (
        Verdict.GAP,
        "needs offset 1000, the log starts at 1048576",
    )
    assert play.events()[-1][0] is EventKind.GAP


def test_an_ack_read_after_the_end_of_the_log_is_not_a_divergence():
    play = Play()
    # RocketMQ reads the end of its log first: an ack in the same answer may be newer.
    for offset in range(100_000, 130_000, 1000):
        ahead = connection(A, sent=offset + 700, ack=offset + 700, lag=-700, state=None)
        play.tell(master(offset, ahead))
        row = play.row()
        assert (row.verdict, row.diff_bytes, row.master_offset) == (Verdict.OK, 0, offset + 700)


def test_an_ack_beyond_the_end_that_stays_there_is_a_divergence():
    play = Play()
    for offset in (100_000, 100_100):
        forged = connection(A, sent=offset, ack=900_000, lag=offset - 900_000, state=None)
        play.tell(master(offset, forged))
    row = play.row()
    assert (row.verdict, row.diff_bytes) == (Verdict.DIVERGED, 100_100 - 900_000)


def test_a_slaves_own_figures_have_their_own_log_end_and_age():
    play = Play(MASTER, SLAVE)
    socket = "127.0.0.1:40001"
    told = evolve(watched(1500, local_address=socket), flushed_offset=1400, dispatched_offset=1300)
    play.tell(told, master(1000, quiet(socket, 1000)), for_s=0.2)
    play.tell(master(1000, quiet(socket, 1000)), for_s=0.5)
    row = play.row()
    assert (row.master_offset, row.slave_max_offset, row.flushed_offset, row.dispatched_offset) == (
        1000, 1500, 1400, 1300,
    )  # fmt: skip
    assert (row.age_s, row.slave_age_s) == (0.0, 0.5)


def test_the_dispatched_offset_of_a_second_request_is_at_most_the_end_of_the_log():
    play = Play()
    view = play.tell(
        evolve(old(MASTER, role="SYNC_MASTER", max_offset=1000, broker_id=0), dispatched_offset=1200)
    )
    assert (view.nodes[0].log.max_offset, view.nodes[0].log.dispatched_offset) == (1000, 1000)


def test_in_sync_changes_are_events_when_they_last():
    play = Play()
    play.tell(master(1000, quiet(A, 1000)), for_s=1)
    behind = connection(A, sent=500, ack=500, lag=500, in_sync=False, state=None)
    play.tell(master(1000, behind), for_s=0.5)
    play.tell(master(1000, quiet(A, 1000)), for_s=1)
    assert EventKind.SYNC not in {kind for kind, _ in play.events()}
    play.tell(master(1000, behind), for_s=1.5)
    play.tell(master(1000, quiet(A, 1000)), for_s=1.5)
    assert [text for kind, text in play.events() if kind is EventKind.SYNC] == [
        "not in sync: 500 B behind",
        "in sync again",
    ]


def test_a_master_that_does_not_answer_makes_its_replicas_stale_with_the_age():
    play = Play()
    play.tell(master(1000, quiet(A, 1000)), for_s=1)
    play.now_ms += 12_000
    play.fail()
    row = play.row()
    assert (row.verdict, row.age_s) == (Verdict.STALE, 12.1)
    assert (row.diff_bytes, row.ack_bytes_per_s) == (0, None)
    view = play.cluster.view(play.now_ms)
    assert (view.nodes[0].health, view.nodes[0].reason) == (Health.DOWN, "Connection refused")
    play.tell(master(1000, quiet(A, 1000)))
    assert play.row().verdict is Verdict.OK
    assert [text for kind, text in play.events() if kind is EventKind.NODE] == [
        "answers: SYNC_MASTER trioha 0.1.0",
        "no longer answers: Connection refused",
        "answers again after 12 s",
    ]


def test_a_slow_node_is_late_and_its_replicas_become_stale():
    play = Play()
    play.tell(master(1000, quiet(A, 1000)))
    assert play.cluster.view(play.now_ms + 1500).nodes[0].health is Health.LATE
    assert play.cluster.view(play.now_ms + 1500).replicas[0].verdict is Verdict.OK
    assert play.cluster.view(play.now_ms + 3100).replicas[0].verdict is Verdict.STALE


def watched(max_offset, **client):
    """A trioha slave with the given status."""
    status = slave(max_offset)
    return evolve(status, client=evolve(status.client, **{"is_observer": False, **client}))


def test_a_trioha_slave_is_identified_by_its_local_address():
    play = Play(MASTER, SLAVE)
    first, second = "127.0.0.1:40001", "127.0.0.1:40002"
    told = master(1000, quiet(first, 1000), quiet(second, 1000))
    view = play.tell(told, watched(1000, local_address=second), for_s=3)
    assert [(row.address, row.node, row.label) for row in view.replicas] == [
        (first, None, first),
        (second, SLAVE, "broker-a #1"),
    ]
    assert view.replicas[1].flushed_offset == 1000
    key = view.replicas[1].key
    # Both reconnect at once: the slave that reports its local address keeps its row.
    play.tell(master(1000), watched(1000, local_address=None), for_s=1)
    told = master(1000, quiet("127.0.0.1:40011", 1000), quiet("127.0.0.1:40012", 1000))
    view = play.tell(told, watched(1000, local_address="127.0.0.1:40011"), for_s=3)
    assert [row.key for row in view.replicas if row.node == SLAVE] == [key]
    assert [row.address for row in view.replicas if row.node == SLAVE] == ["127.0.0.1:40011"]


def test_a_refused_slave_shows_its_own_complaint():
    play = Play(MASTER, SLAVE)
    complaint = "GAP: the master's log begins at 65536, asked was 1000"
    view = play.tell(master(100_000), watched(1000, state="READY", verdict=complaint), for_s=3)
    (row,) = view.replicas
    assert (row.node, row.master, row.verdict) == (SLAVE, MASTER, Verdict.GAP)
    assert (row.diff_bytes, row.is_connected) == (99_000, False)
    # It restarts and is listed: the same row.
    joined = watched(100_000, local_address="127.0.0.1:40001", state="TRANSFER", verdict="")
    view = play.tell(master(100_000, quiet("127.0.0.1:40001", 100_000)), joined, for_s=4)
    assert [(other.key, other.verdict, other.is_connected) for other in view.replicas] == [
        (row.key, Verdict.OK, True)
    ]


def old(address, *, role, max_offset, broker_id):
    """A RocketMQ 4.9 broker: it does not support 907."""
    return BrokerStatus(
        address=address, source="runtime-info", role=role, cluster_name="c", broker_name="broker-a",
        broker_id=broker_id, version="V4_9_7", min_offset=0, max_offset=max_offset, flushed_offset=None,
        ha_address=None, in_sync_slaves=None,
    )  # fmt: skip


def test_slaves_of_49_are_rows_by_their_own_status():
    play = Play(MASTER, SLAVE)
    for tick in range(50):
        offset = 50_000 + tick * 1000
        view = play.tell(
            old(MASTER, role="SYNC_MASTER", max_offset=offset, broker_id=0),
            old(SLAVE, role="SLAVE", max_offset=offset - 500, broker_id=1),
        )
    (row,) = view.replicas
    assert (row.node, row.master, row.label, row.verdict) == (SLAVE, MASTER, "broker-a #1", Verdict.OK)
    assert (row.diff_bytes, row.ack_offset, row.lag_s) == (500, 98_500, 0.0)
    assert view.nodes[0].source == "28"
    play.fail(SLAVE)
    play.tell(old(MASTER, role="SYNC_MASTER", max_offset=200_000, broker_id=0))
    play.fail(SLAVE, for_s=2)
    assert (play.row().verdict, play.row().is_connected) == (Verdict.SILENT, False)
    assert play.row().diff_bytes == 200_000 - 98_500


def test_a_change_of_role_and_a_shorter_log_are_events():
    play = Play()
    play.tell(master(1000))
    play.tell(evolve(slave(500), address=MASTER, broker_id=0))
    assert play.events()[1:] == [
        (EventKind.ROLE, "broker-a #0 SYNC_MASTER is now broker-a #0 SLAVE"),
        (EventKind.GAP, "its log ends at 500, before it ended at 1000"),
    ]


def test_failing_puts_are_events_when_they_begin_and_when_they_end():
    play = Play()
    play.tell(evolve(master(1000), put_statuses={"PUT_OK": 5}))
    for failed in range(1, 30):
        play.tell(evolve(master(1000), put_statuses={"PUT_OK": 5, "FLUSH_SLAVE_TIMEOUT": failed}))
    view = play.tell(evolve(master(1000), put_statuses={"PUT_OK": 9, "FLUSH_SLAVE_TIMEOUT": 29}), for_s=6)
    assert play.events()[1:] == [
        (EventKind.PUTS, "puts end with FLUSH_SLAVE_TIMEOUT"),
        (EventKind.PUTS, "no put has failed for 5.0 s; before: 29 FLUSH_SLAVE_TIMEOUT"),
    ]
    assert [(put.status, put.count) for put in view.nodes[0].log.puts] == [
        ("PUT_OK", 9),
        ("FLUSH_SLAVE_TIMEOUT", 29),
    ]


def test_disk_and_settings_are_shown_and_make_events():
    settings = BrokerSettings(
        gap_bytes_max=1000, slave_timeout_ms=500, file_bytes=4096, reserved_h=72, disk_percent_max=75
    )
    told = evolve(master(10_000), settings=settings, warnings=("inSyncReplicas=1 waits for one slave",))
    play = Play()
    play.tell(evolve(told, table=BrokerRuntimeInfo(disk_ratio=0.5)))
    view = play.tell(evolve(told, table=BrokerRuntimeInfo(disk_ratio=0.8, unflushed_bytes=100)))
    node = view.nodes[0]
    assert (node.limits.gap_bytes_max, node.limits.slave_timeout_s, node.limits.housekeeping_s) == (
        1000,
        0.5,
        20.0,
    )
    assert node.limits.are_reported
    assert (node.log.files, node.log.retention_s, node.log.disk_ratio_max) == (3, 259_200.0, 0.75)
    assert play.events()[1:] == [
        (EventKind.CONFIG, "inSyncReplicas=1 waits for one slave"),
        (EventKind.DISK, "disk 80% used, more than diskMaxUsedSpaceRatio: old files go early"),
    ]


def test_an_archive_is_shown_and_its_faults_are_events():
    told, archive = master(10_000), ArchiveStatus(url="s3://b/a", state="starting")
    waiting = evolve(archive, state="waiting", error="503 Slow Down", failures=1)
    running = evolve(archive, state="running", archived_offset=9_000, lag_bytes=1_000, lag_ms=2_500)
    fenced = evolve(running, state="fenced", error="another writer", files_deleted_unarchived=2)
    play = Play()
    play.tell(told)
    for one in (archive, waiting, evolve(waiting, failures=2), running, running, fenced):
        view = play.tell(evolve(told, archive=one))
    assert view.nodes[0].log.archive == ArchiveView(
        url="s3://b/a",
        state="fenced",
        error="another writer",
        archived_offset=9_000,
        lag_bytes=1_000,
        lag_s=2.5,
        files_deleted_unarchived=2,
    )
    assert play.events()[1:] == [
        (EventKind.DISK, "archive waiting: 503 Slow Down"),
        (EventKind.DISK, "archive running again"),
        (EventKind.DISK, "archive fenced: another writer"),
        (EventKind.DISK, "2 log files deleted before they were archived"),
    ]


def test_nodes_that_a_name_server_lists_come_and_stay_for_a_while_when_they_die():
    play = Play()
    play.cluster.want([MASTER, SLAVE], at_ms=play.now_ms)
    play.tell(master(1000), slave(1000))
    play.cluster.want([MASTER], at_ms=play.now_ms)
    play.fail(SLAVE)
    assert play.cluster.addresses == (MASTER, SLAVE)
    play.now_ms += LOST_KEPT_MS
    play.cluster.want([MASTER], at_ms=play.now_ms)
    assert play.cluster.addresses == (MASTER,)
    play.cluster.observe(Sample(SLAVE, play.now_ms, slave(1000)))
    texts = [text for kind, text in play.events() if kind is EventKind.NODE and "listed" in text]
    assert texts == ["no longer listed by the name server"]


def test_a_node_that_invents_names_and_connections_for_ever_is_kept_bounded():
    play = Play()
    for number in range(200):
        names = {f"S{number}_{n}": number for n in range(100)}
        listed = [quiet(f"10.{number}.0.{n}:1", 1000) for n in range(300)]
        told = evolve(master(1000, *listed), put_statuses=names, ended_connections=names)
        view = play.tell(told)
    (node,) = play.cluster._nodes.values()
    assert len(node.put_rates) <= 40
    assert len(view.nodes[0].log.puts) <= 40
    assert len(view.replicas) == len(node.rows) <= 2 * CONNECTIONS_MAX
    assert (view.nodes[0].connected_replicas, view.nodes[0].hidden_replicas) == (300, 44)
    assert len(view.events) <= EVENTS_MAX


def test_a_fault_in_the_view_of_one_node_affects_no_other_node():
    boundary = ErrorBoundary("monitor feed")
    play = Play(MASTER, SLAVE)
    play.cluster = Cluster((MASTER, SLAVE), boundary=boundary)
    play.tell(master(1000, quiet(A, 1000)), slave(1000))
    broken = play.cluster._nodes[MASTER]
    broken.rows[0].lag_bytes = None
    with capture_logs() as logged:
        views = [play.cluster.view(play.now_ms) for _ in range(3)]
    assert [node.health for node in views[0].nodes] == [Health.DOWN, Health.UP]
    assert views[0].nodes[0].reason.startswith("a fault of this monitor: AttributeError")
    assert views[0].replicas == ()
    assert (boundary.bugs, len(logged)) == (1, 1)
    view = play.tell(master(2000, quiet(A, 2000)), slave(2000))
    assert [node.health for node in view.nodes] == [Health.UP, Health.UP]
    assert [row.address for row in view.replicas] == [A]


def test_a_connection_without_a_request_has_no_row_and_no_event():
    play = Play()
    probe = connection("10.0.0.1:50000", sent=-1, ack=-1, lag=1000, state="HANDSHAKE", in_sync=False)
    play.tell(master(1000, quiet(A, 1000)), for_s=1)
    key = play.row().key
    # A health check from the host of a lost slave is not the slave.
    for number in range(30):
        play.tell(master(1000, evolve(probe, address=f"10.0.0.1:{50000 + number}")))
        play.tell(master(1000))
    assert (play.row().key, play.row().is_connected, play.row().reconnects) == (key, False, 0)
    view = play.tell(master(1000, probe, evolve(probe, address="10.0.0.7:1", state=None)))
    assert (view.nodes[0].waiting_probes, view.nodes[0].connected_replicas) == (2, 0)
    back = quiet("10.0.0.1:50001", 1000)
    play.tell(master(1000, back, probe), for_s=1)
    assert (play.row().key, play.row().reconnects, play.row().address) == (key, 1, "10.0.0.1:50001")
    kinds = [kind for kind, _ in play.events()]
    assert kinds == [EventKind.NODE, EventKind.CONNECT, EventKind.LOST, EventKind.CONNECT]


def test_a_probe_each_second_for_an_hour_is_one_line():
    play = Play()
    for second in range(3600):
        probe = connection(f"10.0.0.7:{20_000 + second}", sent=-1, ack=-1, lag=0, state="HANDSHAKE")
        told = evolve(
            master(1000 + second, quiet(A, 1000 + second), *([probe] if second % 2 else [])),
            probes={"10.0.0.7": {"EOF": second}} if second else {},
            ended_connections={"EOF": second},
        )
        play.now_ms += 900
        view = play.tell(told)
    assert (play.row().reconnects, play.row().address) == (0, A)
    (node,) = view.nodes
    assert [(probe.host, probe.reason, probe.count) for probe in node.probes] == [("10.0.0.7", "EOF", 3599)]
    assert (node.connected_replicas, node.waiting_probes) == (1, 1)
    assert [kind for kind, _ in play.events()] == [EventKind.NODE, EventKind.CONNECT]


def test_two_slaves_of_one_host_that_reconnect_at_once_get_new_rows():
    play = Play()
    first, second = "10.0.0.1:40001", "10.0.0.1:40002"
    view = play.tell(master(1000, quiet(first, 1000), quiet(second, 900)), for_s=1)
    keys = {row.key for row in view.replicas}
    play.tell(master(1000), for_s=1)
    back = [quiet("10.0.0.1:40011", 1000), quiet("10.0.0.1:40012", 900)]
    view = play.tell(master(1000, *back), for_s=1)
    assert keys.isdisjoint(row.key for row in view.replicas)
    assert [(row.is_connected, row.reconnects) for row in view.replicas] == [(True, 1)] * 2
    assert play.events()[-1][1] == "connected: one of the 2 of its host that were lost is back"


def test_more_nodes_than_can_be_watched_are_counted():
    play = Play(MASTER)
    play.cluster.want(
        [MASTER, *(f"10.1.{n // 200}.{n % 200}:1" for n in range(2 * NODES_MAX))], at_ms=play.now_ms
    )
    assert len(play.cluster.addresses) == NODES_MAX
    assert play.events()[-1] == (
        EventKind.NODE,
        f"{NODES_MAX + 1} nodes that the name server lists are not watched: {NODES_MAX} are the most",
    )
    # A node that never answered is dropped when it is no longer listed.
    play.cluster.want([MASTER, "10.2.0.1:1"], at_ms=play.now_ms)
    play.cluster.want([MASTER, "10.2.0.1:1"], at_ms=play.now_ms)
    assert play.cluster.addresses == (MASTER, "10.2.0.1:1")


statuses = st.builds(
    lambda max_offset, hosts, role, local: evolve(
        master(
            max_offset,
            *[
                connection(
                    f"10.0.0.{host}:{port}",
                    sent=ack,
                    ack=ack,
                    lag=max_offset - ack,
                    state=state,
                    in_sync=sync,
                )
                for host, port, ack, state, sync in hosts
            ],
        ),
        role=role,
        client=watched(max_offset, local_address=local).client if role == "SLAVE" else None,
    ),
    st.integers(0, 10**6),
    st.lists(
        st.tuples(
            st.integers(1, 2),
            st.integers(1, 3),
            st.integers(-1, 2 * 10**6),
            st.sampled_from([None, "TRANSFER", "HANDSHAKE"]),
            st.booleans(),
        ),
        max_size=4,
    ),
    st.sampled_from(["SYNC_MASTER", "SLAVE", "UNKNOWN"]),
    st.none() | st.sampled_from(["10.0.0.1:1", "10.0.0.2:2"]),
)


@given(
    st.lists(
        st.tuples(st.sampled_from([MASTER, SLAVE]), st.integers(-100, 60_000), st.none() | statuses),
        max_size=40,
    )
)
def test_views_are_consistent_for_any_answers(samples):
    play = Play(MASTER, SLAVE)
    for address, step_ms, status in samples:
        play.now_ms += max(step_ms, 0)
        at_ms = play.now_ms + min(step_ms, 0)
        if status is None:
            play.cluster.observe(Sample(address, at_ms, fault="gone"))
        else:
            play.cluster.observe(Sample(address, at_ms, evolve(status, address=address)))
        view = play.cluster.view(play.now_ms)
        keys = [row.key for row in view.replicas]
        assert len(keys) == len(set(keys))
        given_nodes = [row.node for row in view.replicas if row.node is not None and row.is_connected]
        assert len(given_nodes) == len(set(given_nodes))
        for row in view.replicas:
            ages = (row.for_s, row.age_s, row.lag_s, row.eta_s, row.sent_bytes_per_s, row.ack_bytes_per_s)
            assert all(age is None or age >= 0 for age in ages)
        times = [event.time_ms for event in view.events]
        assert times == sorted(times)
