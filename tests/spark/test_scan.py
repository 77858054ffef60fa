"""The functions of a replay's tasks, on the rows that Spark would give them: no Java is started."""

import pickle
from collections import defaultdict
from datetime import UTC

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.analysis.replays import replay_here, write_recordings
from tests.sessions.sessions import MasterModel, write_session
from trioha.errors import StoreError
from trioha_analysis.arrow_tables import arrow_tables, begin_tables, finish_tables, part_name
from trioha_analysis.document import document
from trioha_analysis.replay_result import Detail, plan_replay
from trioha_analysis.reports.session_report import session_report
from trioha_spark import scan

JOINED = 3


def replay_by_tasks(folder, *, range_records, detail, tables=None):
    plan = plan_replay([folder], range_records=range_records)
    rows = [row for run in plan.runs() for row in scan._aggregated(pickle.dumps(run))]
    parts_max = 1 + max(ordinal for _, _, ordinal, _ in rows)
    while parts_max > 1:
        groups = defaultdict(list)
        for session, conn, ordinal, part in rows:
            place = ordinal // JOINED
            groups[session, conn, place].append((session, conn, place, ordinal, part))
        names = ["session", "conn", "place", "ordinal", "part"]
        tables_of_groups = [_table(group, names) for group in groups.values()]
        rows = [tuple(scan._join(table).to_pylist()[0].values()) for table in tables_of_groups]
        parts_max = -(-parts_max // JOINED)
    sessions = [(session.path, seen) for session, seen in zip(plan.sessions, plan.seen, strict=True)]
    found = {}
    for index in {session for session, _, _, _ in rows}:
        own = [(session, conn, part) for session, conn, _, part in rows if session == index]
        (row,) = scan._finish(_table(own, ["session", "conn", "part"]), sessions, detail, tables).to_pylist()
        found[row["session"]] = pickle.loads(scan._decompressed(row["result"]))
    return plan.finished(found)


def _table(rows, names):
    return pa.Table.from_arrays([pa.array(column) for column in zip(*rows, strict=True)], names=names)


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
