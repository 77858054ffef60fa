"""Defects that are planted into a node, to show that the invariants find them.

`python -m tests.faults.planted DEFECT ARGUMENTS` is `trioha ARGUMENTS` with this defect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum

from trioha.metadata.metadata_store import MetadataStore
from trioha.metadata.offsets import ConsumerOffsets
from trioha.metadata.replica import CopiedTable, MetadataReplica


class Defect(StrEnum):
    """What the node does wrong."""

    GROUPS_NOT_WRITTEN = "groups-not-written"
    """A slave does not write its groups to its disk."""
    OFFSETS_ONE_COPY_LATE = "offsets-one-copy-late"
    """A slave takes the offsets of the copy before the last one."""
    COMMITS_FORGOTTEN = "commits-forgotten"
    """A master acknowledges commits, and keeps the first one of each queue only."""
    OFFSETS_WRITES_LATE = "offsets-writes-late"
    """A master writes the offsets as they were four writes before: the last two may be under way when it is
    killed."""

    @property
    def program(self) -> list[str]:
        """What to start instead of `trioha`."""
        return [sys.executable, "-m", "tests.faults.planted", self.value]


def _do_not_write_groups() -> None:
    write = MetadataStore._write

    def write_others(
        self: MetadataStore, file_name: str, snapshot: Callable[[], Mapping[str, object]]
    ) -> bool:
        return file_name == "subscriptionGroup.json" or write(self, file_name, snapshot)

    MetadataStore._write = write_others


def _take_offsets_one_copy_late() -> None:
    take = MetadataReplica.take
    former: list[list[bytes]] = []

    def take_former(self: MetadataReplica, table: CopiedTable, bodies: list[bytes]) -> Iterator[None]:
        if table is CopiedTable.CONSUMER_OFFSETS:
            former.append(bodies)
            bodies = former.pop(0) if len(former) > 1 else [b'{"offsetTable":{}}']
        return take(self, table, bodies)

    MetadataReplica.take = take_former


def _forget_commits() -> None:
    commit = ConsumerOffsets.commit

    def commit_first(self: ConsumerOffsets, group: str, topic: str, queue_id: int, offset: int) -> None:
        if self.find(group, topic, queue_id) is None:
            commit(self, group, topic, queue_id, offset)

    ConsumerOffsets.commit = commit_first


def _write_offsets_late() -> None:
    write = MetadataStore._write
    former: list[Mapping[str, object]] = []

    def write_former(
        self: MetadataStore, file_name: str, snapshot: Callable[[], Mapping[str, object]]
    ) -> bool:
        if file_name != ConsumerOffsets.file_name:
            return write(self, file_name, snapshot)
        former.append(snapshot())
        value = former.pop(0) if len(former) > 4 else {"offsetTable": {}}
        return write(self, file_name, lambda: value)

    MetadataStore._write = write_former


_PLANT = {
    Defect.GROUPS_NOT_WRITTEN: _do_not_write_groups,
    Defect.OFFSETS_ONE_COPY_LATE: _take_offsets_one_copy_late,
    Defect.COMMITS_FORGOTTEN: _forget_commits,
    Defect.OFFSETS_WRITES_LATE: _write_offsets_late,
}


def main() -> int:
    """Run `trioha` with a defect."""
    _PLANT[Defect(sys.argv.pop(1))]()
    from trioha.cli import main as trioha

    return trioha()


if __name__ == "__main__":
    sys.exit(main())
