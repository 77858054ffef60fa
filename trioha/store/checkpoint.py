"""The store's checkpoint: the store time up to which log, queues and index are on disk.

See docs/protocol/store.md#checkpoint.

| offset | i64 | meaning |
|---|---|---|
| 0 | physicMsgTimestamp | store time of the last message covered by a flush of the log |
| 8 | logicsMsgTimestamp | store time of the last record put in a consume queue |
| 16 | indexMsgTimestamp | end of the last full index file |
| 24 | masterFlushedOffset | 5.3 |
| 32 | confirmPhyOffset | 5.3 |
| 40 | logicsPhysicalOffset | 5.5: all entries of the records before it are on disk |

4096 bytes, the rest zero. A missing or empty file reads as zeros. Older versions leave fields that they do
not know as they are.

With logicsPhysicalOffset RocketMQ 5.5 begins, after an unclean stop, at the newest log file that starts at or
before it, and does not look at the times. If it is 0, 5.5 begins at the newest file whose first record was
stored by logicsMsgTimestamp: without the 3 s of all others, and without physicMsgTimestamp. Records before
that file may lack queue entries, or not be on disk. So a checkpoint without an offset has no
logicsMsgTimestamp either. With `enableAcceleratedRecovery` 5.5 reads the log from the very offset on, so a
record or blank starts there, or the log ends.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

from attrs import frozen

from trioha.errors import StoreError
from trioha.store.syncing import sync_whole

CHECKPOINT_BYTES = 4096
_FIELDS = Struct(">6q")


@frozen
class Checkpoint:
    """Content of the file: wall time in ms, offsets in bytes."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0
    """Queues, index and log have everything before it on disk; 0 for unknown. A record or blank starts there,
    or the log ends."""

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file; zeros if it is missing, or empty because the disk was full when it was made.

        Raises StoreError for a file that is too short.
        """
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
        if not data:
            return cls()
        if len(data) < _FIELDS.size:
            raise StoreError(
                f"has {len(data)} bytes, a checkpoint has {CHECKPOINT_BYTES}",
                path=path,
                hint="remove it: the log is then checked from its start",
            )
        return cls(*_FIELDS.unpack_from(data))

    def encode(self) -> bytes:
        """The file's bytes."""
        return _FIELDS.pack(
            self.physic_msg_timestamp_ms,
            self.logics_msg_timestamp_ms,
            self.index_msg_timestamp_ms,
            self.master_flushed_offset,
            self.confirm_physical_offset,
            self.logics_physical_offset,
        ).ljust(CHECKPOINT_BYTES, b"\0")


class CheckpointFile:
    """The file `checkpoint` of a store in use. It stays open, so that a save needs no new descriptor."""

    def __init__(self, path: Path) -> None:
        """Open the file, made if missing. Raises OSError."""
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the file in place, one page, and put it on disk. Blocks. Raises OSError."""
        os.pwrite(self._fd, checkpoint.encode(), 0)
        sync_whole(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
