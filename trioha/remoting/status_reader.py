"""Reads the status of a broker, trioha's or RocketMQ's 4.9 or 5.x.

See docs/protocol/ha.md#status-requests, docs/protocol/remoting.md#administration.

Theory of operation. Each request wakes the broker, so a reader that wants a status many times a second
subscribes to updates (docs/ha-status.md) where the broker is a trioha node, `UPDATES` of them with each
request. A reader that stops reading is sent no more than these, and nothing has to be cancelled. A broker
that promises no updates is asked each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import trio
from attrs import evolve

from trioha.broker_status import ROLE_UNKNOWN, BrokerRuntimeInfo, BrokerStatus
from trioha.errors import PeerError, RemoteProtocolError
from trioha.numbers import I64, parse_int
from trioha.remoting.broker_config import parse_broker_config
from trioha.remoting.client import RemotingClient
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import BadRequestError, RemotingCommand, request
from trioha.remoting.fastjson import ANSWER_LIMITS, JsonLimits
from trioha.remoting.ha_runtime_info import decode_ha_status
from trioha.remoting.runtime_table import (
    natural_of,
    parse_runtime_info,
    runtime_info_of,
    settings_of,
)
from trioha.remoting.status_subscription import StatusSubscription
from trioha.remoting.wrong_port import check_kind

TABLE_INTERVAL_S = 1.0
"""How often the runtime table of a broker that answers 907 is requested: it is long, and its figures beside
the offsets change slowly."""
UPDATES = 100
"""Updates that one request subscribes to."""
LATE_INTERVALS = 2
"""An update that is so many intervals late is replaced by a request."""


class StatusUpdates:
    """What a node sends to a subscriber beside answers: the newest status, and the newest runtime table."""

    def __init__(self, every_s: float | None = None) -> None:
        """They come at that interval; none is asked for without one."""
        self.subscription = None if every_s is None else StatusSubscription(round(every_s * 1000), UPDATES)
        self.status: bytes | None = None
        """Body of the newest status, until it is parsed."""
        self.table: bytes | None = None
        """Body of the newest runtime table, until it is parsed."""
        self._received = trio.Event()

    def receive(self, command: RemotingCommand) -> None:
        """`on_request` of the node's client."""
        if command.code == RequestCode.GET_BROKER_HA_STATUS:
            self.status = bytes(command.body)
            self._received.set()
        elif command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            self.table = bytes(command.body)

    async def wait(self) -> None:
        """Wait until there is a status."""
        if self.status is None:
            self._received = trio.Event()
            await self._received.wait()


class StatusReader:
    """Reads the status of one broker again and again, one request at a time.

    What a RocketMQ broker has only in its configuration (exact role, names, limits) is requested once for a
    connection, and again, at most once in `TABLE_INTERVAL_S`, while it has another role by 907: in controller
    mode connections outlast roles. Its runtime table is requested at most once in that time where 907 reports
    the offsets.
    """

    def __init__(
        self,
        client: RemotingClient,
        *,
        with_table: bool = False,
        updates: StatusUpdates | None = None,
        connections_max: int | None = None,
        limits: JsonLimits = ANSWER_LIMITS,
    ) -> None:
        """`with_table`: request the runtime table of trioha nodes, too (`BrokerStatus.table`).

        `updates`, which `client` feeds, come at the interval of the calls of `fetch`: where the broker sends
        them, `fetch` waits for the next one instead of sending a request.

        `connections_max` and `limits` are those of `decode_ha_status`: they bound the time that one answer
        costs.
        """
        self._client = client
        self._connections_max, self._limits = connections_max, limits
        self._bytes_read = 0
        self._updates = updates or StatusUpdates()
        self._updates_left = 0
        """Updates to wait for before the next request."""
        self._late_s = 0.0
        """How long to wait for an update."""
        self._with_table = with_table
        self._config: Mapping[str, str] | None = None
        self._config_asked_s = -math.inf
        self._table: Mapping[str, str] = {}
        self._table_until_s = -math.inf
        self._runtime_info = BrokerRuntimeInfo()

    @property
    def config(self) -> Mapping[str, str] | None:
        """The configuration of a RocketMQ broker, empty if it refused; None before it was asked for, and of a
        trioha node."""
        return self._config

    async def fetch(self, *, timeout_s: float = 3.0) -> BrokerStatus:
        """The broker's status now, with at most `timeout_s` for all requests together.

        Raises PeerError if the broker cannot be reached, does not answer in time or refuses (`code` is its
        response code), RemoteProtocolError if an answer makes no sense.
        """
        self._bytes_read = 0
        status = await self._fetch(timeout_s)
        return evolve(
            status, address=self._client.address, table=self._runtime_info, answer_bytes=self._bytes_read
        )

    async def _fetch(self, timeout_s: float) -> BrokerStatus:
        deadline = trio.current_time() + timeout_s

        async def ask(code: RequestCode, subscription: StatusSubscription | None = None) -> RemotingCommand:
            command = request(code, ext_fields=None if subscription is None else subscription.to_fields())
            return await self._client.request(command, timeout_s=max(0.0, deadline - trio.current_time()))

        status = await self._next_update(deadline)
        if status is None:
            answer = await ask(RequestCode.GET_BROKER_HA_STATUS, self._updates.subscription)
            status = self._handle_answer(answer)
        table, self._updates.table = self._updates.table, None
        if table is not None:
            self._handle_table(table)
        is_trioha = status is not None and status.is_trioha
        wants_table = self._with_table or not is_trioha
        if status is None or (wants_table and trio.current_time() >= self._table_until_s):
            runtime_info = await ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            if runtime_info.code == ResponseCode.SUCCESS:
                self._handle_table(runtime_info.body)
            elif not is_trioha:
                if runtime_info.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    await check_kind(self._client, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=timeout_s)
                raise _refused(self._client, RequestCode.GET_BROKER_RUNTIME_INFO, runtime_info)
        if status is not None and is_trioha:
            return status
        if self._config is None or (
            _has_other_role(status, self._config)
            and trio.current_time() >= self._config_asked_s + TABLE_INTERVAL_S
        ):
            self._config_asked_s = trio.current_time()
            config = await ask(RequestCode.GET_BROKER_CONFIG)
            self._bytes_read += len(config.body)
            # A broker may refuse its configuration to everybody but administrators: that is not an error.
            self._config = parse_broker_config(config.body) if config.code == ResponseCode.SUCCESS else {}
        return _completed(status, self._table, self._config)

    def _handle_table(self, body: bytes | memoryview) -> None:
        self._bytes_read += len(body)
        self._table = parse_runtime_info(body, limits=self._limits)
        self._runtime_info = runtime_info_of(self._table)
        # A node that sends updates also sends its table, and is asked for it only if that is late.
        intervals = LATE_INTERVALS if self._updates_left else 1
        self._table_until_s = trio.current_time() + intervals * TABLE_INTERVAL_S

    def _handle_answer(self, answer: RemotingCommand) -> BrokerStatus | None:
        """The status in an answer to 907; None if the broker does not know the request."""
        # One that was received before this answer is older than it.
        self._updates.status = None
        if answer.code == ResponseCode.SUCCESS:
            try:
                promised = StatusSubscription.of(answer.ext_fields) if self._updates.subscription else None
            except BadRequestError as error:
                raise RemoteProtocolError(f"HARuntimeInfo: {error.reason}") from error
            if promised is not None:
                # The next request goes out half-way, so that no update is missed between two subscriptions.
                self._updates_left = promised.count // 2
                self._late_s = LATE_INTERVALS * promised.every_ms / 1000
            return self._parse(answer.body)
        if answer.code in {ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR}:
            # 1 is "may be duplicationEnable is true": such a broker still has its runtime info.
            return None
        raise _refused(self._client, RequestCode.GET_BROKER_HA_STATUS, answer)

    async def _next_update(self, deadline_s: float) -> BrokerStatus | None:
        """The newest update that was received, or the next one; None if none is promised or it is late."""
        if self._updates_left <= 0:
            return None
        with trio.move_on_at(min(deadline_s, trio.current_time() + self._late_s)):
            await self._updates.wait()
        body, self._updates.status = self._updates.status, None
        if body is None:
            self._updates_left = 0
            return None
        self._updates_left -= 1
        return self._parse(body)

    def _parse(self, body: bytes | memoryview) -> BrokerStatus:
        self._bytes_read += len(body)
        return decode_ha_status(body, connections_max=self._connections_max, limits=self._limits)


async def fetch_status(client: RemotingClient, *, timeout_s: float = 3.0) -> BrokerStatus:
    """The broker's status, once: `StatusReader(client).fetch(...)`."""
    return await StatusReader(client).fetch(timeout_s=timeout_s)


def _refused(client: RemotingClient, code: RequestCode, answer: RemotingCommand) -> PeerError:
    remark = f": {answer.remark.strip().splitlines()[0]}" if answer.remark and answer.remark.strip() else ""
    return PeerError(
        f"{code.name} was answered with {response_code_name(answer.code)} ({answer.code}){remark}",
        address=client.address,
        code=answer.code,
    )


def _completed(
    ha_status: BrokerStatus | None, table: Mapping[str, str], config: Mapping[str, str]
) -> BrokerStatus:
    """The status of a RocketMQ broker: what 907 reports, if anything, and the rest from the other answers."""
    table_max_offset = _offset_of(table, "commitLogMaxOffset")
    undispatched_bytes = _offset_of(table, "dispatchBehindBytes")
    role = ROLE_UNKNOWN
    if ha_status is not None:
        role = "MASTER" if ha_status.client is None else "SLAVE"
    elif table_max_offset is None:
        raise RemoteProtocolError("runtime info: no commitLogMaxOffset in it")
    else:
        ha_status = BrokerStatus(source="runtime-info", max_offset=table_max_offset)
    ha_host, ha_port = config.get("brokerIP2"), config.get("haListenPort")
    return evolve(
        ha_status,
        role=config.get("brokerRole", role),
        cluster_name=config.get("brokerClusterName"),
        broker_name=config.get("brokerName"),
        broker_id=natural_of(config, "brokerId"),
        version=table.get("brokerVersionDesc"),
        min_offset=_offset_of(table, "commitLogMinOffset"),
        ha_address=f"{ha_host}:{ha_port}" if ha_host and ha_port else None,
        # Both figures are of the table: the HA status is of another moment.
        dispatched_offset=(
            None
            if undispatched_bytes is None or table_max_offset is None
            else table_max_offset - undispatched_bytes
        ),
        settings=settings_of(config),
    )


def _has_other_role(status: BrokerStatus | None, config: Mapping[str, str]) -> bool:
    """Whether a broker was a slave when it answered `config` and is a master by 907, or the reverse."""
    role = config.get("brokerRole")
    return status is not None and role is not None and (role == "SLAVE") == (status.client is None)


def _offset_of(table: Mapping[str, str], key: str) -> int | None:
    text = table.get(key)
    if text is None:
        return None
    try:
        return parse_int(text, I64)
    except ValueError:
        raise RemoteProtocolError(f"runtime info: {key} is not a number: {text[:40]!r}") from None
