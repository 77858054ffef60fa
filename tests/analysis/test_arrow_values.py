"""What travels between processes of a replay is as it was after a way through Arrow."""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.analysis.replays import replay_here, write_recordings
from tests.sessions.group_sessions import failover, write_group
from tests.sessions.sessions import MasterModel, slave_events, write_session
from trioha.archive.access import Location
from trioha.archive.session_paths import ObjectPath
from trioha.recording.reader import Segment
from trioha_analysis.arrow_values import arrow_type, from_arrow, to_arrow
from trioha_analysis.parts import NodePart, Run, aggregate_run, join_connection, join_node
from trioha_analysis.replay_plan import plan_replay
from trioha_analysis.session_replay import SessionReplay
from trioha_sessions.aggregate import ConnectionPart
from trioha_sessions.invariants.group import GroupResult


def plain(value):
    """A value as tuples, which can be compared."""
    if isinstance(value, np.ndarray):
        return value.shape, value.tolist()
    if isinstance(value, Enum) or callable(value):
        return value
    if attrs.has(type(value)):
        return type(value), *(plain(getattr(value, one.name)) for one in attrs.fields(type(value)))
    if isinstance(value, Mapping):
        return tuple((key, plain(one)) for key, one in value.items())
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return value


def through(value, of, session=None):
    """As a process gets it that reads what another one has written."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": to_arrow([value], of, session)})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    (read,) = pa.ipc.open_stream(sink.getvalue())
    return from_arrow(read["value"][0], of, session)


@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(1, 250),
    range_records=st.integers(5, 100),
    segment_records=st.sampled_from((20, 45, 1000)),
    is_slave=st.booleans(),
)
def test_parts_of_any_cut_are_the_same_after_their_way(
    tmp_path_factory, *, seed, steps, range_records, segment_records, is_slave
):
    events = slave_events() if is_slave else MasterModel(seed).run(steps)
    assume(events)
    path = write_session(
        tmp_path_factory.mktemp("cut") / "session",
        events,
        segment_records=segment_records,
        role="SLAVE" if is_slave else "SYNC_MASTER",
    )
    plan = plan_replay([path], range_records=range_records)
    (session,), (grid,) = plan.sessions, plan.grids
    here, there = [], []
    for run in plan.runs(run_ranges=2):
        assert through(run, Run) == run
        node, connections = aggregate_run(run)
        here.append((node, connections))
        there.append(
            (
                through(node, NodePart, session),
                {conn: through(part, ConnectionPart) for conn, part in connections.items()},
            )
        )
    assert plain(there) == plain(here)
    assert plain(joined(there, grid)) == plain(joined(here, grid))


def joined(parts, grid):
    conns = sorted({conn for _, connections in parts for conn in connections})
    return join_node([node for node, _ in parts]), [
        join_connection([found[conn] for _, found in parts if conn in found], grid) for conn in conns
    ]


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    folder = write_recordings(tmp_path_factory.mktemp("recordings"))
    write_session(folder / "model", MasterModel(11).run(500), segment_records=150)
    write_session(folder / "without-records", [])
    return folder


def test_results_are_the_same_after_their_way(recordings):
    for one in replay_here(recordings).sessions:
        found = through(one, SessionReplay, one.session)
        assert plain(found) == plain(one)
        # Reconnects are of the connections beside them.
        assert all(each.connection in found.connections for each in found.reconnects)


def test_roles_and_groups_are_the_same_after_their_way(tmp_path):
    result = replay_here(write_group(tmp_path / "group", failover().values()), range_records=10)
    assert any(one.life for one in result.sessions)
    for one in result.sessions:
        assert plain(through(one, SessionReplay, one.session)) == plain(one)
    assert plain([through(one, GroupResult) for one in result.groups]) == plain(result.groups)


def test_a_path_of_an_object_storage_keeps_its_access():
    path = ObjectPath(Location("s3://bucket/archive", (("aws_region", "here"),)), "recordings/one/1.seg")
    segment = Segment(path, 5, 7, 0, 9)
    found = through(segment, Segment)
    assert found == segment
    assert found.path.location == path.location
    assert through(Segment(Path("/a/b"), 5, 7, 0, 9), Segment).path == Path("/a/b")


def test_types_without_columns_are_refused():
    @attrs.frozen
    class Unknown:
        value: Any
        numbers: "np.ndarray[tuple[int], np.dtype[np.float32]]"

    with pytest.raises(TypeError, match="has no Arrow type"):
        arrow_type(Unknown)
