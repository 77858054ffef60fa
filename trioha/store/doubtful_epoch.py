"""The last epoch whose end this log may have lost (controller mode).

Theory of operation. A power loss takes what was not on disk: the log may end earlier than it did, in the
middle of an epoch of which others have more. If this broker was the master of that epoch and went on in it,
other bytes would come to the same places under the same epoch, and no comparison of epochs would show where
the logs differ. So the epoch is noted here before anything else changes, and the broker does not go on as its
master: it has the controllers elect anew (`trioha.controller.role`). Then the log's end is the start of the
next epoch, and every other log is cut there, or is ahead of it by what a master of the next epoch has.

The note stays, since the controllers may name this broker until they have elected; later epochs are not
concerned. It is `trioha-doubtful-epoch.json` in the store's root, `{"epoch": number}`; RocketMQ ignores it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import structlog

from trioha.errors import StoreError
from trioha.numbers import NATURAL32, parse_int
from trioha.store.atomic_file import replace_file
from trioha.store.epochs import NO_EPOCH, EpochLog
from trioha.store.lock import AbortFile
from trioha.store.mapped_file import DISK_FULL

log = structlog.get_logger(__name__)

FILE_NAME: Final = "trioha-doubtful-epoch.json"


def load_doubtful_epoch(root: Path) -> int:
    """The epoch that is noted in the store at `root`; -1 for none. Raises StoreError if it cannot be read."""
    path = root / FILE_NAME
    try:
        return parse_int(json.loads(path.read_bytes())["epoch"], NATURAL32)
    except FileNotFoundError:
        return NO_EPOCH
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"cannot be read: {error}",
            path=path,
            hint='write {"epoch": N} with the last epoch of epochFileCheckpoint as N',
        ) from error


def note_doubtful_epoch(root: Path, abort: AbortFile, epochs: EpochLog | None) -> tuple[int, bool]:
    """The doubtful epoch, noted on disk if it is one since the last start; and whether it could be noted.

    Blocks. Raises StoreError, and OSError but not for a full disk: it must not prevent an opening.
    """
    if epochs is None:
        return NO_EPOCH, True
    noted = load_doubtful_epoch(root)
    # As the file has it: recovery drops an epoch of which no byte is left.
    last_epoch = epochs.last_epoch
    if last_epoch <= noted or not abort.lost_power:
        return noted, True
    log.warning("the end of the log's last epoch may be lost in a power loss", epoch=last_epoch)
    try:
        save_doubtful_epoch(root, last_epoch)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        log.warning("the epoch cannot be noted, the next start looks again", reason=error.strerror)
        return last_epoch, False
    return last_epoch, True


def save_doubtful_epoch(root: Path, epoch: int) -> None:
    """Note an epoch in place of the last one, on disk. Blocks. Raises OSError."""
    replace_file(root / FILE_NAME, json.dumps({"epoch": epoch}).encode())
