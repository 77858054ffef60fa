"""Small files that are replaced as a whole: after a crash there is the old or the new one, never a part.

RocketMQ's own files of this kind (topics.json, kvConfig.json and others) have their last state but one beside
them, with `.bak` after the name, and so have those of `replace_file`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog

from trioha.store.syncing import sync_directory, sync_whole

log = structlog.get_logger(__name__)

T = TypeVar("T")


def backup_of(path: Path) -> Path:
    """Where the state before the last one is kept."""
    return path.with_name(f"{path.name}.bak")


def replace_file(
    path: Path,
    data: bytes,
    *,
    mode: int | None = None,
    on_backup: Callable[[OSError | None], None] | None = None,
) -> None:
    """Make `data` the content of `path`, on disk; what it had before becomes its backup.

    Both get the permissions `mode`, by default those of new files. Makes the directory if need be. Blocks.
    Raises OSError; the file has then its old content. A backup that cannot be written holds nothing up: it
    stays as it was. `on_backup` gets the error, None where there was none; without it, it is logged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{path.name}.tmp"
    problem: OSError | None = None
    try:
        _put(backup_of(path), path.read_bytes(), temporary, mode)
    except FileNotFoundError:
        pass
    except OSError as error:
        problem = error
    if on_backup is not None:
        on_backup(problem)
    elif problem is not None:
        reason = problem.strerror or str(problem)
        log.warning("a backup cannot be written", path=str(backup_of(path)), reason=reason)
    _put(path, data, temporary, mode)
    sync_directory(path.parent)


def replace_without_backup(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, on disk. Blocks. Raises OSError; the old content is there then."""
    _put(path, data, path.with_name(f"{path.name}.tmp"), None)
    sync_directory(path.parent)


def _put(path: Path, data: bytes, temporary: Path, mode: int | None) -> None:
    """Give a synced file with `data` the name `path`; nobody may read more of it at any moment than then."""
    # One that was left by a crash may be open elsewhere, or may be read by others.
    temporary.unlink(missing_ok=True)
    fd = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666 if mode is None else 0o600
    )
    try:
        if mode is not None:
            os.fchmod(fd, mode)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        sync_whole(fd)
    finally:
        os.close(fd)
    temporary.replace(path)


def load_file(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """What `parse` makes of the file or, where it is missing or `parse` raises ValueError, of its backup.

    None if there is neither. Raises ValueError if all that is there is damaged, OSError if it cannot be read.
    """
    problem: ValueError | None = None
    for candidate in (path, backup_of(path)):
        try:
            return parse(candidate.read_bytes())
        except FileNotFoundError:
            continue
        except ValueError as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return None
