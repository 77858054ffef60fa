"""Connected clients: members of groups of consumers and of producers.

See docs/protocol/remoting.md#clients-and-groups.

Theory of operation. A heartbeat makes its connection a member of each group in it. A member is removed when
it unregisters, when its connection ends, or after `SILENCE_S` without a heartbeat. When a group of consumers
gains or loses a member, or its topics change, all its members are notified, so that they rebalance the
queues; a client that misses a notification gets the change within 20 s, when it requests the list. The last
heartbeat of any member sets the subscriptions of its group.

Members are counted, and so are the bytes of subscriptions: a heartbeat that would pass a maximum is refused
and leaves everything as it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog
import trio
from attrs import define, field, frozen

from trioha.remoting.address import Address
from trioha.remoting.codes import LanguageCode
from trioha.remoting.subscriptions import Subscription

log = structlog.get_logger(__name__)

SILENCE_S: Final = 120.0
"""As RocketMQ's channel expired timeout; clients send a heartbeat every 30 s."""
SWEEP_INTERVAL_S: Final = 10.0
SUBSCRIPTION_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all groups: about what their subscriptions take in memory."""
BROADCASTING: Final = "BROADCASTING"


class TooManyClients(Exception):  # noqa: N818 - says what there is
    """A heartbeat would exceed the limit of members or of their subscriptions; `str()` names the limit."""


@define
class Member:
    """One client in one group."""

    client_id: str
    connection: int
    """Its connection's number on this server."""
    address: Address
    language: LanguageCode
    version: int
    last_heartbeat_s: float
    """Time of its last heartbeat, on trio's clock."""


@define
class ConsumerGroup:
    """The consumers of one group that are connected."""

    name: str
    members: dict[int, Member] = field(factory=dict)
    """By connection."""
    subscriptions: dict[str, Subscription] = field(factory=dict)
    """By topic."""
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member consumes all messages."""
        return self.message_model == BROADCASTING

    @property
    def client_ids(self) -> list[str]:
        """Of the members, each once."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    @property
    def cost_bytes(self) -> int:
        """About what the subscriptions take in memory."""
        return sum(subscription.cost_bytes for subscription in self.subscriptions.values())


@frozen
class ConsumerData:
    """A group of consumers in a heartbeat."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: Mapping[str, Subscription]
    """By topic."""


@frozen
class Heartbeat:
    """A client's groups, from its heartbeat."""

    client_id: str
    producer_groups: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]


Notify = Callable[[int, str], None]
"""Notifies the connection of that number that the members of a group have changed."""


class ClientRegistry:
    """All members of groups. `run` removes silent ones."""

    def __init__(
        self,
        *,
        members_max: int,
        notify: Notify = lambda _connection, _group: None,
        notifies: Callable[[str], bool] = lambda _group: True,
        on_gone: Callable[[int], None] = lambda _connection: None,
    ) -> None:
        """`notify` is called for each member that is notified of a change, `notifies` says whether those of a
        group are; `on_gone` is called with each connection that has ended."""
        self.consumers: dict[str, ConsumerGroup] = {}
        """Groups with at least one member. Read them; change them by the methods only."""
        self.producers: dict[str, dict[int, Member]] = {}
        """The same of producers: members by connection."""
        self.members = 0
        self._members_max = members_max
        self._notify = notify
        self._notifies = notifies
        self._on_gone = on_gone
        self._groups_of: defaultdict[int, set[tuple[bool, str]]] = defaultdict(set)
        """Groups of each connection, (is consumer, name)."""
        self._subscription_bytes = 0

    def heartbeat(
        self, heartbeat: Heartbeat, *, connection: int, address: Address, language: LanguageCode, version: int
    ) -> None:
        """Make the connection a member of the groups that `heartbeat` names. Raises TooManyClients."""
        self._check_limits(heartbeat, connection)
        now_s = trio.current_time()

        def member() -> Member:
            return Member(heartbeat.client_id, connection, address, language, version, now_s)

        for name in heartbeat.producer_groups:
            producers = self.producers.setdefault(name, {})
            self._join(producers, member(), is_consumer=False, group=name)
        for data in heartbeat.consumers:
            group = self.consumers.get(data.group)
            if group is None:
                group = self.consumers[data.group] = ConsumerGroup(data.group)
            is_new = self._join(group.members, member(), is_consumer=True, group=data.group)
            is_changed = data.subscriptions.keys() != group.subscriptions.keys()
            self._subscription_bytes -= group.cost_bytes
            group.subscriptions = {
                topic: _newer(group.subscriptions.get(topic), subscription)
                for topic, subscription in data.subscriptions.items()
            }
            self._subscription_bytes += group.cost_bytes
            group.consume_type = data.consume_type
            group.message_model = data.message_model
            group.consume_from_where = data.consume_from_where
            if is_new or is_changed:
                self._notify_all(group)

    def _check_limits(self, heartbeat: Heartbeat, connection: int) -> None:
        known = self._groups_of.get(connection, set())
        named = {(False, name) for name in heartbeat.producer_groups}
        named |= {(True, data.group) for data in heartbeat.consumers}
        if self.members + len(named - known) > self._members_max:
            raise TooManyClients(f"{self.members} members of groups are connected, trioha.consumersMax")
        more_bytes = sum(
            subscription.cost_bytes
            for data in heartbeat.consumers
            for subscription in data.subscriptions.values()
        )
        less_bytes = sum(
            group.cost_bytes
            for name in {data.group for data in heartbeat.consumers}
            if (group := self.consumers.get(name)) is not None
        )
        if self._subscription_bytes + more_bytes - less_bytes > max(
            SUBSCRIPTION_BYTES_MAX, self._subscription_bytes
        ):
            raise TooManyClients("the subscriptions of all groups take too much memory")

    def _join(self, members: dict[int, Member], member: Member, *, is_consumer: bool, group: str) -> bool:
        """Whether the member is new."""
        known = members.get(member.connection)
        members[member.connection] = member
        if known is None:
            self.members += 1
            self._groups_of[member.connection].add((is_consumer, group))
        return known is None or known.client_id != member.client_id

    # -- leaving ---------------------------------------------------------------------------------------

    def unregister(self, connection: int, *, producer_group: str | None, consumer_group: str | None) -> None:
        """The client leaves the groups named."""
        if producer_group is not None:
            self._leave(connection, producer_group, is_consumer=False)
        if consumer_group is not None:
            self._leave(connection, consumer_group, is_consumer=True)

    def connection_ended(self, connection: int) -> None:
        """All memberships of the connection end."""
        for is_consumer, group in list(self._groups_of.get(connection, ())):
            self._leave(connection, group, is_consumer=is_consumer)
        self._on_gone(connection)

    def _leave(self, connection: int, name: str, *, is_consumer: bool) -> None:
        groups = self._groups_of.get(connection)
        if groups is None or (is_consumer, name) not in groups:
            return
        groups.remove((is_consumer, name))
        if not groups:
            del self._groups_of[connection]
        self.members -= 1
        if not is_consumer:
            producers = self.producers[name]
            del producers[connection]
            if not producers:
                del self.producers[name]
            return
        group = self.consumers[name]
        del group.members[connection]
        if group.members:
            self._notify_all(group)
        else:
            self._subscription_bytes -= group.cost_bytes
            del self.consumers[name]

    def _notify_all(self, group: ConsumerGroup) -> None:
        if self._notifies(group.name):
            for connection in list(group.members):
                self._notify(connection, group.name)

    # -- time ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Remove silent members, until cancelled."""
        while True:
            await trio.sleep(SWEEP_INTERVAL_S)
            self.expire(trio.current_time())

    def expire(self, now_s: float) -> None:
        """Remove members without a heartbeat for `SILENCE_S`."""
        for is_consumer, name, members in self._all_groups():
            for member in list(members):
                if now_s - member.last_heartbeat_s > SILENCE_S:
                    log.warning(
                        "client is silent, and no member of its group any more",
                        client=member.client_id,
                        group=name,
                        address=str(member.address),
                    )
                    self._leave(member.connection, name, is_consumer=is_consumer)

    def _all_groups(self) -> Iterable[tuple[bool, str, list[Member]]]:
        yield from [
            (True, name, list(group.members.values())) for name, group in list(self.consumers.items())
        ]
        yield from [(False, name, list(members.values())) for name, members in list(self.producers.items())]


def _newer(known: Subscription | None, subscription: Subscription) -> Subscription:
    """Of two subscriptions to a topic the one of the higher version."""
    return subscription if known is None or subscription.version >= known.version else known
