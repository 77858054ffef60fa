"""Time from the SIGKILL of a master to the first message that its successor accepts from a Java producer.

A pair of trioha and one of RocketMQ 5.x stand under the same real controller (one node), with
allAckInSyncStateSet, each with a real name server of its own: a producer makes its topic at any broker that
its name server knows. In each round, first for one pair and then for the other, a producer sends one message
after the other, the master is killed, and the round ends with the first SEND_OK of the other broker; then the
killed one is started again and follows. So the brokers of a pair are killed in turn.

A producer finds the new master when it asks the name server for routes: each 30 s by default, here each
`--poll-ms`, of which half is in the median of both pairs. The CPU time beside the figures is that of the
broker which takes over, from the kill to the first message that it accepted; the kernel counts in 10 ms.

    python tests/benchmarks/bench_failover.py [--rounds 20] [--poll-ms 100] [--json] [--rocketmq 5.3.3]

Only the comparison counts, and only on a machine that does nothing else. Needs Maven and a JDK; 20 rounds
take some five minutes.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define, evolve

# The pairs are those of the interop tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.machine import Meter, await_calm
from tests.benchmarks.rivals.report import Line, show_run
from tests.benchmarks.rivals.rounds import Series, parser_of, turns
from tests.benchmarks.rivals.sides import JVM_FLAGS
from tests.interop.controller import Consensus, Controllers, controllers, eventually
from tests.interop.java import JavaDriver, java_driver
from tests.interop.members import Member, RealMember, TriohaMember, wait_until_registered
from tests.interop.name_server import name_server
from tests.interop.rocketmq import missing_tools
from tests.interop.timed import TimedProducer
from tests.ports import free_port

SENT_BEFORE: Final = 50
"""Messages that the master accepts before it is killed."""
ACCEPTED_WITHIN_S: Final = 60.0
TRIOHA: Final = "trioha"
BOTH: Final = frozenset((1, 2))
_topics = count(1)


@define
class Pair:
    """Two brokers of one kind."""

    name: str
    broker_name: str
    members: tuple[Member, Member]
    group: Controllers
    name_server: str
    millis: Series = Factory(Series)
    """From each kill to the first message that the other broker accepted, and CPU time of that broker."""

    def wait_in_step(self) -> tuple[Member, Member]:
        """The master and its slave, as soon as both are in the sync-state set."""

        def find() -> tuple[Member, Member] | None:
            found = self.group.group(self.broker_name)
            if found is None or {replica.broker_id for replica in found.in_sync} != BOTH:
                return None
            first, second = self.members
            return (first, second) if found.master_address == first.address else (second, first)

        return eventually(f"{self.name} in step", find, logs=lambda: "\n".join(m.log() for m in self.members))


def kill_master(pair: Pair, java: JavaDriver, *, poll_ms: int) -> tuple[float, Meter]:
    """One round of one pair: milliseconds, and what the next master used until then."""
    master, slave = pair.wait_in_step()
    producer = TimedProducer.start(java, pair.name_server, topic=f"Topic{next(_topics)}", poll_ms=poll_ms)
    try:
        if producer.accepted(master.address, SENT_BEFORE) < SENT_BEFORE:
            raise AssertionError(f"{pair.name}: the master does not accept messages\n{master.log()}")
        with Meter([slave.pid]) as meter:
            killed_ns = time.monotonic_ns()
            os.kill(master.pid, signal.SIGKILL)
            if not producer.accepted(slave.address, 1, within_s=ACCEPTED_WITHIN_S):
                raise AssertionError(f"{pair.name}: the slave does not accept messages\n{slave.log()}")
    finally:
        sent = producer.end()
    first_ns = next(one.ended_ns for one in sent if one.is_ok and one.broker == slave.address)
    # What was killed is waited for, and starts again.
    master.kill()
    master.start()
    pair.wait_in_step()
    return (first_ns - killed_ns) / 1e6, meter


@contextmanager
def pair_of(name: str, folder: Path, group: Controllers, *, version: str) -> Iterator[Pair]:
    """A pair in step; the trioha one if that is its name."""
    broker_name = f"bench-{name.partition(' ')[0]}"
    with ExitStack() as running:
        names = running.enter_context(name_server(version, folder=folder / "names"))
        members: list[Member] = []
        for member_name in ("first", "second"):
            settings: dict[str, Any] = {
                "port": free_port(),
                "broker_name": broker_name,
                "controller_address": group.setting,
                "name_server": names,
            }
            member: Member
            if name == TRIOHA:
                member = TriohaMember(folder, member_name, **settings)
            else:
                member = RealMember(folder, member_name, version=version, flags=JVM_FLAGS, **settings)
            member.start()
            running.callback(member.kill)
            members.append(member)
            wait_until_registered(names, broker_name, members[0])
        first, second = members
        pair = Pair(name, broker_name, (first, second), group, names)
        pair.wait_in_step()
        yield pair


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def lines_of(pairs: tuple[Pair, ...]) -> list[Line]:
    """Of all kills of each pair."""
    return [
        Line(
            f"SIGKILL to SEND_OK, {name}",
            "ms",
            *(evolve(pair.millis.middle(), values=[percentile(pair.millis.values, share)]) for pair in pairs),
            lower_is_better=True,
            cpu_for="failover",
        )
        for name, share in (("p50", 0.5), ("p90", 0.9), ("longest", 1.0))
    ]


def main() -> None:
    """Kill masters and print how long it took."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills of each pair, after one that warms up")
    parser.add_argument("--poll-ms", type=int, default=100, help="how often the producer asks for routes")
    options = parser.parse_args()
    if (missing := missing_tools()) is not None:
        print(f"not measured: {missing}", file=sys.stderr)
        return
    version = options.rocketmq
    consensus = Consensus.DLEDGER if version == "5.3.3" else Consensus.JRAFT
    began = time.monotonic()
    with ExitStack() as running:
        base = Path(
            running.enter_context(tempfile.TemporaryDirectory(prefix="trioha-bench-", dir=options.folder))
        )
        group = running.enter_context(controllers(version, folder=base, consensus=consensus))
        java = running.enter_context(java_driver(version, folder=base / "clients"))
        pairs = tuple(
            running.enter_context(pair_of(name, base / name.partition(" ")[0], group, version=version))
            for name in (TRIOHA, f"RocketMQ {version}")
        )
        for pair, counts in turns(pairs, rounds=options.rounds):
            await_calm(options.wait_idle)
            millis, meter = kill_master(pair, java, poll_ms=options.poll_ms)
            print(f"{pair.name}: {millis:.0f} ms", file=sys.stderr, flush=True)
            if counts:
                pair.millis.note(millis, meter, cpu_s=meter.cpu_s)
    show_run(
        "failover", lines_of(pairs), options=options, rounds=options.rounds, seconds=time.monotonic() - began
    )


if __name__ == "__main__":
    main()
