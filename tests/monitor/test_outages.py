"""What the live view showed is what the replay shows, moment by moment: outages and restarts.

A master and two slaves of a script, 60 s in virtual time. The live view gets a status of the master 10 times
a second. The replay gets what the monitor recorded of the live view, or what the master recorded of itself.
"""

from functools import partial

import pytest
import trio
from attrs import define, evolve, field

from tests.analysis.replays import arrow_tables, replay_here
from tests.monitor.builders import MASTER, connection, master
from tests.monitor.watching import Watch
from tests.sessions.sessions import WALL_NS, Event, write_session
from trioha.recording.events import CloseReason, HaState, Kind
from trioha_analysis.state_at import moment, open_readers
from trioha_monitor.answer_recording import MonitorRecording
from trioha_monitor.cluster import Sample
from trioha_monitor.live import LiveSettings, live_views
from trioha_monitor.replay import open_replay
from trioha_monitor.view import Verdict
from trioha_monitor.watched import Start, Watched

MS = 10**6
TICK_MS, TICKS = 100, 600
PUT_BYTES = 1000
START = 1_000_000
SAMPLED_AFTER_MS, ACKED_AFTER_MS = 10, 50
"""In each tick the master puts, then the monitor asks, then slaves acknowledge, are lost, or come."""
NEAR, FAR = "10.0.0.2", "10.0.0.3"
AWAY = {NEAR: (100, 270), FAR: ()}
MASTER_DOWN = (350, 380)
BACK = {NEAR: 430, FAR: 400}
"""After the master's restart."""
LOST = {NEAR: 500}
"""For good."""


@define
class Scripted:
    """The master, its sessions, and the live view of it."""

    recording: MonitorRecording
    watched: Watched = field(
        factory=lambda: Watched(Start(at_ms=WALL_NS // MS, interval_ms=TICK_MS, named=(MASTER,)))
    )
    views: list = field(factory=list)
    sessions: list = field(factory=list)
    top: int = START
    conns: int = 0
    open: dict = field(factory=dict)
    """Number, address and ack by host."""

    def emit(self, ms, kind, **fields):
        self.sessions[-1][0].append(Event(ms * MS, kind, **fields))

    def connect(self, ms, host, ack):
        self.conns += 1
        address = f"{host}:{40_000 + self.conns}"
        self.open[host] = (self.conns, address, ack)
        events, facts = self.sessions[-1]
        facts.append((len(events), {"type": "connection", "conn": self.conns, "address": address}))
        fields = {"conn": self.conns, "aux": self.top}
        self.emit(ms, Kind.REQUESTED, offset=ack, **fields)
        self.emit(ms, Kind.STATE, offset=ack, flags=HaState.TRANSFER, **fields)
        self.emit(ms, Kind.ACK, offset=ack, **fields)

    def lose(self, ms, host):
        conn, _, ack = self.open.pop(host)
        self.emit(ms, Kind.CLOSED, conn=conn, offset=ack, aux=self.top, flags=CloseReason.EOF)
        return ack

    def sample(self, ms):
        listed = [
            evolve(connection(address, sent=ack, ack=ack, lag=self.top - ack), lag_ms=None)
            for _, address, ack in self.open.values()
        ]
        return Sample(MASTER, WALL_NS // MS + ms, master(self.top, *listed))

    def show(self, sample):
        self.watched.observe(sample)
        self.recording.note(sample, self.watched)
        self.views.append(self.watched.view(sample.at_ms))

    def run(self):
        """Play the script."""
        acks = {}
        self.sessions.append(([], []))
        for tick in range(TICKS):
            ms = tick * TICK_MS
            if MASTER_DOWN[0] <= tick < MASTER_DOWN[1]:
                # Killed: its session breaks off, and its slaves are not listed any more.
                acks |= {host: ack for host, (_, _, ack) in self.open.items()}
                self.open.clear()
                self.show(Sample(MASTER, WALL_NS // MS + ms + SAMPLED_AFTER_MS, fault="Connection refused"))
                continue
            if tick == MASTER_DOWN[1]:
                self.sessions.append(([], []))
            self.top += PUT_BYTES
            self.emit(ms, Kind.PUT, offset=self.top, size=PUT_BYTES)
            self.emit(ms + SAMPLED_AFTER_MS, Kind.FLUSHED, offset=self.top)
            self.show(self.sample(ms + SAMPLED_AFTER_MS))
            if tick == MASTER_DOWN[0] - 1:
                continue
            later_ms = ms + ACKED_AFTER_MS
            for host in (NEAR, FAR):
                if tick in (0, *AWAY[host][1:], BACK[host]):
                    self.connect(later_ms, host, acks.get(host, START))
                elif tick in (*AWAY[host][:1], LOST.get(host)):
                    acks[host] = self.lose(later_ms, host)
                elif host in self.open:
                    conn, address, _ = self.open[host]
                    self.open[host] = (conn, address, self.top)
                    self.emit(later_ms, Kind.ACK, conn=conn, offset=self.top, aux=self.top)
        return self


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    played = Scripted(MonitorRecording(tmp_path_factory.mktemp("monitor")))
    played.recording.start()
    return played.run()


@pytest.fixture(scope="module")
def recorded_by_master(scripted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("master")
    for number, (events, facts) in enumerate(scripted.sessions):
        write_session(folder / str(number), events, other_facts=facts, base_ts_ns=events[0].ts_ns)
    return folder


@pytest.fixture(scope="module")
def recorded_by_monitor(scripted):
    return scripted.recording.stop()


def replayed(path):
    source = open_replay([path])
    while source.work(for_s=1.0):
        pass
    return source


def shown(view):
    """What the table of replicas says; lag in seconds apart."""
    return {
        one.address: (
            *(one.is_connected, one.master_offset, one.ack_offset, one.diff_bytes, one.reconnects),
            one.verdict is Verdict.STALE,
        )
        for one in view.replicas
    }


def worst(series, view):
    """The title of a graph: the worst of the last two minutes."""
    found = series.worst(end_ms=view.time_ms, span_ms=120_000)
    return None if found is None else found.value


@pytest.mark.parametrize("by", ["master", "monitor"])
def test_a_replay_shows_at_each_moment_what_the_live_view_showed(scripted, by, request):
    source = replayed(request.getfixturevalue(f"recorded_by_{by}"))
    # The monitor sees a put when it asks.
    unseen_s = SAMPLED_AFTER_MS / 1000 if by == "master" else 0.0
    lags_s = []
    for live in scripted.views[::2]:
        again = source.view_at(live.time_ms * MS)
        assert shown(again) == shown(live), live.time_ms - WALL_NS // MS
        rows = {one.address: one for one in again.replicas}
        for was in live.replicas:
            one = rows[was.address]
            unseen = unseen_s if was.diff_bytes else 0.0
            assert one.lag_s == pytest.approx(was.lag_s + unseen, abs=1e-9), live.time_ms - WALL_NS // MS
            assert worst(one.lag_history, again) == worst(was.lag_history, live)
            if not was.is_connected and was.for_s > 5 and was.verdict is not Verdict.STALE:
                assert one.lag_history.current.severity is was.lag_history.current.severity
            if (oldest_s := worst(was.lag_s_history, live)) is not None:
                # The monitor does not ask just before an ack.
                assert 0 <= round(worst(one.lag_s_history, again) - oldest_s, 6) <= TICK_MS / 1000
            lags_s.append(was.lag_s)
    # 17 s without the near slave, and the last 10 s.
    assert max(lags_s) > 16.9


def test_searches_stop_where_the_live_view_began_to_show_it(scripted, recorded_by_master):
    source = replayed(recorded_by_master)
    for text, is_so in (
        ("lag > 3s of 10.0.0.2", lambda row: row.lag_s > 3),
        ("lag > 100KB of 10.0.0.2", lambda row: row.diff_bytes > 100 << 10),
    ):
        source.run_until("begin")
        source.run_until(text)
        while source.work(for_s=1.0):
            pass
        first_ms = next(
            view.time_ms
            for view in scripted.views
            if any(row.address.startswith(NEAR) and is_so(row) for row in view.replicas)
        )
        assert source.position.at_ns // MS == first_ms - SAMPLED_AFTER_MS


@pytest.mark.parametrize("tick", [50, 200, 300])
def test_the_state_at_a_time_has_the_lag_that_the_live_view_showed(scripted, recorded_by_master, tick):
    view = scripted.views[tick]
    rows = moment(open_readers([recorded_by_master / "0"]), view.time_ms * MS)["connections"]
    assert {
        row["address"]: (row["isConnected"], row["ackOffset"], row["lagBytes"], round(row["lagSeconds"], 6))
        for row in rows
    } == {
        row.address: (
            *(row.is_connected, row.ack_offset, row.diff_bytes),
            round(row.lag_s + SAMPLED_AFTER_MS / 1000, 6),
        )
        for row in view.replicas
    }


def test_the_table_of_seconds_has_the_lag_that_the_live_view_showed(scripted, recorded_by_master):
    table = arrow_tables(replay_here(recorded_by_master / "0"))["seconds"].to_pylist()
    found, live = {}, {}
    for row in table:
        of = found.setdefault((row["replica"].partition(":")[0], row["atMs"]), [])
        of.append((row["lagBytes"], row["lagSeconds"]))
    for view in scripted.views[: MASTER_DOWN[0]]:
        for row in view.replicas:
            second = row.address.partition(":")[0], view.time_ms // 1000 * 1000
            live.setdefault(second, []).append((row.diff_bytes, row.lag_s))
    assert found.keys() == live.keys()
    for second, shown_ in live.items():
        bytes_, seconds = (max(values) for values in zip(*found[second], strict=True))
        live_bytes, live_s = (max(values) for values in zip(*shown_, strict=True))
        assert bytes_ == live_bytes, second
        assert 0 <= round(seconds - live_s, 6) <= TICK_MS / 1000, second


@pytest.mark.nightly
async def test_a_slave_killed_under_load_is_replayed_as_it_was_seen(start_node, tmp_path):
    """Its process, and puts without it until it is back: by the monitor's recording, and the master's."""
    recorded = {"trioha.recordDir": tmp_path / "recorded"}
    master_node = start_node("m", role="SYNC_MASTER", **recorded)
    start_slave = partial(start_node, "s", role="SLAVE", ha_master_address=master_node.ha_address)
    slave_node = start_slave()
    watch, views = Watch(), []
    recording = MonitorRecording(tmp_path / "monitor")
    seen_by_monitor = recording.start()

    def show(view):
        views.append(view)
        watch.show(view)

    async def load(count):
        await trio.to_thread.run_sync(master_node.load, count)

    def is_in_step(view):
        return any(row.is_connected and row.ack_offset == row.master_offset for row in view.replicas)

    async with trio.open_nursery() as nursery:
        feed = live_views([master_node.listen_address], settings=LiveSettings(on_observed=recording.note))
        nursery.start_soon(feed, show)
        await watch.until(is_in_step)
        await load(100)
        end = await trio.to_thread.run_sync(lambda: master_node.max_offset)
        # Of an ack between its last two answers the monitor would not know.
        await watch.until(lambda view: any(row.ack_offset == end for row in view.replicas))
        slave_node.kill()
        await load(100)
        away = await watch.until(lambda view: any((row.lag_s or 0) > 2 for row in view.replicas))
        await trio.to_thread.run_sync(start_slave)
        back = await watch.until(is_in_step)
        nursery.cancel_scope.cancel()
    recording.stop()
    lost = away.replicas[0]
    assert not lost.is_connected
    assert lost.diff_bytes > 10_000
    by_monitor = replayed(seen_by_monitor)
    for live in views:
        again = by_monitor.view_at(live.time_ms * MS)
        assert [row[:4] for row in shown(again).values()] == [row[:4] for row in shown(live).values()]
    for path in (seen_by_monitor, tmp_path / "recorded"):
        source = replayed(path)
        (row,) = source.view_at(away.time_ms * MS).replicas
        assert (row.is_connected, row.diff_bytes, row.ack_offset) == (False, lost.diff_bytes, lost.ack_offset)
        (row,) = source.view_at(back.time_ms * MS).replicas
        (now,) = back.replicas
        assert (row.is_connected, row.reconnects) == (True, 1)
        # The master recorded what was between two answers, too.
        is_exact = path == seen_by_monitor
        seen = worst(now.lag_history, back)
        assert worst(row.lag_history, back) == seen if is_exact else worst(row.lag_history, back) >= seen
        assert seen >= lost.diff_bytes
        assert worst(row.lag_s_history, back) > 2
        source.run_until("begin")
        source.run_until("lag > 2s")
        while source.work(for_s=1.0):
            pass
        assert not source.view().replicas[0].is_connected
