"""topics.json: the topics of a broker, and how sends make new ones.

See docs/protocol/remoting.md#sends, docs/protocol/store.md#configuration-files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntFlag
from types import MappingProxyType
from typing import Final

from attrs import field, frozen

from trioha.metadata.data_version import DataVersion
from trioha.metadata.table import EntryTable, wall_clock_ms
from trioha.metadata.values import flag, members, number, pop_value, sorted_members, text
from trioha.numbers import I32, Range
from trioha.store.topics import HALF_TOPIC, OP_TOPIC, RETRY_TOPIC_PREFIX, REVIVE_TOPIC_PREFIX, SCHEDULE_TOPIC

DEAD_LETTER_PREFIX: Final = "%DLQ%"
DEFAULT_TOPIC: Final = "TBW102"
"""The topic that stands model for topics made by a first send."""
QUEUES_PER_TOPIC_MAX: Final = 65536

_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,127}")
_RETRY_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_POP_RETRY_NAME: Final = re.compile(r"(?=.{1,255}$)%RETRY%[%|a-zA-Z0-9_-]+[+][%|a-zA-Z0-9_-]+")
_i32 = number(I32)
_queue_count = number(Range(0, QUEUES_PER_TOPIC_MAX))


class Perm(IntFlag):
    """What a topic may be used for."""

    INHERIT = 1
    """Topics made by a first send may take its settings."""
    WRITE = 2
    READ = 4
    PRIORITY = 8


READ_WRITE: Final = Perm.READ | Perm.WRITE
# Plain numbers: operations on members of a flag are slow.
_READ: Final = int(Perm.READ)
_WRITE: Final = int(Perm.WRITE)


@frozen
class TopicConfig:
    """One topic."""

    name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = int(READ_WRITE)
    """Bits of Perm."""
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False
    """Its clients expect a fixed order of queues over all brokers."""
    other: Mapping[str, object] = field(factory=dict)
    """Members that trioha does not know; 5.x: attributes."""

    @property
    def is_readable(self) -> bool:
        """Whether messages may be pulled from it."""
        return self.perm & _READ != 0

    @property
    def is_writable(self) -> bool:
        """Whether messages may be sent to it."""
        return self.perm & _WRITE != 0

    @property
    def queue_nums(self) -> int:
        """How many queues it has for either use: writers and readers may see different numbers."""
        return max(self.read_queue_nums, self.write_queue_nums)

    @classmethod
    def of(cls, value: object, *, name: str | None = None) -> TopicConfig:
        """From its JSON value, in which `name` takes the place of its own. Raises ValueError."""
        fields = dict(members(value, "topic"))
        own_name = pop_value(fields, "topicName", text, "")
        return cls(
            own_name if name is None else name,
            pop_value(fields, "readQueueNums", _queue_count, 16),
            pop_value(fields, "writeQueueNums", _queue_count, 16),
            pop_value(fields, "perm", _i32, int(READ_WRITE)),
            pop_value(fields, "topicFilterType", text, "SINGLE_TAG"),
            pop_value(fields, "topicSysFlag", _i32, 0),
            pop_value(fields, "order", flag, False),
            fields,
        )

    def to_json(self) -> dict[str, object]:
        """Its JSON value."""
        return sorted_members(
            {
                **self.other,
                "order": self.order,
                "perm": self.perm,
                "readQueueNums": self.read_queue_nums,
                "topicFilterType": self.filter_type,
                "topicName": self.name,
                "topicSysFlag": self.sys_flag,
                "writeQueueNums": self.write_queue_nums,
            }
        )


def retry_topic(group: str) -> str:
    """The topic of a consumer group's failed messages."""
    return RETRY_TOPIC_PREFIX + group


def dead_letter_topic(group: str) -> str:
    """The topic of messages that a consumer group has failed to consume too often."""
    return DEAD_LETTER_PREFIX + group


def describe_topic(topic: TopicConfig) -> str:
    """A topic's settings as 4.9 prints them in remarks."""
    perm = "".join(
        letter if topic.perm & bit else "-"
        for letter, bit in (("R", Perm.READ), ("W", Perm.WRITE), ("X", Perm.INHERIT))
    )
    return (
        f"TopicConfig [topicName={topic.name}, readQueueNums={topic.read_queue_nums}, "
        f"writeQueueNums={topic.write_queue_nums}, perm={perm}, topicFilterType={topic.filter_type}, "
        f"topicSysFlag={topic.sys_flag}, order={'true' if topic.order else 'false'}]"
    )


def is_topic_name(name: str) -> bool:
    """Whether a broker accepts the name: letters, digits and `%|_-`, 127 characters (retry topics 255)."""
    pattern = _RETRY_NAME if name.startswith(RETRY_TOPIC_PREFIX) else _NAME
    return pattern.fullmatch(name) is not None


def is_retry_topic_name(name: str) -> bool:
    """Whether messages may be given again in a topic of this name: also in `%RETRY%group+topic`, which no
    client may make."""
    return is_topic_name(name) or _POP_RETRY_NAME.fullmatch(name) is not None


@frozen
class TopicSettings:
    """How a broker makes topics."""

    cluster_name: str = "DefaultCluster"
    broker_name: str = "broker"
    auto_create: bool = True
    """autoCreateTopicEnable: whether a first send makes a topic."""
    default_queue_nums: int = 8
    """defaultTopicQueueNums."""
    delay_levels: int = 18
    """Queues of the schedule topic."""
    topics_max: int = 10_000
    """trioha.topicsMax."""
    revive_queues: int = 8
    """reviveQueueNum: queues of the topic of popped messages' records."""


def system_topics(settings: TopicSettings) -> tuple[TopicConfig, ...]:
    """The topics that every broker has."""
    all_bits = int(READ_WRITE | Perm.INHERIT)

    def topic(name: str, queue_nums: int = 1, perm: int = int(READ_WRITE)) -> TopicConfig:
        return TopicConfig(name, queue_nums, queue_nums, perm)

    queue_nums = settings.default_queue_nums
    return (
        topic("SELF_TEST_TOPIC"),
        *((topic(DEFAULT_TOPIC, queue_nums, all_bits),) if settings.auto_create else ()),
        topic("BenchmarkTest", 1024),
        topic(settings.cluster_name, 16, all_bits),
        topic(settings.broker_name, 1, all_bits),
        topic("OFFSET_MOVED_EVENT"),
        topic(SCHEDULE_TOPIC, settings.delay_levels),
        topic(f"{settings.cluster_name}_REPLY_TOPIC"),
        topic(HALF_TOPIC),
        topic(OP_TOPIC),
        topic(f"{REVIVE_TOPIC_PREFIX}{settings.cluster_name}", settings.revive_queues),
    )


class TopicTable(EntryTable[TopicConfig]):
    """The topics by name."""

    file_name = "topics.json"
    member = "topicConfigTable"
    what = "topics, trioha.topicsMax"

    def __init__(
        self, settings: TopicSettings | None = None, *, now_ms: Callable[[], int] = wall_clock_ms
    ) -> None:
        super().__init__(TopicConfig, now_ms=now_ms)
        self.settings = settings or TopicSettings()
        self.changed_at: dict[str, int] = {}
        """For topics whose write was not attempted yet: the value of `changes` at their last change."""

    def add_system_topics(self) -> None:
        """Add those that are missing. Not a change: every broker has them."""
        for topic in system_topics(self.settings):
            self.entries.setdefault(topic.name, topic)

    def put(self, topic: TopicConfig) -> None:
        """Create or replace a topic. Raises TableFull, and ValueError for a name that no topic may have."""
        if not is_retry_topic_name(topic.name):
            raise ValueError(f"topic {topic.name[:300]!r} is not a topic's name")
        super().put(topic)
        self.changed_at[topic.name] = self.changes.offset

    def delete(self, name: str) -> bool:
        """As in the base class."""
        self.changed_at.pop(name, None)
        return super().delete(name)

    def note_all_changed(self) -> None:
        """All topics are to be registered again: name servers accept them only with a new version."""
        self._note_change()

    def replace_all(
        self,
        entries: Iterable[TopicConfig],
        version: DataVersion,
        *,
        other: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """As in the base class."""
        self.changed_at.clear()
        super().replace_all(entries, version, other=other)

    @property
    def _entries_max(self) -> int:
        return self.settings.topics_max

    def find_or_create(self, name: str, *, default_topic: str, queue_nums: int) -> TopicConfig | None:
        """The topic of a send; made as a first send makes it, None if it may not.

        A topic that may be inherited from gives its permissions without that one, and at most as many
        queues as it has itself; a retry topic has one queue. Raises TableFull.
        """
        topic = self.entries.get(name)
        if topic is not None:
            return topic
        if name.startswith(RETRY_TOPIC_PREFIX):
            return self.create_retry_topic(name, queue_nums=1)
        model = self.entries.get(default_topic)
        if model is None or not model.perm & Perm.INHERIT:
            return None
        if default_topic == DEFAULT_TOPIC and not self.settings.auto_create:
            return None
        queue_nums = min(max(queue_nums, 0), model.write_queue_nums)
        topic = TopicConfig(
            name,
            queue_nums,
            queue_nums,
            model.perm & ~Perm.INHERIT,
            model.filter_type,
        )
        self.put(topic)
        return topic

    def create_retry_topic(self, name: str, *, queue_nums: int, sys_flag: int = 0) -> TopicConfig:
        """A retry or dead-letter topic, made if it is missing. Raises TableFull, ValueError."""
        topic = self.entries.get(name)
        if topic is None:
            topic = TopicConfig(name, queue_nums, queue_nums, sys_flag=sys_flag)
            self.put(topic)
        return topic

    def note_written(self, changes: int) -> None:
        """As in the base class; `changed_at` loses what was written."""
        super().note_written(changes)
        if self.changed_at:
            self.changed_at = {name: at for name, at in self.changed_at.items() if at > changes}
