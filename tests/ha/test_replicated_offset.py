"""The replicated offset: what consumers of a master may receive; in virtual time."""

import pytest
import structlog
import trio

from tests.ha.support import settled
from trioha.ha.group_commit import GroupCommitSettings, SlaveQuorum
from trioha.ha.meter import LagClock
from trioha.ha.replicas import Replicas
from trioha.ha.replicated_offset import RECHECK_S, WARN_S, ReplicatedOffset
from trioha.watermark import Watermark


class Master:
    """Replicas and the replicated offset of a master whose log ends at `end`."""

    def __init__(self, *, need=1, start_offset=0, **options):
        self.end = 1000
        settings = GroupCommitSettings(
            copies_needed=need, slave_timeout_s=3.0, sync_flush=False, sync_flush_timeout_s=5.0, **options
        )
        self.replicas = Replicas(gap_bytes_max=1 << 20)
        quorum = SlaveQuorum(settings, self.replicas)
        self.replicated = ReplicatedOffset(
            lambda: quorum.replicated_offset(self.end),
            lambda: self.end,
            acks=self.replicas.acks,
            start_offset=start_offset,
        )

    def acknowledge(self, replica, offset):
        self.replicas.acknowledge(
            ord(replica), replica=replica, ack_offset=offset, lag_clock=LagClock(), has_unsent=False
        )
        self.replicated.update()


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
        seen.append(master.replicated.mark.offset)
    assert seen == offsets


async def test_it_stays_when_slaves_are_gone_and_goes_on_when_they_are_back():
    master = Master()
    master.acknowledge("a", 0)
    master.acknowledge("a", 400)
    master.replicas.forget(ord("a"))
    master.replicated.update()
    assert (master.replicated.mark.offset, master.replicated.limit) == (400, 400)
    master.acknowledge("a", 400)
    master.acknowledge("a", 1000)
    assert master.replicated.limit is None


async def test_a_claim_counts_for_nothing_since_an_observer_makes_one_too():
    master = Master()
    master.acknowledge("o", 1000)
    assert master.replicated.mark.offset == 0
    master.acknowledge("a", 300)
    assert master.replicated.mark.offset == 0
    master.acknowledge("a", 301)
    assert master.replicated.mark.offset == 301


async def test_two_connections_of_a_slave_are_one_copy():
    master = Master(need=2)
    for connection_id in (1, 2):
        for offset in (0, 900):
            master.replicas.acknowledge(
                connection_id, replica="a", ack_offset=offset, lag_clock=LagClock(), has_unsent=False
            )
    master.replicated.update()
    assert master.replicated.mark.offset == 0


async def test_where_puts_need_no_slave_all_is_replicated(nursery, autojump_clock):
    master = Master(need=1, lowers_need=True)
    nursery.start_soon(master.replicated.run)
    assert master.replicated.limit == 0
    await trio.sleep(RECHECK_S + 0.1)
    assert master.replicated.limit is None


async def test_an_ack_counts_at_once(nursery, autojump_clock):
    master = Master()
    nursery.start_soon(master.replicated.run)
    await settled()
    for offset in (0, 400, 1000):
        master.replicas.acknowledge(1, replica="a", ack_offset=offset, lag_clock=LagClock(), has_unsent=False)
        await settled()
        assert master.replicated.mark.offset == offset
    assert trio.current_time() == 0


@pytest.mark.parametrize(("checkpoint_offset", "start_offset"), [(0, 1000), (1, 1), (700, 700), (5000, 1000)])
def test_a_store_starts_with_the_offset_of_its_checkpoint(checkpoint_offset, start_offset):
    replicated = ReplicatedOffset.restored(
        lambda: 0, lambda: 1000, acks=Watermark(), checkpoint_offset=checkpoint_offset
    )
    assert replicated.mark.offset == start_offset


async def test_messages_that_are_held_back_are_logged_once(nursery, autojump_clock):
    master = Master()
    nursery.start_soon(master.replicated.run)
    with structlog.testing.capture_logs() as logs:
        await trio.sleep(10 * WARN_S)
        assert [entry["replicated_offset"] for entry in logs] == [0]
        master.acknowledge("a", 0)
        master.acknowledge("a", 1000)
        await trio.sleep(2 * RECHECK_S)
    assert [entry["log_level"] for entry in logs] == ["warning", "info"]
