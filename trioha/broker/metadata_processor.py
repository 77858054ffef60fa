"""The tables that slaves ask their master for: requests 21, 43, 45, 60, 61, 201 and 402.

See docs/protocol/ha.md#metadata-requests.

| request | body |
|---|---|
| GET_ALL_TOPIC_CONFIG 21 | `{"dataVersion":DV,"topicConfigTable":{T:topic}}`, for 5.x with no mappings |
| GET_ALL_CONSUMER_OFFSET 43 | `{"offsetTable":{"topic@group":{0:5}}}`, for 5.x with dataVersion |
| GET_ALL_DELAY_OFFSET 45 | `{"offsetTable":{1:5}}`, for 5.x with dataVersion |
| GET_ALL_SUBSCRIPTIONGROUP_CONFIG 201 | `{"dataVersion":DV,"subscriptionGroupTable":{G:group}}` |
| GET_ALL_MESSAGE_REQUEST_MODE 402 | `{"messageRequestModeMap":{T:{G:mode}}}` |
| GET_TIMER_METRICS 61 | `{"dataVersion":DV,"timingCount":{T:{"count":2,"timeStamp":ms}}}` |
| GET_TIMER_CHECK_POINT 60 | 56 bytes, see `trioha.metadata.documents` |

402 with `ORDERS_FIELD` asks for the orders of ordered pops: `{"table":{"topic@group":{queueId:order}}}`, see
`trioha.metadata.consumer_orders`.

With pops, 43 also has triohaPopsCompleteTo (`ConsumerOffsets.pops_complete_to`), which RocketMQ's slaves do
not read.

Slaves of 5.4 and later ask for topics and groups in pages (enableSplitMetadata): `topicSeq` or `groupSeq` is
the number of the first entry in the order of names, `maxTopicNum` or `maxGroupNum` how many they take,
`dataVersion` the version that they have begun with; a page of another version begins at 0. The answer's
`totalTopicNum` or `totalGroupNum` is the size of the table. Their loop ends when it has all but one entry: no
page ends there.

Bodies are encoded in slices, so that 10,000 entries do not hold the event loop. The text of a topic or group
is kept until it changes.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Final

import trio

from trioha.broker.timer_records import PendingTimers
from trioha.errors import RemoteProtocolError
from trioha.metadata.consumer_orders import ORDERS_FIELD, orders_json
from trioha.metadata.data_version import DataVersion
from trioha.metadata.documents import TimerCheckPoint
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.offsets import POPS_COMPLETE_TO
from trioha.metadata.table import wall_clock_ms
from trioha.metadata.topics import TopicConfig
from trioha.numbers import NATURAL32
from trioha.remoting.codes import RequestCode, ResponseCode, Version
from trioha.remoting.command import BadRequestError, RemotingCommand, response_to
from trioha.remoting.fastjson import parse_json
from trioha.remoting.header_fields import HeaderFields
from trioha.remoting.serving import Handler, Peer
from trioha.store.message_store import MessageStore
from trioha.store.topics import TIMER_TOPIC

BODY_BYTES_MAX: Final = 15 * 1024 * 1024
"""Of one answer: RocketMQ's slaves read frames of 16 MiB."""
SLICE_ENTRIES: Final = 64
"""Entries that are encoded before other requests are served."""
_NO_MAPPINGS: Final = {"topicQueueMappingDetailMap": "{}", "topicQueueMappingInfoMap": "{}"}

Named = TopicConfig | SubscriptionGroup


class _Texts:
    """The JSON texts of the entries of a table, kept until they change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Named, str]] = {}

    def of(self, entry: Named) -> str:
        """The entry as a member of its table."""
        known = self._known.get(entry.name)
        if known is not None and known[0] is entry:
            return known[1]
        text = f"{_dump(entry.name)}:{_dump(entry.to_json())}"
        self._known[entry.name] = (entry, text)
        return text

    def forget(self, names: Mapping[str, object]) -> None:
        """Forget the entries that the table does not have."""
        if len(self._known) > len(names):
            self._known = {name: known for name, known in self._known.items() if name in names}


class MetadataProcessor:
    """Handles the requests of slaves for metadata. A slave answers them as well, with its copies."""

    def __init__(
        self,
        metadata: MetadataStore,
        store: MessageStore,
        timers_from_ms: Callable[[], int | None] = lambda: None,
        pending: Callable[[], PendingTimers | None] = lambda: None,
    ) -> None:
        """`timers_from_ms`: no timer that waits is due before it, ms since 1970; None if it is not known.
        `pending`: what a master delivers, None on a slave and until it is known."""
        self._metadata = metadata
        self._store = store
        self._timers_from_ms = timers_from_ms
        self._pending = pending
        self._topic_texts = _Texts()
        self._group_texts = _Texts()

    @property
    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        return {
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.consumer_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self.delay_offsets,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.request_modes,
            RequestCode.GET_TIMER_METRICS: self.timer_metrics,
            RequestCode.GET_TIMER_CHECK_POINT: self.timer_check_point,
        }

    async def topics(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_ALL_TOPIC_CONFIG. Raises BadRequestError."""
        table = self._metadata.topics
        members = {"dataVersion": _version_text(table.version, request)}
        if request.version >= Version.V5_0_0:
            # A constant: 5.x compares it, and writes its mappings again for each new one.
            members |= {"mappingDataVersion": _version_text(DataVersion(), request), **_NO_MAPPINGS}
        page = _Page.of(request, table.entries, table.version, first="topicSeq", size="maxTopicNum")
        text = await _table_text([table.entries[name] for name in page.names], self._topic_texts)
        self._topic_texts.forget(table.entries)
        return page.answer(request, {**members, "topicConfigTable": text}, total="totalTopicNum")

    async def groups(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Raises BadRequestError."""
        table = self._metadata.groups
        members = {"dataVersion": _version_text(table.version, request)}
        if request.version >= Version.V5_0_0 or "forbiddenTable" in table.other:
            members["forbiddenTable"] = _dump(table.other.get("forbiddenTable", {}))
        page = _Page.of(request, table.entries, table.version, first="groupSeq", size="maxGroupNum")
        text = await _table_text([table.entries[name] for name in page.names], self._group_texts)
        self._group_texts.forget(table.entries)
        return page.answer(request, {**members, "subscriptionGroupTable": text}, total="totalGroupNum")

    async def consumer_offsets(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_ALL_CONSUMER_OFFSET. Raises BadRequestError."""
        table = self._metadata.consumer_offsets
        members = _optional_version(table.version, request)
        if table.pops_complete_to is not None:
            members[POPS_COMPLETE_TO] = str(table.pops_complete_to)
        parts = []
        for number, (key, queues) in enumerate(table.items(), 1):
            parts.append(f"{_dump(key)}:{_int_map_text(queues)}")
            if number % SLICE_ENTRIES == 0:
                await trio.lowlevel.checkpoint()
        return _answer(request, {**members, "offsetTable": "{" + ",".join(parts) + "}"})

    def delay_offsets(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_ALL_DELAY_OFFSET."""
        table = self._metadata.delay_offsets
        members = _optional_version(table.version, request)
        return _answer(request, {**members, "offsetTable": _int_map_text(table.items())})

    def request_modes(
        self, request: RemotingCommand, _peer: Peer
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """GET_ALL_MESSAGE_REQUEST_MODE."""
        if ORDERS_FIELD in request.ext_fields:
            return self._consumer_orders(request)
        return _answer(request, {"messageRequestModeMap": _dump(self._metadata.request_modes.modes)})

    async def _consumer_orders(self, request: RemotingCommand) -> RemotingCommand:
        """What ordered pops have handed out. Raises BadRequestError."""
        parts = []
        for number, (key, queues) in enumerate(self._metadata.consumer_orders.by_key().items(), 1):
            parts.append(f"{_dump(key)}:{_dump(orders_json(queues))}")
            if number % SLICE_ENTRIES == 0:
                await trio.lowlevel.checkpoint()
        return _answer(request, {"table": "{" + ",".join(parts) + "}"}, {ORDERS_FIELD: "true"})

    async def timer_metrics(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_TIMER_METRICS: by topic, how many timers wait, and when one came or was done last.

        A slave takes the answer if its version differs. Until a master has counted what waits, the answer is
        that of the former master.
        """
        pending, former = self._pending(), self._metadata.timers
        version, text = former.metrics_version, _dump(former.metrics)
        if pending is not None:
            last_ms, parts = 0, []
            changes = pending.changes
            for number, (topic, timers) in enumerate(list(pending.by_topic.items()), 1):
                last_ms = max(last_ms, timers.changed_ms)
                parts.append(f'{_dump(topic)}:{{"count":{timers.count},"timeStamp":{timers.changed_ms}}}')
                if number % SLICE_ENTRIES == 0:
                    await trio.lowlevel.checkpoint()
            version, text = DataVersion(changes, last_ms), "{" + ",".join(parts) + "}"
        known = version.as_known_to(max(request.version, Version.V5_0_0))
        return _answer(request, {"dataVersion": _dump(known.to_json()), "timingCount": text})

    def timer_check_point(self, request: RemotingCommand, _peer: Peer) -> RemotingCommand:
        """GET_TIMER_CHECK_POINT: that all timers before the first that waits are delivered.

        A slave of RocketMQ that is promoted delivers the timers of the slots from lastReadTimeMs on, once
        more if they were delivered, and drops the earlier ones (docs/protocol/timer.md#slaves-and-promotion).
        Until a master has counted what waits, the answer is that of the former master; without one, that
        nothing was delivered: each timer is due after its record was stored, or 1 s before that, as slots
        have whole seconds. A check point of 0 would make the slave look at each second since 1970.
        """
        former = self._metadata.timers.check_point
        waiting_ms = self._timers_from_ms()
        if former is not None and waiting_ms is None:
            return response_to(request, ResponseCode.SUCCESS, body=former.encode())
        reads, now_ms = self._store.reads, wall_clock_ms()
        if waiting_ms is None:
            oldest_ms = reads.earliest_store_timestamp(TIMER_TOPIC, 0)
            waiting_ms = (now_ms if oldest_ms < 0 else oldest_ms) - 1000
        check_point = TimerCheckPoint(
            min(waiting_ms, now_ms) // 1000 * 1000,
            reads.max_offset(TIMER_TOPIC, 0),
            DataVersion() if former is None else former.version,
        )
        return response_to(request, ResponseCode.SUCCESS, body=check_point.encode())


class _Page:
    """The entries of a table that a request is answered with."""

    def __init__(self, names: Sequence[str], total: int | None) -> None:
        self.names = names
        self._total = total
        """Size of the table; None if it was not asked for in pages."""

    @classmethod
    def of(
        cls,
        request: RemotingCommand,
        table: Mapping[str, object],
        version: DataVersion,
        *,
        first: str,
        size: str,
    ) -> _Page:
        """`first` and `size` are names of fields. Raises BadRequestError."""
        fields = HeaderFields(request.ext_fields)
        count = fields.number(size, NATURAL32, default=NATURAL32.high)
        if fields.optional(first) is None:
            return cls(list(table), None)
        start = fields.number(first, NATURAL32)
        if not _is_version(fields.optional("dataVersion"), version):
            start = 0
        end = start + max(count, 1)
        if end == len(table) - 1:
            end += 1
        return cls(sorted(table)[start:end], len(table))

    def answer(self, request: RemotingCommand, members: Mapping[str, str], *, total: str) -> RemotingCommand:
        """The answer with these members; `total` is the name of its field."""
        fields = {} if self._total is None else {total: str(self._total)}
        return _answer(request, members, fields)


def _is_version(text: str | None, version: DataVersion) -> bool:
    """Whether the DataVersion that a slave has begun with is that of the table."""
    if not text:
        return False
    try:
        return DataVersion.of(parse_json(text)) == version
    except (ValueError, RemoteProtocolError) as error:
        raise BadRequestError(f"request header field dataVersion: {error}") from None


async def _table_text(entries: Sequence[Named], texts: _Texts) -> str:
    parts = []
    for number, entry in enumerate(entries, 1):
        parts.append(texts.of(entry))
        if number % SLICE_ENTRIES == 0:
            await trio.lowlevel.checkpoint()
    return "{" + ",".join(parts) + "}"


def _answer(
    request: RemotingCommand, members: Mapping[str, str], fields: Mapping[str, str] | None = None
) -> RemotingCommand:
    """The answer with an object of members that are encoded already. Raises BadRequestError."""
    text = "{" + ",".join(_sorted_members(members)) + "}"
    body = text.encode("utf-8", "replace")
    if len(body) > BODY_BYTES_MAX:
        raise BadRequestError(f"an answer of {len(body)} bytes; at most {BODY_BYTES_MAX} are sent")
    return response_to(request, ResponseCode.SUCCESS, ext_fields=fields, body=body)


def _sorted_members(members: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(members):
        yield f'"{name}":{members[name]}'


def _version_text(version: DataVersion, request: RemotingCommand) -> str:
    return _dump(version.as_known_to(request.version).to_json())


def _optional_version(version: DataVersion | None, request: RemotingCommand) -> dict[str, str]:
    """5.x needs a version: without one its slave's step fails."""
    if request.version >= Version.V5_0_0:
        return {"dataVersion": _version_text(version or DataVersion(), request)}
    return {} if version is None else {"dataVersion": _version_text(version, request)}


def _int_map_text(numbers: Mapping[int, int]) -> str:
    return "{" + ",".join([f"{key}:{number}" for key, number in numbers.items()]) + "}"


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
