"""Asking a broker for its status, whichever it is: trioha, RocketMQ 4.9 or 5.x (spec ha 7, remoting 5).

Theory of operation. Whoever looks many times a second does not ask many times a second: a question costs the
broker a wake-up of its own. A trioha node is asked for updates (docs/ha-status.md), which it sends to all who
want some at the same moments, and each question is good for `UPDATES` of them; so what is on its way to a
reader that has stopped reading stays little, and nothing has to be called off. A broker that promises none is
asked each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import trio
from attrs import evolve

from trioha.errors import PeerError, RemoteProtocolError
from trioha.numbers import I64, NATURAL64, parse_int
from trioha.remoting.client import RemotingClient
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import BadRequestError, RemotingCommand, request
from trioha.remoting.fastjson import JsonLimits, as_text, parse_json
from trioha.remoting.ha_status import (
    ROLE_UNKNOWN,
    BrokerRuntimeInfo,
    BrokerSettings,
    BrokerStatus,
    HaExtras,
    HaRuntimeInfo,
    JsonFields,
)
from trioha.remoting.status_subscription import StatusSubscription

TABLE_INTERVAL_S = 1.0
"""How often the runtime table of a broker that answers 907 is asked for again, in seconds: it is long, and
what it tells beside the offsets moves slowly."""
UPDATES = 100
"""How many updates are asked for at a time."""
PATIENCE = 2
"""How many intervals an update may be late before the broker is asked."""


class StatusReader:
    """Asks the broker behind `client` for its status, again and again, one request at a time.

    What a real broker tells only in its configuration (exact role, names, limits) is asked for once a
    connection, and its runtime table no more than once in `TABLE_INTERVAL_S` where 907 tells the offsets.
    """

    def __init__(
        self,
        client: RemotingClient,
        *,
        with_table: bool = False,
        every_s: float | None = None,
        connections_max: int | None = None,
        limits: JsonLimits | None = None,
    ) -> None:
        """`with_table`: ask trioha nodes for their runtime table, too (`BrokerStatus.table`).

        `every_s`: how often there will be a `fetch`; where the broker sends updates as often, it waits for
        the next one instead of asking. The reader then takes over the client's `on_request`.

        `connections_max` and `limits` are those of `HaRuntimeInfo.from_json`, for readers that must not be
        held up by what a broker answers.
        """
        self._client = client
        self._connections_max, self._limits = connections_max, limits
        self._bytes_read = 0
        self._wanted = None if every_s is None else StatusSubscription(round(every_s * 1000), UPDATES)
        if self._wanted is not None:
            client.on_request = self._take_update
        self._update: bytes | None = None
        """The last one that came and was not looked at."""
        self._update_came = trio.Event()
        self._table_update: bytes | None = None
        """The same of the runtime table."""
        self._updates_left = 0
        """How many more may be waited for before it is asked again."""
        self._patience_s = 0.0
        """How long to wait for one."""
        self._with_table = with_table
        self._config: Mapping[str, str] | None = None
        self._table: Mapping[str, str] = {}
        self._table_until_s = -math.inf
        self._parsed_table = BrokerRuntimeInfo()

    async def fetch(self, *, timeout_s: float = 3.0) -> BrokerStatus:
        """The broker's status now, all requests together within `timeout_s`.

        Raises PeerError if the broker cannot be reached, does not answer in time or refuses (`code` says
        how), RemoteProtocolError if what it answers makes no sense.
        """
        self._bytes_read = 0
        status = await self._fetch(timeout_s)
        return evolve(status, answer_bytes=self._bytes_read)

    async def _fetch(self, timeout_s: float) -> BrokerStatus:
        client = self._client
        deadline = trio.current_time() + timeout_s

        async def ask(code: RequestCode, updates: StatusSubscription | None = None) -> RemotingCommand:
            command = request(code, ext_fields=None if updates is None else updates.to_fields())
            return await client.request(command, timeout_s=max(0.0, deadline - trio.current_time()))

        info = await self._next_update(deadline)
        if info is None:
            info = self._taken(await ask(RequestCode.GET_BROKER_HA_STATUS, self._wanted))
        if self._table_update is not None:
            table, self._table_update = self._table_update, None
            self._take_table(table)
        is_trioha = info is not None and info.extras is not None
        wants_table = self._with_table or not is_trioha
        if info is None or (wants_table and trio.current_time() >= self._table_until_s):
            runtime_info = await ask(RequestCode.GET_BROKER_RUNTIME_INFO)
            if runtime_info.code == ResponseCode.SUCCESS:
                self._take_table(runtime_info.body)
            elif not is_trioha:
                raise _refused(client, RequestCode.GET_BROKER_RUNTIME_INFO, runtime_info)
        if info is not None and info.extras is not None:
            return _from_trioha(client.address, info, info.extras, self._parsed_table)
        if self._config is None:
            config = await ask(RequestCode.GET_BROKER_CONFIG)
            # The configuration is for administrators: a broker may refuse it, and that is no fault.
            self._bytes_read += len(config.body)
            self._config = parse_broker_config(config.body) if config.code == ResponseCode.SUCCESS else {}
        return _from_rocketmq(client.address, info, self._table, self._config, self._parsed_table)

    def _take_table(self, body: bytes | memoryview) -> None:
        self._bytes_read += len(body)
        self._table = parse_runtime_info(body, limits=self._limits)
        self._parsed_table = BrokerRuntimeInfo.from_table(self._table)
        # A node that sends updates sends this, too, and is asked only if it does not.
        patience = PATIENCE if self._updates_left else 1
        self._table_until_s = trio.current_time() + patience * TABLE_INTERVAL_S

    def _taken(self, answer: RemotingCommand) -> HaRuntimeInfo | None:
        """What the answer to 907 says; None if the broker does not know the request."""
        # What came before this answer is older than it.
        self._update = None
        if answer.code == ResponseCode.SUCCESS:
            try:
                promised = None if self._wanted is None else StatusSubscription.of(answer.ext_fields)
            except BadRequestError as error:
                raise RemoteProtocolError(f"HARuntimeInfo: {error.reason}") from error
            if promised is not None:
                # Asked again half-way: so none is missed between one promise and the next.
                self._updates_left = promised.count // 2
                self._patience_s = PATIENCE * promised.every_ms / 1000
            return self._parse(answer.body)
        if answer.code in {ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR}:
            # 1 is "may be duplicationEnable is true": such a broker still has its runtime info.
            return None
        raise _refused(self._client, RequestCode.GET_BROKER_HA_STATUS, answer)

    def _take_update(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.GET_BROKER_HA_STATUS:
            self._update = bytes(command.body)
            self._update_came.set()
        elif command.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            self._table_update = bytes(command.body)

    async def _next_update(self, deadline_s: float) -> HaRuntimeInfo | None:
        """The newest update that came, or the next; None if none is promised, or it does not come in time."""
        if self._updates_left <= 0:
            return None
        if self._update is None:
            self._update_came = trio.Event()
            with trio.move_on_at(min(deadline_s, trio.current_time() + self._patience_s)):
                await self._update_came.wait()
        body, self._update = self._update, None
        if body is None:
            self._updates_left = 0
            return None
        self._updates_left -= 1
        return self._parse(body)

    def _parse(self, body: bytes | memoryview) -> HaRuntimeInfo:
        self._bytes_read += len(body)
        return HaRuntimeInfo.from_json(body, connections_max=self._connections_max, limits=self._limits)


async def fetch_status(client: RemotingClient, *, timeout_s: float = 3.0) -> BrokerStatus:
    """`StatusReader(client).fetch(...)` for whoever asks once."""
    return await StatusReader(client).fetch(timeout_s=timeout_s)


def parse_runtime_info(body: bytes | memoryview, *, limits: JsonLimits | None = None) -> Mapping[str, str]:
    """The table that answers GET_BROKER_RUNTIME_INFO (spec remoting 5.1).

    `limits` are those of `parse_json`. Raises RemoteProtocolError for a body without a table.
    """
    table = JsonFields.of(parse_json(body, limits=limits), "runtime info").get("table")
    if not isinstance(table, dict):
        raise RemoteProtocolError("runtime info: no table in it")
    return {as_text(name): as_text(value) for name, value in table.items()}


def parse_broker_config(body: bytes | memoryview) -> Mapping[str, str]:
    """The `key=value` lines that answer GET_BROKER_CONFIG (spec remoting 5)."""
    lines = str(body, "utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _refused(client: RemotingClient, code: RequestCode, answer: RemotingCommand) -> PeerError:
    remark = f": {answer.remark.strip().splitlines()[0]}" if answer.remark and answer.remark.strip() else ""
    return PeerError(
        f"{code.name} was answered with {response_code_name(answer.code)} ({answer.code}){remark}",
        address=client.address,
        code=answer.code,
    )


def _from_trioha(
    address: str, info: HaRuntimeInfo, extras: HaExtras, table: BrokerRuntimeInfo
) -> BrokerStatus:
    return BrokerStatus(
        address=address,
        source="ha-status",
        role=extras.role,
        cluster_name=extras.cluster_name,
        broker_name=extras.broker_name,
        broker_id=extras.broker_id,
        version=extras.version,
        min_offset=extras.min_offset,
        max_offset=info.master_max_offset if info.master else info.client.max_offset,
        flushed_offset=extras.flushed_offset,
        ha_address=extras.ha_address or None,
        in_sync_slaves=info.in_sync_slaves if info.master else None,
        connections=info.connections,
        unread_connections=info.unread_connections,
        unread_probes=info.unread_probes,
        client=None if info.master else info.client,
        put_statuses=extras.put_statuses,
        ended_connections=extras.ended_connections,
        probes=extras.probes,
        dispatched_offset=extras.dispatched_offset,
        dispatch_fault=extras.dispatch_fault,
        settings=extras.settings,
        table=table,
        files=extras.files,
        warnings=extras.warnings,
    )


def _from_rocketmq(
    address: str,
    info: HaRuntimeInfo | None,
    table: Mapping[str, str],
    config: Mapping[str, str],
    parsed_table: BrokerRuntimeInfo,
) -> BrokerStatus:
    role = config.get("brokerRole")
    if role is None:
        role = ROLE_UNKNOWN if info is None else "MASTER" if info.master else "SLAVE"
    max_offset = _table_offset(table, "commitLogMaxOffset")
    if info is not None:
        max_offset = info.master_max_offset if info.master else info.client.max_offset
    if max_offset is None:
        raise RemoteProtocolError("runtime info: no commitLogMaxOffset in it")
    behind = _table_offset(table, "dispatchBehindBytes")
    table_max_offset = _table_offset(table, "commitLogMaxOffset")
    ha_host, ha_port, broker_id = (config.get(key) for key in ("brokerIP2", "haListenPort", "brokerId"))
    return BrokerStatus(
        address=address,
        source="runtime-info" if info is None else "ha-status",
        role=role,
        cluster_name=config.get("brokerClusterName"),
        broker_name=config.get("brokerName"),
        broker_id=_broker_id(broker_id),
        version=table.get("brokerVersionDesc"),
        min_offset=_table_offset(table, "commitLogMinOffset"),
        max_offset=max_offset,
        flushed_offset=None,
        ha_address=f"{ha_host}:{ha_port}" if ha_host and ha_port else None,
        in_sync_slaves=info.in_sync_slaves if info is not None and info.master else None,
        connections=() if info is None else info.connections,
        unread_connections=0 if info is None else info.unread_connections,
        unread_probes=0 if info is None else info.unread_probes,
        client=None if info is None or info.master else info.client,
        # Of one moment: the HA status was told at another one.
        dispatched_offset=None if behind is None or table_max_offset is None else table_max_offset - behind,
        settings=BrokerSettings.from_config(config),
        table=parsed_table,
    )


def _table_offset(table: Mapping[str, str], key: str) -> int | None:
    text = table.get(key)
    if text is None:
        return None
    try:
        return parse_int(text, I64)
    except ValueError:
        raise RemoteProtocolError(f"runtime info: {key} is not a number: {text[:40]!r}") from None


def _broker_id(text: str | None) -> int | None:
    """The number of a broker's configuration; None if it says none."""
    try:
        return parse_int(text, NATURAL64)
    except ValueError:
        return None
