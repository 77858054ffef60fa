"""What a name server knows of brokers and topics. No sockets, no tasks: a clock is all it asks for.

Theory of operation. Four tables, which change together:

| table | from | to |
|---|---|---|
| live brokers | cluster and address | time of its last message, its DataVersion, its connection |
| groups | broker name | cluster, and address by broker id: 0 is the master |
| clusters | cluster | broker names |
| topics | topic, broker name | numbers of queues, permission |

A broker registers with its topics every 30 s, and with those that changed as soon as they do. So topics are
merged, never replaced, and a topic that is known is updated only where the broker's DataVersion has changed:
a write permission that was wiped here survives registrations (rules (a) to (f) of
docs/protocol/remoting.md#registration). Only the master's topics count; those of a slave do where it has the
lowest id of its group, as its acting master.

A broker is removed when it unregisters, when the connection that it registered on is closed, and when it has
been silent for its timeout (`expire`). With the last broker of a group go the group's topics.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final

from attrs import Factory, define, evolve, field, frozen
from attrs.validators import ge

from trioha.errors import RemoteProtocolError
from trioha.metadata.data_version import DataVersion
from trioha.metadata.registration import (
    Registration,
    check_name,
)
from trioha.metadata.topics import READ_WRITE, Perm, TopicConfig

MASTER_ID: Final = 0
BROKER_TIMEOUT_S: Final = 120.0
"""Silence after which a broker is removed, where it asked for no other."""
SLICE_TOPICS: Final = 500
"""Topics that are registered without a break; some milliseconds."""
UNIT: Final = 1
UNIT_SUBSCRIPTION: Final = 2
SYNC_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Of the topic by which brokers find their group's members: it never names an acting master."""


class RegistryFullError(Exception):
    """A registration that exceeds a limit of the registry; nothing of it was taken."""


class BrokerRemovedError(Exception):
    """A broker was removed between two slices of its registration."""


@frozen
class RegistryLimits:
    """How much a registry holds."""

    brokers_max: int = field(default=1024, validator=ge(1))
    """Live brokers of all clusters."""
    topics_max: int = field(default=200_000, validator=ge(1))
    """Topics, counted once for each broker name that has them. Each takes some 500 bytes."""
    mapping_bytes_max: int = field(default=32 * 1024 * 1024, validator=ge(0))
    """Queue mappings of static topics: the characters of their JSON."""


@frozen
class BrokerIdentity:
    """Who a broker says it is."""

    cluster_name: str
    broker_name: str
    """Shared by a master and its slaves."""
    address: str
    """`host:port` for clients."""
    broker_id: int
    """0 is the master."""

    def __attrs_post_init__(self) -> None:
        check_name(self.cluster_name, "cluster")
        check_name(self.broker_name, "broker")
        check_name(self.address, "address")
        if self.broker_id < 0:
            raise RemoteProtocolError(f"broker id {self.broker_id} is negative")


@frozen
class BrokerRequest:
    """One registration."""

    identity: BrokerIdentity
    ha_address: str
    """`host:port` for slaves."""
    connection: int
    """Number of the connection that it came on: when that is closed, the broker is removed."""
    acting_master: bool | None = None
    """enableActingMaster; None of a broker that does not send it, as RocketMQ 4."""
    timeout_s: float = BROKER_TIMEOUT_S
    """Silence after which the broker is removed."""
    zone_name: str = ""
    refuses_single_topic: bool = False
    """Refuse a first registration with exactly one topic, as RocketMQ 5 does (rule (d))."""


@frozen
class MasterAddresses:
    """What a slave is answered: None where its group has no live master."""

    address: str | None = None
    ha_address: str | None = None


@define
class LiveBroker:
    """A registered broker."""

    identity: BrokerIdentity
    ha_address: str
    data_version: DataVersion
    connection: int
    timeout_s: float
    updated_s: float
    """Time of its last message, on the registry's clock."""
    filter_servers: tuple[str, ...] = ()


@define
class BrokerGroup:
    """A master and its slaves."""

    broker_name: str
    cluster_name: str
    addresses: dict[int, str] = Factory(dict)
    """`host:port` by broker id."""
    acting_master: bool = False
    """Whether a slave may serve in the master's place."""
    zone_name: str = ""


@frozen
class QueueData:
    """A topic on the brokers of one name."""

    read_queues: int
    write_queues: int
    perm: int
    sys_flag: int


@frozen
class Route:
    """Where a topic's queues are."""

    groups: tuple[BrokerGroup, ...]
    """Copies: they may be changed."""
    queues: Mapping[str, QueueData]
    """By broker name."""
    filter_servers: Mapping[str, tuple[str, ...]]
    """By broker address."""
    mappings: Mapping[str, Mapping[Any, Any]]
    """TopicQueueMappingInfo by broker name."""


class Registry:
    """The tables of one name server."""

    def __init__(self, *, clock: Callable[[], float], limits: RegistryLimits | None = None) -> None:
        """`clock` gives seconds and never goes back."""
        self._clock = clock
        self._limits = limits or RegistryLimits()
        self._live: dict[tuple[str, str], LiveBroker] = {}
        """By cluster and address."""
        self._groups: dict[str, BrokerGroup] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self.queue_datas = 0
        """Entries of all topics. Invariant: the sum of their lengths."""
        self._reserved_topics = 0
        """Entries that registrations in progress may still add."""
        self._mappings: dict[str, dict[str, Mapping[Any, Any]]] = {}
        """TopicQueueMappingInfo by topic and broker name."""
        self.mapping_bytes = 0
        """Characters of all mappings, as Python shows them."""
        self._reserved_mapping_bytes = 0

    # -- brokers ---------------------------------------------------------------------------------------

    @property
    def live(self) -> tuple[LiveBroker, ...]:
        """Registered brokers, the longest known first."""
        return tuple(self._live.values())

    @property
    def groups(self) -> tuple[BrokerGroup, ...]:
        """Groups with a live broker; not to be changed."""
        return tuple(self._groups.values())

    @property
    def clusters(self) -> dict[str, tuple[str, ...]]:
        """Broker names by cluster."""
        return {cluster: tuple(names) for cluster, names in self._clusters.items()}

    def register(
        self, request: BrokerRequest, registration: Registration, *, deletes_absent: bool = False
    ) -> MasterAddresses | None:
        """Add or update a broker and its topics at once; as `registering`."""
        steps = self.registering(request, registration, deletes_absent=deletes_absent)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                master: MasterAddresses | None = end.value
                return master

    def registering(
        self, request: BrokerRequest, registration: Registration, *, deletes_absent: bool = False
    ) -> Generator[None, None, MasterAddresses | None]:
        """Add or update a broker and its topics in slices, between which other requests may be answered.

        The value is None if the broker is refused for its single topic. `deletes_absent`: topics that a
        changed registration lacks are deleted (RocketMQ 5's deleteTopicWithBrokerRegistration).

        The broker is registered between two slices: its topics follow, `SLICE_TOPICS` in each. The caller
        lets no other registration of the same broker name, and no other change of topics, come between them.
        Raises RegistryFullError before anything is changed, BrokerRemovedError where the broker was removed
        meanwhile.
        """
        identity = request.identity
        key = (identity.cluster_name, identity.address)
        if key not in self._live and len(self._live) >= self._limits.brokers_max:
            raise RegistryFullError(
                f"this name server takes {self._limits.brokers_max} brokers, trioha.brokersMax"
            )
        topics, mapping_bytes = yield from self._reserve(identity.broker_name, registration)
        try:
            return (yield from self._registering(request, registration, deletes_absent=deletes_absent))
        finally:
            self._reserved_topics -= topics
            self._reserved_mapping_bytes -= mapping_bytes

    def _registering(
        self, request: BrokerRequest, registration: Registration, *, deletes_absent: bool
    ) -> Generator[None, None, MasterAddresses | None]:
        identity = request.identity
        group = self._groups.get(identity.broker_name)
        known = {} if group is None else group.addresses
        key = (identity.cluster_name, identity.address)
        if self._is_outdated(identity, known, registration.data_version):
            return MasterAddresses()
        known = {
            broker_id: address
            for broker_id, address in known.items()
            if address != identity.address or broker_id == identity.broker_id
        }
        is_first = identity.broker_id not in known
        if is_first and request.refuses_single_topic and len(registration.topics) == 1:
            return None
        live = self._live.get(key)
        if live is not None and live.identity.broker_name != identity.broker_name:
            self._remove(key)
            live = None
        if group is None:
            group = self._groups[identity.broker_name] = BrokerGroup(
                identity.broker_name, identity.cluster_name
            )
        holder = known.get(identity.broker_id)
        if holder is not None and holder != identity.address:
            for member in self._members(identity.broker_name):
                if member.address == holder:
                    del self._live[member.cluster_name, holder]
        known[identity.broker_id] = identity.address
        group.addresses = dict(sorted(known.items()))
        group.acting_master = request.acting_master is True
        group.zone_name = request.zone_name
        is_changed = live is None or is_first or live.data_version != registration.data_version
        registered = self._live[key] = LiveBroker(
            identity,
            request.ha_address,
            registration.data_version,
            request.connection,
            request.timeout_s,
            self._clock(),
            registration.filter_servers,
        )
        self._settle_clusters(identity.broker_name)
        slices = self._take_topics(
            group,
            request,
            registration,
            is_changed=is_changed,
            deletes_absent=deletes_absent and not is_first,
        )
        for _ in slices:
            yield
            if self._live.get(key) is not registered:
                raise BrokerRemovedError("the broker was removed while its topics were registered")
        return self._master_of(identity, group)

    def _reserve(
        self, broker_name: str, registration: Registration
    ) -> Generator[None, None, tuple[int, int]]:
        """Keep room for the new topics and mappings of a registration: how much. Raises RegistryFullError."""
        new = new_bytes = 0
        for number, name in enumerate(registration.topics, 1):
            new += broker_name not in self._topics.get(name, ())
            if number % SLICE_TOPICS == 0:
                yield
        for number, (topic, mapping) in enumerate(registration.mappings.items(), 1):
            known = self._mappings.get(topic, {}).get(broker_name, "")
            new_bytes += len(repr(mapping)) - len(repr(known))
            if number % SLICE_TOPICS == 0:
                yield
        limits = self._limits
        taken = self.queue_datas + self._reserved_topics
        if taken + new > limits.topics_max:
            raise RegistryFullError(
                f"{new} new topics are too many: this name server takes {limits.topics_max} of all brokers, "
                f"trioha.topicsMax, and has {taken}"
            )
        if self.mapping_bytes + self._reserved_mapping_bytes + new_bytes > limits.mapping_bytes_max:
            raise RegistryFullError("the queue mappings of static topics are too large")
        # What becomes smaller gives its room back when it is stored.
        new_bytes = max(new_bytes, 0)
        self._reserved_topics += new
        self._reserved_mapping_bytes += new_bytes
        return new, new_bytes

    def _is_outdated(
        self, identity: BrokerIdentity, known: Mapping[int, str], data_version: DataVersion
    ) -> bool:
        """Whether another broker has that id by a later decision of the controller (rule (e))."""
        holder = known.get(identity.broker_id)
        if holder is None or holder == identity.address:
            return False
        live = self._live.get((identity.cluster_name, holder))
        return live is not None and (live.data_version.state_version or 0) > (data_version.state_version or 0)

    def _take_topics(
        self,
        group: BrokerGroup,
        request: BrokerRequest,
        registration: Registration,
        *,
        is_changed: bool,
        deletes_absent: bool,
    ) -> Iterator[None]:
        """Merge the topics; an item after each slice of them."""
        broker_id = request.identity.broker_id
        is_prime_slave = (
            request.acting_master is not None and broker_id != MASTER_ID and broker_id == min(group.addresses)
        )
        if broker_id != MASTER_ID and not is_prime_slave:
            return
        name = group.broker_name
        if deletes_absent and is_changed and not registration.mappings:
            absent = [
                topic
                for topic, by_name in self._topics.items()
                if name in by_name and topic not in registration.topics
            ]
            for number, topic in enumerate(absent, 1):
                self._drop_topic(topic, name)
                if number % SLICE_TOPICS == 0:
                    yield
        for number, (topic, config) in enumerate(registration.topics.items(), 1):
            by_name = self._topics.setdefault(topic, {})
            if is_changed or name not in by_name:
                self.queue_datas += name not in by_name
                perm = config.perm
                if is_prime_slave and group.acting_master:
                    perm &= ~Perm.WRITE
                by_name[name] = _queue_data(config, perm)
            if number % SLICE_TOPICS == 0:
                yield
        if is_changed:
            for number, (topic, mapping) in enumerate(registration.mappings.items(), 1):
                if name in self._topics.get(topic, {}):
                    self._forget_mapping(topic, name)
                    self._mappings.setdefault(topic, {})[name] = mapping
                    self.mapping_bytes += len(repr(mapping))
                if number % SLICE_TOPICS == 0:
                    yield

    def _master_of(self, identity: BrokerIdentity, group: BrokerGroup) -> MasterAddresses:
        if identity.broker_id == MASTER_ID:
            return MasterAddresses()
        address = group.addresses.get(MASTER_ID)
        live = None if address is None else self._live.get((identity.cluster_name, address))
        return MasterAddresses() if live is None else MasterAddresses(address, live.ha_address)

    def unregister(self, identity: BrokerIdentity) -> bool:
        """Remove a broker; whether it was known."""
        return self._remove((identity.cluster_name, identity.address))

    def heartbeat(self, *, cluster_name: str, address: str, timeout_s: float | None = None) -> None:
        """The broker is there; one that is not known stays so."""
        live = self._live.get((cluster_name, address))
        if live is not None:
            live.updated_s = self._clock()
            if timeout_s is not None:
                live.timeout_s = timeout_s

    def query_data_version(
        self, identity: BrokerIdentity, asked: DataVersion | None
    ) -> tuple[bool, DataVersion | None]:
        """Whether the broker's table has changed since it registered, and the version that it had then.

        A broker whose table has not is there.
        """
        live = self._live.get((identity.cluster_name, identity.address))
        if live is None:
            return True, None
        is_changed = live.data_version != asked
        if not is_changed:
            live.updated_s = self._clock()
        return is_changed, live.data_version

    def connection_closed(self, connection: int) -> tuple[BrokerIdentity, ...]:
        """Remove the brokers that registered last on this connection, and return them."""
        return self._remove_all(key for key, live in self._live.items() if live.connection == connection)

    def expire(self) -> tuple[BrokerIdentity, ...]:
        """Remove the brokers that have been silent for longer than their timeout, and return them."""
        now_s = self._clock()
        return self._remove_all(
            key for key, live in self._live.items() if live.updated_s + live.timeout_s < now_s
        )

    def _remove_all(self, keys: Iterator[tuple[str, str]]) -> tuple[BrokerIdentity, ...]:
        removed = []
        for key in list(keys):
            removed.append(self._live[key].identity)
            self._remove(key)
        return tuple(removed)

    def _remove(self, key: tuple[str, str]) -> bool:
        live = self._live.pop(key, None)
        if live is None:
            return False
        name, address = live.identity.broker_name, live.identity.address
        group = self._groups[name]
        if all(member.address != address for member in self._members(name)):
            group.addresses = {
                broker_id: other for broker_id, other in group.addresses.items() if other != address
            }
        self._settle_clusters(name)
        if not group.addresses:
            del self._groups[name]
            for topic in [topic for topic, by_name in self._topics.items() if name in by_name]:
                self._drop_topic(topic, name)
        elif group.acting_master and MASTER_ID not in group.addresses:
            self._change_perms(name, lambda perm: perm & ~Perm.WRITE)
        return True

    def _members(self, name: str) -> list[BrokerIdentity]:
        return [live.identity for live in self._live.values() if live.identity.broker_name == name]

    def _settle_clusters(self, name: str) -> None:
        """List the group in the clusters of its live brokers; it should be one, and is that of the first."""
        clusters = dict.fromkeys(member.cluster_name for member in self._members(name))
        for cluster in clusters:
            self._clusters.setdefault(cluster, {})[name] = None
        for cluster in [cluster for cluster, names in self._clusters.items() if name in names]:
            if cluster not in clusters:
                del self._clusters[cluster][name]
                if not self._clusters[cluster]:
                    del self._clusters[cluster]
        group = self._groups[name]
        if clusters and group.cluster_name not in clusters:
            group.cluster_name = next(iter(clusters))

    # -- topics ----------------------------------------------------------------------------------------

    def route(self, topic: str, *, acting_masters: bool = False) -> Route | None:
        """Where a topic is; None if no broker has it.

        `acting_masters`: of a group that has no master, allows one to act and may not be written, the slave
        with the lowest id is shown as the master (RocketMQ 5's supportActingMaster).
        """
        by_name = self._topics.get(topic)
        if not by_name:
            return None
        groups = tuple(
            evolve(group, addresses=dict(group.addresses))
            for name in by_name
            if (group := self._groups.get(name)) is not None
        )
        if acting_masters and not topic.startswith(SYNC_MEMBER_PREFIX):
            for group in groups:
                if (
                    group.acting_master
                    and MASTER_ID not in group.addresses
                    and not by_name[group.broker_name].perm & Perm.WRITE
                ):
                    acting = group.addresses.pop(min(group.addresses))
                    group.addresses = {MASTER_ID: acting, **group.addresses}
        filter_servers = {
            address: live.filter_servers
            for group in groups
            for address in group.addresses.values()
            if (live := self._live.get((group.cluster_name, address))) is not None and live.filter_servers
        }
        return Route(groups, dict(by_name), filter_servers, dict(self._mappings.get(topic, {})))

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics."""
        return tuple(self._topics)

    def topics_of_cluster(self, cluster: str) -> tuple[str, ...]:
        """Topics that a broker of the cluster has."""
        names = self._clusters.get(cluster, {})
        return tuple(topic for topic, by_name in self._topics.items() if not names.keys().isdisjoint(by_name))

    def topics_by_flags(self, wanted: Callable[[int], bool]) -> tuple[str, ...]:
        """Topics whose topicSysFlag is wanted: that of the broker that registered the topic first."""
        return tuple(
            topic for topic, by_name in self._topics.items() if wanted(next(iter(by_name.values())).sys_flag)
        )

    def system_topics(self) -> tuple[tuple[str, ...], str | None]:
        """The topics that every broker makes: named after clusters and brokers; and a broker's address."""
        names = [name for cluster, names in self._clusters.items() for name in (cluster, *names)]
        address = next(
            (address for group in self._groups.values() for address in group.addresses.values()), None
        )
        return tuple(dict.fromkeys(names)), address

    def set_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Take a topic by itself, of known brokers only (REGISTER_TOPIC_IN_NAMESRV). RegistryFullError."""
        check_name(topic, "topic")
        known = {name: data for name, data in queues.items() if name in self._groups}
        new = len(known.keys() - self._topics.get(topic, {}).keys())
        if self.queue_datas + self._reserved_topics + new > self._limits.topics_max:
            raise RegistryFullError(
                f"this name server takes {self._limits.topics_max} topics, trioha.topicsMax"
            )
        if known:
            self._topics.setdefault(topic, {}).update(known)
            self.queue_datas += new

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Forget a topic, in one cluster or in all, until a broker registers it anew."""
        names = self._topics.get(topic, {})
        wanted = names if cluster is None else self._clusters.get(cluster, {})
        for name in [name for name in names if name in wanted]:
            self._drop_topic(topic, name)

    def wipe_write_perm(self, broker_name: str) -> int:
        """Let producers leave a broker: how many topics it has."""
        return self._change_perms(broker_name, lambda perm: perm & ~Perm.WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Take `wipe_write_perm` back: how many topics the broker has."""
        return self._change_perms(broker_name, lambda _: int(READ_WRITE))

    def _change_perms(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for by_name in self._topics.values():
            data = by_name.get(broker_name)
            if data is not None:
                by_name[broker_name] = QueueData(
                    data.read_queues, data.write_queues, change(data.perm), data.sys_flag
                )
                count += 1
        return count

    def _drop_topic(self, topic: str, name: str) -> None:
        by_name = self._topics[topic]
        del by_name[name]
        self.queue_datas -= 1
        if not by_name:
            del self._topics[topic]
        self._forget_mapping(topic, name)

    def _forget_mapping(self, topic: str, name: str) -> None:
        by_name = self._mappings.get(topic, {})
        mapping = by_name.pop(name, None)
        if mapping is not None:
            self.mapping_bytes -= len(repr(mapping))
            if not by_name:
                del self._mappings[topic]


def _queue_data(config: TopicConfig, perm: int) -> QueueData:
    return QueueData(config.read_queue_nums, config.write_queue_nums, perm, config.sys_flag)
