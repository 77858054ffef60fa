"""A monitor's recording: what was seen is shown again, whatever the disk, a kill or a hostile file does."""

import errno
import json
import os
import re
import threading
import zlib
from math import sin
from pathlib import Path

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from tests.monitor.builders import MASTER, SLAVE, connection, master, slave
from tests.monitor.test_roles import OTHER_LEADER, SOCKET, as_master, as_slave
from trioha.broker_status import (
    ArchiveStatus,
    BrokerRuntimeInfo,
    BrokerStatus,
    ControlStatus,
    MemberStatus,
    MetadataStatus,
    PendingStatus,
    TableCopyStatus,
)
from trioha.distribution import Distribution
from trioha.errors import StoreError
from trioha_monitor import answer_recording
from trioha_monitor.answer_file import BlockReader, BlockWriter, pack_block
from trioha_monitor.answer_lines import decode, decode_start, encode, encode_start
from trioha_monitor.answer_recording import MonitorRecording
from trioha_monitor.cluster import Sample
from trioha_monitor.observations import ClockStep, Gap, Listing
from trioha_monitor.replay import answers, open_replay
from trioha_monitor.view import ClusterView, EventKind, Health
from trioha_monitor.watched import Start, Watched

START_MS = 1_790_000_000_000
NAMES = "10.0.0.9:9876"
NEAR, FAR = "10.0.0.2:43112", "10.0.0.3:43188"
MS = 10**6


@define
class Recorded:
    """A monitor that watches nodes, and records what it sees."""

    folder: Path
    named: tuple = (MASTER, SLAVE)
    name_servers: tuple = ()
    now_ms: int = START_MS
    views: list[ClusterView] = field(factory=list)
    watched: Watched = field(init=False)
    recording: MonitorRecording = field(init=False)
    path: Path = field(init=False)

    def __attrs_post_init__(self):
        self.watched = Watched(
            Start(at_ms=self.now_ms, interval_ms=100, named=self.named, name_servers=self.name_servers)
        )
        self.recording = MonitorRecording(self.folder)

    def start(self):
        self.path = self.recording.start()
        return self

    def see(self, *seen, for_s=0.1, down=""):
        """Observations, each time 100 ms later; statuses are answers, and `down` a node without one."""
        for _ in range(round(for_s * 10)):
            for one in seen:
                if not isinstance(one, BrokerStatus):
                    self.observe(evolve(one, at_ms=self.now_ms))
                elif one.address != down:
                    self.observe(Sample(one.address, self.now_ms, one))
            if down:
                self.observe(Sample(down, self.now_ms, fault="Connection refused"))
            self.views.append(self.watched.view(self.now_ms))
            self.now_ms += 100
        return self

    def observe(self, seen):
        self.watched.observe(seen)
        self.recording.note(seen, self.watched)

    def stop(self):
        return self.recording.stop()


def busy(recorded, ticks=400):
    """A master with two slaves at 10 Hz: one is lost after three quarters, the master itself at the end."""
    for tick in range(ticks):
        top = 1_000_000 + tick * 24_000
        near, far = int(60_000 + 50_000 * sin(tick / 9)), int(900_000 * (1 + sin(tick / 40)))
        listed = [connection(NEAR, sent=top, ack=top - near, lag=near)]
        if tick < ticks * 3 // 4:
            listed.append(connection(FAR, sent=top - far // 2, ack=top - far, lag=far))
        is_down = tick >= ticks - ticks // 20
        recorded.see(master(top, *listed), slave(top - near), down=MASTER if is_down else "")
    return recorded


def finished(path):
    source = open_replay([path], clock_s=lambda: 0.0)
    while source.work(for_s=1.0):
        pass
    return source


def as_replayed(view):
    return evolve(view, is_live=False, interval_s=0.0)


def assert_shows(source, views):
    """The replay shows these views, every figure, event and graph of them."""
    for view in views:
        assert source.view_at(view.time_ms * MS) == as_replayed(view), view.time_ms - START_MS


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    seen = busy(Recorded(tmp_path_factory.mktemp("recordings")).start())
    seen.stop()
    return seen


def member(broker_id, ack, *, in_set=True, asked=False):
    return MemberStatus(
        broker_id=broker_id,
        in_set=in_set,
        is_required=in_set or asked,
        is_connected=ack is not None,
        ack_offset=ack,
    )


def with_control(status, **changes):
    return evolve(status, control=evolve(status.control, **changes))


def failover(recorded):
    """Broker 1 is master of epoch 4 and broker 2 its slave; then the reverse, in epoch 5."""
    acked = (member(1, 1000), member(2, 1000))
    of_set = {"confirm_offset": 1000, "sync_state_set_epoch": 7}
    recorded.see(as_master(MASTER, 1, 4, members=acked, **of_set), as_slave(SLAVE, 2, 4, MASTER, 1), for_s=2)
    ahead = (member(1, 1500), member(2, 1000))
    longer = as_master(MASTER, 1, 4, offset=1500, members=ahead, **of_set)
    behind = connection(SOCKET, sent=1500, ack=1000, lag=500)
    recorded.see(evolve(longer, connections=(behind,)), as_slave(SLAVE, 2, 4, MASTER, 1), for_s=0.5)
    alone = {
        "sync_state_set": (2,),
        "sync_state_set_epoch": 8,
        "leader": OTHER_LEADER,
        "members": (member(1, 1000, in_set=False, asked=True), member(2, 1000)),
    }
    new_master = as_master(SLAVE, 2, 5, peer=False, **alone)
    recorded.see(with_control(as_slave(MASTER, 1, 5, SLAVE, 2, offset=1500), log_epoch=4), new_master)
    recorded.see(with_control(as_slave(MASTER, 1, 5, SLAVE, 2), leader=None), new_master, for_s=1)
    both = {**alone, "sync_state_set": (1, 2), "sync_state_set_epoch": 9, "members": acked}
    return recorded.see(as_slave(MASTER, 1, 5, SLAVE, 2), as_master(SLAVE, 2, 5, **both), for_s=2)


# -- what is shown again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["forward", "backward", "mixed"])
def test_a_replay_shows_every_view_that_was_seen(recorded, order):
    source = finished(recorded.path)
    turns = {"forward": slice(None), "backward": slice(None, None, -1), "mixed": slice(7, None, 37)}
    views = recorded.views[turns[order]]
    if order == "mixed":
        views = [each for pair in zip(views, reversed(views), strict=True) for each in pair]
    assert_shows(source, views)


def test_a_replay_shows_the_same_while_it_still_reads(recorded):
    source = open_replay([recorded.path], clock_s=lambda: 0.0)
    assert source.overview_share == 0
    assert_shows(source, recorded.views[::13])
    assert_shows(source, recorded.views[::-29])


def test_checkpoints_are_bounded_and_change_nothing(recorded, monkeypatch):
    monkeypatch.setattr(answers, "CHECKPOINTS_MAX", 4)
    source = finished(recorded.path)
    assert_shows(source, recorded.views[::-17])


def test_roles_sets_and_controllers_are_shown_again_with_their_events(tmp_path):
    seen = failover(Recorded(tmp_path).start())
    source = finished(seen.stop())
    assert_shows(source, seen.views)
    view = source.view_at(seen.now_ms * MS)
    assert {event.kind for event in view.events} >= {EventKind.ROLE, EventKind.SET, EventKind.CUT}


def test_name_servers_and_found_nodes_are_shown_again(tmp_path):
    seen = Recorded(tmp_path, named=(MASTER,), name_servers=(NAMES,)).start()
    seen.see(Listing(NAMES, 0, (MASTER, SLAVE), 1), master(1000), for_s=0.3)
    seen.see(master(1000), slave(1000), ClockStep(0, -3000), for_s=0.2)
    seen.see(Listing(NAMES, 0, fault="no answer"), master(1000), slave(1000), for_s=0.2)
    seen.see(Listing(NAMES, 0, (MASTER,)), master(1000), for_s=0.2)
    source = finished(seen.stop())
    for view in seen.views:
        # The recording begins after the node was found.
        again = evolve(source.view_at(view.time_ms * MS), events=())
        assert again == evolve(as_replayed(view), events=())
    texts = [event.text for event in source.view_at(seen.now_ms * MS).events]
    assert "this machine's wall clock was set back by 3.0 s" in texts
    assert "no longer listed by the name server" in texts


def test_a_recording_that_begins_later_begins_with_what_is_shown(tmp_path):
    seen = Recorded(tmp_path, named=(MASTER,), name_servers=(NAMES,))
    far = connection(FAR, sent=1000, ack=900, lag=100)
    seen.see(Listing(NAMES, 0, (MASTER, SLAVE)), master(1000, far), slave(900), for_s=3)
    # The slave is down since.
    seen.see(master(1000, far), slave(900), for_s=60, down=SLAVE)
    seen.start()
    begun = seen.now_ms
    seen.see(master(2000, connection(FAR, sent=2000, ack=900, lag=1100)), for_s=1)
    source = finished(seen.stop())
    assert source.position.start_ns == begun * MS
    for view in seen.views[-10:]:
        again = source.view_at(view.time_ms * MS)
        for node, was in zip(again.nodes, view.nodes, strict=True):
            assert (node.label, node.role, node.health, node.reason) == (
                *(was.label, was.role, was.health),
                was.reason,
            )
            assert node.log.max_offset == was.log.max_offset
        assert again.name_servers == view.name_servers
        assert [
            (row.address, row.ack_offset, row.master_offset, row.diff_bytes) for row in again.replicas
        ] == [(row.address, row.ack_offset, row.master_offset, row.diff_bytes) for row in view.replicas]
    assert [node.health for node in again.nodes] == [Health.UP, Health.DOWN]


def test_an_impossible_answer_is_shown_again_as_a_failure(tmp_path):
    seen = Recorded(tmp_path).start().see(master(1000), slave(1000))
    lines = [encode(Sample(MASTER, seen.now_ms, evolve(master(1000), min_offset=-7)))]
    path = seen.stop()
    with path.open("ab") as file:
        file.write(pack_block(lines[0], lines=1, first_ms=seen.now_ms, last_ms=seen.now_ms))
    source = finished(path)
    assert source.view_at(seen.now_ms * MS).nodes[0].log.min_offset == 0


# -- moving -----------------------------------------------------------------------------------------------


def run_until(source, text):
    source.run_until(text)
    while source.work(for_s=1.0):
        pass
    return source.position.at_ns // MS


def test_searches_find_the_moments_at_which_a_lag_was_seen(recorded):
    source = finished(recorded.path)

    def begins(limit, address):
        def lag(view):
            return next((row.diff_bytes for row in view.replicas if row.address == address), 0)

        held = [lag(view) > limit for view in recorded.views]
        return [
            view.time_ms
            for view, before, now in zip(recorded.views[1:], held, held[1:], strict=False)
            if now and not before
        ]

    expected = begins(100_000, NEAR)
    assert len(expected) > 3
    source.run_until("begin")
    found = [run_until(source, f"lag > 100000 of {NEAR}") for _ in expected]
    assert found == expected
    run_until(source, "lag > 100000 of 10.0.0.99")
    assert source.state().note == "not found: lag > 100000 of 10.0.0.99"
    source.run_until("end")
    source.turn()
    assert [run_until(source, f"lag > 100000 of {NEAR}") for _ in expected] == expected[::-1]
    lost = next(event for event in recorded.views[-1].events if event.kind is EventKind.LOST)
    source.turn()
    source.run_until("begin")
    assert run_until(source, "event lost") == lost.time_ms


def test_a_moment_that_is_not_read_yet_is_shown_once_it_is(recorded):
    source = open_replay([recorded.path], clock_s=lambda: 0.0)
    last = recorded.views[-1]
    source.seek(last.time_ms)
    assert source.state().goal
    assert source.position.at_ns == source.position.start_ns
    while source.work(for_s=1.0):
        pass
    assert (source.position.at_ns // MS, source.state().goal) == (last.time_ms, "")


def test_the_lag_under_the_axis_is_the_worst_that_was_seen(recorded):
    lag = finished(recorded.path).state().lag
    worst = max(row.diff_bytes for view in recorded.views for row in view.replicas if row.diff_bytes)
    assert max(bucket.value for bucket in lag.buckets if bucket) == worst
    assert lag.first * lag.bucket_ms == START_MS


def test_a_recording_that_goes_on_is_followed(tmp_path):
    seen = busy(Recorded(tmp_path).start(), ticks=60)
    path = seen.stop()
    whole = path.read_bytes()
    half = BlockReader(path).blocks[3].offset
    path.write_bytes(whole[:half])
    source = finished(path)
    source.run_until("end")
    ticks = len(source.state().ticks)
    path.write_bytes(whole)
    source.check_growth()
    while source.work(for_s=1.0):
        pass
    # Who is at the end stays there.
    assert source.position.at_ns == source.position.end_ns == seen.views[-1].time_ms * MS
    assert source.view() == as_replayed(seen.views[-1])
    assert len(source.state().ticks) > ticks
    assert source.state().ticks == finished(path).state().ticks


# -- the disk ---------------------------------------------------------------------------------------------


def test_a_recording_leaves_no_thread_and_can_be_started_again(tmp_path):
    before = set(threading.enumerate())
    recorded = Recorded(tmp_path)
    paths = set()
    for _ in range(3):
        assert not recorded.recording.is_on
        paths.add(recorded.start().path)
        assert recorded.recording.is_on
        assert recorded.see(master(10)).stop() == recorded.path
    assert len(paths) == 3
    assert set(threading.enumerate()) <= before


def test_a_recording_that_is_stopped_at_once_has_what_is_shown(tmp_path):
    recorded = Recorded(tmp_path).see(master(10), slave(5)).start()
    stop = threading.Thread(target=recorded.stop)
    stop.start()
    while stop.is_alive():
        recorded.see(master(20))
    source = finished(recorded.path)
    assert [node.health for node in source.view_at(source.position.start_ns).nodes] == [Health.UP] * 2


def test_a_recording_of_nothing_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("trioha_monitor.answer_recording.FIRST_ANSWER_TIMEOUT_S", 0.01)
    recorded = Recorded(tmp_path).start()
    with pytest.raises(
        StoreError, match=r"monitor\.jsonl\.gz: nothing is recorded: no node answered meanwhile$"
    ):
        recorded.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot record here"):
        MonitorRecording(tmp_path / "file").start()
    with pytest.raises(StoreError, match="cannot record here"):
        MonitorRecording(tmp_path / "file" / "below").start()


def test_what_a_full_disk_refused_is_counted_at_the_stop_and_in_the_replay(tmp_path, monkeypatch):
    written = []
    pwrite = os.pwrite

    def write(descriptor, data, offset):
        written.append(offset)
        if len(written) in {2, 3}:
            # A part of the block is on disk.
            if len(written) == 2:
                return pwrite(descriptor, data[:9], offset)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    seen = Recorded(tmp_path).start()
    busy(seen, ticks=60)
    with pytest.raises(StoreError, match="answers were not recorded: No space left on device") as caught:
        seen.stop()
    missing = int(re.findall(r"failed: (\d+) answers", str(caught.value))[0])
    assert 0 < missing < 60
    source = finished(seen.path)
    texts = [event.text for event in source.view_at(seen.now_ms * MS).events]
    assert f"{missing} answers are missing here: No space left on device" in texts
    assert [node.log for node in source.view().nodes] == [node.log for node in seen.views[0].nodes]
    last = source.view_at(seen.views[-1].time_ms * MS)
    assert [node.log.max_offset for node in last.nodes] == [
        node.log.max_offset for node in seen.views[-1].nodes
    ]


def test_a_disk_that_never_takes_anything_is_reported(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", refuse)
    seen = busy(Recorded(tmp_path).start(), ticks=30)
    with pytest.raises(StoreError, match="60 answers were not recorded: Input/output error"):
        seen.stop()
    with pytest.raises(StoreError, match="not a recording of the monitor: it has no whole block"):
        open_replay([seen.path])


def test_a_slow_disk_costs_answers_and_no_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(answer_recording, "OBSERVATIONS_MAX", 40)
    may_write = threading.Event()
    pwrite = os.pwrite

    def write(*arguments):
        assert may_write.wait(60)
        return pwrite(*arguments)

    monkeypatch.setattr(os, "pwrite", write)
    seen = busy(Recorded(tmp_path).start(), ticks=200)
    may_write.set()
    with pytest.raises(StoreError, match="answers were not recorded: the disk is too slow"):
        seen.stop()
    assert finished(seen.path).position.end_ns > START_MS * MS


def test_a_recording_ends_at_its_limit(tmp_path):
    with (tmp_path / "file").open("wb") as file:
        writer = BlockWriter(file.fileno(), bytes_max=4096)
        writer.begin(encode_start(Start(at_ms=START_MS, interval_ms=100, named=(MASTER,))))

        def write():
            for number in range(1000):
                line = encode(Sample(MASTER, START_MS + number, master(number * 7919)))
                writer.add(line, at_ms=START_MS + number)
                writer.flush()

        with pytest.raises(StoreError, match="limit"):
            write()
    assert (tmp_path / "file").stat().st_size <= 4096
    assert finished(tmp_path / "file").view().nodes[0].health is Health.UP


def test_what_a_killed_monitor_wrote_is_shown_whatever_the_last_byte_is(tmp_path):
    seen = busy(Recorded(tmp_path).start(), ticks=40)
    path = seen.stop()
    whole, last = path.read_bytes(), BlockReader(path).blocks[-1]
    torn = tmp_path / "torn"
    for end in range(last.offset, len(whole)):
        torn.write_bytes(whole[:end])
        source = open_replay([torn])
        assert source.position.end_ns < seen.views[-1].time_ms * MS
    while source.work(for_s=1.0):
        pass
    assert not any(event.kind is EventKind.MARK for event in source.view().events)
    for end in range(BlockReader(path).blocks[0].size):
        torn.write_bytes(whole[:end])
        with pytest.raises(StoreError, match="not a recording"):
            open_replay([torn])


# -- the format -------------------------------------------------------------------------------------------


def everything():
    """A status with a value in every part."""
    status = as_master(MASTER, 1, 4, members=(member(1, 10), member(2, None)))
    latency = Distribution(1, 2, 3, 4)
    return evolve(
        status,
        connections=tuple(evolve(one, ack_latency_us=latency, lag_ms=0) for one in status.connections),
        put_statuses={"PUT_OK": 5},
        probes={"10.0.0.7": {"EOF": 3}},
        unwritten={"config": "no space"},
        table=BrokerRuntimeInfo(booted_ms=1, put_messages_per_s=2.5, disk_ratio=0.25),
        metadata=MetadataStatus(tables={"topics": TableCopyStatus(age_ms=5, entries=2)}),
        archive=ArchiveStatus(url="s3://a", state="running", archived_offset=7),
        pending=PendingStatus(timers=1, popped_groups={"t@g": 2}),
        warnings=("careful",),
    )


@pytest.mark.parametrize(
    "seen",
    [
        Sample(MASTER, START_MS, everything()),
        Sample(SLAVE, START_MS, slave(1000)),
        Sample(SLAVE, START_MS, evolve(slave(0), control=ControlStatus())),
        Sample(MASTER, START_MS, BrokerStatus(source="runtime-info", max_offset=0)),
        Sample(MASTER, START_MS, fault="Connection refused\N{EM DASH}"),
        Listing(NAMES, START_MS, (MASTER,), 2),
        Listing(NAMES, START_MS, ()),
        Listing(NAMES, START_MS, fault="no answer"),
        ClockStep(START_MS, -5),
        Gap(START_MS, 3, "no room"),
    ],
)
def test_every_observation_is_a_line_of_json(seen):
    line = encode(seen)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["at_ms"] == START_MS
    assert decode(line) == seen


def test_the_file_is_a_gzip_file_of_json_lines(recorded):
    data, lines = recorded.path.read_bytes(), []
    while data:
        inflate = zlib.decompressobj(wbits=31)
        lines += inflate.decompress(data).splitlines()
        data = inflate.unused_data
    assert decode_start(lines[0]).named == (MASTER, SLAVE)
    kinds = [json.loads(line)["kind"] for line in lines]
    assert (kinds.count("answer"), kinds.count("no-answer"), len(kinds)) == (780, 20, 801)


def test_what_is_no_recording_is_refused_by_name(tmp_path, recorded):
    with pytest.raises(StoreError, match="not shown beside others"):
        open_replay([recorded.path, recorded.path])
    session = tmp_path / "old"
    session.mkdir()
    (session / "session.json").write_text(
        json.dumps({"format": "trioha-session", "version": 1, "source": "monitor"})
    )
    with pytest.raises(StoreError, match="a monitor of an earlier trioha recorded") as caught:
        open_replay([session])
    assert "\n" not in str(caught.value)
    for version, text in ((2, "it has version '2', this trioha reads 1"), ("\n" * 99, "version")):
        start = json.loads(encode_start(Start(at_ms=1, interval_ms=100)))
        line = json.dumps({**start, "version": version}).encode() + b"\n"
        (tmp_path / "file").write_bytes(pack_block(line, lines=1, first_ms=1, last_ms=1))
        with pytest.raises(StoreError, match=re.escape(text)) as caught:
            open_replay([tmp_path / "file"])
        assert "\n" not in str(caught.value)


HOSTILE_LINES = [
    b"",
    b"7",
    b"[" * 100_000,
    b'{"kind":"answer"}',
    b'{"kind":"answer","at_ms":1,"node":"a","status":{"max_offset":"x"}}',
    b'{"kind":"answer","at_ms":1,"node":"a","status":[]}',
    b'{"kind":"answer","at_ms":1,"node":"a","status":{"connections":{"a":1}}}',
    b'{"kind":"answer","at_ms":1,"node":"a","status":{"source":["ha-status"]}}',
    b'{"kind":"answer","at_ms":1,"node":"a","status":{"table":{"disk_ratio":NaN}}}',
    b'{"kind":"answer","at_ms":1e300,"node":"a","status":{}}',
    b'{"kind":"answer","at_ms":1,"node":7,"status":{}}',
    b'{"kind":"listing","at_ms":1,"name_server":"n","brokers":"abc","invalid":0}',
    b'{"kind":"gap","at_ms":1,"answers":-1,"reason":"r"}',
    b'{"kind":"clock","at_ms":1,"by_ms":9999999999999999999999}',
    b'{"kind":"no-answer","at_ms":1,"node":"a"}',
]


@pytest.mark.parametrize("line", HOSTILE_LINES, ids=range(len(HOSTILE_LINES)))
def test_a_line_that_is_none_is_a_gap_that_is_shown(tmp_path, line):
    with pytest.raises(ValueError, match=r"[a-z]"):
        decode(line)
    start = encode_start(Start(at_ms=START_MS, interval_ms=100, named=(MASTER,)))
    good = encode(Sample(MASTER, START_MS + 1, master(1000)))
    later = encode(Sample(MASTER, START_MS + 2, master(2000)))
    blocks = pack_block(start + good + line + b"\n" + good, lines=4, first_ms=START_MS, last_ms=START_MS + 1)
    blocks += pack_block(later, lines=1, first_ms=START_MS + 2, last_ms=START_MS + 2)
    (tmp_path / "file").write_bytes(blocks)
    source = finished(tmp_path / "file")
    view = source.view_at((START_MS + 2) * MS)
    assert view.nodes[0].log.max_offset == 2000
    (mark,) = [event for event in view.events if event.kind is EventKind.MARK]
    assert mark.text.startswith("2 answers are missing here: ")
    assert "\n" not in mark.text


def test_a_block_that_inflates_without_end_is_not_read(tmp_path, recorded):
    bomb = pack_block(b" " * (64 << 20), lines=1, first_ms=START_MS + 10**6, last_ms=START_MS + 10**6)
    (tmp_path / "file").write_bytes(recorded.path.read_bytes() + bomb)
    source = finished(tmp_path / "file")
    texts = [event.text for event in source.view_at((START_MS + 10**6) * MS).events]
    assert texts[-1].startswith("1 answers are missing here: more than 33554432 bytes of lines")


@given(place=st.integers(0, 10**9), value=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_refused_or_says_what_it_lacks(small, place, value, cut):
    whole, path = small
    data = bytearray(whole)
    place %= len(data)
    data[place] = value
    path.write_bytes(data[:place] if cut else data)
    try:
        source = finished(path)
    except StoreError:
        return
    source.view_at(source.position.end_ns)
    source.view_at(source.position.start_ns)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    seen = busy(Recorded(tmp_path_factory.mktemp("small")).start(), ticks=40)
    whole = seen.stop().read_bytes()
    return whole, tmp_path_factory.mktemp("damaged") / "file"
