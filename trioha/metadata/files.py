"""Metadata files: read with a fallback to `.bak`, replaced as a whole. All functions block."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from trioha.errors import StoreError
from trioha.metadata.pretty_json import parse_pretty
from trioha.store.atomic_file import backup_of, load_file, replace_file

T = TypeVar("T")

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""A larger file is refused: it would need gigabytes in memory."""


def read_metadata(path: Path, structure: Callable[[object], T]) -> T | None:
    """What `structure` makes of the file's JSON value, or of that of its `.bak`; None if there is neither.

    The `.bak` stands in for a file that is missing, empty or damaged, as in the broker. `structure` raises
    ValueError for a value of another shape. Raises StoreError where a file is damaged and its `.bak` is no
    better: a broker that began without its topics and offsets would lose them.
    """
    try:
        for file in (path, backup_of(path)):
            if file.exists() and file.stat().st_size > FILE_BYTES_MAX:
                raise StoreError(f"is larger than {FILE_BYTES_MAX} bytes", path=file)
        return load_file(path, partial(_parse, structure))
    except OSError as error:
        raise StoreError(f"cannot be read: {error.strerror}", path=path) from error
    except ValueError as error:
        raise StoreError(
            f"is damaged, and its .bak does not stand in for it: {error}",
            path=path,
            hint="repair the file, or move it and its .bak away to start without them",
        ) from error


def _parse(structure: Callable[[object], T], data: bytes) -> T:
    if not data.strip():
        raise ValueError("the file is empty")
    return structure(parse_pretty(data.decode("utf-8", "replace")))


def write_metadata(
    path: Path, text: str, *, on_backup: Callable[[OSError | None], None] | None = None
) -> None:
    """Replace the file by `text` and put it on disk; what it was becomes its `.bak`. As `replace_file`."""
    replace_file(path, text.encode("utf-8", "replace"), on_backup=on_backup)
