"""Connections to all controllers, and the search for the one that leads.

See docs/protocol/ha.md#controller-requests.

Theory. Controllers keep their state by consensus: one of them leads and answers brokers, the others refuse
(CONTROLLER_NOT_LEADER). Each controller has a task and a connection of its own, so that one that is down or
hangs delays no other, and over it goes everything that this broker sends there: a closed connection is how a
controller notices at once that a broker died. All are asked for the leader (1005): every `leader_period_s`
while one is known, every `SEARCH_PERIOD_S` while none is, and at once when the known one is gone.

| event | result |
|---|---|
| a controller answers that it leads | it is the leader, instead of any other: its answer is the later one |
| the leader answers that it does not lead, or its connection ends | no leader; all are asked at once |
| a request to the leader is not answered in time, or is refused with NOT_LEADER | as above (`lose`) |
| a controller names a leader that is not configured | that one is dialled, too (one at a time) |

Invariant: the leader is a connected controller whose last answer says that it leads, and no request to it has
failed since.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import structlog
import trio
from attrs import frozen

from trioha.controller.protocol import ControllerMetadata
from trioha.errors import ConfigError, PeerError, RemoteProtocolError
from trioha.ha.state_changes import StateChanges
from trioha.net.error_boundary import ErrorBoundary
from trioha.remoting.address import parse_address
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand, request

log = structlog.get_logger(__name__)

SEARCH_PERIOD_S: Final = 1.0
"""Between two questions to one controller for the leader, while none is known; also before dialling again."""
ANSWER_BYTES_MAX: Final = 1024 * 1024

Connect = Callable[[str], AbstractAsyncContextManager[RemotingClient]]
BOUNDARY: Final = ErrorBoundary("connection to a controller")
connect_to_controller: Final[Connect] = partial(open_client, frame_bytes_max=ANSWER_BYTES_MAX)


@frozen
class LinkStatus:
    """The connection to one controller."""

    address: str
    """`host:port`."""
    is_connected: bool
    is_leader: bool
    reason: str | None
    """Why there is no connection, or why this one does not lead; None if it does."""


class Link:
    """The connection to one controller, as its task keeps it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client: RemotingClient | None = None
        self.metadata: ControllerMetadata | None = None
        """Its last answer, unless it has failed since."""
        self.reason: str | None = "not tried yet"
        self.ask_now = trio.Event()
        self.scope = trio.CancelScope()

    @property
    def is_connected(self) -> bool:
        """Whether a request can be sent."""
        return self.client is not None and self.client.is_connected


class ControllerLinks:
    """Keeps connections to all controllers and knows which one leads."""

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        leader_period_s: float,
        heartbeat_period_s: float,
        timeout_s: float,
        heartbeat: Callable[[], RemotingCommand | None],
        describe: Callable[[], str],
        connect: Connect = connect_to_controller,
    ) -> None:
        """`heartbeat` makes the next heartbeat, None for none yet; `timeout_s` is for each answer.

        `describe` says for the log what this broker goes on doing while no controller leads.
        """
        self._links = {address: Link(address) for address in addresses}
        self._leader_period_s = leader_period_s
        self._heartbeat_period_s = heartbeat_period_s
        self._timeout_s = timeout_s
        self._heartbeat = heartbeat
        self._describe = describe
        self._connect = connect
        self._leader: Link | None = None
        self._found = trio.Event()
        self._is_alone_reported = False
        self._extra: Link | None = None
        self._nursery: trio.Nursery | None = None
        self.leader_heard_s: float | None = None
        """When a controller that leads last answered, on trio's clock; None for never."""
        self.leaders: StateChanges[str | None] = StateChanges()
        """Address of each new leader, None where it is lost."""

    @property
    def leader(self) -> Link | None:
        """None while none is known."""
        return self._leader

    async def wait_leader(self) -> Link:
        """The leader, as soon as one is known."""
        while self._leader is None:
            await self._found.wait()
        return self._leader

    def status(self) -> tuple[LinkStatus, ...]:
        """All connections, in the order of the settings."""
        return tuple(
            LinkStatus(link.address, link.client is not None, link is self._leader, link.reason)
            for link in self._links.values()
        )

    async def run(self) -> None:
        """Keep the connections until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                for link in tuple(self._links.values()):
                    nursery.start_soon(self._keep, link)
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._leader = None

    def lose(self, link: Link, reason: str) -> None:
        """A request to `link` failed: it does not lead, and all controllers are asked at once."""
        link.metadata, link.reason = None, reason
        if link is not self._leader:
            return
        self._leader = None
        self.leaders.publish(None)
        self._found = trio.Event()
        if not self._is_alone_reported:
            self._is_alone_reported = True
            log.warning(
                "no leading controller", last_leader=link.address, reason=reason, broker=self._describe()
            )
        for each in self._links.values():
            each.ask_now.set()

    def heard(self, link: Link) -> None:
        """`link` has answered a request."""
        if link is self._leader:
            self.leader_heard_s = trio.current_time()

    def send_heartbeats(self) -> None:
        """Send a heartbeat to every connected controller now, before the next period."""
        for link in self._links.values():
            self._send_heartbeat(link)

    def _send_heartbeat(self, link: Link) -> None:
        command = self._heartbeat()
        if command is None or link.client is None or not link.client.is_connected:
            return
        link.client.send_oneway(command)

    async def _keep(self, link: Link) -> None:
        """Stay connected to one controller until cancelled."""
        with link.scope:
            while True:
                with BOUNDARY.around(link.address):
                    try:
                        async with self._connect(link.address) as client:
                            link.client = client
                            await self._use(link, client)
                    except PeerError as error:
                        self._disconnect(link, error.reason)
                    except (RemoteProtocolError, ConfigError) as error:
                        self._disconnect(link, str(error))
                    finally:
                        link.client = None
                if link.metadata is not None:
                    # A bug ended the connection: its boundary has logged it.
                    self._disconnect(link, "the connection was closed")
                await trio.sleep(SEARCH_PERIOD_S)

    def _disconnect(self, link: Link, reason: str) -> None:
        link.client = None
        if self._leader is None and not self._is_alone_reported:
            self._is_alone_reported = True
            log.warning(
                "no leading controller", controller=link.address, reason=reason, broker=self._describe()
            )
        self.lose(link, reason)

    async def _use(self, link: Link, client: RemotingClient) -> None:
        """Send heartbeats and ask for the leader over one connection. Raises PeerError when it ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat, link)
            nursery.start_soon(self._ask, link, client)
            reason = await client.wait_lost()
            nursery.cancel_scope.cancel()
        raise PeerError(reason, address=link.address)

    async def _beat(self, link: Link) -> None:
        while True:
            self._send_heartbeat(link)
            await trio.sleep(self._heartbeat_period_s)

    async def _ask(self, link: Link, client: RemotingClient) -> None:
        """Ask one controller who leads, again and again."""
        while True:
            link.ask_now = trio.Event()
            try:
                answer = await client.request(
                    request(RequestCode.CONTROLLER_GET_METADATA_INFO), timeout_s=self._timeout_s
                )
                self._take(link, answer)
            except PeerError as error:
                self.lose(link, error.reason)
            except RemoteProtocolError as error:
                self.lose(link, str(error))
            if self._leader is None:
                # Also where one is found at once: that sets no event here, and costs a question a second.
                await trio.sleep(SEARCH_PERIOD_S)
                continue
            with trio.move_on_after(self._leader_period_s):
                await link.ask_now.wait()

    def _take(self, link: Link, answer: RemotingCommand) -> None:
        """Take the answer of one controller. Raises RemoteProtocolError, or PeerError for a refusal."""
        if answer.code != ResponseCode.SUCCESS:
            name = response_code_name(answer.code)
            raise PeerError(f"{name}: {(answer.remark or '')[:200]}", address=link.address, code=answer.code)
        metadata = ControllerMetadata.of(answer.ext_fields)
        if not metadata.is_leader:
            named = metadata.leader_address
            self.lose(link, f"the leader is {named}" if named else "the controllers have no leader")
            link.metadata = metadata
            if named:
                self._dial_also(named)
            return
        link.metadata, link.reason = metadata, None
        if self._leader is link:
            self.heard(link)
            return
        self._leader = link
        self.heard(link)
        self._is_alone_reported = False
        self.leaders.publish(link.address)
        log.info("leading controller", controller=link.address, group=metadata.group)
        self._found.set()

    def _dial_also(self, address: str) -> None:
        """Dial a leader that is not configured, in place of the last such one."""
        if address in self._links or self._nursery is None or self._leader is not None:
            return
        try:
            parse_address(address)
        except ConfigError as error:
            raise RemoteProtocolError(f"controllerLeaderAddress: {error.reason}") from None
        if self._extra is not None:
            self._extra.scope.cancel()
            self._links.pop(self._extra.address, None)
        self._extra = self._links[address] = Link(address)
        log.info("leading controller is not in controllerAddr", controller=address)
        self._nursery.start_soon(self._keep, self._extra)
