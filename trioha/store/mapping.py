"""Map a file into memory without keeping a descriptor for it.

The kernel keeps the file as long as the mapping lives. But Python's `mmap` before 3.13 keeps a duplicate of
the descriptor, which is closed only with the mapping. With a descriptor for each file of a log, a store of
500 GiB would need most of the 1,024 that a process usually has.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, cast

from trioha.store import system

_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = {"linux": 0x4000, "darwin": 0x40}
"""The platforms where `_map_over` works."""
_READ_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE


def map_file(fd: int, size: int, path: Path, *, first_offset: int = 0, read_only: bool = False) -> memoryview:
    """The first `size` bytes of an open file, as memory that is shared with it; `fd` may be closed then.

    The view's `obj` is the `mmap.mmap`. The mapping ends with the last slice of the view. Raises OSError.

    The process ends by SIGBUS where the disk does not give a page of the map: a bad sector, or a file that
    was cut. It then leaves a line with `path` and the offset, which is `first_offset` at the map's begin,
    until `end_map`. In plain Python it leaves the traceback of its threads.
    """
    access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
    view = None
    if sys.version_info >= (3, 13):
        view = memoryview(mmap.mmap(fd, size, access=access, trackfd=False))
    else:
        view = _map_over(fd, size, read_only=read_only)
        view = memoryview(mmap.mmap(fd, size, access=access)) if view is None else view
    system.name_map(view, os.fsencode(path), first_offset)
    return view


def end_map(view: memoryview) -> None:
    """End a map, at once or with the last slice of its view."""
    mapping = view.obj
    assert isinstance(mapping, mmap.mmap)
    system.forget_map(view)
    # References to the mapping, for instance from the frames of a traceback, would keep the space of a
    # deleted file until the next garbage collection.
    with suppress(BufferError):
        # Refused while there are slices, or a thread uses the map: the last of them ends it.
        view.release()
        mapping.close()


def _map_over(fd: int, size: int, *, read_only: bool) -> memoryview | None:
    """An anonymous mapping, which has no descriptor, with the file put in its place.

    The kernel replaces the pages in one step, and Python uses the mapping, and unmaps it, by its address.
    None on a platform where this does not work.
    """
    no_reserve = _MAP_NORESERVE.get(sys.platform)
    if no_reserve is None:
        return None
    try:
        # Its pages are never touched; without a reservation it costs address space only.
        mapping = mmap.mmap(
            -1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | no_reserve, prot=_READ_WRITE
        )
    except OSError:
        return None
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    protection = mmap.PROT_READ if read_only else _READ_WRITE
    if _mmap()(address, size, protection, mmap.MAP_SHARED | _MAP_FIXED, fd, 0) != address:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    view = memoryview(mapping)
    return view.toreadonly() if read_only else view


@cache
def _mmap() -> Callable[[int, int, int, int, int, int], int | None]:
    """The C library's `mmap(address, length, protection, flags, fd, offset)`."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    )  # fmt: skip
    return cast("Callable[[int, int, int, int, int, int], int | None]", function)
