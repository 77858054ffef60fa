"""The story of a put does not depend on chunks and archives; a slave's connection is the best fit."""

import pytest

from tests.analysis.archives import write_archive
from tests.analysis.test_asking import MS, master_events, slave_events
from tests.levels import by_level
from tests.sessions.sessions import Event, MasterModel, write_session
from trioha.errors import TriohaError
from trioha.recording.events import HaState, Kind, PutStatus
from trioha_analysis import explain as module
from trioha_analysis.explain import explain
from trioha_analysis.state_at import open_readers
from trioha_sessions.session_reader import SessionReader


def stories(readers, requests):
    def story(request):
        try:
            return explain(readers, request)
        except TriohaError as error:
            return str(error)

    return [story(request) for request in requests]


def in_chunks(readers, chunk_records):
    """The same sessions, read in chunks of so many records."""
    return [SessionReader(reader.session, chunk_records=chunk_records) for reader in readers]


REQUESTS = ["slowest", "failed", "@1999", "@1000", "@99999", *map(str, range(7))]


@pytest.fixture
def sessions(tmp_path):
    folder = tmp_path / "recordings"
    return [
        write_session(folder / "a-0", master_events(), addresses={1: "10.0.0.2:41000"}, segment_records=9),
        write_session(folder / "a-1", slave_events(), role="SLAVE", broker_id=1, segment_records=5),
    ]


@pytest.mark.parametrize("chunk_records", [1, 4])
def test_stories_do_not_depend_on_chunks(sessions, chunk_records):
    readers = open_readers(sessions)
    expected = stories(readers, REQUESTS)
    assert stories(in_chunks(readers, chunk_records), REQUESTS) == expected
    assert len({str(story) for story in expected}) == 5 + 3


@pytest.mark.full
@pytest.mark.sized
def test_stories_of_a_model_do_not_depend_on_chunks(tmp_path, monkeypatch):
    requests = ["slowest", "failed", *map(str, range(20)), *(f"@{at}" for at in range(0, 20_000, 1400))]
    for seed in range(by_level(1, 3, 40)):
        path = write_session(tmp_path / str(seed), MasterModel(seed).run(300), segment_records=70)
        readers = open_readers([path])
        expected = stories(readers, requests)
        with monkeypatch.context() as patch:
            # Records of a put that are not close together are searched in the whole session.
            patch.setattr(module, "NEAR_RECORDS", 1)
            assert stories(in_chunks(readers, 13), requests) == expected, seed
        assert sum(isinstance(story, dict) for story in expected) > 5


@pytest.mark.full
def test_a_put_in_an_archive_is_explained_as_that_of_its_sessions(sessions, s3_bucket):
    write_archive(s3_bucket.url, sessions=sessions)
    requests = ["slowest", "@1999", "5"]
    assert stories(open_readers([s3_bucket.url]), requests) == stories(open_readers(sessions), requests)


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
