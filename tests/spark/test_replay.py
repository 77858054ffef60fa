"""Replays on Spark: the same as in one process; DataFrames, views and progress."""

import pytest

from tests.analysis.replays import replay_here, write_reconnecting_slaves, write_recordings
from tests.sessions.sessions import MasterModel, write_session
from trioha.errors import StoreError
from trioha_analysis.arrow_tables import arrow_tables, finish_tables
from trioha_analysis.document import document, link_row
from trioha_analysis.replay_result import Detail
from trioha_spark import parts, plan
from trioha_spark import replay as replay_module
from trioha_spark.replay import replay
from trioha_spark.tables import create_views, tables

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def result(spark, recordings):
    return replay([recordings], spark=spark)


def test_spark_replays_as_one_process_does(result, recordings, tmp_path, spark):
    assert document(result) == document(replay_here(recordings))
    path = write_session(tmp_path / "session", MasterModel(11).run(700), segment_records=150)
    assert document(replay([path], spark=spark, range_records=70)) == document(replay_here(path))


@pytest.mark.full
def test_parts_of_a_session_join_in_a_tree(tmp_path, spark, monkeypatch):
    monkeypatch.setattr(plan, "RUN_RANGES_MAX", 1)
    monkeypatch.setattr(parts, "JOINED_MAX", 3)
    path = write_session(tmp_path / "session", MasterModel(11).run(700), segment_records=150)
    expected = replay_here(path)
    (session,) = expected.sessions
    # Three levels: 27 parts would be one.
    assert -(-session.node.events // 20) > 9
    assert document(replay([path], spark=spark, range_records=20)) == document(expected)


@pytest.mark.full
def test_executors_write_the_long_tables_and_the_driver_gets_figures(tmp_path, spark, result, recordings):
    out = tmp_path / "tables"
    slim = replay([recordings], spark=spark, detail=Detail.FIGURES, tables=out, links=True)
    finish_tables(slim, out, slim.links)
    expected = arrow_tables(result, slim.links)
    assert document(slim) == document(result)
    assert not any(len(one.series["max"].steps) for one in (c.figures for c in slim.sessions[0].connections))
    for name, table in expected.items():
        found = spark.read.parquet(str(out / f"{name}.parquet")).toArrow()
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, table.to_pylist())), name
    # Their frames differ.
    assert slim.links == ()


@pytest.mark.full
def test_links_compared_by_tasks_are_those_of_the_driver(tmp_path, spark, monkeypatch):
    write_reconnecting_slaves(tmp_path, slaves=2, turns=4, frames=6)
    here = replay([tmp_path], spark=spark, links=True)
    monkeypatch.setattr(replay_module, "COMPARED_HERE_MAX", 0)
    monkeypatch.setattr(replay_module, "LINKS_PER_TASK", 3)
    there = replay([tmp_path], spark=spark, links=True)
    assert len(there.links) == 8
    assert list(map(link_row, there.links)) == list(map(link_row, here.links))


def test_views_answer_sql(spark, result):
    names = create_views(tables(spark, result))
    assert "trioha_seconds" in names
    (row,) = spark.sql("select max(lagBytes), count(*) from trioha_seconds").collect()
    assert tuple(row) == (500, 4)
    for name in names:
        spark.catalog.dropTempView(name)


@pytest.mark.full
def test_violations_are_rows_of_a_dataframe(spark, result):
    found = tables(spark, result)
    joined = found.violations.join(found.invariants, ["session", "invariant"]).select("seq", "violations")
    assert [tuple(row) for row in joined.collect()] == [(21, 1)]


@pytest.mark.full
def test_progress_counts_the_tasks_of_several_sessions(spark, tmp_path):
    for name, seed in (("a", 11), ("b", 12)):
        write_session(tmp_path / name, MasterModel(seed).run(1500), segment_records=500)
    told = []
    cut = replay(
        [tmp_path], spark=spark, range_records=20, watch=lambda done, tasks: told.append((done, tasks))
    )
    assert document(cut) == document(replay([tmp_path], spark=spark))
    tasks = told[-1][1]
    # Eight ranges each at most.
    assert tasks >= sum(row["events"] for row in document(cut)["sessions"]) // (8 * 20)
    assert told == sorted(told)
    assert told[-1] == (tasks, tasks)
    assert {all_ for _, all_ in told} == {tasks}


def test_path_without_a_session_is_refused_before_spark_starts(tmp_path):
    with pytest.raises(StoreError, match="not a session, nor a folder of sessions"):
        replay([tmp_path])


@pytest.mark.full
def test_dataframes_have_the_rows_of_the_tables(spark, result):
    found = tables(spark, result)
    late = found.waits.where("status = 'FLUSH_SLAVE_TIMEOUT'").select("count", "waitedMs.max").collect()
    assert [tuple(row) for row in late] == [(1, 20.0)]
    acked = found.connections.where("role != 'SLAVE'").orderBy("conn").select("ackOffset", "lagBytes.max")
    assert [tuple(row) for row in acked.collect()] == [(1500, 500.0), (2000, 500.0)]
    assert found.sessions.agg({"reconnects": "sum"}).collect()[0][0] == 2
