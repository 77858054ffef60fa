"""A replay of a monitor's recording shows the recorded views."""

import json
import threading
from math import sin

import pytest

from tests.monitor.builders import MASTER, SLAVE, connection, master, slave
from trioha.errors import StoreError
from trioha.recording.events import Kind
from trioha.recording.reader import find_sessions, open_session
from trioha_monitor.capture import MonitorRecording
from trioha_monitor.cluster import Cluster, Sample
from trioha_monitor.replay import open_replay
from trioha_monitor.view import EventKind, Health
from trioha_sessions.records import read_records

START_MS = 1_790_000_000_000
LOST_TICK = 300
DOWN_TICK = 380
NEAR, FAR = "10.0.0.2:43112", "10.0.0.3:43188"


def seen():
    """40 s of a master with two slaves at 10 Hz: one is lost at 30 s, the master itself at 38 s."""
    cluster = Cluster([MASTER, SLAVE], interval_ms=100)
    views = []
    for tick in range(400):
        at_ms = START_MS + tick * 100
        max_offset = 1_000_000 + tick * 24_000
        near = int(60_000 + 50_000 * sin(tick / 9))
        far = int(900_000 * (1 + sin(tick / 40)))
        listed = [connection(NEAR, sent=max_offset, ack=max_offset - near, lag=near)]
        if tick < LOST_TICK:
            listed.append(connection(FAR, sent=max_offset - far // 2, ack=max_offset - far, lag=far))
        if tick < DOWN_TICK:
            cluster.observe(Sample(MASTER, at_ms, master(max_offset, *listed)))
        else:
            cluster.observe(Sample(MASTER, at_ms, fault="Connection refused"))
        cluster.observe(Sample(SLAVE, at_ms, slave(max_offset - near)))
        views.append(cluster.view(at_ms))
    return views


@pytest.fixture(scope="module")
def views():
    return seen()


@pytest.fixture(scope="module")
def recorded(views, tmp_path_factory):
    recording = MonitorRecording(tmp_path_factory.mktemp("recordings"))
    assert not recording.is_on
    path = recording.start()
    assert recording.is_on
    for view in views:
        recording.note(view)
    assert recording.stop() == path
    assert not recording.is_on
    recording.note(views[0])
    return path


def test_a_replay_shows_the_recorded_views(views, recorded):
    source = open_replay([recorded])
    while source.work(for_s=1.0):
        pass
    for view in views[:DOWN_TICK]:
        again = source.view_at(view.time_ms * 1_000_000)
        assert again.time_ms == view.time_ms
        assert [(node.label, node.role, node.health) for node in again.nodes] == [
            (node.label, node.role, node.health) for node in view.nodes
        ]
        for node, was in zip(again.nodes, view.nodes, strict=True):
            assert (node.log.max_offset, node.log.flushed_offset) == (
                was.log.max_offset,
                was.log.flushed_offset,
            )
            assert node.log.min_offset == was.log.min_offset
        shown = {replica.address: replica for replica in again.replicas}
        assert shown.keys() == {replica.address for replica in view.replicas}
        for replica in view.replicas:
            one = shown[replica.address]
            assert (one.ack_offset, one.diff_bytes, one.is_connected, one.state) == (
                replica.ack_offset,
                replica.diff_bytes,
                replica.is_connected,
                replica.state,
            )
            if replica.is_connected:
                assert one.sent_offset == replica.sent_offset


def test_replayed_lag_curves_are_those_seen_live(views, recorded):
    source = open_replay([recorded])
    while source.work(for_s=1.0):
        pass
    at = views[LOST_TICK - 1]
    again = source.view_at(at.time_ms * 1_000_000)
    for address in (NEAR, FAR):
        live = next(one.lag_history for one in at.replicas if one.address == address)
        replayed = next(one.lag_history for one in again.replicas if one.address == address)
        assert len(live.buckets) == LOST_TICK // 5
        for number, bucket in enumerate(live.buckets, start=live.first):
            begin_ms = number * live.bucket_ms
            found = replayed.worst_between(begin_ms, begin_ms + live.bucket_ms)
            assert found.value == bucket.value


def test_losses_are_on_the_timeline(views, recorded):
    source = open_replay([recorded])
    while source.work(for_s=1.0):
        pass
    view = source.view_at(views[-1].time_ms * 1_000_000)
    lost = [event for event in view.events if event.kind is EventKind.LOST]
    assert [(event.replica, event.time_ms) for event in lost] == [(FAR, views[LOST_TICK].time_ms)]
    assert lost[0].text.startswith("no longer listed")
    connects = {event.replica: event.text for event in view.events if event.kind is EventKind.CONNECT}
    # The slave with a session of its own has its label.
    assert NEAR in connects["broker-a #1"]
    assert FAR in connects
    node = next(node for node in view.nodes if node.role == "SYNC_MASTER")
    assert (node.health, node.reason) == (Health.DOWN, "did not answer the monitor: Connection refused")


def test_a_recording_is_marked_as_samples(recorded):
    sessions = [open_session(path) for path in find_sessions([recorded])]
    assert sorted((one.identity.role, one.identity.source, one.identity.sampled_ms) for one in sessions) == [
        ("SLAVE", "monitor", 100),
        ("SYNC_MASTER", "monitor", 100),
    ]
    for session in sessions:
        kinds = set(read_records(session).array["kind"].tolist())
        # Neither frames, which would give latencies, nor single waits are seen by a monitor.
        assert not kinds & {Kind.TRANSFER, Kind.WAIT_BEGIN, Kind.WAIT_END, Kind.REFUSED}
        document = json.loads((session.path / "session.json").read_text())
        assert document["settings"]["address"] in {MASTER, SLAVE}


def test_unchanged_figures_are_not_recorded_again(tmp_path):
    cluster = Cluster([MASTER])
    status = master(5000, connection(NEAR, sent=5000, ack=4000, lag=1000))
    recording = MonitorRecording(tmp_path)
    path = recording.start()
    for tick in range(100):
        cluster.observe(Sample(MASTER, START_MS + tick * 100, status))
        recording.note(cluster.view(START_MS + tick * 100))
    recording.stop()
    (session,) = find_sessions([path])
    kinds = read_records(open_session(session)).array["kind"].tolist()
    assert sorted(kinds) == sorted([Kind.PUT, Kind.FLUSHED, Kind.STATE, Kind.ACK, Kind.HEARTBEAT])


def test_a_recording_leaves_no_thread_and_can_be_started_again(tmp_path):
    before = threading.active_count()
    recording = MonitorRecording(tmp_path)
    paths = set()
    for _ in range(3):
        paths.add(recording.start())
        recording.stop()
    assert len(paths) == 3
    assert threading.active_count() == before


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot record here"):
        MonitorRecording(tmp_path / "file").start()


def test_a_disk_that_fails_is_reported_at_the_stop(tmp_path, views):
    recording = MonitorRecording(tmp_path)
    path = recording.start()
    path.rmdir()
    path.touch()
    recording.note(views[0])
    with pytest.raises(StoreError, match="the recording failed"):
        recording.stop()
    assert not recording.is_on
