"""Figures in Spark SQL are those of the replay's kernel."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from attrs import evolve

from tests.analysis.replays import document, replay_here, write_recordings
from tests.sessions.sessions import WALL_NS, Event, MasterModel, write_session
from trioha.recording.events import CloseReason, HaState, Kind
from trioha_sessions.histogram import Histogram
from trioha_spark.transforms import ack_latency, lag_by_second, reconnects, waits

pytestmark = [pytest.mark.spark, pytest.mark.full]

MS = 1_000_000
SLOWER = 20
"""The model's time is stretched by it, to some seconds."""


def hosts_of(events):
    """An address for each connection, of a host that has no other one at that time."""
    free, used, addresses = ["10.0.0.2", "10.0.0.3", "10.0.0.4"], {}, {}
    for event in events:
        if event.kind == Kind.REQUESTED:
            used[event.conn] = free.pop(0)
            addresses[event.conn] = f"{used[event.conn]}:{40_000 + event.conn}"
        elif event.kind == Kind.CLOSED:
            free.append(used.pop(event.conn))
    return addresses


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small sessions of a master and its slave, and those of a model, in several segments."""
    folder = write_recordings(tmp_path_factory.mktemp("recordings"))
    for seed in (3, 4):
        events = [evolve(one, ts_ns=one.ts_ns * SLOWER) for one in MasterModel(seed).run(500)]
        write_session(folder / f"model-{seed}", events, addresses=hosts_of(events), segment_records=150)
    return folder


@pytest.fixture(scope="module")
def replays(folder):
    return {one.name: one for one in replay_here(folder).sessions}


@pytest.fixture(scope="module")
def session(spark, folder):
    return spark.read.format("trioha-session").load(str(folder))


def wall_us(time):
    return round(time.timestamp() * 1_000_000)


def as_tuple(histogram):
    return histogram.buckets.tolist(), histogram.weights.tolist(), histogram.max_value


def ints(values):
    return np.array(values, np.int64)


def test_ack_latencies_are_those_of_the_kernel(session, replays):
    found = defaultdict(list)
    for row in session.transform(ack_latency).collect():
        assert row.end_offset - row.start_offset == row.body_bytes
        found[row.session, row.conn].append(row)
    figures = {
        (name, one.figures.conn): one.figures
        for name, replay in replays.items()
        if not replay.session.is_slave
        for one in replay.connections
        if one.figures.frames
    }
    assert found.keys() == figures.keys()
    for key, rows in found.items():
        latencies = [round(row.latency_ms * MS) for row in rows if row.latency_ms is not None]
        assert as_tuple(Histogram.of(ints(latencies))) == as_tuple(figures[key].ack_latency_histogram)
        assert len(rows) - len(latencies) == figures[key].unacknowledged_frames
        assert sum(row.body_bytes for row in rows) == figures[key].body_bytes
    assert sum(one.unacknowledged_frames for one in figures.values()) > 5


def test_lag_by_second_is_that_of_the_kernel(session, replays):
    found = {
        (row.session, row.conn, wall_us(row.second)): (row.lag_bytes, row.max_offset, row.ack_offset)
        for row in session.transform(lag_by_second).collect()
    }
    expected = {}
    for name, replay in replays.items():
        grid = replay.grid
        for one in replay.connections:
            series = one.figures.series
            worst = defaultdict(int)
            last = {}
            for step, lag in zip(series["lag"].steps.tolist(), series["lag"].values.tolist(), strict=True):
                second = replay.session.wall_of(grid.origin_ns + step * grid.step_ns) // 10**9
                worst[second] = max(worst[second], lag)
                last[second] = step
            for second, lag in worst.items():
                at = ints([last[second]])
                ends = (int(series[of].rising_at(at)[0]) for of in ("max", "ack"))
                expected[name, one.figures.conn, second * 1_000_000] = (lag, *ends)
    assert found == expected
    assert len({second for _, _, second in found}) > 3


def test_waits_are_those_of_the_kernel(session, replays):
    found, still_open = defaultdict(list), Counter()
    for row in session.transform(waits).collect():
        assert row.copies_needed == 2
        if row.status is None:
            still_open[row.session] += 1
            assert row.ended_at is None
        else:
            found[row.session, row.status].append(round(row.waited_ms * 1000))
            assert row.begun_at <= row.ended_at
    expected = {
        (name, one.status): as_tuple(one.histogram)
        for name, replay in replays.items()
        for one in replay.node.waits
    }
    assert {key: as_tuple(Histogram.of(ints(waited))) for key, waited in found.items()} == expected
    assert still_open == Counter({name: replay.node.waits_open for name, replay in replays.items()})
    assert still_open.total() > 3


def test_reconnects_are_those_of_the_kernel(session, replays, folder):
    found = {
        (row.session, row.conn, row.address, row.previous_conn, row.close_reason, row.away_ms): (
            row.request_offset,
            row.previous_offset,
            row.resent_bytes,
            wall_us(row.ended_at) / 1000,
        )
        for row in session.transform(reconnects).collect()
    }
    whose = ("session", "conn", "address", "previousConn", "closeReason", "awayMs")
    expected = {
        tuple(row[name] for name in whose): (
            row["requestOffset"],
            row["previousOffset"],
            row["resentBytes"],
            pytest.approx(row["closedAtMs"], abs=0.002),
        )
        for row in document(replay_here(folder))["reconnects"]
    }
    assert found == expected
    assert {name for name, *_ in found} == set(replays)


def connected(conn, at_ms):
    return [
        Event(at_ms * MS, Kind.STATE, conn=conn, offset=-1, aux=1000, flags=HaState.HANDSHAKE),
        Event(at_ms * MS, Kind.REQUESTED, conn=conn, offset=1000, aux=1000),
    ]


def closed(conn, at_ms):
    return Event(at_ms * MS, Kind.CLOSED, conn=conn, offset=1000, aux=1000, flags=CloseReason.EOF)


def test_which_slave_of_a_host_came_back_is_not_claimed(spark, tmp_path):
    """Connections 1 and 2 are of two slaves on one host; probes and other hosts do not count."""
    probe = Event(4 * MS, Kind.STATE, conn=9, offset=-1, aux=1000, flags=HaState.HANDSHAKE)
    events = [
        *(*connected(1, 0), *connected(3, 1), *connected(2, 2), closed(1, 3), probe, closed(9, 5)),
        *(closed(2, 6), *connected(4, 7), closed(3, 8), *connected(5, 9)),
    ]
    hosts = {
        1: "10.0.0.2:1",
        2: "10.0.0.2:2",
        3: "10.0.0.3:3",
        4: "10.0.0.2:4",
        5: "10.0.0.3:5",
        9: "10.0.0.2:9",
    }
    write_session(tmp_path / "s", events, addresses=hosts)
    rows = spark.read.format("trioha-session").load(str(tmp_path)).transform(reconnects).collect()
    assert {(row.conn, row.previous_conn, row.away_ms) for row in rows} == {
        *((2, None, None), (4, None, None), (5, 3, 1.0)),
    }
    (ended,) = {wall_us(row.ended_at) for row in rows if row.ended_at is not None}
    assert ended == WALL_NS // 1000 + 8000
