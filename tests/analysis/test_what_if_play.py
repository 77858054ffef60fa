"""Recorded stages played with other settings: what can be reckoned by hand, and the settings' grid."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trioha.config.broker import BrokerRole
from trioha.config.keys.ha import AckMode
from trioha.config.keys.store import FlushDiskType
from trioha.errors import ConfigError
from trioha.recording.events import PutStatus
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.play import Disk, frame_count, play
from trioha_analysis.whatif.recorded import Runs, Stages
from trioha_analysis.whatif.scenario import Scenario, bandwidth_axis, grid, rtt_axis, setting_axes

PAIR = Scenario()
SIZE = 1000


def stages(*ack_ms, send_ms=0.05, answer_ms=0.02, think_ms=0.5, sync_ms=2.0, gap_ms=0.0):
    """A row for each argument: the ack of each slave."""
    ack_s = np.array(ack_ms or [[0.3]]) / 1e3
    return Stages(
        send_s=np.full(ack_s.shape, send_ms / 1e3),
        ack_s=ack_s,
        answer_s=np.full(len(ack_s), answer_ms / 1e3),
        append_gap_s=gap_ms / 1e3,
        end_gap_s=0.0,
        think_s=np.array([think_ms / 1e3]),
        sync_s=np.array([sync_ms / 1e3]),
        sync_bytes=SIZE,
    )


def paced(rate, *, count=200, puts=1):
    """Runs of an open loop, with what `play` looks at."""
    none = np.full(count, np.nan)
    return Runs(
        append_s=np.arange(count) / rate,
        append_span_s=np.zeros(count),
        puts=np.full(count, puts),
        bytes=np.full(count, puts * SIZE),
        end_offset=np.arange(1, count + 1) * puts * SIZE,
        end_s=none,
        end_span_s=none,
        status=np.zeros(count, np.int64),
        copies=np.ones(count, np.int64),
        turn=np.arange(count),
        sent_s=none[:, None],
        acked_s=none[:, None],
        flushed_s=none,
        sync_s=np.zeros(0),
        sync_bytes=np.zeros(0, np.int64),
    )


def played(scenario, runs, found, *, writers=0, syncs_are_added=False, serial=0.0, seed=1):
    return play(
        runs,
        found,
        scenario,
        writers=writers,
        syncs_are_added=syncs_are_added,
        serial=serial,
        frame_serial=serial,
        seed=seed,
    )


def waited_ms(outcome):
    return ((outcome.end_s - outcome.append_s) * 1e3).tolist()


def test_a_put_alone_takes_its_stages_and_what_was_added():
    """0.05 ms until it is sent, 1,012 bytes at 1 MB/s, 0.3 ms for the ack, 5 ms of the link, 0.02 ms."""
    (one,) = waited_ms(played(PAIR, paced(1, count=1), stages()))
    assert one == pytest.approx(0.05 + 0.3 + 0.02)
    slow = evolve(PAIR, bandwidth_bytes_per_s=1e6, rtt_s=0.005)
    (one,) = waited_ms(played(slow, paced(1, count=1), stages()))
    assert one == pytest.approx(0.05 + 1.012 + 0.3 + 5 + 0.02)


def test_a_put_waits_for_the_serial_part_of_the_one_before():
    """One put each 0.1 ms, of which each holds up the slave for half of its 0.3 ms."""
    runs = paced(10_000, count=3)
    assert waited_ms(played(PAIR, runs, stages(), serial=0.5)) == pytest.approx([0.37, 0.42, 0.47])
    assert waited_ms(played(PAIR, runs, stages(), serial=0.0)) == pytest.approx([0.37] * 3)


def test_writers_of_a_closed_loop_come_back_after_their_time_to_think():
    outcome = played(PAIR, paced(1, count=3, puts=4), stages(), writers=4)
    assert outcome.append_s.tolist() == pytest.approx([0] * 4 + [0.00087] * 4 + [0.00174] * 4)
    six = played(evolve(PAIR, writers=6), paced(1, count=4, puts=4), stages(), writers=4)
    assert six.append_s.tolist() == pytest.approx([0] * 6 + [0.00087] * 6)


def test_puts_of_a_run_are_appended_one_after_the_other_and_end_together():
    outcome = played(PAIR, paced(1, count=1, puts=3), stages(gap_ms=0.1))
    assert waited_ms(outcome) == pytest.approx([0.57, 0.47, 0.37])


def test_a_rate_scales_open_puts_and_spreads_those_of_a_closed_loop():
    runs = paced(100, count=4, puts=2)
    faster = played(evolve(PAIR, rate_per_s=400.0), runs, stages())
    assert faster.append_s.tolist() == pytest.approx(np.repeat([0, 1, 2, 3], 2) * 0.02 / 3)
    even = played(evolve(PAIR, rate_per_s=400.0), runs, stages(), writers=1)
    assert np.diff(even.append_s).tolist() == pytest.approx([0.0025] * 7)


def test_the_second_slave_is_waited_for_only_if_it_is_needed():
    found, runs = stages([0.3, 0.9]), paced(300)
    two = evolve(PAIR, slaves=2)
    for changes, expected in (
        ({}, 0.37),
        ({"in_sync_replicas": 3}, 0.97),
        ({"all_ack_in_sync_state_set": True}, 0.97),
        ({"slaves": 4, "in_sync_replicas": 5}, 0.97),
        ({"role": BrokerRole.ASYNC_MASTER}, 0.0),
    ):
        outcome = played(evolve(two, **changes), runs, found)
        assert waited_ms(outcome) == pytest.approx([expected] * 200), changes


def test_flushed_acks_wait_for_the_slaves_disk_and_sync_flush_for_the_masters():
    runs = paced(200)
    flushed = played(evolve(PAIR, ack_mode=AckMode.FLUSHED), runs, stages(), syncs_are_added=True)
    assert waited_ms(flushed) == pytest.approx([2.37] * 200)
    crowded = played(evolve(PAIR, ack_mode=AckMode.FLUSHED), paced(10_000), stages(), syncs_are_added=True)
    # At most the present sync and the next one.
    assert max(waited_ms(crowded)) <= 2 * 2 + 0.37 + 1e-6
    synced = played(evolve(PAIR, flush_disk_type=FlushDiskType.SYNC_FLUSH), runs, stages())
    assert waited_ms(synced) == pytest.approx([2.02] * 200)


def test_a_sync_has_all_that_came_before_it_began():
    disk = Disk()
    assert [disk.synced_s(at_s, 1.0) for at_s in (0.0, 0.2, 0.9, 1.5, 5.0)] == [1.0, 2.0, 2.0, 3.0, 6.0]


def test_frames_of_a_large_run_double():
    small = evolve(PAIR, transfer_batch_bytes=2048)
    assert [frame_count(size, small) for size in (2048, 2049, 9536, 100_000)] == [1, 2, 3, 7]
    assert frame_count(9536, evolve(small, transfer_batch_bytes_max=2048)) == 5
    batches = evolve(PAIR, transfer_batch_bytes=SIZE)
    for serial, more_ms in ((0.0, 0.05), (0.5, 0.05 + 0.15)):
        outcome = played(batches, paced(1, count=1, puts=2), stages(), serial=serial)
        assert waited_ms(outcome) == pytest.approx([0.37 + more_ms] * 2)


def test_slave_without_an_ack_for_too_long_is_not_in_sync():
    """Its link takes 40 s: a put each second times out, until the slave has not acknowledged for 15 s."""
    runs, far = paced(1, count=30), evolve(PAIR, rtt_s=40.0)
    waited, refused = int(PutStatus.FLUSH_SLAVE_TIMEOUT), int(PutStatus.SLAVE_NOT_AVAILABLE)
    assert played(far, runs, stages()).status.tolist() == [waited] * 15 + [refused] * 15
    assert set(played(evolve(far, silence_ms_max=60_000), runs, stages()).status.tolist()) == {waited}
    (axis,) = setting_axes(["haMaxTimeSlaveNotCatchup=5000"])
    (point,) = grid(far, [axis])
    assert played(point.scenario, runs, stages()).status.tolist() == [waited] * 5 + [refused] * 25


def test_puts_end_with_the_status_of_the_settings():
    for changes, status in (
        ({"in_sync_replicas": 3}, "SLAVE_NOT_AVAILABLE"),
        ({"slaves": 0}, "SLAVE_NOT_AVAILABLE"),
        ({"min_in_sync_replicas": 3}, "IN_SYNC_REPLICAS_NOT_ENOUGH"),
        ({"rtt_s": 0.05, "slave_timeout_ms": 20}, "FLUSH_SLAVE_TIMEOUT"),
        ({"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout_ms": 1}, "FLUSH_DISK_TIMEOUT"),
        ({"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, "PUT_OK"),
        ({"role": BrokerRole.ASYNC_MASTER, "slaves": 0}, "PUT_OK"),
    ):
        outcome = played(evolve(PAIR, **changes), paced(100, count=50), stages())
        assert figures([outcome]).statuses == {status: 50}, changes


def test_lag_of_a_slow_link_grows_to_the_bytes_left_over():
    slow = evolve(PAIR, role=BrokerRole.ASYNC_MASTER, bandwidth_bytes_per_s=101_200)
    found = figures([played(slow, paced(200, count=400), stages())])
    # 2 s of 200 kB/s over a link of 100 kB/s and its headers: half of it is left, which takes 2 s more.
    assert found.lag_bytes["max"] == pytest.approx(200_000, rel=0.02)
    assert found.lag_seconds["max"] == pytest.approx(2.0, rel=0.02)


scenarios = st.builds(
    Scenario,
    role=st.sampled_from((BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER)),
    slaves=st.integers(0, 3),
    in_sync_replicas=st.integers(1, 4),
    min_in_sync_replicas=st.integers(1, 3),
    all_ack_in_sync_state_set=st.booleans(),
    enable_auto_in_sync_replicas=st.booleans(),
    slave_timeout_ms=st.sampled_from((1, 5, 3000)),
    sync_flush_timeout_ms=st.sampled_from((1, 5000)),
    flush_disk_type=st.sampled_from(tuple(FlushDiskType)),
    bandwidth_bytes_per_s=st.sampled_from((None, 300_000.0, 1e7)),
    rtt_s=st.sampled_from((0.0, 0.004)),
)


@given(scenarios, st.sampled_from((0, 1, 3)), st.floats(0, 1), st.booleans(), st.integers(0, 99))
def test_put_ok_has_its_copies_and_a_timeout_its_time(scenario, writers, serial, syncs_are_added, seed):
    found = stages([0.2, 0.3], [0.4, 0.1], [9.0, 7.0], answer_ms=0.0)
    near = played(scenario, paced(500), found, writers=writers, serial=serial, seed=seed)
    outcome = played(
        scenario,
        paced(500),
        found,
        writers=writers,
        serial=serial,
        syncs_are_added=syncs_are_added,
        seed=seed,
    )
    assert len(outcome.append_s) == 200
    assert (np.diff(outcome.append_s) >= 0).all()
    waited_s = outcome.end_s - outcome.append_s
    assert (waited_s >= 0).all()
    limits_s = {1: scenario.sync_flush_timeout_ms / 1e3, 2: scenario.slave_timeout_ms / 1e3}
    for status, limit_s in limits_s.items():
        assert (waited_s[outcome.status == status] >= limit_s - 1e-9).all()
    ok = outcome.status == int(PutStatus.PUT_OK)
    if scenario.copies_needed(scenario.slaves):
        assert (waited_s[ok] > 0).all()
    if not writers:
        assert (outcome.append_s == near.append_s).all()


@given(st.floats(0, 0.02), st.floats(0.0001, 0.02), st.sampled_from((1e5, 1e7, None)), st.integers(0, 99))
def test_more_rtt_never_lowers_latency(rtt_s, more_s, bandwidth, seed):
    near = evolve(PAIR, rtt_s=rtt_s, bandwidth_bytes_per_s=bandwidth)
    found, runs = stages([0.2], [0.4], [9.0]), paced(400, count=100)
    waits = [
        waited_ms(played(scenario, runs, found, seed=seed))
        for scenario in (near, evolve(near, rtt_s=rtt_s + more_s))
    ]
    assert all(far > close for close, far in zip(*waits, strict=True))


def test_grid_has_all_combinations_and_a_repeated_option_adds_values():
    axes = [
        *setting_axes(["inSyncReplicas=2,3", "haTransferBatchSize=131072", "inSyncReplicas=4"]),
        bandwidth_axis(["10M,1Gi"]),
        rtt_axis(["5", "200us"]),
    ]
    points = grid(Scenario(), axes)
    assert len(points) == 3 * 1 * 2 * 2
    assert points[0].label == "inSyncReplicas=2 haTransferBatchSize=131072 bandwidth=10M rtt=5"
    assert points[0].scenario == evolve(
        Scenario(), in_sync_replicas=2, transfer_batch_bytes=131072, bandwidth_bytes_per_s=1e7, rtt_s=0.005
    )
    assert points[-1].scenario.rtt_s == pytest.approx(200e-6)
    assert points[-1].scenario.bandwidth_bytes_per_s == 2**30
    assert [point.label for point in grid(Scenario(), [])] == ["as recorded"]


def test_settings_that_are_not_modelled_are_refused_in_one_line():
    for option, line in (
        ("inSyncReplica=2", "inSyncReplica: there is no such setting"),
        ("haHousekeepingInterval=5", "haHousekeepingInterval: is not modelled"),
        ("inSyncReplicas=two", "inSyncReplicas: 'two' is not a whole number"),
        ("inSyncReplicas", "'inSyncReplicas' is not KEY=VALUE"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE: is not modelled"),
        ("trioha.haAckMode=maybe", "trioha.haAckMode: 'maybe' is not one of its values"),
    ):
        with pytest.raises(ConfigError) as refused:
            setting_axes([option])
        assert line in str(refused.value)
        assert "\n" not in str(refused.value)
