"""Metadata files: read with a fallback to `.bak`, replaced atomically.

A write makes `F.tmp` and puts it on disk, links what `F` was as `F.bak`, and renames `F.tmp` to `F`. At every
moment of it there is a whole `F`, old or new; RocketMQ 5 overwrites `F` in place. All functions block.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog

from trioha.errors import StoreError
from trioha.metadata.pretty_json import parse_pretty
from trioha.store.syncing import sync_directory, sync_whole

T = TypeVar("T")

log = structlog.get_logger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger file is refused: it would need gigabytes in memory."""


def read_metadata(path: Path, structure: Callable[[object], T]) -> T | None:
    """What `structure` makes of the file's JSON value, or of that of its `.bak`; None if there is neither.

    The `.bak` stands in for a file that is missing, empty or bad, as in the broker. `structure` raises
    ValueError for a value of another shape. Raises StoreError where a file is bad and no `.bak` is better: a
    broker that began without its topics and offsets would lose them.
    """
    fault: str | None = None
    for candidate in (path, Path(f"{path}.bak")):
        try:
            text = _read(candidate)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            fault = fault or f"{candidate.name} cannot be read: {error}"
            continue
        if not text.strip():
            continue
        try:
            value = structure(parse_pretty(text))
        except ValueError as error:
            fault = fault or f"{candidate.name} is damaged: {error}"
            continue
        if fault is not None:
            log.warning("metadata comes from the backup", path=str(candidate), reason=fault)
        return value
    if fault is not None:
        raise StoreError(fault, path=path, hint="repair the file, or delete it and its .bak to start without")
    return None


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"larger than {FILE_BYTES_MAX} bytes")
    return data.decode("utf-8", "replace")


def write_metadata(path: Path, text: str) -> None:
    """Replace the file by `text` and put it on disk; what it was becomes its `.bak`. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(f"{path}.tmp")
    with temporary.open("wb") as file:
        file.write(text.encode("utf-8", "replace"))
        file.flush()
        sync_whole(file.fileno())
    _keep_as_backup(path)
    temporary.replace(path)
    sync_directory(path.parent)


def _keep_as_backup(path: Path) -> None:
    backup, link = Path(f"{path}.bak"), Path(f"{path}.bak.tmp")
    link.unlink(missing_ok=True)
    try:
        os.link(path, link)
    except FileNotFoundError:
        return
    except OSError:
        # A file system without hard links. The file is gone for a moment, in which its .bak is there.
        path.replace(backup)
        return
    link.replace(backup)
