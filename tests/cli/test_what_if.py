"""The command `trioha what-if`: its table, its JSON, its page, and what it refuses."""

import json
import sys

import pytest

from tests.analysis.pairs import closed_loop, open_loop, write_pair
from trioha.cli import main
from trioha.extras import how_to_install
from trioha.recording.events import Kind


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("recordings") / "session", closed_loop(1, rounds=450))


@pytest.fixture(scope="module")
def outage(tmp_path_factory):
    """The puts of the middle third end 90 ms late: something that the acks do not show."""
    events = open_loop(every_ns=100_000_000, rounds=300)
    late = [event for event in events if event.kind == Kind.WAIT_END][100:200]
    late_ids = {event.aux for event in late}
    moved = [
        type(event)(event.ts_ns + 90_000_000, *(getattr(event, name) for name in FIELDS))
        if event.kind == Kind.WAIT_END and event.aux in late_ids
        else event
        for event in events
    ]
    moved = [event for event in moved if event.kind != Kind.ACK or event.aux // 1000 not in late_ids]
    return write_pair(tmp_path_factory.mktemp("recordings") / "outage", moved)


FIELDS = ("kind", "conn", "offset", "aux", "size", "flags")


def test_json_has_the_models_error_and_all_points_of_the_grid(session, capsys):
    arguments = ["--rtt", "0,20ms", "--set", "inSyncReplicas=2", "--set", "slaveTimeout=15,3000"]
    assert main(["what-if", str(session), *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["session", "doubt", "recorded", "model", "points"]
    assert document["doubt"] is None
    assert document["recorded"]["statuses"] == {"PUT_OK": 450}
    model = document["model"]
    assert (model["producers"], model["writers"], model["puts"]) == ("closed", 1, 450)
    assert abs(model["error"]["p50"]) < 0.1
    points = {tuple(point["changes"].values()): point for point in document["points"]}
    assert set(points) == {("2", timeout, rtt) for timeout in ("15", "3000") for rtt in ("0", "20ms")}
    assert points["2", "15", "20ms"]["statuses"] == {"FLUSH_SLAVE_TIMEOUT": 450}
    slow = points["2", "3000", "20ms"]
    assert slow["statuses"] == {"PUT_OK": 450}
    assert slow["latencyMs"]["p50"] == pytest.approx(model["latencyMs"]["p50"] + 20, rel=0.01)
    low, high = slow["latencyRangeMs"]["p50"]
    assert low <= slow["latencyMs"]["p50"] <= high
    assert slow["settings"]["rttSeconds"] == 0.02


def test_the_recording_and_the_models_error_come_before_the_predictions(session, tmp_path, capsys):
    report = tmp_path / "grid.html"
    assert main(["what-if", str(session), "--slaves", "0,2", "--report", str(report)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    rows = (
        "closed loop of 1 writers",
        "recorded ",
        "model, as recorded ",
        "model's error ",
        "slaves=0 ",
    )
    places = [shown.index(row) for row in rows]
    assert places == sorted(places)
    assert "SLAVE_NOT_AVAILABLE 450 (100.0%)" in shown
    page = report.read_text(encoding="utf-8")
    assert page.index("model, as recorded") < page.index("slaves=2")


def test_a_model_that_is_off_on_the_recording_predicts_nothing(outage, tmp_path, capsys):
    report = tmp_path / "grid.html"
    asked = ["what-if", str(outage), "--rtt", "7ms", "--report", str(report)]
    assert main(asked) == 1
    shown = capsys.readouterr().out
    assert "the model is off by p50 " in shown
    assert "no prediction; --force prints it all the same" in shown
    assert "rtt=7ms" not in shown
    page = report.read_text(encoding="utf-8")
    warning = page.index('<p class="warning">the model is off by p50 ')
    assert warning < page.index("model, as recorded")
    assert "rtt=7ms" not in page
    assert main([*asked, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["doubt"].startswith("the model is off by p50 ")
    assert document["points"] == []
    assert main([*asked, "--force"]) == 0
    assert "rtt=7ms" in capsys.readouterr().out
    page = report.read_text(encoding="utf-8")
    assert "the predictions below are not to be relied on" in page
    assert "rtt=7ms" in page


def test_invalid_options_are_refused_in_one_line(session, capsys):
    for text, line in (
        ("", "what-if: nothing is asked; as in --set inSyncReplicas=3 or --rtt 5ms"),
        ("--set inSyncReplica=2", "inSyncReplica: there is no such setting; one of brokerRole, inSync"),
        ("--set haHousekeepingInterval=9", "haHousekeepingInterval: is not modelled; one of brokerRole,"),
        ("--set inSyncReplicas=0", "inSyncReplicas: 0 is out of range; give 1 to 2147483647"),
        ("--rtt soon", "--rtt: 'soon' is not a time; as in 5ms, 200us or 0.1s"),
        ("--bandwidth 0", "--bandwidth: '0' is not an amount above 0; a number, with k, M, G"),
        ("--slaves -1", "--slaves: '-1' is not a number from 0 to 64"),
        ("--writers 2 --rate 10", "--rate: --writers are of a closed loop, this is of an open one"),
        ("--rtt 1 --producers some", "--producers: 'some' is not one of closed, open, auto"),
        (f"--rtt {','.join(map(str, range(1001)))}", "grid: 1001 combinations are too many; at most 1000"),
        (
            "--set trioha.haAckMode=flushed --set flushDiskType=SYNC_FLUSH --slaves 65",
            "is not a number from 0",
        ),
    ):
        assert main(["what-if", str(session), *text.split()]) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1


def test_options_that_are_no_more_are_refused_by_name(session, capsys):
    for option in ("--cores", "--repeats", "--master"):
        assert main(["what-if", str(session), "--rtt", "1", option, "2"]) == 2
        assert option in capsys.readouterr().err


def test_recording_without_the_needed_data_is_refused_in_one_line(tmp_path, capsys):
    path = write_pair(tmp_path / "open", open_loop(every_ns=5_000_000, rounds=60))
    assert main(["what-if", str(path), "--writers", "4"]) == 2
    assert "its producers are an open loop, which shows no writers that think" in capsys.readouterr().err
    assert main(["what-if", str(path), "--rtt", "1", "--report", str(tmp_path / "no" / "r.html")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert main(["what-if", str(tmp_path / "nowhere"), "--rtt", "1"]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_missing_extra_names_what_to_install(session, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "trioha_analysis.whatif.scenario", None)
    assert main(["what-if", str(session), "--rtt", "1"]) == 2
    error = capsys.readouterr().err
    assert "trioha what-if needs the analysis of recordings" in error
    assert how_to_install("spark") in error
