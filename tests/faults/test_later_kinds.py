"""Faults that came later: a healthy cluster stands each, and a planted defect is found by it."""

import pytest

from tests.faults import cluster as clusters
from tests.faults.cluster import Cluster
from tests.faults.faults import MASTER, ClockJump, IndexFull
from tests.faults.invariants import check_last_store_time
from tests.faults.nodes import INDEX
from tests.faults.plan import HOUR_S, YEAR_S
from tests.faults.planted import (
    index_holds_up_queues,
    lock_not_watched,
    lost_bytes_are_fatal,
    pages_without_limit,
    stamps_never_go_back,
)
from tests.faults.support import plan_of, settle_and_compare
from tests.waiting import wait_until
from trioha.errors import TriohaError

pytestmark = [pytest.mark.process, pytest.mark.full]
SLAVE = "slave-1"


def lie(cluster):
    """Until a slave has asked a liar for two copies, or for far too many pages."""
    cluster.lie(0)
    wait_until(lambda: cluster.liar(0).copies >= 2 or cluster.liar(0).in_a_row > 16)
    cluster.end_lie(0)


def test_a_cluster_outlives_lost_locks_and_a_liar(tmp_path):
    with Cluster(plan_of(), tmp_path) as cluster:
        cluster.begin()
        lie(cluster)
        for name, is_removed in ((SLAVE, True), (MASTER, False)):
            cluster.replace_lock(name, is_removed=is_removed)
            cluster.start(name)
        settle_and_compare(cluster)
    assert cluster.lied_pages


def test_a_slave_that_reads_what_a_liar_has_is_found(tmp_path):
    with Cluster(plan_of(), tmp_path, programs={SLAVE: pages_without_limit.program}) as cluster:
        cluster.begin()
        lie(cluster)
    assert any("pages of 8 MiB in one copy" in found for found in cluster.violations), cluster.violations


def test_a_node_that_goes_on_without_its_lock_file_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "LOCK_LOST_WITHIN_S", 4.0)
    with Cluster(plan_of(), tmp_path, programs={MASTER: lock_not_watched.program}) as cluster:
        cluster.begin()
        with pytest.raises(AssertionError, match="goes on without its lock file"):
            cluster.replace_lock(MASTER, is_removed=True)


@pytest.mark.parametrize(("jump_s", "is_planted"), [(HOUR_S, False), (10 * YEAR_S, False), (HOUR_S, True)])
def test_after_a_clock_that_was_wrong_records_are_stored_now_and_else_it_is_found(
    tmp_path, jump_s, is_planted
):
    plan = plan_of(faults=[ClockJump(node=MASTER, jump_s=jump_s, duration_s=0.5)])
    programs = {MASTER: stamps_never_go_back.program} if is_planted else {}
    with Cluster(plan, tmp_path, programs=programs) as cluster:
        cluster.begin()
        cluster.jump_clock(MASTER, jump_s)
        promised = len(cluster.promises)
        wait_until(lambda: len(cluster.promises) > promised + 10)
        cluster.jump_clock(MASTER, 0)
        settle_and_compare(cluster)
        found = check_last_store_time(cluster.store(MASTER))
    assert bool(found) == is_planted, found


def cut_when_possible(cluster):
    """Cut the master's oldest log file once there are newer ones enough; returns what puts it back."""
    put_back = None
    while put_back is None:
        promised = len(cluster.promises)
        wait_until(lambda promised=promised: len(cluster.promises) > promised + 20)
        put_back = cluster.cut_log_file(MASTER)
    return put_back


def test_a_log_file_that_is_cut_fails_its_readers_only(tmp_path):
    with Cluster(plan_of(file_bytes=65536), tmp_path) as cluster:
        cluster.begin()
        cut_when_possible(cluster)()
        settle_and_compare(cluster)
    assert cluster.cut_log_files == 1


def test_a_node_that_ends_where_its_log_is_cut_is_found(tmp_path):
    programs = {MASTER: lost_bytes_are_fatal.program}
    with Cluster(plan_of(file_bytes=65536), tmp_path, programs=programs) as cluster:
        cluster.begin()
        with pytest.raises((AssertionError, TriohaError)):
            cut_when_possible(cluster)()


@pytest.mark.parametrize("is_planted", [False, True])
def test_queues_that_wait_for_room_for_the_index_are_found(tmp_path, monkeypatch, is_planted):
    plan = plan_of(faults=[IndexFull(node=MASTER, duration_s=1.0)])
    programs = {MASTER: index_holds_up_queues.program} if is_planted else {}
    with Cluster(plan, tmp_path, programs=programs) as cluster:
        cluster.begin()
        cluster.fill_index(MASTER)
        promised = len(cluster.promises)
        wait_until(lambda: len(cluster.promises) > promised + INDEX.index_num)
        if is_planted:
            monkeypatch.setattr(clusters, "CAUGHT_UP_WITHIN_S", 3.0)
            with pytest.raises(AssertionError, match="has no room for its index"):
                cluster.free_index(MASTER)
        else:
            cluster.free_index(MASTER)
            end_offset = settle_and_compare(cluster)
            assert cluster.check_end(end_offset) == []
