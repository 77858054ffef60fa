"""The what-if model of a recording: its producers, its settings, and what it has no data for."""

import pytest
from attrs import evolve

from tests.analysis.pairs import RECORD_BYTES, closed_loop, open_loop, write_pair
from tests.recording.sessions import slave_events, write_session
from trioha.config.model import AckMode
from trioha.recording.events import Kind
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.model import (
    ModelError,
    check,
    find_model_sessions,
    model_of,
    play,
)
from trioha_analysis.whatif.producers import Producers


def model_at(path, producers=Producers.AUTO):
    return model_of(*find_model_sessions([path]), producers=producers)


def test_closed_loop_is_detected_with_its_writers(tmp_path):
    found = model_at(write_pair(tmp_path / "session", closed_loop(12, rounds=80))).producer_model
    assert (found.kind, found.writers, found.is_joined) == (Producers.CLOSED, 12, True)


def test_open_loop_is_detected_and_can_be_overridden(tmp_path):
    path = write_pair(tmp_path / "session", open_loop(every_ns=5_000_000, rounds=100))
    found = model_at(path).producer_model
    assert found.kind is Producers.OPEN
    assert found.rate_per_s == pytest.approx(200, rel=0.01)
    assert abs(found.delay_slope) < 0.3
    assert model_at(path, Producers.CLOSED).producer_model.kind is Producers.CLOSED


@pytest.mark.full
def test_unchanged_settings_reproduce_the_recording(tmp_path):
    model = model_at(write_pair(tmp_path / "session", closed_loop(8, rounds=300)))
    found = figures([play(model, model.scenario, repeat=repeat) for repeat in range(3)])
    recorded = model.recorded
    for name in ("p50", "p90", "p99"):
        assert found.latency_ms[name] == pytest.approx(recorded.latency_ms[name], rel=0.3), name
    assert found.puts_per_s == pytest.approx(recorded.puts_per_s, rel=0.15)
    assert found.statuses == {"PUT_OK": 3 * recorded.puts}


@pytest.mark.full
def test_rate_and_writers_change_the_arrivals(tmp_path):
    closed = model_at(write_pair(tmp_path / "closed", closed_loop(4, rounds=300)))
    outcome = play(closed, evolve(closed.scenario, writers=9), repeat=0)
    assert outcome.outstanding_max == 9
    assert outcome.end_offset[-1] == 1200 * RECORD_BYTES
    paced = figures([play(closed, evolve(closed.scenario, rate_per_s=100.0), repeat=0)])
    assert paced.puts_per_s == pytest.approx(100, rel=0.01)
    opened = model_at(write_pair(tmp_path / "open", open_loop(every_ns=5_000_000, rounds=300)))
    faster = figures([play(opened, evolve(opened.scenario, rate_per_s=400.0), repeat=0)])
    assert faster.puts_per_s == pytest.approx(400, rel=0.01)


def test_settings_come_from_the_masters_session_and_the_ack_mode_from_the_slaves(tmp_path):
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


def test_scenario_that_the_recording_has_no_data_for_is_refused(tmp_path):
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
