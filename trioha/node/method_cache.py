"""Keeps the methods of attrs classes compiled between the starts of a node.

attrs writes the methods of a class as source text and compiles it wherever the class is made. A node makes
180 such classes, trio's among them, before it is ready, and to compile them takes a good part of a start
(docs/where-time-goes.md#a-start). Python keeps compiled modules in `__pycache__`; this keeps compiled methods
in a file there, by the same rules: it is written where modules may be written (`PYTHONDONTWRITEBYTECODE`,
`PYTHONPYCACHEPREFIX`, rights of the folder), each Python has a file of its own, and what does not fit the
source text is compiled anew.

`python -m trioha.node.method_cache` writes the file for all kinds of nodes, for an installation whose folder
nodes may not write.

The file: Python's magic number, the hash of the rest, and a marshalled dict of code objects by file name and
hash of the source text.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, Final

import attr

ENTRIES_MAX: Final = 1000
"""How many classes a file has at most: what no start used goes when there are more."""

HASH_BYTES: Final = 8
PARTS: Final = (
    "trioha.node.process",
    "trioha.broker.acl_file",
    "trioha.broker.registration",
    "trioha.ha.slave",
    "trioha.metrics.collector",
    "trioha.namesrv.processor",
    "trioha.recording.recorder",
)
"""What a node imports before it is ready: always, and with one setting or another."""

Key = tuple[str, bytes]
"""File name of a source text, as tracebacks show it, and its hash."""


class MethodCache:
    """Code objects by the name and the text of their source."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = _load(path)
        self._used: dict[Key, CodeType] = {}
        self._is_changed = False

    def compile(self, source: str, filename: str, mode: str, *rest: Any, **more: Any) -> CodeType:
        """The code of `source`, as the builtin of this name makes it."""
        if mode != "exec" or rest or more:
            other: CodeType = compile(source, filename, mode, *rest, **more)
            return other
        key = (filename, importlib.util.source_hash(source.encode()))
        code = self._kept.get(key)
        if code is None:
            code = self._kept[key] = compile(source, filename, mode)
            self._is_changed = True
        self._used[key] = code
        return code

    def save(self) -> None:
        """Write the file if it has not all code of this start, and bytecode may be written."""
        if not self._is_changed or sys.dont_write_bytecode:
            return
        codes = self._kept if len(self._kept) <= ENTRIES_MAX else self._used
        data = marshal.dumps(codes)
        unfinished = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        # As with modules: a folder that cannot be written leaves the work to each start.
        with suppress(OSError):
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                unfinished.write_bytes(importlib.util.MAGIC_NUMBER + importlib.util.source_hash(data) + data)
                unfinished.replace(self._path)
            finally:
                unfinished.unlink(missing_ok=True)


@contextmanager
def methods_kept(path: Path | None = None) -> Iterator[None]:
    """Classes that are made meanwhile get their methods from the file, and new ones are added to it.

    `path` replaces the usual file, which is beside this module's own bytecode.
    """
    cache = MethodCache(path or Path(importlib.util.cache_from_source(__file__)).with_suffix(".methods"))
    # The global names of the module that makes classes are found before the builtin functions.
    making = getattr(attr, "_make", None)
    if making is None:
        yield
        return
    hooks = {"compile": cache.compile, "hash": _hash}
    vars(making).update(hooks)
    try:
        yield
    finally:
        for name in hooks:
            del vars(making)[name]
    cache.save()


def _hash(value: object) -> int:
    """As the builtin of this name, but that of a text is the same in each process: it is part of methods."""
    return zlib.crc32(value.encode()) if isinstance(value, str) else hash(value)


def _load(path: Path) -> dict[Key, CodeType]:
    """What is in the file; nothing if it is not there, another Python's, or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    head = len(importlib.util.MAGIC_NUMBER) + HASH_BYTES
    magic, written_hash, codes = data[: head - HASH_BYTES], data[head - HASH_BYTES : head], data[head:]
    if magic != importlib.util.MAGIC_NUMBER or written_hash != importlib.util.source_hash(codes):
        return {}
    found: dict[Key, CodeType] = marshal.loads(codes)  # noqa: S302 - as bytecode beside it
    return found


def main() -> None:
    """Write the file for all kinds of nodes."""
    with methods_kept():
        for name in PARTS:
            import_module(name)


if __name__ == "__main__":
    main()
