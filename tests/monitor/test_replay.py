"""Replays of recorded sessions: the exact view of a moment, after any other moments."""

import random
import shutil
import sys

import numpy as np
import pytest
import trio
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from tests.levels import by_level
from tests.sessions.sessions import WALL_NS, Event, MasterModel, slave_events, write_session
from trioha.errors import StoreError
from trioha.recording.events import CloseReason, Direction, HaState, Kind, LinkEvent, PutStatus
from trioha.recording.reader import open_session
from trioha.replica_verdict import Verdict
from trioha.severity import Severity
from trioha_analysis.packing import pack_segment, sealed_segments
from trioha_monitor.replay import event_log as event_log_module
from trioha_monitor.replay import open_replay
from trioha_monitor.replay.replay_timeline import ReplayTimeline
from trioha_monitor.replay.search import SeekError
from trioha_monitor.replay.sessions import SessionReplay
from trioha_monitor.series import Series
from trioha_monitor.view import EventKind, Health
from trioha_sessions.records import read_records
from trioha_sessions.session_reader import SessionReader

S = 10**9
MS = 10**6


def opened(*paths, chunk_records=16, work=True):
    timeline = ReplayTimeline(
        [SessionReader(open_session(path), chunk_records=chunk_records) for path in paths]
    )
    source = SessionReplay(timeline, clock_s=lambda: 0.0)
    if work:
        finish(source)
    return source


def finish(source):
    while source.work(for_s=1.0):
        pass


def connect(at_ns, conn, start, top):
    return [
        Event(at_ns, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.HANDSHAKE),
        Event(at_ns, Kind.REQUESTED, conn=conn, offset=start, aux=top),
        Event(at_ns, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.TRANSFER),
        Event(at_ns, Kind.ACK, conn=conn, offset=start, aux=top),
    ]


def master_events():
    """A slave in sync that is lost at 20 s and reconnects at 22 s; one that hangs from 10 s on."""
    events = [
        Event(0, Kind.PUT, offset=1000, size=1000),
        *connect(0, 1, 1000, 1000),
        *connect(0, 2, 1000, 1000),
    ]
    top = 1000
    for second in range(1, 31):
        at_ns, start, top = second * S, top, top + 100
        events.append(Event(at_ns, Kind.PUT, offset=top, size=100, aux=second))
        events.append(Event(at_ns, Kind.WAIT_BEGIN, offset=top, aux=second, size=2))
        if second == 20:
            events.append(
                Event(at_ns, Kind.CLOSED, conn=1, offset=start, aux=top, flags=CloseReason.HOUSEKEEPING)
            )
            events.append(Event(at_ns, Kind.STATE, conn=1, offset=start, aux=top, flags=HaState.SHUTDOWN))
        if second == 22:
            events += connect(at_ns, 3, start, top)
        conn = 1 if second < 20 else 3
        if second < 20 or second >= 22:
            events.append(Event(at_ns, Kind.TRANSFER, conn=conn, offset=start, aux=top, size=100))
            events.append(Event(at_ns + 5 * MS, Kind.ACK, conn=conn, offset=top, aux=top))
        if second <= 10:
            events.append(Event(at_ns + 6 * MS, Kind.TRANSFER, conn=2, offset=start, aux=top, size=100))
            if second < 10:
                events.append(Event(at_ns + 7 * MS, Kind.ACK, conn=2, offset=top, aux=top))
        status = PutStatus.FLUSH_SLAVE_TIMEOUT if second in {20, 21} else PutStatus.PUT_OK
        events.append(Event(at_ns + 8 * MS, Kind.WAIT_END, offset=top, aux=second, size=8000, flags=status))
    return events


ADDRESSES = {1: "10.0.0.1:40001", 2: "10.0.0.2:40002", 3: "10.0.0.1:40003"}


def write_master(path, **options):
    """`master_events`; the fact of each connection is at its start."""
    write_session(path, master_events(), **options)
    array = read_records(open_session(path)).array
    lines = [
        f'{{"seq": {int(array["seq"][array["conn"] == conn][0])}, "type": "connection", "conn": {conn}, '
        f'"address": "{address}", "role": "master"}}\n'
        for conn, address in ADDRESSES.items()
    ]
    (path / "facts.jsonl").write_text("".join(lines))
    return path


@pytest.fixture
def master(tmp_path):
    return opened(write_master(tmp_path / "20260922T000000.000Z-broker-a-0", segment_records=60))


def by_host(view):
    return {replica.address.partition(":")[0]: replica for replica in view.replicas}


def test_a_moment_shows_offsets_lag_rates_and_verdict(master):
    view = master.view_at(WALL_NS + 15 * S + 500 * MS)
    good, stalled = by_host(view)["10.0.0.1"], by_host(view)["10.0.0.2"]
    assert (good.sent_offset, good.ack_offset, good.diff_bytes, good.lag_s) == (2500, 2500, 0, 0.0)
    assert (good.verdict, good.state, good.is_connected, good.in_sync) == (Verdict.OK, "TRANSFER", True, True)
    assert (good.sent_bytes_per_s, good.ack_bytes_per_s, good.eta_s) == (100.0, 100.0, 0.0)
    assert (good.ack_latency_ms.p50, good.ack_latency_ms.largest) == (pytest.approx(5, rel=0.001), 5.0)
    # The byte at 1900 was put at 10 s; its frame was sent and never acknowledged.
    assert (stalled.sent_offset, stalled.ack_offset, stalled.diff_bytes) == (2000, 1900, 600)
    assert (stalled.lag_s, stalled.verdict, stalled.is_closing) == (5.5, Verdict.STALLED, False)
    (node,) = view.nodes
    assert (node.label, node.health, node.role, node.source) == (
        "broker-a #0",
        Health.UP,
        "SYNC_MASTER",
        "session",
    )
    assert (node.connected_replicas, node.in_sync_replicas) == (2, 2)
    assert (node.log.max_offset, node.log.append_bytes_per_s, node.log.put_messages_per_s) == (
        2500,
        100.0,
        1.0,
    )
    assert [(rate.status, rate.count) for rate in node.log.puts] == [("PUT_OK", 16)]
    assert view.time_ms == WALL_NS // MS + 15_500
    assert not view.is_live


@pytest.mark.parametrize(("settings_", "silence_s"), [({}, 15), ({"haMaxTimeSlaveNotCatchup": 7_000}, 7)])
def test_a_slave_without_an_ack_for_too_long_is_not_in_sync_as_at_its_master(tmp_path, settings_, silence_s):
    path = write_session(
        tmp_path / "master", master_events(), addresses={2: "10.0.0.2:4"}, settings=settings_
    )
    source = opened(path)
    # The byte at 1900 was put at 10 s, and is never acknowledged.
    owed_ns = WALL_NS + 10 * S
    for after_ns, in_sync in ((silence_s * S - MS, True), (silence_s * S, False)):
        stalled = by_host(source.view_at(owed_ns + after_ns))["10.0.0.2"]
        assert stalled.in_sync is in_sync


def test_a_slave_that_is_lost_and_reconnects_is_one_row(master):
    before, lost, back = (
        by_host(master.view_at(WALL_NS + at_ns))["10.0.0.1"] for at_ns in (19 * S, 21 * S, 25 * S)
    )
    assert (lost.verdict, lost.is_connected, lost.state, lost.for_s) == (Verdict.SILENT, False, "", 1.0)
    # It lacks the puts since its last ack, at 19.005 s.
    assert (lost.ack_offset, lost.diff_bytes, lost.lag_s) == (2900, 200, 1.0)
    assert (back.address, back.is_connected, back.reconnects, back.for_s) == ("10.0.0.1:40003", True, 1, 3.0)
    assert before.key == lost.key == back.key
    assert master.view_at(WALL_NS + 30 * S).nodes[0].ended_connections == {"HOUSEKEEPING": 1}


def test_the_timeline_has_the_events_up_to_the_moment(master):
    events = master.view_at(WALL_NS + 40 * S).events
    assert [(event.kind, event.replica, event.time_ms - WALL_NS // MS) for event in events] == [
        (EventKind.NODE, "", 0),
        (EventKind.CONNECT, "10.0.0.1:40001", 0),
        (EventKind.CONNECT, "10.0.0.2:40002", 0),
        (EventKind.LOST, "10.0.0.1:40001", 20_000),
        (EventKind.PUTS, "", 20_008),
        (EventKind.CONNECT, "10.0.0.1:40003", 22_000),
        (EventKind.PUTS, "", 22_008),
    ]
    assert [event.number for event in events] == list(range(1, 8))
    assert events[3].text == (
        "connection ended (HOUSEKEEPING: nothing was received for haHousekeepingInterval)"
        "; ack 2900, 100 B behind"
    )
    assert master.view_at(WALL_NS + 20 * S).events == events[:4]
    ticks = master.state().ticks
    assert [(tick.time_ms, tick.severity) for tick in ticks] == [
        (event.time_ms, event.severity) for event in events
    ]
    assert master.state().ticks is ticks


@given(seed=st.integers(0, 2**32))
def test_a_moment_is_the_same_after_any_other_moments(tmp_path_factory, seed):
    lot = random.Random(seed)
    path = write_session(
        tmp_path_factory.mktemp("replay") / "s",
        MasterModel(seed).run(120),
        segment_records=lot.choice((30, 50)),
        addresses={conn: f"10.0.0.{lot.randrange(3)}:{conn}" for conn in range(1, 40)},
    )
    knows_all, fresh = opened(path), opened(path, work=False)
    position = fresh.position
    for _ in range(4):
        at_ns = lot.randrange(position.start_ns, position.end_ns + 2)
        expected = knows_all.view_at(at_ns)
        assert plain(fresh.view_at(at_ns)) == plain(expected)
        assert plain(opened(path, work=False).view_at(at_ns)) == plain(expected)
        for replica in expected.replicas:
            if replica.ack_offset is not None:
                assert replica.diff_bytes == replica.master_offset - replica.ack_offset


def plain(view):
    """A view without figures of the overview."""
    return evolve(
        view,
        events=(),
        nodes=tuple(
            evolve(node, log=evolve(node.log, puts=(), append_history=Series()), ended_connections={})
            for node in view.nodes
        ),
        replicas=tuple(evolve(one, lag_history=Series(), lag_s_history=Series()) for one in view.replicas),
    )


def slow_events(seed, *, steps):
    """Events over many buckets; without requests, so that no slave compares its tail."""
    return [
        evolve(event, ts_ns=event.ts_ns * 500)
        for event in MasterModel(seed).run(steps)
        if event.kind != Kind.REQUESTED
    ]


@pytest.mark.full
@given(seed=st.integers(0, 2**32))
def test_lag_under_the_axis_is_the_worst_of_every_moment(tmp_path_factory, seed):
    events = slow_events(seed, steps=200)
    path = write_session(tmp_path_factory.mktemp("replay") / "s", events, segment_records=70)
    source = opened(path)
    position = source.position
    bucket_ns = source._overview.bucket_ms * MS
    first, last = position.start_ns // bucket_ns, position.end_ns // bucket_ns
    worst_of = {}
    known = set()
    closed_at = {}
    ack = {}
    acks = {}

    def note(conn, bucket, value):
        worst = worst_of.setdefault(conn, {})
        worst[bucket] = max(worst.get(bucket, -1), value)

    at, own_max = first, -1
    for event in events:
        bucket = (WALL_NS + event.ts_ns) // bucket_ns
        while at < bucket:
            at += 1
            for conn in known:
                note(conn, at, own_max - ack[conn])
        if event.kind == Kind.PUT:
            own_max = event.offset
            for conn in known:
                note(conn, bucket, own_max - ack[conn])
        elif event.conn >= 0:
            own_max = event.aux
        if event.conn < 0 or (event.kind == Kind.STATE and event.flags == HaState.SHUTDOWN):
            continue
        if event.conn in ack:
            note(event.conn, bucket, event.aux - ack[event.conn])
        if event.kind == Kind.ACK:
            ack[event.conn] = event.offset
            acks.setdefault(event.conn, set()).add(event.offset)
        if event.conn in ack:
            note(event.conn, bucket, event.aux - ack[event.conn])
            known.add(event.conn)
        if event.kind == Kind.CLOSED:
            # The slave is not back, and lags on.
            closed_at[event.conn] = bucket
    worst = {}
    for conn, of_conn in worst_of.items():
        lasted_ns = (closed_at.get(conn, max(of_conn)) - min(of_conn) + 1) * bucket_ns
        if len(acks[conn]) == 1 and lasted_ns > 30 * S:
            # That long without another ack is an observer.
            continue
        for bucket, value in of_conn.items():
            worst[bucket] = max(worst.get(bucket, -1), value)
    lag = source.state().lag
    found = {lag.first + at: int(one.value) for at, one in enumerate(lag.buckets) if one is not None}
    assert found == {bucket: value for bucket, value in worst.items() if bucket <= last}


@pytest.mark.full
@given(seed=st.integers(0, 2**32), chunk_records=st.sampled_from((16, 4096)))
def test_the_age_in_a_bucket_is_the_greatest_of_its_moments(tmp_path_factory, seed, chunk_records):
    events = slow_events(seed, steps=150)
    path = write_session(tmp_path_factory.mktemp("replay") / "s", events, segment_records=4096)
    source = opened(path, chunk_records=chunk_records)
    overview, (run,) = source._overview, source._timeline.runs
    bucket_ns = overview.bucket_ms * MS
    expected = {}
    ack = {}
    grown = []

    def note(conn, at_ns):
        """The moment just before `at_ns`."""
        passed = next((ts_ns for ts_ns, end in grown if end > ack[conn]), at_ns)
        worst = expected.setdefault(conn, {})
        bucket = at_ns // bucket_ns - (at_ns % bucket_ns == 0)
        worst[bucket] = max(worst.get(bucket, 0), at_ns - passed)

    now_ns = WALL_NS
    for event in events:
        at_ns = WALL_NS + event.ts_ns
        for edge_ns in range((now_ns // bucket_ns + 1) * bucket_ns, at_ns + 1, bucket_ns):
            for conn in ack:
                note(conn, edge_ns)
        if event.conn in ack and at_ns % bucket_ns:
            note(event.conn, at_ns)
        now_ns = at_ns
        if event.kind == Kind.PUT or event.conn >= 0:
            grown.append((at_ns, event.offset if event.kind == Kind.PUT else event.aux))
        if event.kind == Kind.ACK:
            # It stays when the connection ends: the slave is not back.
            ack[event.conn] = event.offset
    end_ns = source.position.end_ns
    rows = {row.present.conn: row for row in overview.replicas()}
    for conn, worst in expected.items():
        series = overview.age_series(rows[conn], at_ns=end_ns, now_s=None, limits=run.limits)
        for number, bucket in enumerate(series.buckets, start=series.first):
            found_ns = 0 if bucket is None else round(bucket.value * S)
            exact_ns = worst.get(number, 0)
            # For older bytes only the bucket is known.
            slack_ns = 0 if chunk_records == 4096 else bucket_ns
            assert exact_ns - 1 <= found_ns <= exact_ns + slack_ns + 1, (conn, number)


def test_graphs_of_a_replay_have_a_past(master):
    at_ns = WALL_NS + 15 * S + 500 * MS
    view = master.view_at(at_ns)
    stalled = by_host(view)["10.0.0.2"]
    history = stalled.lag_s_history
    assert (history.current.value, stalled.lag_s) == (5.5, 5.5)
    worst = history.worst(end_ms=at_ns // MS - 2000, span_ms=500)
    assert 3.4 < worst.value <= 3.6
    assert worst.severity is Severity.WARNING
    rate = view.nodes[0].log.append_history.worst(end_ms=at_ns // MS, span_ms=10_000)
    # A hundred bytes in one bucket each second.
    assert rate.value == 100 * 1000 / view.nodes[0].log.append_history.bucket_ms
    # Graphs end at the moment.
    lag = stalled.lag_history
    assert (lag.current.value, lag.first + len(lag.finished)) == (600, at_ns // MS // lag.bucket_ms)
    puts = master.view_at(WALL_NS + 22 * S).nodes[0].log.puts
    assert [(put.status, put.count, put.per_s) for put in puts] == [
        ("PUT_OK", 20, 0.0),
        ("FLUSH_SLAVE_TIMEOUT", 2, 1.0),
    ]


def test_the_overview_is_read_in_slices_and_reports_its_share(tmp_path):
    source = opened(write_master(tmp_path / "s"), work=False)
    shares = [source.overview_share]
    while source.work(for_s=0.0):
        shares.append(source.overview_share)
    assert len(shares) > 8
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert source.overview_share == 1.0
    worst = source.state().lag.worst(end_ms=source.state().end_ms, span_ms=60_000)
    # The slave that hangs acknowledged 1900 last, and the log ends at 4000.
    assert worst.value == 2100


def test_an_observer_hides_no_lag_under_the_time_axis(tmp_path):
    events = [
        Event(0, Kind.PUT, offset=1000, size=1000),
        *connect(0, 1, 1000, 1000),
        *connect(0, 2, 1000, 1000),
    ]
    for second in range(1, 41):
        top = 1000 + second * 100
        at_ns = second * S
        events.append(Event(at_ns, Kind.PUT, offset=top, size=100))
        for conn in (1, 2):
            start = top - 100
            events.append(Event(at_ns, Kind.TRANSFER, conn=conn, offset=start, aux=top, size=100))
        events.append(Event(at_ns + 5 * MS, Kind.ACK, conn=1, offset=top, aux=top))
        # Its heartbeats show where it began.
        heartbeat = Event(at_ns + 6 * MS, Kind.HEARTBEAT, 2, 1000, top, flags=Direction.RECEIVED)
        events.append(heartbeat)
    source = opened(write_session(tmp_path / "s", events))
    end_ms = source.state().end_ms
    worst = source.state().lag.worst(end_ms=end_ms, span_ms=60_000)
    assert worst.value == 100
    # Its own graph has it.
    source.player.jump(source.position.end_ns)
    observer = next(one for one in source.view().replicas if one.ack_offset == 1000)
    assert observer.verdict is Verdict.OBSERVER
    node = source.view().nodes[0]
    assert (node.connected_replicas, node.observers, node.in_sync_replicas) == (2, 1, 1)
    own = observer.lag_history.worst(end_ms=end_ms, span_ms=60_000)
    assert own.value == 4000


def test_master_and_slave_sessions_are_one_row(tmp_path):
    path = write_session(
        tmp_path / "m",
        [
            Event(0, Kind.PUT, offset=1300, size=1300),
            *connect(30, 5, 1000, 1300),
            Event(40, Kind.TRANSFER, conn=5, offset=1000, aux=1300, size=300),
            Event(60, Kind.ACK, conn=5, offset=1300, aux=1300),
        ],
        addresses={5: "10.0.0.7:41234"},
    )
    slave = write_session(
        tmp_path / "s",
        [Event(5, Kind.FLUSHED, offset=900), *slave_events()[:8], Event(85, Kind.DISPATCHED, offset=1200)],
        role="SLAVE",
        broker_id=1,
        addresses={1: "10.0.0.1:10912"},
    )
    (early,) = opened(path).view_at(WALL_NS + 50).replicas
    assert (early.is_rejoining, early.why.partition(":")[0], early.diff_bytes) == (True, "rejoining", 300)
    source = opened(path, slave)
    view = source.view_at(WALL_NS + 100)
    (replica,) = view.replicas
    assert (replica.is_rejoining, replica.why) == (False, "")
    assert (replica.address, replica.node, replica.label) == ("10.0.0.7:41234", "broker-a #1", "broker-a #1")
    assert (replica.ack_offset, replica.flushed_offset, replica.dispatched_offset) == (1300, 900, 1200)
    assert [node.label for node in view.nodes] == ["broker-a #0", "broker-a #1"]
    side = view.nodes[1].slave
    assert (side.state, side.reported_offset, side.master_address) == ("TRANSFER", 1300, "10.0.0.1:10912")


@pytest.mark.parametrize("ahead_ns", [0, 7 * S, -300 * MS])
def test_a_slave_whose_clock_is_wrong_is_shown_by_its_masters(tmp_path, ahead_ns):
    path = write_session(
        tmp_path / "m",
        [
            Event(0, Kind.PUT, offset=1000, size=1000),
            *connect(2 * S, 5, 1000, 1000),
            Event(3 * S, Kind.PUT, offset=1300, size=300),
            Event(3 * S, Kind.TRANSFER, conn=5, offset=1000, aux=1300, size=300),
            Event(3 * S + 4 * MS, Kind.ACK, conn=5, offset=1300, aux=1300),
        ],
        addresses={5: "10.0.0.7:41234"},
    )
    at_slave = [
        Event(2 * S - MS, Kind.LINK, conn=1, flags=LinkEvent.CONNECTED),
        Event(2 * S - MS, Kind.STATE, conn=1, offset=1000, aux=1000, flags=HaState.TRANSFER),
        Event(2 * S - MS, Kind.REPORTED, conn=1, offset=1000, aux=1000),
        Event(3 * S + MS, Kind.RECEIVED, conn=1, offset=1000, aux=1300, size=300),
        Event(3 * S + 3 * MS, Kind.REPORTED, conn=1, offset=1300, aux=1300),
        Event(3 * S + 5 * MS, Kind.FLUSHED, offset=1300),
    ]
    slave = write_session(
        tmp_path / "s",
        [evolve(event, ts_ns=event.ts_ns + ahead_ns) for event in at_slave],
        role="SLAVE",
        broker_id=1,
        addresses={1: "10.0.0.1:10912"},
    )
    source = opened(path, slave)
    view = source.view_at(WALL_NS + 3 * S + 2 * MS)
    (replica,) = view.replicas
    assert (replica.node, replica.ack_offset, replica.flushed_offset) == ("broker-a #1", 1000, None)
    side = view.nodes[1].slave
    assert side.reported_offset == 1000
    (replica,) = source.view_at(WALL_NS + 3 * S + 5 * MS).replicas
    assert (replica.ack_offset, replica.flushed_offset) == (1300, 1300)
    clocks = [event.text for event in view.events if event.kind is EventKind.CLOCK]
    way = {0: [], 7 * S: ["7.0 s ahead of"], -300 * MS: ["0.3 s behind"]}[ahead_ns]
    assert clocks == [f"its clock was {words} that of broker-a #0, by which it is shown" for words in way]


def test_a_slaves_session_alone_is_a_row_with_its_complaint(tmp_path):
    events = slave_events()[:8]
    events.append(Event(90, Kind.CLOSED, conn=1, offset=1300, aux=1300, flags=CloseReason.DIVERGED))
    events.append(Event(91, Kind.STATE, conn=1, offset=1300, aux=1300, flags=HaState.READY))
    path = write_session(tmp_path / "s", events, role="SLAVE", broker_id=1, addresses={1: "10.0.0.1:10912"})
    source = opened(path)
    (replica,) = source.view_at(WALL_NS + 85).replicas
    assert (replica.verdict, replica.master, replica.ack_offset) == (Verdict.OK, "10.0.0.1:10912", 1300)
    (replica,) = source.view_at(WALL_NS + 91).replicas
    assert (replica.verdict, replica.is_connected) == (Verdict.DIVERGED, False)
    assert EventKind.GAP in {event.kind for event in source.view_at(WALL_NS + 91).events}


def test_several_starts_of_a_node_follow_each_other(tmp_path):
    write_session(tmp_path / "a", [Event(0, Kind.PUT, offset=10, size=10)])
    second = write_session(tmp_path / "b", [Event(0, Kind.PUT, offset=30, size=20)])
    document = (second / "session.json").read_text()
    (second / "session.json").write_text(document.replace(str(WALL_NS), str(WALL_NS + 60 * S)))
    source = open_replay([tmp_path])
    finish(source)
    (node,) = source.view_at(WALL_NS + 30 * S).nodes
    assert (node.health, node.log.max_offset) == (Health.DOWN, 10)
    assert node.reason == "its recording breaks off here: killed, and started again later"
    (node,) = source.view_at(WALL_NS + 60 * S).nodes
    assert (node.health, node.log.max_offset) == (Health.UP, 30)
    (node,) = source.view_at(WALL_NS - 1).nodes
    assert (node.health, node.reason) == (Health.CONNECTING, "its recording begins later")
    texts = [event.text for event in source.view_at(WALL_NS + 60 * S).events]
    assert texts == [
        "its recording begins (a)",
        "its recording breaks off: killed, or cut off from its disk",
        "started again: recording 2 begins (b)",
    ]
    assert source.names == ("a", "b")


def test_damage_is_an_event_and_the_replay_goes_on(tmp_path):
    path = write_master(tmp_path / "s", segment_records=60)
    segments = sorted((path / "events").iterdir())
    segments[1].unlink()
    segments[-1].write_bytes(segments[-1].read_bytes()[:-7])
    source = opened(path)
    for second in range(31):
        source.view_at(WALL_NS + second * S)
    marks = [event for event in source.view_at(WALL_NS + 40 * S).events if event.kind is EventKind.MARK]
    assert len(marks) == 1
    assert "are missing" in marks[0].text
    assert source.damage


def test_searches_go_to_events_and_to_where_lag_crosses(master):
    start_ns = master.position.start_ns

    def after_ms():
        finish(master)
        return (master.position.at_ns - start_ns) // MS

    master.player.jump(start_ns + S)
    master.seek_event(1)
    assert after_ms() == 20_000
    master.run_until("event connect")
    assert after_ms() == 22_000
    master.seek_event(-1)
    assert after_ms() == 20_008
    master.run_until("event puts")
    assert after_ms() == 22_008
    master.seek_event(1)
    assert after_ms() == 22_008
    assert master.notice == "not found: the next event"
    master.run_until("begin")
    master.run_until("lag > 100 of 10.0.0.2")
    # The slave that hangs has no record: the second put that it lacks crosses the limit.
    assert after_ms() == 11_000
    master.run_until("lag <= 0 of 10.0.0.1")
    assert after_ms() == 11_005
    master.run_until("lag >= 2000")
    assert after_ms() == 29_000
    master.player.turn()
    master.run_until("lag <= 0 of 10.0.0.1")
    assert after_ms() == 28_005
    master.run_until("50%")
    assert after_ms() == 15_004
    with pytest.raises(SeekError):
        master.run_until("nowhere")
    master.player.turn()
    master.run_until("begin")
    # In seconds: the slave that hangs lacks the put at 10 s.
    master.run_until("lag > 3s")
    assert after_ms() == 13_100
    master.run_until("lag >= 5000ms of 10.0.0.2")
    assert after_ms() == 15_000
    # Away since 20 s, and back at 22 s.
    master.run_until("lag > 1s of 10.0.0.1")
    assert after_ms() == 21_100
    master.run_until("lag > 2s of 10.0.0.1")
    assert after_ms() == 21_100
    assert master.notice == "not found: lag > 2s of 10.0.0.1"
    master.run_until("begin")
    master.run_until("lag > 150 of 10.0.0.1")
    assert after_ms() == 21_000
    # Its next connection goes on with less.
    master.run_until("lag > 50 of 10.0.0.1")
    assert after_ms() == 23_000
    master.run_until("50%")
    master.player.turn()
    master.run_until("lag > 4s")
    assert after_ms() == 14_100


def test_a_session_that_grows_is_followed_to_its_end(tmp_path):
    whole = write_master(tmp_path / "whole")
    (segment,) = (whole / "events").iterdir()
    data = segment.read_bytes()
    segment.write_bytes(data[: 64 + 48 * 50])
    source = opened(whole)
    at_ns = source.position.end_ns
    source.player.jump(at_ns)
    segment.write_bytes(data)
    source.check_growth()
    finish(source)
    assert source.position.at_ns == source.position.end_ns == WALL_NS + 30 * S + 8 * MS
    fresh = opened(whole)
    fresh.player.jump(source.position.at_ns)
    assert source.state() == fresh.state()
    assert plain(source.view()) == plain(fresh.view_at(source.position.at_ns))
    assert source.view().events == fresh.view_at(source.position.at_ns).events


def test_a_replay_is_steered_by_its_playback(master):
    playback = master
    start_ms = playback.state().start_ms
    assert (playback.state().time_ms, playback.state().end_ms - start_ms) == (start_ms, 30_008)
    playback.seek(start_ms + 5_000)
    assert playback.state().time_ms == start_ms + 5_000
    # Records of that millisecond are shown.
    assert by_host(master.view())["10.0.0.2"].diff_bytes == 100
    playback.step(2)
    playback.step(-1)
    assert playback.state().time_ms == start_ms + 5_100
    playback.change_speed(1)
    playback.turn()
    playback.toggle()
    state = playback.state()
    assert (state.speed, state.is_backward, state.is_playing) == (2.0, True, True)
    playback.toggle()
    playback.turn()
    playback.seek_event(1)
    assert playback.state().goal == "the next event"
    finish(master)
    assert (playback.state().time_ms, playback.state().goal) == (start_ms + 20_000, "")
    playback.run_until("event gap")
    finish(master)
    assert playback.state().note == "not found: event gap"
    playback.seek(0)
    assert (playback.state().time_ms, playback.state().note) == (start_ms, "")


async def test_the_feed_shows_views_while_playing_and_none_while_paused(tmp_path, autojump_clock):
    timeline = ReplayTimeline([SessionReader(open_session(write_master(tmp_path / "s")))])
    source = SessionReplay(timeline, clock_s=trio.current_time)
    views = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source, views.append)
        await trio.sleep(2)
        snapshot = len(views)
        assert 1 <= snapshot <= 3
        source.player.change_speed(3)
        source.player.play()
        await trio.sleep(2)
        assert views[-1].time_ms == pytest.approx(WALL_NS // MS + 16_000, abs=900)
        assert len(views) > snapshot + 15
        source.player.turn()
        await trio.sleep(10)
        assert views[-1].time_ms == WALL_NS // MS
        resting = len(views)
        await trio.sleep(5)
        assert len(views) == resting
        nursery.cancel_scope.cancel()
    assert np.all([not view.is_live for view in views])


@pytest.mark.sized
def test_damaged_files_never_stop_a_replay(tmp_path):
    whole = write_master(tmp_path / "s", segment_records=60)
    for seed in range(by_level(4, 40, 1000)):
        path = tmp_path / f"{seed}" / "s"
        shutil.copytree(whole, path)
        damage(path, lot := random.Random(seed))
        try:
            source = open_replay([path])
        except StoreError:
            # session.json itself.
            continue
        finish(source)
        start_ms, end_ms = source.state().start_ms, source.state().end_ms
        for _ in range(4):
            source.seek(lot.randrange(start_ms - 1000, end_ms + 1000))
            assert source.view().time_ms == source.state().time_ms, seed
        source.run_until("lag > 100")
        finish(source)
        assert start_ms <= source.state().time_ms <= end_ms, seed


def damage(path, lot):
    """Overwrite, cut, delete or lengthen some files."""
    for _ in range(lot.randrange(1, 4)):
        file = lot.choice(sorted(file for file in path.rglob("*") if file.is_file()))
        data = bytearray(file.read_bytes())
        match lot.randrange(4):
            case 0:
                for _ in range(min(len(data), 20)):
                    data[lot.randrange(len(data))] = lot.randrange(256)
                file.write_bytes(data)
            case 1:
                file.write_bytes(data[: lot.randrange(len(data) + 1)])
            case 2:
                file.unlink()
            case _:
                file.write_bytes(data + bytes(lot.randrange(100)))


def test_packed_sessions_are_shown_as_others_are(tmp_path, monkeypatch):
    path = write_session(tmp_path / "session", MasterModel(5).run(2000), segment_records=400)
    plain = opened(path, chunk_records=100)
    start_ns, end_ns = plain.position.start_ns, plain.position.end_ns
    moments = [start_ns + (end_ns - start_ns) * step // 7 for step in range(8)]
    expected = [plain.view_at(at_ns) for at_ns in moments]
    session = open_session(path)
    for segment in sealed_segments(session):
        pack_segment(session, segment)
    packed = opened(path, chunk_records=100)
    assert [packed.view_at(at_ns) for at_ns in moments] == expected
    assert (packed.position, packed.damage) == (plain.position, ())
    with pytest.raises(StoreError, match="not a session"):
        open_replay([tmp_path / "session" / "events"])
    # As Python marks a missing module.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match="is packed, and pyarrow, which reads it, is not installed; pip"):
        open_replay([path])


def test_probes_that_a_node_counted_are_shown_as_of_the_moment(tmp_path):
    path = write_master(tmp_path / "s")
    facts = (path / "facts.jsonl").read_text()
    last = int(read_records(open_session(path)).array["seq"][-1])
    for seq, host, reason, count in (
        (20, "10.0.0.7", "EOF", 3),
        (20, "10.0.0.8", "NO_REQUEST", 1),
        (last, "10.0.0.7", "EOF", 60),
    ):
        fact = f'"type": "probes", "host": "{host}", "reason": "{reason}", "count": {count}'
        facts += f'{{"seq": {seq}, {fact}}}\n'
    (path / "facts.jsonl").write_text(facts)
    source = opened(path)

    def probes(at_ns):
        (node,) = source.view_at(WALL_NS + at_ns).nodes
        return [(probe.host, probe.reason, probe.count) for probe in node.probes]

    assert probes(0) == []
    assert probes(15 * S) == [("10.0.0.7", "EOF", 3), ("10.0.0.8", "NO_REQUEST", 1)]
    assert probes(60 * S)[0] == ("10.0.0.7", "EOF", 60)


def test_too_many_events_are_merged_and_the_worst_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(event_log_module, "EVENTS_MAX", 100)
    events = [Event(0, Kind.PUT, offset=1000, size=1000)]
    for number in range(1000):
        status = PutStatus.FLUSH_SLAVE_TIMEOUT if number == 777 or number % 2 else PutStatus.PUT_OK
        at_ns = number * S
        events.append(Event(at_ns, Kind.WAIT_BEGIN, offset=1000, aux=number, size=2))
        events.append(Event(at_ns + MS, Kind.WAIT_END, offset=1000, aux=number, size=9000, flags=status))
    everything = opened(write_session(tmp_path / "s", events)).view_at(WALL_NS + 1000 * S).events
    assert len(everything) <= 100
    puts = [event for event in everything if event.kind is EventKind.PUTS]
    assert sum(1 + event.more for event in puts) == 999
    assert all(event.severity is Severity.CRITICAL for event in puts if event.more)
    assert [event.time_ms for event in everything] == sorted(event.time_ms for event in everything)
    assert [event.number for event in everything] == list(range(1, len(everything) + 1))
