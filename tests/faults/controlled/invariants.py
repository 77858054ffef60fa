"""The invariants of a run with a controller: each check returns its violations, a line for each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attrs import define, field

from tests.epochs import epoch_at
from tests.faults.invariants import NAMED_MAX
from tests.faults.producer import Promise
from trioha.errors import StoreError
from trioha.recording.events import CloseReason
from trioha.recording.reader import find_sessions, open_session
from trioha.store.epochs import EpochTable
from trioha_sessions.invariants.group import check_groups

EPOCH_FILE = "epochFileCheckpoint"
_BECAME_MASTER = re.compile(r"role from the controllers .*\bepoch=(\d+) .*\brole=master\b")
IMPOSSIBLE_ENDS = {CloseReason.GAP, CloseReason.DIVERGED}
"""What a slave says of a master whose log is another one: never so in these runs."""


def read_epochs(store: Path) -> EpochTable:
    """The epochs of a store that nobody has open. Raises StoreError."""
    path = store / EPOCH_FILE
    try:
        return EpochTable.decode(path.read_bytes())
    except FileNotFoundError:
        return EpochTable()
    except ValueError as error:
        raise StoreError(f"no epochs: {error}", path=path) from error


@define
class History:
    """Who was master of each epoch, and where its bytes began, by everything that said so."""

    masters: dict[int, dict[str, set[str]]] = field(factory=dict)
    """By epoch, node and source."""
    starts: dict[int, dict[int, set[str]]] = field(factory=dict)
    """By epoch, offset and node."""

    def note_master(self, epoch: int, node: str, source: str) -> None:
        """Somebody said that a node was master of an epoch."""
        self.masters.setdefault(epoch, {}).setdefault(node, set()).add(source)

    def note_epochs(self, node: str, table: EpochTable) -> None:
        """A node's log had these epochs."""
        for entry in table.entries:
            self.starts.setdefault(entry.epoch, {}).setdefault(entry.start_offset, set()).add(node)

    def note_log(self, node: str, text: str) -> None:
        """What a node logged of its roles."""
        for found in _BECAME_MASTER.finditer(text):
            self.note_master(int(found[1]), node, "its log")

    def note_promises(self, promises: Iterable[Promise], table: EpochTable, names: Mapping[str, str]) -> None:
        """Who answered PUT_OK is master of the epoch of that offset, as the last log has it."""
        for promise in promises:
            entry = epoch_at(table, promise.physical_offset)
            self.note_master(
                -1 if entry is None else entry.epoch, names[promise.answered_by], "its answers PUT_OK"
            )

    def violations(self) -> list[str]:
        """Epochs with several masters or begins, and messages of no epoch."""
        found = [
            f"epoch {epoch} had several masters: "
            + "; ".join(f"{node} by {' and '.join(sorted(by))}" for node, by in sorted(masters.items()))
            for epoch, masters in sorted(self.masters.items())
            if len(masters) > 1
        ]
        found += [
            f"epoch {epoch} begins at several offsets: "
            + "; ".join(f"{offset} on {', '.join(sorted(nodes))}" for offset, nodes in sorted(starts.items()))
            for epoch, starts in sorted(self.starts.items())
            if len(starts) > 1
        ]
        if -1 in self.masters:
            found.append(f"PUT_OK was said of messages before the first epoch by {sorted(self.masters[-1])}")
        return found


def check_epoch_files(stores: Sequence[Path], *, end_offset: int) -> list[str]:
    """All stores have the same epochs, which begin in their order and within the log."""
    try:
        tables = {store.name: read_epochs(store) for store in stores}
    except StoreError as error:
        return [str(error)]
    first = next(iter(tables.values()))
    violations = [
        f"epochs of {name} are {table.entries}, not {first.entries}"
        for name, table in tables.items()
        if table != first
    ]
    if not first.entries or first.entries[-1].start_offset > end_offset:
        violations.append(f"epochs {first.entries} of a log that ends at {end_offset}")
    return violations


def check_group_roles(folders: Iterable[Path]) -> list[str]:
    """The sessions of all nodes together: one master for each epoch, and nothing promised was lost."""
    try:
        (group,) = check_groups([open_session(path) for path in find_sessions(folders)])
    except StoreError as error:
        return [str(error)]
    return [
        f"{one.session}: {one.invariant}: {one.sentence}"
        for result in group.results
        for one in result.violations[:NAMED_MAX]
    ]
