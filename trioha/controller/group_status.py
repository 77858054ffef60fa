"""Controller mode of a RocketMQ broker, as far as it and its controllers answer.

See docs/protocol/ha.md#controller-requests, docs/protocol/ha.md#status-requests.

A trioha node reports it itself (docs/ha-status.md). A RocketMQ broker says in its configuration that it is in
controller mode and where its controllers are, and answers 1007 with the epochs of its log. The leading
controller has the master, the epoch and the sync-state set (1006). Not known of it are the confirm offset,
acknowledged offsets by broker id, and its role changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio
from attrs import define, evolve, field

from trioha.broker_status import BrokerStatus, ControllerLinkStatus, ControlStatus, MemberStatus
from trioha.controller.asking import fetch_epochs, fetch_groups, fetch_metadata, reason_of
from trioha.controller.bodies import EpochCache, ReplicaSetInfo
from trioha.errors import ConfigError, PeerError, RemoteProtocolError
from trioha.remoting.address import parse_address
from trioha.remoting.client import RemotingClient
from trioha.remoting.runtime_table import natural_of

CONTROLLERS_MAX: Final = 16
"""Controllers of one broker that are asked."""
REASON_CHARS_MAX: Final = 200

Connect = Callable[[str], AbstractAsyncContextManager[RemotingClient]]


def is_controlled(status: BrokerStatus, config: Mapping[str, str] | None) -> bool:
    """Whether `config` is that of a RocketMQ broker in controller mode."""
    return (
        not status.is_trioha
        and config is not None
        and config.get("enableControllerMode", "").lower() == "true"
    )


async def fetch_control(
    client: RemotingClient,
    status: BrokerStatus,
    config: Mapping[str, str],
    *,
    connect: Connect,
    timeout_s: float,
) -> ControlStatus:
    """Controller mode of the RocketMQ broker at `client`, which answered `status` and `config`.

    What does not answer within `timeout_s` for each request is left out: this raises nothing.
    """
    search = _Search(connect, timeout_s)
    asked_s = trio.current_time()
    cache, info = None, None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(search.find_leader, _addresses(config.get("controllerAddr", "")))
        cache = await _epochs(client, timeout_s=timeout_s)
    name = status.broker_name
    if search.leader is not None and name is not None:
        info = await search.group(name)
    is_master = status.client is None
    own_id = natural_of(config, "brokerId") or None
    if info is not None and is_master:
        own_id = info.master_id
    control = ControlStatus(
        role="master" if is_master else "slave",
        broker_id=own_id,
        log_epoch=cache.epochs[-1].epoch if cache is not None and cache.epochs else None,
        in_sync_min=natural_of(config, "minInSyncReplicas"),
        leader=search.leader,
        leader_heard_ms=None if info is None else round((trio.current_time() - asked_s) * 1000),
        controllers=tuple(search.links),
        refusal=search.refusal,
    )
    return control if info is None else _with_group(control, info)


def _with_group(control: ControlStatus, info: ReplicaSetInfo) -> ControlStatus:
    members = [
        MemberStatus(
            broker_id=replica.broker_id,
            in_set=in_set,
            is_required=in_set,
            is_connected=replica.is_alive,
        )
        for in_set, replicas in ((True, info.in_sync), (False, info.not_in_sync))
        for replica in replicas
    ]
    return evolve(
        control,
        master_epoch=info.master_epoch,
        master_id=info.master_id,
        master_address=info.master_address,
        sync_state_set=tuple(sorted(replica.broker_id for replica in info.in_sync)),
        sync_state_set_epoch=info.set_epoch,
        members=tuple(sorted(members, key=lambda member: member.broker_id)),
    )


async def _epochs(client: RemotingClient, *, timeout_s: float) -> EpochCache | None:
    try:
        return await fetch_epochs(client, timeout_s=timeout_s)
    except (PeerError, RemoteProtocolError):
        # The epoch of its log is not known then; a broker that is gone is noticed by its status.
        return None


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(";") if part.strip()))[:CONTROLLERS_MAX]


@define(eq=False)
class _Search:
    """Asks controllers, over one connection each, until one leads."""

    connect: Connect
    timeout_s: float
    leader: str | None = None
    links: list[ControllerLinkStatus] = field(factory=list)
    refusal: str = ""

    async def find_leader(self, addresses: tuple[str, ...]) -> None:
        """Set `leader`; `links` has an entry for each of `addresses`, and for a leader beside them."""
        found: dict[str, ControllerLinkStatus] = {}
        named: set[str] = set()
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._look, address, found, named)
        if not any(link.is_leader for link in found.values()):
            for address in sorted(named - found.keys())[:1]:
                await self._look(address, found, set())
        self.links = [found[address] for address in (*addresses, *(found.keys() - set(addresses)))]
        self.leader = next((link.address for link in self.links if link.is_leader), None)

    async def _look(self, address: str, found: dict[str, ControllerLinkStatus], named: set[str]) -> None:
        reason, is_connected, is_leader = "", False, False
        try:
            parse_address(address)
            async with self.connect(address) as client:
                is_connected = True
                metadata = await fetch_metadata(client, timeout_s=self.timeout_s)
            is_leader, leader = metadata.is_leader, metadata.leader_address
            if leader and not is_leader:
                named.add(leader)
            reason = "" if is_leader else f"the leader is {leader}" if leader else "none leads"
        except (PeerError, RemoteProtocolError, ConfigError) as error:
            reason = reason_of(error)
        found[address] = ControllerLinkStatus(
            address=address,
            is_connected=is_connected,
            is_leader=is_leader,
            reason=reason[:REASON_CHARS_MAX],
        )

    async def group(self, name: str) -> ReplicaSetInfo | None:
        """The group `name` as the leader has it; None, and `refusal`, if it does not answer or has none."""
        assert self.leader is not None, "the leader is known"
        try:
            async with self.connect(self.leader) as client:
                return (await fetch_groups(client, [name], timeout_s=self.timeout_s)).get(name)
        except (PeerError, RemoteProtocolError) as error:
            self.refusal = reason_of(error)[:REASON_CHARS_MAX]
        return None
