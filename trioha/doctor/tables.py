"""The metadata tables of a broker, as far as master and slave must agree on them.

See docs/protocol/ha.md#metadata-requests.

| request | table | compared |
|---|---|---|
| 21 | topics | queues, permissions, flags of each topic; not the attributes of 5.x |
| 201 | groups | the settings that 4.9 and 5.x share |
| 43 | consumer offsets | offset of each queue by `topic@group` |
| 45 | delay offsets | offset of each level |

DataVersions are not compared: a slave of 5.3 counts them up with each sync (docs/protocol/ha.md#defects, 10).
That of a master says when its table was last changed.

Entries are the models of `trioha.metadata`, which a slave copies. A body is parsed as a whole, other than in
a slave (`trioha.metadata.table_reader`), whose event loop has other work meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import evolve, frozen

from trioha.doctor.user_digests import UserDigests
from trioha.errors import RemoteProtocolError
from trioha.metadata.groups import SubscriptionGroup
from trioha.metadata.topics import TopicConfig
from trioha.metadata.values import int_map, members, natural
from trioha.remoting.codes import RequestCode
from trioha.remoting.fastjson import parse_json


@frozen(kw_only=True)
class Table:
    """One table: entries by name in a form that can be compared, and when the table was last changed."""

    entries: Mapping[str, object]
    changed_ms: int | None = None
    """Wall clock of its broker, ms since 1970; None where it is not reported."""


@frozen(kw_only=True)
class OffsetTable:
    """Offsets of consumer groups or of delay levels."""

    offsets: Mapping[str, Mapping[int, int]]
    """By `topic@group`, then by queue; delay levels by the empty name, then by level."""


@frozen(kw_only=True)
class Tables:
    """All tables of a broker; None for one that it does not give."""

    topics: Table | None = None
    groups: Table | None = None
    consumer_offsets: OffsetTable | None = None
    delay_offsets: OffsetTable | None = None
    users: UserDigests | None = None
    """Users and access control lists, where an admin's account was given to ask for them."""


TABLE_REQUESTS: Final = {
    "topics": RequestCode.GET_ALL_TOPIC_CONFIG,
    "groups": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "consumer_offsets": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delay_offsets": RequestCode.GET_ALL_DELAY_OFFSET,
}
"""Field of `Tables` and the request for it."""


def parse_table(name: str, body: bytes | memoryview) -> Table | OffsetTable:
    """The table of an answer; `name` is a field of `Tables`. Raises RemoteProtocolError."""
    try:
        return _READERS[name](dict(members(parse_json(body), name)))
    except ValueError as error:
        raise RemoteProtocolError(f"{name}: {error}") from None


def with_table(tables: Tables, name: str, table: Table | OffsetTable) -> Tables:
    """`tables` with one more."""
    change: dict[str, Any] = {name: table}
    return evolve(tables, **change)


def _topics(whole: dict[str, object]) -> Table:
    return Table(
        entries=_bare(whole.get("topicConfigTable"), "topicConfigTable", TopicConfig.of),
        changed_ms=_changed_ms(whole),
    )


def _groups(whole: dict[str, object]) -> Table:
    return Table(
        entries=_bare(whole.get("subscriptionGroupTable"), "subscriptionGroupTable", SubscriptionGroup.of),
        changed_ms=_changed_ms(whole),
    )


def _bare(
    value: object, what: str, read: Callable[[object], TopicConfig | SubscriptionGroup]
) -> dict[str, object]:
    """The entries without the members that only one version has."""
    if value is None:
        return {}
    return {name: evolve(read(member), name=name, other={}) for name, member in members(value, what).items()}


def _consumer_offsets(whole: dict[str, object]) -> OffsetTable:
    table = members(whole.get("offsetTable") or {}, "offsetTable")
    return OffsetTable(offsets={key: int_map(queues, key) for key, queues in table.items()})


def _delay_offsets(whole: dict[str, object]) -> OffsetTable:
    return OffsetTable(offsets={"": int_map(whole.get("offsetTable") or {}, "offsetTable")})


def _changed_ms(whole: Mapping[str, object]) -> int | None:
    version = whole.get("dataVersion")
    if not isinstance(version, dict) or version.get("timestamp") is None:
        return None
    return natural(version["timestamp"], "timestamp")


_READERS: Final[dict[str, Callable[[dict[str, object]], Table | OffsetTable]]] = {
    "topics": _topics,
    "groups": _groups,
    "consumer_offsets": _consumer_offsets,
    "delay_offsets": _delay_offsets,
}
