"""The mark of a cut that has begun (`store.cutting`): what a crash interrupts, the next start completes.

Theory of operation. A cut changes the log, every queue, the index, the checkpoint and the epochs, and no disk
changes all of them in one step. So the new end is written first, to `trioha-cut.json` in the log's folder.
While the file is not there the store is uncut; from the moment that it is on disk the store is cut, and each
of the steps can be repeated. It is deleted, on disk, when all of them are, and only then is anything new
stored: a mark that a power cut brought back would cut new bytes. RocketMQ does not start with the file.

The file also says which bytes of which epochs are cut, for the start that completes the cut: the epochs may
be gone by then.
"""

from __future__ import annotations

import json
from pathlib import Path

from attrs import field, frozen

from trioha.errors import StoreError
from trioha.numbers import NATURAL32, NATURAL64, parse_int
from trioha.store.atomic_file import replace_without_backup
from trioha.store.epochs import EpochEntry, EpochTable
from trioha.store.syncing import sync_directory

FILE_NAME = "trioha-cut.json"


@frozen
class BegunCut:
    """A cut that has begun."""

    offset: int
    """Where the log ends from now on."""
    end_offset: int
    """Where it ended before."""
    epochs: EpochTable = field(factory=EpochTable)
    """Epochs of the bytes that are cut, as they were before."""

    @classmethod
    def of(cls, offset: int, end_offset: int, epochs: EpochTable) -> BegunCut:
        """The cut at `offset` of a log that ends at `end_offset` and has `epochs`."""
        cut = (
            entry
            for entry in epochs.entries
            if max(entry.start_offset, offset) < epochs.end_of(entry, end_offset)
        )
        return cls(offset, end_offset, EpochTable(tuple(cut)))


def load_cut(directory: Path) -> BegunCut | None:
    """The cut of the log in `directory` that has begun; None if there is none.

    Raises StoreError for a file that cannot be read.
    """
    path = directory / FILE_NAME
    try:
        found = json.loads(path.read_bytes())
        offset = parse_int(found["offset"], NATURAL64)
        entries = (
            EpochEntry(parse_int(epoch, NATURAL32), parse_int(start_offset, NATURAL64))
            for epoch, start_offset in found.get("epochs", ())
        )
        # Without the end: of an earlier version.
        return BegunCut(offset, parse_int(found.get("end", offset), NATURAL64), EpochTable(tuple(entries)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"cannot be read: {error}",
            path=path,
            hint="a cut of the log has begun here: remove the store, and the node copies its master's",
        ) from error


def save_cut(directory: Path, cut: BegunCut) -> None:
    """Put the mark on disk: the log ends at `cut.offset` from now on. Blocks. Raises OSError."""
    document = {
        "offset": cut.offset,
        "end": cut.end_offset,
        "epochs": [[entry.epoch, entry.start_offset] for entry in cut.epochs.entries],
    }
    replace_without_backup(directory / FILE_NAME, json.dumps(document).encode())


def remove_cut(directory: Path) -> None:
    """Delete the mark, on disk: all of the cut is. Blocks. Raises OSError."""
    (directory / FILE_NAME).unlink()
    sync_directory(directory)
