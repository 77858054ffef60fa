"""How full the disk of a store is, as `df` and RocketMQ count it."""

from __future__ import annotations

import shutil
from pathlib import Path

from attrs import frozen


@frozen
class DiskUse:
    """The file system of a folder."""

    total_bytes: int
    used_bytes: int
    free_bytes: int
    """What an ordinary user can use. What is kept for root counts as neither used nor free."""

    @classmethod
    def of(cls, folder: Path) -> DiskUse:
        """As of now. Blocks. Raises OSError."""
        usage = shutil.disk_usage(folder)
        return cls(usage.total, usage.used, usage.free)

    @property
    def ratio(self) -> float:
        """Used part of what is not kept for root, from 0 to 1."""
        usable_bytes = self.used_bytes + self.free_bytes
        return self.used_bytes / usable_bytes if usable_bytes else 1.0
