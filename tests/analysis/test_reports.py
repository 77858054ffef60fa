"""Reports: one HTML file each that fetches nothing, with text escaped."""

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from tests.analysis.pairs import closed_loop, write_pair
from tests.analysis.replays import MS, master_events, replay_here, report_of
from tests.sessions.group_sessions import failover, write_group
from tests.sessions.sessions import WALL_NS, Event, MasterModel, write_session
from trioha.errors import StoreError
from trioha.palette import BAD, GOOD, WARNING, put_status
from trioha.recording.events import CloseReason, Kind, PutStatus
from trioha_analysis.reports.charts import WIDTH, Scale, TimeAxis
from trioha_analysis.reports.what_if_report import what_if_report
from trioha_analysis.state_at import open_readers
from trioha_analysis.whatif.answer import document
from trioha_analysis.whatif.model import find_model_sessions, model_of, predict
from trioha_analysis.whatif.scenario import SLAVES_MAX, count_axis, grid
from trioha_sessions.clocks import links


def assert_fetches_nothing(html):
    assert not any("src" in tag for tag in re.findall(r"<script[^>]*>", html))
    assert not re.search(r"\b(?:src|href|url)\s*[=(]", html)


def charts_of(html):
    """The numbers of each chart of a report by its title; of several of one title the first."""
    found = {}
    for figure in re.findall(r"<figure>.*?</figure>", html, flags=re.DOTALL):
        numbers = re.search(r'<script type="application/json">(.*?)</script>', figure, flags=re.DOTALL)
        if numbers:
            title = re.search("<figcaption>(.*?)</figcaption>", figure)[1]
            found.setdefault(unescape(title), json.loads(numbers[1]))
    return found


def points_of(html):
    """The sentences of what happened."""
    return [unescape(text) for text in re.findall(r"<li class=.*?</b>(.*?)</li>", html)]


OFFSETS = "Offsets of the log, and acknowledged by each replica"
LAG = "Lag: age of the oldest byte without an ack (s)"
STATUSES = "Puts by status (puts/s)"
LATENCIES = "Put to ack of PUT_OK: percentiles (ms)"


def test_report_is_one_file_that_fetches_nothing(result, tmp_path):
    path = tmp_path / "report.html"
    report_of(result).write(path)
    html = path.read_text()
    assert_fetches_nothing(html)
    assert len(html) < 100_000
    assert list(charts_of(html)) == [OFFSETS, LAG, STATUSES, LATENCIES]
    assert "10.0.0.2:41000" in html
    assert "3 events were dropped" in html
    assert "Refused offsets" not in html


def session_with_an_outage(path):
    """A put of 100 bytes each 100 ms, 10 s long; the replica is away from 2 s to 8 s."""
    events = [
        Event(0, Kind.REQUESTED, conn=1, offset=0, aux=0),
        Event(0, Kind.ACK, conn=1, offset=0, aux=0),
        Event(2000 * MS, Kind.CLOSED, conn=1, offset=1900, aux=1900, flags=CloseReason.IO_ERROR),
        Event(8000 * MS, Kind.REQUESTED, conn=2, offset=1900, aux=7900),
        Event(8000 * MS, Kind.ACK, conn=2, offset=1900, aux=7900),
        Event(8010 * MS, Kind.TRANSFER, conn=2, offset=1900, aux=8000, size=6100),
        Event(8020 * MS, Kind.ACK, conn=2, offset=8000, aux=8000),
    ]
    for number in range(1, 100):
        at_ns, end = number * 100 * MS, number * 100
        is_away = 2000 <= number * 100 < 8020
        events.append(Event(at_ns, Kind.PUT, offset=end, size=100))
        events.append(Event(at_ns, Kind.WAIT_BEGIN, offset=end, aux=number, size=2))
        if not is_away:
            conn = 1 if number < 50 else 2
            frame = {"conn": conn, "aux": end}
            events.append(Event(at_ns, Kind.TRANSFER, offset=end - 100, size=100, **frame))
            events.append(Event(at_ns + 5 * MS, Kind.ACK, offset=end, **frame))
        status = PutStatus.SLAVE_NOT_AVAILABLE if is_away else PutStatus.PUT_OK
        waited_ms = 0 if is_away else 5
        events.append(
            Event(
                at_ns + waited_ms * MS,
                Kind.WAIT_END,
                offset=end,
                aux=number,
                size=waited_ms * 1000,
                flags=status,
            )
        )
    addresses = {1: "10.0.0.2:41000", 2: "10.0.0.2:41001"}
    return write_session(path, sorted(events, key=lambda event: event.ts_ns), addresses=addresses)


def test_report_says_in_words_when_a_replica_was_away_and_how_puts_ended(tmp_path):
    replay = replay_here(session_with_an_outage(tmp_path / "session"))
    began = datetime.fromtimestamp(WALL_NS / 1e9, UTC)

    def clock(passed_s):
        return f"{began + timedelta(seconds=passed_s):%H:%M:%S.%f}"[:-3]

    assert points_of(report_of(replay, zone=UTC).html()) == [
        f"Recorded for 9.9 s, from {began:%Y-%m-%d %H:%M:%S}.000: 99 puts, 9.67 KiB.",
        (
            f"Replica 10.0.0.2:41001 was away for 6 s, from {clock(2)} to {clock(8)}: the connection broke: "
            "its process ended, or the network (IO_ERROR). It lacked up to 5.86 KiB, the oldest for 5.99 s."
        ),
        "38 of 99 puts (38.4 %) were PUT_OK.",
        f"61 of 99 puts (61.6 %) were SLAVE_NOT_AVAILABLE, from {clock(2)} to {clock(8)}.",
        f"Worst lag: 6.01 s, of 10.0.0.2:41001 at {clock(8.01)}; at most 5.96 KiB without an ack.",
        "Put to ack (PUT_OK): p50 5 ms, p99 5 ms, at most 5 ms.",
        "All 13 invariants that were checked hold.",
    ]


def test_charts_show_an_outage_as_lag_that_grows_and_a_gap_in_the_replicas_offsets(tmp_path):
    html = report_of(replay_here(session_with_an_outage(tmp_path / "session")), zone=UTC).html()
    charts = charts_of(html)

    def at(title, passed_s):
        chart = charts[title]
        place = max(at for at, ms in enumerate(chart["ms"]) if ms <= passed_s * 1000)
        return dict(zip(chart["names"], (values[place] for values in chart["values"]), strict=True))

    replica = "10.0.0.2:41001"
    assert charts[OFFSETS]["names"] == ["end of the log", replica]
    assert [at(OFFSETS, second)[replica] for second in (1, 5, 9)] == [1000, None, 9000]
    assert at(OFFSETS, 5)["end of the log"] == 5000
    assert [round(at(LAG, second)[replica]) for second in (1, 3, 5, 7, 9)] == [0, 1, 3, 5, 0]
    assert [value is None for value in at(LATENCIES, 5).values()] == [True, True]
    assert charts[STATUSES]["names"] == ["PUT_OK", "SLAVE_NOT_AVAILABLE"]
    assert html.count('class="band"') == len(charts)
    ended = [sum(values) for values in charts[STATUSES]["values"]]
    assert round(ended[0] / sum(ended), 3) == round(38 / 99, 3)


def test_a_chart_has_at_most_8_series_and_says_what_it_leaves_out(tmp_path):
    events = [
        event
        for conn in range(1, 11)
        for event in (
            Event(conn * MS, Kind.REQUESTED, conn=conn, offset=0, aux=500),
            Event((20 + 10 * conn) * MS, Kind.ACK, conn=conn, offset=500, aux=500),
        )
    ]
    addresses = {conn: f"10.0.0.{conn}:41000" for conn in range(1, 11)}
    ordered = sorted(events, key=lambda event: event.ts_ns)
    html = report_of(replay_here(write_session(tmp_path / "s", ordered, addresses=addresses))).html()
    charts = charts_of(html)
    assert points_of(html)[0].endswith(": the log grew by 0 B.")
    assert {title: len(chart["names"]) for title, chart in charts.items()} == {OFFSETS: 8, LAG: 7}
    assert "7 of 10 replicas, those with the worst lag" in html


def test_report_of_a_single_event(tmp_path):
    session = write_session(tmp_path / "s", [Event(5 * MS, Kind.PUT, offset=500, size=500)])
    html = report_of(replay_here(session), zone=UTC).html()
    assert charts_of(html)[OFFSETS]["values"][0][-1] == 500
    assert points_of(html)[0].endswith(".005: 1 put, 500 B.")


def test_report_of_a_slave_alone_says_when_it_was_without_its_master(tmp_path):
    events = [
        Event(0, Kind.RECEIVED, conn=1, offset=0, aux=500, size=500),
        Event(1 * MS, Kind.REPORTED, conn=1, offset=500, aux=500),
        Event(1000 * MS, Kind.CLOSED, conn=1, offset=500, aux=500, flags=CloseReason.EOF),
        Event(3000 * MS, Kind.REPORTED, conn=2, offset=500, aux=500),
        Event(3001 * MS, Kind.RECEIVED, conn=2, offset=500, aux=900, size=400),
        Event(3002 * MS, Kind.REPORTED, conn=2, offset=900, aux=900),
    ]
    html = report_of(replay_here(write_session(tmp_path / "s", events, role="SLAVE", broker_id=1))).html()
    assert any(re.match("Without its master for 2 s from .* \\(EOF\\)", point) for point in points_of(html))
    (chart,) = charts_of(html).values()
    assert [(name, values[-1]) for name, values in zip(chart["names"], chart["values"], strict=True)] == [
        *(("end of the log", 900), ("reported", 900))
    ]


def test_report_says_when_a_group_had_no_master_and_draws_its_roles(tmp_path):
    folder = write_group(tmp_path, failover().values())
    points = points_of(report_of(replay_here(folder), zone=UTC).html())
    (point,) = (point for point in points if "had no master" in point)
    assert "after broker 1 in epoch 1 came broker 2 in epoch 2" in point


@pytest.mark.parametrize("span_ms", [10, 999, 9_000, 61_000, 3_600_000, 90_000_000, 40 * 86_400_000])
def test_no_label_of_an_axis_is_cut_off_or_covers_another(span_ms):
    axis = TimeAxis.over(WALL_NS + 7, WALL_NS + span_ms * MS, ZoneInfo("Europe/Berlin"))
    rows = {}
    for x, y, anchor, text in re.findall(
        r'<text x="([0-9.]+)" y="([0-9]+)" text-anchor="(\w+)">([^<]+)', axis.svg(height=100)
    ):
        width = 7.4 * len(text)
        left = float(x) - (width if anchor == "end" else width / 2)
        rows.setdefault(y, []).append((left, left + width))
    assert rows
    for labels in rows.values():
        assert labels[0][0] >= 0
        assert labels[-1][1] <= WIDTH
        assert all(before[1] < after[0] for before, after in pairwise(labels))


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 500, ["0 B", "200 B", "400 B"]),
        (5 << 30, (5 << 30) + (12 << 20), ["5,120 MiB", "5,125 MiB", "5,130 MiB"]),
        (0, 15 << 20, ["0 MiB", "5 MiB", "10 MiB", "15 MiB"]),
    ],
)
def test_values_of_a_bytes_axis_are_round_and_differ(low, high, texts):
    scale = Scale.of(np.array([low, high], np.float64), "bytes", from_zero=False)
    assert [scale.text(value) for value in scale.ticks()] == texts


def test_colours_stand_in_one_table():
    """Monitor, reports and commands name none of their own."""
    root = Path(__file__).parents[2]
    names = "red|green|yellow|cyan|magenta|blue|orange|white|black"
    color = re.compile(
        rf"""(?<!&)#[0-9a-fA-F]{{6}}\b|:\s*#[0-9a-fA-F]{{3}}\b|["'](?:bold )?(?:{names})["']"""
    )
    found = {
        f"{path.relative_to(root)}: {literal}"
        for folder in ("monitor", "spark", "trioha")
        for path in (root / folder).rglob("*")
        if path.suffix in {".py", ".tcss", ".j2"} and path != root / "trioha" / "palette.py"
        for literal in color.findall(path.read_text())
    }
    assert found == set()
    assert {name: put_status(name) for name in ("PUT_OK", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE")} == {
        "PUT_OK": GOOD,
        "FLUSH_SLAVE_TIMEOUT": WARNING,
        "SLAVE_NOT_AVAILABLE": BAD,
    }


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
    html = report_of(replay_here(tmp_path), links(open_readers([tmp_path]))).html()
    assert "the own log and the master's differ at 1400; the own log ends at 1500" in unescape(html)
    assert "Clock offsets and one-way delays" in html
    # One-way delays of 1 ms to the slave and 0 to 1 ms back.
    assert "<td>0.500</td><td>0.500</td>" in re.sub(r">\s+<", "><", html)
    (causes,) = re.findall(r"<h2>What puts waited for</h2>.*?</table>", html, flags=re.DOTALL)
    cells = re.findall("<td>(.*?)</td>", causes, flags=re.DOTALL)
    assert cells[:6] == ["broker-a 0", "PUT_OK", "ack", "-", "network", "1"]


@pytest.mark.full
def test_report_stays_small_for_a_long_session_with_many_connections(tmp_path):
    path = write_session(tmp_path / "session", MasterModel(5).run(20_000))
    html = report_of(replay_here(path)).html()
    assert len(html.encode()) < 1_000_000
    assert max(len(chart["names"]) for chart in charts_of(html).values()) <= 8


def test_report_that_cannot_be_written_is_one_error(result, tmp_path):
    with pytest.raises(StoreError, match="the report cannot be written"):
        report_of(result).write(tmp_path / "nowhere" / "report.html")


def test_names_in_a_report_are_escaped(tmp_path):
    """In the title, in a heading, in a table, in a figure."""
    name = "<script>alert(1)<"
    path = write_session(tmp_path / name, master_events(), addresses={1: f"{name}/script>"})
    identity = path / "session.json"
    identity.write_text(identity.read_text().replace('"broker-a"', json.dumps(name)))
    html = report_of(replay_here(path)).html()
    assert name not in html
    assert html.count("&lt;script&gt;alert(1)&lt;") >= 5


@pytest.mark.full
def test_what_if_report_has_each_point_beside_the_recording(tmp_path):
    model = model_of(*find_model_sessions([write_pair(tmp_path / "<b>pair", closed_loop(1, rounds=150))]))
    points = grid(model.scenario, [count_axis("slaves", "slaves", ["0", "2"], low=0, high=SLAVES_MAX)])
    html = what_if_report(document(predict(model, points))).html()
    assert_fetches_nothing(html)
    assert "<b>pair" not in html
    assert "What if: &lt;b&gt;pair" in html
    rows = ["recorded", "model, as recorded", "slaves=0", "slaves=2"]
    latency, lag, status = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert re.findall(r'y="[^"]+">([^<]+)</text>', latency) == rows
    assert re.findall(r'y="[^"]+">([^<]+)</text>', lag) == ["recorded", "model, as recorded", "slaves=2"]
    assert re.findall(r"</i>(\w+)</li>", latency) == ["p50", "p90", "p99"]
    assert "<title>SLAVE_NOT_AVAILABLE 150 (100.0%)</title>" in status
    assert "<script src" not in html
    assert len(html) < 100_000


def test_report_names_violations(result):
    points = points_of(report_of(result).html())
    assert any(re.fullmatch("1 of [0-9]+ invariants do not hold: 1 violations.", point) for point in points)
    assert any(point.startswith("nothing-dropped, at ") for point in points)


def test_times_of_charts_are_those_of_the_zone(result):
    here, there = (
        charts_of(report_of(result, zone=zone).html())[LAG]["first"]
        for zone in (UTC, ZoneInfo("Asia/Kolkata"))
    )
    assert there - here == (5 * 60 + 30) * 60_000
