"""Keeps this broker registered with its name servers (docs/protocol/remoting.md#name-server).

Theory of operation. Each name server has a task and a connection of its own: one that is down or slow delays
no other. The task registers all topics when it has connected, all of them again every period, and changed
topics at once: name servers merge registrations. When the connection ends it dials again, after 1 s first,
then after twice as long each time, up to the period.

A name server answers a slave with the addresses of its master; the last answer counts. `stop` unregisters
wherever the broker is connected, within a bounded time: elsewhere it is removed since its connection is gone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import structlog
import trio
from attrs import evolve, frozen

from trioha.errors import PeerError, RemoteProtocolError
from trioha.metadata.registration import body_crc, encode_registration
from trioha.metadata.topics import READ_WRITE, TopicConfig, TopicTable
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.route import MessageQueue, parse_route

log = structlog.get_logger(__name__)

BACK_OFF_MIN_S: Final = 1.0
STOP_TIMEOUT_S: Final = 1.0
"""For unregistering with all name servers."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one answer: the table of ordered topics, which a trioha name server limits to half of this."""

Connect = Callable[[str], AbstractAsyncContextManager[RemotingClient]]
BOUNDARY: Final = ErrorBoundary("connection to a name server")
_connect: Final[Connect] = partial(open_client, frame_bytes_max=ANSWER_BYTES_MAX)


@frozen
class BrokerEntry:
    """The entry of this broker at name servers, beside its topics."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    """`host:port` for clients."""
    ha_address: str
    """`host:port` for slaves."""
    permission: int = int(READ_WRITE)
    """brokerPermission: if it lacks a bit, no topic of the broker has it."""

    def to_fields(self) -> dict[str, str]:
        """The fields that name the broker in a request."""
        return {
            "brokerName": self.broker_name,
            "brokerAddr": self.address,
            "clusterName": self.cluster_name,
            "brokerId": str(self.broker_id),
        }


class BrokerRegistration:
    """Registers one broker with several name servers."""

    def __init__(
        self,
        name_servers: Sequence[str],
        entry: BrokerEntry,
        topics: TopicTable,
        *,
        period_s: float,
        timeout_s: float,
        on_master: Callable[[str], None] | None = None,
        on_master_address: Callable[[str], None] | None = None,
        connect: Connect = _connect,
    ) -> None:
        """`on_master` gets the HA address of this slave's master from each answer that has it,
        `on_master_address` its address for clients.

        `period_s` is between two registrations, `timeout_s` for the answer to one.
        """
        self._name_servers = tuple(name_servers)
        self._entry = entry
        self._topics = topics
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._on_master = on_master
        self._on_master_address = on_master_address
        self._connect = connect
        self._entry_changes = 0
        self._clients: dict[str, RemotingClient] = {}
        """Name servers that the broker is registered with now."""
        self.registered = trio.Event()
        """Set when a name server has the broker for the first time."""
        self._stopping = trio.Event()
        self._stopped = trio.Event()

    def set_permission(self, permission: int) -> None:
        """Register all topics again, with another brokerPermission."""
        self._entry = evolve(self._entry, permission=permission)
        self._entry_changes += 1
        self._topics.note_all_changed()

    async def read_queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic at all brokers that may be read; none if no broker has it.

        Raises PeerError if no name server answers, RemoteProtocolError if an answer makes no sense.
        """
        reason = "the broker is registered with no name server"
        for client in tuple(self._clients.values()):
            try:
                answer = await client.request(
                    request(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields={"topic": topic}),
                    timeout_s=self._timeout_s,
                )
            except PeerError as error:
                reason = error.reason
                continue
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return ()
            if answer.code == ResponseCode.SUCCESS:
                return parse_route(answer.body).read_queues(topic)
            reason = f"GET_ROUTEINFO_BY_TOPIC was refused: {(answer.remark or '')[:200]}"
        raise PeerError(reason, address=";".join(self._name_servers))

    async def run(self) -> None:
        """Stay registered until `stop`. Cancelled, it closes the connections without unregistering."""
        try:
            async with trio.open_nursery() as nursery:
                for address in self._name_servers:
                    nursery.start_soon(self._keep_registered, address)
        finally:
            self._stopped.set()

    async def stop(self) -> None:
        """Unregister and end `run`, within `STOP_TIMEOUT_S` as far as name servers answer."""
        self._stopping.set()
        with trio.move_on_after(STOP_TIMEOUT_S):
            await self._stopped.wait()

    async def _keep_registered(self, address: str) -> None:
        back_off_s = BACK_OFF_MIN_S
        is_reported = False
        while not self._stopping.is_set():
            link = _Link(address)
            with BOUNDARY.around(address):
                try:
                    async with self._connect(address) as client:
                        try:
                            await self._use(client, link)
                        finally:
                            self._clients.pop(address, None)
                except (PeerError, RemoteProtocolError) as error:
                    if not self._stopping.is_set() and (link.is_registered or not is_reported):
                        log.warning(
                            "not registered with a name server", name_server=address, reason=_reason(error)
                        )
                    is_reported = True
            if link.is_registered:
                back_off_s, is_reported = BACK_OFF_MIN_S, False
            with trio.move_on_after(back_off_s):
                await self._stopping.wait()
            back_off_s = min(back_off_s * 2, max(self._period_s, BACK_OFF_MIN_S))

    async def _use(self, client: RemotingClient, link: _Link) -> None:
        """Register over one connection until the broker stops. Raises PeerError when the connection ends."""
        while not self._stopping.is_set():
            changes, entry_changes = self._topics.changes.offset, self._entry_changes
            await self._register(client, link)
            if not await self._changed(client, changes) or entry_changes != self._entry_changes:
                # The period is over, or the entry has changed: everything again.
                link.topics = {}
        await client.request(
            request(RequestCode.UNREGISTER_BROKER, ext_fields=self._entry.to_fields()),
            timeout_s=STOP_TIMEOUT_S,
        )

    async def _changed(self, client: RemotingClient, changes: int) -> bool:
        """Wait for more than so many changes of topics, or for the broker's stop; False after a period.

        Raises PeerError when the connection ends.
        """
        with trio.move_on_after(self._period_s) as period:
            await _first_of(
                client.wait_lost,
                self._stopping.wait,
                partial(self._topics.changes.reached, changes + 1),
            )
        if not client.is_connected:
            raise PeerError(await client.wait_lost(), address=client.address)
        return not period.cancelled_caught

    async def _register(self, client: RemotingClient, link: _Link) -> None:
        """Register the topics that were not registered over this connection as they are now.

        Raises PeerError for no answer and for a refusal.
        """
        known, topics = link.topics, dict(self._topics.entries)
        changed = {name: topic for name, topic in topics.items() if known.get(name) is not topic}
        body = encode_registration(
            {name: self._registered(topic) for name, topic in changed.items()},
            data_version=self._topics.version.to_json(),
        )
        fields = {
            **self._entry.to_fields(),
            "haServerAddr": self._entry.ha_address,
            "compressed": "false",
            "bodyCrc32": str(body_crc(body)),
        }
        answer = await client.request(
            request(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body), timeout_s=self._timeout_s
        )
        if answer.code != ResponseCode.SUCCESS:
            raise PeerError(
                f"REGISTER_BROKER was refused: {(answer.remark or '')[:200]}",
                address=link.address,
                code=answer.code,
            )
        if not link.is_registered:
            log.info("registered with a name server", name_server=link.address, topics=len(changed))
        link.is_registered, link.topics = True, topics
        self._clients[link.address] = client
        self.registered.set()
        self._take_master(answer)

    def _registered(self, topic: TopicConfig) -> Mapping[str, object]:
        fields = topic.to_json()
        if self._entry.permission & READ_WRITE != READ_WRITE:
            fields["perm"] = topic.perm & self._entry.permission
        return fields

    def _take_master(self, answer: RemotingCommand) -> None:
        ha_address = answer.ext_fields.get("haServerAddr")
        if self._on_master is not None and ha_address:
            self._on_master(ha_address)
        address = answer.ext_fields.get("masterAddr")
        if self._on_master_address is not None and address:
            self._on_master_address(address)


class _Link:
    """One connection to a name server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_registered = False
        self.topics: Mapping[str, TopicConfig] = {}
        """Topics that were registered over it; empty if all are to be registered."""


def _reason(error: PeerError | RemoteProtocolError) -> str:
    """Without the address, which the log line has."""
    return error.reason if isinstance(error, PeerError) else str(error)


async def _first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Return when the first of them does; the others are cancelled."""
    async with trio.open_nursery() as nursery:
        for wait in waits:
            nursery.start_soon(_then_cancel, wait, nursery.cancel_scope)


async def _then_cancel(wait: Callable[[], Awaitable[object]], scope: trio.CancelScope) -> None:
    await wait()
    scope.cancel()
