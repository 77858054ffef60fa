"""The command `trioha what-if`, and its grid on Spark."""

import json

import pytest

from tests.analysis.pairs import closed_loop, open_loop, write_pair
from trioha.cli import main
from trioha.extras import how_to_install
from trioha_analysis.whatif.answer import combine_repeats
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.model import find_model_sessions, model_of, play


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("recordings") / "session", closed_loop(3, rounds=150))


@pytest.mark.full
@pytest.mark.spark
def test_grid_is_predicted_on_spark_as_in_one_process(session, shared_spark, capsys):
    arguments = ["--rtt", "0,20ms", "--set", "inSyncReplicas=2", "--set", "slaveTimeout=15,3000"]
    assert main(["what-if", str(session), *arguments, "--repeats", "2", "--cores", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["recorded"]["statuses"] == {"PUT_OK": 450}
    model = document["model"]
    assert (model["producers"], model["writers"], model["repeats"], model["puts"]) == ("closed", 3, 2, 900)
    assert abs(model["error"]["p50"]) < 0.2
    points = {tuple(point["changes"].values()): point for point in document["points"]}
    assert set(points) == {("2", timeout, rtt) for timeout in ("15", "3000") for rtt in ("0", "20ms")}
    assert points["2", "15", "20ms"]["statuses"] == {"FLUSH_SLAVE_TIMEOUT": 900}
    assert points["2", "3000", "20ms"]["statuses"] == {"PUT_OK": 900}
    assert points["2", "3000", "20ms"]["latencyMs"]["p50"] == pytest.approx(
        model["latencyMs"]["p50"] + 20, rel=0.05
    )
    assert points["2", "3000", "20ms"]["settings"]["rttSeconds"] == 0.02
    assert points["2", "3000", "20ms"]["settings"]["cores"] == document["recorded"]["settings"]["cores"] == 2
    modelled = model_of(*find_model_sessions([session]), cores=2)
    alone = [figures([play(modelled, modelled.scenario, repeat=repeat)]) for repeat in range(2)]
    assert combine_repeats(alone).latency_ms == model["latencyMs"]


@pytest.mark.full
@pytest.mark.spark
def test_table_has_the_models_error_and_the_report_is_written(session, shared_spark, tmp_path, capsys):
    report = tmp_path / "grid.html"
    assert main(["what-if", str(session), "--slaves", "0,2", "--repeats", "1", "--report", str(report)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "closed loop of 3 writers" in shown
    assert "the model's own error with the settings as recorded: p50 " in shown
    assert "SLAVE_NOT_AVAILABLE 450 (100.0%)" in shown
    page = report.read_text(encoding="utf-8")
    assert "slaves=2" in page
    assert "SLAVE_NOT_AVAILABLE" in page


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
        ("--rtt 1 --repeats 0", "--repeats: 0 is not a number from 1 to 100"),
        ("--rtt 1 --cores 0", "--cores: 0 is not a number from 1 to 1024"),
        (f"--rtt {','.join(map(str, range(1001)))}", "grid: 1001 combinations are too many; at most 1000"),
    ):
        assert main(["what-if", str(session), *text.split()]) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1


def test_recording_without_the_needed_data_is_refused_in_one_line(tmp_path, capsys):
    path = write_pair(tmp_path / "open", open_loop(every_ns=5_000_000, rounds=60))
    assert main(["what-if", str(path), "--writers", "4"]) == 2
    assert "its producers are an open loop, which shows no writers that think" in capsys.readouterr().err
    assert main(["what-if", str(path), "--rtt", "1", "--report", str(tmp_path / "no" / "r.html")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err
    assert main(["what-if", str(tmp_path / "nowhere"), "--rtt", "1"]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_missing_extra_names_what_to_install(session, capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "trioha_analysis.whatif.scenario", None)
    assert main(["what-if", str(session), "--rtt", "1"]) == 2
    error = capsys.readouterr().err
    assert "trioha what-if needs Spark" in error
    assert how_to_install("spark") in error
