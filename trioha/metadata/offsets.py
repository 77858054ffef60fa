"""consumerOffset.json and delayOffset.json: how far consumers and delay levels are.

See docs/protocol/store.md#configuration-files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from trioha.metadata.data_version import DataVersion
from trioha.metadata.table import MetadataTable, TableFull, wall_clock_ms
from trioha.metadata.values import int_map, members, natural, pop_value

_SEPARATOR = "@"
POPS_COMPLETE_TO: Final = "triohaPopsCompleteTo"
"""Member of the file, and of the answer to a trioha slave: `ConsumerOffsets.pops_complete_to`."""


class ConsumerOffsets(MetadataTable):
    """The next queue offset of each group, topic and queue."""

    file_name = "consumerOffset.json"

    def __init__(self, *, offsets_max: int = 500_000, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        """`offsets_max`: trioha.consumerOffsetsMax."""
        super().__init__(now_ms=now_ms)
        self._offsets: dict[str, dict[int, int]] = {}
        """By `topic@group`, then queue id."""
        self._has_group_topics = False
        """Whether the file has a groupTopicMap, which 5.x derives and does not read."""
        self._offsets_max = offsets_max
        self.count = 0
        """How many offsets there are."""
        self.pops_complete_to: int | None = None
        """Where the log ended when all that was popped was in this table (`broker.pop.positions`); None if it
        is not known. A member of the file that RocketMQ does not read."""

    def _load(self, fields: dict[str, object]) -> None:
        table = members(fields.pop("offsetTable", {}), "offsetTable")
        offsets = {key: int_map(queues, key) for key, queues in table.items()}
        self._has_group_topics = "groupTopicMap" in fields
        fields.pop("groupTopicMap", None)
        pops_complete_to = pop_value(fields, POPS_COMPLETE_TO, natural, -1)
        self.pops_complete_to = None if pops_complete_to < 0 else pops_complete_to
        self._offsets = offsets
        self.count = sum(map(len, offsets.values()))

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        offsets = {key: dict(queues) for key, queues in self._offsets.items()}
        pops = {} if self.pops_complete_to is None else {POPS_COMPLETE_TO: self.pops_complete_to}
        if self._has_group_topics:
            return lambda: {"groupTopicMap": _group_topics(offsets), "offsetTable": offsets, **pops}
        return lambda: {"offsetTable": offsets, **pops}

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group goes on in a queue; None if it never committed there."""
        queues = self._offsets.get(f"{topic}{_SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def of_group(self, group: str, topic: str) -> Mapping[int, int]:
        """The group's offsets in all queues of a topic."""
        return dict(self._offsets.get(f"{topic}{_SEPARATOR}{group}", {}))

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group goes on at `offset`. It may go back: a reset does. Raises TableFull."""
        key = f"{topic}{_SEPARATOR}{group}"
        queues = self._offsets.get(key)
        known = None if queues is None else queues.get(queue_id)
        if known == offset:
            return
        if known is None:
            if self.count >= self._offsets_max:
                raise TableFull(f"this broker keeps {self.count} offsets, trioha.consumerOffsetsMax")
            self.count += 1
        if queues is None:
            queues = self._offsets[key] = {}
        queues[queue_id] = offset
        self._note_change()

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """The group has never committed in this queue."""
        if self._offsets.get(f"{topic}{_SEPARATOR}{group}", {}).pop(queue_id, None) is not None:
            self.count -= 1
            self._note_change()

    def topics_of(self, group: str) -> list[str]:
        """Topics in which the group has committed."""
        ending = _SEPARATOR + group
        return [key[: -len(ending)] for key in self._offsets if key.endswith(ending)]

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have committed in the topic."""
        start = topic + _SEPARATOR
        return [key[len(start) :] for key in self._offsets if key.startswith(start)]

    def topics_by_group(self) -> dict[str, list[str]]:
        """Topics of all groups: one pass over the table, where `topics_of` needs one for each group."""
        topics: dict[str, list[str]] = {}
        for key in self._offsets:
            topic, _, group = key.partition(_SEPARATOR)
            topics.setdefault(group, []).append(topic)
        return topics

    def delete(self, *, group: str | None = None, topic: str | None = None) -> None:
        """Delete all offsets of a group, of a topic, or of a group in a topic."""
        gone = []
        for key in self._offsets:
            key_topic, _, key_group = key.partition(_SEPARATOR)
            if (topic is None or key_topic == topic) and (group is None or key_group == group):
                gone.append(key)
        for key in gone:
            self.count -= len(self._offsets.pop(key))
        if gone:
            self._note_change()

    def delete_queue(self, topic: str, queue_id: int) -> int:
        """Delete the offsets of all groups in one queue; returns how many there were."""
        count = 0
        for key, queues in self._offsets.items():
            if key.partition(_SEPARATOR)[0] == topic and queues.pop(queue_id, None) is not None:
                count += 1
        self.count -= count
        if count:
            self._note_change()
        return count

    def queues_of(self, key: str) -> Mapping[int, int]:
        """The offsets of one `topic@group` by queue id. Read it; it changes with the table."""
        return self._offsets.get(key, {})

    def items(self) -> list[tuple[str, Mapping[int, int]]]:
        """All offsets by `topic@group`. The list does not change, the maps in it do."""
        return list(self._offsets.items())

    def names_chars(self) -> int:
        """Characters of all `topic@group`."""
        return sum(map(len, self._offsets))

    def copy_queues(self, key: str, queues: Mapping[int, int]) -> None:
        """Take another broker's offsets of one `topic@group`; other queues stay. `note_copied` follows.

        Raises TableFull, with nothing taken.
        """
        new = len(queues.keys() - self.queues_of(key).keys())
        if new and self.count + new > self._offsets_max:
            raise TableFull(f"more than {self._offsets_max} offsets, trioha.consumerOffsetsMax")
        self._offsets.setdefault(key, {}).update(queues)
        self.count += new

    def note_copied(self, *, has_changed: bool, version: DataVersion | None) -> None:
        """A copy of another broker's offsets has ended; `version` is that of its table, if it has one."""
        if has_changed:
            self._note_change()
        if version is not None:
            self.version = version


def _group_topics(keys: Iterable[str]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = {}
    for key in sorted(keys):
        topic, _, group = key.partition(_SEPARATOR)
        topics.setdefault(group, []).append(topic)
    return dict(sorted(topics.items()))


class DelayOffsets(MetadataTable):
    """The next queue offset of each delay level's queue in the schedule topic."""

    file_name = "delayOffset.json"

    def __init__(self, *, now_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(now_ms=now_ms)
        self._offsets: dict[int, int] = {}
        """By level, from 1."""

    def _load(self, fields: dict[str, object]) -> None:
        self._offsets = int_map(fields.pop("offsetTable", {}), "offsetTable")

    def _snapshot(self) -> Callable[[], Mapping[str, object]]:
        offsets = dict(self._offsets)
        return lambda: {"offsetTable": offsets}

    def find(self, level: int) -> int | None:
        """Where delivery goes on; None for a level that was never looked at."""
        return self._offsets.get(level)

    def put(self, level: int, offset: int) -> None:
        """Delivery of the level goes on at `offset`."""
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self._note_change()

    def items(self) -> Mapping[int, int]:
        """All offsets by level."""
        return dict(self._offsets)

    def copy(self, offsets: Mapping[int, int], *, version: DataVersion | None) -> None:
        """Take another broker's offsets of these levels; the others stay."""
        if offsets:
            self._offsets.update(offsets)
            self._note_change()
        if version is not None:
            self.version = version
