"""Replays on Spark: the same as in one process; tables, views and progress."""

from datetime import UTC

import pytest

from tests.analysis.replays import (
    arrow_tables,
    document,
    replay_here,
    report_of,
    short_tables,
    write_reconnecting_slaves,
    write_recordings,
)
from tests.sessions.sessions import MasterModel, write_session
from trioha.errors import StoreError
from trioha_analysis.arrow_tables import SCHEMAS
from trioha_analysis.reports.session_report import session_report
from trioha_analysis.state_at import open_readers
from trioha_sessions.clocks import links
from trioha_spark import parts, plan, results
from trioha_spark.replay import replay
from trioha_spark.tables import check_written

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.fixture(scope="module")
def tables(spark, recordings):
    found = replay([recordings], spark=spark)
    yield found
    found.unpersist()


@pytest.fixture(scope="module")
def slaves(tmp_path_factory):
    return write_reconnecting_slaves(tmp_path_factory.mktemp("slaves"), slaves=2, turns=4, frames=6)


def rows_of(table):
    return sorted(map(str, table.to_pylist()))


def test_spark_replays_as_one_process_does(tables, recordings, tmp_path, spark):
    for name, table in arrow_tables(replay_here(recordings)).items():
        found = tables[name].toArrow()
        assert found.schema.equals(SCHEMAS[name]), name
        assert rows_of(found) == rows_of(table), name
    write_session(tmp_path / "session", MasterModel(11).run(700), segment_records=150)
    write_session(tmp_path / "without-records", [])
    found = replay([tmp_path], spark=spark, range_records=70)
    assert found.collect() == short_tables(replay_here(tmp_path))


@pytest.mark.nightly
def test_parts_of_a_session_join_in_a_tree(tmp_path, spark, monkeypatch):
    monkeypatch.setattr(plan, "RUN_RANGES_MAX", 1)
    monkeypatch.setattr(parts, "JOINED_MAX", 3)
    path = write_session(tmp_path / "session", MasterModel(11).run(700), segment_records=150)
    expected = replay_here(path)
    (session,) = expected.sessions
    # Three levels: 27 parts would be one.
    assert -(-session.node.events // 20) > 9
    assert replay([path], spark=spark, range_records=20).collect() == short_tables(expected)


@pytest.mark.full
def test_a_recording_without_records_has_empty_tables(tmp_path, spark):
    write_session(tmp_path / "session", [])
    found = replay([tmp_path / "session"], spark=spark)
    assert found.collect() == short_tables(replay_here(tmp_path / "session"))
    assert found.seconds.count() == 0


@pytest.mark.full
def test_executors_write_the_tables(tmp_path, spark, tables):
    out = tmp_path / "new" / "tables"
    for _ in range(2):
        # Again: tables that are there are replaced.
        tables.write(out)
        for name in SCHEMAS:
            found = spark.read.parquet(str(out / f"{name}.parquet")).toArrow()
            assert found.schema.equals(SCHEMAS[name]), name
            assert rows_of(found) == rows_of(tables[name].toArrow()), name


@pytest.mark.full
def test_rows_on_other_machines_disks_are_missed(tmp_path, tables):
    tables.write(tmp_path)
    rows = tables.seconds.count()
    check_written(tmp_path / "seconds.parquet", rows=rows)
    with pytest.raises(StoreError, match=f"2 of {rows + 2} rows were written to other machines' disks"):
        check_written(tmp_path / "seconds.parquet", rows=rows + 2)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="the tables cannot be written"):
        tables.write(tmp_path / "file" / "tables")


@pytest.mark.full
def test_links_and_what_they_say_of_causes_are_those_of_whole_sessions(slaves, spark, monkeypatch):
    monkeypatch.setattr(results, "WORKS_PER_TASK", 3)
    found = replay([slaves], spark=spark).collect()
    assert found["links"].num_rows == 8
    assert found == short_tables(replay_here(slaves), links(open_readers([slaves])))


@pytest.mark.full
def test_sessions_of_other_brokers_are_not_compared(tmp_path, spark):
    write_reconnecting_slaves(tmp_path, slaves=1, turns=2, frames=3)
    identity = tmp_path / "1-slave" / "session.json"
    identity.write_text(identity.read_text().replace('"broker-a"', '"broker-b"'))
    assert replay([tmp_path], spark=spark).links.count() == 0


@pytest.mark.full
def test_a_report_is_that_of_one_process(slaves, spark):
    found = replay([slaves], spark=spark)
    page = session_report(found.reports(), found.collect(), zone=UTC)
    expected = report_of(replay_here(slaves), links(open_readers([slaves])), zone=UTC)
    assert page.html() == expected.html()


def test_views_answer_sql(spark, tables):
    names = tables.create_views()
    assert "trioha_seconds" in names
    (row,) = spark.sql("select max(lagBytes), count(*) from trioha_seconds").collect()
    assert tuple(row) == (500, 4)
    for name in names:
        spark.catalog.dropTempView(name)


@pytest.mark.full
def test_tables_join(tables):
    joined = tables.violations.join(tables.invariants, ["session", "invariant"]).select("seq", "violations")
    assert [tuple(row) for row in joined.collect()] == [(21, 1)]
    late = tables.waits.where("status = 'FLUSH_SLAVE_TIMEOUT'").select("count", "waitedMs.max").collect()
    assert [tuple(row) for row in late] == [(1, 20.0)]
    with pytest.raises(KeyError):
        tables["_results"]


@pytest.mark.full
def test_progress_counts_the_tasks_of_several_sessions(spark, tmp_path):
    for name, seed in (("a", 11), ("b", 12)):
        write_session(tmp_path / name, MasterModel(seed).run(1500), segment_records=500)
    seen = []
    cut = replay(
        [tmp_path], spark=spark, range_records=20, watch=lambda done, tasks: seen.append((done, tasks))
    )
    expected = replay_here(tmp_path)
    assert cut.collect() == short_tables(expected)
    tasks = seen[-1][1]
    # Sixteen ranges each at most.
    assert tasks >= sum(row["events"] for row in document(expected)["sessions"]) // (16 * 20)
    assert seen == sorted(seen)
    assert seen[-1] == (tasks, tasks)
    assert {all_ for _, all_ in seen} == {tasks}


def test_path_without_a_session_is_refused_before_spark_is_needed(tmp_path):
    with pytest.raises(StoreError, match="not a session, nor a folder of sessions"):
        replay([tmp_path])
