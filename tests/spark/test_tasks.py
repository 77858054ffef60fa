"""The functions of a replay's tasks, on the rows that Spark would give them: no Java is started."""

from collections import defaultdict
from datetime import UTC

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.analysis.replays import replay_here, write_recordings
from tests.sessions.big_session import DTYPE
from tests.sessions.sessions import MasterModel, write_session
from trioha.errors import StoreError
from trioha.recording.reader import open_session
from trioha_analysis.arrow_tables import arrow_tables, begin_tables, finish_tables, part_name
from trioha_analysis.causes import CauseCounts
from trioha_analysis.document import document
from trioha_analysis.parts import NodePart, Run
from trioha_analysis.replay_result import Detail, plan_replay
from trioha_analysis.reports.session_report import session_report
from trioha_sessions.counters import NodeCounters
from trioha_sessions.invariants import SessionSettings, check
from trioha_sessions.time_series import TimeGrid
from trioha_spark import parts, results
from trioha_spark.plan import session_rows
from trioha_spark.rows import PartRow, SessionRow, batch_of

JOINED = 3


def replay_by_tasks(folder, *, range_records, detail, tables=None):
    plan = plan_replay([folder], range_records=range_records)
    runs = batch_of(plan.runs(), Run)
    found = pa.Table.from_batches(parts.aggregate_batches(iter([runs])))
    while max(found["ordinal"].to_pylist()) > 0:
        groups = defaultdict(list)
        keys = (found[name].to_pylist() for name in ("session", "conn", "ordinal"))
        for row, (session, conn, ordinal) in enumerate(zip(*keys, strict=True)):
            groups[session, conn, ordinal // JOINED].append(row)
        found = pa.concat_tables(
            parts.join_rows(found.take(rows).append_column("place", pa.array([place] * len(rows))))
            for (_, _, place), rows in groups.items()
        )
    sessions = session_rows(plan, detail=detail, tables=tables)
    of_session = np.array(found["session"].to_pylist())
    finished = pa.concat_tables(
        results.finish_session(
            pa.Table.from_batches([batch_of([one], SessionRow)]), found.filter(of_session == one.session)
        )
        for one in sessions
    )
    return plan.finished(results.session_results(finished, plan))


@pytest.fixture
def recordings(tmp_path):
    folder = write_recordings(tmp_path / "recordings")
    write_session(folder / "model", MasterModel(11).run(500), segment_records=150)
    write_session(folder / "without-records", [])
    return folder


@pytest.mark.parametrize("range_records", [20, 1000])
def test_tasks_have_the_result_of_one_process(recordings, range_records):
    expected = replay_here(recordings)
    found = replay_by_tasks(recordings, range_records=range_records, detail=Detail.WHOLE)
    assert document(found) == document(expected)
    tables, of_process = arrow_tables(found), arrow_tables(expected)
    assert all(tables[name].equals(of_process[name]) for name in of_process)


def test_figures_without_series_are_those_of_the_whole_result(recordings):
    expected = replay_here(recordings)
    found = replay_by_tasks(recordings, range_records=100, detail=Detail.FIGURES)
    assert document(found) == document(expected)
    assert not any(
        len(series.steps)
        for session in found.sessions
        for connection in session.connections
        for series in connection.figures.series.values()
    )


def test_a_report_of_curves_is_that_of_the_whole_result(recordings):
    found = replay_by_tasks(recordings, range_records=100, detail=Detail.CURVES)
    whole = session_report(replay_here(recordings), zone=UTC).html()
    assert session_report(found, zone=UTC).html() == whole


def test_a_part_that_is_too_long_is_an_error(tmp_path, monkeypatch):
    session = open_session(write_session(tmp_path / "session", []))
    counters = NodeCounters(kinds={number * 7919: number for number in range(100)})
    node = NodePart(counters, (), check(np.zeros(0, DTYPE), SessionSettings(False, {})), CauseCounts(), ())
    row = PartRow(0, -1, 0, session.path, TimeGrid(0, 1, 1), node, None)
    batch = parts.part_batch([row, row], session)
    longest = batch.slice(0, 1).nbytes
    monkeypatch.setattr(parts, "PART_BYTES_MAX", longest)
    assert parts.part_batch([row, row], session).equals(batch)
    monkeypatch.setattr(parts, "PART_BYTES_MAX", longest - 1)
    with pytest.raises(parts.ReplayError, match=f"a part has {longest:,} bytes"):
        parts.part_batch([row, row], session)


def read_parts(table):
    """A table of one or more parts, with no file left open, as pyarrow leaves those it opens."""
    parts = sorted(table.iterdir()) if table.is_dir() else [table]
    return pa.concat_tables(parquet.read_table(pa.BufferReader(part.read_bytes())) for part in parts)


def test_tasks_write_the_long_tables(recordings, tmp_path):
    out = tmp_path / "tables"
    begin_tables(out)
    found = replay_by_tasks(recordings, range_records=100, detail=Detail.FIGURES, tables=out)
    finish_tables(found, out)
    for name, table in arrow_tables(replay_here(recordings)).items():
        written = read_parts(out / f"{name}.parquet")
        assert sorted(map(str, written.to_pylist())) == sorted(map(str, table.to_pylist())), name
    # Again, with fewer sessions: nothing of the first replay is left.
    begin_tables(out)
    assert list((out / "seconds.parquet").iterdir()) == []


def test_parts_on_other_machines_disks_are_named(recordings, tmp_path):
    out = tmp_path / "tables"
    begin_tables(out)
    found = replay_by_tasks(recordings, range_records=100, detail=Detail.FIGURES, tables=out)
    (out / "seconds.parquet" / part_name(0)).unlink()
    with pytest.raises(StoreError, match="1 parts of the table were written to other machines' disks"):
        finish_tables(found, out)


def test_tables_of_recordings_without_records_are_empty(tmp_path):
    write_session(tmp_path / "recordings" / "empty", [])
    out = tmp_path / "tables"
    begin_tables(out)
    finish_tables(replay_here(tmp_path / "recordings"), out)
    assert read_parts(out / "seconds.parquet").num_rows == 0
