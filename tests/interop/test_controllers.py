"""Three real controllers, of which the leading one is killed; three brokers, of which two masters are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.interop.controller import Consensus, eventually
from tests.interop.java import JavaDriver, JavaDrivers
from tests.interop.members import Member
from tests.interop.messages import bodies
from tests.interop.replica_group import Cluster, ReplicaGroup, cluster, ids_in_set, replica_group
from tests.interop.rocketmq import VERSIONS_5, missing_tools, version_params
from tests.interop.timed import Sent, TimedProducer
from tests.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.process, pytest.mark.full]
KINDS = ("trioha", "rocketmq", "trioha")
OTHERS = ("rocketmq", "trioha", "rocketmq")
PAUSE_MS = 10
"""Between two messages of a producer."""


@pytest.fixture(scope="module", params=version_params(versions=VERSIONS_5))
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if lacking := missing_tools():
        pytest.skip(lacking)
    folder = tmp_path_factory.mktemp("three")
    with cluster(request.param, folder=folder, number=3, consensus=Consensus.JRAFT) as found:
        yield found


@pytest.fixture
def group(three: Cluster, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReplicaGroup]:
    for process in three.controllers.processes:
        if not process.is_running:
            process.start()
    with replica_group(three, folder=tmp_path, broker_name=request.node.originalname) as found:
        yield found


@pytest.fixture
def driver(three: Cluster, drivers: JavaDrivers) -> Iterator[JavaDriver]:
    with drivers.lent(three.version) as driver:
        yield driver


def goes_on(producer: TimedProducer, number: int = 50) -> None:
    """Wait until so many more messages are SEND_OK."""
    wanted = producer.accepted() + number
    assert producer.accepted(number=wanted) >= wanted


def all_sent_are_consumed(sent: list[Sent], group: ReplicaGroup, driver: JavaDriver, topic: str) -> None:
    """Each message that was SEND_OK is there. Others may be, too, whose producer had no answer."""
    missing = {one.body for one in sent if one.is_ok}
    assert missing
    consumer = driver.consume(group.cluster.names, group=f"all-of-{topic}", topic=topic)

    def has_all() -> bool:
        missing.difference_update(bodies(consumer.received(0)))
        return not missing

    try:
        wait_until(has_all, "all messages are consumed")
    except AssertionError as late:
        raise AssertionError(f"{late}: {sorted(missing)} are missing\n{group.log()}") from None
    finally:
        consumer.end()


@pytest.mark.nightly
def test_brokers_go_on_with_the_next_leader_and_fail_over_under_it(
    group: ReplicaGroup, driver: JavaDriver
) -> None:
    controllers = group.cluster.controllers
    first = group.join("trioha", "first")
    second = group.join("trioha", "second")
    group.wait_set(first, second)
    first.stored(10)
    producer = TimedProducer.start(driver, group.cluster.names, topic="Leaders", pause_ms=PAUSE_MS)
    goes_on(producer)

    killed = controllers.leader()
    controllers.process_at(killed).kill()
    goes_on(producer)
    assert controllers.leader() != killed
    # The next leader has the heartbeats of both: it lists them as alive.
    alive_at_next_leader(group, first, second)
    # It decides about the set: it becomes smaller and grows again.
    second.kill()
    group.wait_set(first)
    goes_on(producer)
    second.start()
    group.wait_set(first, second)
    # And it elects.
    first.kill()
    assert group.wait_master(second) is second
    goes_on(producer)
    first.start()
    group.wait_set(first, second)
    goes_on(producer)

    sent = producer.end()
    group.wait_equal(second, first)
    assert [epoch.epoch for epoch in second.epochs().epochs] == [1, 2]
    all_sent_are_consumed(sent, group, driver, "Leaders")


def alive_at_next_leader(group: ReplicaGroup, *members: Member) -> None:
    wanted = {member.broker_id for member in members}

    def find() -> bool | None:
        state = group.state()
        if state is None:
            return None
        alive = {replica.broker_id for replica in (*state.in_sync, *state.not_in_sync) if replica.is_alive}
        return True if alive == wanted else None

    eventually(f"{sorted(wanted)} are alive at the next leader", find, logs=group.log)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [KINDS, OTHERS], ids="-".join)
def test_three_brokers_of_both_kinds_survive_two_masters(
    group: ReplicaGroup, driver: JavaDriver, kinds: tuple[str, ...]
) -> None:
    topic = f"Three-{kinds[0]}"
    group.broker_name = f"{group.broker_name}-{kinds[0]}"
    members = [group.join(kind, f"{number}-{kind}") for number, kind in enumerate(kinds)]
    group.wait_set(*members)
    members[0].stored(10)
    group.wait_equal(*members)
    producer = TimedProducer.start(driver, group.cluster.names, topic=topic, pause_ms=PAUSE_MS)
    goes_on(producer)

    # The master dies, comes back as a slave, and the next one dies, too.
    masters = [group.wait_master(*members)]
    assert masters[0] is members[0]
    masters[0].kill()
    alive = members[1:]
    masters.append(group.wait_master(*alive))
    goes_on(producer)
    group.wait_set(*alive)
    masters[0].start()
    group.wait_set(*members)
    goes_on(producer)
    masters[1].kill()
    alive = [member for member in members if member is not masters[1]]
    masters.append(group.wait_master(*alive))
    goes_on(producer)
    group.wait_set(*alive)
    masters[1].start()
    group.wait_set(*members)
    goes_on(producer)

    sent = producer.end()
    last = masters[2]
    group.wait_equal(last, *(member for member in members if member is not last))
    assert [epoch.epoch for epoch in last.epochs().epochs] == [1, 2, 3]
    all_sent_are_consumed(sent, group, driver, topic)


@pytest.mark.nightly
def test_nodes_with_tls_replicate_and_fail_over(group: ReplicaGroup, tmp_path: Path) -> None:
    """Mutual TLS at the HA port, and TLS to the other broker, to name server and controllers."""
    authority = trustme.CA()
    first, second = (group.join("trioha", name, **tls(tmp_path / name, authority)) for name in ("one", "two"))
    group.wait_set(first, second)
    first.stored(20)
    # The certificate is of another authority: no byte, no place in the set.
    stranger = group.join("trioha", "three", **tls(tmp_path / "three", trustme.CA()))
    first.kill()
    assert group.wait_master(second) is second
    second.stored(20)
    first.start()
    in_set = group.wait_set(first, second)
    second.stored(5)
    group.wait_equal(second, first)
    assert stranger.epochs().max_offset == 0
    assert stranger.broker_id not in ids_in_set(in_set)


def tls(folder: Path, authority: trustme.CA) -> dict[str, object]:
    """Settings of a node with a certificate of `authority` for everything."""
    folder.mkdir(exist_ok=True)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "node.pem")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return {
        "trioha.haTlsCert": folder / "node.pem",
        "trioha.haTlsKey": folder / "node.pem",
        "trioha.haTlsCa": folder / "ca.pem",
        "tls.enable": "true",
        "tls.server.mode": "permissive",
        "tls.server.certPath": folder / "node.pem",
        "tls.server.keyPath": folder / "node.pem",
    }
