"""Compiled code on memory that a page follows which nobody may touch."""

from __future__ import annotations

import subprocess
import sys

PRELUDE = """
import ctypes, mmap, sys
from trioha.store import compiled

libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
guard = ctypes.c_void_p(address + 3 * mmap.PAGESIZE)
assert libc.mprotect(guard, mmap.PAGESIZE, 0) == 0, ctypes.get_errno()
view = memoryview(memory)[: 3 * mmap.PAGESIZE]
"""


def run_guarded(code: str, *arguments: str) -> int:
    """The number that `code` prints; `view` are three pages, which end where the guarded one begins.

    In a process of its own: it would be killed.
    """
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
