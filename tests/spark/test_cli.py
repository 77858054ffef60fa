"""The command `trioha replay`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import BufferReader, parquet

import trioha_spark
from tests.sessions.sessions import Event, slave_events, write_session
from trioha.cli import main
from trioha.extras import how_to_install
from trioha.recording.events import Kind

SPARK_FOLDER = Path(trioha_spark.__file__).parent.parent


def trioha(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "trioha", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(SPARK_FOLDER), **environment},
    )


@pytest.fixture
def session(tmp_path):
    return write_session(tmp_path / "recordings" / "session", slave_events(), role="SLAVE", broker_id=1)


@pytest.mark.spark
def test_replay_prints_only_json_and_writes_the_report_and_its_tables(session, tmp_path):
    report, out = tmp_path / "report.html", tmp_path / "new" / "tables"
    done = trioha(
        *("replay", session.parent, "--master", "local[1]", "--json", "--report", report, "--out", out)
    )
    assert done.returncode == 0
    # Nothing but progress, on a slow machine.
    assert all(line.startswith("replaying on Spark: ") for line in done.stderr.splitlines()), done.stderr
    document = json.loads(done.stdout)
    names = {
        *("sessions", "connections", "reconnects", "outages", "probes", "gaps", "waits", "causes", "links"),
        *("roles", "invariants", "violations"),
    }
    assert set(document) == names
    assert [row["receivedOffset"] for row in document["connections"]] == [1300, 1500]
    assert report.stat().st_size > 10_000
    assert {path.stem for path in out.iterdir()} == {*names, "seconds", "events"}
    seconds = [
        row
        for part in (out / "seconds.parquet").glob("*.parquet")
        for row in parquet.read_table(BufferReader(part.read_bytes())).to_pylist()
    ]
    assert sorted((row["conn"], row["receivedOffset"], row["reportedOffset"]) for row in seconds) == [
        (1, 1300, 1300),
        (2, 1500, 1300),
    ]


@pytest.mark.spark
@pytest.mark.full
def test_replay_of_a_session_that_breaks_an_invariant_prints_tables_and_exits_with_1(
    tmp_path, shared_spark, capsys
):
    back = Event(200, Kind.REPORTED, conn=2, offset=1299, aux=1500)
    path = write_session(tmp_path / "session", [*slave_events(), back], role="SLAVE", broker_id=1)
    assert main(["replay", str(path)]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("Sessions", "Connections", "READY EOF", "1 do not"):
        assert text in shown
    assert "reports-go-forward: reported 1299 after 1300" in shown


@pytest.mark.full
@pytest.mark.spark
def test_unknown_spark_master_is_one_line(session):
    done = trioha("replay", session, "--master", "nonsense")
    assert done.returncode == 2
    assert done.stderr.startswith("trioha: Spark on nonsense did not start: ")
    assert done.stderr.count("\n") == 1


def test_missing_java_is_one_line_before_anything_else(session, tmp_path):
    done = trioha("replay", session, PATH=str(tmp_path), JAVA_HOME="")
    assert done.returncode == 2
    assert done.stderr.startswith("trioha: Spark needs Java 17 or newer, and there is none; install Java 17")
    assert done.stderr.count("\n") == 1


def test_missing_folders_are_one_line(session, tmp_path, capsys):
    assert main(["replay", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == (
        f"trioha: {tmp_path / 'nowhere'}: no such folder; name a session, or a folder of sessions\n"
    )
    assert main(["replay", str(session), "--report", str(session / "no" / "r.html")]) == 2
    assert "its folder does not exist" in capsys.readouterr().err


def test_missing_extra_names_what_to_install(session, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "trioha_spark", None)
    monkeypatch.delitem(sys.modules, "trioha_spark.java", raising=False)
    assert main(["replay", str(session)]) == 2
    error = capsys.readouterr().err
    assert how_to_install("spark") in error
    assert error.count("\n") == 1
