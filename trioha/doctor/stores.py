"""Reads a store on this host, of trioha or RocketMQ, also one in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from attrs import evolve

from trioha.broker.pending import count_pending, stored_check_point, stored_revived_offsets
from trioha.doctor.facts import StoreFacts
from trioha.errors import StoreError
from trioha.metadata.metadata_store import FOLDER


def read_store(root: Path, on_step: Callable[[int, int], None]) -> StoreFacts:
    """The facts of the store at `root`; `on_step` gets the offset that is reached, and the log's end.

    Blocks. Raises StoreError for a folder without a log.
    """
    if not (root / "commitlog").is_dir():
        raise StoreError("holds no commit log", path=root, hint="give a storePathRootDir")
    counted = count_pending(
        root,
        revived=stored_revived_offsets(root / FOLDER),
        check_point=stored_check_point(root / FOLDER),
        on_step=on_step,
    )
    # A node delivers timers unless it is told not to.
    pending = evolve(counted.status, delivers_timers=True)
    return StoreFacts(path=str(root), pending=pending, pending_doubt=counted.doubt)
