"""The functions of a replay's tasks, on the rows that Spark would give them: no Java is started."""

from collections import defaultdict
from datetime import UTC

import numpy as np
import pyarrow as pa
import pytest

from tests.analysis.replays import arrow_tables, replay_here, report_of, short_tables, write_recordings
from tests.sessions.big_session import DTYPE
from tests.sessions.sessions import MasterModel, write_session
from trioha.recording.reader import open_session
from trioha_analysis.arrow_tables import SESSION_TABLES
from trioha_analysis.arrow_values import from_arrow
from trioha_analysis.causes import CauseCounts
from trioha_analysis.parts import NodePart, Run
from trioha_analysis.replay_plan import plan_replay
from trioha_analysis.reports.session_report import session_report
from trioha_analysis.session_replay import SessionReplay
from trioha_sessions.counters import NodeCounters
from trioha_sessions.invariants import SessionSettings, check
from trioha_sessions.time_series import TimeGrid
from trioha_spark import parts, results
from trioha_spark.plan import session_rows
from trioha_spark.rows import PartRow, SessionRow, batch_of, table_in

JOINED = 3


def replay_by_tasks(folder, *, range_records):
    """The rows of results, of one session after the other, and the sessions."""
    plan = plan_replay([folder], range_records=range_records)
    runs = batch_of(plan.runs(), Run)
    found = pa.Table.from_batches(parts.aggregate_batches(iter([runs])))
    while max(found["ordinal"].to_pylist()) > 0:
        groups = defaultdict(list)
        keys = (found[name].to_pylist() for name in ("session_index", "conn", "ordinal"))
        for row, (session, conn, ordinal) in enumerate(zip(*keys, strict=True)):
            groups[session, conn, ordinal // JOINED].append(row)
        found = pa.concat_tables(
            parts.join_rows(found.take(rows).append_column("place", pa.array([place] * len(rows))))
            for (_, _, place), rows in groups.items()
        )
    of_session = np.array(found["session_index"].to_pylist())
    finished = pa.concat_tables(
        results.finish_session(
            pa.Table.from_batches([batch_of([one], SessionRow)]),
            found.filter(of_session == one.session_index),
        )
        for one in session_rows(plan)
    )
    return finished, plan.sessions


@pytest.fixture
def recordings(tmp_path):
    folder = write_recordings(tmp_path / "recordings")
    write_session(folder / "model", MasterModel(11).run(500), segment_records=150)
    write_session(folder / "without-records", [])
    return folder


@pytest.mark.parametrize(("range_records", "rows_max"), [(20, 7), (1000, 4096)])
def test_tasks_have_the_tables_of_one_process(recordings, monkeypatch, range_records, rows_max):
    monkeypatch.setattr(results, "TABLE_ROWS_MAX", rows_max)
    found, _ = replay_by_tasks(recordings, range_records=range_records)
    expected = arrow_tables(replay_here(recordings))
    for name in SESSION_TABLES:
        assert table_in(found[name], name).equals(expected[name]), name
    parts_of = np.array(found["part"].to_pylist())
    assert (max(parts_of) > 0) == (rows_max == 7)
    # The rest is in the first row of each session.
    assert [one is not None for one in found["report"].to_pylist()] == (parts_of == 0).tolist()


def test_a_report_is_that_of_the_whole_sessions(recordings):
    found, sessions = replay_by_tasks(recordings, range_records=100)
    expected = replay_here(recordings)
    reports = [
        from_arrow(one, SessionReplay, session)
        for one, session in zip(found["report"], sessions, strict=True)
    ]
    page = session_report(reports, short_tables(expected), zone=UTC)
    assert page.html() == report_of(expected, zone=UTC).html()


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
