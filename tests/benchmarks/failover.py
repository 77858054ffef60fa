"""Time from the SIGKILL of a master to the first message that its successor accepts from a Java producer.

A pair of trioha and one of RocketMQ stand under the same real controller (one node), with
allAckInSyncStateSet, each with a real name server of its own: a producer makes its topic at any broker that
its name server knows. In each round a producer sends one message after the other, the master is killed, and
the round ends with the first SEND_OK of the other broker; then the killed one is started again and follows.
So the brokers of a pair are killed in turn.

A producer finds the new master when it asks the name server for routes: each 30 s by default, here each
`POLL_MS`, of which half is in the median of both pairs. CPU time is that of the broker which takes over, from
the kill to the first message that it accepted.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from tests.benchmarks.bench import Bench
from tests.benchmarks.machine import Meter
from tests.benchmarks.systems import JVM_FLAGS, BenchmarkError, System
from tests.benchmarks.table import Line
from tests.interop.controller import Consensus, Controllers, controllers, eventually
from tests.interop.java import JavaDriver, java_driver
from tests.interop.members import Member, RealMember, TriohaMember, wait_until_registered
from tests.interop.name_server import name_server
from tests.interop.timed import TimedProducer
from tests.ports import free_port

SENT_BEFORE: Final = 50
"""Messages that the master accepts before it is killed."""
POLL_MS: Final = 100
ACCEPTED_WITHIN_S: Final = 60.0
BOTH: Final = frozenset((1, 2))
LINE: Final = Line("failover: SIGKILL to SEND_OK", "ms", "failover", lower_is_better=True)


@frozen
class Group:
    """Two brokers of one system."""

    system: System
    broker_name: str
    members: tuple[Member, Member]
    controllers: Controllers
    name_server: str

    def wait_in_step(self) -> tuple[Member, Member]:
        """The master and its slave, as soon as both are in the sync-state set."""

        def find() -> tuple[Member, Member] | None:
            found = self.controllers.group(self.broker_name)
            if found is None or {replica.broker_id for replica in found.in_sync} != BOTH:
                return None
            first, second = self.members
            return (first, second) if found.master_address == first.address else (second, first)

        return eventually(f"{self.broker_name} in step", find, logs=self.log)

    def log(self) -> str:
        """The ends of the brokers' logs."""
        return "\n".join(member.log() for member in self.members)


def kill_master(group: Group, java: JavaDriver, *, topic: str) -> tuple[float, Meter]:
    """One round of one group: milliseconds, and what the next master used until then."""
    master, slave = group.wait_in_step()
    producer = TimedProducer.start(java, group.name_server, topic=topic, poll_ms=POLL_MS)
    try:
        if producer.accepted(master.address, SENT_BEFORE) < SENT_BEFORE:
            raise BenchmarkError(f"the master does not accept messages\n{group.log()}")
        with Meter([slave.pid]) as meter:
            killed_ns = time.monotonic_ns()
            os.kill(master.pid, signal.SIGKILL)
            if not producer.accepted(slave.address, 1, within_s=ACCEPTED_WITHIN_S):
                raise BenchmarkError(f"the slave does not accept messages\n{group.log()}")
    finally:
        sent = producer.end()
    first_ns = next(one.ended_ns for one in sent if one.is_ok and one.broker == slave.address)
    # What was killed is waited for, and starts again.
    master.kill()
    master.start()
    group.wait_in_step()
    return (first_ns - killed_ns) / 1e6, meter


@contextmanager
def group_of(bench: Bench, system: System, under: Controllers) -> Iterator[Group]:
    """Two brokers of a system that are in step."""
    version, folder = bench.rocketmq_version, bench.new_folder("failover")
    broker_name = bench.new_name("failover")
    with ExitStack() as running:
        names = running.enter_context(name_server(version, folder=folder / "names"))
        members = []
        for name in ("first", "second"):
            settings: dict[str, Any] = {
                "port": free_port(),
                "broker_name": broker_name,
                "controller_address": under.setting,
                "name_server": names,
            }
            member: Member = (
                TriohaMember(folder, name, **settings)
                if system is bench.ours
                else RealMember(folder, name, version=version, flags=JVM_FLAGS, **settings)
            )
            member.start()
            running.callback(member.kill)
            members.append(member)
            wait_until_registered(names, broker_name, members[0])
        group = Group(system, broker_name, (members[0], members[1]), under, names)
        group.wait_in_step()
        yield group


def failover(bench: Bench) -> None:
    """Kill masters."""
    base: Path = bench.new_folder("controllers")
    with ExitStack() as running:
        under = running.enter_context(
            controllers(bench.rocketmq_version, folder=base, consensus=Consensus.JRAFT)
        )
        java = running.enter_context(java_driver(bench.rocketmq_version, folder=base / "clients"))
        groups = [running.enter_context(group_of(bench, side, under)) for side in (bench.ours, bench.theirs)]
        for group, note in bench.turns("failover", groups, name_of=lambda group: group.system.name):
            millis, meter = kill_master(group, java, topic=bench.new_name("failover"))
            bench.step(f"{millis:.0f} ms")
            note(LINE, group.system.name, millis, meter, units=1)
