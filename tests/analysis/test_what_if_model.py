"""Calibration of the what-if model from recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from attrs import evolve

from tests.analysis.pairs import RECORD_BYTES, closed_loop, open_loop, write_pair
from tests.recording.sessions import Event, slave_events, write_session
from trioha.config.model import AckMode
from trioha.recording.events import Kind
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.model import (
    Model,
    ModelError,
    check,
    find_model_sessions,
    model_of,
    play,
    remarks,
)
from trioha_analysis.whatif.producers import Producers
from trioha_analysis.whatif.scenario import Scenario


def model_at(path: Path, producers: Producers = Producers.AUTO) -> Model:
    return model_of(*find_model_sessions([path]), producers=producers)


@pytest.mark.parametrize("writers", [1, 12])
def test_closed_loop_is_detected_with_its_writers_and_their_think_time(writers: int, tmp_path: Path) -> None:
    found = model_at(write_pair(tmp_path / "session", closed_loop(writers, rounds=150))).producer_model
    assert (found.kind, found.writers) == (Producers.CLOSED, writers)
    assert found.delay_slope > 0.8
    assert found.is_joined == (writers > 1)
    # From the last end, for all writers together; one writer alone cannot be distinguished from its append.
    took_s = found.think.median_s + writers * found.client_s
    assert took_s == pytest.approx((500 if writers > 1 else 540) * 1e-6, rel=0.1)


def test_open_loop_is_detected_and_can_be_overridden(tmp_path: Path) -> None:
    path = write_pair(tmp_path / "session", open_loop(every_ns=5_000_000, rounds=500))
    found = model_at(path).producer_model
    assert found.kind is Producers.OPEN
    assert found.rate_per_s == pytest.approx(200, rel=0.01)
    assert abs(found.delay_slope) < 0.3
    assert model_at(path, Producers.CLOSED).producer_model.kind is Producers.CLOSED


@pytest.mark.parametrize(
    "events",
    [
        closed_loop(1, rounds=1500),
        closed_loop(8, rounds=300),
        open_loop(every_ns=5_000_000, rounds=1500),
    ],
    ids=["one writer", "eight writers", "open loop"],
)
def test_unchanged_settings_reproduce_the_recording(events: list[Event], tmp_path: Path) -> None:
    model = model_at(write_pair(tmp_path / "session", events))
    found = figures([play(model, model.scenario, repeat=repeat) for repeat in range(3)])
    recorded = model.recorded
    assert found.latency_ms is not None
    assert recorded.latency_ms is not None
    assert found.lag_seconds is not None
    assert recorded.lag_seconds is not None
    for name in ("p50", "p90", "p99"):
        assert found.latency_ms[name] == pytest.approx(recorded.latency_ms[name], rel=0.3), name
        assert found.lag_seconds[name] == pytest.approx(recorded.lag_seconds[name], rel=0.3), name
    assert found.puts_per_s == pytest.approx(recorded.puts_per_s, rel=0.15)
    assert found.statuses == {"PUT_OK": 3 * recorded.puts}


def test_rate_and_writers_change_the_arrivals(tmp_path: Path) -> None:
    closed = model_at(write_pair(tmp_path / "closed", closed_loop(4, rounds=300)))
    outcome = play(closed, evolve(closed.scenario, writers=9), repeat=0)
    assert outcome.outstanding_max == 9
    assert outcome.end_offset[-1] == 1200 * RECORD_BYTES
    paced = figures([play(closed, evolve(closed.scenario, rate_per_s=100.0), repeat=0)])
    assert paced.puts_per_s == pytest.approx(100, rel=0.01)
    opened = model_at(write_pair(tmp_path / "open", open_loop(every_ns=5_000_000, rounds=300)))
    faster = figures([play(opened, evolve(opened.scenario, rate_per_s=400.0), repeat=0)])
    assert faster.puts_per_s == pytest.approx(400, rel=0.01)


def test_settings_come_from_the_masters_session_and_the_ack_mode_from_the_slaves(tmp_path: Path) -> None:
    master = write_pair(tmp_path / "master", closed_loop(2, rounds=50))
    slave = write_session(tmp_path / "slave", slave_events(), role="SLAVE", broker_id=1)
    text = (slave / "session.json").read_text()
    (slave / "session.json").write_text(
        text.replace('"settings": {}', '"settings": {"trioha.haAckMode": "flushed"}')
    )
    text = (master / "session.json").read_text()
    settings = '{"inSyncReplicas": 2, "slaveTimeout": 700, "allAckInSyncStateSet": false, "other": 1}'
    (master / "session.json").write_text(text.replace('"settings": {}', f'"settings": {settings}'))
    scenario = model_of(*find_model_sessions([tmp_path])).scenario
    assert (scenario.slaves, scenario.in_sync_replicas, scenario.slave_timeout_ms) == (1, 2, 700)
    assert scenario.ack_mode is AckMode.FLUSHED


def test_syncs_are_those_of_the_node_whose_syncs_are_waited_for(tmp_path: Path) -> None:
    write_pair(tmp_path / "master", closed_loop(2, rounds=200))
    syncs = [Event(at * 1000, Kind.FLUSHED, offset=at * RECORD_BYTES, aux=700_000) for at in range(1, 200)]
    asked = [Scenario(ack_mode=AckMode.FLUSHED)]
    alone = model_at(tmp_path / "master")
    assert alone.costs.sync.median_s == pytest.approx(0.005)
    assert "100,000 bytes on disk at a time" in remarks(alone, asked)[0]
    assert not remarks(alone, [Scenario()])
    write_session(tmp_path / "slave", [*slave_events(), *syncs], role="SLAVE", broker_id=1)
    both = model_at(tmp_path)
    assert both.costs.sync.median_s == pytest.approx(0.0007)
    assert both.costs.sync_bytes == RECORD_BYTES
    assert not remarks(both, asked)


def test_wait_begins_that_are_stamped_as_their_puts_take_no_time_of_their_own(tmp_path: Path) -> None:
    """As a node records them since it does so in one go."""
    events = closed_loop(4, rounds=100)
    puts = {event.aux: event.ts_ns for event in events if event.kind == Kind.PUT}
    joined = [
        evolve(event, ts_ns=puts[event.aux]) if event.kind == Kind.WAIT_BEGIN else event for event in events
    ]
    costs = model_at(write_pair(tmp_path / "s", sorted(joined, key=lambda event: event.ts_ns))).costs
    assert costs.put.median_s == pytest.approx(40e-6)
    assert costs.wait_begin.median_s == 0
    assert costs.wait_end.median_s == pytest.approx(20e-6)


def test_stalls_of_a_master_between_puts_of_one_turn_are_no_idle_time(tmp_path: Path) -> None:
    """Writers that return together: nothing but the node's own stall is between two of their puts."""
    events = closed_loop(8, rounds=200)
    stall_ns, stalled = 0, []
    for event in events:
        # Before the fifth put of every twentieth round.
        if event.kind == Kind.PUT and event.aux % 160 == 5:
            stall_ns += 3_000_000
        stalled.append(evolve(event, ts_ns=event.ts_ns + stall_ns))
    model = model_at(write_pair(tmp_path / "session", stalled))
    assert model.producer_model.is_joined
    assert model.costs.put.median_s == pytest.approx(40e-6)
    assert model.costs.put.quantiles[-1] == pytest.approx(3040e-6)


def test_a_put_is_as_much_work_for_its_producer_as_for_the_master(tmp_path: Path) -> None:
    """Of writers that return together, all eight each time: their number does not show it."""
    found = model_at(write_pair(tmp_path / "session", closed_loop(8, rounds=200))).producer_model
    # There are 500 us for eight.
    assert found.client_s == pytest.approx(500e-6 / 8, rel=0.02)
    slower = closed_loop(8, rounds=200, think_ns=2_000_000)
    found = model_at(write_pair(tmp_path / "slower", slower)).producer_model
    # Put, begin and end of its wait, and an eighth of the frame and of the ack; of each eight puts, the work
    # for the first one is hidden in the time before it.
    expected_us = 40 * 7 / 8 + 10 + 20 + (20 + 30) / 8
    assert found.client_s == pytest.approx(expected_us * 1e-6, rel=0.03)


def test_a_sync_ends_with_the_first_wait_that_depends_on_it(tmp_path: Path) -> None:
    """The node begins it 80 us after the append, and records it 150 us after the wait's end."""
    events = [Event(1_000, Kind.ACK, conn=1, offset=0, aux=0)]
    for number in range(1, 101):
        at_ns, end = number * 5_000_000, number * RECORD_BYTES
        events += [
            Event(at_ns, Kind.PUT, offset=end, aux=number, size=RECORD_BYTES),
            Event(at_ns, Kind.WAIT_BEGIN, offset=end, aux=number, size=2),
            Event(
                at_ns + 20_000, Kind.TRANSFER, conn=1, offset=end - RECORD_BYTES, aux=end, size=RECORD_BYTES
            ),
            Event(at_ns + 220_000, Kind.ACK, conn=1, offset=end, aux=end),
            Event(at_ns + 900_000, Kind.WAIT_END, offset=end, aux=number, size=900),
            Event(at_ns + 1_050_000, Kind.FLUSHED, offset=end, aux=970_000),
        ]
    path = write_pair(tmp_path / "session", events)
    text = (path / "session.json").read_text()
    (path / "session.json").write_text(
        text.replace('"settings": {}', '"settings": {"flushDiskType": "SYNC_FLUSH"}')
    )
    model = model_at(path)
    assert model.costs.sync.median_s == pytest.approx(900e-6)
    played = figures([play(model, model.scenario, repeat=0)])
    assert played.latency_ms is not None
    # The wait for the disk is not work of the master.
    assert played.latency_ms["p50"] == pytest.approx(0.9, rel=0.1)


def test_slaves_that_share_a_core_are_not_independent(tmp_path: Path) -> None:
    """The second ack comes 0.2 ms after the first, from either slave: no put has both early."""
    events = [Event(1_000 + conn, Kind.ACK, conn=conn, offset=0, aux=0) for conn in (1, 2)]
    for number in range(1, 201):
        at_ns, end = number * 5_000_000, number * RECORD_BYTES
        first = 1 + number % 2
        events += [
            Event(at_ns, Kind.PUT, offset=end, aux=number, size=RECORD_BYTES),
            Event(at_ns, Kind.WAIT_BEGIN, offset=end, aux=number, size=3),
            *(
                Event(
                    at_ns + 10_000 * conn,
                    Kind.TRANSFER,
                    conn=conn,
                    offset=end - RECORD_BYTES,
                    aux=end,
                    size=RECORD_BYTES,
                )
                for conn in (1, 2)
            ),
            Event(at_ns + 300_000, Kind.ACK, conn=first, offset=end, aux=end),
            Event(at_ns + 500_000, Kind.ACK, conn=3 - first, offset=end, aux=end),
            Event(at_ns + 520_000, Kind.WAIT_END, offset=end, aux=number, size=520),
        ]
    path = write_session(
        tmp_path / "session", events, role="SYNC_MASTER", addresses={1: "127.0.0.1:1", 2: "127.0.0.1:2"}
    )
    model = model_at(path)
    assert {round(max(row) - min(row), 4) for row in model.costs.slave_rows} <= {0.0002}
    one = figures([play(model, model.scenario, repeat=0)])
    both = figures([play(model, evolve(model.scenario, in_sync_replicas=3), repeat=0)])
    assert one.latency_ms is not None
    assert both.latency_ms is not None
    for part in ("p50", "p99"):
        assert one.latency_ms[part] == pytest.approx(0.32, rel=0.2)
        assert both.latency_ms[part] == pytest.approx(0.52, rel=0.2)


def test_large_frames_after_a_delay_do_not_raise_the_time_per_byte(tmp_path: Path) -> None:
    events = closed_loop(1, rounds=400)
    # Every tenth round is slow and large, as if puts had accumulated.
    frames = [index for index, event in enumerate(events) if event.kind == Kind.TRANSFER]
    late_ns, slow = 0, {frame + 1 for frame in frames[::10]}
    grown = []
    for index, event in enumerate(events):
        late_ns += 20_000_000 if index in slow else 0
        size = 900_000 if index + 1 in slow else event.size
        grown.append(evolve(event, ts_ns=event.ts_ns + late_ns, size=size))
    assert model_at(write_pair(tmp_path / "session", grown)).costs.slave_per_byte_s <= 1 / 50e6


def test_scenario_that_the_recording_has_no_data_for_is_refused(tmp_path: Path) -> None:
    events = open_loop(every_ns=5_000_000, rounds=100)
    alone = [event for event in events if event.kind not in {Kind.ACK, Kind.TRANSFER, Kind.FLUSHED}]
    model = model_at(write_pair(tmp_path / "alone", alone))
    assert model.scenario.slaves == 0
    for changes, line in (
        ({"slaves": 1}, "no slave acknowledged anything"),
        ({"writers": 4}, "its producers are an open loop"),
    ):
        with pytest.raises(ModelError, match=line):
            check(model, evolve(model.scenario, **changes))
    dry = model_at(write_pair(tmp_path / "dry", [one for one in events if one.kind != Kind.FLUSHED]))
    with pytest.raises(ModelError, match="no flush was recorded"):
        check(dry, evolve(dry.scenario, ack_mode=AckMode.FLUSHED))
    puts = [event for event in events if event.kind == Kind.PUT]
    async_only = write_pair(tmp_path / "async", puts, role="ASYNC_MASTER")
    assert model_at(async_only).producer_model.kind is Producers.OPEN
    with pytest.raises(ModelError, match="no put waited"):
        model_at(async_only, Producers.CLOSED)
    with pytest.raises(ModelError, match="nothing was put"):
        model_at(write_pair(tmp_path / "empty", [event for event in events if event.kind == Kind.ACK]))
    with pytest.raises(ModelError, match="the session of one master"):
        find_model_sessions([tmp_path])
