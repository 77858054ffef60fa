"""The story of a put from answers of ranges, as tasks give them."""

import pickle
from functools import reduce

import pytest

from tests.analysis.test_asking import MS, master_events, slave_events
from tests.levels import by_level
from tests.recording.sessions import Event, MasterModel, write_session
from trioha.errors import TriohaError
from trioha.recording.events import HaState, Kind, PutStatus
from trioha.recording.records import read_segment
from trioha.recording.session_reader import SessionReader
from trioha.recording.time_series import TimeGrid
from trioha_analysis import explain as module
from trioha_analysis.explain import explain
from trioha_analysis.parts import runs_of
from trioha_analysis.state_at import open_readers


def scan_of(range_records):
    """Answers from ranges of so many records, each read anew, by questions that were sent to it."""

    def scan(asked):
        return [answer(reader, question) for reader, question in asked]

    def answer(reader, question):
        answers = []
        grid = TimeGrid(0, 1, 1)
        for run in runs_of(0, reader.session.path, reader.segments, grid, range_records=range_records):
            one = pickle.loads(pickle.dumps(question))
            for work in run.ranges():
                one.add(read_segment(work.session, work.segment, first=work.first, count=work.count).array)
            answers.append(pickle.loads(pickle.dumps(one)))
        return reduce(lambda earlier, later: earlier.followed_by(later), answers, question)

    return scan


def stories(readers, requests, **how):
    def story(request):
        try:
            return explain(readers, request, **how)
        except TriohaError as error:
            return str(error)

    return [story(request) for request in requests]


REQUESTS = ["slowest", "failed", "@1999", "@1000", "@99999", *map(str, range(7))]


@pytest.mark.parametrize("range_records", [1, 4, 1000])
def test_stories_do_not_depend_on_ranges(tmp_path, range_records):
    write_session(tmp_path / "a-0", master_events(), addresses={1: "10.0.0.2:41000"}, segment_records=9)
    write_session(tmp_path / "a-1", slave_events(), role="SLAVE", broker_id=1, segment_records=5)
    readers = open_readers([tmp_path])
    expected = stories(readers, REQUESTS)
    assert stories(readers, REQUESTS, scan=scan_of(range_records)) == expected
    assert len({str(story) for story in expected}) == 5 + 3


@pytest.mark.full
@pytest.mark.sized
def test_stories_of_a_model_do_not_depend_on_ranges(tmp_path, monkeypatch):
    # Records of a put that are not close together are searched in the whole session.
    monkeypatch.setattr(module, "NEAR_RECORDS", 1)
    requests = ["slowest", "failed", *map(str, range(20)), *(f"@{at}" for at in range(0, 20_000, 1400))]
    for seed in range(by_level(1, 3, 40)):
        path = write_session(tmp_path / str(seed), MasterModel(seed).run(300), segment_records=70)
        readers = open_readers([path])
        found = stories(readers, requests, scan=scan_of(13))
        assert found == stories(readers, requests), seed
        assert sum(isinstance(story, dict) for story in found) > 5


def test_whole_sessions_are_read_by_the_scan_only(tmp_path, monkeypatch):
    write_session(tmp_path / "a-0", master_events(), addresses={1: "10.0.0.2:41000"})
    write_session(tmp_path / "a-1", slave_events(), role="SLAVE", broker_id=1)
    readers = open_readers([tmp_path])
    expected = explain(readers, "1")

    def scan(reader):
        raise AssertionError("a whole session is read")

    monkeypatch.setattr(SessionReader, "scan", scan)
    assert explain(readers, "1", scan=scan_of(4)) == expected


def connected(conn, at_ns, offset, top):
    return [
        Event(at_ns, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.HANDSHAKE),
        Event(at_ns, Kind.REQUESTED, conn=conn, offset=offset, aux=top),
        Event(at_ns, Kind.STATE, conn=conn, offset=-1, aux=top, flags=HaState.TRANSFER),
        Event(at_ns, Kind.ACK, conn=conn, offset=offset, aux=top),
    ]


def put(at_ns, end, request):
    return [
        Event(at_ns, Kind.PUT, offset=end, aux=request, size=500),
        Event(at_ns, Kind.WAIT_BEGIN, offset=end, aux=request, size=2),
    ]


@pytest.fixture
def two_slaves(tmp_path):
    """Two slaves get the same frames until the second one is lost, and its session is there."""
    master = [*connected(1, 0, 1000, 1000), *connected(2, 1, 1000, 1000)]
    slave = [Event(0, Kind.REPORTED, conn=7, offset=1000, aux=1000)]
    for number in range(3):
        at_ns, start = (number + 1) * 10 * MS, 1000 + number * 500
        end = start + 500
        master += put(at_ns, end, number)
        master += [Event(at_ns + MS, Kind.TRANSFER, conn=1, offset=start, aux=end, size=500)]
        if number < 2:
            master += [
                Event(at_ns + MS, Kind.TRANSFER, conn=2, offset=start, aux=end, size=500),
                Event(at_ns + 3 * MS, Kind.ACK, conn=2, offset=end, aux=end),
            ]
            slave += [
                Event(at_ns + 2 * MS, Kind.RECEIVED, conn=7, offset=start, aux=end, size=500),
                Event(at_ns + 2 * MS, Kind.REPORTED, conn=7, offset=end, aux=end),
            ]
        if number > 0:
            # The first slave acknowledges the first two frames at once.
            master += [Event(at_ns + 4 * MS, Kind.ACK, conn=1, offset=end, aux=end)]
        if number == 1:
            master += [Event(at_ns + 4 * MS, Kind.CLOSED, conn=2, offset=end, aux=end)]
        ended = Event(
            at_ns + 5 * MS, Kind.WAIT_END, offset=end, aux=number, size=5000, flags=PutStatus.PUT_OK
        )
        master += [ended]
    write_session(tmp_path / "a-0", master)
    write_session(tmp_path / "a-1", slave, role="SLAVE", broker_id=1)
    return open_readers([tmp_path])


def test_a_slaves_connection_is_the_one_that_fits_best_though_the_put_had_another(two_slaves):
    first, last = explain(two_slaves, "1"), explain(two_slaves, "2")
    assert [clock["conn"] for clock in first["clocks"]] == [2]
    # Only connection 1 was open, which the slave's session does not have.
    assert last["clocks"] == []
    assert {step["what"] for step in last["steps"]} >= {"sent", "acked"}
    assert "received" not in {step["what"] for step in last["steps"]}
