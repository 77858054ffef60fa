"""Master and slave of controller mode, each the real one, over trio's memory streams."""

from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio
from attrs import define, field
from trio.testing import memory_stream_pair

from tests.ha.autoswitch.support import begin_epoch, epochs_of, make_slave, open_epoch_store, put
from tests.ha.support import SETTINGS, Events
from tests.sessions.sessions import Event, as_array, write_session
from tests.store.support import FILE_BYTES, log_bytes
from trioha.config.keys.ha import GapPolicy
from trioha.ha.autoswitch.master import AutoSwitchMaster
from trioha.ha.autoswitch.set_keeper import SetKeeper
from trioha.ha.set_commit import SetReplicas
from trioha.ha.sync_state_set import SyncStateSet
from trioha.recording.events import NO_CONNECTION, CloseReason, HaState, Kind
from trioha_sessions.invariants import SessionSettings, check, results_of


@pytest.fixture
def stores(tmp_path):
    return {number: open_epoch_store(tmp_path / str(number)) for number in (1, 2, 3)}


class Master:
    """A life of a master, whose sync-state set is only itself."""

    def __init__(self, store, own_id):
        log = store.commit_log
        keeper = SetKeeper()
        self.set = SyncStateSet(
            own_id,
            members=frozenset((own_id,)),
            set_epoch=1,
            epoch_start_offset=store.epochs.entries[-1].start_offset,
            confirm_offset=0,
            log_end=lambda: log.max_offset,
            observers=(keeper,),
            all_ack=True,
        )
        self.master = AutoSwitchMaster(
            commit_log=log,
            replicas=SetReplicas(self.set, term_start_offset=log.max_offset),
            settings=SETTINGS,
            sink=Events(),
            epochs=lambda: store.epochs.table,
        )


@asynccontextmanager
async def following(stores, master_id, *slave_ids, **options):
    """A master and its slaves; yields the master and the slaves."""
    life = Master(stores[master_id], master_id)
    ports = count(50000)
    async with trio.open_nursery() as nursery:

        async def connect(_dialing):
            near, far = memory_stream_pair()

            async def serve():
                await life.master.serve_stream(far, host="127.0.0.1", port=next(ports))

            nursery.start_soon(serve)
            await trio.lowlevel.checkpoint()
            return near

        slaves = [
            make_slave(stores[number], dialer=connect, broker_id=number, **options)[0] for number in slave_ids
        ]
        for slave in slaves:
            nursery.start_soon(slave.run)
        yield life, *slaves
        nursery.cancel_scope.cancel()


async def equal(stores, master_id, *slave_ids):
    """Wait until logs and epochs are the same."""
    log = stores[master_id].commit_log
    with trio.fail_after(60):
        for number in slave_ids:
            while log_bytes(stores[number].commit_log) != log_bytes(log):  # noqa: ASYNC110 - bounded
                await trio.sleep(0.1)
            assert epochs_of(stores[number]) == epochs_of(stores[master_id])


async def test_slaves_follow_through_elections_and_orphans_are_cut(stores, autojump_clock):
    begin_epoch(stores[1], 1)
    put(stores[1], *(b"first" * 500 for _ in range(40)))
    async with following(stores, 1, 2, 3) as (life, *slaves):
        await equal(stores, 1, 2, 3)
        put(stores[1], b"live")
        await equal(stores, 1, 2, 3)
        assert all(slave.is_connected() for slave in slaves)
        assert life.master.connections
    shared_end = stores[1].commit_log.max_offset
    put(stores[1], *(b"orphan" * 300 for _ in range(50)))
    assert stores[1].commit_log.max_offset > shared_end + FILE_BYTES
    begin_epoch(stores[3], 2)
    put(stores[3], *(b"second" * 400 for _ in range(9)))
    async with following(stores, 3, 1, 2):
        await equal(stores, 3, 1, 2)
    put(stores[3], b"orphan of epoch 2")
    begin_epoch(stores[2], 3)
    put(stores[2], b"third")
    async with following(stores, 2, 1, 3) as (life, *_):
        await equal(stores, 2, 1, 3)
        # The same master, a higher epoch, twice at once: each slave gets both.
        begin_epoch(stores[2], 5)
        life.set.epoch_start_offset = stores[2].commit_log.max_offset
        put(stores[2], b"fifth")
        begin_epoch(stores[2], 6)
        put(stores[2], b"sixth")
        await trio.sleep(11)
        await equal(stores, 2, 1, 3)
    assert [epoch for epoch, _ in epochs_of(stores[1])] == [1, 2, 3, 5, 6]


async def test_a_slave_below_its_masters_log_says_so_and_begins_anew_if_it_may(stores, autojump_clock):
    begin_epoch(stores[1], 1)
    put(stores[1], b"both have this" * 50)
    async with following(stores, 1, 2):
        await equal(stores, 1, 2)
    log = stores[1].commit_log
    while log.max_offset < 3 * FILE_BYTES:
        put(stores[1], b"m" * 4000)
    log.flushed.advance(log.max_offset)
    log.delete_first_file()
    async with following(stores, 1, 2) as (_, slave):
        await trio.sleep(30)
        assert slave.last_close_reason is CloseReason.GAP
        assert "GAP" in slave.status().verdict
    async with following(stores, 1, 2, gap_policy=GapPolicy.RESYNC):
        await equal(stores, 1, 2)
    assert stores[2].commit_log.min_offset == FILE_BYTES


async def test_the_confirm_offset_reaches_the_slave(stores, autojump_clock):
    begin_epoch(stores[1], 1)
    put(stores[1], b"a", b"b")
    end = stores[1].commit_log.max_offset
    async with following(stores, 1, 2) as (life, slave):
        await equal(stores, 1, 2)
        await trio.sleep(6)
        assert slave.confirm_offset == life.set.confirm_offset
        assert slave.confirm_offset <= end


@define
class TimedEvents(Events):
    """Events with their virtual times, as a session has them."""

    recorded: list[Event] = field(factory=list)

    def emit(self, kind, *, conn=NO_CONNECTION, offset=0, aux=0, size=0, flags=0):
        now_ns = int(trio.current_time() * 1e9)
        self.recorded.append(
            Event(now_ns, kind, conn=conn, offset=offset, aux=aux, size=size, flags=int(flags))
        )


async def test_a_slaves_recording_breaks_no_invariant_where_its_log_was_cut(stores, tmp_path, autojump_clock):
    events, ids = TimedEvents(), count(1)
    begin_epoch(stores[1], 1)
    put(stores[1], *(b"first" * 500 for _ in range(40)))
    async with following(stores, 1, 2, events=events, connection_ids=ids):
        await equal(stores, 1, 2)
        await trio.sleep(30)
    cut_at = stores[1].commit_log.max_offset
    put(stores[2], *(b"orphan" * 300 for _ in range(50)))
    begin_epoch(stores[1], 2)
    put(stores[1], b"second")
    async with following(stores, 1, 2, events=events, connection_ids=ids):
        await equal(stores, 1, 2)
        await trio.sleep(30)
    records = as_array(write_session(tmp_path / "session", events.recorded[:1]), events.recorded).copy()
    records["seq"] = range(len(records))
    assert {event.flags for event in events.recorded if event.kind == Kind.STATE} >= {HaState.HANDSHAKE}
    assert any(event.kind == Kind.REPORTED and event.offset < cut_at < event.aux for event in events.recorded)
    settings = SessionSettings(True, {"haHousekeepingInterval": 20_000})
    found = results_of(check(records, settings, is_first=True))
    assert {one.invariant.name: one.violations for one in found if one.count} == {}
    assert sum(one.checked for one in found) > 0
