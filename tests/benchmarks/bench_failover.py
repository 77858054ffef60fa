"""Time from the SIGKILL of a master to the first message that its successor accepts from a Java producer.

A pair of trioha and one of RocketMQ 5.x stand under the same real controller (one node), with
allAckInSyncStateSet, each with a real name server of its own: a producer makes its topic at any broker that
its name server knows. In each round, first for one pair and then for the other, a producer sends one message
after the other, the master is killed, and the round ends with the first SEND_OK of the other broker; then the
killed one is started again and follows. So the brokers of a pair are killed in turn.

A producer finds the new master when it asks the name server for routes: each 30 s by default, here each
`--poll-ms`, of which half is in the median of both pairs. The CPU time beside the figures is that of the
broker which takes over, from the kill to the first message that it accepted; the kernel counts in 10 ms.

    python tests/benchmarks/bench_failover.py [--rounds 20] [--json] [--poll-ms 100] [--rocketmq 5.3.3]

Only the comparison counts, and only on a machine that does nothing else. Needs Maven and a JDK; 20 rounds
take some five minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final

from attrs import Factory, define
from rich.console import Console
from rich.table import Table

# The pairs are those of the interop tests, which are not installed.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.rivals.conditions import conditions, java_version
from tests.benchmarks.rivals.machine import LoadMeter, await_calm, cpu_s
from tests.benchmarks.rivals.options import RIVALS
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
class Series:
    """The figures of one pair, one for each round."""

    millis: list[float] = Factory(list)
    """From the kill to the first message that the other broker accepted."""
    cpu_millis: list[float] = Factory(list)
    """CPU time of that broker meanwhile."""
    others_cores: list[float] = Factory(list)
    """Cores that were busy meanwhile with processes that the benchmark did not start."""


@define
class Pair:
    """Two brokers of one kind."""

    name: str
    broker_name: str
    members: tuple[Member, Member]
    group: Controllers
    name_server: str
    results: Series = Factory(Series)

    def wait_in_step(self) -> tuple[Member, Member]:
        """The master and its slave, as soon as both are in the sync-state set."""

        def find() -> tuple[Member, Member] | None:
            found = self.group.group(self.broker_name)
            if found is None or {replica.broker_id for replica in found.in_sync} != BOTH:
                return None
            first, second = self.members
            return (first, second) if found.master_address == first.address else (second, first)

        return eventually(f"{self.name} in step", find, logs=lambda: "\n".join(m.log() for m in self.members))


def own_children() -> Iterator[int]:
    """Ids of the processes that this one has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The second field, the name in brackets, may hold blanks.
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(path.parent.name)


def kill_master(pair: Pair, java: JavaDriver, *, poll_ms: int) -> None:
    """One round of one pair."""
    master, slave = pair.wait_in_step()
    producer = TimedProducer.start(java, pair.name_server, topic=f"Topic{next(_topics)}", poll_ms=poll_ms)
    try:
        if producer.accepted(master.address, SENT_BEFORE) < SENT_BEFORE:
            raise AssertionError(f"{pair.name}: the master does not accept messages\n{master.log()}")
        meter = LoadMeter()
        meter.count(own_children())
        cpu_before_s = cpu_s(slave.pid)
        with meter:
            killed_ns = time.monotonic_ns()
            os.kill(master.pid, signal.SIGKILL)
            if not producer.accepted(slave.address, 1, within_s=ACCEPTED_WITHIN_S):
                raise AssertionError(f"{pair.name}: the slave does not accept messages\n{slave.log()}")
            used_s = cpu_s(slave.pid) - cpu_before_s
    finally:
        sent = producer.end()
    first_ns = next(one.ended_ns for one in sent if one.is_ok and one.broker == slave.address)
    pair.results.millis.append((first_ns - killed_ns) / 1e6)
    pair.results.cpu_millis.append(used_s * 1e3)
    pair.results.others_cores.append(meter.load.others_cores or 0.0)
    # What was killed is waited for, and starts again.
    master.kill()
    master.start()
    pair.wait_in_step()


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


def figures(pairs: tuple[Pair, ...]) -> dict[str, Any]:
    """As JSON has them."""
    return {
        pair.name: {
            "p50Millis": round(statistics.median(pair.results.millis), 1),
            "p90Millis": round(percentile(pair.results.millis, 0.9), 1),
            "maxMillis": round(max(pair.results.millis), 1),
            "cpuMillis": round(statistics.median(pair.results.cpu_millis), 1),
            "othersCores": round(statistics.median(pair.results.others_cores), 2),
            "millis": [round(value, 1) for value in pair.results.millis],
        }
        for pair in pairs
    }


def table(run: dict[str, Any]) -> Table:
    """For a terminal."""
    found = Table(
        "pair", "p50", "p90", "max", "CPU of the new master", "others, cores", title="SIGKILL to SEND_OK, ms"
    )
    for name, pair in run["pairs"].items():
        keys = ("p50Millis", "p90Millis", "maxMillis", "cpuMillis", "othersCores")
        found.add_row(name, *(f"{pair[key]:g}" for key in keys))
    return found


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=20, help="kills of each pair, after one that warms up")
    parser.add_argument("--poll-ms", type=int, default=100, help="how often the producer asks for routes")
    parser.add_argument(
        "--wait-idle", type=float, default=0.0, help="seconds to wait at most, before each round, for others"
    )
    parser.add_argument("--rocketmq", metavar="VERSION", default=RIVALS[-1], choices=RIVALS)
    parser.add_argument("--folder", type=Path, help="where to put the stores (default: the temporary folder)")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.poll_ms < 1:
        parser.error("--rounds and --poll-ms are 1 at least")
    return options


def main() -> None:
    """Kill masters and print how long it took."""
    options = options_of()
    if (missing := missing_tools()) is not None:
        print(f"not measured: {missing}", file=sys.stderr)
        return
    version = options.rocketmq
    consensus = Consensus.DLEDGER if version == "5.3.3" else Consensus.JRAFT
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
        for number in range(options.rounds + 1):
            for pair in pairs if number % 2 else pairs[::-1]:
                if options.wait_idle:
                    await_calm(options.wait_idle)
                kill_master(pair, java, poll_ms=options.poll_ms)
                step = f"round {number}, {pair.name}: {pair.results.millis[-1]:.0f} ms"
                print(step, file=sys.stderr, flush=True)
            if number == 0:
                # The first round warms the clients up.
                for pair in pairs:
                    pair.results = Series()
        run = {
            **conditions(),
            "rocketmq": version,
            "java": java_version(),
            "controller": consensus.value,
            "rounds": options.rounds,
            "pollMillis": options.poll_ms,
            "loadAverage": round(os.getloadavg()[0], 2),
            "pairs": figures(pairs),
        }
    if options.json:
        print(json.dumps(run, indent=2))
    else:
        Console().print(table(run))


if __name__ == "__main__":
    main()
