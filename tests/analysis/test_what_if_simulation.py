"""The simulation of `trioha what-if`: properties for all settings, and the settings' grid."""

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from trioha.config.model import AckMode, BrokerRole, FlushDiskType
from trioha.errors import ConfigError
from trioha.recording.events import PutStatus
from trioha_analysis.whatif.costs import Costs
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.queues import HEADER_BYTES
from trioha_analysis.whatif.scenario import Scenario, bandwidth_axis, grid, rtt_axis, setting_axes
from trioha_analysis.whatif.simulation import Puts, simulate
from trioha_analysis.whatif.time_distribution import TimeDistribution

US = 1e-6


def fixed(microseconds):
    return TimeDistribution((microseconds * US,))


STEADY = Costs(
    put=fixed(40),
    wait_begin=fixed(10),
    send=fixed(50),
    ack=fixed(30),
    wait_end=fixed(20),
    slave=fixed(100),
    slave_per_byte_s=1e-9,
    link_s=60 * US,
    sync=fixed(2000),
)
PAIR = Scenario()


def closed(writers, *, count=300, size=1200, think_us=500):
    return Puts(np.full(count, size), np.zeros(0), writers=writers, client_s=30 * US, think=fixed(think_us))


def paced(rate, *, count=300, size=1200):
    return Puts(np.full(count, size), np.arange(count) / rate)


def p(outcome, name="p50"):
    found = figures([outcome]).latency_ms
    return found[name]


def test_slave_without_an_ack_for_too_long_is_not_in_sync():
    """Its link takes 20 s each way: a put each second times out, until the slave has not acknowledged for 15
    s."""
    puts = Puts(np.full(30, 1200), np.arange(30) * 1.0)
    outcome = simulate(evolve(PAIR, rtt_s=40.0), STEADY, puts, seed=1)
    waited = int(PutStatus.FLUSH_SLAVE_TIMEOUT)
    refused = int(PutStatus.SLAVE_NOT_AVAILABLE)
    assert outcome.status.tolist() == [waited] * 15 + [refused] * 15
    patient = simulate(evolve(PAIR, rtt_s=40.0, silence_ms_max=60_000), STEADY, puts, seed=1)
    assert set(patient.status.tolist()) == {waited}
    (axis,) = setting_axes(["haMaxTimeSlaveNotCatchup=5000"])
    (point,) = grid(evolve(PAIR, rtt_s=40.0), [axis])
    sooner = simulate(point.scenario, STEADY, puts, seed=1)
    assert sooner.status.tolist() == [waited] * 5 + [refused] * 25


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
    transfer_batch_bytes=st.sampled_from((1000, 32768)),
    transfer_batch_bytes_max=st.sampled_from((500, 1 << 20)),
    ack_mode=st.sampled_from(tuple(AckMode)),
    bandwidth_bytes_per_s=st.sampled_from((None, 300_000.0, 1e7)),
    rtt_s=st.sampled_from((0.0, 0.004)),
)
varied = st.builds(
    lambda low, high: TimeDistribution(
        tuple((low + (high - low) * (step / 9) ** 4) * US for step in range(79 + 1))
    ),
    st.integers(1, 50),
    st.integers(50, 4000),
)
costs = st.builds(
    Costs,
    put=varied,
    wait_begin=varied,
    send=varied,
    ack=varied,
    wait_end=varied,
    slave=varied,
    slave_per_byte_s=st.sampled_from((0.0, 5e-9)),
    link_s=st.sampled_from((0.0, 1e-4)),
    sync=varied,
)
everyone = st.one_of(
    st.builds(closed, st.integers(1, 40), count=st.just(120)),
    st.builds(paced, st.sampled_from((200.0, 5000.0)), count=st.just(120)),
)


@given(scenarios, costs, everyone, st.integers(0, 99))
def test_every_put_ends_once_and_everything_stored_reaches_every_slave(scenario, costs, puts, seed):
    outcome = simulate(scenario, costs, puts, seed=seed)
    assert len(outcome.put_s) == len(puts.bytes)
    assert (np.diff(outcome.put_s) >= 0).all()
    assert (outcome.waited_s >= 0).all()
    assert not puts.writers or outcome.outstanding_max <= puts.writers
    stored = outcome.end_offset[outcome.end_offset > 0]
    assert stored.tolist() == np.cumsum(puts.bytes[outcome.end_offset > 0]).tolist()
    for ack_s, ack_offset in zip(outcome.ack_s, outcome.ack_offset, strict=True):
        assert (np.diff(ack_s) >= 0).all()
        assert (np.diff(ack_offset) >= 0).all()
        if len(stored):
            assert ack_offset[-1] == stored[-1]


@pytest.mark.full
@given(scenarios, costs, everyone, st.integers(0, 99))
def test_put_ok_has_its_copies_and_a_timeout_its_time(scenario, costs, puts, seed):
    outcome = simulate(scenario, costs, puts, seed=seed)
    need = scenario.copies_needed
    lasted_s = float((outcome.put_s + outcome.waited_s).max())
    # A slave that owes an ack for so long is not in sync any more.
    in_sync = scenario.slaves if lasted_s * 1000 < scenario.silence_ms_max else 0
    if scenario.enable_auto_in_sync_replicas:
        need = max(min(need, in_sync), scenario.min_in_sync_replicas - 1) if need else 0
    elif scenario.all_ack_in_sync_state_set and need:
        need = max(need, in_sync)
    for put_s, end_offset, waited_s, status in zip(
        outcome.put_s, outcome.end_offset, outcome.waited_s, outcome.status, strict=True
    ):
        if status == 0 and need:
            held = sum(
                bool((offsets[times <= put_s + waited_s + 1e-9] >= end_offset).any())
                for times, offsets in zip(outcome.ack_s, outcome.ack_offset, strict=True)
            )
            assert held >= need
        elif status == 2:  # FLUSH_SLAVE_TIMEOUT
            assert waited_s >= scenario.slave_timeout_ms / 1000
        elif status == 1:  # FLUSH_DISK_TIMEOUT
            assert waited_s >= scenario.sync_flush_timeout_ms / 1000


@pytest.mark.full
@given(st.integers(1, 30), st.floats(0, 0.02), st.floats(0.0001, 0.02), st.integers(1, 2))
def test_more_rtt_never_lowers_latency(writers, rtt_s, more_s, slaves):
    near = evolve(PAIR, rtt_s=rtt_s, slaves=slaves)
    far = evolve(near, rtt_s=rtt_s + more_s)
    puts = paced(400, count=100)
    assert p(simulate(far, STEADY, puts, seed=1)) >= p(simulate(near, STEADY, puts, seed=1))
    puts = closed(writers, count=100)
    assert p(simulate(far, STEADY, puts, seed=1), "max") >= rtt_s + more_s


@pytest.mark.full
@given(st.sampled_from((1e5, 1e6, 1e7)), st.integers(1, 30), st.sampled_from((2000, 32768)))
def test_no_link_carries_more_than_its_bandwidth(speed, writers, batch_bytes):
    scenario = evolve(PAIR, bandwidth_bytes_per_s=speed, transfer_batch_bytes=batch_bytes)
    outcome = simulate(scenario, STEADY, closed(writers, count=100, size=3000), seed=1)
    took_s = outcome.ack_s[0][-1]
    assert outcome.sent_bytes[0] >= 100 * 3000 + HEADER_BYTES
    assert outcome.sent_bytes[0] / took_s <= speed


def test_same_seed_same_outcome():
    noisy = evolve(STEADY, slave=TimeDistribution(tuple(100 * US * (1 + step / 20) for step in range(80))))
    first, second = (simulate(PAIR, noisy, closed(8), seed=5) for _ in range(2))
    assert first.waited_s.tolist() == second.waited_s.tolist()
    assert first.waited_s.tolist() != simulate(PAIR, noisy, closed(8), seed=6).waited_s.tolist()


def test_the_second_slave_is_waited_for_only_if_it_is_needed():
    noisy = evolve(STEADY, slave=TimeDistribution(tuple(50 * US * (1 + step / 4) for step in range(80))))
    puts = paced(300)
    one_of_two = p(simulate(evolve(PAIR, slaves=2), noisy, puts, seed=1))
    both = p(simulate(evolve(PAIR, slaves=2, in_sync_replicas=3), noisy, puts, seed=1))
    all_in_sync = p(simulate(evolve(PAIR, slaves=2, all_ack_in_sync_state_set=True), noisy, puts, seed=1))
    assert one_of_two < both == all_in_sync


def test_flushed_acks_wait_for_the_slaves_disk_and_sync_flush_for_the_masters():
    puts = paced(200)
    written = p(simulate(PAIR, STEADY, puts, seed=1))
    flushed = p(simulate(evolve(PAIR, ack_mode=AckMode.FLUSHED), STEADY, puts, seed=1))
    synced = p(simulate(evolve(PAIR, flush_disk_type=FlushDiskType.SYNC_FLUSH), STEADY, puts, seed=1))
    assert flushed == pytest.approx(written + 2, abs=0.01)
    assert 2 <= synced < flushed


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
        outcome = simulate(evolve(PAIR, **changes), STEADY, closed(4, count=50), seed=1)
        assert figures([outcome]).statuses == {status: 50}, changes


def test_lag_of_a_slow_link_grows_to_the_bytes_left_over():
    slow = evolve(PAIR, role=BrokerRole.ASYNC_MASTER, bandwidth_bytes_per_s=120_000)
    found = figures([simulate(slow, STEADY, paced(200, count=400), seed=1)])
    # 2 s of 240 kB/s over a link of 120 kB/s: half of it is left, which takes 2 s more.
    assert found.lag_bytes["max"] == pytest.approx(240_000, rel=0.05)
    assert found.lag_seconds["max"] == pytest.approx(2.0, rel=0.05)


def test_grid_has_all_combinations_and_a_repeated_option_adds_values():
    axes = [
        *setting_axes(["inSyncReplicas=2,3", "haTransferBatchSize=131072", "inSyncReplicas=4"]),
        bandwidth_axis(["10M,1Gi"]),
        rtt_axis(["5", "200us"]),
    ]
    points = grid(PAIR, axes)
    assert len(points) == 3 * 1 * 2 * 2
    assert points[0].label == "inSyncReplicas=2 haTransferBatchSize=131072 bandwidth=10M rtt=5"
    assert points[0].scenario == evolve(
        PAIR, in_sync_replicas=2, transfer_batch_bytes=131072, bandwidth_bytes_per_s=1e7, rtt_s=0.005
    )
    assert points[-1].scenario.rtt_s == pytest.approx(200e-6)
    assert points[-1].scenario.bandwidth_bytes_per_s == 2**30
    assert [point.label for point in grid(PAIR, [])] == ["as recorded"]


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
