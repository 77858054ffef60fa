"""subscriptionGroup.json: the consumer groups of a broker.

See docs/protocol/remoting.md#administration, docs/protocol/store.md#configuration-files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from attrs import field, frozen

from trioha.metadata.table import EntryTable, wall_clock_ms
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
    def of(cls, value: object, *, name: str | None = None) -> SubscriptionGroup:
        """From its JSON value, in which `name` takes the place of its own. Raises ValueError."""
        fields = dict(members(value, "subscription group"))
        own_name = pop_value(fields, "groupName", text, "")
        return cls(
            own_name if name is None else name,
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


class GroupTable(EntryTable[SubscriptionGroup]):
    """The groups by name."""

    file_name = "subscriptionGroup.json"
    member = "subscriptionGroupTable"
    what = "consumer groups, trioha.groupsMax"

    def __init__(
        self,
        *,
        auto_create: bool = True,
        groups_max: int = 10_000,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`auto_create`: autoCreateSubscriptionGroup; `groups_max`: trioha.groupsMax."""
        super().__init__(SubscriptionGroup, now_ms=now_ms)
        self._auto_create = auto_create
        self._groups_max = groups_max

    def configure(self, *, auto_create: bool, groups_max: int) -> None:
        """Change the settings that `__init__` has set."""
        self._auto_create = auto_create
        self._groups_max = groups_max

    def add_system_groups(self) -> None:
        """Add those that are missing. Not a change: every broker has them."""
        for name in SYSTEM_GROUPS:
            self.entries.setdefault(name, SubscriptionGroup(name))

    def find_or_create(self, name: str) -> SubscriptionGroup | None:
        """The group of a consumer; made if it is missing and may be made, else None. Raises TableFull."""
        group = self.find_or_default(name)
        if group is not None and name not in self.entries:
            self.put(group)
        return group

    def find_or_default(self, name: str) -> SubscriptionGroup | None:
        """As `find_or_create`, but the table stays as it is: for a slave, which has its master's."""
        group = self.entries.get(name)
        if group is not None:
            return group
        if not (self._auto_create or name.startswith(SYSTEM_GROUP_PREFIX)):
            return None
        return SubscriptionGroup(name) if 1 <= len(name) <= GROUP_CHARS_MAX else None

    @property
    def _entries_max(self) -> int:
        return self._groups_max
