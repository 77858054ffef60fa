"""Pairs under a real controller lose their master in six ways while a Java producer and consumer go on.

What every test ends with (`Pair.check`): each SEND_OK message is received, no master confirmed a message
after its successor did, both logs are equal from their first byte to their end, which is the confirm offset
then, and both epoch files are equal.

Where a master is lost, its last messages are kept from its slave before: it must be cut when it comes back.

A master of 5.5.0 that is replaced while it lives (hung, separated) does three things that no slave can mend,
a real one neither. After its slave has gone it confirms messages alone, until it hears of its successor. It
gives consumers messages that it never confirmed: they hide those of its successor at the same places of the
queues. And it confirms what it finds to do when it wakes up. Where the first broker is RocketMQ's, messages
that are missing must therefore be its own, or hidden by its own; `pytest -rP` shows how many. A trioha master
loses and hides none, whatever its slave is.

In the sixth way a machine loses its power and is back before the controller has noticed it. RocketMQ's
masters do not know that, and go on in their epoch with what their disk still has: they are not asked.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from tests.interop.controller import FILE_BYTES, Consensus, eventually
from tests.interop.java import JavaConsumer, JavaDriver
from tests.interop.logs import assert_same_log, read_log
from tests.interop.members import Member, RealMember, wait_until_registered
from tests.interop.messages import bodies
from tests.interop.partitions import Endpoint, Partitions, Side, partitions
from tests.interop.replica_group import Cluster, ReplicaGroup, cluster, ids_in_set, replica_group
from tests.interop.rocketmq import VERSIONS_5, version_params
from tests.interop.test_refused_sends import send
from tests.interop.timed import Sent, TimedProducer
from tests.node.wire import Wire
from tests.ports import free_port
from trioha.remoting.codes import ResponseCode

pytestmark = [
    pytest.mark.interop,
    pytest.mark.process,
    pytest.mark.full,
    pytest.mark.parametrize("java_of_module", version_params(versions=VERSIONS_5), indirect=True),
]

DLEDGER = ("5.3.3",)
"""Versions whose controller keeps its state by DLedger here; the others by JRaft."""
TRIOHA, ROCKETMQ = "trioha", "rocketmq"
PAIRS = ((TRIOHA, TRIOHA), (TRIOHA, ROCKETMQ), (ROCKETMQ, TRIOHA))
"""The first one is the master."""
ENOUGH = 100
"""Messages that a master accepts before something happens to it, and after."""
RECEIVED_WITHIN_S = 120.0
"""Without a further message. A pull of a Java consumer to a hung broker ends after 30 s."""
SETTINGS: dict[str, object] = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    # A put without its copies ends after 1.5 s instead of 3.
    "slaveTimeout": 1500,
    "registerNameServerPeriod": 10_000,
}
TIMES: dict[str, object] = {
    # A slave leaves the sync-state set after 6 s instead of 15, and a silent broker counts as dead after 5 s
    # instead of 10.
    "haMaxTimeSlaveNotCatchup": 6000,
    "controllerHeartBeatTimeoutMills": 5000,
}
LONG_MS = 120_000
COPIES = {"trioha.metadataSyncFirst": 100, "trioha.metadataSyncPeriod": 1000}
_numbers = count(1)


@pytest.fixture(scope="module")
def running(java_of_module: JavaDriver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller and a name server, which all tests of a version share."""
    version, folder = java_of_module.version, tmp_path_factory.mktemp("failover")
    consensus = Consensus.DLEDGER if version in DLEDGER else Consensus.JRAFT
    with cluster(version, folder=folder, consensus=consensus, scanNotActiveBrokerInterval=500) as found:
        yield found


@define
class Pair:
    """Two brokers in step, and clients that use them; the first broker is the master."""

    group: ReplicaGroup
    links: Partitions
    topic: str
    first: Member
    second: Member
    producer: TimedProducer
    consumer: JavaConsumer

    def accepts(self, member: Member, number: int = ENOUGH) -> None:
        """So many more messages are SEND_OK by that member."""
        wanted = self.producer.accepted(member.address) + number
        accepted = self.producer.accepted(member.address, wanted)
        assert accepted >= wanted, f"{member.name} accepted {accepted}, not {wanted}\n{self.group.log()}"

    def wait_for_set(self, master: Member, *others: Member) -> None:
        """Wait for a master and a sync-state set of the controller's."""
        wanted = {member.broker_id for member in (master, *others)}
        self.group.cluster.controllers.wait_group(
            self.group.broker_name,
            lambda state: state.master_id == master.broker_id and ids_in_set(state) == wanted,
            logs=self.group.log,
        )

    def keep_last_messages(self) -> int:
        """Let the first broker store messages that the second does not get; the end of its log."""
        self.links.hold_replication(0)
        return self.wait_for_longer_log()

    def wait_for_longer_log(self) -> int:
        """Wait until the first broker has messages that the second has not; the end of its log."""

        def end() -> int | None:
            found = self.first.max_offset
            return found if found > self.second.max_offset else None

        return eventually("a message that only the master has", end, logs=self.group.log)

    def check(self, *, epochs: int, cut_below: int | None = None, lived: bool = False) -> None:
        """End the clients and compare all that is there; the second broker began the last epoch.

        `cut_below`: the first broker had messages up to there that the second never got. `lived`: it was
        replaced while it ran, so that a real one may have lost some (see above).
        """
        may_lose = lived and isinstance(self.first, RealMember)
        sent = self.producer.end()
        confirmed = {one.body: one for one in sent if one.is_ok}
        assert_no_late_confirmation(sent, before=self.first, after=self.second)

        def end() -> int | None:
            found = {member.max_offset for member in (self.first, self.second)}
            return found.pop() if len(found) == 1 else None

        log_end = eventually("logs of equal length", end, logs=self.group.log)
        assert_same_log(self.first.root, self.second.root, end=log_end, file_bytes=FILE_BYTES)
        log = read_log(self.second.root, start=0, end=log_end, file_bytes=FILE_BYTES)
        lost = confirmed.keys() - {body.decode() for body in re.findall(rb"timed-\d+-\d+", log)}
        by_first = {body for body in lost if confirmed[body].broker == self.first.address}
        print(f"{len(confirmed)} messages were SEND_OK, {len(by_first)} of them by the old master alone")
        if may_lose:
            lost -= by_first
        assert not lost, f"{len(lost)} of {len(confirmed)} lost: {sorted(lost)[:5]}\n{self.group.log()}"
        self._check_received(
            {body: one for body, one in confirmed.items() if body not in by_first}, may_be_hidden=may_lose
        )
        assert self.first.epoch_file() == self.second.epoch_file()
        starts = [(epoch.epoch, epoch.start_offset) for epoch in self.second.epochs().epochs]
        assert [epoch for epoch, _ in starts] == list(range(1, epochs + 1))
        state = self.group.state()
        assert state is not None
        assert state.master_epoch == epochs
        if cut_below is not None:
            assert starts[-1][1] < cut_below

    def _check_received(self, confirmed: Mapping[str, Sent], *, may_be_hidden: bool) -> None:
        """Each confirmed message is received, or is `hidden` if that may be."""
        number = 0
        while True:
            messages = self.consumer.received(number + 1, within_s=RECEIVED_WITHIN_S)
            missing = confirmed.keys() - bodies(messages).keys()
            behind = hidden(confirmed, messages) if may_be_hidden else set()
            if not missing - behind:
                print(f"{len(missing)} messages were hidden from the consumer by others of the old master")
                return
            if len(messages) == number:
                some = [confirmed[body] for body in sorted(missing - behind)[:5]]
                raise AssertionError(
                    f"{len(missing)} of {len(confirmed)} not received: {some}\n{self.group.log()}"
                )
            number = len(messages)


def hidden(confirmed: Mapping[str, Sent], messages: Sequence[Mapping[str, Any]]) -> set[str]:
    """Confirmed messages at places for which the consumer was given another message before.

    A real master that was replaced while it lived dispatches what it never confirmed: consumers get it, and
    skip what its successor has at the same places of the queues.
    """
    given = {(one["queueId"], one["queueOffset"]): one["body"] for one in messages}
    return {
        body for body, one in confirmed.items() if given.get((one.queue_id, one.queue_offset), body) != body
    }


def assert_no_late_confirmation(sent: list[Sent], *, before: Member, after: Member) -> None:
    """The producer sends one message at a time: the brokers that accept them change once."""
    accepted = [one for one in sent if one.is_ok]
    changed = next((at for at, one in enumerate(accepted) if one.broker == after.address), len(accepted))
    late = [one.body for one in accepted[changed:] if one.broker == before.address]
    assert not late, f"confirmed by a master that was replaced: {late[:5]}"


@pytest.fixture
def times() -> dict[str, object]:
    """Settings of the pair."""
    return TIMES


def pairs(*in_ci: tuple[str, str], of: Sequence[tuple[str, str]] = PAIRS) -> pytest.MarkDecorator:
    """The pairs of a test; those that are not of `in_ci` are nightly."""
    params = [
        pytest.param(kinds, id="-".join(kinds), marks=() if kinds in in_ci else pytest.mark.nightly)
        for kinds in of
    ]
    return pytest.mark.parametrize("pair", params, indirect=True)


@pytest.fixture
def pair(
    request: pytest.FixtureRequest,
    running: Cluster,
    java_of_module: JavaDriver,
    tmp_path: Path,
    times: dict[str, object],
) -> Iterator[Pair]:
    """A pair in step, whose second broker is in the sync-state set, with its clients at work."""
    number = next(_numbers)
    broker_name, topic, names = f"broker-{number}", f"TopicOfFailover{number}", running.names
    ports = [free_port(), free_port()]
    endpoints = [Endpoint(f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}") for port in ports]
    settings = {**SETTINGS, **times}
    with (
        partitions(endpoints, controller=running.controllers.setting, name_server=names) as links,
        replica_group(running, folder=tmp_path, broker_name=broker_name, **settings) as group,
        ExitStack() as clients,
    ):
        for index, (kind, name) in enumerate(zip(request.param, ("first", "second"), strict=True)):
            group.join(
                kind,
                name,
                port=ports[index],
                controller_address=links.controller_for(index),
                name_server=links.name_server_for(index),
                **(COPIES if kind == TRIOHA else {}),
            )
            wait_until_registered(names, broker_name, group.members[0])
        first, second = group.members
        group.wait_set(first, second)
        producer = TimedProducer.start(java_of_module, names, topic=topic)
        clients.callback(producer.end)
        assert producer.accepted(first.address, 1) >= 1
        consumer = java_of_module.consume(names, group=f"group-{number}", topic=topic)
        clients.callback(consumer.end)
        found = Pair(group, links, topic, first, second, producer, consumer)
        found.accepts(first)
        yield found


slave_stays = pytest.mark.parametrize(
    "times", [{**TIMES, "haMaxTimeSlaveNotCatchup": LONG_MS}], ids=["slave-stays"]
)
"""A slave that is kept from its master's last messages has to stay in the set until the master is gone, or it
could not be elected."""
nobody_dies = pytest.mark.parametrize(
    "times", [{**TIMES, "controllerHeartBeatTimeoutMills": LONG_MS}], ids=["nobody-dies"]
)
"""A master that is back at once has to be back before it counts as dead, however slow the machine is."""


@slave_stays
@pairs((TRIOHA, ROCKETMQ))
def test_a_killed_master_is_replaced_and_comes_back_as_a_slave(pair: Pair) -> None:
    end = pair.keep_last_messages()
    pair.first.kill()
    pair.links.drop_replication(0)
    pair.accepts(pair.second)
    pair.first.start()
    pair.wait_for_set(pair.second, pair.first)
    pair.accepts(pair.second)
    pair.check(epochs=2, cut_below=end)


@pytest.mark.nightly
@slave_stays
@pairs((ROCKETMQ, TRIOHA))
def test_a_hung_master_is_replaced_and_follows_when_it_wakes_up(pair: Pair) -> None:
    end = pair.keep_last_messages()
    pair.first.hang()
    pair.links.drop_replication(0)
    pair.accepts(pair.second)
    with Wire(pair.first.address) as late:
        # The system accepts the connection and the bytes; the broker finds them when it wakes up.
        opaques = late.start(send(b"late", topic=pair.topic))
        pair.first.resume()
        for answer in late.answers(opaques).values():
            # A real one confirms what it is sent now, and loses it.
            assert isinstance(pair.first, RealMember) or answer.code != ResponseCode.SUCCESS
    pair.wait_for_set(pair.second, pair.first)
    pair.accepts(pair.second)
    pair.check(epochs=2, cut_below=end, lived=True)


@pairs()
def test_a_master_without_the_controller_is_replaced_and_follows_when_it_is_back(pair: Pair) -> None:
    pair.links.separate(0, Side.CONTROLLER)
    pair.accepts(pair.second)
    pair.links.heal()
    pair.wait_for_set(pair.second, pair.first)
    pair.accepts(pair.second)
    pair.check(epochs=2, lived=True)


@pairs()
def test_a_master_without_its_slave_goes_on_alone_until_it_is_back(pair: Pair) -> None:
    pair.links.separate(0, Side.PEERS)
    pair.wait_for_set(pair.first)
    pair.accepts(pair.first)
    pair.links.heal()
    pair.wait_for_set(pair.first, pair.second)
    pair.accepts(pair.first)
    pair.check(epochs=1)


@pytest.mark.nightly
@pairs((TRIOHA, ROCKETMQ))
def test_a_master_without_controller_and_slave_is_replaced_and_cut_when_it_is_back(pair: Pair) -> None:
    pair.links.separate(0, Side.CONTROLLER, Side.PEERS)
    end = pair.wait_for_longer_log()
    pair.accepts(pair.second)
    pair.links.heal()
    pair.wait_for_set(pair.second, pair.first)
    pair.accepts(pair.second)
    pair.check(epochs=2, cut_below=end, lived=True)


def lose_power(pair: Pair, on_disk: Path) -> None:
    """End the first broker without a word, and start it again with what its disk had at an earlier time."""
    pair.links.forget(0)
    pair.first.kill()
    shutil.rmtree(pair.first.root)
    shutil.copytree(on_disk, pair.first.root)
    process_id, _, _ = (pair.first.root / "abort").read_text().partition("\n")
    (pair.first.root / "abort").write_text(f"{process_id}\nthe boot before")
    pair.first.start()


def copy_store(member: Member, to: Path) -> Path:
    """A copy of the files of a broker that runs; its checkpoint claims no more than the log has."""
    checkpoint = (member.root / "checkpoint").read_bytes()
    shutil.copytree(member.root, to)
    (to / "checkpoint").write_bytes(checkpoint)
    return to


@nobody_dies
@pairs(of=PAIRS[:2])
def test_a_master_that_lost_power_and_is_back_at_once_has_its_slave_elected(
    pair: Pair, tmp_path: Path
) -> None:
    """What its disk has lost was SEND_OK, and its slave has it."""
    on_disk = copy_store(pair.first, tmp_path / "on disk")
    pair.accepts(pair.first)
    lose_power(pair, on_disk)
    pair.accepts(pair.second)
    assert "another election is asked for" in pair.first.log()
    pair.wait_for_set(pair.second, pair.first)
    pair.accepts(pair.second)
    pair.check(epochs=2)


@nobody_dies
@pairs(of=PAIRS[:1])
def test_a_master_that_lost_power_alone_is_elected_for_another_epoch(pair: Pair, tmp_path: Path) -> None:
    """Its slave, which left the set before, has bytes of the old epoch that are lost to all others."""
    on_disk = copy_store(pair.first, tmp_path / "on disk")
    pair.accepts(pair.first, 20)
    pair.second.kill()
    pair.wait_for_set(pair.first)
    lost = pair.first.max_offset
    lose_power(pair, on_disk)

    def epoch() -> int | None:
        state = pair.group.state()
        assert state is not None
        is_again = state.master_id == pair.first.broker_id and state.master_epoch > 1
        return state.master_epoch if is_again else None

    assert eventually("another epoch", epoch, logs=pair.group.log) > 1
    assert "another election is asked for" in pair.first.log()
    pair.accepts(pair.first)
    assert pair.first.epochs().epochs[-1].start_offset < lost
