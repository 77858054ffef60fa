"""Keeps a slave's metadata a copy of its master's (docs/protocol/ha.md#metadata).

Theory of operation. The first copy begins `first_s` after the start, each further one `period_s` after the
one before, as a slave of 4.9 does it; one follows at once when the master's address becomes known or changes.
A copy asks for table after table over one connection, which ends with the copy. `MetadataReplica` decides
what an answer changes; `MetadataStore` writes the files.

Each step fails by itself: an answer that is missing, refused or damaged is counted, logged once until the
step succeeds again, and the next step follows. Tables of 5.x that the master does not know are not asked for
again at that address.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import structlog
import trio
from attrs import define

from trioha.broker.user_copy import UserCopy
from trioha.broker_status import MetadataStatus, TableCopyStatus
from trioha.config.keys.metadata import OffsetRegression
from trioha.config.properties_file import PropertiesDocument
from trioha.errors import ConfigError, PeerError, RemoteProtocolError
from trioha.metadata.consumer_orders import ORDERS_FIELD
from trioha.metadata.replica import SLICE_ENTRIES, CopiedTable, MetadataReplica, check_entries
from trioha.metadata.table_reader import TableReader
from trioha.net.error_boundary import ErrorBoundary
from trioha.numbers import NATURAL32, parse_int
from trioha.remoting.address import Address
from trioha.remoting.broker_config import check_broker_config
from trioha.remoting.client import RemotingClient, open_client
from trioha.remoting.codes import RequestCode, ResponseCode, response_code_name
from trioha.remoting.command import RemotingCommand, request
from trioha.remoting.fastjson import FRAME_CHARS_MAX, JsonBudget, shown

log = structlog.get_logger(__name__)

BOUNDARY: Final = ErrorBoundary("copy of the master's metadata")
TIMEOUT_S: Final = 3.0
"""For each answer but those in pages; as RocketMQ's slaves."""
PAGED_TIMEOUT_S: Final = 30.0
"""For a page of topics or groups; as RocketMQ's slaves of 5.4."""
PAGE_ENTRIES: Final = 2000
"""As RocketMQ's slaves of 5.4."""
CAUGHT_UP_EVERY_S: Final = 1.0
"""How often a slave that has not caught up with the log looks whether it has: then more is copied."""
PAUSE_S: Final = 0.002
"""Between slices of an answer: replication passes through the loop several times for each put."""
SLICE_BYTES: Final = 128 * 1024
"""Of a body that is counted at once: about half a millisecond."""
PAGES_MAX: Final = 1000
"""Of one table, those that were begun again included."""
VERSION_CHARS_MAX: Final = 1024
"""Of a DataVersion, which has three numbers: it is sent back with the request for the next page."""
PAGES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of all pages of one table: 300 bytes for each of the `ENTRIES_MAX` topics of a slave. Masters before 5.4
send a table in one frame, which RocketMQ limits to half of that."""

CODES: Final = {
    CopiedTable.TOPICS: RequestCode.GET_ALL_TOPIC_CONFIG,
    CopiedTable.CONSUMER_OFFSETS: RequestCode.GET_ALL_CONSUMER_OFFSET,
    CopiedTable.DELAY_OFFSETS: RequestCode.GET_ALL_DELAY_OFFSET,
    CopiedTable.GROUPS: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    CopiedTable.REQUEST_MODES: RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    CopiedTable.CONSUMER_ORDERS: RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    CopiedTable.TIMER_METRICS: RequestCode.GET_TIMER_METRICS,
    CopiedTable.TIMER_CHECK_POINT: RequestCode.GET_TIMER_CHECK_POINT,
}
OF_5X: Final = frozenset(
    (
        CopiedTable.REQUEST_MODES,
        CopiedTable.CONSUMER_ORDERS,
        CopiedTable.TIMER_METRICS,
        CopiedTable.TIMER_CHECK_POINT,
    )
)
_NO_SUCH_TABLE: Final = {
    CopiedTable.REQUEST_MODES: (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    CopiedTable.CONSUMER_ORDERS: (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    CopiedTable.TIMER_METRICS: (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR),
    CopiedTable.TIMER_CHECK_POINT: (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR),
}
"""Codes with which a master says that it does not have a table: SYSTEM_ERROR with timerWheelEnable=false."""
_PAGE_FIELDS: Final = {
    CopiedTable.TOPICS: ("topicSeq", "maxTopicNum", "totalTopicNum", "topicConfigTable"),
    CopiedTable.GROUPS: ("groupSeq", "maxGroupNum", "totalGroupNum", "subscriptionGroupTable"),
}

Connect = Callable[[str], AbstractAsyncContextManager[RemotingClient]]


class MasterAddress:
    """Where a slave asks its master: as configured, as name servers answer, or beside its HA port."""

    def __init__(
        self, address: str | None = None, *, ha_address: Address | None = None, own: str = ""
    ) -> None:
        """`address`: trioha.masterAddress; `ha_address`: haMasterAddress, for want of another; `own`: this
        broker's own address, which is never its master's."""
        self._own = own
        self._address = address
        self._is_fixed = address is not None
        self._ha_address = ha_address
        self._changed = trio.Event()

    def receive(self, address: str) -> None:
        """A name server has answered with the master's address."""
        if not self._is_fixed and address != self._address:
            self._address = address
            self._changed.set()
            self._changed = trio.Event()

    @property
    def is_guess(self) -> bool:
        """Whether the address is only the usual one beside the HA port."""
        return self._address is None

    @property
    def ha_port(self) -> int | None:
        """Port of haMasterAddress."""
        return None if self._ha_address is None else self._ha_address.port

    def current(self) -> str | None:
        """The address; None if none is known, or if it is this broker's own."""
        address = self._address
        if address is None and self._ha_address is not None and self._ha_address.port > 1:
            address = str(Address(self._ha_address.host, self._ha_address.port - 1))
        return None if address is None or address == self._own else address

    async def changed(self) -> None:
        """Wait until another address becomes known."""
        await self._changed.wait()


@define
class _Step:
    """How copying one table went."""

    succeeded_s: float | None = None
    """trio's time of the last success."""
    failures: int = 0
    """Since the start."""
    error: str = ""
    """Why the last attempt failed; empty if it succeeded."""


class MetadataSync:
    """Copies the master's metadata until cancelled."""

    def __init__(
        self,
        replica: MetadataReplica,
        master: MasterAddress,
        *,
        broker_name: str,
        policy: OffsetRegression,
        first_s: float = 3.0,
        period_s: float = 10.0,
        connect: Connect = open_client,
        has_caught_up: Callable[[], bool] = lambda: True,
        users: UserCopy | None = None,
    ) -> None:
        """`broker_name` is that of the pair: a guessed address must be of a broker of that name. `users` is
        None for a slave that has none.

        While `has_caught_up` is false, delay offsets are not copied: a master keeps them below what those
        slaves have that it waits for, so they could name deliveries that this slave's log lacks.
        """
        self._replica = replica
        self._master = master
        self._broker_name = broker_name
        self._policy = policy
        self._first_s = first_s
        self._period_s = period_s
        self._connect = connect
        self._has_caught_up = has_caught_up
        self._users = users
        self._steps = {
            table: _Step() for table in CopiedTable if users is not None or table is not CopiedTable.USERS
        }
        self._unknown: set[CopiedTable] = set()
        """Tables that the broker at `_unknown_at` does not know."""
        self._unknown_at = ""

    def status(self) -> MetadataStatus:
        """Age and failures of each table's copy, and offsets that were kept out."""
        now_s = trio.current_time()
        consumers, levels = self._replica.consumer_regressions, self._replica.delay_regressions
        return MetadataStatus(
            master_address=self._master.current(),
            tables={
                table.value: TableCopyStatus(
                    age_ms=None if step.succeeded_s is None else round((now_s - step.succeeded_s) * 1000),
                    entries=self._entries(table),
                    changes=self._changes(table),
                    failures=step.failures,
                    error=step.error,
                )
                for table, step in self._steps.items()
                if table not in self._unknown
            },
            policy=self._policy.value,
            regressions=consumers.seen + levels.seen,
            regressions_accepted=consumers.accepted + levels.accepted,
            regressions_kept=len(consumers.kept) + len(levels.kept),
        )

    def _entries(self, table: CopiedTable) -> int:
        if self._users is not None and table is CopiedTable.USERS:
            return self._users.entries
        return self._replica.entries.get(table, 0)

    def _changes(self, table: CopiedTable) -> int:
        if self._users is not None and table is CopiedTable.USERS:
            return self._users.changes
        return self._replica.changes[table]

    async def run(self) -> None:
        """Copy until cancelled, which leaves whole tables of topics and groups."""
        await trio.sleep(self._first_s)
        while True:
            address = self._master.current()
            if address is not None:
                with BOUNDARY.around(address):
                    await self._copy(address)
            await self._pause()

    async def _pause(self) -> None:
        """Until the next copy: a period, or less if the master changes or the log has caught up."""
        had_caught_up, due_s = self._has_caught_up(), trio.current_time() + self._period_s
        while (now_s := trio.current_time()) < due_s:
            with trio.move_on_at(due_s if had_caught_up else min(due_s, now_s + CAUGHT_UP_EVERY_S)):
                await self._master.changed()
                return
            if not had_caught_up and self._has_caught_up():
                return

    async def _copy(self, address: str) -> None:
        if address != self._unknown_at:
            self._unknown, self._unknown_at = set(), address
        try:
            async with self._connect(address) as client:
                if self._master.is_guess:
                    await self._check_is_master(client)
                for table in self._steps:
                    if table not in self._unknown and self._may_copy(table):
                        await self._step(table, partial(self._copy_table, client, table))
        except (PeerError, RemoteProtocolError, ConfigError) as error:
            # Before the first step: the steps have their own.
            reason = error.reason if isinstance(error, PeerError) else str(error)
            if not all(step.error for step in self._steps.values()):
                log.warning("metadata cannot be copied", table="all", master=address, reason=reason)
            for step in self._steps.values():
                step.failures += 1
                step.error = reason[:300]

    def _may_copy(self, table: CopiedTable) -> bool:
        return table is not CopiedTable.DELAY_OFFSETS or self._has_caught_up()

    async def _step(self, table: CopiedTable, copy: Callable[[], Awaitable[None]]) -> None:
        try:
            await copy()
        except (PeerError, RemoteProtocolError) as error:
            if isinstance(error, PeerError) and error.code in _NO_SUCH_TABLE.get(table, ()):
                self._unknown.add(table)
                return
            self._failed(table, error.reason if isinstance(error, PeerError) else str(error))
            return
        step = self._steps[table]
        if step.error:
            log.info("metadata is copied again", table=table.value, master=self._master.current())
        step.error, step.succeeded_s = "", trio.current_time()

    def _failed(self, table: CopiedTable, reason: str) -> None:
        step = self._steps[table]
        step.failures += 1
        if not step.error:
            log.warning(
                "metadata cannot be copied", table=table.value, master=self._master.current(), reason=reason
            )
        step.error = reason[:300]

    async def _copy_table(self, client: RemotingClient, table: CopiedTable) -> None:
        """Raises PeerError, RemoteProtocolError."""
        if table is CopiedTable.USERS:
            assert self._users is not None, "without users there is no such step"
            await self._users.copy(partial(self._whole_body, client))
            return
        if table in _PAGE_FIELDS:
            bodies = await self._pages(client, table)
        elif table is CopiedTable.CONSUMER_ORDERS:
            bodies = [await self._whole_body(client, CODES[table], field=ORDERS_FIELD)]
        else:
            is_json = table is not CopiedTable.TIMER_CHECK_POINT
            bodies = [await self._whole_body(client, CODES[table], is_json=is_json)]
        if not self._may_copy(table):
            return
        for _ in self._replica.take(table, bodies):
            await trio.sleep(PAUSE_S)

    async def _whole_body(
        self, client: RemotingClient, code: RequestCode, *, is_json: bool = True, field: str | None = None
    ) -> bytes:
        """The body of an answer, within the limits if it is JSON. With `field`, which only trioha's masters
        know, raises PeerError as for a request that the master does not know."""
        fields = None if field is None else {field: "true"}
        answer = await _ask(client, request(code, ext_fields=fields), timeout_s=TIMEOUT_S)
        if field is not None and field not in answer.ext_fields:
            raise PeerError(
                f"does not know {field}",
                address=client.address,
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        body = bytes(answer.body)
        if is_json:
            await _spend(JsonBudget(bytes_max=FRAME_CHARS_MAX), body)
        return body

    async def _pages(self, client: RemotingClient, table: CopiedTable) -> list[bytes]:
        """The bodies of all pages, within the limits; one from a master that does not send pages."""
        first, size, total, member = _PAGE_FIELDS[table]
        bodies: list[bytes] = []
        version, count, budget = "", 0, JsonBudget(bytes_max=PAGES_BYTES_MAX)
        for _ in range(PAGES_MAX):
            fields = {first: str(count), size: str(PAGE_ENTRIES), "dataVersion": version}
            answer = await _ask(client, request(CODES[table], ext_fields=fields), timeout_s=PAGED_TIMEOUT_S)
            body = bytes(answer.body)
            await _spend(budget, body)
            total_text = answer.ext_fields.get(total)
            if total_text is None:
                # From 4.9 and 5.3: the whole table.
                return [body]
            reader = TableReader(body.decode("utf-8", "replace"), table=member)
            entries = 0
            for _entry in reader:
                entries += 1
                if entries % SLICE_ENTRIES == 0:
                    await trio.sleep(PAUSE_S)
            now = _encoded(reader.members.get("dataVersion"))
            if count and now != version:
                # Pages of two versions do not fit: from the first one again.
                bodies, version, count, budget = [], "", 0, JsonBudget(bytes_max=PAGES_BYTES_MAX)
                continue
            version = now
            bodies.append(body)
            count += entries
            check_entries(count)
            if count >= _total(total_text) or not entries:
                return bodies
        raise RemoteProtocolError(f"the table changes too often: {PAGES_MAX} pages")

    async def _check_is_master(self, client: RemotingClient) -> None:
        """Raises PeerError if the broker beside the HA port is not the master, or does not say so."""
        found = await broker_settings(client)
        expected = {
            "brokerName": self._broker_name,
            "brokerId": "0",
            "haListenPort": str(self._master.ha_port),
        }
        for key, value in expected.items():
            if found.get(key) != value:
                raise PeerError(
                    f"is not the master: its {key} is {shown(found.get(key))}, not {value}; "
                    "set trioha.masterAddress",
                    address=client.address,
                )


async def _spend(budget: JsonBudget, body: bytes) -> None:
    """Spend one body of an answer, in slices. Raises RemoteProtocolError."""
    for at in range(0, len(body), SLICE_BYTES):
        if at:
            await trio.sleep(PAUSE_S)
        budget.spend(body[at : at + SLICE_BYTES])


def _encoded(version: object) -> str:
    """A DataVersion as the next page is asked for. Raises RemoteProtocolError."""
    text = "" if version is None else json.dumps(version, separators=(",", ":"))
    if len(text) > VERSION_CHARS_MAX:
        raise RemoteProtocolError(f"a dataVersion of {len(text)} characters")
    return text


def _total(text: str) -> int:
    try:
        return parse_int(text, NATURAL32)
    except ValueError:
        raise RemoteProtocolError(f"{shown(text)} is not a number of entries") from None


async def broker_settings(client: RemotingClient) -> dict[str, str]:
    """The settings that are in effect at a broker, by key. Raises PeerError, RemoteProtocolError."""
    answer = await _ask(client, request(RequestCode.GET_BROKER_CONFIG), timeout_s=TIMEOUT_S)
    check_broker_config(answer.body)
    document = PropertiesDocument.parse(bytes(answer.body))
    return {entry.key: entry.value.strip() for entry in document.entries}


async def _ask(client: RemotingClient, command: RemotingCommand, *, timeout_s: float) -> RemotingCommand:
    """The successful answer. Raises PeerError."""
    answer = await client.request(command, timeout_s=timeout_s)
    if answer.code != ResponseCode.SUCCESS:
        raise PeerError(
            f"answered with {response_code_name(answer.code)} ({answer.code}): {(answer.remark or '')[:200]}",
            address=client.address,
            code=answer.code,
        )
    return answer
