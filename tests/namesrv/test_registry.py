"""The tables of a name server, and the rules by which registrations change them.

See docs/protocol/remoting.md#registration.
"""

import random

import pytest

from tests.clocks import Clock
from tests.levels import by_level
from tests.namesrv.values import identity, register, topics
from trioha.errors import RemoteProtocolError
from trioha.metadata.registration import Registration
from trioha.namesrv.registry import (
    SLICE_TOPICS,
    BrokerRequest,
    MasterAddresses,
    QueueData,
    Registry,
    RegistryFullError,
    RegistryLimits,
)

MASTER = identity(0)
SLAVE = identity(1)


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def registry(clock):
    return Registry(clock=clock)


def addresses(registry, name="broker-a"):
    return next((group.addresses for group in registry.groups if group.broker_name == name), {})


def perms(registry, topic):
    route = registry.route(topic)
    return {} if route is None else {name: data.perm for name, data in route.queues.items()}


def test_a_slave_learns_where_its_master_is(registry):
    alone = register(registry, SLAVE, topics("T", "U"))
    own = register(registry, MASTER, topics("T", "U"))
    told = register(registry, SLAVE, topics("T", "U"))

    assert (alone, own) == (MasterAddresses(), MasterAddresses())
    assert told == MasterAddresses("broker-a:10911", "broker-a:10911-ha")
    assert addresses(registry) == {0: "broker-a:10911", 1: "broker-a:10912"}
    assert registry.clusters == {"Cluster": ("broker-a",)}


def test_an_address_has_one_id_in_its_group(registry):
    register(registry, MASTER, topics("T"))
    register(registry, identity(2, address=MASTER.address), topics("T"))
    assert addresses(registry) == {2: MASTER.address}


def test_only_the_masters_topics_count(registry):
    register(registry, SLAVE, topics("T"))
    assert registry.route("T") is None
    register(registry, MASTER, topics("T"))
    register(registry, SLAVE, topics("T", "U", counter=9))
    assert registry.topics == ("T",)


def test_a_registration_adds_topics_and_keeps_those_that_it_lacks(registry):
    register(registry, MASTER, topics("T", "U"))
    register(registry, MASTER, topics("V", counter=2))
    assert registry.topics == ("T", "U", "V")
    # Of the same table: one that got lost on its way.
    register(registry, MASTER, topics("W", counter=2))
    assert "W" in registry.topics


def test_a_topic_changes_only_with_the_data_version(registry):
    register(registry, MASTER, topics("T", write_queue_nums=4))
    register(registry, MASTER, topics("T", write_queue_nums=8))
    same = registry.route("T")
    register(registry, MASTER, topics("T", write_queue_nums=8, counter=2))
    changed = registry.route("T")

    assert same.queues == {"broker-a": QueueData(4, 4, 6, 0)}
    assert changed.queues == {"broker-a": QueueData(4, 8, 6, 0)}


def test_a_wiped_write_permission_outlives_registrations_of_the_same_table(registry):
    register(registry, MASTER, topics("T", "U"))
    assert registry.wipe_write_perm("broker-a") == 2
    register(registry, MASTER, topics("T", "U"))
    assert perms(registry, "T") == {"broker-a": 4}
    assert registry.add_write_perm("broker-a") == 2
    assert perms(registry, "T") == {"broker-a": 6}
    assert registry.wipe_write_perm("unknown") == 0


def test_absent_topics_are_deleted_where_that_is_asked_for(registry):
    register(registry, MASTER, topics("T", "U"))
    register(registry, identity(name="broker-b"), topics("U", "V"))
    register(registry, MASTER, topics("T", "W", counter=2), deletes_absent=True)
    assert perms(registry, "U") == {"broker-b": 6}
    assert set(registry.topics) == {"T", "U", "V", "W"}


@pytest.mark.parametrize(("names", "is_taken"), [((), True), (("T",), False), (("T", "U"), True)])
def test_a_broker_of_version_5_cannot_begin_with_one_topic(registry, names, is_taken):
    # An incremental registration that a name server gets after its restart must not stand for all topics.
    told = register(registry, MASTER, topics(*names), refuses_single_topic=True)
    assert (told is not None) is is_taken
    assert (registry.live != ()) is is_taken
    assert (registry.groups != ()) is is_taken
    assert registry.topics == (names if is_taken else ())


def test_an_id_stays_with_the_address_of_the_later_state_version(registry):
    register(registry, MASTER, topics("T", "U", state=5))
    register(registry, identity(0, address="old:1"), topics("T", "U", state=4, counter=9))
    assert addresses(registry) == {0: MASTER.address}
    register(registry, identity(0, address="new:1"), topics("T", "U", state=6))
    assert addresses(registry) == {0: "new:1"}


@pytest.mark.parametrize(("acting", "perm"), [(None, None), (False, 6), (True, 4)])
def test_the_lowest_slave_registers_topics_if_it_says_whether_it_may_act_as_master(registry, acting, perm):
    register(registry, SLAVE, topics("T", "U"), acting_master=acting)
    register(registry, identity(2), topics("V", "W"), acting_master=acting)
    assert perms(registry, "T") == ({} if perm is None else {"broker-a": perm})
    assert registry.route("V") is None


@pytest.mark.parametrize(("acting", "perm"), [(False, 6), (True, 4)])
def test_a_group_that_lost_its_master_is_read_only_if_a_slave_acts(registry, acting, perm):
    register(registry, MASTER, topics("T", "U"), acting_master=acting)
    register(registry, SLAVE, topics("T", "U"), acting_master=acting)
    registry.unregister(MASTER)
    assert perms(registry, "T") == {"broker-a": perm}

    plain, shown = registry.route("T"), registry.route("T", acting_masters=True)
    assert [group.addresses for group in plain.groups] == [{1: SLAVE.address}]
    assert [group.addresses for group in shown.groups] == [{0 if acting else 1: SLAVE.address}]
    assert addresses(registry) == {1: SLAVE.address}


def test_the_topic_of_members_names_no_acting_master(registry):
    topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    register(registry, SLAVE, topics(topic, "T"), acting_master=True)
    route = registry.route(topic, acting_masters=True)
    assert [group.addresses for group in route.groups] == [{1: SLAVE.address}]


def test_topics_go_with_the_last_broker_of_their_group(registry):
    register(registry, MASTER, topics("T", "U"))
    register(registry, SLAVE, topics("T", "U"))
    register(registry, identity(name="broker-b"), topics("T"))
    assert registry.unregister(MASTER)
    assert perms(registry, "T") == {"broker-a": 6, "broker-b": 6}
    assert registry.unregister(SLAVE)
    assert not registry.unregister(SLAVE)
    assert perms(registry, "T") == {"broker-b": 6}
    assert registry.topics == ("T",)
    assert registry.clusters == {"Cluster": ("broker-b",)}


def test_a_silent_broker_is_removed_after_its_timeout(registry, clock):
    register(registry, MASTER, topics("T"))
    register(registry, SLAVE, topics("T"), timeout_s=10.0)
    clock.now += 10.0
    assert registry.expire() == ()
    clock.now += 0.1
    assert registry.expire() == (SLAVE,)
    clock.now += 109.9
    assert registry.expire() == ()
    clock.now += 0.1
    assert registry.expire() == (MASTER,)
    assert (registry.live, registry.groups, registry.topics, registry.clusters) == ((), (), (), {})


def test_heartbeats_and_questions_for_the_same_table_keep_a_broker(registry, clock):
    version = topics().data_version
    for who in (MASTER, SLAVE, identity(2)):
        register(registry, who, topics("T"))
    clock.now += 100
    registry.heartbeat(cluster_name="Cluster", address=MASTER.address)
    registry.heartbeat(cluster_name="Elsewhere", address=SLAVE.address)
    same = registry.query_data_version(identity(2), version)
    changed = registry.query_data_version(SLAVE, topics(counter=7).data_version)
    clock.now += 100

    assert same == (False, version)
    assert changed == (True, version)
    assert registry.expire() == (SLAVE,)
    assert registry.query_data_version(SLAVE, version) == (True, None)


def test_a_heartbeat_may_change_the_timeout(registry, clock):
    register(registry, MASTER, topics("T"))
    registry.heartbeat(cluster_name="Cluster", address=MASTER.address, timeout_s=1.0)
    clock.now += 1.1
    assert registry.expire() == (MASTER,)


def test_a_closed_connection_takes_all_brokers_that_registered_on_it(registry):
    register(registry, MASTER, topics("T"), connection=1)
    register(registry, SLAVE, topics("T"), connection=1)
    register(registry, identity(name="broker-b"), topics("T"), connection=2)
    # It has registered anew on another one.
    register(registry, SLAVE, topics("T"), connection=3)
    assert registry.connection_closed(1) == (MASTER,)
    assert registry.connection_closed(1) == ()
    assert addresses(registry) == {1: SLAVE.address}


def test_a_deleted_topic_is_gone_in_one_cluster_or_in_all(registry):
    register(registry, MASTER, topics("T", "U"))
    register(registry, identity(name="broker-b", cluster="Other"), topics("T", "U"))
    registry.delete_topic("T", cluster="Nowhere")
    registry.delete_topic("T", cluster="Other")
    registry.delete_topic("U")
    registry.delete_topic("unknown")
    assert perms(registry, "T") == {"broker-a": 6}
    assert registry.topics == ("T",)


def test_topics_are_listed_by_cluster_and_by_flags(registry):
    register(registry, MASTER, topics("T"))
    register(registry, MASTER, topics("unit", sys_flag=1, counter=2))
    register(registry, identity(name="broker-b", cluster="Other"), topics("sub", sys_flag=2))
    assert registry.topics_of_cluster("Cluster") == ("T", "unit")
    assert registry.topics_of_cluster("Other") == ("sub",)
    assert registry.topics_of_cluster("Nowhere") == ()
    assert registry.topics_by_flags(lambda flags: flags & 1 != 0) == ("unit",)
    assert registry.system_topics() == (("Cluster", "broker-a", "Other", "broker-b"), MASTER.address)


def test_a_topic_may_be_registered_alone_for_brokers_that_are_known(registry):
    register(registry, MASTER, topics("T"))
    registry.set_topic("S", {"broker-a": QueueData(1, 1, 6, 0), "unknown": QueueData(1, 1, 6, 0)})
    registry.set_topic("nowhere", {"unknown": QueueData(1, 1, 6, 0)})
    assert perms(registry, "S") == {"broker-a": 6}
    assert registry.route("nowhere") is None


def test_queue_mappings_go_with_their_topic(registry):
    table = topics("T", "U")
    register(registry, MASTER, Registration(table.data_version, table.topics, mappings={"T": {"epoch": 1}}))
    route = registry.route("T")
    assert route.mappings == {"broker-a": {"epoch": 1}}
    registry.delete_topic("T")
    register(registry, MASTER, topics("T"))
    route = registry.route("T")
    assert route.mappings == {}


def test_what_exceeds_a_limit_changes_nothing():
    registry = Registry(
        clock=Clock(1000.0), limits=RegistryLimits(brokers_max=2, topics_max=5, mapping_bytes_max=20)
    )
    register(registry, MASTER, topics("A", "B", "C"))
    with pytest.raises(RegistryFullError, match="3 new topics are too many"):
        register(registry, identity(name="broker-b"), topics("A", "B", "C"))
    register(registry, identity(name="broker-b"), topics("A", "B"))
    with pytest.raises(RegistryFullError, match="takes 2 brokers"):
        register(registry, SLAVE, topics("A"))
    with pytest.raises(RegistryFullError, match="topics"):
        registry.set_topic("S", {"broker-a": QueueData(1, 1, 6, 0)})
    table = topics("A", counter=3)
    mapped = Registration(table.data_version, table.topics, mappings={"A": {"x": "y" * 20}})
    with pytest.raises(RegistryFullError, match="mappings"):
        register(registry, MASTER, mapped)
    # Those that are known may go on, and what is deleted makes room.
    register(registry, MASTER, topics("A", "B", "C", counter=2))
    registry.delete_topic("A")
    register(registry, MASTER, topics("D", counter=3))
    assert addresses(registry) == {0: MASTER.address}
    assert len(registry.live) == 2


def test_room_is_kept_for_the_topics_of_a_registration_in_progress():
    names = [f"t{number}" for number in range(2 * SLICE_TOPICS)]
    registry = Registry(clock=Clock(1000.0), limits=RegistryLimits(topics_max=2 * SLICE_TOPICS + 1))
    steps = registry.registering(BrokerRequest(MASTER, "h:1", connection=1), topics(*names))
    while not registry.queue_datas:
        next(steps)
    with pytest.raises(RegistryFullError, match="2 new topics are too many"):
        register(registry, identity(name="broker-b"), topics("A", "B"))
    steps.close()
    registry.connection_closed(1)
    register(registry, identity(name="broker-b"), topics("A", "B"))
    assert registry.topics == ("A", "B")


@pytest.mark.parametrize("name", ["", "n" * 256, "\ud800"])
def test_names_that_cannot_be_are_refused(name):
    for fields in ({"name": name}, {"cluster": name}):
        with pytest.raises(RemoteProtocolError, match="name of the"):
            identity(address="h:1", **fields)
    with pytest.raises(RemoteProtocolError, match="negative"):
        identity(-1)


def check_tables(registry):
    """What the tables say of each other."""
    live = {(one.identity.broker_name, one.identity.address): one.identity for one in registry.live}
    addresses_by_name = {group.broker_name: group.addresses.values() for group in registry.groups}
    for name, address in live:
        assert address in addresses_by_name[name]
    for group in registry.groups:
        assert group.addresses
        assert list(group.addresses) == sorted(group.addresses)
        assert len(set(group.addresses.values())) == len(group.addresses)
        for address in group.addresses.values():
            assert (group.broker_name, address) in live
        assert group.broker_name in registry.clusters[group.cluster_name]
    names = {group.broker_name for group in registry.groups}
    assert {name for members in registry.clusters.values() for name in members} == names
    assert all(registry.clusters.values())
    entries = 0
    for topic in registry.topics:
        route = registry.route(topic)
        assert route.queues.keys() <= names
        assert {group.broker_name for group in route.groups} == route.queues.keys()
        assert route.mappings.keys() <= route.queues.keys()
        entries += len(route.queues)
    assert registry.queue_datas == entries


def one_step(registry, clock, chance):
    """Do something to the tables, and say what."""
    who = identity(
        chance.randrange(3),
        name=chance.choice("ab"),
        cluster=chance.choice(["C1", "C2"]),
        address=chance.choice(["h:1", "h:2", "h:3"]),
    )
    match chance.randrange(12):
        case 0:
            registry.unregister(who)
            return f"unregister {who}"
        case 1:
            return f"closed {registry.connection_closed(chance.randint(1, 2))}"
        case 2:
            clock.now += chance.choice([1.0, 10.0])
            return f"expired {registry.expire()}"
        case 3:
            registry.delete_topic(topic := chance.choice("TU"), cluster=chance.choice([None, "C1"]))
            return f"deleted {topic}"
        case 4:
            registry.set_topic("V", {who.broker_name: QueueData(1, 1, 6, 0)})
            return f"set V of {who.broker_name}"
        case 5:
            registry.wipe_write_perm(who.broker_name)
            return f"wiped {who.broker_name}"
    table = topics(
        *chance.sample("TUV", chance.randrange(4)), counter=chance.randrange(3), state=chance.randrange(2)
    )
    mapped = {topic: {"epoch": chance.randrange(100)} for topic in chance.sample("TU", chance.randrange(3))}
    fields = {
        "connection": chance.randint(1, 2),
        "acting_master": chance.choice([None, False, True]),
        "refuses_single_topic": chance.random() < 0.5,
        "deletes_absent": chance.random() < 0.5,
        "timeout_s": chance.choice([5.0, 120.0]),
    }
    register(registry, who, Registration(table.data_version, table.topics, mappings=mapped), **fields)
    return f"register {who} {sorted(table.topics)} {fields}"


@pytest.mark.sized
def test_whatever_happens_the_tables_agree_and_nothing_stays_of_brokers_that_are_gone():
    for seed in range(by_level(300, 2_000, 20_000)):
        chance = random.Random(seed)
        clock = Clock()
        registry = Registry(clock=clock)
        done = []
        for _ in range(chance.randint(1, 25)):
            done.append(one_step(registry, clock, chance))
            check_tables(registry)
        clock.now += 1000
        registry.expire()
        assert (registry.live, registry.groups, registry.clusters, registry.topics) == ((), (), {}, ()), done
        assert (registry.queue_datas, registry.mapping_bytes) == (0, 0), done
