"""Reports: one HTML file each that fetches nothing, with text escaped."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from zoneinfo import ZoneInfo

import pytest

from tests.analysis.pairs import closed_loop, write_pair
from tests.analysis.replays import MS, master_events, replay_here
from tests.recording.sessions import WALL_NS, Event, MasterModel, write_session
from trioha.errors import StoreError
from trioha.recording.clocks import links
from trioha.recording.events import CloseReason, Kind
from trioha_analysis.reports.session_report import session_report
from trioha_analysis.reports.what_if_report import what_if_report
from trioha_analysis.state_at import open_readers
from trioha_analysis.whatif.answer import Answer, Prediction
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.model import find_model_sessions, model_of, play
from trioha_analysis.whatif.scenario import SLAVES_MAX, count_axis, grid


def assert_fetches_nothing(html):
    scripts = re.findall(r"<script[^>]*>", html)
    assert scripts
    assert not any("src" in tag for tag in scripts)
    # plotly.js names addresses that it does not fetch.
    own = re.sub(r"<script[^>]*>.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r"\b(?:src|href|url)\s*[=(]", own)
    assert "Plotly.newPlot" in html


def test_report_is_one_file_that_fetches_nothing(result, tmp_path):
    path = tmp_path / "report.html"
    session_report(result).write(path)
    html = path.read_text()
    assert_fetches_nothing(html)
    for text in ("10.0.0.2:41000", "Offsets over time", "Lag over time", "FLUSH_SLAVE_TIMEOUT", "conn 1 EOF"):
        assert text in html
    assert "3 events were dropped" in html
    assert "Refused offsets" not in html


@pytest.mark.full
def test_report_has_refused_offsets_and_clock_offsets(tmp_path):
    refused = [
        Event(40 * MS, Kind.REFUSED, conn=3, offset=1400, aux=1500, flags=CloseReason.DIVERGED),
        Event(40 * MS, Kind.CLOSED, conn=3, offset=1500, aux=1500, flags=CloseReason.DIVERGED),
    ]
    taken = [
        Event(1 * MS, Kind.REPORTED, conn=1, offset=1000, aux=1000),
        Event(3 * MS, Kind.RECEIVED, conn=1, offset=1000, aux=1500, size=500),
        Event(3 * MS, Kind.REPORTED, conn=1, offset=1500, aux=1500),
    ]
    write_session(tmp_path / "m", master_events())
    write_session(tmp_path / "s", [*taken, *refused], role="SLAVE", broker_id=1)
    html = session_report(replay_here(tmp_path), links(open_readers([tmp_path]))).html()
    assert "the own log and the master's differ at 1400; the own log ends at 1500" in unescape(html)
    assert "Clock offsets and one-way delays" in html
    # One-way delays of 1 ms to the slave and 0 to 1 ms back.
    assert "<td>0.500</td><td>0.500</td>" in re.sub(r">\s+<", "><", html)
    bars = figures_of(html)["What puts waited for"]
    assert {bar["name"] for bar in bars} == {"ack (network), conn 1"}


@pytest.mark.full
def test_report_stays_small_for_a_long_session_with_many_connections(tmp_path):
    path = write_session(tmp_path / "session", MasterModel(5).run(20_000))
    html = session_report(replay_here(path)).html()
    assert len(html.encode()) < 6_000_000
    assert "Curves of the 12 busiest connections." in html


def test_report_that_cannot_be_written_is_one_error(result, tmp_path):
    with pytest.raises(StoreError, match="the report cannot be written"):
        session_report(result).write(tmp_path / "nowhere" / "report.html")


def test_names_in_a_report_are_escaped(tmp_path):
    """In the title, in a heading, in a table, in a figure."""
    name = "<script>alert(1)<"
    path = write_session(tmp_path / name, master_events(), addresses={1: f"{name}/script>"})
    identity = path / "session.json"
    identity.write_text(identity.read_text().replace('"broker-a"', json.dumps(name)))
    html = session_report(replay_here(path)).html()
    assert name not in html
    assert html.count("&lt;script&gt;alert(1)&lt;") >= 5


@pytest.mark.full
def test_what_if_report_has_each_point_beside_the_recording(tmp_path):
    model = model_of(*find_model_sessions([write_pair(tmp_path / "<b>pair", closed_loop(3, rounds=50))]))
    points = grid(model.scenario, [count_axis("slaves", "slaves", ["0", "2"], low=0, high=SLAVES_MAX)])
    scenarios = [model.scenario, *(point.scenario for point in points)]
    played = [figures([play(model, scenario, repeat=0)]) for scenario in scenarios]
    predictions = tuple(Prediction(point, one) for point, one in zip(points, played[1:], strict=True))
    html = what_if_report(Answer(model, played[0], predictions, repeats=1)).html()
    assert_fetches_nothing(html)
    assert "<b>pair" not in html
    assert "What if: &lt;b&gt;pair" in html
    found = figures_of(html)
    rows = ["recorded", "model, as recorded", "slaves=0", "slaves=2"]
    assert [bar["name"] for bar in found["Put latency"]] == ["p50", "p90", "p99"]
    statuses = {bar["name"]: bar["x"] for bar in found["Put status"]}
    assert statuses == {"PUT_OK": rows, "SLAVE_NOT_AVAILABLE": rows}


def figures_of(html):
    """The data of each figure of a report by its title; of several of one title the first."""
    found = {}
    decoder = json.JSONDecoder()
    for call in re.finditer(r"Plotly\.newPlot\(\s*\"[^\"]+\",\s*", html):
        data, end = decoder.raw_decode(html, call.end())
        layout, _ = decoder.raw_decode(html, html.index("{", end))
        found.setdefault(layout["title"]["text"], data)
    return found


def test_report_shows_what_puts_waited_for(result):
    bars = figures_of(session_report(result).html())["What puts waited for"]
    assert [(bar["y"], bar["x"], bar["name"]) for bar in bars] == [
        (["PUT_OK"], [1], "ack, conn 1 10.0.0.2:41000"),
        (["FLUSH_SLAVE_TIMEOUT"], [1], "ack, conn 1 10.0.0.2:41000"),
    ]


def test_report_has_the_time_to_ack_of_log_ranges_for_each_connection(result):
    (heatmap,) = figures_of(session_report(result).html())["Time to ack by log range (resolution 0.001 s)"]
    assert heatmap["y"] == ["conn 1 10.0.0.2:41000", "conn 2 10.0.0.2:41001"]
    offsets = [round(offset) for offset in heatmap["x"]]
    first, second = ([None if value is None else round(value, 6) for value in row] for row in heatmap["z"])
    assert (offsets[0] > 1000, offsets[-1] < 2000) == (True, True)
    # To 1500 after 2 ms on the first connection, the rest 34 ms later on the second one.
    assert [(a, b) for a, b in zip(first, second, strict=True)][::40] == [
        (0.002, None),
        (0.002, None),
        (None, 0.034),
        (None, 0.034),
    ]


def test_lag_curve_ends_with_the_ack_and_not_with_the_next_event(tmp_path):
    """500 bytes are acknowledged after 1 s; a heartbeat follows 7 s later. Steps are 10 ms."""
    second = 1000 * MS
    events = [
        Event(0, Kind.REQUESTED, conn=1, offset=1000, aux=1000),
        Event(0, Kind.ACK, conn=1, offset=1000, aux=1000),
        Event(2 * second, Kind.TRANSFER, conn=1, offset=1000, aux=1500, size=500),
        Event(3 * second, Kind.ACK, conn=1, offset=1500, aux=1500),
        Event(10 * second, Kind.HEARTBEAT, conn=1, offset=1500, aux=1500),
    ]
    found = replay_here(write_session(tmp_path / "session", events))
    html = session_report(found, zone=UTC).html()
    assert "Times are UTC." in html
    (series,) = figures_of(html)["Lag over time (maximum of each step)"]
    (ahead,) = figures_of(session_report(found, zone=ZoneInfo("Asia/Kolkata")).html())[
        "Lag over time (maximum of each step)"
    ]
    moved = [
        datetime.fromisoformat(there) - datetime.fromisoformat(here)
        for there, here in zip(ahead["x"], series["x"], strict=True)
    ]
    assert set(moved) == {timedelta(hours=5, minutes=30)}
    begin = datetime.fromtimestamp(WALL_NS / 1e9, UTC)
    passed = [(datetime.fromisoformat(f"{time}+00:00") - begin).total_seconds() for time in series["x"]]
    assert list(zip(passed, series["y"], strict=True)) == [
        *((0.0, 0), (0.01, 0), (2.0, 500), (2.01, 500), (3.0, 500), (3.01, 0)),
        (10.0, 0),
    ]


def test_report_names_violations(result):
    html = session_report(result).html()
    assert "1 of" in html
    assert "invariants do not hold: 1 violations." in html
    assert "nothing-dropped" in html
