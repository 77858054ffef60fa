"""Controllers and the groups that they lead, requested as by any client.

See docs/protocol/ha.md#controller-requests.

One controller is enough: it names the others (1005), the leader has the groups (1006), and each living broker
of a group has the epochs of its log (1007). What does not answer is part of the picture, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import trio
from attrs import frozen

from trioha.controller.asking import fetch_epochs, fetch_groups, fetch_metadata, reason_of
from trioha.controller.bodies import CachedEpoch, Replica, ReplicaSetInfo
from trioha.errors import TriohaError
from trioha.remoting.client import RemotingClient

CONTROLLERS_MAX = 64
"""Controllers of one group that are asked."""

Connect = Callable[[str], AbstractAsyncContextManager[RemotingClient]]


@frozen
class ControllerView:
    """One controller."""

    address: str
    """`host:port`."""
    is_leader: bool
    error: str | None = None
    """Why it did not answer."""


@frozen
class MemberView:
    """One broker of a group."""

    broker_id: int
    address: str
    """`host:port` for clients."""
    is_master: bool
    is_in_sync: bool
    """Whether it is in the sync-state set."""
    is_alive: bool
    """Whether its heartbeats reach the leading controller."""
    max_offset: int | None = None
    """End of its log; None if it did not answer."""
    epochs: tuple[CachedEpoch, ...] = ()
    """Of its log, oldest first."""
    error: str | None = None
    """Why it did not answer."""


@frozen
class GroupView:
    """One group of brokers."""

    broker_name: str
    master_id: int | None
    """None while there is no master."""
    master_address: str | None
    master_epoch: int
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int
    members: tuple[MemberView, ...]
    """All that the controllers know, by id."""


@frozen
class Overview:
    """A controllers' group at one moment."""

    name: str | None
    """Of the controllers' group."""
    leader: str | None
    """`host:port`; None if no controller leads."""
    controllers: tuple[ControllerView, ...]
    groups: tuple[GroupView, ...]
    unknown_groups: tuple[str, ...]
    """Groups that were asked for and that the controllers do not have."""


async def fetch_overview(
    address: str, names: Sequence[str], *, connect: Connect, timeout_s: float
) -> Overview:
    """The controllers' group of the controller at `address`, and the groups `names`.

    Raises PeerError or RemoteProtocolError if that controller, or the leader, does not answer.
    """
    async with connect(address) as client:
        first = await fetch_metadata(client, timeout_s=timeout_s)
    peers = tuple(dict.fromkeys((*parse_peers(first.peers or ""), address)))[:CONTROLLERS_MAX]
    views: dict[str, ControllerView] = {}

    async def look(peer: str) -> None:
        try:
            async with connect(peer) as client:
                said = await fetch_metadata(client, timeout_s=timeout_s)
            views[peer] = ControllerView(peer, said.is_leader)
        except TriohaError as error:
            views[peer] = ControllerView(peer, is_leader=False, error=reason_of(error))

    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(look, peer)
    leader = next((peer for peer in peers if views[peer].is_leader), None)
    groups: list[GroupView] = []
    if leader is not None and names:
        async with connect(leader) as client:
            found = await fetch_groups(client, names, timeout_s=timeout_s)
        for name, info in sorted(found.items()):
            groups.append(await _view(name, info, connect=connect, timeout_s=timeout_s))
    known = {group.broker_name for group in groups}
    return Overview(
        name=first.group,
        leader=leader,
        controllers=tuple(views[peer] for peer in peers),
        groups=tuple(groups),
        unknown_groups=tuple(sorted(set(names) - known)),
    )


def parse_peers(text: str) -> tuple[str, ...]:
    """The addresses in `n0:host:port;n1:host:port;`, or in `host:port;host:port;` as JRaft has them."""
    return tuple(":".join(peer.rsplit(":", 2)[-2:]) for peer in text.split(";") if peer.count(":"))


async def _view(name: str, info: ReplicaSetInfo, *, connect: Connect, timeout_s: float) -> GroupView:
    members: dict[int, MemberView] = {}

    async def look(replica: Replica, *, is_in_sync: bool) -> None:
        cache, reason = None, None
        if replica.is_alive:
            try:
                async with connect(replica.address) as client:
                    cache = await fetch_epochs(client, timeout_s=timeout_s)
            except TriohaError as error:
                reason = reason_of(error)
        members[replica.broker_id] = MemberView(
            broker_id=replica.broker_id,
            address=replica.address,
            is_master=replica.broker_id == info.master_id,
            is_in_sync=is_in_sync,
            is_alive=replica.is_alive,
            max_offset=None if cache is None else cache.max_offset,
            epochs=() if cache is None else cache.epochs,
            error=reason,
        )

    async with trio.open_nursery() as nursery:
        for is_in_sync, replicas in ((True, info.in_sync), (False, info.not_in_sync)):
            for replica in replicas:
                nursery.start_soon(lambda r, s: look(r, is_in_sync=s), replica, is_in_sync)
    return GroupView(
        broker_name=name,
        master_id=info.master_id,
        master_address=info.master_address,
        master_epoch=info.master_epoch,
        sync_state_set=tuple(sorted(replica.broker_id for replica in info.in_sync)),
        sync_state_set_epoch=info.set_epoch,
        members=tuple(member for _, member in sorted(members.items())),
    )
