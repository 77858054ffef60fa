"""The simulation of `trioha what-if`: properties for all settings, and the settings' grid."""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trioha.config.model import AckMode, BrokerRole, FlushDiskType
from trioha.errors import ConfigError
from trioha.recording.events import PutStatus
from trioha_analysis.whatif.costs import Costs
from trioha_analysis.whatif.figures import figures
from trioha_analysis.whatif.queues import HEADER_BYTES, SLICE_S, Clock, Cores, Scheduler, Worker
from trioha_analysis.whatif.scenario import Scenario, bandwidth_axis, grid, rtt_axis, setting_axes
from trioha_analysis.whatif.simulation import Outcome, Puts, simulate
from trioha_analysis.whatif.time_distribution import ZERO_TIME, TimeDistribution

US = 1e-6


def fixed(microseconds: float) -> TimeDistribution:
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


def closed(writers: int, *, count: int = 300, size: int = 1200, think_us: float = 500) -> Puts:
    return Puts(np.full(count, size), np.zeros(0), writers=writers, client_s=30 * US, think=fixed(think_us))


def paced(rate: float, *, count: int = 300, size: int = 1200) -> Puts:
    return Puts(np.full(count, size), np.arange(count) / rate)


def p(outcome: Outcome, name: str = "p50") -> float:
    found = figures([outcome]).latency_ms
    assert found is not None
    return found[name]


def test_slave_without_an_ack_for_too_long_is_not_in_sync() -> None:
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


@settings(max_examples=80, deadline=None)
@given(scenarios, costs, everyone, st.integers(0, 99))
def test_every_put_ends_once_and_everything_stored_reaches_every_slave(
    scenario: Scenario, costs: Costs, puts: Puts, seed: int
) -> None:
    outcome = simulate(scenario, costs, puts, seed=seed)
    assert len(outcome.put_s) == len(puts.bytes)
    assert (np.diff(outcome.put_s) >= 0).all()
    assert (outcome.waited_s >= 0).all()
    stored = outcome.end_offset[outcome.end_offset > 0]
    assert stored.tolist() == np.cumsum(puts.bytes[outcome.end_offset > 0]).tolist()
    for ack_s, ack_offset in zip(outcome.ack_s, outcome.ack_offset, strict=True):
        assert (np.diff(ack_s) >= 0).all()
        assert (np.diff(ack_offset) >= 0).all()
        if len(stored):
            assert ack_offset[-1] == stored[-1]


@settings(max_examples=80, deadline=None)
@given(scenarios, costs, everyone, st.integers(0, 99))
def test_put_ok_has_its_copies_and_a_timeout_its_time(
    scenario: Scenario, costs: Costs, puts: Puts, seed: int
) -> None:
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


@settings(max_examples=60, deadline=None)
@given(scenarios, costs, st.integers(1, 40), st.integers(0, 99))
def test_closed_loop_never_has_more_outstanding_puts_than_writers(
    scenario: Scenario, costs: Costs, writers: int, seed: int
) -> None:
    outcome = simulate(scenario, costs, closed(writers, count=120), seed=seed)
    assert outcome.outstanding_max <= writers


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.floats(0, 0.02), st.floats(0.0001, 0.02), st.integers(1, 2))
def test_more_rtt_never_lowers_latency(writers: int, rtt_s: float, more_s: float, slaves: int) -> None:
    near = evolve(PAIR, rtt_s=rtt_s, slaves=slaves)
    far = evolve(near, rtt_s=rtt_s + more_s)
    puts = paced(400, count=100)
    assert p(simulate(far, STEADY, puts, seed=1)) >= p(simulate(near, STEADY, puts, seed=1))
    puts = closed(writers, count=100)
    assert p(simulate(far, STEADY, puts, seed=1), "max") >= rtt_s + more_s


@settings(max_examples=40, deadline=None)
@given(st.sampled_from((1e5, 1e6, 1e7)), st.integers(1, 30), st.sampled_from((2000, 32768)))
def test_no_link_carries_more_than_its_bandwidth(speed: float, writers: int, batch_bytes: int) -> None:
    scenario = evolve(PAIR, bandwidth_bytes_per_s=speed, transfer_batch_bytes=batch_bytes)
    outcome = simulate(scenario, STEADY, closed(writers, count=100, size=3000), seed=1)
    took_s = outcome.ack_s[0][-1]
    assert outcome.sent_bytes[0] >= 100 * 3000 + HEADER_BYTES
    assert outcome.sent_bytes[0] / took_s <= speed


def test_one_writer_waits_for_exactly_the_steps_of_a_put() -> None:
    outcome = simulate(PAIR, STEADY, closed(1), seed=1)
    # wait_begin, send, there, slave, back, ack and end
    expected_us = 10 + 50 + 30 + (100 + 1.2) + 30 + (30 + 20)
    assert outcome.waited_s[10:].tolist() == pytest.approx([expected_us * US] * 290, rel=0.25)
    assert np.median(outcome.waited_s) == pytest.approx(expected_us * US, rel=0.2)


def test_same_seed_same_outcome() -> None:
    noisy = evolve(STEADY, slave=TimeDistribution(tuple(100 * US * (1 + step / 20) for step in range(80))))
    first, second = (simulate(PAIR, noisy, closed(8), seed=5) for _ in range(2))
    assert first.waited_s.tolist() == second.waited_s.tolist()
    assert first.waited_s.tolist() != simulate(PAIR, noisy, closed(8), seed=6).waited_s.tolist()


def test_the_second_slave_is_waited_for_only_if_it_is_needed() -> None:
    noisy = evolve(STEADY, slave=TimeDistribution(tuple(50 * US * (1 + step / 4) for step in range(80))))
    puts = paced(300)
    one_of_two = p(simulate(evolve(PAIR, slaves=2), noisy, puts, seed=1))
    both = p(simulate(evolve(PAIR, slaves=2, in_sync_replicas=3), noisy, puts, seed=1))
    all_in_sync = p(simulate(evolve(PAIR, slaves=2, all_ack_in_sync_state_set=True), noisy, puts, seed=1))
    assert one_of_two < both == all_in_sync


def test_slaves_that_are_slow_together_do_not_compensate_for_each_other() -> None:
    noisy = evolve(STEADY, slave=TimeDistribution(tuple(50 * US * (1 + step / 4) for step in range(80))))
    times = noisy.slave.at(np.linspace(0, 1, 1000)).tolist()
    puts = paced(200)
    one = p(simulate(PAIR, noisy, puts, seed=1))
    apart = p(simulate(evolve(PAIR, slaves=2), noisy, puts, seed=1))
    together = evolve(noisy, slave_rows=tuple((time_s, time_s) for time_s in times))
    assert apart < 0.9 * one
    joint = p(simulate(evolve(PAIR, slaves=2), together, puts, seed=1))
    assert joint == pytest.approx(one, rel=0.1)
    # A third slave, of which the recording knows nothing, is independent.
    assert p(simulate(evolve(PAIR, slaves=3), together, puts, seed=1)) < joint


def frames_of(outcome: Outcome) -> list[int]:
    """Puts that each ack covers."""
    places = np.searchsorted(outcome.end_offset, outcome.ack_offset[0])
    return np.diff(places, prepend=-1).tolist()


def test_joined_writers_stay_in_step_and_a_turn_of_the_node_is_one_frame() -> None:
    def joined(writers: int) -> Puts:
        return evolve(closed(writers, count=10 * writers), is_joined=True)

    eight = simulate(PAIR, STEADY, joined(8), seed=1)
    assert frames_of(eight) == [8] * 10
    # All are sent when the last one is appended, and their waits end one after the other.
    expected_us = [(50 + 60 + 100 + 8 * 1.2 + 30) + 50 * (7 - place) + 20 * (place + 1) for place in range(8)]
    assert eight.waited_s[:8].tolist() == pytest.approx([at_us * US for at_us in expected_us], rel=0.1)
    # A node handles sixteen requests of a connection before its other tasks run.
    assert frames_of(simulate(PAIR, STEADY, joined(24), seed=1))[:2] == [16, 8]
    assert max(frames_of(simulate(PAIR, STEADY, closed(8), seed=1))[1:]) < 8


def test_turns_end_after_every_sixteenth_request_of_a_connection() -> None:
    """24 requests are a turn of 16 and one of 8, and the next 24 one of 8 and one of 16."""
    at_s = np.repeat([0.0, 1.0], 24)
    outcome = simulate(PAIR, STEADY, Puts(np.full(48, 1200), at_s), seed=1)
    # Within a turn puts follow each other by 50 us, and the first request of a burst has a turn of its own.
    assert 16 in gaps_beyond(outcome.put_s[:24], 50 * US)
    assert 8 in gaps_beyond(outcome.put_s[24:], 50 * US)


def gaps_beyond(at_s: NDArray[np.float64], least_s: float) -> list[int]:
    """Numbers of those that come later after the one before them than `least_s`."""
    return (np.flatnonzero(np.diff(at_s) > 1.01 * least_s) + 1).tolist()


def test_a_pass_of_a_scheduler_is_in_order_or_reversed_and_what_becomes_ready_in_it_waits() -> None:
    orders = set()
    for seed in range(20):
        clock, done, random = Clock(), "", np.random.default_rng(seed)
        tasks = Scheduler(clock, Cores(clock, None, random), random)

        def run(name: str, tasks: Scheduler = tasks) -> None:
            nonlocal done
            done += name
            if name == "b":
                tasks.do_next(1.0, run, "B")
                tasks.do(1.0, run, "x")
                tasks.do(1.0, run, "y")

        clock.at(0.0, lambda _, tasks=tasks: [tasks.do(1.0, run, name) for name in ".abc"])
        clock.run()
        orders.add(done)
    # The first task finds the thread idle, so that it is alone in its pass.
    passes = [".", ("abBc", "cbBa"), ("xy", "yx")]
    assert orders == {passes[0] + second + third for second in passes[1] for third in passes[2]}


def test_a_process_without_an_idle_core_waits_for_one_of_the_busy_ones() -> None:
    ends = set()
    for seed in range(20):
        clock = Clock()
        cores = Cores(clock, 2, np.random.default_rng(seed))
        ended: dict[str, float] = {}

        def end(name: str, clock: Clock = clock, ended: dict[str, float] = ended) -> None:
            ended[name] = clock.now_s

        for name, work_s in (("short", 0.001), ("long", 0.003), ("third", 0.001)):
            Worker(clock, cores).do(work_s, end, name)
        clock.run()
        assert (ended["short"], ended["long"]) == (0.001, 0.003)
        ends.add(ended["third"])
    # Also if the other core is idle before.
    assert ends == {0.002, 0.004}


def test_a_process_keeps_its_core_for_a_slice_at_most_while_another_one_waits() -> None:
    clock = Clock()
    cores = Cores(clock, 1, np.random.default_rng(1))
    ended: list[tuple[str, float]] = []
    long, short = Worker(clock, cores), Worker(clock, cores)

    def end(name: str) -> None:
        ended.append((name, round(clock.now_s, 6)))

    for number in range(6):
        long.do(SLICE_S / 2, end, f"long {number}")
    short.do(0.001, end, "short")
    clock.run()
    assert [name for name, _ in ended] == [
        *("long 0", "long 1", "short", "long 2", "long 3", "long 4", "long 5"),
    ]
    assert ended[-1][1] == pytest.approx(6 * SLICE_S / 2 + 0.001)


def test_processes_of_one_machine_wait_for_its_cores() -> None:
    puts = evolve(closed(24, count=2400), is_joined=True)
    found = {cores: simulate(evolve(PAIR, cores=cores), STEADY, puts, seed=1) for cores in (None, 1, 2, 16)}
    # One core does all the work there is: so many puts cannot take less.
    work_s = 2400 * (40 + 10 + 20 + 30) * US
    assert np.ptp(found[1].put_s) > work_s
    assert p(found[1], "p99") > p(found[2], "p99") > p(found[16], "p99")
    for one in found.values():
        assert set(one.status.tolist()) == {PutStatus.PUT_OK}
        assert all(int(offsets[-1]) == 2400 * 1200 for offsets in one.ack_offset)
    # With one writer only one process works at a time, but for what a slave does after its report.
    lone = closed(1, count=50, think_us=500)
    own, shared = (simulate(evolve(PAIR, cores=cores), STEADY, lone, seed=1) for cores in (None, 2))
    assert shared.waited_s.tolist() == pytest.approx(own.waited_s.tolist())


def test_an_ack_that_comes_in_a_turn_may_have_to_wait_for_the_next_one_too() -> None:
    """The reader of acks and that of requests are ready for the same pass, in either order."""
    puts = Puts(np.full(400, 1200), np.zeros(400))
    waited_s = [max(simulate(PAIR, STEADY, puts, seed=seed).waited_s[:1]) for seed in range(12)]
    turn_s = 16 * 50 * US
    assert max(waited_s) - min(waited_s) == pytest.approx(turn_s, rel=0.2)


def test_a_slow_link_delivers_record_by_record() -> None:
    """A slave acknowledges a record when it has all of it, also within a frame."""
    slow = evolve(PAIR, bandwidth_bytes_per_s=1e6)
    outcome = simulate(slow, STEADY, evolve(closed(4, count=40, size=3000), is_joined=True), seed=1)
    assert set(frames_of(outcome)) == {1}
    assert (outcome.sent_bytes[0] - 40 * 3000) % HEADER_BYTES == 0
    # Writers return one by one, so that the first record of the next frame does not wait for three others.
    assert p(outcome) == pytest.approx(12.2, rel=0.1)


def test_flushed_acks_wait_for_the_slaves_disk_and_sync_flush_for_the_masters() -> None:
    puts = paced(200)
    written = p(simulate(PAIR, STEADY, puts, seed=1))
    flushed = p(simulate(evolve(PAIR, ack_mode=AckMode.FLUSHED), STEADY, puts, seed=1))
    synced = p(simulate(evolve(PAIR, flush_disk_type=FlushDiskType.SYNC_FLUSH), STEADY, puts, seed=1))
    assert flushed == pytest.approx(written + 2, abs=0.01)
    assert 2 <= synced < flushed


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"in_sync_replicas": 3}, "SLAVE_NOT_AVAILABLE"),
        ({"slaves": 0}, "SLAVE_NOT_AVAILABLE"),
        ({"min_in_sync_replicas": 3}, "IN_SYNC_REPLICAS_NOT_ENOUGH"),
        ({"rtt_s": 0.05, "slave_timeout_ms": 20}, "FLUSH_SLAVE_TIMEOUT"),
        ({"flush_disk_type": FlushDiskType.SYNC_FLUSH, "sync_flush_timeout_ms": 1}, "FLUSH_DISK_TIMEOUT"),
        ({"in_sync_replicas": 3, "enable_auto_in_sync_replicas": True}, "PUT_OK"),
        ({"role": BrokerRole.ASYNC_MASTER, "slaves": 0}, "PUT_OK"),
    ],
)
def test_puts_end_with_the_status_of_the_settings(changes: dict[str, object], status: str) -> None:
    outcome = simulate(evolve(PAIR, **changes), STEADY, closed(4, count=50), seed=1)
    assert figures([outcome]).statuses == {status: 50}


def test_lag_of_a_slow_link_grows_to_the_bytes_left_over() -> None:
    slow = evolve(PAIR, role=BrokerRole.ASYNC_MASTER, bandwidth_bytes_per_s=120_000)
    found = figures([simulate(slow, STEADY, paced(200, count=400), seed=1)])
    assert found.lag_bytes is not None
    assert found.lag_seconds is not None
    # 2 s of 240 kB/s over a link of 120 kB/s: half of it is left, which takes 2 s more.
    assert found.lag_bytes["max"] == pytest.approx(240_000, rel=0.05)
    assert found.lag_seconds["max"] == pytest.approx(2.0, rel=0.05)


def test_batches_grow_only_while_the_slave_lags() -> None:
    slow = evolve(PAIR, bandwidth_bytes_per_s=1e6, transfer_batch_bytes=1000, transfer_batch_bytes_max=1000)
    puts = paced(100, size=8000)
    few = simulate(slow, STEADY, puts, seed=1)
    grown = simulate(evolve(slow, transfer_batch_bytes_max=1 << 20), STEADY, puts, seed=1)
    # Fewer frames, fewer headers.
    assert few.sent_bytes[0] == 300 * 8 * (1000 + HEADER_BYTES)
    assert grown.sent_bytes[0] < few.sent_bytes[0]


def test_grid_has_all_combinations_and_a_repeated_option_adds_values() -> None:
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


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("inSyncReplica=2", "inSyncReplica: there is no such setting"),
        ("haHousekeepingInterval=5", "haHousekeepingInterval: is not modelled"),
        ("inSyncReplicas=two", "inSyncReplicas: 'two' is not a whole number"),
        ("inSyncReplicas", "'inSyncReplicas' is not KEY=VALUE"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE: is not modelled"),
        ("trioha.haAckMode=maybe", "trioha.haAckMode: 'maybe' is not one of its values"),
    ],
)
def test_settings_that_are_not_modelled_are_refused_in_one_line(option: str, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting_axes([option])
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_samples_have_the_measured_distribution() -> None:
    random = np.random.default_rng(1)
    measured = random.lognormal(-8, 1, 20_000)
    drawn = np.array(TimeDistribution.of(measured).sample(random, 20_000))
    for part in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(drawn, part) == pytest.approx(np.quantile(measured, part), rel=0.15)
    assert TimeDistribution.of(np.zeros(0)) == ZERO_TIME
