"""What a recording shows of its puts, how far the model is off, and what the recording has no data for."""

import numpy as np
import pytest
from attrs import evolve

from tests.analysis.pairs import CONN, RECORD_BYTES, closed_loop, open_loop, write_pair
from tests.sessions.sessions import Event, pack, slave_events, write_session
from trioha.config.keys.ha import AckMode
from trioha.recording.events import Kind, PutStatus
from trioha.recording.reader import open_session
from trioha_analysis.whatif.answer import document, doubt_of, error_of
from trioha_analysis.whatif.model import ModelError, check, find_model_sessions, model_of, predict
from trioha_analysis.whatif.recorded import Producers, merged, puts_of, serial_share, stages_of
from trioha_analysis.whatif.scenario import Point
from trioha_sessions.records import record_dtype


def model_at(path, producers=Producers.AUTO):
    return model_of(*find_model_sessions([path]), producers=producers)


def predicted(model, **changes):
    """The figures of one point."""
    (found,) = predict(model, [Point("asked", evolve(model.scenario, **changes))]).predictions
    return found.figures


def test_stages_of_a_run_are_those_between_its_records(tmp_path):
    """Two puts with one time make a run; its frame, ack and end are 1, 3 and 4 ms after them."""
    ms = 1_000_000
    events = [
        Event(0, Kind.ACK, conn=CONN, offset=0),
        *(Event(ms, Kind.PUT, offset=end, aux=end, size=100) for end in (100, 200)),
        *(Event(ms, Kind.WAIT_BEGIN, offset=end, aux=end, size=2) for end in (100, 200)),
        Event(2 * ms, Kind.TRANSFER, conn=CONN, offset=0, aux=200, size=200),
        Event(4 * ms, Kind.ACK, conn=CONN, offset=200, aux=200),
        *(Event(5 * ms, Kind.WAIT_END, offset=end, aux=end, size=4000) for end in (100, 200)),
        Event(9 * ms, Kind.PUT, offset=300, aux=300, size=100),
    ]
    path = write_pair(tmp_path / "session", events)
    runs = merged(puts_of(np.frombuffer(pack(events), record_dtype(open_session(path)))))
    assert (runs.puts.tolist(), runs.bytes.tolist()) == ([2, 1], [200, 100])
    assert runs.append_s.tolist() == [0, 0.008]
    assert runs.end_s.tolist() == [0.004, 0.008]
    found = stages_of(runs, slaves=1, is_sync_flush=False, writers=2)
    assert (found.send_s.tolist(), found.ack_s.tolist(), found.answer_s.tolist()) == (
        [[0.001]],
        [[0.002]],
        [0.001],
    )
    assert found.think_s.tolist() == pytest.approx([0.004])


def test_frames_that_are_acknowledged_together_hold_up_nobody(tmp_path):
    """And if acks are as far apart as one alone takes, they hold up each other for all of it."""

    def runs(apart_ns):
        events, ts_ns = [], 0
        for number in range(40):
            top = 3 * number * RECORD_BYTES
            for place, at_ns in enumerate((0, 5_000_000, 5_100_000)):
                begin = top + place * RECORD_BYTES
                end = begin + RECORD_BYTES
                events.append(Event(ts_ns + at_ns, Kind.PUT, offset=end, aux=end, size=RECORD_BYTES))
                events.append(
                    Event(ts_ns + at_ns, Kind.TRANSFER, conn=CONN, offset=begin, aux=end, size=RECORD_BYTES)
                )
                ack_ns = at_ns + 1_000_000 if place < 2 else 6_000_000 + apart_ns
                events.append(Event(ts_ns + ack_ns, Kind.ACK, conn=CONN, offset=end, aux=end))
            ts_ns += 10_000_000
        events.sort(key=lambda event: event.ts_ns)
        path = write_pair(tmp_path / str(apart_ns), events)
        return merged(puts_of(np.frombuffer(pack(events), record_dtype(open_session(path)))))

    assert serial_share([runs(0)]) == 0
    assert serial_share([runs(1_000_000)]) == pytest.approx(1.0)


def test_no_overlapping_frames_leave_the_serial_share_open(tmp_path):
    model = model_at(write_pair(tmp_path / "session", closed_loop(4, rounds=100)))
    assert model.serial is None
    more = Point("writers=8", evolve(model.scenario, writers=8))
    assert "no frames overlapped" in document(predict(model, [more]))["model"]["remarks"][0]


def test_closed_loop_is_detected_with_its_writers(tmp_path):
    one = model_at(write_pair(tmp_path / "one", closed_loop(1, rounds=80)))
    assert one.writers == 1
    many = model_at(write_pair(tmp_path / "many", closed_loop(12, rounds=80)))
    assert many.writers == 12


def test_open_loop_is_detected_and_can_be_overridden(tmp_path):
    path = write_pair(tmp_path / "session", open_loop(every_ns=5_000_000, rounds=100))
    model = model_at(path)
    assert model.writers == 0
    assert model.recorded.puts_per_s == pytest.approx(200, rel=0.02)
    assert model_at(path, Producers.CLOSED).writers == 1


def test_the_model_says_of_the_recording_what_was_recorded(tmp_path):
    events = {"open": open_loop(every_ns=5_000_000, rounds=400), "closed": closed_loop(1, rounds=400)}
    for kind, recorded in events.items():
        answer = predict(model_at(write_pair(tmp_path / kind, recorded)), [])
        assert document(answer)["model"]["producers"] == kind
        error = error_of(answer)
        for name in ("p50", "p90", "p99", "lagSecondsP99", "putsPerSecond"):
            assert abs(error[name]) < 0.1, name
        assert doubt_of(answer) is None
        assert answer.as_recorded.figures.statuses == {"PUT_OK": answer.model.recorded.puts}


def test_an_outage_is_more_than_the_model_knows_so_that_nothing_is_predicted(tmp_path):
    """In the middle third the slave acknowledges nothing, and puts time out."""
    events = [
        event
        for event in open_loop(every_ns=5_000_000, rounds=300)
        if event.kind != Kind.ACK or not 500 < event.ts_ns / 1e6 < 1000
    ]
    events = [
        evolve(event, ts_ns=event.ts_ns + 1_000_000, flags=PutStatus.FLUSH_SLAVE_TIMEOUT)
        if event.kind == Kind.WAIT_END and 500 < event.ts_ns / 1e6 < 1000
        else event
        for event in events
    ]
    model = model_at(write_pair(tmp_path / "session", events))
    answer = predict(model, [Point("rtt=5", evolve(model.scenario, rtt_s=0.005))])
    assert doubt_of(answer).startswith("the model is off by p50 ")
    assert document(answer)["points"] == []
    assert document(answer)["model"]["latencyMs"] is not None
    assert len(document(answer, force=True)["points"]) == 1


def test_each_change_replaces_its_part(tmp_path):
    model = model_at(write_pair(tmp_path / "session", open_loop(every_ns=5_000_000, rounds=400)))
    p50_ms = predicted(model).latency_ms["p50"]
    assert predicted(model, rtt_s=0.003).latency_ms["p50"] == pytest.approx(p50_ms + 3)
    slow = predicted(model, bandwidth_bytes_per_s=1e6)
    assert slow.latency_ms["p50"] == pytest.approx(p50_ms + (RECORD_BYTES + 12) / 1e3, rel=0.02)
    assert predicted(model, slaves=2).latency_ms["p50"] < p50_ms
    assert predicted(model, slaves=2, in_sync_replicas=3).latency_ms["p50"] > p50_ms
    assert predicted(model, slaves=0).statuses == {"SLAVE_NOT_AVAILABLE": 400}
    assert predicted(model, rate_per_s=400.0).puts_per_s == pytest.approx(400, rel=0.02)
    assert predicted(model, slave_timeout_ms=1).statuses["FLUSH_SLAVE_TIMEOUT"] > 0


def test_same_recording_same_answer(tmp_path):
    model = model_at(write_pair(tmp_path / "session", closed_loop(2, rounds=100)))
    seen = []
    watched = predict(model, [Point("", model.scenario)], watch=lambda *done: seen.append(done))
    assert watched.as_recorded.figures == predict(model, []).as_recorded.figures
    assert watched.predictions[0].figures == watched.as_recorded.figures
    assert seen == [(0, 2), (1, 2)]


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
    assert model_at(async_only).writers == 0
    assert "does not show how far" in doubt_of(predict(model_at(async_only), []))
    with pytest.raises(ModelError, match="no put waited"):
        model_at(async_only, Producers.CLOSED)
    with pytest.raises(ModelError, match="nothing was put"):
        model_at(write_pair(tmp_path / "empty", [event for event in events if event.kind == Kind.ACK]))
    with pytest.raises(ModelError, match="the session of one master"):
        find_model_sessions([tmp_path])
