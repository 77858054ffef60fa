"""The mark of a cut that has begun (`MessageStore.cut`): what a crash interrupts, the next start completes.

Theory of operation. A cut changes the log, every queue, the index, the checkpoint and the epochs, and no disk
changes all of them in one step. So the new end is written first, to `trioha-cut.json` in the log's folder.
While the file is not there the store is uncut; from the moment that it is on disk the store is cut, and each
of the steps can be repeated. It is deleted, on disk, when all of them are, and only then is anything new
stored: a mark that a power cut brought back would cut new bytes. RocketMQ does not start with the file.
"""

from __future__ import annotations

import json
from pathlib import Path

from trioha.errors import StoreError
from trioha.numbers import NATURAL64, parse_int
from trioha.store.syncing import sync_directory, sync_whole

FILE_NAME = "trioha-cut.json"


def load_cut(directory: Path) -> int | None:
    """The offset at which a cut of the log in `directory` has begun; None if there is none.

    Raises StoreError for a file that cannot be read.
    """
    path = directory / FILE_NAME
    try:
        return parse_int(json.loads(path.read_bytes())["offset"], NATURAL64)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"cannot be read: {error}",
            path=path,
            hint="a cut of the log has begun here: remove the store, and the node copies its master's",
        ) from error


def save_cut(directory: Path, offset: int) -> None:
    """Put the mark on disk: the log ends at `offset` from now on. Blocks. Raises OSError."""
    temporary = directory / f"{FILE_NAME}.tmp"
    with temporary.open("wb") as file:
        file.write(json.dumps({"offset": offset}).encode())
        file.flush()
        sync_whole(file.fileno())
    temporary.replace(directory / FILE_NAME)
    sync_directory(directory)


def remove_cut(directory: Path) -> None:
    """Delete the mark, on disk: all of the cut is. Blocks. Raises OSError."""
    (directory / FILE_NAME).unlink()
    sync_directory(directory)
