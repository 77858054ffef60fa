"""The confirm offset: what consumers of a master may receive; in virtual time."""

import pytest
import structlog
import trio

from trioha.ha.confirm_offset import RECHECK_S, WARN_S, ConfirmOffset
from trioha.ha.group_commit import GroupCommitSettings, SlaveQuorum
from trioha.ha.meter import LagClock
from trioha.ha.replicas import Replicas


class Master:
    """Replicas and the confirm offset of a master whose log ends at `end`."""

    def __init__(self, *, need=1, start_offset=0, **options):
        self.end = 1000
        settings = GroupCommitSettings(
            copies_needed=need, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0, **options
        )
        self.confirm = ConfirmOffset(
            lambda: quorum.replicated_offset(self.end), lambda: self.end, start_offset=start_offset
        )
        self.replicas = Replicas(gap_bytes_max=1 << 20, on_acknowledged=self.confirm.update)
        quorum = SlaveQuorum(settings, self.replicas)

    def acknowledge(self, replica, offset):
        self.replicas.acknowledge(
            ord(replica), replica=replica, ack_offset=offset, lag_clock=LagClock(), has_unsent=False
        )


@pytest.mark.parametrize(
    ("need", "offsets"), [(1, [100, 300, 300, 700]), (2, [0, 100, 200, 300]), (3, [0, 0, 100, 200])]
)
async def test_it_is_the_ack_of_as_many_slaves_as_a_put_needs(need, offsets):
    master = Master(need=need)
    for replica in "abc":
        master.acknowledge(replica, 0)
    seen = []
    for replica, offset in [("a", 100), ("b", 300), ("c", 200), ("a", 700)]:
        master.acknowledge(replica, offset)
        seen.append(master.confirm.mark.offset)
    assert seen == offsets


async def test_it_stays_when_slaves_are_gone_and_goes_on_when_they_are_back():
    master = Master()
    master.acknowledge("a", 0)
    master.acknowledge("a", 400)
    master.replicas.forget(ord("a"))
    master.confirm.update()
    assert (master.confirm.mark.offset, master.confirm.limit) == (400, 400)
    master.acknowledge("a", 400)
    master.acknowledge("a", 1000)
    assert master.confirm.limit is None


async def test_a_claim_confirms_nothing_since_an_observer_makes_one_too():
    master = Master()
    master.acknowledge("o", 1000)
    assert master.confirm.mark.offset == 0
    master.acknowledge("a", 300)
    assert master.confirm.mark.offset == 0
    master.acknowledge("a", 301)
    assert master.confirm.mark.offset == 301


async def test_two_connections_of_a_slave_are_one_copy():
    master = Master(need=2)
    for connection_id in (1, 2):
        for offset in (0, 900):
            master.replicas.acknowledge(
                connection_id, replica="a", ack_offset=offset, lag_clock=LagClock(), has_unsent=False
            )
    assert master.confirm.mark.offset == 0


async def test_where_puts_need_no_slave_all_is_confirmed(nursery, autojump_clock):
    master = Master(need=1, lowers_need=True)
    nursery.start_soon(master.confirm.run)
    assert master.confirm.limit == 0
    await trio.sleep(RECHECK_S + 0.1)
    assert master.confirm.limit is None


@pytest.mark.parametrize(("checkpoint_offset", "start_offset"), [(0, 1000), (1, 1), (700, 700), (5000, 1000)])
def test_a_store_starts_with_the_offset_of_its_checkpoint(checkpoint_offset, start_offset):
    confirm = ConfirmOffset.restored(lambda: 0, lambda: 1000, checkpoint_offset=checkpoint_offset)
    assert confirm.mark.offset == start_offset


async def test_messages_that_are_held_back_are_logged_once(nursery, autojump_clock):
    master = Master()
    nursery.start_soon(master.confirm.run)
    with structlog.testing.capture_logs() as logs:
        await trio.sleep(10 * WARN_S)
        assert [entry["confirm_offset"] for entry in logs] == [0]
        master.acknowledge("a", 0)
        master.acknowledge("a", 1000)
        await trio.sleep(2 * RECHECK_S)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
