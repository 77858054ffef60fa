"""subscriptionGroup.json: the consumer groups of a broker.

See docs/protocol/remoting.md#administration, docs/protocol/store.md#configuration-files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from attrs import evolve, field, frozen

from trioha.metadata.data_version import DataVersion
from trioha.metadata.table import MetadataTable, TableFull, wall_clock_ms
from trioha.metadata.values import flag, members, natural, number, pop_value, sorted_members, text
from trioha.numbers import I32

GROUP_CHARS_MAX: Final = 255
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
_i32 = number(I32)


@frozen
class SubscriptionGroup:
    """One consumer group."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    """Queues of its retry topic; none disables consumer retry."""
    retry_max_times: int = 16
    broker_id: int = 0
    """Which broker its consumers pull from."""
    which_broker_when_consume_slowly: int = 1
    """And which one when they lag far."""
    notify_consumer_ids_changed_enable: bool = True
    other: Mapping[str, object] = field(factory=dict)
    """Members that trioha does not know, those of 5.x included."""

    @classmethod
    def of(cls, value: object) -> SubscriptionGroup:
        """From its JSON value. Raises ValueError."""
        fields = dict(members(value, "subscription group"))
        return cls(
            pop_value(fields, "groupName", text, ""),
            pop_value(fields, "consumeEnable", flag, True),
            pop_value(fields, "consumeFromMinEnable", flag, True),
            pop_value(fields, "consumeBroadcastEnable", flag, True),
            pop_value(fields, "retryQueueNums", _i32, 1),
            pop_value(fields, "retryMaxTimes", _i32, 16),
            pop_value(fields, "brokerId", natural, 0),
            pop_value(fields, "whichBrokerWhenConsumeSlowly", natural, 1),
            pop_value(fields, "notifyConsumerIdsChangedEnable", flag, True),
            fields,
        )

    def to_json(self) -> dict[str, object]:
        """Its JSON value."""
        return sorted_members(
            {
                **self.other,
                "brokerId": self.broker_id,
                "consumeBroadcastEnable": self.consume_broadcast_enable,
                "consumeEnable": self.consume_enable,
                "consumeFromMinEnable": self.consume_from_min_enable,
                "groupName": self.name,
                "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
                "retryMaxTimes": self.retry_max_times,
                "retryQueueNums": self.retry_queue_nums,
                "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
            }
        )


class GroupTable(MetadataTable):
    """The groups by name."""

    file_name = "subscriptionGroup.json"
    version_if_absent = DataVersion()

    def __init__(
        self,
        *,
        auto_create: bool = True,
        groups_max: int = 10_000,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`auto_create`: autoCreateSubscriptionGroup; `groups_max`: trioha.groupsMax."""
        super().__init__(now_ms=now_ms)
        self.version: DataVersion = DataVersion()
        self.groups: dict[str, SubscriptionGroup] = {}
        """Read it; change it by the methods only."""
        self._auto_create = auto_create
        self._groups_max = groups_max

    def configure(self, *, auto_create: bool, groups_max: int) -> None:
        """Change the settings that `__init__` has set."""
        self._auto_create = auto_create
        self._groups_max = groups_max

    def _load(self, fields: dict[str, object]) -> None:
        table = members(fields.pop("subscriptionGroupTable", {}), "subscriptionGroupTable")
        self.groups = {name: evolve(SubscriptionGroup.of(value), name=name) for name, value in table.items()}

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        groups = dict(self.groups)
        return lambda: {"subscriptionGroupTable": {name: group.to_json() for name, group in groups.items()}}

    def add_system_groups(self) -> None:
        """Add those that are missing. Not a change: every broker has them."""
        for name in SYSTEM_GROUPS:
            self.groups.setdefault(name, SubscriptionGroup(name))

    def find(self, name: str) -> SubscriptionGroup | None:
        """The group, if there is one."""
        return self.groups.get(name)

    def find_or_create(self, name: str) -> SubscriptionGroup | None:
        """The group of a consumer; made if it is missing and may be made, else None. Raises TableFull."""
        group = self.find_or_default(name)
        if group is not None and name not in self.groups:
            self.put(group)
        return group

    def find_or_default(self, name: str) -> SubscriptionGroup | None:
        """As `find_or_create`, but the table stays as it is: for a slave, which has its master's."""
        group = self.groups.get(name)
        if group is not None:
            return group
        if not (self._auto_create or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        return SubscriptionGroup(name) if 1 <= len(name) <= GROUP_CHARS_MAX else None

    def put(self, group: SubscriptionGroup) -> None:
        """Create or replace a group. Raises TableFull."""
        if group.name not in self.groups and len(self.groups) >= self._groups_max:
            raise TableFull(f"this broker has {len(self.groups)} consumer groups, trioha.groupsMax")
        self.groups[group.name] = group
        self._note_change()

    def delete(self, name: str) -> bool:
        """Delete a group; whether there was one."""
        if self.groups.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def replace_all(
        self,
        groups: Iterable[SubscriptionGroup],
        version: DataVersion,
        *,
        other: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Be a copy of another broker's table; `other` are members of its file that trioha does not know."""
        self.groups = {group.name: group for group in groups}
        self.other = {**self.other, **other}
        self._note_change()
        self.version = version
