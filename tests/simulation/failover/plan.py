"""What one seed simulates in controller mode: settings of the brokers, of the controllers, and faults."""

from __future__ import annotations

from enum import Enum

from attrs import evolve, frozen

from tests.simulation.determinism import stream_of
from tests.simulation.network import LinkQuality


class Fault(Enum):
    """What can go wrong, once."""

    KILL = "broker is killed"
    KILL_MASTER = "master is killed"
    POWER = "broker loses power"
    POWER_MASTER = "master loses power"
    CRASH_IN_CUT = "cuts are interrupted"
    HANG = "broker hangs"
    HANG_MASTER = "master hangs"
    PARTITION = "brokers are cut off from each other"
    NO_SLAVES = "master is cut off from its slaves"
    ALONE = "broker is cut off from all"
    ALONE_MASTER = "master is cut off from all"
    NO_CONTROLLERS = "broker is cut off from the controllers"
    RESET = "links are reset"
    SILENCE = "links are half open"
    LEADER_MOVES = "another controller leads"
    LEADER_KILLED = "leading controller is killed"
    CONTROLLERS_DOWN = "no controller leads"
    SLOW_CONTROLLERS = "controllers are slow"
    FLAKY_CONTROLLERS = "controllers lose requests and answers, or do not decide"
    TWO_LEADERS = "a deposed controller goes on answering"
    DESIGNATED = "an administrator has another master elected"
    FORGED_NOTICE = "somebody sends a notice"
    LOST_STATE = "the controllers' state is restored from an older one"


POWER_FAULTS = (Fault.POWER, Fault.POWER_MASTER)
LOST_STATE_SHARE = 0.06
"""Of seeds in which controllers lose their state: afterwards little can be promised."""
OFTEN = (Fault.ALONE_MASTER, Fault.ALONE_MASTER, Fault.DESIGNATED)
"""After these a log is to be cut: they are more often than the others."""


@frozen
class FailoverPlan:
    """One seed's world in controller mode."""

    seed: int
    brokers: int
    learner: int | None
    """Number of the broker that is an asyncLearner."""
    controllers: int
    reads_are_local: bool
    """Whether a controller that was deposed answers reads for a while from what it knew, as with DLedger."""
    none_is_an_epoch: bool
    """Whether an election without a result has an epoch, too."""
    is_durable: bool
    """SYNC_FLUSH and haAckMode=flushed: power cuts happen only then."""
    all_ack: bool
    in_sync_replicas: int
    min_in_sync_replicas: int
    slave_timeout_s: float
    not_caught_up_s: float
    file_bytes: int
    tail_check_bytes: int
    gap_policy: str
    heartbeat_interval_s: float
    housekeeping_interval_s: float
    batch_bytes: int
    metadata_period_s: float
    dead_after_s: float
    """controllerHeartBeatTimeoutMills."""
    quality: LinkQuality
    direct_streams: bool
    producers: int
    pause_s: float
    """Mean pause of a producer between its puts."""
    body_bytes_max: int
    chaos_s: float
    """How long faults happen."""
    fault_interval_s: float
    faults: tuple[Fault, ...]
    interrupts_cuts: bool = False
    """Whether cuts are interrupted from the start."""
    option: str = ""
    """The command's option that makes this plan of the seed."""


def cutting_plan_of(seed: int) -> FailoverPlan:
    """The world of a seed with cuts, all of them interrupted: masters are cut off, or replaced alive."""
    return evolve(
        plan_of(seed),
        is_durable=True,
        slave_timeout_s=3.0,
        all_ack=True,
        in_sync_replicas=1,
        min_in_sync_replicas=1,
        dead_after_s=4.0,
        metadata_period_s=1.0,
        pause_s=0.2,
        chaos_s=45.0,
        fault_interval_s=4.0,
        faults=(Fault.ALONE_MASTER, Fault.NO_SLAVES, Fault.DESIGNATED, Fault.DESIGNATED),
        interrupts_cuts=True,
        option="--cuts",
    )


def two_leaders_plan_of(seed: int) -> FailoverPlan:
    """The world of a seed with deposed controllers that go on answering, again and again."""
    return evolve(
        plan_of(seed),
        controllers=3,
        reads_are_local=True,
        dead_after_s=4.0,
        metadata_period_s=1.0,
        chaos_s=45.0,
        fault_interval_s=4.0,
        faults=(Fault.TWO_LEADERS,),
        option="--two-leaders",
    )


def plan_of(seed: int) -> FailoverPlan:
    rng = stream_of(seed, "failover plan")
    brokers = rng.choice((2, 3, 3))
    is_durable = rng.random() < 0.5
    faults = [fault for fault in Fault if is_durable or fault not in POWER_FAULTS]
    faults.remove(Fault.LOST_STATE)
    chosen = [fault for fault in faults if rng.random() < 0.7] or faults
    chosen += [fault for fault in OFTEN if fault in chosen]
    if stream_of(seed, "lost state").random() < LOST_STATE_SHARE:
        chosen.append(Fault.LOST_STATE)
    heartbeat_s, housekeeping_s = rng.choice(((5.0, 20.0), (1.0, 4.0), (1.0, 4.0)))
    all_ack = rng.random() < 0.85
    return FailoverPlan(
        seed=seed,
        brokers=brokers,
        learner=brokers if brokers == 3 and rng.random() < 0.2 else None,
        controllers=rng.choice((1, 3, 3)),
        reads_are_local=rng.random() < 0.4,
        none_is_an_epoch=rng.random() < 0.5,
        is_durable=is_durable,
        all_ack=all_ack,
        in_sync_replicas=1 if all_ack else rng.choice((1, 2)),
        min_in_sync_replicas=rng.choice((1, 1, 2)),
        slave_timeout_s=3.0 if is_durable else rng.choice((0.5, 3.0)),
        not_caught_up_s=rng.choice((3.0, 15.0)),
        file_bytes=rng.choice((4096, 8192, 16384)),
        tail_check_bytes=rng.choice((500, 65536)),
        gap_policy=rng.choice(("fail", "resync")),
        heartbeat_interval_s=heartbeat_s,
        housekeeping_interval_s=housekeeping_s,
        batch_bytes=rng.choice((200, 1000, 32768)),
        metadata_period_s=rng.choice((1.0, 5.0)),
        dead_after_s=rng.choice((4.0, 10.0)),
        quality=LinkQuality(
            latency_s=rng.choice((0.0001, 0.005, 0.1)),
            bandwidth_bytes_per_s=rng.choice((20e3, 1e6, 1e9)),
            capacity_bytes=rng.choice((1500, 16384, 1 << 20)),
            dribble=rng.choice((0.0, 0.1)),
        ),
        direct_streams=rng.random() < 0.6,
        producers=rng.choice((1, 2)),
        pause_s=rng.choice((0.2, 0.5, 1.5)),
        body_bytes_max=rng.choice((40, 400, 1500)),
        chaos_s=rng.uniform(15.0, 45.0),
        fault_interval_s=rng.choice((1.0, 2.0, 4.0)),
        faults=tuple(chosen),
    )


PLANS = {
    "": (plan_of, ""),
    "cuts": (cutting_plan_of, "cuts of logs only, most of them interrupted"),
    "two-leaders": (two_leaders_plan_of, "deposed controllers that go on answering"),
}
"""What makes the plan of a seed, by the command's option, and what is special about it."""
