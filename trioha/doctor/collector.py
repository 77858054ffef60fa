"""Collects facts: asks brokers and name servers, and dials the addresses that they announce.

Theory of operation. Everything runs at the same time, at most `TASKS_MAX` brokers at once, and each request
and connection has the same short deadline: an examination of any number of brokers takes a few deadlines.
The first round asks each broker for its status, settings, clock and tables, and dials its addresses. The
second asks masters once more for status and tables, so that what a slave has was at its master before.

No request changes anything. A connection to an HA port is closed without a byte: a RocketMQ master counts it
as a slave for that moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio
from attrs import evolve, field, frozen

from trioha.auth.bodies import tables_of_answers
from trioha.broker_status import BrokerStatus
from trioha.controller.bodies import EpochCache, broker_names_body, parse_set_data
from trioha.controller.protocol import ControllerMetadata
from trioha.doctor.case import SLAVE, TRUE
from trioha.doctor.conf_files import read_conf
from trioha.doctor.facts import (
    BrokerFacts,
    ClockReading,
    ConfFacts,
    ControllerFacts,
    Facts,
    ListedBroker,
    NameServerFacts,
    Probe,
    Thresholds,
)
from trioha.doctor.stores import read_store
from trioha.doctor.tables import TABLE_REQUESTS, Tables, parse_table, with_table
from trioha.doctor.user_digests import UserDigests, digests_of
from trioha.errors import ConfigError, PeerError, RemoteProtocolError
from trioha.net.threads import run_in_thread
from trioha.numbers import I32, parse_int
from trioha.remoting.address import Address, parse_address
from trioha.remoting.broker_config import parse_broker_config
from trioha.remoting.client import NO_SECURITY, ClientSecurity, RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.name_server import fetch_broker_groups
from trioha.remoting.runtime_table import (
    natural_of,
    parse_runtime_info,
    runtime_info_of,
    uptime_s_of,
)
from trioha.remoting.status_reader import fetch_status

TASKS_MAX: Final = 32
"""Brokers that are asked at the same time."""
BROKERS_MAX: Final = 1024
"""Brokers of one examination: the first ones that were named or listed."""
CONTROLLERS_MAX: Final = 64
"""Controllers of one examination."""
CLOSED_WITHIN_S: Final = 5.0
"""A trioha node that closes a connection from another host within this time, or within the deadline of
requests if that is shorter, does not admit that host. A RocketMQ broker admits all hosts, and counts the
connection as a slave meanwhile: nothing is waited for."""
NO_FIGURES_YET: Final = "NoSuchElementException"
"""RocketMQ's answer to GET_BROKER_RUNTIME_INFO until it has sampled its figures, a second after its start."""
ASK_AGAIN_S: Final = 0.25


@frozen(kw_only=True)
class Targets:
    """What to examine."""

    addresses: tuple[Address, ...] = ()
    files: tuple[Path, ...] = ()
    stores: tuple[Path, ...] = ()
    """Roots of stores on this host."""
    name_servers: tuple[Address, ...] = ()


@frozen(kw_only=True)
class Collector:
    """Collects the facts of one examination after the other."""

    targets: Targets
    timeout_s: float = 3.0
    """For each connection and each request."""
    security: ClientSecurity = NO_SECURITY
    source: str | None = None
    """Address of this host from which announced addresses are dialled; None: the system's choice."""
    assumed_version: str | None = None
    thresholds: Thresholds = field(factory=Thresholds)
    on_store_step: Callable[[int, int], None] = lambda _offset, _end: None
    """Called in a thread with the offset that is reached in a store, and the end of its log."""
    _limit: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(TASKS_MAX), init=False)

    async def collect(self) -> Facts:
        """The facts as they are now.

        Raises ConfigError for a file that cannot be read, StoreError for a folder that is no store. Brokers
        and name servers that cannot be asked are facts.
        """
        files = [await run_in_thread(partial(read_conf, path)) for path in self.targets.files]
        stores = [
            await run_in_thread(partial(read_store, path, self.on_store_step)) for path in self.targets.stores
        ]
        name_servers = await self._ask_name_servers()
        asked = self._addresses(name_servers)
        brokers: dict[str, BrokerFacts] = {}
        async with trio.open_nursery() as nursery:
            for address, is_named in asked.items():
                nursery.start_soon(self._ask, address, is_named, brokers)
        async with trio.open_nursery() as nursery:
            for facts in list(brokers.values()):
                if facts.status is not None and facts.status.role != SLAVE:
                    nursery.start_soon(self._ask_again, facts, brokers)
        controllers = await self._ask_controllers(tuple(brokers.values()), files)
        return Facts(
            brokers=tuple(brokers[address] for address in asked),
            files=tuple(files),
            stores=tuple(stores),
            name_servers=tuple(name_servers),
            controllers=controllers,
            assumed_version=self.assumed_version,
            thresholds=self.thresholds,
        )

    def _addresses(self, name_servers: Sequence[NameServerFacts]) -> dict[str, bool]:
        """Addresses of brokers, and whether the user named them."""
        addresses = {str(address): True for address in self.targets.addresses}
        for server in name_servers:
            for listed in server.brokers:
                if len(addresses) < BROKERS_MAX:
                    addresses.setdefault(listed.address, False)
        return addresses

    # -- name servers ------------------------------------------------------------------------------------

    async def _ask_name_servers(self) -> list[NameServerFacts]:
        found: dict[str, NameServerFacts] = {}
        async with trio.open_nursery() as nursery:
            for address in self.targets.name_servers:
                nursery.start_soon(self._ask_name_server, address, found)
        return [found[str(address)] for address in dict.fromkeys(self.targets.name_servers)]

    async def _ask_name_server(self, address: Address, found: dict[str, NameServerFacts]) -> None:
        try:
            async with self._limit, self._client(address) as client:
                groups = await fetch_broker_groups(client, timeout_s=self.timeout_s)
        except (PeerError, RemoteProtocolError) as error:
            found[str(address)] = NameServerFacts(address=str(address), error=_reason(error))
            return
        found[str(address)] = NameServerFacts(
            address=str(address),
            brokers=tuple(
                ListedBroker(
                    cluster_name=group.cluster_name,
                    broker_name=group.broker_name,
                    broker_id=broker_id,
                    address=listed,
                )
                for group in groups
                for broker_id, listed in group.addresses.items()
            ),
        )

    # -- controllers -------------------------------------------------------------------------------------

    async def _ask_controllers(
        self, brokers: Sequence[BrokerFacts], files: Sequence[ConfFacts]
    ) -> tuple[ControllerFacts, ...]:
        """All controllers that brokers or files name, and the leader that these name."""
        settings = [broker.config or {} for broker in brokers]
        settings += [{key: value.value for key, value in file.values.items()} for file in files]
        controlled = [each for each in settings if each.get("enableControllerMode", "").lower() == TRUE]
        texts = [part.strip() for each in controlled for part in each.get("controllerAddr", "").split(";")]
        addresses = [text for text in dict.fromkeys(texts) if text][:CONTROLLERS_MAX]
        names = list(dict.fromkeys(filter(None, (each.get("brokerName") for each in controlled))))
        found: dict[str, ControllerFacts] = {}
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._ask_controller, address, names, found)
        if not any(facts.is_leader for facts in found.values()):
            named = {facts.leader for facts in found.values() if facts.leader} - found.keys()
            for address in sorted(named)[:1]:
                await self._ask_controller(address, names, found)
        return tuple(found.values())

    async def _ask_controller(self, text: str, names: list[str], found: dict[str, ControllerFacts]) -> None:
        facts = ControllerFacts(address=text)
        try:
            async with self._limit, self._client(parse_address(text)) as client:
                metadata = await client.request(
                    request(RequestCode.CONTROLLER_GET_METADATA_INFO), timeout_s=self.timeout_s
                )
                if metadata.code != ResponseCode.SUCCESS:
                    found[text] = evolve(
                        facts, error=_refusal(RequestCode.CONTROLLER_GET_METADATA_INFO, metadata)
                    )
                    return
                said = ControllerMetadata.of(metadata.ext_fields)
                facts = evolve(facts, is_leader=said.is_leader, leader=said.leader_address)
                if said.is_leader and names:
                    facts = await self._with_groups(client, facts, names)
        except (PeerError, RemoteProtocolError, ConfigError) as error:
            if facts.is_leader:
                facts = evolve(facts, gap=_reason(error))
            else:
                facts = evolve(facts, error=_reason(error))
        found[text] = facts

    async def _with_groups(
        self, client: RemotingClient, facts: ControllerFacts, names: list[str]
    ) -> ControllerFacts:
        asked = request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=broker_names_body(names))
        answer = await client.request(asked, timeout_s=self.timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            return evolve(facts, gap=_refusal(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, answer))
        return evolve(facts, groups=parse_set_data(answer.body))

    # -- brokers -----------------------------------------------------------------------------------------

    async def _ask(self, text: str, is_named: bool, found: dict[str, BrokerFacts]) -> None:
        facts = BrokerFacts(address=text, is_named=is_named)
        async with self._limit:
            try:
                async with self._client(parse_address(text)) as client:
                    facts = evolve(facts, peer_host=client.peer_host or "")
                    facts = evolve(facts, status=await self._status(client))
                    facts = await self._with_config(client, facts)
                    facts = await self._with_table(client, facts)
                    facts = await self._with_epochs(client, facts)
                    facts = evolve(facts, tables=await self._tables(client))
            except (PeerError, RemoteProtocolError, ConfigError) as error:
                if facts.status is None:
                    is_refused = isinstance(error, PeerError) and error.code is not None
                    facts = evolve(facts, error=_reason(error), is_refused=is_refused)
                else:
                    facts = evolve(facts, gaps=(*facts.gaps, _reason(error)))
            if facts.status is not None:
                facts = await self._dial_announced(facts)
        found[text] = facts

    async def _ask_again(self, facts: BrokerFacts, found: dict[str, BrokerFacts]) -> None:
        """Status and tables of a master, after those of its slaves."""
        async with self._limit:
            try:
                async with self._client(parse_address(facts.address)) as client:
                    status = await self._status(client)
                    tables = await self._tables(client)
            except (PeerError, RemoteProtocolError) as error:
                # It went away meanwhile: its offsets would be older than those of its slaves.
                found[facts.address] = evolve(facts, status=None, error=_reason(error))
                return
        assert facts.status is not None, "only brokers that have answered are asked again"
        status = evolve(status, table=facts.status.table)
        found[facts.address] = evolve(facts, status=status, tables=tables)

    async def _status(self, client: RemotingClient) -> BrokerStatus:
        """The broker's status; of one that has just started, as soon as it has figures. Raises PeerError."""
        deadline = trio.current_time() + self.timeout_s
        while True:
            try:
                return await fetch_status(client, timeout_s=self.timeout_s)
            except PeerError as error:
                if NO_FIGURES_YET not in error.reason or trio.current_time() > deadline:
                    raise
            await trio.sleep(ASK_AGAIN_S)

    async def _with_config(self, client: RemotingClient, facts: BrokerFacts) -> BrokerFacts:
        """`facts` with the settings in effect. Raises PeerError when the connection ends."""
        answer = await client.request(request(RequestCode.GET_BROKER_CONFIG), timeout_s=self.timeout_s)
        if answer.code == ResponseCode.SUCCESS:
            return evolve(facts, config=parse_broker_config(answer.body))
        return evolve(facts, gaps=(*facts.gaps, _refusal(RequestCode.GET_BROKER_CONFIG, answer)))

    async def _with_table(self, client: RemotingClient, facts: BrokerFacts) -> BrokerFacts:
        """`facts` with the clock and the figures of the runtime table. Raises as `_with_config`."""
        assert facts.status is not None, "the broker has answered"
        sent_s = trio.current_time()
        answer = await client.request(request(RequestCode.GET_BROKER_RUNTIME_INFO), timeout_s=self.timeout_s)
        received_s = trio.current_time()
        if answer.code != ResponseCode.SUCCESS:
            return evolve(facts, gaps=(*facts.gaps, _refusal(RequestCode.GET_BROKER_RUNTIME_INFO, answer)))
        table = parse_runtime_info(answer.body)
        facts = evolve(facts, status=evolve(facts.status, table=runtime_info_of(table)))
        booted_ms, uptime_s = natural_of(table, "bootTimestamp"), uptime_s_of(table)
        if booted_ms is None or uptime_s is None:
            return facts
        reading = clock_reading(booted_ms=booted_ms, uptime_s=uptime_s, sent_s=sent_s, received_s=received_s)
        return evolve(facts, clock=reading)

    async def _with_epochs(self, client: RemotingClient, facts: BrokerFacts) -> BrokerFacts:
        """`facts` with the epochs of a broker in controller mode. Raises as `_with_config`."""
        if (facts.config or {}).get("enableControllerMode", "").lower() != TRUE:
            return facts
        answer = await client.request(request(RequestCode.GET_BROKER_EPOCH_CACHE), timeout_s=self.timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            return evolve(facts, gaps=(*facts.gaps, _refusal(RequestCode.GET_BROKER_EPOCH_CACHE, answer)))
        return evolve(facts, epochs=EpochCache.of_body(answer.body))

    async def _tables(self, client: RemotingClient) -> Tables:
        tables = Tables()
        for name, code in TABLE_REQUESTS.items():
            answer = await client.request(request(code), timeout_s=self.timeout_s)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                tables = with_table(tables, name, parse_table(name, answer.body))
        return evolve(tables, users=await self._users(client))

    async def _users(self, client: RemotingClient) -> UserDigests | None:
        """Users and access control lists, if there is an account that may ask for them."""
        if self.security.credentials is None:
            return None
        bodies = []
        for code in (RequestCode.AUTH_LIST_USER, RequestCode.AUTH_LIST_ACL):
            answer = await client.request(request(code), timeout_s=self.timeout_s)
            if answer.code != ResponseCode.SUCCESS:
                return None
            bodies.append(bytes(answer.body))
        return digests_of(tables_of_answers(*bodies))

    # -- announced addresses -----------------------------------------------------------------------------

    async def _dial_announced(self, facts: BrokerFacts) -> BrokerFacts:
        """Dial the addresses that a broker announces, all at once."""
        assert facts.status is not None, "the broker has answered"
        config = facts.config or {}
        probes: dict[str, Probe] = {}
        # A port of 0 in the settings is any port: that at which it was reached.
        host = config.get("brokerIP1")
        port = _port(config.get("listenPort")) or parse_address(facts.address).port
        bound = config.get("trioha.bindAddress")
        if bound not in {None, "0.0.0.0", "::"}:  # noqa: S104 - compared with, not bound to
            # trioha announces the address that it is bound to.
            host = bound
        async with trio.open_nursery() as nursery:
            if host:
                announced = Address(host, port)
                if str(announced) != facts.address:
                    nursery.start_soon(self._dial_broker, "advertised", announced, probes)
                if port > 2:
                    nursery.start_soon(self._dial, "vip", Address(host, port - 2), 0.0, probes)
            ha_address = _address_of(facts.status.ha_address)
            if ha_address is not None:
                wait_s = min(CLOSED_WITHIN_S, self.timeout_s) if facts.status.is_trioha else 0.0
                nursery.start_soon(self._dial, "ha", ha_address, wait_s, probes)
        changes: dict[str, Any] = {**probes}
        return evolve(facts, **changes)

    async def _dial(self, name: str, address: Address, wait_s: float, probes: dict[str, Probe]) -> None:
        """Connect, see for `wait_s` whether the peer closes a connection from another host, and close it."""
        probe = Probe(address=str(address))
        try:
            with trio.fail_after(self.timeout_s):
                stream = await trio.open_tcp_stream(address.host, address.port, local_address=self.source)
        except trio.TooSlowError:
            probe = evolve(probe, error=f"no answer in {self.timeout_s:g} s")
        except (OSError, ValueError) as error:
            probe = evolve(probe, error=_os_reason(error))
        else:
            async with stream:
                try:
                    local, peer = stream.socket.getsockname()[0], stream.socket.getpeername()[0]
                    probe = evolve(probe, local_host=local, peer_host=peer)
                    with trio.move_on_after(0.0 if local == peer else wait_s):
                        probe = evolve(probe, closed_at_once=not await stream.receive_some(1))
                except (OSError, trio.BrokenResourceError):
                    probe = evolve(probe, closed_at_once=True)
        probes[name] = probe

    async def _dial_broker(self, name: str, address: Address, probes: dict[str, Probe]) -> None:
        """Connect and ask which broker it is."""
        probe = Probe(address=str(address))
        try:
            async with self._client(address) as client:
                answer = await client.request(
                    request(RequestCode.GET_BROKER_CONFIG), timeout_s=self.timeout_s
                )
            config = parse_broker_config(answer.body) if answer.code == ResponseCode.SUCCESS else None
        except (PeerError, RemoteProtocolError) as error:
            probes[name] = evolve(probe, error=_reason(error))
            return
        if config is not None:
            probe = evolve(
                probe,
                broker_name=config.get("brokerName"),
                broker_id=natural_of(config, "brokerId"),
            )
        probes[name] = probe

    def _client(self, address: Address) -> AbstractAsyncContextManager[RemotingClient]:
        return open_client(address, connect_timeout_s=self.timeout_s, security=self.security)


def clock_reading(*, booted_ms: int, uptime_s: int, sent_s: float, received_s: float) -> ClockReading:
    """A broker's clock beside ours, from its start and uptime and the times of request and answer.

    The uptime is rounded down: its clock is in a range of a second, and was read between both times.
    """
    now_ms = booted_ms + uptime_s * 1000
    return ClockReading(
        ahead_ms_min=now_ms - round(received_s * 1000),
        ahead_ms_max=now_ms + 1000 - round(sent_s * 1000),
        now_ms=now_ms,
        uptime_s=uptime_s,
    )


def _refusal(code: RequestCode, answer: RemotingCommand) -> str:
    """The answer of a broker that refuses, as one line."""
    remark = (answer.remark or "").strip().splitlines()
    text = f"{code.name} was answered with {response_code_name(answer.code)} ({answer.code})"
    return f"{text}: {remark[0][:200]}" if remark else text


def _address_of(text: str | None) -> Address | None:
    """The address in `text`; None for a text that is none, such as a port of 0."""
    try:
        return parse_address(text or "")
    except ConfigError:
        return None


def _port(text: str | None) -> int | None:
    try:
        port = parse_int(text, I32)
    except ValueError:
        return None
    return port if 0 < port < 65536 else None


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, PeerError | ConfigError) else str(error)


def _os_reason(error: BaseException) -> str:
    """The system's message, without what trio wraps around it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[-1]
            continue
        if isinstance(cause, OSError) and cause.strerror:
            # trio puts the address before the text; names that are not resolved have numbers below 0.
            return os.strerror(cause.errno) if cause.errno and cause.errno > 0 else cause.strerror
        cause = cause.__cause__
    return str(error)
