"""`trioha replay --explain` of long sessions: tasks of Spark read them, the driver joins their answers."""

import json
from contextlib import contextmanager

import pytest

import trioha.cli.replay as command
from tests.analysis.archives import write_archive
from tests.analysis.test_asking import master_events, slave_events
from tests.recording.sessions import write_session
from trioha.cli import main
from trioha.recording.session_reader import SessionReader
from trioha_spark import explain as module

pytestmark = [pytest.mark.spark, pytest.mark.full]


@pytest.fixture
def sessions(tmp_path):
    folder = tmp_path / "recordings"
    return [
        write_session(folder / "a-0", master_events(), addresses={1: "10.0.0.2:41000"}, segment_records=9),
        write_session(folder / "a-1", slave_events(), role="SLAVE", broker_id=1, segment_records=5),
    ]


@contextmanager
def reading_on(spark, monkeypatch):
    """Every session is too long for the command, which runs on the tests' Spark."""

    @contextmanager
    def shared(master):
        yield spark

    def scan(reader):
        raise AssertionError("the driver reads a whole session")

    with monkeypatch.context() as patch:
        patch.setattr(command, "EXPLAINED_HERE_MAX", 0)
        patch.setattr(module, "spark_session", shared)
        patch.setattr(SessionReader, "scan", scan)
        yield


def test_a_put_of_long_sessions_in_an_archive_is_explained_as_that_of_short_ones(
    spark, sessions, s3_bucket, monkeypatch, capsys
):
    write_archive(s3_bucket.url, sessions=sessions)

    def explained(request, *paths):
        assert main(["replay", *paths, "--explain", request, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    for request in ("slowest", "@1999", "5"):
        here = explained(request, *map(str, sessions))
        with reading_on(spark, monkeypatch):
            assert explained(request, s3_bucket.url) == here


def test_an_unknown_put_of_long_sessions_is_one_line(spark, sessions, monkeypatch, capsys):
    with reading_on(spark, monkeypatch):
        assert main(["replay", *map(str, sessions), "--explain", "77"]) == 2
    assert "--explain 77: no put of that name in these sessions" in capsys.readouterr().err
