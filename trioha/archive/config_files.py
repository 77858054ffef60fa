"""The config files of a store's broker, read while it may write them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from trioha.archive.errors import ArchiveError
from trioha.auth.stored import FILE_NAME as AUTH_FILE
from trioha.errors import RemoteProtocolError
from trioha.remoting.fastjson import parse_json

FOLDER: Final = "config"
SECRET: Final = frozenset((AUTH_FILE,))
"""Files that no archive has: there are passwords in them."""
_ATTEMPTS: Final = 4
_PARSED_MAX: Final = 1 << 20
_PAUSE_S: Final = 0.02


def read_config_files(
    store: Path, *, bytes_max: int, sleep: Callable[[float], object] = time.sleep
) -> dict[str, str]:
    """Contents of the files in STORE/config by name; none without that folder.

    RocketMQ writes them in place, or deletes one and renames another to it: a JSON file that is missing or
    torn is read again, then its `.bak` is. Files that are not text or have secrets are left out, and the
    largest ones if all together have more than `bytes_max`. Raises ArchiveError if a file cannot be read.
    """
    folder = store / FOLDER
    try:
        paths = {
            path.name.removesuffix(".bak"): path.stat().st_size
            for path in folder.iterdir()
            if path.is_file() and not path.name.startswith(".") and not path.name.endswith(".tmp")
        }
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise _unreadable(folder, error) from error
    files: dict[str, str] = {}
    room = bytes_max
    for name, size in sorted(paths.items(), key=lambda item: (item[1], item[0])):
        if name in SECRET:
            continue
        if size > room:
            break
        text = _read(folder / name, bytes_max=room, sleep=sleep)
        if text is not None:
            room -= len(text)
            files[name] = text
    return dict(sorted(files.items()))


def digest_of(files: Mapping[str, str]) -> bytes:
    """A digest of names and contents."""
    result = hashlib.sha256()
    for name, text in sorted(files.items()):
        for part in (name.encode(), text.encode()):
            result.update(len(part).to_bytes(8, "big") + part)
    return result.digest()


def _read(path: Path, *, bytes_max: int, sleep: Callable[[float], object]) -> str | None:
    is_json = path.suffix == ".json"
    for attempt in range(_ATTEMPTS):
        text = _text(path, bytes_max)
        if text is not None and (not is_json or _is_json(text)):
            return text
        if attempt < _ATTEMPTS - 1:
            sleep(_PAUSE_S)
    text = _text(path.with_name(path.name + ".bak"), bytes_max)
    return text if text is not None and (not is_json or _is_json(text)) else None


def _text(path: Path, bytes_max: int) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        return data.decode() if len(data) <= bytes_max else None
    except UnicodeDecodeError:
        return None


def _is_json(text: str) -> bool:
    if len(text) > _PARSED_MAX:
        # To parse it takes long, with the GIL held.
        return text.lstrip().startswith("{") and text.rstrip().endswith("}")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return _is_fastjson(text)
    return True


def _is_fastjson(text: str) -> bool:
    """Whether it is JSON with bare integer keys, as RocketMQ writes maps of offsets.

    See docs/protocol/store.md#configuration-files.
    """
    try:
        parse_json(text)
    except RemoteProtocolError:
        return False
    return True


def _unreadable(path: Path, error: OSError) -> ArchiveError:
    return ArchiveError(f"cannot be read: {error.strerror or error}", url=str(path))
